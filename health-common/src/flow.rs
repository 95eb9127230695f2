//! One flow: what the kernel keeps of a connection attempt, a connection, and a redirected connection.

use crate::net::{Be16, Endpoint};

/// A connection attempt: a SYN whose answer the node's side has not acknowledged yet. Value of the maps `half_open_*`.
///
/// An accepted answer makes no flow: whoever forges SYNs gets as many answers as he likes, and would push the flows of
/// others out of their table. It is noted here ([`ANSWERED`], [`Accepted`]) until the node's side shows that it has seen it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HalfOpen {
    /// When the SYN was sent; after a rescue, when it was sent to the standby. Unit: ns.
    pub syn_ns: u64,
    /// Its sequence number.
    pub isn: u32,
    /// Its window, not scaled (RFC 7323 §2.2).
    pub window: u16,
    /// The origin that it went to.
    pub origin: u16,
    /// The frontend that it was meant for, or [`crate::NONE`].
    pub frontend: u16,
    /// [`MOVED`], [`TRIAL`], [`FORWARDED`], [`FIXED`], [`REFUSED`], [`RESTEERED`], [`ECE`], [`CWR`], [`AT_CLIENT`],
    /// [`ANSWERED`], [`LOSER_TOLD`].
    pub flags: u16,
    /// Low half: repeats seen, at most 15. High half: shift of the window that the node's side offers (RFC 7323 §2.3).
    pub again: u8,
    /// Low half: length of `options`, in words of 4 bytes. High half: place among the armed standbys from which the next
    /// rescue chooses, so that none is tried twice.
    pub shape: u8,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Place of its client in streaks, below [`crate::streak::SPREAD_BITS`].
    pub client: u8,
    /// TCP options, byte for byte: a turn-around sends them again. With [`ANSWERED`]: an [`Accepted`].
    pub options: [u64; OPTIONS_MAX / 8],
}

/// What an accepted answer leaves in its attempt, in the place of the options, which nobody will need again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// First sequence number behind the answer's SYN.
    pub start: u32,
    /// The SYN's own timestamp, as it came back.
    pub stamp: u32,
    /// Handshake RTT; 0 when not known. Unit: µs.
    pub rtt_us: u32,
    /// The node's port that the origin sees.
    pub wire_port: Be16,
}

/// Longest TCP options (RFC 9293 §3.1: a header has at most 15 words). Unit: bytes.
pub const OPTIONS_MAX: usize = 40;

impl HalfOpen {
    /// Length of the options. Unit: bytes.
    #[inline(always)]
    #[must_use]
    pub const fn options_len(&self) -> usize {
        (self.shape & 0xf) as usize * 4
    }

    /// Repeats seen, at most 15. No RTT is taken from a repeated SYN.
    #[inline(always)]
    #[must_use]
    pub const fn repeats(&self) -> u8 {
        self.again & 0xf
    }

    /// One more.
    #[inline(always)]
    pub const fn repeat(&mut self) {
        if self.repeats() < 15 {
            self.again += 1;
        }
    }

    /// Shift of the node's windows, at most 14.
    #[inline(always)]
    #[must_use]
    pub const fn node_shift(&self) -> u8 {
        self.again >> 4
    }

    /// Notes it.
    #[inline(always)]
    pub const fn set_node_shift(&mut self, shift: u8) {
        self.again = (shift << 4) | self.repeats();
    }

    /// What its answer left. Means nothing without [`ANSWERED`].
    #[inline(always)]
    #[must_use]
    pub const fn accepted(&self) -> Accepted {
        let [first, second, ..] = self.options;
        Accepted {
            start: (first & 0xffff_ffff) as u32,
            stamp: (first >> 32) as u32,
            rtt_us: (second & 0xffff_ffff) as u32,
            wire_port: Be16((second >> 32 & 0xffff) as u16),
        }
    }

    /// Notes what its answer leaves.
    #[inline(always)]
    pub const fn accept(&mut self, accepted: Accepted) {
        let Accepted { start, stamp, rtt_us, wire_port } = accepted;
        self.options[0] = start as u64 | (stamp as u64) << 32;
        self.options[1] = rtt_us as u64 | (wire_port.0 as u64) << 32;
        self.flags |= ANSWERED;
    }

    /// First armed standby that no rescue has tried.
    #[inline(always)]
    #[must_use]
    pub const fn next(&self) -> u8 {
        self.shape >> 4
    }

