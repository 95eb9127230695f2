//! One flow: what the kernel keeps of a connection attempt, a connection, and a redirected connection.

use crate::net::Endpoint;

/// A connection attempt: a SYN without an accepted answer yet. Value of the maps `half_open_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HalfOpen {
    /// When the SYN was sent; after a re-steer, when it was sent to the standby. Unit: ns.
    pub syn_ns: u64,
    /// Its sequence number.
    pub isn: u32,
    /// Repeats seen. No RTT is taken from a repeated SYN.
    pub repeats: u16,
    /// The origin that it went to.
    pub origin: u16,
    /// The frontend that it was meant for, or [`crate::NONE`].
    pub frontend: u16,
    /// [`MOVED`], [`TRIAL`].
    pub flags: u16,
    /// Place of its client in streaks.
    pub client: u32,
    /// Room up to a cache line, for the rescue's SYN options.
    pub pad: [u64; 5],
}

/// An established flow. Value of the maps `flows_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Flow {
    /// Last byte of the request that is unanswered; 0 when none is. Unit: ns.
    pub request_ns: u64,
    /// Last payload from the origin, by the coarse clock. Unit: ns.
    pub payload_ns: u64,
    /// Next new sequence number of the node's side.
    pub node_next: u32,
    /// Highest acknowledgement that the node's side sent.
    pub node_ack: u32,
    /// Next new sequence number of the origin.
    pub origin_next: u32,
    /// Highest acknowledgement that the origin sent.
    pub origin_ack: u32,
    /// Handshake RTT; 0 when not known. Unit: µs.
    pub rtt_us: u32,
    /// Place of its client in streaks.
    pub client: u32,
    /// The origin that serves it.
    pub origin: u16,
    /// [`MOVED`], [`TRIAL`], [`ANSWERED`], [`NODE_FIN`], [`ORIGIN_FIN`].
    pub flags: u16,
    /// Room up to a cache line.
    pub pad: [u32; 5],
}

const _: () = assert!(size_of::<HalfOpen>() == 64);
const _: () = assert!(size_of::<Flow>() == 64);

/// Redirected by packet: it has entries in the `moved_*` maps.
pub const MOVED: u16 = 1;
/// The trial of a tripped origin.
pub const TRIAL: u16 = 2;
/// The origin has sent payload.
pub const ANSWERED: u16 = 4;
/// The node's side has sent FIN.
pub const NODE_FIN: u16 = 8;
/// The origin has sent FIN.
pub const ORIGIN_FIN: u16 = 16;

/// Mixes a number, so that neighbours (ports, addresses) fall far apart. The finaliser of SplitMix64 (Steele et al.,
/// OOPSLA 2014).
#[inline(always)]
#[must_use]
pub const fn mix(number: u64) -> u32 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) & 0xffff_ffff) as u32
}

/// Where a redirected flow's packets go, or what they become. Value of the maps `moved_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Moved {
    /// `moved_out_*`: the origin that serves it. `moved_back_*`: the address that the node's side talks to.
    pub to: Endpoint,
    /// Interface that leads to the origin.
    pub ifindex: u32,
    /// Last packet, by the coarse clock. Unit: ns.
    pub seen_ns: u64,
    /// When it ended (both FIN, or RST), by the coarse clock; 0 while it lives. Unit: ns.
    pub ended_ns: u64,
}

/// What the connect hook chose for a socket. Value of the map `sockets`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Choice {
    /// What the socket asked for; `getpeername` says so.
    pub asked: Endpoint,
    /// The origin chosen.
    pub origin: u16,
    /// The frontend asked for.
    pub frontend: u16,
    /// [`TRIAL`], [`MOVED`] when it differs from what was asked.
    pub flags: u16,
    /// Always 0.
    pub pad: u16,
}

const _: () = assert!(size_of::<Moved>() == 40 && size_of::<Choice>() == 28);
