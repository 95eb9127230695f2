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

pub enum Parsed {
    V4(Packet<FlowKey4>),
    V6(Packet<FlowKey6>),
    /// Not TCP: nothing of ours.
    Other,
    /// Not understood.
    Skipped(Count),
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

#[inline(always)]
pub fn parse(ctx: &TcContext, direction: Direction) -> Parsed {
    if let Some(parsed) = try_parse(ctx, direction) {
        return parsed;
    }
    // The headers may lie outside the linear part. Pulling fails for packets that are really short.
    if ctx.pull_data(HEADERS.min(ctx.len())).is_err() {
        return Parsed::Skipped(Count::SkippedShort);
    }
    try_parse(ctx, direction).unwrap_or(Parsed::Skipped(Count::SkippedShort))
}

#[inline(always)]
fn try_parse(ctx: &TcContext, direction: Direction) -> Option<Parsed> {
    let (data, end) = (ctx.data(), ctx.data_end());
    let ethertype = u16::from_be(at::<u16>(data, end, 12)?);
    match ethertype {
        ETHERTYPE_IPV4 => v4(ctx, data, end, direction),
        ETHERTYPE_IPV6 => v6(ctx, data, end, direction),
        _ => Some(Parsed::Skipped(Count::SkippedLink)),
    }
}

#[inline(always)]
fn v4(ctx: &TcContext, data: usize, end: usize, direction: Direction) -> Option<Parsed> {
    let header: [u8; IPV4_LEN] = at(data, end, ETH_LEN)?;
    if header[9] != PROTOCOL_TCP {
        return Some(Parsed::Other);
    }
    if u16::from_be_bytes([header[6], header[7]]) & FRAGMENT != 0 {
        return Some(Parsed::Skipped(Count::SkippedFragment));
    }
    let header_len = usize::from(header[0] & 0xf) * 4;
    if header_len < IPV4_LEN {
        return Some(Parsed::Skipped(Count::SkippedShort));
    }
    let l4 = ETH_LEN + header_len;
    let total = u32::from(u16::from_be_bytes([header[2], header[3]]));
    // Larger than 64 KiB (BIG TCP): the field is 0, and there is no padding to mistake for payload.
    let l3_len = if total == 0 { ctx.len() - ETH_LEN as u32 } else { total };
    let (segment, source, destination) = tcp(data, end, l4, l3_len.wrapping_sub(header_len as u32))?;
    let from = Be32(u32::from_ne_bytes([header[12], header[13], header[14], header[15]]));
    let to = Be32(u32::from_ne_bytes([header[16], header[17], header[18], header[19]]));
    let key = match direction {
        Direction::Egress => FlowKey4 { node: from, remote: to, node_port: source, remote_port: destination },
        Direction::Ingress => FlowKey4 { node: to, remote: from, node_port: destination, remote_port: source },
    };
    Some(Parsed::V4(Packet { key, segment, l4 }))
}

#[inline(always)]
fn v6(ctx: &TcContext, data: usize, end: usize, direction: Direction) -> Option<Parsed> {
    let payload = u32::from(u16::from_be(at::<u16>(data, end, ETH_LEN + 4)?));
    match at::<u8>(data, end, ETH_LEN + 6)? {
        PROTOCOL_TCP => {}
        // Hop-by-hop, routing, authentication, destination options.
        0 | 43 | 51 | 60 => return Some(Parsed::Skipped(Count::SkippedExtension)),
        44 => return Some(Parsed::Skipped(Count::SkippedFragment)),
        _ => return Some(Parsed::Other),
    }
    let from = Addr(at(data, end, ETH_LEN + 8)?);
    let to = Addr(at(data, end, ETH_LEN + 24)?);
    let l4 = ETH_LEN + IPV6_LEN;
    let l4_len = if payload == 0 { ctx.len() - l4 as u32 } else { payload };
    let (segment, source, destination) = tcp(data, end, l4, l4_len)?;
    let key = match direction {
        Direction::Egress => FlowKey6 { node: from, remote: to, node_port: source, remote_port: destination },
        Direction::Ingress => FlowKey6 { node: to, remote: from, node_port: destination, remote_port: source },
    };
    Some(Parsed::V6(Packet { key, segment, l4 }))
}

#[inline(always)]
fn tcp(data: usize, end: usize, l4: usize, l4_len: u32) -> Option<(Segment, Be16, Be16)> {
    let header: [u8; TCP_LEN] = at(data, end, l4)?;
    let header_len = u32::from(header[12] >> 4) * 4;
    if header_len < TCP_LEN as u32 || header_len > l4_len {
        return None;
    }
    let word = |i: usize| u32::from_be_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]);
    let segment = Segment { seq: word(4), ack: word(8), len: l4_len - header_len, flags: header[13] };
    let port = |i: usize| Be16(u16::from_ne_bytes([header[i], header[i + 1]]));
    Some((segment, port(0), port(2)))
}
