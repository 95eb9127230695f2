//! Packets from origins: what they prove, and the way back of redirected flows.

use aya_ebpf::{bindings::TC_ACT_SHOT, programs::TcContext};
use health_common::{
    flow::{Flow, HalfOpen, MOVED, TRIAL},
    map::Count,
    net::FlowKey,
    origin::Counters,
    track::{self, Answer, Effects, RST, Segment},
};

use crate::{
    maps::{self, Family, count},
    moved,
    nat::{self, Rewrite, Side},
    observe::{PASS, ended, packets, sample},
    parse::Packet,
    trip::Subject,
};

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
            nat::failed(ctx);
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
            accepted(ctx, attempt, now);
            let Some(scratch) = maps::scratch() else { return };
            scratch.flow = track::establish(attempt, segment, 0, now);
            if F::flows().insert(key, &scratch.flow, 0).is_err() {
                count(Count::UpdateFailed);
            }
            maps::removed(F::half_open().remove(key));
        }
        Answer::Refused => {
            refused(attempt, maps::now());
            maps::removed(F::half_open().remove(key));
            if attempt.flags & MOVED != 0
                && let Some(out) = F::moved_out().get_ptr_mut(key)
            {
                // SAFETY: the map is preallocated.
                unsafe { (*out).ended_ns = maps::coarse_now() };
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
    subject.syn_refused(now, attempt.client.into());
}

#[inline(always)]
fn ingress_flow<F: Family>(ctx: &TcContext, key: &F::Key, flow: &mut Flow, segment: &Segment) {
    let coarse = maps::coarse_now();
    let effects = track::from_origin(flow, segment, coarse);
    let Some(subject) = Subject::find(flow.origin) else { return };
    let Some(counters) = maps::counters(flow.origin) else { return };
    counters.pkts_in += packets(ctx);
    counters.bytes_in += u64::from(segment.len);
    if effects.has(Effects::RST_SUSPECT | Effects::RST_FORGED) {
        counters.rst_suspect += u64::from(effects.has(Effects::RST_SUSPECT));
        counters.rst_forged += u64::from(effects.has(Effects::RST_FORGED));
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
        moved::end::<F>(key, flow.flags & MOVED != 0);
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
        subject.reset_early(now, flow.client.into());
    }
}
