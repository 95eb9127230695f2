//! Packets to origins: flows begin, SYNs are steered and re-steered, requests are timed.

use aya_ebpf::{EbpfContext, helpers::generated::bpf_get_socket_cookie, programs::TcContext};
use health_common::{
    NONE,
    event::{Kind, Why},
    flow::{Flow, HalfOpen, MOVED, TRIAL, mix},
    map::Count,
    net::{Endpoint, EndpointUse, FlowKey},
    streak::SPREAD_BITS,
    track::{self, ACK, Effects, FIN, RST, SYN, Segment},
};

use crate::{
    maps::{self, Family, SOCKETS, count},
    moved,
    nat::Rewrite,
    observe::{PASS, ended, is_bypassed, packets},
    parse::Packet,
    steer,
    trip::Subject,
};

/// A packet to an origin, perhaps.
#[inline(always)]
pub fn egress<F: Family>(ctx: &TcContext, packet: &Packet<F::Key>) -> i32
where
    F::Key: Rewrite,
{
    // No origin answers a SYN with FIN or RST, so that is no attempt either.
    if packet.segment.flags & (SYN | ACK | RST | FIN) == SYN {
        return egress_syn::<F>(ctx, packet);
    }
    if let Some(flow) = F::flows().get_ptr_mut(packet.key) {
        // SAFETY: LRU values are recycled, not freed, while a program runs: at worst another flow's count is off by one.
        let flow = unsafe { &mut *flow };
        let effects = track::from_node(flow, &packet.segment, maps::now);
        let is_moved = flow.flags & MOVED != 0;
        egress_effects(ctx, flow, &packet.segment, &effects);
        if effects.has(Effects::CLOSED) {
            moved::end::<F>(&packet.key, is_moved);
        }
        return if is_moved { moved::send::<F>(ctx, packet) } else { PASS };
    }
    if maps::endpoint(&packet.key.remote()).is_none() {
        return PASS;
    }
    // Evicted from the flow table, a redirected flow still has its way.
    if F::moved_out().get_ptr(packet.key).is_some() {
        return moved::send::<F>(ctx, packet);
    }
    if let Some(attempt) = F::half_open().get_ptr(packet.key) {
        // SAFETY: as for flows.
        answered_unseen::<F>(packet, unsafe { &*attempt });
    } else if !is_bypassed(ctx) {
        count(Count::PickedUp);
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
        if attempt.flags & TRIAL != 0 {
            subject.trial_void();
        }
    }
    maps::removed(F::half_open().remove(packet.key));
}

#[inline(always)]
fn egress_effects(ctx: &TcContext, flow: &Flow, segment: &Segment, effects: &Effects) {
    if let Some(counters) = maps::counters(flow.origin) {
        counters.pkts_out += packets(ctx);
        counters.bytes_out += u64::from(segment.len);
        counters.request += u64::from(effects.has(Effects::REQUEST));
        counters.retrans += u64::from(effects.has(Effects::RETRANS));
        ended(counters, effects);
    }
    if effects.bits & !Effects::RETRANS == 0 {
        return;
    }
    let Some(subject) = Subject::find(flow.origin) else { return };
    if effects.has(Effects::REFRESHED | Effects::VOID) {
        subject.request_done(effects.request_ns);
    }
    if effects.has(Effects::REQUEST | Effects::REFRESHED) {
        subject.look_at_requests(flow.request_ns);
        subject.request_sent(flow.request_ns, flow.client.into());
    }
    // Whatever it was to show, it would have shown before its end.
    if effects.has(Effects::CLOSED) && flow.flags & TRIAL != 0 {
        subject.trial_void();
    }
}

#[inline(always)]
fn egress_syn<F: Family>(ctx: &TcContext, packet: &Packet<F::Key>) -> i32
where
    F::Key: Rewrite,
{
    let Some(meant) = maps::endpoint(&packet.key.remote()) else { return PASS };
    if is_bypassed(ctx) {
        // What an older flow of the tuple left must not catch this one's packets.
        maps::removed(F::half_open().remove(packet.key));
        moved::forget::<F>(&packet.key);
        if !moved::is_free::<F>(&packet.key) {
            count(Count::NatCollision);
        }
        return PASS;
    }
    if let Some(attempt) = F::half_open().get_ptr_mut(packet.key) {
        // SAFETY: as for flows.
        let attempt = unsafe { &mut *attempt };
        if attempt.isn == packet.segment.seq {
            repeated_syn::<F>(packet, attempt);
            return if attempt.flags & MOVED != 0 { moved::send::<F>(ctx, packet) } else { PASS };
        }
    }
    first_syn::<F>(ctx, packet, meant);
    if let Some(attempt) = F::half_open().get_ptr(packet.key) {
        // SAFETY: as for flows.
        if unsafe { (*attempt).flags } & MOVED != 0 {
            return moved::send::<F>(ctx, packet);
        }
    }
    PASS
}

