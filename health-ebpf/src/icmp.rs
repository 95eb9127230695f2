//! ICMP errors that quote a packet of ours (RFC 792, RFC 4443): evidence, and, of redirected flows, translated both ways with
//! the header that they quote.
//!
//! Only eight bytes of TCP are sure to be quoted (RFC 792; RFC 1812 §4.3.2.3 wants more): the ports and the sequence number.

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM, xdp_md},
    helpers::generated::bpf_csum_diff,
    programs::{TcContext, XdpContext},
};
use health_common::{
    flow::{ANSWERED, MOVED, Moved, REFUSED, TRIAL},
    map::Count,
    net::{Addr, Be16, Be32, Endpoint, FlowKey, FlowKey4, FlowKey6},
    track::after,
};

use crate::{
    answer::{refusal, unreached},
    context::{Behind, Context, Tc, Xdp},
    egress::{Client, Egress, Hook},
    maps::{self, Family, V4, V6, count},
    nat::{self, Rewrite, Side},
    observe::{ERROR_NOTED, PASS},
    signals::unreachable_flow,
};

const TCP: u8 = 6;
/// Length of an error's own header, in both versions.
const ERROR_LEN: u32 = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;

/// What an error says about the SYN that it quotes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Says {
    /// Somebody is there, and does not want it: port unreachable, administratively prohibited.
    Refused,
    /// Nobody is there: host or network unreachable.
    Unreachable,
    /// Something else, as "packet too big": to be translated, no evidence.
    Other,
}

/// Room for what is read. In the scratch room.
#[repr(C)]
pub struct Quote {
    /// The error's header, and the quoted IP header.
    head: [u8; ERROR_LEN as usize + IPV6_LEN],
    /// Ports and sequence number.
    tcp: [u8; 8],
}

/// A packet that is quoted.
#[derive(Clone, Copy)]
struct Quoted<K> {
    /// The side that sent it, then the other: the node's side first, if an origin's network complains.
    sender_first: K,
    says: Says,
    /// Offset of the error.
    error: u32,
    /// Offset of the quoted TCP header.
    tcp: u32,
}

/// The families' ways to read an error.
pub trait Errors: Family {
    /// Length of the IP header, at the offset given, of the packet itself; 0 for what is not looked at.
    fn header_len<C: Context>(ctx: &C, l3: u32) -> u32;
    fn says(kind: u8, code: u8) -> u32;
    /// Four-tuple of the quoted header, sender first, and its length; 0 when it isn't TCP.
    fn tuple(quote: &Quote) -> (Self::Key, u32);
    /// Bytes of the quoted header that are always there.
    const IP_LEN: u32;
    /// Offset of the sender's address in it, and of the other one.
    const ADDRESSES: (u32, u32);
}

const REFUSED_BY: u32 = 1;
const NOBODY: u32 = 2;
const OTHER: u32 = 3;

impl Errors for V4 {
    const IP_LEN: u32 = IPV4_LEN as u32;
    const ADDRESSES: (u32, u32) = (12, 16);

    #[inline(always)]
    fn header_len<C: Context>(ctx: &C, l3: u32) -> u32 {
        let mut first = [0u8; 1];
        if ctx.load(l3, first.as_mut_ptr(), 1) { u32::from(first[0] & 0xf) * 4 } else { 0 }
    }

    /// RFC 792, RFC 1812 §5.2.7.1.
    #[inline(always)]
    fn says(kind: u8, code: u8) -> u32 {
        match (kind, code) {
            (3, 3 | 9 | 10 | 13) => REFUSED_BY,
            (3, 0 | 1 | 5..=8 | 11 | 12) => NOBODY,
            (3 | 11 | 12, _) => OTHER,
            _ => 0,
        }
    }

