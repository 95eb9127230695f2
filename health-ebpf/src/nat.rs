//! Rewriting one side of a packet. The checksum helpers are right for every offload state.

use aya_ebpf::{
    EbpfContext,
    bindings::{BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM},
    helpers::generated::{bpf_csum_diff, bpf_redirect_neigh},
    programs::TcContext,
};
use aya_log_ebpf::debug;
use health_common::{
    SECOND_PASS_MARK,
    map::Count,
    net::{Endpoint, FlowKey, FlowKey4, FlowKey6},
};

use crate::{maps, parse::ETH_LEN};

/// Which side of the packet is the origin's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Source,
    Destination,
}

/// A four-tuple whose origin's side can be written into a packet.
pub trait Rewrite: FlowKey {
    /// Writes `to` over the origin's side, which is `self.remote()` now. `None` when a helper refuses.
    fn rewrite(&self, ctx: &TcContext, l4: usize, side: Side, to: &Endpoint) -> Option<()>;
}

const TCP_CHECKSUM: usize = 16;

impl Rewrite for FlowKey4 {
    #[inline(always)]
    fn rewrite(&self, ctx: &TcContext, l4: usize, side: Side, to: &Endpoint) -> Option<()> {
        let (from, to_addr) = (self.remote.0, to.addr.low().0);
        let checksum = l4 + TCP_CHECKSUM;
        ctx.l4_csum_replace(checksum, u64::from(from), u64::from(to_addr), u64::from(BPF_F_PSEUDO_HDR) | 4).ok()?;
        ctx.l3_csum_replace(ETH_LEN + 10, u64::from(from), u64::from(to_addr), 4).ok()?;
        let address = if side == Side::Source { 12 } else { 16 };
        ctx.store(ETH_LEN + address, &to_addr, 0).ok()?;
        port(ctx, l4, side, self.remote_port.0, to.port.0)
    }
}

impl Rewrite for FlowKey6 {
    #[inline(always)]
    fn rewrite(&self, ctx: &TcContext, l4: usize, side: Side, to: &Endpoint) -> Option<()> {
        let mut from = self.remote.0;
        let mut to_addr = to.addr.0;
        // SAFETY: both are 16 bytes on the stack.
        let difference = unsafe { bpf_csum_diff(from.as_mut_ptr(), 16, to_addr.as_mut_ptr(), 16, 0) };
        let difference = u64::try_from(difference).ok()?;
        ctx.l4_csum_replace(l4 + TCP_CHECKSUM, 0, difference, u64::from(BPF_F_PSEUDO_HDR)).ok()?;
        let address = if side == Side::Source { 8 } else { 24 };
        // For CHECKSUM_COMPLETE the line above took the difference out of skb->csum, as is right for IPv4, whose header
        // checksum cancels the address; IPv6 has none, so the address's own change must be put back.
        ctx.store(ETH_LEN + address, &to_addr, u64::from(BPF_F_RECOMPUTE_CSUM)).ok()?;
        port(ctx, l4, side, self.remote_port.0, to.port.0)
    }
}

#[inline(always)]
fn port(ctx: &TcContext, l4: usize, side: Side, from: u16, to: u16) -> Option<()> {
    if from == to {
        return Some(());
    }
    ctx.l4_csum_replace(l4 + TCP_CHECKSUM, u64::from(from), u64::from(to), 2).ok()?;
    ctx.store(l4 + if side == Side::Source { 0 } else { 2 }, &to, 0).ok()
}

/// Sends a packet of the node's side on to another origin. Its next hop was already chosen for the first one, so it is
/// resolved anew; the mark lets the second pass through egress return at once.
///
/// `bpf_redirect_neigh`: Linux 5.10.
#[inline(always)]
pub fn send_to<K: Rewrite>(ctx: &TcContext, key: &K, l4: usize, to: &Endpoint, ifindex: u32) -> Option<i32> {
    if key.rewrite(ctx, l4, Side::Destination, to).is_none() {
        failed(ctx);
        return None;
    }
    // SAFETY: the context is a live `__sk_buff`.
    let mark = unsafe { (*ctx.as_ptr().cast::<aya_ebpf::bindings::__sk_buff>()).mark };
    ctx.skb.set_mark(mark | SECOND_PASS_MARK);
    // SAFETY: no parameters are passed, so the helper looks the next hop up by itself.
    Some(unsafe { bpf_redirect_neigh(ifindex, core::ptr::null_mut(), 0, 0) } as i32)
}

/// A helper refused to rewrite: the packet goes on as it is. Never seen but with broken checksum offloads, so it is worth a
/// line for whoever debugs one.
#[inline(always)]
pub fn failed(ctx: &TcContext) {
    maps::count(Count::NatFailed);
    debug!(ctx, "a packet of {} bytes could not be rewritten", ctx.len());
}
