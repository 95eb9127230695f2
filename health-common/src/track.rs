//! What one packet does to one flow. Pure: the same code runs in the kernel and in host tests.
//!
//! A flow's life: the SYN makes a [`crate::flow::HalfOpen`]; the accepted SYN-ACK is noted in it; the node's acknowledgement
//! of that makes it a [`Flow`]; FIN from both sides, or an exact RST, ends that. Nothing here reads a clock or a map: what the
//! packet means for the origin comes back as [`Effects`], and the caller counts it.

pub use attempt::{Answer, accept, answer, goes_on, open, opens};

use crate::flow::{ANSWERED, FORWARDED, Flow, NODE_FIN, ORIGIN_FIN, ZERO_WINDOW};

/// TCP header bits (RFC 9293 §3.1).
pub const FIN: u8 = 1;
/// Synchronize.
pub const SYN: u8 = 2;
/// Reset.
pub const RST: u8 = 4;
/// Acknowledgement is valid.
pub const ACK: u8 = 16;

/// The parts of a TCP segment that matter here, in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Payload. Unit: bytes.
    pub len: u32,
    /// Header bits.
    pub flags: u8,
    /// Window, not scaled.
    pub window: u16,
    /// The timestamps option, if the header has it first (RFC 7323 §3.2, appendix A: the layout that all stacks of today send).
    pub stamps: Stamps,
}

/// The timestamps option. Both 0: there is none. No `Option`, for the verifier minds what a missing value leaves in a register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// The sender's clock.
    pub value: u32,
    /// The receiver's clock, as the sender last saw it.
    pub echo: u32,
}

impl Stamps {
    /// Whether the option is there.
    #[inline(always)]
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.value | self.echo != 0
    }
}

impl Segment {
    /// Whether all of the bits are set.
    #[inline(always)]
    #[must_use]
    pub const fn has(&self, bits: u8) -> bool {
        self.flags & bits == bits
    }

    /// Sequence number behind the segment; FIN takes one.
    #[inline(always)]
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.seq.wrapping_add(self.len).wrapping_add((self.flags & FIN) as u32)
    }
}

/// Whether `a` lies behind `b` in sequence space (RFC 9293 §3.4).
#[inline(always)]
#[must_use]
pub const fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

/// What a packet meant. Several can hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// `Effects::…` bits.
    pub bits: u32,
    /// For [`Effects::SAMPLE`]: when the segment left that was echoed. Unit: ns.
    pub sample_ns: u64,
    /// For [`Effects::RESPONSE`], [`Effects::REFRESHED`], [`Effects::VOID`], [`Effects::GIVEN_UP`],
    /// [`Effects::RESET_EARLY`]: when the last byte of the request that this ends or renews was sent; 0 when there was none.
    /// Unit: ns.
    pub request_ns: u64,
}

impl Effects {
    /// A request began.
    pub const REQUEST: u32 = 1;
    /// More bytes of a request that is under way: its clock starts again.
    pub const REFRESHED: u32 = 1 << 1;
    /// The first response byte came.
    pub const RESPONSE: u32 = 1 << 2;
    /// The request will not be answered, and that is nobody's failure here.
    pub const VOID: u32 = 1 << 3;
    /// RST from the origin before its first payload byte.
    pub const RESET_EARLY: u32 = 1 << 4;
    /// RST from the origin in the middle of a response.
    pub const RESET_MID: u32 = 1 << 5;
    /// RST from the origin after a response, or on an idle flow.
    pub const RESET_IDLE: u32 = 1 << 6;
    /// RST in the window, but not exact: the node's stack asks back (RFC 5961 §3.2). It proves nothing.
    pub const RST_SUSPECT: u32 = 1 << 7;
    /// RST from a client.
    pub const CLIENT_ABORT: u32 = 1 << 8;
    /// The flow has ended.
    pub const CLOSED: u32 = 1 << 9;
    /// Data that was sent before.
    pub const RETRANS: u32 = 1 << 10;
    /// A segment that its receiver will not accept: it proves nothing and moves nothing.
    pub const FORGED: u32 = 1 << 11;
    /// RST outside of the window: it proves nothing.
    pub const RST_FORGED: u32 = 1 << 12;
    /// RST from a socket of this host.
    pub const LOCAL_DROP: u32 = 1 << 13;
    /// A timestamp came back.
    pub const SAMPLE: u32 = 1 << 14;
    /// The origin offers no window any more.
    pub const ZERO_WINDOW: u32 = 1 << 15;
    /// The node's side has sent all that it will, and still waits for an answer.
    pub const GIVEN_UP: u32 = 1 << 16;

