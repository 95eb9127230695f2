//! A second reader of packets: slow and obvious, from the standards and from what is documented. It shares nothing with the
//! kernel's but the names of what both find.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use health_common::map::Count;
use health_common::track::{Segment, Stamps};

use crate::support::packet::{checksum, pseudo};

/// Extension headers before TCP that are looked through, and how far into the frame.
const EXTENSIONS: usize = 4;
const DEEPEST: usize = 254;

/// What a frame is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// Nothing of ours, and not counted.
    Other,
    /// Passed, and counted as this.
    Skipped(Count),
    Tcp(Tcp),
    Error(Error),
}

/// An ICMP error, and the packet that it quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Error {
    pub(super) says: Says,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) seq: u32,
}

/// What an error says of the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    Refused,
    Unreachable,
    /// Neither.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tcp {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) segment: Segment,
    pub(super) options: Vec<u8>,
    pub(super) payload: Vec<u8>,
    /// Whether a router would forward it, and the origin's stack take it.
    pub(super) is_deliverable: bool,
}

const SHORT: Read = Read::Skipped(Count::SkippedShort);

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Ethernet and at most two tags (IEEE 802.1Q).
pub(super) fn read(frame: &[u8]) -> Read {
    let mut at = 12;
    for tags in 0..=2 {
        match be16(frame, at) {
            None => return SHORT,
            Some(0x0800) => return ipv4(frame, at + 2).unwrap_or(SHORT),
            Some(0x86dd) => return ipv6(frame, at + 2).unwrap_or(SHORT),
            Some(0x8100 | 0x88a8) if tags == 2 => return Read::Skipped(Count::SkippedVlan),
            Some(0x8100 | 0x88a8) => at += 4,
            Some(_) => return Read::Skipped(Count::SkippedLink),
        }
    }
    SHORT
}

/// RFC 791. `None`: shorter than it says, or no header of IPv4.
fn ipv4(frame: &[u8], l3: usize) -> Option<Read> {
    let packet = &frame[l3..];
    let header = packet.get(..20)?;
    let (protocol, is_fragment) = (header[9], be16(header, 6)? & 0x3fff != 0);
    match protocol {
        6 if is_fragment => return Some(Read::Skipped(Count::SkippedFragment)),
        1 if is_fragment => return Some(Read::Other),
        6 | 1 => {}
        _ => return Some(Read::Other),
    }
    let (version, len) = (header[0] >> 4, usize::from(header[0] & 15) * 4);
    if version != 4 || len < 20 {
        return None;
    }
    if protocol == 1 {
        return Some(error_v4(packet.get(len..).unwrap_or(&[])).map_or(Read::Other, Read::Error));
    }
    let total = match usize::from(be16(header, 2)?) {
        0 => packet.len(),
        total => total,
    };
    let address = |at: usize| Some(Ipv4Addr::from(be32(header, at)?));
    let is_forwarded = header[8] > 1 && checksum(&[], packet.get(..len)?) == 0;
    tcp(packet.get(..total)?.get(len..)?, is_forwarded, |from, to| {
        Some((SocketAddr::new(address(12)?.into(), from), SocketAddr::new(address(16)?.into(), to)))
    })
}

/// RFC 8200.
fn ipv6(frame: &[u8], l3: usize) -> Option<Read> {
    let header = frame.get(l3..l3 + 40)?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let (mut next, mut at) = (header[6], l3 + 40);
    if next == 58 {
        return Some(error_v6(&frame[at..]).map_or(Read::Other, Read::Error));
    }
    let mut seen = 0;
    while next != 6 {
        if ![0, 43, 44, 51, 60].contains(&next) {
            return Some(Read::Other);
        }
        if seen == EXTENSIONS || at > DEEPEST {
            return Some(Read::Skipped(Count::SkippedExtension));
        }
        let extension = frame.get(at..at + 8)?;
        let units = usize::from(extension[1]);
        at += match next {
            43 if extension[3] != 0 => return Some(Read::Other),
            44 if be16(extension, 2)? & !0b110 != 0 => return Some(Read::Skipped(Count::SkippedFragment)),
            44 => 8,
            51 => (units + 2) * 4,
            _ => (units + 1) * 8,
        };
        next = extension[0];
        seen += 1;
    }
    if at > DEEPEST {
        return Some(Read::Skipped(Count::SkippedExtension));
    }
    let end = match usize::from(be16(header, 4)?) {
        0 => frame.len(),
        payload => l3 + 40 + payload,
    };
    let address = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(header.get(at..at + 16)?).ok()?));
    let is_forwarded = header[7] > 1 && address(24)?.to_ipv4_mapped().is_none();
    tcp(frame.get(..end)?.get(at..)?, is_forwarded, |from, to| {
        Some((SocketAddr::new(address(8)?.into(), from), SocketAddr::new(address(24)?.into(), to)))
    })
}

