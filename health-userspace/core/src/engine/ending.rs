//! Established connections of an origin in fault that should end.

use crate::{model::OriginId, time::Span};

/// Which connections of an origin should end now. What it names may be none by now: who ends them looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Those that it serves.
    pub origin: OriginId,
    /// All of them; otherwise only those below.
    pub all: bool,
    /// Those that wait in vain for so long. Idle ones of this host's sockets, which a pool keeps, at once.
    pub stalled: Span,
    /// So many at most. Unit: per second.
    pub per_s: u32,
}
