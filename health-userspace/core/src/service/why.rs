//! What decisions rest on, and who tells them.

use super::{Service, TOLD_MAX};
use crate::{
    engine::{DecisionKind, Explained, Fact, Of, Why},
    model::{OriginId, State},
    origin::{Origin, limits},
    policy::Policy,
};
use alloc::string::ToString;

/// The origin that a decision is about, if it is about one.
const fn about(what: &DecisionKind) -> Option<OriginId> {
    match what {
        DecisionKind::State { origin, .. }
        | DecisionKind::Override { origin, .. }
        | DecisionKind::Stage { origin, .. }
        | DecisionKind::Asks { origin, .. }
        | DecisionKind::Withheld { origin, .. }
        | DecisionKind::CapacityUnset { standby: origin, .. }
        | DecisionKind::TripJudged { origin, .. } => Some(*origin),
        DecisionKind::Mitigation { .. }
        | DecisionKind::Failover { .. }
        | DecisionKind::Failback { .. }
        | DecisionKind::Panic { .. } => None,
    }
}

impl Service {
    /// What a decision rests on.
    pub(super) fn why(&self, what: &DecisionKind, rule: &str) -> Why {
        if let Some(id) = about(what) {
            let origin = self.origins.iter().find(|origin| origin.spec.id == id);
            return origin.map_or_else(Why::default, |origin| origin.why(rule, &self.spec.checks, self.policies()));
        }
        let mut because: alloc::vec::Vec<&Origin> = self.origins.iter().collect();
        because.sort_by_key(|origin| !origin.is_blocked());
        let fact = |origin: &Origin| {
            let reason = origin.reasons().into_iter().next();
            let state = origin.life.phase.state().name();
            let text = reason.map_or_else(|| state.to_string(), |reason| alloc::format!("{state}: {reason}"));
            Fact { of: Of::Origin(origin.spec.name.clone()), text, at: origin.life.since }
        };
        Why {
            because: because.into_iter().take(TOLD_MAX).map(fact).collect(),
            limits: limits(rule, self.policies()),
            ..Why::default()
        }
    }

    /// The policy that holds, and the service's own.
    fn policies(&self) -> (&Policy, &Policy) {
        (self.policy(), &self.spec.policy)
    }

    /// All that is to be said of the origin at `place`.
    pub(crate) fn explain(&self, place: usize) -> Option<Explained> {
        let origin = self.origins.get(place)?;
        let serves = matches!(origin.life.phase.state(), State::Unknown | State::Healthy);
        let rule = origin.last.as_ref().map_or(if serves { "passes" } else { "adopted" }, |last| last.rule);
        let now = origin.why(rule, &self.spec.checks, self.policies());
        Some(Explained { last: origin.last.clone(), now })
    }
}
