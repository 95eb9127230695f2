//! Packets from origins: what they prove, and the way back of redirected flows. Answers to SYNs are in [`crate::answer`].

use aya_ebpf::{bindings::TC_ACT_SHOT, programs::TcContext};
use health_common::{
    flow::{Flow, LOSER_TOLD, MOVED},
    http::{STATUS_LEN, status_class},
    map::{Count, FILTER_REDIRECTED},
    net::{Be16, Endpoint, FlowKey},
    track::{self, ACK, Effects, RST, SYN, Segment},
};

use crate::{
    context::Context,
    maps::{self, Family, count},
    moved,
    nat::{self, Change, Rewrite, Side},
    observe::{ANSWER_NOTED, LOSER_NOTED, PASS, SIGNAL_NOTED},
    parse::Packet,
    signals::{self, Signal, who},
    subject::Subject,
};

/// A packet from an origin, perhaps.
#[inline(always)]
pub fn ingress<F: Family, C: Context>(ctx: &C, packet: &Packet<F::Key>) -> i32 {
    let known = maps::filter(&packet.key.remote());
    if known == 0 {
        return PASS;
    }
    // First: a redirected flow's tuple on the wire may be the one that another, redirected elsewhere, is known by.
    if known & FILTER_REDIRECTED != 0
        && let Some(way) = back::<F>(&packet.key)
    {
        return redirected::<F, C>(ctx, packet, &way);
    }
    // Of what answers a SYN there is usually no flow yet, and a look into the largest table is saved.
    let is_answer = packet.segment.flags & SYN != 0;
    if is_answer && F::half_open().get_ptr(&packet.key).is_some() && maps::note::<F>(packet, &packet.key) {
        return ANSWER_NOTED;
    }
    if let Some(flow) = F::flows().get_ptr_mut(&packet.key) {
        // SAFETY: as in `egress`.
        let flow = unsafe { &mut *flow };
        if flow.flags & MOVED != 0 {
            let verdict = loser::<C>(&packet.segment, &mut flow.flags);
            return if verdict == LOSER_NOTED && !maps::note::<F>(packet, &packet.key) { TC_ACT_SHOT } else { verdict };
        }
        return if C::OBSERVES { of_flow::<F, C>(ctx, packet, &packet.key, flow) } else { PASS };
    }
    if !is_answer && F::half_open().get_ptr(&packet.key).is_some() && maps::note::<F>(packet, &packet.key) {
        return ANSWER_NOTED;
    }
    PASS
}

/// A packet of the origin that a rescue has left, once another has won. Its SYN-ACK gets one RST; the client must see nothing.
#[inline(always)]
pub fn loser<C: Context>(segment: &Segment, flags: &mut u16) -> i32 {
    if !C::REWRITES {
        return PASS;
    }
    count(Count::LoserDropped);
    if segment.flags & (SYN | ACK | RST) == SYN | ACK && *flags & LOSER_TOLD == 0 {
        *flags |= LOSER_TOLD;
        return LOSER_NOTED;
    }
    TC_ACT_SHOT
}

/// What a redirected packet becomes on its way back.
struct Back {
    asked: Endpoint,
    node_port: Be16,
}

#[inline(always)]
fn back<F: Family>(key: &F::Key) -> Option<Back> {
    let back = F::moved_back().get_ptr(key)?;
    // SAFETY: the map is preallocated.
    unsafe { Some(Back { asked: (*back).to, node_port: (*back).node_port }) }
}

/// A packet of a redirected flow.
#[inline(always)]
fn redirected<F: Family, C: Context>(ctx: &C, packet: &Packet<F::Key>, way: &Back) -> i32 {
    let primary = packet.key.with_remote(&way.asked).with_node_port(way.node_port);
    let mut verdict = PASS;
    if let Some(flow) = F::flows().get_ptr_mut(&primary) {
        if C::OBSERVES {
            // SAFETY: as in `egress`.
            verdict = of_flow::<F, C>(ctx, packet, &primary, unsafe { &mut *flow });
        }
    } else if F::half_open().get_ptr(&primary).is_some() && maps::note::<F>(packet, &primary) {
        return ANSWER_NOTED;
    }
    if let Some(tc) = ctx.tc() {
        give_back(tc, packet, &way.asked, way.node_port);
    }
    verdict
}

/// Makes a packet of a redirected flow what the node's side expects.
#[inline(always)]
pub fn give_back<K: Rewrite>(ctx: &TcContext, packet: &Packet<K>, asked: &Endpoint, node_port: Be16) {
    let change = Change { side: Side::Source, to: asked, node_port };
    if nat::rewrite(ctx, packet, change).is_none() {
        nat::failed(ctx);
    }
}

/// A packet of an established flow. What it means for the origin is noted, if it is more than one packet more.
#[inline(always)]
fn of_flow<F: Family, C: Context>(ctx: &C, packet: &Packet<F::Key>, key: &F::Key, flow: &mut Flow) -> i32 {
    let coarse = maps::coarse_now();
    let segment = &packet.segment;
    let effects = track::from_origin(flow, segment, coarse);
    let Some(counters) = maps::counters(flow.origin) else { return PASS };
    counters.pkts_in += ctx.packets();
    counters.bytes_in += u64::from(segment.len);
    let is_theirs = !effects.has(Effects::RST_SUSPECT | Effects::RST_FORGED | Effects::FORGED);
    if is_theirs && counters.seen_ns != coarse {
        counters.seen_ns = coarse;
        Subject::seen_by_id(flow.origin, coarse);
    }
    if effects.bits == 0 {
        return PASS;
    }
    let class = if effects.has(Effects::RESPONSE) { status(ctx, packet) } else { 0 };
    if signals::answered_well(flow, &effects, class, counters, coarse) {
        return PASS;
    }
    let Some(scratch) = maps::scratch() else { return PASS };
    scratch.signal = Signal {
        who: who(flow, class),
        request_ns: effects.request_ns,
        sample_ns: effects.sample_ns,
        bits: effects.bits,
    };
    if effects.has(Effects::CLOSED) {
        moved::end::<F>(key, flow.flags & MOVED != 0);
    }
    SIGNAL_NOTED
}

/// The class of the HTTP status that the payload begins with; 0 for what isn't plain HTTP/1.x.
#[inline(always)]
fn status<K, C: Context>(ctx: &C, packet: &Packet<K>) -> u8 {
    if packet.segment.len < STATUS_LEN as u32 {
        return 0;
    }
    let mut bytes = [0; STATUS_LEN];
    let at = u32::from(packet.l4) + u32::from(packet.header_len);
    if ctx.load(at, bytes.as_mut_ptr(), STATUS_LEN as u32) { status_class(&bytes) } else { 0 }
}
