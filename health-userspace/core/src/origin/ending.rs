//! When established connections of an origin in fault end.

use super::Origin;
use crate::{
    engine::Ending,
    lifecycle::Phase,
    policy::{OnFault, Policy},
    time::{Span, Timestamp},
};

/// Time between two looks at first; they get rarer with the length of the fault.
const AGAIN_MIN: Span = Span::from_secs(1);

/// Longest such time.
const AGAIN_MAX: Span = Span::from_secs(30);

/// A look is followed by a pause of one part in so many of the time in fault.
const AGAIN_PART: u64 = 8;

impl Origin {
    /// What should end now. Asked only while somebody can stand in: who is reset connects anew.
    pub(crate) fn ending(&mut self, now: Timestamp, policy: &Policy) -> Option<Ending> {
        let out = match self.life.phase {
            Phase::Fault { .. } | Phase::Failed { .. } => self.held.is_none(),
            // It passes again, so what has lasted till now may go on; and a drain ends nothing.
            Phase::Recovering { .. }
            | Phase::Maintenance { .. }
            | Phase::Unknown
            | Phase::Healthy
            | Phase::Degraded
            | Phase::HighRisk => false,
        };
        let lasted = now.since(self.life.since);
        let (all, stalled) = match policy.on_fault {
            OnFault::Reset => (true, Span::ZERO),
            OnFault::ResetAfter if lasted >= policy.reset_after => (true, Span::ZERO),
            OnFault::Keep | OnFault::ResetAfter => return None,
            OnFault::ResetStalled => (false, policy.stalled_for),
        };
        let again = lasted.part(AGAIN_PART).within(AGAIN_MIN, AGAIN_MAX);
        // One of an earlier fault is no earlier look at this one.
        let due = self.ended < self.life.since || now.since(self.ended) >= again;
        if !out || !due {
            return None;
        }
        self.ended = now;
        Some(Ending { origin: self.spec.id, all, stalled, per_s: policy.resets_per_s })
    }
}

#[cfg(test)]
#[path = "../tests/ending.rs"]
mod tests;
