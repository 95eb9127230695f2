//! What the packets of origins mean, and what is to be done with them.

use aya_ebpf::{
    EbpfContext,
    bindings::{BPF_NOEXIST, TC_ACT_SHOT, TC_ACT_UNSPEC, __sk_buff},
    helpers::generated::{bpf_get_socket_cookie, bpf_get_socket_uid, bpf_skb_cgroup_id},
    programs::TcContext,
};
use health_common::{
    NONE, SECOND_PASS_MARK,
    event::{Kind, Why},
    flow::{Flow, HalfOpen, MOVED, Moved, TRIAL, mix},
    histogram,
    map::{BypassKey, Count},
    net::{Endpoint, EndpointUse, FlowKey},
    origin::Counters,
    track::{self, ACK, Answer, Effects, FIN, RST, SYN, Segment},
};

use crate::{
    maps::{self, Family, SOCKETS, count},
    nat::{self, Rewrite, Side},
    parse::Packet,
    steer,
    trip::Subject,
};

/// The packet goes on, for whoever comes after us: `TCX_NEXT`, which is clsact's `TC_ACT_UNSPEC`.
pub const PASS: i32 = TC_ACT_UNSPEC;

/// The mark of a packet on its second pass is taken off; whether it was there.
#[inline(always)]
pub fn is_second_pass(ctx: &TcContext) -> bool {
    let mark = mark(ctx);
    if mark & SECOND_PASS_MARK == 0 {
        return false;
    }
    ctx.skb.set_mark(mark & !SECOND_PASS_MARK);
    true
}

#[inline(always)]
fn skb(ctx: &TcContext) -> *mut __sk_buff {
    ctx.as_ptr().cast()
}

#[inline(always)]
fn mark(ctx: &TcContext) -> u32 {
    // SAFETY: the context is a live `__sk_buff`.
    unsafe { (*skb(ctx)).mark }
}

/// Whether the node's side asked to be left alone. Costs helpers, so it is asked for SYNs only.
#[inline(always)]
fn is_bypassed(ctx: &TcContext) -> bool {
    let Some(node) = maps::node() else { return false };
    if node.bypass_mark != 0 && mark(ctx) == node.bypass_mark {
        return true;
    }
    if node.has_bypass == 0 {
        return false;
    }
    // SAFETY: the context is a live `__sk_buff`.
    let (user, cgroup) = unsafe { (bpf_get_socket_uid(skb(ctx)), bpf_skb_cgroup_id(skb(ctx))) };
    maps::is_bypassed(BypassKey::USER, u64::from(user)) || maps::is_bypassed(BypassKey::CGROUP, cgroup)
}

// === Packets to origins ===

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
        let moved = flow.flags & MOVED != 0;
        egress_effects(ctx, flow, &packet.segment, &effects);
        if effects.has(Effects::CLOSED) {
            end::<F>(&packet.key, moved);
        }
        return if moved { send_moved::<F>(ctx, packet) } else { PASS };
    }
    if maps::endpoint(&packet.key.remote()).is_none() {
        return PASS;
    }
    // Evicted from the flow table, a redirected flow still has its way.
    if F::moved_out().get_ptr(packet.key).is_some() {
        return send_moved::<F>(ctx, packet);
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
        subject.request_sent(flow.request_ns, flow.client);
    }
    // Whatever it was to show, it would have shown before its end.
    if effects.has(Effects::CLOSED) && flow.flags & TRIAL != 0 {
        subject.trial_void();
    }
}

/// Counts that belong to either direction.
#[inline(always)]
fn ended(counters: &mut Counters, effects: &Effects) {
    counters.closed += u64::from(effects.has(Effects::CLOSED));
    counters.request_void += u64::from(effects.has(Effects::VOID));
    counters.client_abort += u64::from(effects.has(Effects::CLIENT_ABORT));
}

/// Segments in the packet; 0 means that it isn't GSO.
#[inline(always)]
fn packets(ctx: &TcContext) -> u64 {
    // SAFETY: the context is a live `__sk_buff`.
    u64::from(unsafe { (*skb(ctx)).gso_segs }.max(1))
}

