//! Rewriting the addresses of a packet. The checksum helpers are right for every offload state.

use aya_ebpf::{
    EbpfContext,
    bindings::{__sk_buff, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM},
    helpers::generated::{bpf_csum_diff, bpf_redirect_neigh, bpf_skb_store_bytes},
    programs::TcContext,
};
use aya_log_ebpf::debug;
use health_common::{
    SECOND_PASS_CB, SECOND_PASS_MARK,
    map::Count,
    net::{Be16, Endpoint, FlowKey, FlowKey4, FlowKey6},
};

use crate::{bare, maps, observe::PASS, parse::Packet};

/// Which side of the packet is the origin's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Source,
    Destination,
}

/// What a packet's addresses become.
#[derive(Clone, Copy)]
pub struct Change<'a> {
    /// The origin's side in the packet.
    pub side: Side,
    /// What the origin's side becomes.
    pub to: &'a Endpoint,
    /// What the node's port becomes.
    pub node_port: Be16,
}

/// A four-tuple that can be written into a packet.
pub trait Rewrite: FlowKey + Sized {
    /// Version of its protocol.
    const IPV6: bool;
    /// Writes `to` over the origin's address. `None` when a helper refuses.
    fn write_address(ctx: &TcContext, packet: &Packet<Self>, side: Side, to: &Endpoint) -> Option<()>;
    /// The ports: the node's, the origin's.
    fn ports(&self) -> (Be16, Be16);
    /// Changes the node's port.
    fn set_node_port(&mut self, port: Be16);
}

const TCP_CHECKSUM: usize = 16;

impl Rewrite for FlowKey4 {
    const IPV6: bool = false;

    #[inline(always)]
    fn write_address(ctx: &TcContext, packet: &Packet<Self>, side: Side, to: &Endpoint) -> Option<()> {
        let (from, to_addr) = (packet.key.remote.0, to.addr.low().0);
        let checksum = usize::from(packet.l4) + TCP_CHECKSUM;
        ctx.l4_csum_replace(checksum, u64::from(from), u64::from(to_addr), u64::from(BPF_F_PSEUDO_HDR) | 4).ok()?;
        // The header's checksum lies before the addresses: one write for both. Behind two bytes, for what is on the stack is
        // written in aligned words.
        let check = replaced(packet.check, from, to_addr);
        let at = usize::from(packet.l3) + 10;
        if side == Side::Source {
            let bytes = Header { pad: 0, check, addresses: [to_addr] };
            store(ctx, at, &bytes.check, 6)
        } else {
            let bytes = Header { pad: 0, check, addresses: [packet.key.node.0, to_addr] };
            store(ctx, at, &bytes.check, 10)
        }
    }

    #[inline(always)]
    fn ports(&self) -> (Be16, Be16) {
        (self.node_port, self.remote_port)
    }

    #[inline(always)]
    fn set_node_port(&mut self, port: Be16) {
        self.node_port = port;
    }
}

/// The end of an IPv4 header, from its checksum on.
#[repr(C)]
struct Header<const N: usize> {
    pad: u16,
    check: u16,
    addresses: [u32; N],
}

/// Writes the `len` bytes that begin with `first` at an offset of the packet.
#[inline(always)]
fn store(ctx: &TcContext, at: usize, first: &u16, len: u32) -> Option<()> {
    let from = core::ptr::from_ref(first).cast();
    // SAFETY: callers have as many bytes there, which the verifier checks.
    (unsafe { bpf_skb_store_bytes(ctx.as_ptr().cast(), at as u32, from, len, 0) } == 0).then_some(())
}