/// A SYN of a new connection: chooses, remembers, counts.
#[inline(always)]
fn first_syn<F: Family>(ctx: &TcContext, packet: &Packet<F::Key>, meant: EndpointUse)
where
    F::Key: Rewrite,
{
    let key = &packet.key;
    // The same tuple again, with another number: what was known of it is over (RFC 6191).
    moved::forget::<F>(key);
    if !moved::is_free::<F>(key) {
        count(Count::NatCollision);
    }
    // SAFETY: the context is a live `__sk_buff`.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    let (now, node) = (maps::now(), key.node());
    let client = if cookie == 0 {
        mix(u64::from(node.addr.0[3]) << 32 | u64::from(node.addr.0[1]))
    } else {
        mix(u64::from(node.port.0))
    };
    let hash = mix(u64::from(node.addr.0[3]) << 16 | u64::from(node.port.0));
    let Some(scratch) = maps::scratch() else { return };
    let attempt = &mut scratch.attempt;
    *attempt = HalfOpen {
        syn_ns: now,
        isn: packet.segment.seq,
        origin: meant.origin,
        frontend: meant.frontend,
        client: (client % SPREAD_BITS) as u8,
        ..HalfOpen::default()
    };
    // SAFETY: entries are written before the connection exists and not changed until the socket connects again.
    if let Some(choice) = unsafe { SOCKETS.get(cookie) }.filter(|choice| cookie != 0 && choice.origin == meant.origin) {
        attempt.frontend = choice.frontend;
        attempt.flags = choice.flags & TRIAL;
    } else if meant.frontend != NONE
        && let Some(chosen) = steer::choose(meant.frontend, hash, now, true)
    {
        attempt.flags = chosen.flags;
        if chosen.origin != meant.origin && moved::relocate::<F>(key, chosen.origin) {
            attempt.origin = chosen.origin;
            attempt.flags |= MOVED;
            count(Count::SteeredEgress);
        }
    }
    if F::half_open().insert(key, &*attempt, 0).is_err() {
        count(Count::UpdateFailed);
        // Nobody would know of the move: the flow goes where it was addressed, untracked.
        moved::forget::<F>(key);
        return;
    }
    syn_counted(attempt, &node, attempt.flags & MOVED != 0);
}

/// A first SYN, or the first to another origin.
#[inline(never)]
fn syn_counted(attempt: &HalfOpen, node: &Endpoint, steered: bool) -> u32 {
    let id = attempt.origin;
    if let Some(counters) = maps::counters(id) {
        counters.syn += 1;
        counters.steered += u64::from(steered);
    }
    let Some(subject) = Subject::find(id) else { return 0 };
    subject.look_at_syns(attempt.syn_ns);
    subject.look_at_requests(attempt.syn_ns);
    subject.syn_sent(attempt.syn_ns, attempt.client.into());
    if attempt.flags & TRIAL != 0 {
        maps::tell((Kind::Trial, Why::None), attempt.syn_ns, id, NONE, (0, 0), Some(node));
    }
    1
}

/// The same SYN again: nobody has answered. If its origin is tripped by now, it goes to a standby.
#[inline(always)]
fn repeated_syn<F: Family>(packet: &Packet<F::Key>, attempt: &mut HalfOpen)
where
    F::Key: Rewrite,
{
    attempt.repeats = attempt.repeats.saturating_add(1);
    let id = attempt.origin;
    if let Some(counters) = maps::counters(id) {
        counters.syn_retrans += 1;
    }
    let Some(subject) = Subject::find(id) else { return };
    let now = maps::now();
    subject.look_at_syns(now);
    if attempt.frontend == NONE || attempt.flags & MOVED != 0 || subject.is_usable() {
        return;
    }
    if attempt.flags & TRIAL != 0 {
        subject.trial_failed(now);
        attempt.flags &= !TRIAL;
    }
    let hash = mix(u64::from(packet.segment.seq));
    let Some(chosen) = steer::choose(attempt.frontend, hash, now, false) else { return };
    if chosen.origin == id || !moved::relocate::<F>(&packet.key, chosen.origin) {
        return;
    }
    attempt.origin = chosen.origin;
    attempt.syn_ns = now;
    attempt.flags |= MOVED;
    count(Count::Resteered);
    if let Some(counters) = maps::counters(chosen.origin) {
        counters.resteered += 1;
    }
    syn_counted(attempt, &packet.key.node(), false);
    maps::tell((Kind::Resteer, Why::None), now, id, chosen.origin, (0, 0), Some(&packet.key.node()));
}
