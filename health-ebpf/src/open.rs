//! A flow begins: the node's side acknowledges an accepted answer, or the origin shows that it did so elsewhere.
//!
//! Not before: a flow table that every answer can fill is emptied of others' flows by whoever forges SYNs.

use aya_ebpf::{
    bindings::{__sk_buff, BPF_NOEXIST},
    programs::TcContext,
};
use health_common::{
    flow::{AT_CLIENT, Flow, HalfOpen, MOVED},
    map::Count,
    track::{self, Answer, Effects},
};

use crate::{
    context::packets,
    egress::{Client, Egress, Hook, on_its_way},
    maps::{self, Family, V4, V6, count},
    moved,
    nat::Rewrite,
    observe::{PASS, SIGNAL_NOTED},
    parse::Packet,
    signals::{Signal, node_signals, who},
    subject::Subject,
};

macro_rules! entry {
    ($family:ident, $hook:ident, $name:ident) => {
        /// What becomes of the noted packet, which may acknowledge an accepted answer.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name(ctx: *mut __sk_buff) -> i32 {
            open::<$family, $hook>(&TcContext::new(ctx)).unwrap_or(PASS)
        }
    };
    ($family:ident, $name:ident) => {
        /// What the noted packet of an origin, of so many segments, says to an attempt that was accepted.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name(segments: u32) -> i32 {
            early::<$family>(segments.into()).unwrap_or(PASS)
        }
    };
}

entry!(V4, Egress, open_egress_v4);
entry!(V6, Egress, open_egress_v6);
entry!(V4, Client, open_client_v4);
entry!(V6, Client, open_client_v6);
entry!(V4, early_v4);
entry!(V6, early_v6);

#[inline(always)]
fn open<F: Family, H: Hook>(ctx: &TcContext) -> Option<i32> {
    let packet: &Packet<F::Key> = &F::noted(maps::scratch()?).packet;
    // SAFETY: LRU values are recycled, not freed, while a program runs.
    let attempt = unsafe { &*F::half_open().get_ptr(packet.key)? };
    if attempt.flags & AT_CLIENT != 0 && !H::CLIENT {
        return None;
    }
    let moves = attempt.flags & MOVED != 0;
    if track::opens(attempt, &packet.segment) {
        by_node::<F>(ctx, packet, attempt);
    }
    Some(on_its_way::<F, H>(ctx, packet, moves))
}

/// The packet is the flow's first of the node's side.
#[inline(always)]
fn by_node<F: Family>(ctx: &TcContext, packet: &Packet<F::Key>, attempt: &HalfOpen) {
    let Some(scratch) = maps::scratch() else { return };
    let flow = &mut scratch.flow;
    *flow = track::open(attempt);
    let effects = track::from_node(flow, &packet.segment, maps::now);
    if !begins::<F>(&packet.key, flow, &effects) {
        return;
    }
    if let Some(counters) = maps::counters(flow.origin) {
        counters.opened += 1;
        counters.pkts_out += packets(ctx);
        counters.bytes_out += u64::from(packet.segment.len);
    }
    if effects.bits != 0 {
        node_signals(who(flow, 0), effects.bits, effects.request_ns, flow.request_ns);
    }
}

/// The attempt is one no more: a flow takes its place, unless this packet ended it. False when it stays what it was.
#[inline(always)]
fn begins<F: Family>(key: &F::Key, flow: &Flow, effects: &Effects) -> bool {
    if effects.has(Effects::CLOSED) {
        if flow.flags & MOVED != 0 {
            moved::ended::<F>(key);
        }
    } else if F::flows().insert(key, flow, BPF_NOEXIST.into()).is_ok() {
        count(Count::FlowMade);
    } else {
        // No room, or another CPU was faster: that one has counted what there is to count.
        count(Count::UpdateFailed);
        return false;
    }
    maps::gone(F::half_open().remove(key), Count::HalfOpenRemoved);
    true
}

/// An origin's packet that finds an accepted attempt: another answer, or the first to show that the node's side has passed
/// elsewhere. A request can't be under way, so that no status is asked for.
#[inline(always)]
fn early<F: Family>(segments: u64) -> Option<i32> {
    let noted = F::noted(maps::scratch()?);
    let (packet, key) = (&noted.packet, &noted.primary);
    // SAFETY: as above.
    let attempt = unsafe { &mut *F::half_open().get_ptr_mut(key)? };
    let segment = &packet.segment;
    let (coarse, counters) = (maps::coarse_now(), maps::counters(attempt.origin)?);
    counters.pkts_in += segments;
    counters.bytes_in += u64::from(segment.len);
    if track::answer(attempt, segment) == Answer::Accepted {
        Subject::seen_by_id(attempt.origin, coarse);
        track::accept(attempt, segment, packet.key.ports().0, 0);
        return None;
    }
    let scratch = maps::scratch()?;
    let flow = &mut scratch.flow;
    *flow = track::open(attempt);
    let effects = track::from_origin(flow, segment, coarse);
    if !effects.has(Effects::RST_SUSPECT | Effects::RST_FORGED | Effects::FORGED) {
        Subject::seen_by_id(flow.origin, coarse);
    }
    if effects.has(Effects::CLOSED) || track::goes_on(attempt, segment, &effects) {
        if !begins::<F>(key, flow, &effects) {
            return None;
        }
        counters.opened += 1;
    }
    if effects.bits == 0 {
        return None;
    }
    maps::scratch()?.signal =
        Signal { who: who(flow, 0), request_ns: effects.request_ns, sample_ns: effects.sample_ns, bits: effects.bits };
    Some(SIGNAL_NOTED)
}
