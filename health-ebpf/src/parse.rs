//! Ethernet, up to two VLAN tags, IPv4 or IPv6, TCP. Whatever is something else passes, and why is counted.

use core::arch::asm;

use health_common::{
    flow::FIXED,
    map::Count,
    net::{Addr, Be16, Be32, FlowKey4, FlowKey6},
    track::{Segment, Stamps},
};

use crate::context::Context;

mod linear;

pub use linear::is_linear;

pub const ETH_LEN: usize = 14;
const TAG_LEN: usize = 4;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
pub const TCP_LEN: usize = 20;
pub const ETHERTYPE_IPV4: u16 = 0x0800;
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// IEEE 802.1Q, and 802.1ad for the outer one of two.
const ETHERTYPE_TAG: [u16; 2] = [0x8100, 0x88a8];
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_ICMPV6: u8 = 58;
/// More fragments, or an offset (RFC 791 §3.1).
const FRAGMENT: u16 = 0x3fff;
/// Ethernet with two tags, IPv6, as many extension headers as are looked through, TCP. Unit: bytes.
const HEADERS_MAX: u32 = 254;
/// IPv6 extension headers that are looked through before TCP.
pub const EXTENSIONS_MAX: usize = 4;
/// No operation twice, then timestamps of 10 bytes: how they are laid out by RFC 7323 appendix A, in network byte order.
const STAMPS: u32 = 0x0101_080a_u32.to_be();

/// Which side of the packet is the node's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The source.
    Out,
    /// The destination.
    In,
}

/// A TCP packet.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Packet<K> {
    /// The node's side first.
    pub key: K,
    pub segment: Segment,
    /// Offset of the IP header.
    pub l3: u16,
    /// Offset of the TCP header.
    pub l4: u16,
    /// Length of the TCP header. Unit: bytes.
    pub header_len: u16,
    /// [`FIXED`]: its addresses can't be changed.
    pub flags: u16,
    /// Checksum of the IPv4 header, as it stands there.
    pub check: u16,
    /// Type of service or traffic class.
    pub tos: u8,
}

/// Why a packet isn't looked at.
#[derive(Clone, Copy)]
pub enum Unread {
    /// Not TCP: nothing of ours.
    Other,
    /// ICMP or ICMPv6: it may quote a packet of ours.
    Icmp,
    /// Not understood.
    Skipped(Count),
}

/// Network protocol of a packet, and where its header begins.
pub enum Network {
    V4(usize),
    V6(usize),
    Unread(Unread),
}

/// The address of `len` bytes at an offset, within bounds.
#[inline(always)]
fn bytes<C: Context>(ctx: &C, offset: usize, len: usize) -> Option<usize> {
    let start = ctx.start() + offset;
    if start + len > ctx.end() { None } else { Some(start) }
}

/// A number that can be loaded from a packet, where nothing is aligned.
trait Word: Sized {
    /// # Safety
    ///
    /// The bytes are the packet's, and their bounds were checked.
    unsafe fn load(at: usize) -> Self;
}

impl Word for u8 {
    #[inline(always)]
    unsafe fn load(at: usize) -> Self {
        // SAFETY: as the caller says.
        unsafe { (at as *const u8).read() }
    }
}

macro_rules! in_one {
    ($type:ty, $load:literal) => {
        impl Word for $type {
            #[inline(always)]
            unsafe fn load(at: usize) -> Self {
                let word: u64;
                // The compiler would compose the number of single bytes: ten instructions for one. The kernel takes loads that
                // are not aligned where the machine does.
                // SAFETY: as the caller says.
                unsafe { asm!($load, word = out(reg) word, at = in(reg) at, options(readonly, nostack)) };
                word as $type
            }
        }
    };
}

in_one!(u16, "{word} = *(u16 *)({at} + 0)");
in_one!(u32, "{word} = *(u32 *)({at} + 0)");

