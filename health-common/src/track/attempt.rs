//! From the SYN to the flow.

use super::{ACK, Effects, RST, SYN, Segment};
use crate::{
    flow::{ANSWERED, AT_CLIENT, Accepted, FORWARDED, Flow, HalfOpen, LOSER_TOLD, MOVED, TRIAL},
    net::Be16,
};

/// How an origin's packet answers a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// SYN-ACK that acknowledges this SYN.
    Accepted,
    /// RST that acknowledges this SYN (RFC 9293 §3.10.7.3).
    Refused,
    /// Neither, or of another SYN: no evidence.
    None,
}

/// What a packet from the origin says to a connection attempt.
#[inline(always)]
#[must_use]
pub const fn answer(attempt: &HalfOpen, segment: &Segment) -> Answer {
    if !segment.has(ACK) || segment.ack != attempt.isn.wrapping_add(1) {
        return Answer::None;
    }
    if segment.has(RST) {
        Answer::Refused
    } else if segment.has(SYN) {
        Answer::Accepted
    } else {
        Answer::None
    }
}

/// Notes an accepted SYN-ACK. `wire_port`: the node's port in it. Of several, the newest is the one that the node's side may
/// still acknowledge: an origin that answers with cookies may have changed its number.
#[inline(always)]
pub const fn accept(attempt: &mut HalfOpen, synack: &Segment, wire_port: Be16, now_ns: u64) {
    let start = synack.seq.wrapping_add(1);
    if attempt.flags & ANSWERED != 0 {
        attempt.accept(Accepted { start, ..attempt.accepted() });
        return;
    }
    let rtt_us = if attempt.repeats() == 0 { now_ns.saturating_sub(attempt.syn_ns) / 1000 } else { 0 };
    attempt.accept(Accepted {
        start,
        // The SYN's own timestamp came back with this answer.
        stamp: synack.stamps.echo,
        rtt_us: if rtt_us > u32::MAX as u64 { u32::MAX } else { (rtt_us & 0xffff_ffff) as u32 },
        wire_port,
    });
}

/// The flow that an accepted attempt may become. Where the answer has no option for the window's shift it is not in force
/// (RFC 7323 §2.2), and the window looks wider than it is: then a forged RST is called suspect, and neither is evidence.
#[inline(always)]
#[must_use]
pub const fn open(attempt: &HalfOpen) -> Flow {
    let Accepted { start, stamp, rtt_us, wire_port } = attempt.accepted();
    Flow {
        request_ns: 0,
        payload_ns: 0,
        sample_ns: 0,
        node_next: attempt.isn.wrapping_add(1),
        node_ack: start,
        origin_next: start,
        origin_ack: attempt.isn.wrapping_add(1),
        rtt_us,
        stamp,
        sample: 0,
        // A SYN's window is not scaled.
        node_window: attempt.window as u32,
        origin: attempt.origin,
        flags: attempt.flags & (MOVED | TRIAL | FORWARDED | AT_CLIENT | LOSER_TOLD),
        client: attempt.client,
        node_shift: attempt.node_shift(),
        wire_port,
    }
}

/// Whether a segment of the node's side shows that it has seen the answer, or ends what it began. The number that it
/// acknowledges can't be guessed, so that nobody makes flows of forged SYNs.
#[inline(always)]
#[must_use]
pub const fn opens(attempt: &HalfOpen, segment: &Segment) -> bool {
    segment.has(RST) || (segment.has(ACK) && segment.ack == attempt.accepted().start)
}

/// Whether a segment of the origin shows the same, which it has not sent before the node's side did: that passed elsewhere.
/// `effects` are its own, of [`super::from_origin`].
#[inline(always)]
#[must_use]
pub const fn goes_on(attempt: &HalfOpen, segment: &Segment, effects: &Effects) -> bool {
    let exact = segment.seq == attempt.accepted().start && segment.end() != segment.seq;
    exact && !segment.has(SYN) && !segment.has(RST) && !effects.has(Effects::FORGED)
}