    /// Whether a bit is set.
    #[inline(always)]
    #[must_use]
    pub const fn has(&self, bit: u32) -> bool {
        self.bits & bit != 0
    }
}

/// A segment from the node's side. `now` is read only when a request byte is new.
#[inline(always)]
pub fn from_node(flow: &mut Flow, segment: &Segment, now: impl FnOnce() -> u64) -> Effects {
    let mut effects = Effects::default();
    if segment.has(ACK) && after(segment.ack, flow.node_ack) {
        flow.node_ack = segment.ack;
    }
    if segment.has(RST) {
        let whose = if flow.flags & FORWARDED != 0 { Effects::CLIENT_ABORT } else { Effects::LOCAL_DROP };
        effects.bits |= whose | Effects::CLOSED | void(flow, &mut effects.request_ns);
        return effects;
    }
    flow.node_window = u32::from(segment.window) << (flow.node_shift & 15);
    let fresh = stamped(flow, segment);
    if segment.len > 0 {
        if after(segment.seq.wrapping_add(segment.len), flow.node_next) {
            let now = now();
            effects.bits |= if flow.request_ns == 0 { Effects::REQUEST } else { Effects::REFRESHED };
            effects.request_ns = flow.request_ns;
            flow.request_ns = now;
            if fresh && flow.sample_ns == 0 {
                flow.sample = flow.stamp;
                flow.sample_ns = now;
            }
        } else {
            effects.bits |= Effects::RETRANS;
        }
    }
    if after(segment.end(), flow.node_next) {
        flow.node_next = segment.end();
    }
    if segment.has(FIN) {
        if flow.flags & NODE_FIN == 0 && flow.request_ns != 0 && !effects.has(Effects::REQUEST | Effects::REFRESHED) {
            effects.bits |= Effects::GIVEN_UP;
            effects.request_ns = flow.request_ns;
        }
        flow.flags |= NODE_FIN;
    }
    effects.bits |= closed(flow);
    effects
}

/// Notes the node's timestamp. Whether it is newer than all before: only then its echo tells which segment it answers.
#[inline(always)]
const fn stamped(flow: &mut Flow, segment: &Segment) -> bool {
    if !segment.stamps.is_some() || !after(segment.stamps.value, flow.stamp) {
        return false;
    }
    flow.stamp = segment.stamps.value;
    true
}

/// Ends the sample that the segment echoes. An echo of something newer ends it too, but tells nothing: the segment may have
/// been lost and sent again in between.
#[inline(always)]
const fn echoed(flow: &mut Flow, segment: &Segment, sample_ns: &mut u64) -> u32 {
    if flow.sample_ns == 0 || !segment.stamps.is_some() || after(flow.sample, segment.stamps.echo) {
        return 0;
    }
    *sample_ns = flow.sample_ns;
    flow.sample_ns = 0;
    if segment.stamps.echo == flow.sample { Effects::SAMPLE } else { 0 }
}

/// Notes whether the origin offers a window; whether it has just stopped to.
#[inline(always)]
const fn window(flow: &mut Flow, segment: &Segment) -> u32 {
    let was = flow.flags & ZERO_WINDOW;
    if segment.window != 0 {
        flow.flags &= !ZERO_WINDOW;
        return 0;
    }
    flow.flags |= ZERO_WINDOW;
    if was == 0 { Effects::ZERO_WINDOW } else { 0 }
}