impl Word for Addr {
    #[inline(always)]
    unsafe fn load(at: usize) -> Self {
        // By single bytes, in spite of the above: words in registers would need more of the stack than is left.
        // SAFETY: as the caller says.
        unsafe { (at as *const Self).read_unaligned() }
    }
}

/// A word of a header whose bounds were checked.
#[inline(always)]
fn word<T: Word>(start: usize, offset: usize) -> T {
    // SAFETY: callers have the bytes from `bytes`, which proves the bounds to the verifier too.
    unsafe { T::load(start + offset) }
}

/// Which protocol follows Ethernet and its tags. Afterwards all headers that matter lie in the linear part, if they are
/// there at all.
#[inline(always)]
pub fn network<C: Context>(ctx: &C) -> Network {
    if !is_linear(ctx, ETH_LEN) {
        return Network::Unread(SHORT);
    }
    let Some(start) = bytes(ctx, 0, ETH_LEN) else { return Network::Unread(SHORT) };
    let ethertype = u16::from_be(word(start, 12));
    match ethertype {
        ETHERTYPE_IPV4 => Network::V4(ETH_LEN),
        ETHERTYPE_IPV6 => Network::V6(ETH_LEN),
        _ if ETHERTYPE_TAG.contains(&ethertype) => tagged(ctx),
        _ => Network::Unread(Unread::Skipped(Count::SkippedLink)),
    }
}

#[inline(always)]
fn tagged<C: Context>(ctx: &C) -> Network {
    let mut l3 = ETH_LEN;
    for _ in 0..2 {
        l3 += TAG_LEN;
        let Some(start) = bytes(ctx, l3 - 2, 2) else { return Network::Unread(SHORT) };
        let ethertype = u16::from_be(word(start, 0));
        match ethertype {
            ETHERTYPE_IPV4 => return Network::V4(l3),
            ETHERTYPE_IPV6 => return Network::V6(l3),
            _ if ETHERTYPE_TAG.contains(&ethertype) => {}
            _ => return Network::Unread(Unread::Skipped(Count::SkippedLink)),
        }
    }
    Network::Unread(Unread::Skipped(Count::SkippedVlan))
}

pub const SHORT: Unread = Unread::Skipped(Count::SkippedShort);

/// A tag in the frame would go along to another interface, whose network it does not belong to. Where the device sets it, it
/// is not in the frame.
#[inline(always)]
fn tagged_out(l3: usize, direction: Direction) -> u16 {
    if l3 > ETH_LEN && direction == Direction::Out { FIXED } else { 0 }
}

/// Reads TCP over IPv4.
#[inline(always)]
pub fn v4<C: Context>(ctx: &C, l3: usize, direction: Direction) -> Result<Packet<FlowKey4>, Unread> {
    let start = bytes(ctx, l3, IPV4_LEN).ok_or(SHORT)?;
    let protocol = word::<u8>(start, 9);
    if u16::from_be(word(start, 6)) & FRAGMENT != 0 {
        return Err(if protocol == PROTOCOL_TCP { Unread::Skipped(Count::SkippedFragment) } else { Unread::Other });
    }
    if protocol != PROTOCOL_TCP && protocol != PROTOCOL_ICMP {
        return Err(Unread::Other);
    }
    // Version 4 in the upper half, at least five words in the lower.
    let words = usize::from(word::<u8>(start, 0)) ^ 0x40;
    if !(IPV4_LEN / 4..=0xf).contains(&words) {
        return Err(SHORT);
    }
    if protocol == PROTOCOL_ICMP {
        return Err(Unread::Icmp);
    }
    let header_len = words * 4;
    let total = u32::from(u16::from_be(word(start, 2)));
    let (from, to, tos) = (Be32(word(start, 12)), Be32(word(start, 16)), word::<u8>(start, 1));
    let check = word(start, 10);
    let l4 = l3 + header_len;
    let l4_len = within(ctx, total, l3).and_then(|l3_len| l3_len.checked_sub(header_len as u32)).ok_or(SHORT)?;
    let (segment, source, destination, tcp_len) = tcp(ctx, l4, l4_len).ok_or(SHORT)?;
    let key = match direction {
        Direction::Out => FlowKey4 { node: from, remote: to, node_port: source, remote_port: destination },
        Direction::In => FlowKey4 { node: to, remote: from, node_port: destination, remote_port: source },
    };
    // Options of IPv4 may name addresses (RFC 791 §3.1).
    let flags = if header_len > IPV4_LEN { FIXED } else { tagged_out(l3, direction) };
    Ok(Packet { key, segment, l3: l3 as u16, l4: l4 as u16, header_len: tcp_len, flags, check, tos })
}

