//! The states of one origin, and what leads from one to the next.
//!
//! ```text
//!            evidence                         Failing
//!  Unknown ───────────► Healthy ⇄ Degraded ⇄ HighRisk ─────┐   (from Unknown too)
//!     ▲                    ▲                               ▼
//!     │                    │ Judged, hold-down over      Fault ◄──────┐
//!     │                    │                               │ Risen    │ Failing, Relapse
//!     │                    └─────────── Recovering ◄───────┘          │
//!     │                                     └─────────────────────────┘
//!     │ End, Clear
//!     └──────────── Maintenance (Drain) / Failed (Fail) ◄── from every state
//! ```
//!
//! `Recovering` is a way of several steps: the hold-down, a clean time, and stages that give it a growing part of its weight,
//! each of them perhaps behind an approval or a window of the day. One failure on it leads back to `Fault`.
//!
//! An order outranks all evidence. Silence moves nothing. Where an order runs out, an origin that was in fault before it
//! goes back to `Fault` and has to earn its way; any other is judged anew.

use crate::{
    model::{Layer, State},
    policy::{HoldDown, Policy},
    time::{Span, Timestamp},
};

mod way;

pub use way::{Gate, Way};

/// Time without a fault that takes one fault off the record. Unit: hold-down bases. With the default 30 s: 5 minutes,
/// the longest hold-down, so that an origin that fails once in a while always waits the shortest time.
const QUIET_BASES: u64 = 10;

/// Most faults on the record: with it the hold-down is far above any `max`, and forgetting stays bounded.
const FAULTS_MAX: u64 = 32;

/// What made a fault; decides what can end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The layer that failed.
    pub layer: Layer,
    /// Who showed it.
    pub by: CauseBy,
}

/// Who showed a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CauseBy {
    /// Active checks.
    Checks,
    /// Success rates of real traffic.
    Traffic,
    /// A confirmed trip of the kernel.
    Trip,
    /// An earlier daemon: the kernel still held the origin out when this one started.
    Adopted,
}

/// Recent faults, which lengthen the hold-down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    count: u64,
    quiet_since: Timestamp,
}

impl Faults {
    /// Faults that still count at `now`: one fewer for each ten hold-down bases without a fault.
    #[must_use]
    pub fn recent(self, now: Timestamp, hold_down: HoldDown) -> u64 {
        let quiet = now.since(self.quiet_since).0;
        let forgotten = quiet.checked_div(hold_down.base.times(QUIET_BASES).0).unwrap_or(0);
        self.count.saturating_sub(forgotten)
    }

    /// What was remembered of them: how many, and since when there has been none.
    #[must_use]
    pub fn remembered(count: u64, quiet_since: Timestamp) -> Self {
        Self { count: count.min(FAULTS_MAX), quiet_since }
    }

    /// To be remembered: how many, and since when there has been none.
    #[must_use]
    pub const fn parts(self) -> (u64, Timestamp) {
        (self.count, self.quiet_since)
    }

    /// How long an origin that has just risen waits: `base` for each recent fault, at most `max`.
    #[must_use]
    pub fn hold_down(self, now: Timestamp, hold_down: HoldDown) -> Span {
        hold_down.base.times(self.recent(now, hold_down).max(1)).min(hold_down.max)
    }

    fn one_more(self, now: Timestamp, hold_down: HoldDown) -> Self {
        let count = self.recent(now, hold_down).saturating_add(1).min(FAULTS_MAX);
        Self { count, quiet_since: now }
    }

    /// The time in fault is not quiet.
    const fn over(self, now: Timestamp) -> Self {
        Self { count: self.count, quiet_since: now }
    }
}

/// What an origin comes back to when an order ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It is judged anew.
    Judge,
    /// It was in fault.
    Fault(Cause),
}

/// The state, with what belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing has been said yet.
    Unknown,
    /// Works.
    Healthy,
    /// Some of it fails or is slow.
    Degraded,
    /// Much of it fails.
    HighRisk,
    /// Does not serve.
    Fault {
        /// Why.
        cause: Cause,
    },
    /// Passes again and is on its way back.
    Recovering {
        /// Why it was in fault.
        cause: Cause,
        /// How far it is.
        way: Way,
    },
    /// Drained by an operator.
    Maintenance {
        /// What follows.
        then: Then,
    },
    /// Failed by an operator.
    Failed {
        /// What follows.
        then: Then,
    },
}

/// One origin's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifecycle {
    /// Where it is.
    pub phase: Phase,
    /// Since when.
    pub since: Timestamp,
    /// Recent faults.
    pub faults: Faults,
}

/// What the evidence of one moment comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Nothing new is known; time has gone by.
    Silence,
    /// It serves.
    Judged {
        /// Like this.
        serving: Serving,
        /// The rule that says so.
        rule: &'static str,
    },
    /// It does not serve.
    Failing {
        /// Why.
        cause: Cause,
        /// The rule that fired.
        rule: &'static str,
    },
    /// One failure, which matters only to an origin that has just recovered.
    Relapse {
        /// Why.
        cause: Cause,
        /// The rule that fired.
        rule: &'static str,
    },
    /// `rise` passes at the layer that failed, and no traffic that says otherwise.
    Risen {
        /// The rule that fired.
        rule: &'static str,
    },
    /// An operator drains it.
    Drain,
    /// An operator fails it.
    Fail,
    /// The order in force ran out.
    End,
    /// An operator clears everything.
    Clear,
    /// An operator ends its way back.
    Abort,
}

/// How an origin serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// Well.
    Healthy,
    /// Less well.
    Degraded,
    /// Badly.
    HighRisk,
}