    #[inline(always)]
    fn tuple(quote: &Quote) -> (FlowKey4, u32) {
        let ip = &quote.head[ERROR_LEN as usize..];
        let word = |i: usize| u32::from_ne_bytes([ip[i], ip[i + 1], ip[i + 2], ip[i + 3]]);
        let port = |i: usize| Be16(u16::from_ne_bytes([quote.tcp[i], quote.tcp[i + 1]]));
        let key = FlowKey4 { node: Be32(word(12)), remote: Be32(word(16)), node_port: port(0), remote_port: port(2) };
        let len = u32::from(ip[0] & 0xf) * 4;
        (key, if ip[9] == TCP && len >= Self::IP_LEN { len } else { 0 })
    }
}

impl Errors for V6 {
    const IP_LEN: u32 = IPV6_LEN as u32;
    const ADDRESSES: (u32, u32) = (8, 24);

    #[inline(always)]
    fn header_len<C: Context>(_ctx: &C, _l3: u32) -> u32 {
        IPV6_LEN as u32
    }

    /// RFC 4443 §3.
    #[inline(always)]
    fn says(kind: u8, code: u8) -> u32 {
        match (kind, code) {
            (1, 1 | 4..=6) => REFUSED_BY,
            (1, _) => NOBODY,
            (2..=4, _) => OTHER,
            _ => 0,
        }
    }

    #[inline(always)]
    fn tuple(quote: &Quote) -> (FlowKey6, u32) {
        let ip = &quote.head[ERROR_LEN as usize..];
        let word = |i: usize| u32::from_ne_bytes([ip[i], ip[i + 1], ip[i + 2], ip[i + 3]]);
        let port = |i: usize| Be16(u16::from_ne_bytes([quote.tcp[i], quote.tcp[i + 1]]));
        let address = |i: usize| Addr([word(i), word(i + 4), word(i + 8), word(i + 12)]);
        let key = FlowKey6 { node: address(8), remote: address(24), node_port: port(0), remote_port: port(2) };
        (key, if ip[6] == TCP { Self::IP_LEN } else { 0 })
    }
}

/// Reads an error. `None` for whatever is none, or quotes no TCP.
#[inline(always)]
fn read<F: Errors, C: Context>(ctx: &C, l3: u32) -> Option<Quoted<F::Key>> {
    let len = F::header_len(ctx, l3);
    if len < F::IP_LEN {
        return None;
    }
    let quote = &mut maps::scratch()?.quote;
    let error = l3 + len;
    if !ctx.load(error, quote.head.as_mut_ptr(), ERROR_LEN + F::IP_LEN) {
        return None;
    }
    let says = match F::says(quote.head[0], quote.head[1]) {
        REFUSED_BY => Says::Refused,
        NOBODY => Says::Unreachable,
        OTHER => Says::Other,
        _ => return None,
    };
    let (_, quoted_len) = F::tuple(quote);
    let tcp = error + ERROR_LEN + quoted_len;
    if quoted_len == 0 || !ctx.load(tcp, quote.tcp.as_mut_ptr(), 8) {
        return None;
    }
    let (sender_first, _) = F::tuple(quote);
    Some(Quoted { sender_first, says, error, tcp })
}

/// The sequence number of the packet that was quoted last. Left in the scratch room, for the stack has none for it on Linux
/// before 6.8.
#[inline(always)]
fn quoted_seq() -> Option<u32> {
    let tcp = &maps::scratch()?.quote.tcp;
    Some(u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]))
}