/// A segment from the origin. `coarse_ns` is a clock that steps by milliseconds.
#[inline(always)]
pub fn from_origin(flow: &mut Flow, segment: &Segment, coarse_ns: u64) -> Effects {
    let mut effects = Effects::default();
    if segment.has(RST) {
        effects.bits |= reset(flow, segment, coarse_ns);
        if effects.has(Effects::RESET_EARLY) {
            effects.request_ns = flow.request_ns;
            flow.request_ns = 0;
        } else if effects.has(Effects::CLOSED) {
            effects.bits |= void(flow, &mut effects.request_ns);
        }
        return effects;
    }
    if !acceptable(flow, segment) {
        effects.bits = Effects::FORGED;
        return effects;
    }
    if after(segment.ack, flow.origin_ack) {
        flow.origin_ack = segment.ack;
    }
    effects.bits |= window(flow, segment) | echoed(flow, segment, &mut effects.sample_ns);
    if segment.len > 0 && after(segment.seq.wrapping_add(segment.len), flow.origin_next) {
        flow.payload_ns = coarse_ns;
        flow.flags |= ANSWERED;
        if flow.request_ns != 0 {
            effects.bits |= Effects::RESPONSE;
            effects.request_ns = flow.request_ns;
            flow.request_ns = 0;
        }
    }
    // A hole in the stream is not waited for: the origin's own next number is what an exact RST will carry.
    if after(segment.end(), flow.origin_next) {
        flow.origin_next = segment.end();
    }
    if segment.has(FIN) && flow.flags & ORIGIN_FIN == 0 {
        flow.flags |= ORIGIN_FIN;
        effects.bits |= void(flow, &mut effects.request_ns);
    }
    effects.bits |= closed(flow);
    effects
}

/// Ends the request that is under way, if there is one, without an answer.
#[inline(always)]
fn void(flow: &mut Flow, request_ns: &mut u64) -> u32 {
    if flow.request_ns == 0 {
        return 0;
    }
    *request_ns = flow.request_ns;
    flow.request_ns = 0;
    Effects::VOID
}

/// Both sides have sent FIN, and each has acknowledged the other's. An acknowledgement of less is a duplicate: bytes before
/// the FIN were lost and are still to come.
#[inline(always)]
const fn closed(flow: &Flow) -> u32 {
    let both = NODE_FIN | ORIGIN_FIN;
    if flow.flags & both == both && !after(flow.origin_next, flow.node_ack) && !after(flow.node_next, flow.origin_ack) {
        Effects::CLOSED
    } else {
        0
    }
}

/// How far behind the newest acknowledgement a reordered segment may lie: the largest window that origins usually offer.
const ACK_BEHIND_MAX: u32 = 1 << 24;
/// The largest window there is (RFC 7323 §2.3).
const WINDOW_MAX: u32 = 1 << 30;

/// Whether the node's stack would take the segment (RFC 5961 §5): it acknowledges something sent, and lies around the
/// window. Without this, whoever can forge bytes could choose the number at which a RST is exact.
#[inline(always)]
const fn acceptable(flow: &Flow, segment: &Segment) -> bool {
    segment.has(ACK)
        && !after(segment.ack, flow.node_next)
        && !after(flow.origin_ack, segment.ack.wrapping_add(ACK_BEHIND_MAX))
        && segment.seq.wrapping_sub(flow.node_ack).wrapping_add(WINDOW_MAX) < 2 * WINDOW_MAX
}

/// Shortest time after payload in which a RST still breaks a response. Unit: ns.
const MID_MIN_NS: u64 = 200_000_000;

/// What a RST from the origin proves, by its exact sequence number and the flow's phase.
#[inline(always)]
const fn reset(flow: &Flow, segment: &Segment, coarse_ns: u64) -> u32 {
    // Exact is the next number that the origin would use, or the last that the node acknowledged: a restarted origin
    // takes it from our acknowledgement (RFC 9293 §3.10.7.1).
    if segment.seq != flow.origin_next && segment.seq != flow.node_ack {
        let ahead = segment.seq.wrapping_sub(flow.node_ack);
        return if ahead < flow.node_window { Effects::RST_SUSPECT } else { Effects::RST_FORGED };
    }
    // An origin that has closed in order may answer what crosses its FIN with a RST, used connection or not.
    if flow.flags & ORIGIN_FIN != 0 {
        return Effects::RESET_IDLE | Effects::CLOSED;
    }
    if flow.flags & ANSWERED == 0 {
        return Effects::RESET_EARLY | Effects::CLOSED;
    }
    let four_rtts = 4 * flow.rtt_us as u64 * 1000;
    let window = if four_rtts > MID_MIN_NS { four_rtts } else { MID_MIN_NS };
    let unacknowledged = after(flow.origin_next, flow.node_ack);
    let recent = coarse_ns.saturating_sub(flow.payload_ns) <= window;
    if unacknowledged || recent { Effects::RESET_MID | Effects::CLOSED } else { Effects::RESET_IDLE | Effects::CLOSED }
}

mod attempt;
#[cfg(test)]
mod proptests;
#[cfg(test)]
mod tests;
