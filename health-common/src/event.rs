//! What the kernel tells userspace through the ring buffer.

use crate::net::Endpoint;

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// `bpf_ktime_get_ns()`.
    pub time_ns: u64,
    /// For trips: the first bad packet of the streak. Else 0.
    pub first_bad_ns: u64,
    /// [`Kind`].
    pub kind: u16,
    /// [`Why`].
    pub why: u16,
    /// About this origin.
    pub origin: u16,
    /// The origin used instead, or [`crate::NONE`].
    pub other: u16,
    /// Failures counted, for trips.
    pub count: u32,
    /// The node's side, where the event is about one connection.
    pub node: Endpoint,
}

const _: () = assert!(size_of::<Event>() == 48);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// The kernel sends the origin no new flows from now on.
    Trip = 1,
    /// Enough failures for a trip, but the guard or observe mode withheld it.
    Withheld = 2,
    /// One flow tries a tripped origin.
    Trial = 3,
    /// The trial failed.
    TrialFailed = 4,
    /// The kernel ended the trip after a success at the failing layer.
    Clear = 5,
    /// The first new flow that went elsewhere after a trip.
    FirstFlow = 6,
    /// A repeated SYN was sent to a standby.
    Resteer = 7,
    /// A refused SYN was sent to a standby.
    Turn = 8,
    /// After a re-steer the first origin answered first: it keeps the connection.
    Undone = 9,
    /// The lease of an origin that was judged from traffic ran out: from now on it is tripped.
    LeaseOver = 10,
    /// A standby was at its capacity. At most once a second an origin.
    Full = 11,
}

/// Why, for trips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Why {
    /// None given.
    None = 0,
    /// RST answering SYNs.
    Refused = 1,
    /// Unanswered SYNs.
    SynTimeout = 2,
    /// RST after the handshake, before the first response byte.
    ResetEarly = 3,
    /// Unanswered requests.
    NoResponse = 4,
    /// ICMP host or network unreachable, quoting SYNs.
    Unreachable = 5,
    /// Answers of HTTP status 5xx.
    Status = 6,
}

impl Why {
    /// Whether it is a failure of requests, and not of connections.
    #[inline(always)]
    #[must_use]
    pub const fn is_of_requests(self) -> bool {
        matches!(self, Self::ResetEarly | Self::NoResponse | Self::Status)
    }

    /// The signal's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Refused => "refused",
            Self::SynTimeout => "syn_timeout",
            Self::ResetEarly => "reset_early",
            Self::NoResponse => "no_response",
            Self::Unreachable => "unreachable",
            Self::Status => "http_5xx",
        }
    }

    /// From the number in an event.
    #[must_use]
    pub const fn from_number(number: u16) -> Self {
        match number {
            1 => Self::Refused,
            2 => Self::SynTimeout,
            3 => Self::ResetEarly,
            4 => Self::NoResponse,
            5 => Self::Unreachable,
            6 => Self::Status,
            _ => Self::None,
        }
    }
}

impl Kind {
    /// The word in `sluice events`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trip => "trip",
            Self::Withheld => "withheld",
            Self::Trial => "trial",
            Self::TrialFailed => "trial_failed",
            Self::Clear => "clear",
            Self::FirstFlow => "first_flow",
            Self::Resteer | Self::Turn => "rescue",
            Self::Undone => "rescue_undone",
            Self::LeaseOver => "lease_over",
            Self::Full => "full",
        }
    }

    /// From the number in an event; `None` for one of a later version.
    #[must_use]
    pub const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Trip,
            2 => Self::Withheld,
            3 => Self::Trial,
            4 => Self::TrialFailed,
            5 => Self::Clear,
            6 => Self::FirstFlow,
            7 => Self::Resteer,
            8 => Self::Turn,
            9 => Self::Undone,
            10 => Self::LeaseOver,
            11 => Self::Full,
            _ => return None,
        })
    }
}
