//! What both directions share.

use aya_ebpf::{
    EbpfContext,
    bindings::{__sk_buff, TC_ACT_UNSPEC},
    helpers::generated::{bpf_get_socket_uid, bpf_skb_ancestor_cgroup_id},
    programs::TcContext,
};
use health_common::{SECOND_PASS_MARK, histogram, map::BypassKey, origin::Counters, track::Effects};

use crate::maps;

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
pub fn is_bypassed(ctx: &TcContext) -> bool {
    let Some(node) = maps::node() else { return false };
    if node.bypass_mark != 0 && mark(ctx) == node.bypass_mark {
        return true;
    }
    if node.bypass_users != 0 {
        // SAFETY: the context is a live `__sk_buff`.
        let user = unsafe { bpf_get_socket_uid(skb(ctx)) };
        if maps::is_bypassed(BypassKey::USER, u64::from(user)) {
            return true;
        }
    }
    // SAFETY: as above.
    maps::bypasses_cgroup(node, |level| unsafe { bpf_skb_ancestor_cgroup_id(skb(ctx), level) })
}

/// Counts that belong to either direction.
#[inline(always)]
pub fn ended(counters: &mut Counters, effects: &Effects) {
    counters.closed += u64::from(effects.has(Effects::CLOSED));
    counters.request_void += u64::from(effects.has(Effects::VOID));
    counters.client_abort += u64::from(effects.has(Effects::CLIENT_ABORT));
    counters.local_drop += u64::from(effects.has(Effects::LOCAL_DROP));
}

/// Segments in the packet; 0 means that it isn't GSO.
#[inline(always)]
pub fn packets(ctx: &TcContext) -> u64 {
    // SAFETY: the context is a live `__sk_buff`.
    u64::from(unsafe { (*skb(ctx)).gso_segs }.max(1))
}

/// One more sample of a duration.
#[inline(always)]
pub fn sample(buckets: &mut histogram::Buckets, ns: u64) {
    let index = maps::opaque(histogram::bucket(ns)) & 127;
    if let Some(bucket) = buckets.get_mut(index) {
        *bucket += 1;
    }
}
