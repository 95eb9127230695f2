//! Segments that the kernel half writes itself, in the place of the packet in hand: the SYN of a turn-around, the RST for an
//! origin that a rescue left, the RST for a connection that nobody has room for.
//!
//! Checksums are changed by differences, through the helpers: so they are right whether the packet's sum is complete, still
//! to be computed by the device (CHECKSUM_PARTIAL), or known to it already (CHECKSUM_COMPLETE).

use aya_ebpf::{
    EbpfContext,
    bindings::{__sk_buff, BPF_F_INGRESS, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM},
    helpers::generated::{bpf_csum_diff, bpf_redirect, bpf_skb_change_tail, bpf_skb_load_bytes, bpf_skb_store_bytes},
    programs::TcContext,
};
use health_common::{
    flow::{CWR, ECE, HalfOpen, OPTIONS_MAX},
    map::Count,
    net::{Be16, Endpoint, FlowKey},
    track::{ACK, RST, SYN},
};

use crate::{
    egress::{Client, Egress, Hook},
    maps::{self, Family, V4, V6, count},
    nat::{self, Rewrite},
    observe::PASS,
    parse::{ETH_LEN, Packet, TCP_LEN},
};

const WORDS: usize = 25;
/// Words of a TCP header without options.
const TCP_WORDS: usize = TCP_LEN / 4;
/// Longest TCP header.
const TCP_MAX: usize = 60;
/// Hops that a new segment may take (RFC 1700, as most systems do).
const TTL: u8 = 64;

/// Room to build in.
#[repr(C)]
pub struct Build {
    /// The TCP header in hand.
    old: [u32; 15],
    /// The new headers, from IP on.
    new: [u32; WORDS],
    /// What of the pseudo-header changes: address and length, before and after.
    pseudo: [[u32; 5]; 2],
}

/// A segment without payload.
#[derive(Clone, Copy)]
pub struct Segment<'a> {
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub tos: u8,
    /// Options of this attempt.
    pub options: Option<&'a HalfOpen>,
    /// Largest segment that its options may ask for; 0: whatever they say.
    pub mss_max: u32,
}

/// From whom to whom.
#[derive(Clone, Copy)]
pub struct Way<'a> {
    /// The origin's side.
    pub remote: &'a Endpoint,
    pub node_port: Be16,
    /// To the node's side, else from it.
    pub to_node: bool,
}

/// The SYN of an attempt, as it was first sent.
pub fn syn_of(attempt: &HalfOpen, mss_max: u32) -> Segment<'_> {
    let congestion = if attempt.flags & ECE != 0 { 0x40 } else { 0 } | if attempt.flags & CWR != 0 { 0x80 } else { 0 };
    Segment {
        seq: attempt.isn,
        ack: 0,
        flags: SYN | congestion,
        window: attempt.window,
        tos: attempt.tos,
        options: Some(attempt),
        mss_max,
    }
}

/// Writes a segment over the packet in hand, which is TCP without payload, without options of IP, and untagged. False when it
/// isn't, or a helper refuses before anything was changed.
///
/// A function of its own, for the sake of the stack.
#[inline(never)]
pub fn write<K: Rewrite>(ctx: &TcContext, packet: &Packet<K>, way: Way<'_>, segment: Segment<'_>) -> bool {
    let ip_len = if K::IPV6 { 40 } else { 20 };
    // An ICMP error, in whose place the segment comes, has no TCP header.
    if packet.header_len == 0 {
        return write_anew(ctx, packet, way, segment);
    }
    let old_len = usize::from(packet.header_len);
    let l3 = usize::from(packet.l3);
    if l3 > ETH_LEN || usize::from(packet.l4) != l3 + ip_len || packet.segment.len != 0 {
        return false;
    }
    let Some(scratch) = maps::scratch() else { return false };
    let build = &mut scratch.build;
    let Some(old_len) = maps::between_1_and(TCP_MAX, old_len) else { return false };
    // SAFETY: `old` has 60 bytes.
    if unsafe { bpf_skb_load_bytes(ctx.as_ptr(), packet.l4.into(), build.old.as_mut_ptr().cast(), old_len) } != 0 {
        return false;
    }
    let options_len = segment.options.map_or(0, HalfOpen::options_len).min(OPTIONS_MAX);
    let tcp_len = (TCP_LEN + options_len) as u32;
    headers(build, packet, way, &segment, tcp_len);
    // SAFETY: the context is a live `__sk_buff`.
    if unsafe { bpf_skb_change_tail(ctx.as_ptr().cast(), (l3 + ip_len) as u32 + tcp_len, 0) } != 0 {
        return false;
    }
    stored(ctx, build, packet, old_len, tcp_len).is_some()
}