/// Reads TCP over IPv6.
#[inline(always)]
pub fn v6<C: Context>(ctx: &C, l3: usize, direction: Direction) -> Result<Packet<FlowKey6>, Unread> {
    let start = bytes(ctx, l3, IPV6_LEN).ok_or(SHORT)?;
    if word::<u8>(start, 0) >> 4 != 6 {
        return Err(SHORT);
    }
    let (mut l4, mut flags) = (l3 + IPV6_LEN, tagged_out(l3, direction));
    match word::<u8>(start, 6) {
        PROTOCOL_TCP => {}
        PROTOCOL_ICMPV6 => return Err(Unread::Icmp),
        next if is_extension(next) => {
            let found = extensions(ctx, l3 + IPV6_LEN, next);
            match found & 0xff {
                FOUND => {}
                FOUND_FIXED => flags = FIXED,
                FOUND_ICMP => return Err(Unread::Icmp),
                FOUND_FRAGMENT => return Err(Unread::Skipped(Count::SkippedFragment)),
                FOUND_DEEP => return Err(Unread::Skipped(Count::SkippedExtension)),
                FOUND_SHORT => return Err(SHORT),
                _ => return Err(Unread::Other),
            }
            l4 = (found >> 8) as usize & 0x3ff;
        }
        _ => return Err(Unread::Other),
    }
    // Anew, for looking through the extensions may have moved the packet.
    let start = bytes(ctx, l3, IPV6_LEN).ok_or(SHORT)?;
    let payload = u32::from(u16::from_be(word(start, 4)));
    let (from, to) = (word(start, 8), word(start, 24));
    let tos = (u16::from_be(word(start, 0)) >> 4) as u8;
    let l4_len = within(ctx, payload, l3 + IPV6_LEN)
        .and_then(|len| len.checked_sub((l4 - l3 - IPV6_LEN) as u32))
        .ok_or(SHORT)?;
    let (segment, source, destination, tcp_len) = tcp(ctx, l4, l4_len).ok_or(SHORT)?;
    let key = match direction {
        Direction::Out => FlowKey6 { node: from, remote: to, node_port: source, remote_port: destination },
        Direction::In => FlowKey6 { node: to, remote: from, node_port: destination, remote_port: source },
    };
    Ok(Packet { key, segment, l3: l3 as u16, l4: l4 as u16, header_len: tcp_len, flags, check: 0, tos })
}

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENTED: u8 = 44;
const AUTHENTICATED: u8 = 51;
const DESTINATION: u8 = 60;

/// What [`extensions`] found, in the low byte of its answer; the offset of TCP above.
const FOUND: u32 = 0;
const FOUND_FIXED: u32 = 1;
const FOUND_ICMP: u32 = 2;
const FOUND_FRAGMENT: u32 = 3;
const FOUND_DEEP: u32 = 4;
const FOUND_SHORT: u32 = 5;
const FOUND_OTHER: u32 = 6;

