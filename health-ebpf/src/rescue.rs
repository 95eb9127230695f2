//! Rescue of one connection attempt: what was refused goes to a standby, in the place of the refusal; the origin that a
//! rescue left gets its RST.

use aya_ebpf::{
    bindings::{__sk_buff, TC_ACT_SHOT},
    programs::TcContext,
};
use health_common::{
    NONE,
    event::{Kind, Why},
    flow::{FIXED, HalfOpen, MOVED, REFUSED, RESTEERED, TRIAL, UNTURNABLE},
    map::Count,
    net::FlowKey,
    origin::Origin,
    track::RST,
};

use crate::{
    build::{self, Segment, Way},
    ingress::give_back,
    maps::{self, Family, V4, V6, count},
    moved,
    nat::{self, Rewrite},
    observe::{ICMP_SEEN, PASS},
    parse::Packet,
    subject::Subject,
    syn::{elsewhere, withheld},
    tell,
};

macro_rules! entry {
    ($family:ident, $rescue:ident, $reset:ident) => {
        /// What becomes of the noted refusal of a SYN.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $rescue(ctx: *mut __sk_buff) -> i32 {
            rescue::<$family>(&TcContext::new(ctx)).unwrap_or(PASS)
        }

        /// Sends the origin that the noted packet is of a RST in the place of it.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $reset(ctx: *mut __sk_buff) -> i32 {
            reset::<$family>(&TcContext::new(ctx)).unwrap_or(TC_ACT_SHOT)
        }
    };
}

entry!(V4, rescue_v4, reset_v4);
entry!(V6, rescue_v6, reset_v6);

/// The attempt goes elsewhere, or is over, and then the refusal reaches whoever asked.
#[inline(always)]
fn rescue<F: Family>(ctx: &TcContext) -> Option<i32> {
    let noted = F::noted(maps::scratch()?);
    let (packet, primary) = (&noted.packet, noted.primary);
    // SAFETY: LRU values are recycled, not freed, while a program runs.
    let attempt = unsafe { &mut *F::half_open().get_ptr_mut(&primary)? };
    if let Some(verdict) = turn::<F>(ctx, packet, &primary, attempt) {
        return Some(verdict);
    }
    let was_moved = attempt.flags & MOVED != 0;
    maps::gone(F::half_open().remove(&primary), Count::HalfOpenRemoved);
    if was_moved {
        moved::ended::<F>(&primary);
    }
    if packet.header_len == 0 {
        // An ICMP error: it is translated, if it is one of a redirected flow.
        return Some(ICMP_SEEN);
    }
    if packet.key != primary {
        give_back(ctx, packet, &primary.remote(), primary.ports().0);
    }
    None
}

#[inline(always)]
fn reset<F: Family>(ctx: &TcContext) -> Option<i32> {
    let packet: &Packet<F::Key> = &F::noted(maps::scratch()?).packet;
    let remote = packet.key.remote();
    let origin = maps::origin(maps::endpoint(&remote)?.origin)?;
    let seq = packet.segment.ack;
    let reset = Segment { seq, ack: 0, flags: RST, window: 0, tos: 0, options: None, mss_max: 0 };
    let way = Way { remote: &remote, node_port: packet.key.ports().0, to_node: false };
    if origin.ifindex == 0 || !build::write(ctx, packet, way, reset) {
        return None;
    }
    count(Count::LoserReset);
    Some(nat::redirect(ctx, packet.l3, origin.ifindex))
}

/// Sends a refused SYN on to the next standby, in the place of the refusal.
#[inline(always)]
fn turn<F: Family>(ctx: &TcContext, packet: &Packet<F::Key>, key: &F::Key, attempt: &mut HalfOpen) -> Option<i32> {
    let (failed, now) = (attempt.origin, maps::now());
    if !may_turn(attempt) || !elsewhere::<F>(key, attempt, now) {
        return None;
    }
    // Its origin has spoken: no answer of it is to come.
    attempt.flags &= !(RESTEERED | REFUSED | TRIAL);
    let standby = maps::origin(attempt.origin)?;
    // SAFETY: the map is preallocated; `elsewhere` has just made the entry.
    let node_port = unsafe { (*F::moved_out().get_ptr(key)?).node_port };
    let way = Way { remote: &standby.endpoint, node_port, to_node: false };
    if !build::write(ctx, packet, way, build::syn_of(attempt, standby.mss_max)) {
        count(Count::TurnFailed);
        // It was never sent.
        if let Some(subject) = Subject::find(attempt.origin) {
            subject.syn_void(attempt.syn_ns);
        }
        return None;
    }
    turned(key, failed, attempt.origin, now);
    Some(nat::redirect(ctx, packet.l3, standby.ifindex))
}

/// Whether the attempt may be sent anew.
#[inline(always)]
pub fn may_turn(attempt: &HalfOpen) -> bool {
    if attempt.frontend == NONE || attempt.flags & (FIXED | UNTURNABLE) != 0 {
        return false;
    }
    let Some(subject) = Subject::find(attempt.origin) else { return false };
    if !subject.origin.is(Origin::RESCUE) {
        return false;
    }
    if subject.is_withheld() {
        withheld(attempt.origin);
        return false;
    }
    true
}

#[inline(always)]
pub fn turned<K: FlowKey>(key: &K, failed: u16, standby: u16, now: u64) {
    count(Count::TurnedAround);
    if let Some(counters) = maps::counters(standby) {
        counters.turned_around += 1;
    }
    tell::tell((Kind::Turn, Why::Refused), now, failed, standby, (0, 0), Some(&key.node()));
}
