//! What `status` shows.

use super::Order;
use crate::{
    governor::Held,
    lifecycle::Way,
    model::{Layer, Location, OriginId, ServiceId, State},
    time::Timestamp,
};
use alloc::{string::String, vec::Vec};

/// What a stage waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// An operator's approval.
    Approval,
    /// The window of the day.
    Window,
    /// The end of an operator's hold.
    Hold,
}

impl Waits {
    /// The word for it in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Approval => "approval",
            Self::Window => "window",
            Self::Hold => "hold",
        }
    }
}

/// Whether an origin could take what another one loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It was shown lately that it can.
    Ready,
    /// It does not serve well enough itself, or can't be reached.
    Unusable,
    /// A check found its certificate wrong.
    Certificate,
    /// A check that matters has not passed yet.
    Unproved,
    /// A check that matters has not passed for a while.
    Stale,
    /// It has all the load that its capacity allows.
    Full,
}

impl Readiness {
    /// The word for it in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Unusable => "unusable",
            Self::Certificate => "certificate",
            Self::Unproved => "unproved",
            Self::Stale => "stale",
            Self::Full => "full",
        }
    }
}

/// One service, as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceView {
    /// Which.
    pub id: ServiceId,
    /// Worst state of any origin that has traffic planned, for the heading.
    pub state: State,
    /// Too little usable is left, so that all are used.
    pub panic: bool,
    /// Nothing usable is left, and new connections are refused.
    pub refuses: bool,
    /// Lowest tier that has a share.
    pub active_tier: Option<u8>,
    /// In the specification's order.
    pub origins: Vec<OriginView>,
}

/// One origin, as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginView {
    /// Which.
    pub id: OriginId,
    /// Condition.
    pub state: State,
    /// Since when.
    pub since: Timestamp,
    /// 0 to 100.
    pub score: u8,
    /// Planned share of the service's new flows. Unit: basis points of 10 000.
    pub share_bp: u16,
    /// Whether the kernel has tripped it.
    pub tripped: bool,
    /// Where the failure sits.
    pub location: Option<Location>,
    /// The highest layer that traffic proves to us.
    pub sees: Option<Layer>,
    /// Clients behind the failures of traffic in the window, of at most [`crate::clients::CLIENTS`].
    pub failure_spread: u8,
    /// Newest evidence of any kind.
    pub evidence_at: Timestamp,
    /// Why it is so, worst first.
    pub reasons: Vec<String>,
    /// How far on its way back it is.
    pub way: Option<Way>,
    /// The operator's order in force.
    pub order: Option<Order>,
    /// What its next stage waits for.
    pub waits: Option<Waits>,
    /// An operator's leave to go on with the way back.
    pub approval: Option<Order>,
    /// Whether it could take what another one loses; of standbys only.
    pub ready: Option<Readiness>,
    /// Why its flows stay though it should lose them.
    pub held: Option<Held>,
}

impl OriginView {
    /// The part of its weight that it has on its way back. Unit: percent.
    #[must_use]
    pub const fn part(&self) -> u8 {
        match self.way {
            Some(Way::Asks { percent, .. } | Way::Stage { percent, .. }) => percent,
            Some(Way::Hold { .. } | Way::Observe { .. }) | None => 0,
        }
    }

    /// End of the hold-down, while it waits.
    #[must_use]
    pub const fn hold_down_until(&self) -> Option<Timestamp> {
        match self.way {
            Some(Way::Hold { until }) => Some(until),
            Some(Way::Observe { .. } | Way::Asks { .. } | Way::Stage { .. }) | None => None,
        }
    }
}