/// Looks through extension headers (RFC 8200 §4): at most [`EXTENSIONS_MAX`]. A function of its own, because hardly any packet
/// has one.
#[inline(never)]
fn extensions<C: Context>(ctx: &C, mut at: usize, mut next: u8) -> u32 {
    let wanted = ctx.length_anew().min(HEADERS_MAX);
    if ctx.start_anew() + wanted as usize > ctx.end_anew() && !ctx.pull(wanted) {
        return FOUND_SHORT;
    }
    let mut found = FOUND;
    for _ in 0..EXTENSIONS_MAX {
        // What follows the last of them needs no room for one.
        if !is_extension(next) {
            return FOUND_OTHER;
        }
        if at > HEADERS_MAX as usize {
            return FOUND_DEEP;
        }
        let start = ctx.start_anew() + at;
        if start + 8 > ctx.end_anew() {
            return FOUND_SHORT;
        }
        let (then, len) = (word::<u8>(start, 0), usize::from(word::<u8>(start, 1)));
        match next {
            HOP_BY_HOP | DESTINATION => at += (len + 1) * 8,
            // The destination may be a stop on the way (RFC 8200 §4.4).
            ROUTING => {
                if word::<u8>(start, 3) != 0 {
                    return FOUND_OTHER;
                }
                found = FOUND_FIXED;
                at += (len + 1) * 8;
            }
            // It covers the addresses (RFC 4302 §3.3.3.1).
            AUTHENTICATED => {
                found = FOUND_FIXED;
                at += (len + 2) * 4;
            }
            // Whole in one fragment (RFC 6946), or not at all.
            FRAGMENTED => {
                if u16::from_be(word(start, 2)) & 0xfff9 != 0 {
                    return FOUND_FRAGMENT;
                }
                found = FOUND_FIXED;
                at += 8;
            }
            _ => return FOUND_OTHER,
        }
        next = then;
        if next == PROTOCOL_TCP {
            return if at > HEADERS_MAX as usize { FOUND_DEEP } else { found | (at as u32) << 8 };
        }
        if next == PROTOCOL_ICMPV6 {
            return FOUND_ICMP;
        }
    }
    if is_extension(next) { FOUND_DEEP } else { FOUND_OTHER }
}

#[inline(always)]
fn is_extension(number: u8) -> bool {
    matches!(number, HOP_BY_HOP | ROUTING | FRAGMENTED | AUTHENTICATED | DESTINATION)
}

/// A header's claim of what follows `offset`, if the packet has as much.
#[inline(always)]
fn within<C: Context>(ctx: &C, claimed: u32, offset: usize) -> Option<u32> {
    let there = ctx.length().wrapping_sub(offset as u32);
    // Larger than 64 KiB (BIG TCP): the field is 0, and there is no padding to mistake for payload.
    let len = if claimed == 0 { there } else { claimed };
    (len <= there).then_some(len)
}

#[inline(always)]
fn tcp<C: Context>(ctx: &C, l4: usize, l4_len: u32) -> Option<(Segment, Be16, Be16, u16)> {
    let start = bytes(ctx, l4, TCP_LEN)?;
    let header_len = u32::from(word::<u8>(start, 12) >> 4) * 4;
    if header_len < TCP_LEN as u32 || header_len > l4_len {
        return None;
    }
    let segment = Segment {
        seq: u32::from_be(word(start, 4)),
        ack: u32::from_be(word(start, 8)),
        len: l4_len - header_len,
        flags: word(start, 13),
        window: u16::from_be(word(start, 14)),
        stamps: if header_len >= TCP_LEN as u32 + 12 { stamps(ctx, l4) } else { Stamps::default() },
    };
    Some((segment, Be16(word(start, 0)), Be16(word(start, 2)), header_len as u16))
}

#[inline(always)]
fn stamps<C: Context>(ctx: &C, l4: usize) -> Stamps {
    match bytes(ctx, l4, TCP_LEN + 12) {
        Some(start) if word::<u32>(start, TCP_LEN) == STAMPS => {
            Stamps { value: u32::from_be(word(start, TCP_LEN + 4)), echo: u32::from_be(word(start, TCP_LEN + 8)) }
        }
        _ => Stamps::default(),
    }
}