/// The same in the place of a packet that is not TCP, so that the sum is made from nothing. The stack sums ICMP in software,
/// so that no device has to finish it.
#[inline(always)]
fn write_anew<K: Rewrite>(ctx: &TcContext, packet: &Packet<K>, way: Way<'_>, segment: Segment<'_>) -> bool {
    let ip_len = if K::IPV6 { 40 } else { 20 };
    let Some(scratch) = maps::scratch() else { return false };
    let build = &mut scratch.build;
    let l3 = usize::from(packet.l3);
    if l3 > ETH_LEN {
        return false;
    }
    build.old[4] = 0;
    let options_len = segment.options.map_or(0, HalfOpen::options_len).min(OPTIONS_MAX);
    let tcp_len = (TCP_LEN + options_len) as u32;
    headers(build, packet, way, &segment, tcp_len);
    let ip_words = ip_len / 4;
    let Some(sum_len) = maps::between_1_and(TCP_MAX, tcp_len as usize) else { return false };
    let node = packet.key.node();
    let [one, two] = &mut build.pseudo;
    *one = [node.addr.0[0], node.addr.0[1], node.addr.0[2], node.addr.0[3], tcp_len.to_be()];
    two[4] = 6_u32.to_be();
    if !K::IPV6 {
        // Mapped addresses have a word that IPv4 has not.
        (one[2], two[2]) = (0, 0);
    }
    // SAFETY: 15 words from there are within `new`; both halves of the pseudo-header are 20 bytes.
    let sum = unsafe {
        let sum = bpf_csum_diff(core::ptr::null_mut(), 0, build.new.as_mut_ptr().add(ip_words), sum_len, 0);
        let sum = bpf_csum_diff(core::ptr::null_mut(), 0, build.pseudo[0].as_mut_ptr(), 20, sum as u32);
        bpf_csum_diff(core::ptr::null_mut(), 0, build.pseudo[1].as_mut_ptr(), 20, sum as u32) as u32
    };
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    build.new[ip_words + 4] = !sum & 0xffff;
    // SAFETY: the context is a live `__sk_buff`.
    if unsafe { bpf_skb_change_tail(ctx.as_ptr().cast(), (l3 + ip_len) as u32 + tcp_len, 0) } != 0 {
        return false;
    }
    let Some(len) = maps::between_1_and(WORDS * 4, ip_len + tcp_len as usize) else { return false };
    let flags = u64::from(BPF_F_RECOMPUTE_CSUM);
    // SAFETY: `new` has 100 bytes, of which as many are stored.
    unsafe { bpf_skb_store_bytes(ctx.as_ptr().cast(), packet.l3.into(), build.new.as_ptr().cast(), len, flags) == 0 }
}

/// Fills in IP and TCP.
#[inline(always)]
fn headers<K: Rewrite>(build: &mut Build, packet: &Packet<K>, way: Way<'_>, segment: &Segment<'_>, tcp_len: u32) {
    let (node, remote) = (packet.key.node(), way.remote);
    let (from, to) = if way.to_node { (*remote, node) } else { (node, *remote) };
    let (from_port, to_port) = if way.to_node { (remote.port, way.node_port) } else { (way.node_port, remote.port) };
    let new = &mut build.new;
    let tcp = if K::IPV6 {
        new[0] = (6 << 28 | u32::from(segment.tos) << 20).to_be();
        new[1] = (tcp_len << 16 | 6 << 8 | u32::from(TTL)).to_be();
        (new[2], new[3], new[4], new[5]) = (from.addr.0[0], from.addr.0[1], from.addr.0[2], from.addr.0[3]);
        (new[6], new[7], new[8], new[9]) = (to.addr.0[0], to.addr.0[1], to.addr.0[2], to.addr.0[3]);
        10
    } else {
        new[0] = (0x45 << 24 | u32::from(segment.tos) << 16 | (20 + tcp_len)).to_be();
        // Don't fragment: the identification needs no value (RFC 6864 §4.1).
        new[1] = 0x4000_u32.to_be();
        new[2] = (u32::from(TTL) << 24 | 6 << 16).to_be();
        (new[3], new[4]) = (from.addr.low().0, to.addr.low().0);
        // SAFETY: 20 bytes of `new`.
        let sum = unsafe { bpf_csum_diff(core::ptr::null_mut(), 0, new.as_mut_ptr(), 20, 0) } as u32;
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        new[2] |= (!sum & 0xffff) << 16;
        5
    };
    new[tcp] = u32::from(from_port.0) | u32::from(to_port.0) << 16;
    new[tcp + 1] = segment.seq.to_be();
    new[tcp + 2] = segment.ack.to_be();
    new[tcp + 3] = (tcp_len / 4 << 28 | u32::from(segment.flags) << 16 | u32::from(segment.window)).to_be();
    // The sum that is there; what changes is added to it below.
    new[tcp + 4] = build.old[4] & 0xffff;
    if let Some(attempt) = segment.options {
        for i in 0..OPTIONS_MAX / 8 {
            new[tcp + TCP_WORDS + 2 * i] = attempt.options[i] as u32;
            new[tcp + TCP_WORDS + 2 * i + 1] = (attempt.options[i] >> 32) as u32;
        }
        // Kind 2, length 4: systems send it first.
        let mss = u32::from_be(new[tcp + TCP_WORDS]);
        if segment.mss_max != 0 && mss >> 16 == 0x0204 && mss & 0xffff > segment.mss_max {
            new[tcp + TCP_WORDS] = (0x0204 << 16 | segment.mss_max & 0xffff).to_be();
        }
    }
    let old_len = u32::from(packet.header_len);
    let was = packet.key.remote();
    build.pseudo = [
        [was.addr.0[0], was.addr.0[1], was.addr.0[2], was.addr.0[3], old_len.to_be()],
        [remote.addr.0[0], remote.addr.0[1], remote.addr.0[2], remote.addr.0[3], tcp_len.to_be()],
    ];
}

