//! Packets to origins: requests are timed, redirected flows are rewritten. The first packet of a flow is in [`crate::syn`].
//!
//! One piece of code at two hooks: egress towards the origins, and, for forwarded flows, where their client's packets
//! arrive. There routing is still to come, so that it finds the next hop of a redirected packet by itself.

use aya_ebpf::programs::TcContext;
use health_common::{
    cells::REQUEST_SHIFT,
    flow::{ANSWERED, AT_CLIENT, HalfOpen, MOVED, TRIAL},
    map::{Count, FILTER_LEFT, FILTER_REDIRECTED},
    net::FlowKey,
    track::{self, ACK, Effects, FIN, RST, SYN},
};

use crate::{
    context::{leaves_at, packets},
    maps::{self, Family, count},
    moved, nat,
    observe::{ACK_NOTED, PASS, SYN_NOTED, is_bypassed},
    parse::Packet,
    signals::{node_signals, who},
    subject::Subject,
};

/// Where the node's side of a flow is met.
pub trait Hook {
    /// Where a client's packets arrive, before routing.
    const CLIENT: bool;
}

/// Egress towards the origins.
pub struct Egress;
/// Ingress from clients.
pub struct Client;

impl Hook for Egress {
    const CLIENT: bool = false;
}

impl Hook for Client {
    const CLIENT: bool = true;
}

/// A packet to an origin, perhaps.
#[inline(always)]
pub fn egress<F: Family, H: Hook>(ctx: &TcContext, packet: &Packet<F::Key>) -> i32 {
    if maps::filter(&packet.key.remote()) == 0 {
        return PASS;
    }
    // No origin answers a SYN with FIN or RST, so that is no attempt either.
    if packet.segment.flags & (SYN | ACK | RST | FIN) == SYN {
        return if maps::note::<F>(packet, &packet.key) { SYN_NOTED } else { PASS };
    }
    if let Some(flow) = F::flows().get_ptr_mut(&packet.key) {
        // SAFETY: LRU values are recycled, not freed, while a program runs: at worst another flow's count is off by one.
        let flow = unsafe { &mut *flow };
        if flow.flags & AT_CLIENT != 0 && !H::CLIENT {
            return PASS;
        }
        let effects = track::from_node(flow, &packet.segment, || now::<H>(ctx));
        let way = (flow.origin, flow.wire_port);
        let is_moved = flow.flags & MOVED != 0;
        if is_moved && moved::is_due(flow) {
            moved::used::<F>(&packet.key);
        }
        if let Some(counters) = maps::counters(flow.origin) {
            counters.pkts_out += packets(ctx);
            counters.bytes_out += u64::from(packet.segment.len);
        }
        if effects.bits != 0 && !changes_nothing(&effects, flow.request_ns) {
            node_signals(who(flow, 0), effects.bits, effects.request_ns, flow.request_ns);
            if effects.has(Effects::CLOSED) {
                moved::end::<F>(&packet.key, is_moved);
            }
        }
        return if is_moved {
            moved::send_to::<F, H>(ctx, packet, way)
        } else {
            on_its_way::<F, H>(ctx, packet, false)
        };
    }
    let attempt = F::half_open().get_ptr(&packet.key);
    if let Some(attempt) = attempt {
        // SAFETY: as for flows.
        let attempt = unsafe { &*attempt };
        if attempt.flags & ANSWERED == 0 {
            answered_unseen::<F>(packet, attempt);
        } else if maps::note::<F>(packet, &packet.key) {
            return ACK_NOTED;
        }
    }
    // Asked again, for what lives across the look for a flow takes of the stack.
    let known = maps::filter(&packet.key.remote());
    // Evicted from the flow table, a redirected flow still has its way.
    if known & FILTER_LEFT != 0 && F::moved_out().get_ptr(&packet.key).is_some() {
        return moved::send::<F, H>(ctx, packet);
    }
    if maps::endpoint(&packet.key.remote()).is_none() {
        return PASS;
    }
    if attempt.is_none() && !H::CLIENT && !is_redirected::<F>(known, &packet.key) && !is_bypassed(ctx) {
        // What was redirected where it arrived, and lost its mark on the way, was seen there.
        count(Count::PickedUp);
    }
    PASS
}

/// The time of a packet of the node's side.
#[inline(always)]
pub fn now<H: Hook>(ctx: &TcContext) -> u64 {
    if H::CLIENT { maps::now() } else { leaves_at(ctx) }
}

/// Whether a redirected flow has the tuple on the wire.
#[inline(always)]
fn is_redirected<F: Family>(known: u8, key: &F::Key) -> bool {
    known & FILTER_REDIRECTED != 0 && F::moved_back().get_ptr(key).is_some()
}

/// More of a request whose last byte was sent in the same epoch: it would be taken out of that epoch's cell and put back.
#[inline(always)]
fn changes_nothing(effects: &Effects, request_ns: u64) -> bool {
    effects.bits == Effects::REFRESHED && effects.request_ns >> REQUEST_SHIFT == request_ns >> REQUEST_SHIFT
}

/// A packet that needs nothing more here.
#[inline(always)]
pub fn on_its_way<F: Family, H: Hook>(ctx: &TcContext, packet: &Packet<F::Key>, is_moved: bool) -> i32 {
    if is_moved {
        return moved::send::<F, H>(ctx, packet);
    }
    if H::CLIENT {
        // It will pass egress, which has not to look at it again.
        nat::mark(ctx);
    }
    PASS
}

/// The node's side acknowledges an answer that did not pass here (direct server return): the attempt is over, and says
/// nothing. It is no success, for a forwarded client could claim one.
#[inline(always)]
fn answered_unseen<F: Family>(packet: &Packet<F::Key>, attempt: &HalfOpen) {
    let segment = &packet.segment;
    if segment.flags & (ACK | RST) != ACK || segment.seq != attempt.isn.wrapping_add(1) {
        return;
    }
    if let Some(subject) = Subject::find(attempt.origin) {
        subject.syn_void(attempt.syn_ns);
        subject.answered_elsewhere();
        if attempt.flags & TRIAL != 0 {
            subject.trial_void();
        }
    }
    maps::gone(F::half_open().remove(&packet.key), Count::HalfOpenRemoved);
}
