//! What operators want of origins, and of their way back.

use health_core::{
    Span,
    engine::{Order, OrderKind},
    model::OriginId,
};

use super::Daemon;
use crate::{
    control::{self, OriginOrder},
    probe,
};

impl Daemon {
    pub(super) fn order(&mut self, order: OriginOrder) -> control::Outcome {
        let OriginOrder { service, origin, kind, reason, by, lasts } = order;
        let found = self
            .specs
            .iter()
            .find(|spec| spec.name == service)
            .and_then(|spec| spec.origins.iter().find(|candidate| candidate.name == origin));
        let Some(found) = found else {
            return control::Outcome::failed(format!("no origin `{service}/{origin}`: see `sluice status --all`"));
        };
        let what = match kind {
            control::OrderKind::Drain => OrderKind::Drain,
            control::OrderKind::Fail => OrderKind::Fail,
            control::OrderKind::Clear => OrderKind::Clear,
        };
        let nanos = lasts.map(|lasts| u64::try_from(lasts.as_nanos()).unwrap_or(u64::MAX));
        let until = nanos.map(|nanos| probe::now().after(Span(nanos)));
        self.input.orders.push(Order { origin: found.id, what, reason, by, until });
        let word = match kind {
            control::OrderKind::Drain => "drained: no new flows, established ones stay",
            control::OrderKind::Fail => "failed by order",
            control::OrderKind::Clear => "cleared: judged anew from now on",
        };
        control::Outcome::done(format!("{service}/{origin} {word}"))
    }

    /// Hands an order to all origins of a service that are on their way back.
    pub(super) fn failback(
        &mut self,
        service: &str,
        what: control::FailbackKind,
        reason: &str,
        by: &str,
    ) -> control::Outcome {
        let Some(spec) = self.specs.iter().find(|spec| spec.name == service) else {
            return control::Outcome::failed(format!("no service `{service}`: see `sluice status --all`"));
        };
        let views = self.last.iter().flat_map(|step| &step.view).filter(|view| view.id == spec.id);
        let coming: Vec<OriginId> = views
            .flat_map(|view| &view.origins)
            .filter(|origin| origin.way.is_some())
            .map(|origin| origin.id)
            .collect();
        if coming.is_empty() {
            return control::Outcome::refused(format!("nothing of `{service}` is on its way back"));
        }
        let (kind, until, word) = match what {
            control::FailbackKind::Approve => {
                let lasts = spec.policy.failback.approval_expires;
                (OrderKind::Approve, Some(probe::now().after(lasts)), format!("approved, for {lasts}"))
            }
            control::FailbackKind::Hold => {
                (OrderKind::Hold, None, "held: keeps what it has until it is approved".to_owned())
            }
            control::FailbackKind::Abort => {
                (OrderKind::Abort, None, "aborted: in fault again, with a longer hold-down".to_owned())
            }
        };
        let names = spec.origins.iter().filter(|origin| coming.contains(&origin.id)).map(|origin| origin.name.as_str());
        let names = names.collect::<Vec<_>>().join(", ");
        let order = |origin| Order { origin, what: kind, reason: reason.to_owned(), by: by.to_owned(), until };
        self.input.orders.extend(coming.into_iter().map(order));
        control::Outcome::done(format!("{service}: {names} {word}"))
    }
}
