//! Ethernet, IPv4 or IPv6, TCP. Whatever is something else passes, and why is counted.

use aya_ebpf::programs::TcContext;
use health_common::{
    map::Count,
    net::{Addr, Be16, Be32, FlowKey4, FlowKey6},
    track::Segment,
};

pub const ETH_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const TCP_LEN: usize = 20;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_TCP: u8 = 6;
/// More fragments, or an offset (RFC 791 §3.1).
const FRAGMENT: u16 = 0x3fff;
/// Headers that a packet may need in its linear part: Ethernet, IPv4 with options, TCP.
const HEADERS: u32 = 94;

/// Which side of the packet is the node's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The source.
    Egress,
    /// The destination.
    Ingress,
}

/// A TCP packet.
pub struct Packet<K> {
    /// The node's side first.
    pub key: K,
    pub segment: Segment,
    /// Offset of the TCP header.
    pub l4: usize,
}

/// Why a packet isn't looked at.
pub enum Unread {
    /// Not TCP: nothing of ours.
    Other,
    /// Not understood.
    Skipped(Count),
}

/// Network protocol of a packet.
pub enum Network {
    V4,
    V6,
    Other,
}

/// A read at an offset, within bounds.
#[inline(always)]
fn at<T: Copy>(data: usize, end: usize, offset: usize) -> Option<T> {
    let start = data + offset;
    if start + size_of::<T>() > end {
        return None;
    }
    // SAFETY: the bytes lie between `data` and `data_end`, which the line above proves to the verifier too.
    Some(unsafe { (start as *const T).read_unaligned() })
}

/// Which protocol follows Ethernet. Afterwards all headers that matter lie in the linear part, if they are there at all.
#[inline(always)]
pub fn network(ctx: &TcContext) -> Network {
    let wanted = ctx.len().min(HEADERS);
    // A packet that can't be pulled is short, which the reads will find.
    if ctx.data() + wanted as usize > ctx.data_end() && ctx.pull_data(wanted).is_err() {
        return Network::Other;
    }
    match at::<u16>(ctx.data(), ctx.data_end(), 12).map(u16::from_be) {
        Some(ETHERTYPE_IPV4) => Network::V4,
        Some(ETHERTYPE_IPV6) => Network::V6,
        _ => Network::Other,
    }
}

const SHORT: Unread = Unread::Skipped(Count::SkippedShort);

/// Reads TCP over IPv4.
#[inline(always)]
pub fn v4(ctx: &TcContext, direction: Direction) -> Result<Packet<FlowKey4>, Unread> {
    let (data, end) = (ctx.data(), ctx.data_end());
    let header: [u8; IPV4_LEN] = at(data, end, ETH_LEN).ok_or(SHORT)?;
    if header[9] != PROTOCOL_TCP {
        return Err(Unread::Other);
    }
    if u16::from_be_bytes([header[6], header[7]]) & FRAGMENT != 0 {
        return Err(Unread::Skipped(Count::SkippedFragment));
    }
    let header_len = usize::from(header[0] & 0xf) * 4;
    if header_len < IPV4_LEN {
        return Err(SHORT);
    }
    let l4 = ETH_LEN + header_len;
    let total = u32::from(u16::from_be_bytes([header[2], header[3]]));
    let l4_len = within(ctx, total, ETH_LEN).and_then(|l3_len| l3_len.checked_sub(header_len as u32)).ok_or(SHORT)?;
    let (segment, source, destination) = tcp(data, end, l4, l4_len).ok_or(SHORT)?;
    let from = Be32(u32::from_ne_bytes([header[12], header[13], header[14], header[15]]));
    let to = Be32(u32::from_ne_bytes([header[16], header[17], header[18], header[19]]));
    let key = match direction {
        Direction::Egress => FlowKey4 { node: from, remote: to, node_port: source, remote_port: destination },
        Direction::Ingress => FlowKey4 { node: to, remote: from, node_port: destination, remote_port: source },
    };
    Ok(Packet { key, segment, l4 })
}

/// Reads TCP over IPv6.
#[inline(always)]
pub fn v6(ctx: &TcContext, direction: Direction) -> Result<Packet<FlowKey6>, Unread> {
    let (data, end) = (ctx.data(), ctx.data_end());
    let payload = u32::from(u16::from_be(at::<u16>(data, end, ETH_LEN + 4).ok_or(SHORT)?));
    match at::<u8>(data, end, ETH_LEN + 6).ok_or(SHORT)? {
        PROTOCOL_TCP => {}
        // Hop-by-hop, routing, authentication, destination options.
        0 | 43 | 51 | 60 => return Err(Unread::Skipped(Count::SkippedExtension)),
        44 => return Err(Unread::Skipped(Count::SkippedFragment)),
        _ => return Err(Unread::Other),
    }
    let from = Addr(at(data, end, ETH_LEN + 8).ok_or(SHORT)?);
    let to = Addr(at(data, end, ETH_LEN + 24).ok_or(SHORT)?);
    let l4 = ETH_LEN + IPV6_LEN;
    let l4_len = within(ctx, payload, l4).ok_or(SHORT)?;
    let (segment, source, destination) = tcp(data, end, l4, l4_len).ok_or(SHORT)?;
    let key = match direction {
        Direction::Egress => FlowKey6 { node: from, remote: to, node_port: source, remote_port: destination },
        Direction::Ingress => FlowKey6 { node: to, remote: from, node_port: destination, remote_port: source },
    };
    Ok(Packet { key, segment, l4 })
}

/// A header's claim of what follows `offset`, if the packet has as much.
#[inline(always)]
fn within(ctx: &TcContext, claimed: u32, offset: usize) -> Option<u32> {
    let there = ctx.len().wrapping_sub(offset as u32);
    // Larger than 64 KiB (BIG TCP): the field is 0, and there is no padding to mistake for payload.
    let len = if claimed == 0 { there } else { claimed };
    (len <= there).then_some(len)
}

#[inline(always)]
fn tcp(data: usize, end: usize, l4: usize, l4_len: u32) -> Option<(Segment, Be16, Be16)> {
    let header: [u8; TCP_LEN] = at(data, end, l4)?;
    let header_len = u32::from(header[12] >> 4) * 4;
    if header_len < TCP_LEN as u32 || header_len > l4_len {
        return None;
    }
    let word = |i: usize| u32::from_be_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]);
    let segment = Segment { seq: word(4), ack: word(8), len: l4_len - header_len, flags: header[13], window: 0, stamps: None };
    let port = |i: usize| Be16(u16::from_ne_bytes([header[i], header[i + 1]]));
    Some((segment, port(0), port(2)))
}
