//! Answers to SYNs: an attempt is accepted, or rescued. The flow begins in [`crate::open`].

use aya_ebpf::{
    bindings::{__sk_buff, TC_ACT_SHOT},
    programs::TcContext,
};
use health_common::{
    NONE,
    event::{Kind, Why},
    flow::{ANSWERED, HalfOpen, MOVED, REFUSED, RESTEERED, TRIAL},
    map::Count,
    net::FlowKey,
    track::{self, Answer},
};

use crate::{
    context::{Behind, Context, Tc, Xdp, packets},
    ingress::{give_back, loser},
    maps::{self, Family, V4, V6, count},
    moved,
    nat::Rewrite,
    observe::{PASS, REFUSAL_NOTED},
    parse::Packet,
    signals,
    subject::Subject,
    tell,
};

macro_rules! entry {
    ($family:ident, $tc:ident, $behind:ident, $xdp:ident) => {
        /// What becomes of the noted packet, which may answer a SYN.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $tc(raw: *mut __sk_buff) -> i32 {
            answer::<$family, Tc>(Some(&TcContext::new(raw))).unwrap_or(PASS)
        }

        /// The same behind XDP.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $behind(raw: *mut __sk_buff) -> i32 {
            answer::<$family, Behind>(Some(&TcContext::new(raw))).unwrap_or(PASS)
        }

        /// The same at XDP, where nothing is done to the packet.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $xdp() -> i32 {
            answer::<$family, Xdp>(None).unwrap_or(PASS)
        }
    };
}

entry!(V4, answer_v4, answer_behind_v4, answer_xdp_v4);
entry!(V6, answer_v6, answer_behind_v6, answer_xdp_v6);

#[inline(always)]
fn answer<F: Family, C: Context>(ctx: Option<&TcContext>) -> Option<i32> {
    let noted = F::noted(maps::scratch()?);
    let (packet, primary) = (&noted.packet, noted.primary);
    // SAFETY: LRU values are recycled, not freed, while a program runs.
    let attempt = unsafe { &mut *F::half_open().get_ptr_mut(&primary)? };
    // Of the origin that a rescue has left.
    let is_first = packet.key == primary && attempt.flags & MOVED != 0;
    if attempt.flags & ANSWERED != 0 {
        if is_first {
            return Some(loser::<C>(&packet.segment, &mut attempt.flags));
        }
        let verdict = if C::OBSERVES { F::early(ctx.map_or(1, |ctx| packets(ctx) as u32)) } else { PASS };
        if packet.key != primary
            && let Some(ctx) = ctx
        {
            give_back(ctx, packet, &primary.remote(), primary.ports().0);
        }
        return Some(verdict);
    }
    match track::answer(attempt, &packet.segment) {
        Answer::Accepted if is_first && attempt.flags & RESTEERED == 0 => return Some(drop_loser::<C>()),
        Answer::Accepted if C::OBSERVES => accept::<F>(ctx, packet, &primary, attempt, is_first),
        Answer::Refused if is_first => return Some(drop_loser::<C>()),
        Answer::Refused => {
            if C::OBSERVES {
                refused(attempt, maps::now());
            }
            if C::REWRITES {
                return Some(REFUSAL_NOTED);
            }
            // TC acts on it, and has only to know that it was counted.
            attempt.flags |= REFUSED;
        }
        Answer::Accepted | Answer::None => {}
    }
    if packet.key != primary {
        give_back(ctx?, packet, &primary.remote(), primary.ports().0);
    }
    None
}

/// The client must not see two answers to one SYN.
#[inline(always)]
fn drop_loser<C: Context>() -> i32 {
    if !C::REWRITES {
        return PASS;
    }
    count(Count::LoserDropped);
    TC_ACT_SHOT
}

