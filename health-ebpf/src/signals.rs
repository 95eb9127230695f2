//! What the packets of a flow say about its origin: counters, streaks, trips.
//!
//! The two functions are global, so that the verifier proves each once, and not on every way that leads there.

use health_common::{
    flow::{Flow, TRIAL},
    histogram,
    map::Count,
    origin::{Clients, Counters, Origin},
    track::Effects,
};

use crate::{
    maps::{self, count},
    subject::Subject,
};

/// A flow in one word, as the functions below take it: origin, client, whether it is a trial, and the class of its status.
#[inline(always)]
pub fn who(flow: &Flow, class: u8) -> u64 {
    u64::from(flow.origin)
        | u64::from(flow.client) << 16
        | u64::from(class) << 24
        | u64::from(flow.flags & TRIAL != 0) << 32
}

/// One more sample of a duration.
#[inline(always)]
fn sample(buckets: &mut histogram::Buckets, ns: u64) {
    let index = maps::opaque(histogram::bucket(ns)) & 127;
    if let Some(bucket) = buckets.get_mut(index) {
        *bucket += 1;
    }
}

/// A failure was this client's.
#[inline(always)]
pub fn blame(by: &mut Clients, client: u32) {
    let place = maps::opaque(client as usize) & 31;
    if let Some(share) = by.get_mut(place) {
        *share = share.wrapping_add(1);
    }
}

/// A client stops waiting for an answer, or has lost it: its failure, if that was overdue.
#[inline(always)]
fn waited(subject: &Subject, counters: &mut Counters, request_ns: u64, client: u32) {
    let timeout = subject.origin.response_timeout_ns;
    if timeout != 0 && maps::coarse_now().saturating_sub(request_ns) > timeout {
        blame(&mut counters.request_by, client);
    }
}

/// An accepted answer to a SYN that was not repeated took so long.
#[inline(always)]
pub fn handshake_took(counters: &mut Counters, ns: u64) {
    sample(&mut counters.rtt, ns);
}

/// Counts that belong to either direction.
#[inline(always)]
fn ended(counters: &mut Counters, effects: Effects) {
    counters.closed += u64::from(effects.has(Effects::CLOSED));
    counters.request_void += u64::from(effects.has(Effects::VOID));
    counters.client_abort += u64::from(effects.has(Effects::CLIENT_ABORT));
    counters.local_drop += u64::from(effects.has(Effects::LOCAL_DROP));
}

/// A packet of the node's side meant something. `before_ns` is when the request that it renews or ends had been sent,
/// `request_ns` when the one under way was.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn node_signals(who: u64, bits: u32, before_ns: u64, request_ns: u64) -> u32 {
    let (id, client, trial) = (who as u16, (who >> 16) as u32 & 0xff, who >> 32 & 1 != 0);
    let effects = Effects { bits, ..Effects::default() };
    let Some(counters) = maps::counters(id) else { return 0 };
    counters.request += u64::from(effects.has(Effects::REQUEST));
    counters.retrans += u64::from(effects.has(Effects::RETRANS));
    ended(counters, effects);
    if bits & !Effects::RETRANS == 0 {
        return 0;
    }
    let Some(subject) = Subject::find(id) else { return 0 };
    if effects.has(Effects::VOID | Effects::GIVEN_UP) {
        waited(&subject, counters, before_ns, client);
    }
    if effects.has(Effects::REFRESHED | Effects::VOID) {
        subject.request_done(before_ns);
    }
    if effects.has(Effects::REQUEST | Effects::REFRESHED) {
        subject.look_at_requests(request_ns);
        subject.request_sent(request_ns, client);
    }
    // Whatever it was to show, it would have shown before its end.
    if effects.has(Effects::CLOSED) && trial {
        subject.trial_void();
    }
    0
}

/// What nearly every response is: in time, of an origin that nothing is held against. Done here, for the long way through
/// [`origin_signals`] costs as much again. False: nothing was done, go that way.
#[inline(always)]
pub fn answered_well(flow: &Flow, effects: &Effects, class: u8, counters: &mut Counters, coarse_ns: u64) -> bool {
    let usual = Effects::RESPONSE | Effects::SAMPLE;
    if effects.bits & !usual != 0 || flow.flags & TRIAL != 0 || class == 5 {
        return false;
    }
    let Some(subject) = Subject::find(flow.origin) else { return false };
    if !subject.is_spotless() {
        return false;
    }
    let now = maps::now();
    if effects.has(Effects::RESPONSE) {
        let took = now.saturating_sub(effects.request_ns);
        let timeout = subject.origin.response_timeout_ns;
        if timeout != 0 && took > timeout {
            return false;
        }
        counters.response += 1;
        sample(&mut counters.ttfb, took);
        status(counters, class);
        subject.answered_well(effects.request_ns, coarse_ns);
    }
    if effects.has(Effects::SAMPLE) {
        sample(&mut counters.stamp_rtt, now.saturating_sub(effects.sample_ns));
    }
    true
}

