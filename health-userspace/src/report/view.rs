//! The judgement's part of a status: what the engine sees, in the words of the report.

use super::{FailbackReport, OrderReport, OriginReport, ServiceReport};
use health_core::{
    engine::{Order, OrderKind, OriginView, Readiness, ServiceView},
    governor::Held,
    model::{Layer, Location, OriginSpec, ServiceSpec},
    time::Timestamp,
};

impl ServiceReport {
    /// A service as it is judged. What only the kernel knows (shares as read back, load, addresses, trips) is left out,
    /// for the caller to fill from the maps.
    #[must_use]
    pub fn from_view(spec: &ServiceSpec, view: &ServiceView, now: Timestamp) -> Self {
        let origins = spec.origins.iter().filter_map(|origin| {
            let seen = view.origins.iter().find(|seen| seen.id == origin.id)?;
            Some(OriginReport::from_view(origin, seen, now))
        });
        Self {
            name: spec.name.clone(),
            mode: Some(spec.mode.name().to_owned()),
            state: Some(view.state),
            panic: Some(view.panic),
            refuses: Some(view.refuses),
            active_tier: view.active_tier,
            frozen: None,
            origins: origins.collect(),
            active_tier_ms: None,
        }
    }
}

impl OriginReport {
    /// An origin as it is judged, likewise.
    #[must_use]
    pub fn from_view(spec: &OriginSpec, view: &OriginView, now: Timestamp) -> Self {
        let age = |at: Timestamp| (at != Timestamp::NEVER).then(|| now.since(at).as_millis());
        Self {
            name: spec.name.clone(),
            priority: Some(spec.tier),
            state: Some(view.state),
            score: Some(view.score),
            weight: Some(spec.weight),
            capacity_cps: spec.capacity_cps,
            tripped: Some(view.tripped),
            location: view.location.map(Location::name).map(str::to_owned),
            sees: view.sees.map(Layer::name).map(str::to_owned),
            reasons: view.reasons.clone(),
            evidence_age_ms: age(view.evidence_at),
            state_ms: age(view.since),
            hold_down_ms: view.hold_down_until().map(|until| until.since(now).as_millis()).filter(|&left| left > 0),
            stage: FailbackReport::from_view(view, now).map(|failback| match failback.percent {
                0 => failback.step,
                percent => format!("{percent}%"),
            }),
            failback: FailbackReport::from_view(view, now),
            ready: view.ready.map(Readiness::name).map(str::to_owned),
            withheld: view.held.map(Held::name).map(str::to_owned),
            order: view.order.as_ref().and_then(|order| OrderReport::from_order(order, now)),
            ..Self::default()
        }
    }
}

impl OrderReport {
    /// An order in force; a clearing is none.
    #[must_use]
    pub fn from_order(order: &Order, now: Timestamp) -> Option<Self> {
        let what = match order.what {
            OrderKind::Drain => "drain",
            OrderKind::Fail => "fail",
            OrderKind::Clear | OrderKind::Approve | OrderKind::Hold | OrderKind::Abort => return None,
        };
        Some(Self {
            what: what.to_owned(),
            by: order.by.clone(),
            reason: order.reason.clone(),
            ends_in_ms: order.until.map(|until| until.since(now).as_millis()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use health_core::{
        lifecycle::Way,
        model::{OriginId, State},
        time::Span,
    };

    fn at(secs: u64) -> Timestamp {
        Timestamp::NEVER.after(Span::from_secs(secs))
    }

    #[test]
    fn times_become_ages_and_remainders() {
        let spec = OriginSpec {
            id: OriginId(1),
            name: "a".into(),
            key: 1,
            family: health_core::model::Family::V4,
            tier: 0,
            weight: 100,
            capacity_cps: Some(5000),
            capacity_conns: None,
        };
        let order = Order {
            origin: OriginId(1),
            what: OrderKind::Drain,
            reason: "disk".into(),
            by: "li.wei(uid 1007)".into(),
            until: Some(at(160)),
        };
        let view = OriginView {
            id: OriginId(1),
            state: State::Fault,
            since: at(90),
            score: 0,
            share_bp: 0,
            tripped: true,
            location: Some(Location::OriginProcess),
            sees: Some(Layer::Transport),
            failure_spread: 7,
            evidence_at: Timestamp::NEVER,
            reasons: vec!["refused 412/412".into()],
            way: Some(Way::Hold { until: at(99) }),
            waits: None,
            approval: None,
            ready: None,
            held: None,
            order: Some(order),
        };
        let report = OriginReport::from_view(&spec, &view, at(100));
        assert_eq!(report.state_ms, Some(10_000));
        assert_eq!(report.evidence_age_ms, None, "there never was any");
        assert_eq!(report.hold_down_ms, None, "it has ended");
        assert_eq!(report.order.and_then(|order| order.ends_in_ms), Some(60_000));
        assert_eq!((report.location.as_deref(), report.sees.as_deref()), (Some("origin_process"), Some("transport")));
        assert_eq!(report.share_percent, None, "that is read back from the maps, not from the plan");
    }
}