/// A checksum after a word that it covers was replaced (RFC 1624 §3, equation 3). In the packet's byte order throughout, which
/// one's complement sums do not mind (RFC 1071 §2).
#[inline(always)]
fn replaced(check: u16, from: u32, to: u32) -> u16 {
    let halves = |word: u32| (word & 0xffff) as u64 + (word >> 16) as u64;
    let mut sum = (!check) as u64 + halves(!from) + halves(to);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

impl Rewrite for FlowKey6 {
    const IPV6: bool = true;

    #[inline(always)]
    fn write_address(ctx: &TcContext, packet: &Packet<Self>, side: Side, to: &Endpoint) -> Option<()> {
        let (l3, l4) = (usize::from(packet.l3), usize::from(packet.l4));
        let mut from = packet.key.remote.0;
        let mut to_addr = to.addr.0;
        // SAFETY: both are 16 bytes on the stack.
        let difference = unsafe { bpf_csum_diff(from.as_mut_ptr(), 16, to_addr.as_mut_ptr(), 16, 0) };
        let difference = u64::try_from(difference).ok()?;
        ctx.l4_csum_replace(l4 + TCP_CHECKSUM, 0, difference, u64::from(BPF_F_PSEUDO_HDR)).ok()?;
        let address = if side == Side::Source { 8 } else { 24 };
        // For CHECKSUM_COMPLETE the line above took the difference out of skb->csum, as is right for IPv4, whose header
        // checksum cancels the address; IPv6 has none, so the address's own change must be put back.
        ctx.store(l3 + address, &to_addr, u64::from(BPF_F_RECOMPUTE_CSUM)).ok()
    }

    #[inline(always)]
    fn ports(&self) -> (Be16, Be16) {
        (self.node_port, self.remote_port)
    }

    #[inline(always)]
    fn set_node_port(&mut self, port: Be16) {
        self.node_port = port;
    }
}

/// Changes a packet's addresses. `None` when a helper refuses.
#[inline(always)]
pub fn rewrite<K: Rewrite>(ctx: &TcContext, packet: &Packet<K>, change: Change<'_>) -> Option<()> {
    let l4 = usize::from(packet.l4);
    let Change { side, to, node_port } = change;
    K::write_address(ctx, packet, side, to)?;
    let (node, remote) = packet.key.ports();
    let (source, destination) = if side == Side::Source { (0, 2) } else { (2, 0) };
    port(ctx, l4, source, remote, to.port)?;
    port(ctx, l4, destination, node, node_port)
}

/// Writes a port at an offset of the TCP header.
#[inline(always)]
fn port(ctx: &TcContext, l4: usize, offset: usize, from: Be16, to: Be16) -> Option<()> {
    if from == to {
        return Some(());
    }
    ctx.l4_csum_replace(l4 + TCP_CHECKSUM, u64::from(from.0), u64::from(to.0), 2).ok()?;
    ctx.store(l4 + offset, &to.0, 0).ok()
}

/// Sends a packet on by another interface or another next hop than the one that was chosen for it: the hop is resolved
/// anew. The mark lets the second pass through egress return at once.
///
/// `bpf_redirect_neigh`: Linux 5.10.
#[inline(always)]
pub fn redirect(ctx: &TcContext, l3: u16, ifindex: u32) -> i32 {
    mark(ctx);
    if !bare::has_head(ctx, l3) {
        failed(ctx);
        return PASS;
    }
    // SAFETY: no parameters are passed, so the helper looks the next hop up by itself.
    unsafe { bpf_redirect_neigh(ifindex, core::ptr::null_mut(), 0, 0) as i32 }
}

/// Marks a packet as one that egress has not to look at.
#[inline(always)]
pub fn mark(ctx: &TcContext) {
    let skb = ctx.as_ptr().cast::<__sk_buff>();
    // SAFETY: the context is a live `__sk_buff`, and its control block is a program's to use.
    let mark = unsafe {
        (*skb).cb[0] = SECOND_PASS_CB;
        (*skb).mark
    };
    ctx.skb.set_mark(mark | SECOND_PASS_MARK);
}

/// A helper refused to rewrite: the packet goes on as it is. Never seen but with broken checksum offloads, so it is worth a
/// line for whoever debugs one.
#[inline(always)]
pub fn failed(ctx: &TcContext) {
    maps::count(Count::NatFailed);
    debug!(ctx, "a packet of {} bytes could not be rewritten", ctx.len());
}
