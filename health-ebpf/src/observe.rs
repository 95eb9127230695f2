//! What both directions share.

use aya_ebpf::{
    EbpfContext,
    bindings::{__sk_buff, TC_ACT_UNSPEC},
    helpers::generated::{bpf_get_socket_uid, bpf_skb_ancestor_cgroup_id},
    programs::TcContext,
};
use health_common::{SECOND_PASS_CB, SECOND_PASS_MARK, map::BypassKey};

use crate::maps;

/// The packet goes on, for whoever comes after us: `TCX_NEXT`, which is clsact's `TC_ACT_UNSPEC`.
pub const PASS: i32 = TC_ACT_UNSPEC;

/// Verdict among ourselves: a SYN was noted, and the program goes on with [`crate::syn`]. One frame of the stack, which has
/// 512 bytes for all that are open, is gone by then.
pub const SYN_NOTED: i32 = 0x100;
/// Likewise: a packet was noted that may answer a SYN; on to [`crate::answer`].
pub const ANSWER_NOTED: i32 = 0x101;
/// Likewise: a refused attempt was noted that may be sent elsewhere; on to [`crate::rescue`].
pub const REFUSAL_NOTED: i32 = 0x102;

/// Likewise: an answer was noted of an origin that a rescue left.
pub const LOSER_NOTED: i32 = 0x103;

/// Likewise: what a packet of an established flow means was noted; on to [`crate::signals`].
pub const SIGNAL_NOTED: i32 = 0x104;

/// Likewise: the noted SYN is a repeated one.
pub const REPEAT_NOTED: i32 = 0x105;

/// Likewise: a packet was noted that may acknowledge an accepted answer; on to [`crate::open`].
pub const ACK_NOTED: i32 = 0x108;

/// Likewise: it is ICMP; on to [`crate::icmp`].
pub const ICMP_SEEN: i32 = 0x106;
/// Likewise: an error was noted that refuses an attempt; on to [`crate::rescue`].
pub const ERROR_NOTED: i32 = 0x107;

/// Likewise: nobody has room for the noted SYN; on to [`crate::build`].
pub const FULL_NOTED: i32 = 0x109;

/// The mark of a packet on its second pass is taken off; whether it was there, for this program or one before it.
#[inline(always)]
pub fn is_second_pass(ctx: &TcContext) -> bool {
    let mark = mark(ctx);
    // SAFETY: the context is a live `__sk_buff`, and its control block is a program's to use.
    unsafe {
        if mark & SECOND_PASS_MARK == 0 {
            return (*skb(ctx)).cb[0] == SECOND_PASS_CB;
        }
        (*skb(ctx)).cb[0] = SECOND_PASS_CB;
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
