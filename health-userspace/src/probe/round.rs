//! One round of one check.

use super::{
    ProbeError,
    clock::{Stalls, duration, now},
    kind::{self, Probe, Setting},
    trace::{Notes, Step, Trace},
};
use health_core::{
    Span, Timestamp,
    model::{LocalReason, Outcome, Reason},
};
use tokio::time::{Instant, timeout_at};

/// A round that ends this long after its deadline was not ended by it.
const OVERDUE_MAX: Span = Span::from_secs(1);

/// A check made ready to be run against one origin.
pub(super) struct Round {
    timeout: Span,
    slow: Option<Span>,
    probe: Box<dyn Probe>,
}

/// When a round was, how it ended, and what it noted.
#[derive(Clone, Debug)]
pub(super) struct Finished {
    pub(super) began: Timestamp,
    pub(super) ended: Timestamp,
    pub(super) outcome: Outcome,
    pub(super) steps: Vec<Step>,
    pub(super) notes: Notes,
}

impl Finished {
    /// A round that was not run because its time had passed.
    pub(super) fn late() -> Self {
        let now = now();
        let outcome = Outcome::Local(LocalReason::Late);
        Self { began: now, ended: now, outcome, steps: Vec::new(), notes: Notes::default() }
    }
}

impl Round {
    pub(super) fn new(setting: Setting<'_>) -> Result<Self, ProbeError> {
        let (timeout, slow) = (setting.check.timeout, setting.check.slow);
        Ok(Self { timeout, slow, probe: kind::prepare(setting)? })
    }

    /// Runs all steps against one absolute deadline.
    pub(super) async fn run(&mut self, stalls: &Stalls) -> Finished {
        let began = now();
        let deadline = Instant::now() + duration(self.timeout);
        let mut trace = Trace::default();
        let answer = timeout_at(deadline, self.probe.run(&mut trace)).await;
        let ended = now();
        let outcome = answer.unwrap_or_else(|_elapsed| Outcome::Fail(Reason::Timeout(trace.layer())));
        let lost = stalls.lost_since(began);
        let outcome = self.settle(outcome, ended.since(began), lost);
        let (steps, notes) = trace.finish(ended);
        Finished { began, ended, outcome, steps, notes }
    }

    /// What `outcome` means, given how long the round took and how much of that this process was not running.
    fn settle(&self, outcome: Outcome, took: Span, lost: Span) -> Outcome {
        let overdue = Span(took.0.saturating_sub(self.timeout.0));
        let slow = self.slow.is_some_and(|slow| took > slow);
        // A process that lost a quarter of a round can't say that the origin was silent or slow.
        let starved = lost.times(4) >= self.timeout && lost > Span::ZERO;
        match outcome {
            _ if overdue > OVERDUE_MAX => Outcome::Local(LocalReason::Late),
            Outcome::Fail(Reason::Timeout(_)) if starved => Outcome::Local(LocalReason::Late),
            Outcome::Pass if slow && starved => Outcome::Local(LocalReason::Late),
            Outcome::Pass if slow => Outcome::Slow,
            other => other,
        }
    }
}
