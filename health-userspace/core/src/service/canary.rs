//! The flows of an origin on its way back beside those of the origins that stood in for it.

use super::Service;
use crate::{engine::TrafficTotals, model::OriginId, origin::Worse};
use alloc::{collections::BTreeMap, format};

/// Parts per million.
const WHOLE: u64 = 1_000_000;

/// A difference of mean times below this is no difference: it is within what one busy moment of a node makes. Unit: ns.
const TTFB_FLOOR_NS: u64 = 1_000_000;

/// Where the counters stood when an origin got the part of its weight that it has.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    percent: u8,
    from: BTreeMap<OriginId, Flows>,
}

/// What flows came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flows {
    syns: u64,
    requests: u64,
    failed: u64,
    answers: u64,
    ttfb_ns: u64,
}

impl Flows {
    fn of(totals: &TrafficTotals, on_5xx: bool) -> Self {
        let refused = totals.refused.saturating_add(totals.syn_timeout).saturating_add(totals.unreachable);
        let broken = totals.no_response.saturating_add(totals.reset_early).saturating_add(totals.reset_mid);
        let errors = if on_5xx { totals.http_5xx } else { 0 };
        Self {
            syns: totals.syn,
            requests: totals.request,
            failed: refused.saturating_add(broken).saturating_add(errors),
            answers: totals.ttfb_all.samples,
            ttfb_ns: totals.ttfb_all.total.0,
        }
    }

    /// Counters that go back are those of new maps: nothing is known of what was before.
    fn since(self, from: Self) -> Self {
        Self {
            syns: self.syns.saturating_sub(from.syns),
            requests: self.requests.saturating_sub(from.requests),
            failed: self.failed.saturating_sub(from.failed),
            answers: self.answers.saturating_sub(from.answers),
            ttfb_ns: self.ttfb_ns.saturating_sub(from.ttfb_ns),
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            syns: self.syns.saturating_add(other.syns),
            requests: self.requests.saturating_add(other.requests),
            failed: self.failed.saturating_add(other.failed),
            answers: self.answers.saturating_add(other.answers),
            ttfb_ns: self.ttfb_ns.saturating_add(other.ttfb_ns),
        }
    }

    /// Connections, or requests where connections are kept.
    fn tried(self) -> u64 {
        self.syns.max(self.requests)
    }

    /// Unit: ppm.
    fn failing(self) -> u64 {
        self.failed.min(self.tried()).saturating_mul(WHOLE).checked_div(self.tried()).unwrap_or(0)
    }

    fn mean_ns(self) -> u64 {
        self.ttfb_ns.checked_div(self.answers).unwrap_or(0)
    }
}

impl Service {
    /// How the flows of the origin at `place`, in a stage or waiting for the next one, are worse than those of the others of its family.
    pub(super) fn compare(&mut self, place: usize) -> Option<Worse> {
        let on_5xx = self.spec.policy.trip.on_5xx;
        let own = self.origins.get(place)?;
        let (id, family) = (own.spec.id, own.spec.family);
        let percent = own.life.phase.part();
        if percent == 0 {
            self.canaries.remove(&id);
            return None;
        }
        let now: BTreeMap<OriginId, Flows> = self
            .origins
            .iter()
            .filter(|origin| origin.spec.family == family && (origin.spec.id == id || origin.can_stand_in()))
            .map(|origin| (origin.spec.id, origin.totals().map(|totals| Flows::of(totals, on_5xx)).unwrap_or_default()))
            .collect();
        let watch = self.canaries.entry(id).or_insert_with(|| Watch { percent, from: now.clone() });
        if watch.percent != percent {
            *watch = Watch { percent, from: now.clone() };
        }
        let gained = |one: &OriginId| {
            let begin = watch.from.get(one)?;
            now.get(one).map(|flows| flows.since(*begin))
        };
        let mine = gained(&id)?;
        let others = now.keys().filter(|other| **other != id).filter_map(gained).fold(Flows::default(), Flows::and);
        self.worse(mine, others)
    }

    fn worse(&self, mine: Flows, others: Flows) -> Option<Worse> {
        let canary = self.spec.policy.failback.canary;
        let least = u64::from(canary.flows_min);
        let limit = others.failing().saturating_add(u64::from(canary.fail_over_standby_percent).saturating_mul(10_000));
        if mine.tried() >= least && others.tried() >= least && mine.failing() > limit {
            let text = format!(
                "{} of {} flows failed, {} of {} of the standby's",
                mine.failed,
                mine.tried(),
                others.failed,
                others.tried()
            );
            return Some(Worse { rule: "canary_failures", text });
        }
        let slow = others.mean_ns().saturating_mul(u64::from(canary.ttfb_factor_percent)) / 100;
        let slow = slow.max(others.mean_ns().saturating_add(TTFB_FLOOR_NS));
        if mine.answers >= least && others.answers >= least && mine.mean_ns() > slow {
            let (mine, others) = (micros(mine.mean_ns()), micros(others.mean_ns()));
            let text = format!("first byte after {mine} us in the mean, {others} us from the standby");
            return Some(Worse { rule: "canary_slow", text });
        }
        None
    }
}

const fn micros(ns: u64) -> u64 {
    ns / 1000
}