/// An error from the origins' side, about a packet of the node's.
#[inline(always)]
fn inbound<F: Errors, C: Context>(ctx: &C, l3: u32) -> Option<i32> {
    let quoted = read::<F, C>(ctx, l3)?;
    let wire = quoted.sender_first;
    maps::endpoint(&wire.remote())?;
    let back = F::moved_back().get_ptr(wire);
    // SAFETY: the map is preallocated.
    let back: Option<&Moved> = back.map(|back| unsafe { &*back });
    let scratch = maps::scratch()?;
    let noted = F::noted(scratch);
    noted.primary = back.map_or(wire, |back| wire.with_remote(&back.to).with_node_port(back.node_port));
    let primary = &noted.primary;
    if let Some(attempt) = F::half_open().get_ptr_mut(primary) {
        // SAFETY: LRU values are recycled, not freed, while a program runs.
        let attempt = unsafe { &mut *attempt };
        // An answered SYN is no longer on its way.
        if attempt.isn != quoted_seq()? || attempt.flags & ANSWERED != 0 {
            forged::<C>();
        } else if matches!(quoted.says, Says::Refused | Says::Unreachable)
            && (attempt.flags & MOVED == 0 || back.is_some())
        {
            if C::OBSERVES {
                let who = u32::from(attempt.client) | u32::from(attempt.flags & TRIAL) << 8;
                let now = maps::now();
                match quoted.says {
                    Says::Refused => refusal(attempt.origin, attempt.syn_ns, now, who),
                    _ => unreached(attempt.origin, attempt.syn_ns, now, who),
                };
            }
            if !C::REWRITES {
                attempt.flags |= REFUSED;
                return None;
            }
            noted.packet.key = wire;
            noted.packet.l3 = l3 as u16;
            noted.packet.l4 = (l3 + F::IP_LEN) as u16;
            (noted.packet.header_len, noted.packet.segment.len) = (0, 0);
            return Some(ERROR_NOTED);
        }
    } else if let Some(flow) = F::flows().get_ptr(primary) {
        // SAFETY: as above.
        let flow = unsafe { &*flow };
        let seq = quoted_seq()?;
        let in_flight = !after(flow.origin_ack, seq) && after(flow.node_next, seq);
        if !in_flight {
            forged::<C>();
        } else if C::OBSERVES && quoted.says == Says::Unreachable {
            unreachable_flow(flow.origin, u32::from(flow.client));
        }
    }
    let tc = ctx.tc()?;
    let back = back?;
    let change = Translation { side: Side::Source, to: &back.to, node_port: back.node_port };
    translate::<F>(tc, l3, &quoted, change);
    None
}

#[inline(always)]
fn forged<C: Context>() {
    if C::OBSERVES {
        count(Count::IcmpForged);
    }
}

/// An error of the node's side, about a packet of an origin as the node's side knows it.
#[inline(always)]
fn outbound<F: Errors, H: Hook>(ctx: &TcContext, l3: u32) -> Option<i32> {
    let quoted = read::<F, Tc>(&Tc(TcContext::new(ctx.skb.skb)), l3)?;
    let primary = quoted.sender_first.turned();
    maps::endpoint(&primary.remote())?;
    // SAFETY: the map is preallocated.
    let out = unsafe { &*F::moved_out().get_ptr(primary)? };
    let change = Translation { side: Side::Destination, to: &out.to, node_port: out.node_port };
    if !translate::<F>(ctx, l3, &quoted, change) || H::CLIENT {
        return None;
    }
    Some(nat::redirect(ctx, l3 as u16, out.ifindex))
}

/// What the origin's side and the node's port become.
#[derive(Clone, Copy)]
struct Translation<'a> {
    /// The origin's side of the error itself.
    side: Side,
    to: &'a Endpoint,
    node_port: Be16,
}