#[inline(always)]
fn send_moved<F: Family>(ctx: &TcContext, packet: &Packet<F::Key>) -> i32
where
    F::Key: Rewrite,
{
    let Some(moved) = F::moved_out().get_ptr_mut(packet.key) else {
        return PASS;
    };
    // SAFETY: the map is preallocated; the entry of a live flow is not reused.
    let moved = unsafe { &mut *moved };
    moved.seen_ns = maps::coarse_now();
    nat::send_to(ctx, &packet.key, packet.l4, &moved.to, moved.ifindex).unwrap_or(PASS)
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
        forget::<F>(&packet.key);
        return PASS;
    }
    if let Some(attempt) = F::half_open().get_ptr_mut(packet.key) {
        // SAFETY: as for flows.
        let attempt = unsafe { &mut *attempt };
        if attempt.isn == packet.segment.seq {
            repeated_syn::<F>(packet, attempt);
            return if attempt.flags & MOVED != 0 { send_moved::<F>(ctx, packet) } else { PASS };
        }
    }
    first_syn::<F>(ctx, packet, meant);
    if let Some(attempt) = F::half_open().get_ptr(packet.key) {
        // SAFETY: as for flows.
        if unsafe { (*attempt).flags } & MOVED != 0 {
            return send_moved::<F>(ctx, packet);
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
    forget::<F>(key);
    if !is_free::<F>(key) {
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
        client,
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
        if chosen.origin != meant.origin && relocate::<F>(key, chosen.origin) {
            attempt.origin = chosen.origin;
            attempt.flags |= MOVED;
            count(Count::SteeredEgress);
        }
    }
    if F::half_open().insert(key, &*attempt, 0).is_err() {
        count(Count::UpdateFailed);
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
    subject.syn_sent(attempt.syn_ns, attempt.client);
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
    if chosen.origin == id || !relocate::<F>(&packet.key, chosen.origin) {
        return;
    }
    attempt.origin = chosen.origin;
    attempt.syn_ns = now;
    attempt.flags |= MOVED;
    count(Count::Resteered);
    if let Some(counters) = maps::counters(chosen.origin) {
        counters.rescued += 1;
    }
    syn_counted(attempt, &packet.key.node(), false);
    maps::tell((Kind::Resteer, Why::None), now, id, chosen.origin, (0, 0), Some(&packet.key.node()));
}

/// Notes the redirection of a tuple, both ways. False when the standby's tuple is taken, its way is unknown, or the maps
/// are full: then the flow stays where it is.
#[inline(always)]
fn relocate<F: Family>(key: &F::Key, to: u16) -> bool
where
    F::Key: Rewrite,
{
    let Some(origin) = maps::origin(to) else { return false };
    if origin.ifindex == 0 {
        count(Count::NatFailed);
        return false;
    }
    let there = key.with_remote(&origin.endpoint);
    if F::flows().get_ptr(there).is_some() || F::half_open().get_ptr(there).is_some() || !is_free::<F>(&there) {
        count(Count::NatCollision);
        return false;
    }
    let Some(scratch) = maps::scratch() else { return false };
    let moved = &mut scratch.moved;
    *moved = Moved { to: key.remote(), ifindex: origin.ifindex, seen_ns: maps::coarse_now(), ended_ns: 0 };
    match F::moved_back().insert(there, &*moved, u64::from(BPF_NOEXIST)) {
        Ok(()) => {}
        Err(EEXIST) => {
            count(Count::NatCollision);
            return false;
        }
        Err(_) => {
            count(Count::MovedFull);
            return false;
        }
    }
    moved.to = origin.endpoint;
    if F::moved_out().insert(key, &*moved, 0).is_err() {
        maps::removed(F::moved_back().remove(there));
        count(Count::MovedFull);
        return false;
    }
    true
}

const EEXIST: i32 = -17;

/// Whether no redirection uses the origin's side of a tuple. One that has ended gives it back.
#[inline(always)]
fn is_free<F: Family>(there: &F::Key) -> bool
where
    F::Key: Rewrite,
{
    let Some(back) = F::moved_back().get_ptr(there) else { return true };
    // SAFETY: the map is preallocated.
    let primary = there.with_remote(unsafe { &(*back).to });
    if let Some(out) = F::moved_out().get_ptr(primary) {
        // SAFETY: as above.
        if unsafe { (*out).ended_ns } == 0 {
            return false;
        }
        maps::removed(F::moved_out().remove(primary));
    }
    maps::removed(F::moved_back().remove(there));
    true
}

/// Forgets an older flow of a tuple, and its redirection.
#[inline(always)]
fn forget<F: Family>(key: &F::Key)
where
    F::Key: Rewrite,
{
    if F::flows().get_ptr(key).is_some() {
        maps::removed(F::flows().remove(key));
    }
    if let Some(moved) = F::moved_out().get_ptr(key) {
        // SAFETY: the map is preallocated.
        let there = key.with_remote(unsafe { &(*moved).to });
        maps::removed(F::moved_back().remove(there));
        maps::removed(F::moved_out().remove(key));
    }
}

/// The flow is over. Its redirection stays for the last packets, until userspace or a new SYN takes it away.
#[inline(always)]
fn end<F: Family>(key: &F::Key, moved: bool) {
    if moved && let Some(moved) = F::moved_out().get_ptr_mut(key) {
        // SAFETY: the map is preallocated.
        unsafe { (*moved).ended_ns = maps::coarse_now() };
    }
    maps::removed(F::flows().remove(key));
}

// === Packets from origins ===

/// A packet from an origin, perhaps.
#[inline(always)]
pub fn ingress<F: Family>(ctx: &TcContext, packet: &Packet<F::Key>) -> i32
where
    F::Key: Rewrite,
{
    if let Some(flow) = F::flows().get_ptr_mut(packet.key) {
        // SAFETY: as in `egress`.
        let flow = unsafe { &mut *flow };
        if flow.flags & MOVED != 0 {
            return loser();
        }
        ingress_flow::<F>(ctx, &packet.key, flow, &packet.segment);
        return PASS;
    }
    if maps::endpoint(&packet.key.remote()).is_none() {
        return PASS;
    }
    if let Some(back) = F::moved_back().get_ptr(packet.key) {
        // SAFETY: the map is preallocated.
        let asked = unsafe { (*back).to };
        let primary = packet.key.with_remote(&asked);
        if let Some(flow) = F::flows().get_ptr_mut(primary) {
            // SAFETY: as in `egress`.
            ingress_flow::<F>(ctx, &primary, unsafe { &mut *flow }, &packet.segment);
        } else {
            answer::<F>(ctx, &primary, &packet.segment);
        }
        if packet.key.rewrite(ctx, packet.l4, Side::Source, &asked).is_none() {
            count(Count::NatFailed);
        }
        return PASS;
    }
    if let Some(attempt) = F::half_open().get_ptr(packet.key) {
        // SAFETY: as for flows.
        if unsafe { (*attempt).flags } & MOVED != 0 {
            return loser();
        }
        answer::<F>(ctx, &packet.key, &packet.segment);
    }
    PASS
}

/// A late answer of the origin that a moved handshake left. The client must not see two answers to one SYN.
#[inline(always)]
fn loser() -> i32 {
    count(Count::LoserDropped);
    TC_ACT_SHOT
}

/// The answer to a SYN, perhaps.
#[inline(always)]
fn answer<F: Family>(ctx: &TcContext, key: &F::Key, segment: &Segment)
where
    F::Key: Rewrite,
{
    let Some(attempt) = F::half_open().get_ptr(key) else { return };
    // SAFETY: as for flows.
    let attempt = unsafe { &*attempt };
    match track::answer(attempt, segment) {
        Answer::None => {}
        Answer::Accepted => {
            let now = maps::now();
            let flow = track::establish(attempt, segment, now);
            accepted(ctx, attempt, now);
            if F::flows().insert(key, &flow, 0).is_err() {
                count(Count::UpdateFailed);
            }
            maps::removed(F::half_open().remove(key));
        }
        Answer::Refused => {
            refused(attempt, maps::now());
            maps::removed(F::half_open().remove(key));
            if attempt.flags & MOVED != 0 && let Some(moved) = F::moved_out().get_ptr_mut(key) {
                // SAFETY: the map is preallocated.
                unsafe { (*moved).ended_ns = maps::coarse_now() };
            }
        }
    }
}

#[inline(always)]
fn accepted(ctx: &TcContext, attempt: &HalfOpen, now: u64) {
    let Some(subject) = Subject::find(attempt.origin) else { return };
    subject.seen(maps::coarse_now());
    let took = now.saturating_sub(attempt.syn_ns);
    let timeout = subject.origin.syn_timeout_ns;
    let late = timeout != 0 && took > timeout;
    if !late {
        subject.syn_done(attempt.syn_ns);
    }
    subject.connected(attempt.syn_ns, now, attempt.flags & TRIAL != 0);
    if let Some(counters) = maps::counters(attempt.origin) {
        counters.synack += 1;
        counters.synack_late += u64::from(late);
        counters.opened += 1;
        counters.pkts_in += packets(ctx);
        if attempt.repeats == 0 {
            sample(&mut counters.rtt, took);
        }
    }
}

#[inline(always)]
fn sample(buckets: &mut histogram::Buckets, ns: u64) {
    let index = maps::opaque(histogram::bucket(ns)) & 127;
    if let Some(bucket) = buckets.get_mut(index) {
        *bucket += 1;
    }
}

#[inline(always)]
fn refused(attempt: &HalfOpen, now: u64) {
    let Some(subject) = Subject::find(attempt.origin) else { return };
    if let Some(counters) = maps::counters(attempt.origin) {
        counters.refused += 1;
    }
    subject.seen(maps::coarse_now());
    subject.syn_done(attempt.syn_ns);
    if attempt.flags & TRIAL != 0 {
        subject.trial_failed(now);
    }
    subject.syn_refused(now, attempt.client);
}

#[inline(always)]
fn ingress_flow<F: Family>(ctx: &TcContext, key: &F::Key, flow: &mut Flow, segment: &Segment) {
    let coarse = maps::coarse_now();
    let effects = track::from_origin(flow, segment, coarse);
    let Some(subject) = Subject::find(flow.origin) else { return };
    let Some(counters) = maps::counters(flow.origin) else { return };
    counters.pkts_in += packets(ctx);
    counters.bytes_in += u64::from(segment.len);
    if effects.has(Effects::RST_INEXACT) {
        counters.rst_inexact += 1;
        return;
    }
    if effects.has(Effects::FORGED) {
        count(Count::Forged);
        return;
    }
    subject.seen(coarse);
    if effects.bits == 0 {
        return;
    }
    ended(counters, &effects);
    if effects.has(Effects::RESPONSE) {
        response(&subject, counters, flow, &effects);
    }
    if effects.has(Effects::VOID) {
        subject.request_done(effects.request_ns);
    }
    if segment.flags & RST != 0 {
        reset(&subject, counters, flow, &effects);
    }
    if effects.has(Effects::CLOSED) && !effects.has(Effects::RESET_EARLY) && flow.flags & TRIAL != 0 {
        subject.trial_void();
    }
    if effects.has(Effects::CLOSED) {
        end::<F>(key, flow.flags & MOVED != 0);
    }
}

#[inline(always)]
fn response(subject: &Subject, counters: &mut Counters, flow: &Flow, effects: &Effects) {
    let now = maps::now();
    let took = now.saturating_sub(effects.request_ns);
    let timeout = subject.origin.response_timeout_ns;
    counters.response += 1;
    sample(&mut counters.ttfb, took);
    if timeout != 0 && took > timeout {
        counters.response_late += 1;
        return;
    }
    subject.request_done(effects.request_ns);
    subject.answered(effects.request_ns, now, flow.flags & TRIAL != 0);
}

#[inline(always)]
fn reset(subject: &Subject, counters: &mut Counters, flow: &Flow, effects: &Effects) {
    counters.reset_mid += u64::from(effects.has(Effects::RESET_MID));
    counters.reset_idle += u64::from(effects.has(Effects::RESET_IDLE));
    if effects.has(Effects::RESET_EARLY) {
        counters.reset_early += 1;
        if effects.request_ns != 0 {
            subject.request_done(effects.request_ns);
        }
        let now = maps::now();
        if flow.flags & TRIAL != 0 {
            subject.trial_failed(now);
        }
        subject.reset_early(now, flow.client);
    }
}
