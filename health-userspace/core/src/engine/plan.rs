//! The kernel's part of a [`super::Step`].

use crate::{
    model::{FrontendId, OriginId},
    time::{Span, Timestamp},
};
use alloc::vec::Vec;

/// The kernel's part of the wish.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// One entry an origin.
    pub origins: Vec<OriginPlan>,
    /// One entry a frontend.
    pub frontends: Vec<FrontendPlan>,
}

/// Wish for one origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginPlan {
    /// Which.
    pub id: OriginId,
    /// Never chosen while another is usable (`fault`, `recovering` without a share, `maintenance`).
    pub blocked: bool,
    /// Whether the kernel's trials go on while blocked (`fault` without a check of the failing layer). No slot names the
    /// origin then: its own frontend's flows try it. Of a virtual address one slot names it.
    pub trials: bool,
    /// How long `blocked` holds if no further plan is written.
    pub lease: Lease,
    /// Ends a trip that began at or before this time. Wished until [`super::Input::kernel`] shows no such trip.
    pub clear_trip: Option<Timestamp>,
    /// Unanswered SYNs older than this are failures; `None` while they are no evidence.
    pub syn_timeout: Option<Span>,
    /// Unanswered requests older than this are failures; `None` while they are no evidence.
    pub response_timeout: Option<Span>,
    /// So many lost SYNs are silence to a rescue, which the network does not bring about by itself.
    pub silent_from: u8,
    /// Failures without a success that trip it.
    pub trip_after: u16,
    /// Clients that must be behind them.
    pub trip_spread_min: u8,
    /// How long sockets of this host wait for an answer to their first SYN, while a standby is usable; `None`: as the stack
    /// does.
    pub connect_timeout: Option<Span>,
}

/// How long the kernel keeps an origin out by itself: a daemon that died renews nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lease {
    /// Until userspace takes it back: checks see what traffic never will.
    #[default]
    Stays,
    /// Until then. After it the origin is tripped, and trials decide: a fault that traffic showed can be seen to end by traffic.
    Trips(Timestamp),
    /// Until then, when an operator's order runs out.
    Ends(Timestamp),
}

/// Wish for one frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendPlan {
    /// Which.
    pub id: FrontendId,
    /// Origin of each slot; [`super::SLOTS`] long, never empty. All its owner's where nobody else may take its flows either: the
    /// address is then left as it is. [`OriginId::NONE`] where a virtual address leads nowhere. A blocked origin is named only
    /// in panic, in that case, and by one slot of a virtual address while the kernel's trials of it go on.
    pub slots: Vec<OriginId>,
    /// Where flows go whose slot's origin is tripped: best first, at most 16, the owner last of all. Only usable origins,
    /// tripped ones among them: the trip words change faster than plans. Empty in panic, when what the slot says is used.
    pub armed: Vec<OriginId>,
    /// How many of `armed`, from the first, are of the best tier and share the load.
    pub armed_best: u8,
}
