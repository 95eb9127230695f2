//! Devices whose packets begin with IP, as tunnels do (`ARPHRD_NONE`, `ARPHRD_TUNNEL`, `ARPHRD_IPGRE`, …).
//!
//! The IP header begins at 0 there, and by that the rest of the code knows such a packet.

use aya_ebpf::{EbpfContext, bindings::__sk_buff, helpers::generated::bpf_skb_change_head, programs::TcContext};
use health_common::map::Count;

use crate::{
    context::Tc,
    parse::{self, ETH_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Network, SHORT, Unread},
};

/// [`parse::network`] where nothing comes before IP: the device has said what the packet is.
#[inline(always)]
pub fn network(ctx: &Tc) -> Network {
    if !parse::is_linear(ctx, 0) {
        return Network::Unread(SHORT);
    }
    // SAFETY: the context is a live `__sk_buff`. The field has 16 bits, in network byte order.
    match u16::from_be(unsafe { (*ctx.0.as_ptr().cast::<__sk_buff>()).protocol } as u16) {
        ETHERTYPE_IPV4 => Network::V4(0),
        ETHERTYPE_IPV6 => Network::V6(0),
        _ => Network::Unread(Unread::Skipped(Count::SkippedLink)),
    }
}

/// Whether a packet has an Ethernet header, or was given an empty one. `bpf_redirect_neigh` takes one off first, and loses
/// packets that have none (`__bpf_redirect_neigh` in `net/core/filter.c`); then it writes what the new link needs.
///
/// `bpf_skb_change_head`: Linux 4.10.
#[inline(always)]
pub fn has_head(ctx: &TcContext, l3: u16) -> bool {
    // SAFETY: the context is a live `__sk_buff`.
    l3 != 0 || unsafe { bpf_skb_change_head(ctx.as_ptr().cast(), ETH_LEN as u32, 0) } == 0
}