/// Puts the headers into the packet, and the differences into its sum.
#[inline(always)]
fn stored<K: Rewrite>(
    ctx: &TcContext,
    build: &mut Build,
    packet: &Packet<K>,
    old_len: u32,
    tcp_len: u32,
) -> Option<()> {
    let ip_words = if K::IPV6 { 10 } else { 5 };
    let (l3, checksum) = (u32::from(packet.l3), usize::from(packet.l4) + 16);
    let new_len = maps::between_1_and(WORDS * 4, ip_words * 4 + tcp_len as usize)?;
    let tcp_len = maps::between_1_and(TCP_MAX, tcp_len as usize)?;
    // SAFETY: `new` has 100 bytes, of which as many are stored.
    let stored = unsafe {
        bpf_skb_store_bytes(ctx.as_ptr().cast(), l3, build.new.as_ptr().cast(), new_len, BPF_F_RECOMPUTE_CSUM.into())
    };
    if stored != 0 {
        return None;
    }
    let tcp = build.new.as_mut_ptr();
    // SAFETY: 15 words from there are within `new`, as 60 bytes are within `old`.
    let header = unsafe { bpf_csum_diff(build.old.as_mut_ptr(), old_len, tcp.add(ip_words), tcp_len, 0) };
    let [before, after] = &mut build.pseudo;
    // SAFETY: both are 20 bytes.
    let pseudo = unsafe { bpf_csum_diff(before.as_mut_ptr(), 20, after.as_mut_ptr(), 20, 0) };
    ctx.l4_csum_replace(checksum, 0, u64::try_from(header).ok()?, 0).ok()?;
    ctx.l4_csum_replace(checksum, 0, u64::try_from(pseudo).ok()?, BPF_F_PSEUDO_HDR.into()).ok()
}

macro_rules! entry {
    ($family:ident, $hook:ident, $name:ident) => {
        /// Answers the noted SYN in the name of its origin: there is no room for it.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name(ctx: *mut __sk_buff) -> i32 {
            refuse::<$family, $hook>(&TcContext::new(ctx)).unwrap_or(PASS)
        }
    };
}

entry!(V4, Egress, refuse_egress_v4);
entry!(V6, Egress, refuse_egress_v6);
entry!(V4, Client, refuse_client_v4);
entry!(V6, Client, refuse_client_v6);

#[inline(always)]
fn refuse<F: Family, H: Hook>(ctx: &TcContext) -> Option<i32> {
    let packet = &F::noted(maps::scratch()?).packet;
    let (node_port, _) = packet.key.ports();
    let ack = packet.segment.seq.wrapping_add(1);
    let segment = Segment { seq: 0, ack, flags: RST | ACK, window: 0, tos: 0, options: None, mss_max: 0 };
    let way = Way { remote: &packet.key.remote(), node_port, to_node: true };
    if !write(ctx, packet, way, segment) {
        count(Count::NatFailed);
        return None;
    }
    // SAFETY: the context is a live `__sk_buff`.
    let ifindex = unsafe { (*ctx.as_ptr().cast::<__sk_buff>()).ifindex };
    if H::CLIENT {
        return Some(nat::redirect(ctx, packet.l3, ifindex));
    }
    // To this host's own stack: the frame, if there is one, is addressed to whom it came from.
    if packet.l3 != 0 {
        let from: [u8; 6] = ctx.load(6).ok()?;
        ctx.store(0, &from, 0).ok()?;
    }
    // SAFETY: the helper takes numbers.
    Some(unsafe { bpf_redirect(ifindex, BPF_F_INGRESS.into()) } as i32)
}