/// RFC 792, and the codes of RFC 1122 §3.2.2.1 and RFC 1812 §5.2.7.1. Quoted are the IP header and eight bytes.
fn error_v4(icmp: &[u8]) -> Option<Error> {
    let says = match (icmp.first()?, icmp.get(1)?) {
        // Port; network, host and communication prohibited.
        (3, 3 | 9 | 10 | 13) => Says::Refused,
        // Protocol; fragmentation needed; and precedence. Time exceeded, parameter problem.
        (3, 2 | 4 | 14..) | (11 | 12, _) => Says::Other,
        (3, _) => Says::Unreachable,
        _ => return None,
    };
    let quoted = icmp.get(8..)?;
    let header = quoted.get(..20)?;
    let len = usize::from(header[0] & 15) * 4;
    if header[9] != 6 || len < 20 {
        return None;
    }
    let address = |at| Some(Ipv4Addr::from(be32(header, at)?).into());
    quote(says, address(12)?, address(16)?, quoted.get(len..)?)
}

/// RFC 4443 §3.
fn error_v6(icmp: &[u8]) -> Option<Error> {
    let says = match (icmp.first()?, icmp.get(1)?) {
        // Prohibited; port; source address refused; route refused.
        (1, 1 | 4 | 5 | 6) => Says::Refused,
        (1, _) => Says::Unreachable,
        // Too big, time exceeded, parameter problem.
        (2..=4, _) => Says::Other,
        _ => return None,
    };
    let header = icmp.get(8..48)?;
    if header[6] != 6 {
        return None;
    }
    let address = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(header.get(at..at + 16)?).ok()?).into());
    quote(says, address(8)?, address(24)?, icmp.get(48..)?)
}

fn quote(says: Says, from: IpAddr, to: IpAddr, tcp: &[u8]) -> Option<Error> {
    let tcp = tcp.get(..8)?;
    let (from, to) = (SocketAddr::new(from, be16(tcp, 0)?), SocketAddr::new(to, be16(tcp, 2)?));
    Some(Error { says, from, to, seq: be32(tcp, 4)? })
}

/// RFC 9293 §3.1.
fn tcp(
    bytes: &[u8],
    is_forwarded: bool,
    addresses: impl Fn(u16, u16) -> Option<(SocketAddr, SocketAddr)>,
) -> Option<Read> {
    let header = bytes.get(..20)?;
    let len = usize::from(header[12] >> 4) * 4;
    if len < 20 {
        return None;
    }
    let (options, payload) = (bytes.get(20..len)?, bytes.get(len..)?);
    let (from, to) = addresses(be16(header, 0)?, be16(header, 2)?)?;
    // RFC 7323 appendix A: two NOPs, kind 8, length 10.
    let stamps = if options.len() >= 12 && options[..4] == [1, 1, 8, 10] {
        Stamps { value: be32(options, 4)?, echo: be32(options, 8)? }
    } else {
        Stamps::default()
    };
    let segment = Segment {
        seq: be32(header, 4)?,
        ack: be32(header, 8)?,
        len: u32::try_from(payload.len()).ok()?,
        flags: header[13],
        window: be16(header, 14)?,
        stamps,
    };
    let is_right = checksum(&pseudo(from.ip(), to.ip(), bytes.len(), 6), bytes) == 0;
    let (options, payload) = (options.to_vec(), payload.to_vec());
    Some(Read::Tcp(Tcp { from, to, segment, options, payload, is_deliverable: is_forwarded && is_right }))
}