/// An accepted SYN-ACK. Of the first origin after a re-steer: the first valid one wins, so the move is undone.
#[inline(never)]
fn accept<F: Family>(
    ctx: Option<&TcContext>,
    packet: &Packet<F::Key>,
    key: &F::Key,
    attempt: &mut HalfOpen,
    is_first: bool,
) {
    let now = maps::now();
    if is_first {
        undo::<F>(key, attempt, now);
    }
    let (wire_port, _) = packet.key.ports();
    track::accept(attempt, &packet.segment, wire_port, now);
    let how = u32::from(attempt.flags & TRIAL != 0) | u32::from(attempt.repeats() == 0) << 1 | u32::from(is_first) << 2;
    let how = how | u32::from(attempt.client) << 8;
    accepted(attempt.origin, attempt.syn_ns, now, how);
    if let Some(counters) = maps::counters(attempt.origin) {
        counters.pkts_in += ctx.map_or(1, packets);
    }
}

/// The standby's SYN says nothing; its answer will meet nobody, and whoever gets it resets it.
#[inline(always)]
fn undo<F: Family>(key: &F::Key, attempt: &mut HalfOpen, now: u64) {
    if let Some(standby) = Subject::find(attempt.origin) {
        standby.syn_void(attempt.syn_ns);
    }
    let first = maps::endpoint(&key.remote()).map_or(NONE, |meant| meant.origin);
    moved::take_back::<F>(key);
    tell::tell((Kind::Undone, Why::None), now, attempt.origin, first, (0, 0), Some(&key.node()));
    count(Count::Undone);
    attempt.origin = first;
    attempt.flags &= !(MOVED | RESTEERED | TRIAL);
}

/// An attempt was accepted. `how`: 1 it was a trial; 2 its SYN was not repeated; 4 its SYN was sent before `syn_ns`; its
/// client in the next byte.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn accepted(id: u16, syn_ns: u64, now: u64, how: u32) -> u32 {
    let Some(subject) = Subject::find(id) else { return 0 };
    subject.seen(maps::coarse_now());
    let took = now.saturating_sub(syn_ns);
    let timeout = subject.origin.syn_timeout_ns;
    let unknown = how & 4 != 0;
    let late = unknown || (timeout != 0 && took > timeout);
    if !late {
        subject.syn_done(syn_ns);
    }
    // What began before a trip does not end it.
    subject.connected(if unknown { 0 } else { syn_ns }, now, how & 1 != 0);
    if let Some(counters) = maps::counters(id) {
        counters.synack += 1;
        if late {
            counters.synack_late += 1;
            signals::blame(&mut counters.connect_by, how >> 8);
        }
        if how & 2 != 0 {
            signals::handshake_took(counters, took);
        }
    }
    1
}

/// The network says that nobody is there for an attempt. Arguments as of [`refusal`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn unreached(id: u16, syn_ns: u64, now: u64, who: u32) -> u32 {
    let Some(subject) = Subject::find(id) else { return 0 };
    if let Some(counters) = maps::counters(id) {
        counters.unreachable += 1;
    }
    subject.syn_done(syn_ns);
    if who >> 8 != 0 {
        subject.trial_failed(now);
    }
    subject.syn_unreachable(now, who & 0xff);
    1
}

#[inline(always)]
fn refused(attempt: &HalfOpen, now: u64) {
    refusal(attempt.origin, attempt.syn_ns, now, u32::from(attempt.client) | u32::from(attempt.flags & TRIAL) << 8);
}

/// An attempt was refused. `who`: its client, and in the next byte whether it is a trial.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn refusal(id: u16, syn_ns: u64, now: u64, who: u32) -> u32 {
    let Some(subject) = Subject::find(id) else { return 0 };
    if let Some(counters) = maps::counters(id) {
        counters.refused += 1;
    }
    subject.seen(maps::coarse_now());
    subject.syn_done(syn_ns);
    if who >> 8 != 0 {
        subject.trial_failed(now);
    }
    subject.syn_refused(now, who & 0xff);
    1
}
