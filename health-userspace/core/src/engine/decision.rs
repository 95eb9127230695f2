//! What changed, and why.

use super::{OrderKind, Waits, Why};
use crate::{
    governor::Held,
    model::{Location, OriginId, ServiceId, State},
    time::Timestamp,
};
use alloc::string::String;

/// Something that changed, with its why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When.
    pub at: Timestamp,
    /// About this service.
    pub service: ServiceId,
    /// What.
    pub what: DecisionKind,
    /// The rule that fired, a stable word such as `fall_in_a_row`, `success_rate`, `tripped_3s`: one of [`crate::rule::RULES`].
    pub rule: &'static str,
    /// Evidence in words, such as `refused 412 of 412 SYN`.
    pub evidence: String,
    /// What it rests on.
    pub why: Why,
    /// `judge`, or the operator's name.
    pub by: String,
    /// False where observe mode or a limit withheld it.
    pub enforced: bool,
}

/// Kinds of change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecisionKind {
    /// An origin's state changed.
    State {
        /// Which origin.
        origin: OriginId,
        /// From.
        from: State,
        /// To.
        to: State,
        /// Where the failure sits.
        location: Option<Location>,
    },
    /// A service's traffic went to another tier.
    Failover {
        /// From this tier.
        from: u8,
        /// To that one.
        to: u8,
    },
    /// It came back.
    Failback {
        /// From this tier.
        from: u8,
        /// To that one.
        to: u8,
    },
    /// Nothing usable is left: all but `maintenance` are used.
    Panic {
        /// Entered or left.
        on: bool,
    },
    /// An attack is being mitigated, so more evidence is asked for; or no longer.
    Mitigation {
        /// Begun or over.
        on: bool,
    },
    /// An operator's order was taken, or ended.
    Override {
        /// About this origin.
        origin: OriginId,
        /// What was ordered; `None` when one ran out.
        order: Option<OrderKind>,
    },
    /// A stage of an origin's way back began.
    Stage {
        /// Which origin.
        origin: OriginId,
        /// The part of its weight that it has now. Unit: percent.
        percent: u8,
    },
    /// An origin's next stage waits.
    Asks {
        /// Which origin.
        origin: OriginId,
        /// The part of its weight that it would have. Unit: percent.
        percent: u8,
        /// For what.
        waits: Waits,
    },
    /// The governor holds the flows of an origin where they are.
    Withheld {
        /// Which origin.
        origin: OriginId,
        /// Why.
        held: Held,
    },
    /// Flows went to a standby whose capacity nobody declared: so much is taken for it from now on.
    CapacityUnset {
        /// Which standby.
        standby: OriginId,
        /// Above this the governor holds further causes. Unit: new connections per second.
        most: u64,
    },
    /// A trip was confirmed as `fault`, or cleared, by the judge.
    TripJudged {
        /// Which origin.
        origin: OriginId,
        /// Confirmed or cleared.
        confirmed: bool,
    },
}