#[inline(always)]
fn status(counters: &mut Counters, class: u8) {
    match class {
        1 => counters.http_1xx += 1,
        2 => counters.http_2xx += 1,
        3 => counters.http_3xx += 1,
        4 => counters.http_4xx += 1,
        5 => counters.http_5xx += 1,
        _ => {}
    }
}

/// What a packet of the origin meant.
#[repr(C)]
pub struct Signal {
    pub who: u64,
    pub request_ns: u64,
    pub sample_ns: u64,
    pub bits: u32,
}

/// The noted packet of the origin meant something.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn origin_signals() -> u32 {
    let Some(scratch) = maps::scratch() else { return 0 };
    let Signal { who, request_ns, sample_ns, bits } = scratch.signal;
    let (id, client, class) = (who as u16, (who >> 16) as u32 & 0xff, (who >> 24) as u8);
    let trial = who >> 32 & 1 != 0;
    let effects = Effects { bits, ..Effects::default() };
    let Some(subject) = Subject::find(id) else { return 0 };
    let Some(counters) = maps::counters(id) else { return 0 };
    if effects.has(Effects::RST_SUSPECT | Effects::RST_FORGED | Effects::FORGED) {
        counters.rst_suspect += u64::from(effects.has(Effects::RST_SUSPECT));
        counters.rst_forged += u64::from(effects.has(Effects::RST_FORGED));
        if effects.has(Effects::FORGED) {
            count(Count::Forged);
        }
        return 0;
    }
    // A clock costs as much as a look into a small table.
    let timed = Effects::SAMPLE | Effects::RESPONSE | Effects::RESET_EARLY;
    let now = if effects.has(timed) { maps::now() } else { 0 };
    if effects.has(Effects::SAMPLE) {
        sample(&mut counters.stamp_rtt, now.saturating_sub(sample_ns));
    }
    counters.zero_window += u64::from(effects.has(Effects::ZERO_WINDOW));
    ended(counters, effects);
    if effects.has(Effects::RESPONSE) {
        response(&subject, counters, (request_ns, now), (client, class, trial));
    }
    if effects.has(Effects::VOID) {
        waited(&subject, counters, request_ns, client);
        subject.request_done(request_ns);
    }
    counters.reset_mid += u64::from(effects.has(Effects::RESET_MID));
    counters.reset_idle += u64::from(effects.has(Effects::RESET_IDLE));
    if effects.has(Effects::RESET_EARLY) {
        counters.reset_early += 1;
        if request_ns != 0 {
            subject.request_done(request_ns);
        }
        if trial {
            subject.trial_failed(now);
        }
        subject.reset_early(now, client);
    } else if effects.has(Effects::CLOSED) && trial {
        subject.trial_void();
    }
    0
}

/// The network says that the host of an established flow can't be reached.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn unreachable_flow(id: u16, client: u32) -> u32 {
    let Some(subject) = Subject::find(id) else { return 0 };
    if let Some(counters) = maps::counters(id) {
        counters.unreachable += 1;
    }
    subject.flow_unreachable(maps::now(), client);
    1
}

#[inline(always)]
fn response(subject: &Subject, counters: &mut Counters, (request_ns, now): (u64, u64), who: (u32, u8, bool)) {
    let (client, class, trial) = who;
    let took = now.saturating_sub(request_ns);
    let timeout = subject.origin.response_timeout_ns;
    counters.response += 1;
    sample(&mut counters.ttfb, took);
    status(counters, class);
    let late = timeout != 0 && took > timeout;
    counters.response_late += u64::from(late);
    if late {
        blame(&mut counters.request_by, client);
        return;
    }
    subject.request_done(request_ns);
    if class == 5 && subject.origin.is(Origin::ON_5XX) {
        subject.answered_badly(now);
        if trial {
            subject.trial_failed(now);
        }
        subject.bad_status(now, client);
    } else {
        subject.answered(request_ns, now, trial);
    }
}