/// Writes another origin's side into an error: outside, if the origin itself is there, and into what is quoted. Whether the
/// outside was changed.
#[inline(always)]
fn translate<F: Errors>(ctx: &TcContext, l3: u32, quoted: &Quoted<F::Key>, change: Translation<'_>) -> bool {
    count(Count::IcmpTranslated);
    let Quoted { sender_first, error, tcp, .. } = *quoted;
    // The quoted packet goes the other way than the error does.
    let outward = change.side == Side::Source;
    let key = if outward { sender_first } else { sender_first.turned() };
    let (from, to) = (key.remote(), change.to);
    let (sender, other) = F::ADDRESSES;
    let inner = error + ERROR_LEN + if outward { other } else { sender };
    let outer = l3 + if outward { sender } else { other };
    let (node_port, remote_port) = if outward { (tcp, tcp + 2) } else { (tcp + 2, tcp) };
    let sum = (error + 2) as usize;
    port(ctx, sum, remote_port, from.port, to.port);
    port(ctx, sum, node_port, key.ports().0, change.node_port);
    if F::Key::IPV6 {
        let difference = difference(&from.addr, &to.addr);
        // SAFETY, here and below: the helpers check the offsets.
        let _stored = ctx.l4_csum_replace(sum, 0, difference, 0);
        let _stored = ctx.store(inner as usize, &to.addr.0, 0);
        let Ok(is) = ctx.load::<[u32; 4]>(outer as usize) else { return false };
        if is != from.addr.0 {
            return false;
        }
        let _stored = ctx.l4_csum_replace(sum, 0, difference, BPF_F_PSEUDO_HDR.into());
        return ctx.store(outer as usize, &to.addr.0, BPF_F_RECOMPUTE_CSUM.into()).is_ok();
    }
    let (was, becomes) = (from.addr.low().0, to.addr.low().0);
    // The quoted header's own sum takes the change back, so that the error's sum stays as it is.
    let _stored = ctx.l3_csum_replace((error + ERROR_LEN + 10) as usize, was.into(), becomes.into(), 4);
    let _stored = ctx.store(inner as usize, &becomes, 0);
    let Ok(is) = ctx.load::<u32>(outer as usize) else { return false };
    if is != was {
        return false;
    }
    let _stored = ctx.l3_csum_replace((l3 + 10) as usize, was.into(), becomes.into(), 4);
    ctx.store(outer as usize, &becomes, 0).is_ok()
}

#[inline(always)]
fn port(ctx: &TcContext, sum: usize, at: u32, from: Be16, to: Be16) {
    if from != to {
        let _stored = ctx.l4_csum_replace(sum, from.0.into(), to.0.into(), 2);
        let _stored = ctx.store(at as usize, &to.0, 0);
    }
}

#[inline(always)]
fn difference(from: &Addr, to: &Addr) -> u64 {
    let (mut from, mut to) = (from.0, to.0);
    // SAFETY: both are 16 bytes on the stack.
    let difference = unsafe { bpf_csum_diff(from.as_mut_ptr(), 16, to.as_mut_ptr(), 16, 0) };
    u64::try_from(difference).unwrap_or(0)
}

macro_rules! entry {
    ($name:ident, $context:ident, $raw:ident, $kernel:ident, $family:ident) => {
        /// What becomes of an ICMP packet from the origins' side.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name(raw: *mut $raw, l3: u32) -> i32 {
            inbound::<$family, $context>(&$context($kernel::new(raw)), l3 & 31).unwrap_or(PASS)
        }
    };
    ($name:ident, $hook:ident, $family:ident) => {
        /// What becomes of an ICMP packet of the node's side.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name(raw: *mut __sk_buff, l3: u32) -> i32 {
            outbound::<$family, $hook>(&TcContext::new(raw), l3 & 31).unwrap_or(PASS)
        }
    };
}

entry!(error_v4, Tc, __sk_buff, TcContext, V4);
entry!(error_v6, Tc, __sk_buff, TcContext, V6);
entry!(error_behind_v4, Behind, __sk_buff, TcContext, V4);
entry!(error_behind_v6, Behind, __sk_buff, TcContext, V6);
entry!(error_xdp_v4, Xdp, xdp_md, XdpContext, V4);
entry!(error_xdp_v6, Xdp, xdp_md, XdpContext, V6);
entry!(error_egress_v4, Egress, V4);
entry!(error_egress_v6, Egress, V6);
entry!(error_client_v4, Client, V4);
entry!(error_client_v6, Client, V6);
