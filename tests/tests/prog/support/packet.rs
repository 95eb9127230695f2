//! Packets as bytes, with right checksums, and back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;
pub(crate) const ECE: u8 = 64;
pub(crate) const CWR: u8 = 128;

const ETH_LEN: usize = 14;
const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
const TCP: u8 = 6;

/// A TCP packet over Ethernet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    /// Type of service, or traffic class.
    pub(crate) tos: u8,
    /// TCP options, a multiple of four bytes.
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    /// VLAN identifiers, outermost first.
    pub(crate) vlans: Vec<u16>,
    /// IPv4 options, a multiple of four bytes.
    pub(crate) ip_options: Vec<u8>,
    /// IPv6 extension headers: number and whole header, whose first byte is filled in.
    pub(crate) extensions: Vec<(u8, Vec<u8>)>,
    /// IPv4 fragment: offset in units of 8 bytes, and whether more follow.
    pub(crate) fragment: Option<(u16, bool)>,
}

impl Packet {
    pub(crate) fn new(from: SocketAddr, to: SocketAddr, flags: u8) -> Self {
        Self {
            from,
            to,
            seq: 0,
            ack: 0,
            flags,
            window: 0xff00,
            tos: 0,
            options: Vec::new(),
            payload: Vec::new(),
            vlans: Vec::new(),
            ip_options: Vec::new(),
            extensions: Vec::new(),
            fragment: None,
        }
    }

    /// On the wire.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut frame = MACS.to_vec();
        for vlan in &self.vlans {
            frame.extend([0x81, 0x00]);
            frame.extend(vlan.to_be_bytes());
        }
        let tcp = self.tcp();
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame.extend([0x08, 0x00]);
                frame.extend(self.ipv4(from, to, tcp.len()));
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend([0x86, 0xdd]);
                frame.extend(self.ipv6(from, to, tcp.len()));
            }
            _ => panic!("the families of {} and {} differ", self.from, self.to),
        }
        frame.extend(tcp);
        frame
    }

    fn tcp(&self) -> Vec<u8> {
        let mut tcp = Vec::new();
        tcp.extend(self.from.port().to_be_bytes());
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        let words = u8::try_from(5 + self.options.len() / 4).expect("at most 40 bytes of options");
        tcp.extend([words << 4, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&self.options);
        tcp.extend(&self.payload);
        let sum = checksum(&pseudo_header(self.from.ip(), self.to.ip(), tcp.len()), &tcp);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        tcp
    }

    fn ipv4(&self, from: Ipv4Addr, to: Ipv4Addr, payload: usize) -> Vec<u8> {
        let len = 20 + self.ip_options.len();
        let words = u8::try_from(len / 4).expect("at most 40 bytes of options");
        let total = u16::try_from(len + payload).expect("fits").to_be_bytes();
        let fragment = self.fragment.map_or(0x4000, |(offset, more)| offset | u16::from(more) << 13).to_be_bytes();
        let mut header =
            vec![0x40 | words, self.tos, total[0], total[1], 0, 1, fragment[0], fragment[1], 64, TCP, 0, 0];
        header.extend(from.octets());
        header.extend(to.octets());
        header.extend(&self.ip_options);
        let sum = checksum(&[], &header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }

    fn ipv6(&self, from: Ipv6Addr, to: Ipv6Addr, payload: usize) -> Vec<u8> {
        let extensions: usize = self.extensions.iter().map(|(_, header)| header.len()).sum();
        let len = u16::try_from(extensions + payload).expect("fits").to_be_bytes();
        let next = |i: usize| self.extensions.get(i).map_or(TCP, |(number, _)| *number);
        let mut header = vec![0x60 | self.tos >> 4, self.tos << 4, 0, 0, len[0], len[1], next(0), 64];
        header.extend(from.octets());
        header.extend(to.octets());
        for (i, (_, extension)) in self.extensions.iter().enumerate() {
            header.push(next(i + 1));
            header.extend(&extension[1..]);
        }
        header
    }

    /// Reads what [`Self::bytes`] can write. Every checksum must be right.
    #[track_caller]
    pub(crate) fn read(frame: &[u8]) -> Self {
        let mut at = ETH_LEN - 2;
        let mut vlans = Vec::new();
        while word(frame, at) == 0x8100 {
            vlans.push(word(frame, at + 2));
            at += 4;
        }
        let (ethertype, ip) = (word(frame, at), &frame[at + 2..]);
        let mut extensions = Vec::new();
        let (from, to, tos, ip_options, tcp) = match ethertype {
            0x0800 => {
                let len = usize::from(ip[0] & 0xf) * 4;
                assert_eq!(checksum(&[], &ip[..len]), 0, "IPv4 header checksum");
                let address = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).expect("4 bytes"));
                (address(12), address(16), ip[1], ip[20..len].to_vec(), &ip[len..usize::from(word(ip, 2))])
            }
            0x86dd => {
                let address = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).expect("16 bytes"));
                let mut payload = &ip[40..40 + usize::from(word(ip, 4))];
                let mut next = ip[6];
                while next != TCP {
                    let len = extension_len(next, payload[1]);
                    extensions.push((next, payload[..len].to_vec()));
                    (next, payload) = (payload[0], &payload[len..]);
                }
                (address(8), address(24), ip[0] << 4 | ip[1] >> 4, Vec::new(), payload)
            }
            other => panic!("EtherType {other:#06x}"),
        };
        assert_eq!(checksum(&pseudo_header(from, to, tcp.len()), tcp), 0, "TCP checksum");
        let number = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().expect("4 bytes"));
        let data = usize::from(tcp[12] >> 4) * 4;
        Self {
            seq: number(4),
            ack: number(8),
            options: tcp[20..data].to_vec(),
            payload: tcp[data..].to_vec(),
            window: word(tcp, 14),
            tos,
            vlans,
            ip_options,
            extensions,
            ..Self::new(SocketAddr::new(from, word(tcp, 0)), SocketAddr::new(to, word(tcp, 2)), tcp[13])
        }
    }
}

/// By RFC 8200 §4 and RFC 4302 §2.2.
fn extension_len(number: u8, len: u8) -> usize {
    match number {
        44 => 8,
        51 => (usize::from(len) + 2) * 4,
        _ => (usize::from(len) + 1) * 8,
    }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn pseudo_header(from: IpAddr, to: IpAddr, len: usize) -> Vec<u8> {
    pseudo(from, to, len, TCP)
}

/// RFC 9293 §3.1, RFC 8200 §8.1.
pub(crate) fn pseudo(from: IpAddr, to: IpAddr, len: usize, protocol: u8) -> Vec<u8> {
    let len = u32::try_from(len).expect("fits");
    let mut header = Vec::new();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            header.extend(from.octets());
            header.extend(to.octets());
            header.extend([0, protocol]);
            header.extend(u16::try_from(len).expect("fits").to_be_bytes());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            header.extend(from.octets());
            header.extend(to.octets());
            header.extend(len.to_be_bytes());
            header.extend([0, 0, 0, protocol]);
        }
        _ => panic!("the families of {from} and {to} differ"),
    }
    header
}

/// RFC 1071, over both parts; the first has an even length.
pub(crate) fn checksum(first: &[u8], second: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u32 {
        bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]))).sum()
    };
    let mut sum = words(first) + words(second);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}