    /// Notes that the armed standbys below `next` were tried; at most 15.
    #[inline(always)]
    pub const fn tried(&mut self, next: u8) {
        let next = if next > 15 { 15 } else { next };
        self.shape = (next << 4) | (self.shape & 0xf);
    }
}

/// An established flow. Value of the maps `flows_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Flow {
    /// Last byte of the request that is unanswered; 0 when none is. Unit: ns.
    pub request_ns: u64,
    /// Last payload from the origin, by the coarse clock. Unit: ns.
    pub payload_ns: u64,
    /// When the segment left whose timestamp is to be echoed; 0 when none is waited for. Unit: ns.
    pub sample_ns: u64,
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
    /// Newest timestamp that the node's side sent (RFC 7323 §3.2).
    pub stamp: u32,
    /// The timestamp whose echo ends the sample.
    pub sample: u32,
    /// Receive window that the node's side last offered. Unit: bytes.
    pub node_window: u32,
    /// The origin that serves it.
    pub origin: u16,
    /// [`MOVED`], [`TRIAL`], [`FORWARDED`], [`ANSWERED`], [`NODE_FIN`], [`ORIGIN_FIN`], [`ZERO_WINDOW`], [`LOSER_TOLD`].
    pub flags: u16,
    /// Place of its client in streaks.
    pub client: u8,
    /// Shift of the window that the node's side offers (RFC 7323 §2.3): 0 to 14.
    pub node_shift: u8,
    /// The node's port that the origin sees: its own, if the flow is not [`MOVED`].
    pub wire_port: Be16,
}

const _: () = assert!(size_of::<HalfOpen>() == 64);
const _: () = assert!(size_of::<Flow>() == 64);

/// Redirected by packet: it has entries in the `moved_*` maps.
pub const MOVED: u16 = 1;
/// The trial of a tripped origin.
pub const TRIAL: u16 = 1 << 1;
/// Of a flow: the origin has sent payload. Of an attempt: its SYN was accepted.
pub const ANSWERED: u16 = 1 << 2;
/// The node's side has sent FIN.
pub const NODE_FIN: u16 = 1 << 3;
/// The origin has sent FIN.
pub const ORIGIN_FIN: u16 = 1 << 4;
/// Forwarded for a client, not of this host's sockets.
pub const FORWARDED: u16 = 1 << 5;
/// Its SYN can't be sent anew or elsewhere: signed (TCP-AO, TCP-MD5), an authenticated header, options of IPv4.
pub const FIXED: u16 = 1 << 6;
/// Its SYN may be redirected, but not built anew: it carries data or a Fast Open cookie.
pub const UNTURNABLE: u16 = 1 << 7;
/// Observed to be refused, at XDP; TC is still to act on it.
pub const REFUSED: u16 = 1 << 8;
/// Sent to a standby without an answer of the first origin: that one's may still come first.
pub const RESTEERED: u16 = 1 << 9;
/// The SYN's ECE bit (RFC 3168 §6.1.1).
pub const ECE: u16 = 1 << 10;
/// The SYN's CWR bit.
pub const CWR: u16 = 1 << 11;
/// The origin offers no window.
pub const ZERO_WINDOW: u16 = 1 << 12;
/// The origin that a rescue left was sent its RST.
pub const LOSER_TOLD: u16 = 1 << 13;
/// Steered and followed where its client's packets arrive (`client_interfaces`), and so not at egress.
pub const AT_CLIENT: u16 = 1 << 14;
/// A bit of the time at which the entry in `moved_out_*` was last said to be in use: see [`USED_SHIFT`].
pub const USED: u16 = 1 << 15;
/// Every so often, as a power of two of ns (17 s), a packet of a redirected flow says that it is in use, where others need
/// not look at that entry.
pub const USED_SHIFT: u32 = 34;

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
///
/// Another ABI's daemon reads the last two words, in whatever version, to learn when the last redirected flow has ended:
/// they stay the last two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Moved {
    /// `moved_out_*`: the origin that serves it. `moved_back_*`: the address that the node's side talks to.
    pub to: Endpoint,
    /// Interface that leads to the origin.
    pub ifindex: u32,
    /// The node's port: in `moved_out_*` the one that the origin sees, in `moved_back_*` the node's own. They differ when the
    /// node's own port was taken on the way to the standby.
    pub node_port: Be16,
    /// Always 0.
    pub pad: [u16; 3],
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
    /// Place among the armed standbys from which a rescue chooses.
    pub next: u16,
}

const _: () = assert!(size_of::<Moved>() == 48 && size_of::<Choice>() == 28);
