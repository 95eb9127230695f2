//! What changes while an attack on the service is being mitigated.

use super::Service;
use crate::{
    engine::{DecisionKind, Mitigated, Step},
    model::ServiceSpec,
    policy::Policy,
    time::Timestamp,
};
use alloc::{borrow::ToOwned, boxed::Box, string::String};

/// The policy that holds: the service's own, or the raised one.
pub(crate) fn in_force<'a>(raised: Option<&'a Policy>, spec: &'a ServiceSpec) -> &'a Policy {
    raised.unwrap_or(&spec.policy)
}

impl Service {
    /// The policy that holds.
    pub(crate) fn policy(&self) -> &Policy {
        in_force(self.raised.as_deref(), &self.spec)
    }

    /// Takes the newest word on whether an attack is being mitigated, and tells a change.
    pub(crate) fn mitigate(&mut self, word: Option<&Mitigated>, now: Timestamp, step: &mut Step) {
        let is_on = word.is_some();
        if is_on == self.mitigated.is_some() {
            return;
        }
        let before = core::mem::replace(&mut self.mitigated, word.cloned());
        self.raise();
        let Some(who) = word.or(before.as_ref()) else { return };
        let rule = if is_on { "mitigation" } else { "mitigation_over" };
        let evidence = if who.reason.is_empty() { String::new() } else { who.reason.clone() };
        let by = if is_on { who.by.clone() } else { "judge".to_owned() };
        step.decisions.push(self.decision(now, DecisionKind::Mitigation { on: is_on }, rule, evidence, by));
    }

    /// Makes the policy that holds.
    pub(super) fn raise(&mut self) {
        self.raised = self.mitigated.is_some().then(|| Box::new(self.spec.policy.mitigated()));
    }
}