/// A change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// From.
    pub from: State,
    /// To.
    pub to: State,
    /// The rule that fired.
    pub rule: &'static str,
}

impl Phase {
    /// The public word for it.
    #[must_use]
    pub const fn state(self) -> State {
        match self {
            Self::Unknown => State::Unknown,
            Self::Healthy => State::Healthy,
            Self::Degraded => State::Degraded,
            Self::HighRisk => State::HighRisk,
            Self::Fault { .. } | Self::Failed { .. } => State::Fault,
            Self::Recovering { .. } => State::Recovering,
            Self::Maintenance { .. } => State::Maintenance,
        }
    }

    const fn then(self) -> Then {
        match self {
            Self::Unknown | Self::Healthy | Self::Degraded | Self::HighRisk => Then::Judge,
            // A hold-down is not served under an order: it starts again behind it.
            Self::Fault { cause } | Self::Recovering { cause, .. } => Then::Fault(cause),
            Self::Maintenance { then } | Self::Failed { then } => then,
        }
    }
}

impl Serving {
    const fn phase(self) -> Phase {
        match self {
            Self::Healthy => Phase::Healthy,
            Self::Degraded => Phase::Degraded,
            Self::HighRisk => Phase::HighRisk,
        }
    }
}

impl Lifecycle {
    /// Nothing is known at `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self { phase: Phase::Unknown, since: now, faults: Faults::default() }
    }

    /// The same life in another phase, if it is another.
    fn moved(self, phase: Phase, rule: &'static str, now: Timestamp) -> (Self, Option<Decision>) {
        if phase == self.phase {
            return (self, None);
        }
        let (from, to) = (self.phase.state(), phase.state());
        let since = if from == to { self.since } else { now };
        (Self { phase, since, faults: self.faults }, (from != to).then_some(Decision { from, to, rule }))
    }

    fn failed(self, cause: Cause, rule: &'static str, now: Timestamp, policy: &Policy) -> (Self, Option<Decision>) {
        let faults = self.faults.one_more(now, policy.hold_down);
        Self { faults, ..self }.moved(Phase::Fault { cause }, rule, now)
    }

    fn ended(self, then: Then, rule: &'static str, now: Timestamp) -> (Self, Option<Decision>) {
        match then {
            Then::Judge => self.moved(Phase::Unknown, rule, now),
            Then::Fault(cause) => self.moved(Phase::Fault { cause }, rule, now),
        }
    }
}

/// Advances one origin. Pure. `gate` matters only to one on its way back.
#[must_use]
#[expect(clippy::match_same_arms, reason = "the arms are grouped by state, each group with its own reason")]
pub fn step(
    life: Lifecycle,
    input: Input,
    gate: Gate,
    now: Timestamp,
    policy: &Policy,
) -> (Lifecycle, Option<Decision>) {
    match (life.phase, input) {
        // Orders outrank all else.
        (phase, Input::Drain) => life.moved(Phase::Maintenance { then: phase.then() }, "operator", now),
        (phase, Input::Fail) => life.moved(Phase::Failed { then: phase.then() }, "operator", now),
        (_, Input::Clear) => Lifecycle { faults: Faults::default(), ..life }.moved(Phase::Unknown, "operator", now),
        (Phase::Maintenance { then } | Phase::Failed { then }, Input::End) => life.ended(then, "order_ended", now),
        (
            Phase::Maintenance { .. } | Phase::Failed { .. },
            Input::Silence
            | Input::Judged { .. }
            | Input::Failing { .. }
            | Input::Relapse { .. }
            | Input::Risen { .. }
            | Input::Abort,
        ) => (life, None),

        // An origin that serves.
        (
            Phase::Unknown | Phase::Healthy | Phase::Degraded | Phase::HighRisk,
            Input::Silence | Input::Relapse { .. } | Input::Risen { .. } | Input::End | Input::Abort,
        ) => (life, None),
        (Phase::Unknown | Phase::Healthy | Phase::Degraded | Phase::HighRisk, Input::Judged { serving, rule }) => {
            life.moved(serving.phase(), rule, now)
        }
        (Phase::Unknown | Phase::Healthy | Phase::Degraded | Phase::HighRisk, Input::Failing { cause, rule }) => {
            life.failed(cause, rule, now, policy)
        }

        // One that doesn't: only proof at its layer brings it back, a grade never.
        (
            Phase::Fault { .. },
            Input::Silence
            | Input::Judged { .. }
            | Input::Failing { .. }
            | Input::Relapse { .. }
            | Input::End
            | Input::Abort,
        ) => (life, None),
        (Phase::Fault { cause }, Input::Risen { rule }) => {
            let faults = life.faults.over(now);
            let way = Way::Hold { until: now.after(faults.hold_down(now, policy.hold_down)) };
            Lifecycle { faults, ..life }.moved(Phase::Recovering { cause, way }, rule, now)
        }

        // One on its way back: a single failure is one too many.
        (Phase::Recovering { .. }, Input::Failing { cause, rule } | Input::Relapse { cause, rule }) => {
            life.failed(cause, rule, now, policy)
        }
        (Phase::Recovering { cause, .. }, Input::Abort) => life.failed(cause, "operator", now, policy),
        (Phase::Recovering { cause, way }, Input::Judged { serving, .. }) => {
            life.come_back((cause, way), (serving, gate), now, policy)
        }
        (Phase::Recovering { cause, way }, Input::Silence | Input::Risen { .. } | Input::End) => {
            life.come_back((cause, way), (Serving::Healthy, gate), now, policy)
        }
    }
}

#[cfg(test)]
#[path = "tests/lifecycle.rs"]
mod tests;
