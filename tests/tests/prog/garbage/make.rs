//! Frames: real ones, and what becomes of them when bytes change, are lost or lie.

use crate::support::packet::{ACK, FIN, PSH, RST, SYN};
use crate::support::{A, B, Conn, Hook, NODE, Packet, Plan, addr};

/// Ports of the node's side that are in use, in each family and to each origin.
const PORTS: usize = 6;
/// Bytes of headers, where damage matters.
const HEADERS: usize = 120;
/// What calls itself IP and is shorter than this, `BPF_PROG_TEST_RUN` refuses.
const IPV4_MIN: usize = 14 + 20;
const IPV6_MIN: usize = 14 + 40;
const ETHERNET_MIN: usize = 14;
const EXTENSIONS: [u8; 5] = [0, 43, 44, 51, 60];

/// SplitMix64: the same frames in every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).expect("small")).expect("small")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    fn number(&mut self) -> u32 {
        u32::try_from(self.next() >> 32).expect("32 bits")
    }
}

/// A connection as far as it has come.
struct Talk {
    conn: Conn,
    /// Bytes sent and received.
    sent: u32,
    received: u32,
    clock: u32,
    has_stamps: bool,
    hook: Hook,
}

/// Makes frames.
pub(super) struct Maker {
    talks: Vec<Talk>,
}

impl Maker {
    pub(super) fn new(plans: &[Plan; 2], random: &mut Random) -> Self {
        let mut talks = Vec::new();
        for plan in plans {
            for (i, origin) in (0..PORTS).flat_map(|i| [(i, A), (i, B)]) {
                let port = 40_000 + u16::try_from(i).expect("few");
                let isn = if random.one_in(3) { u32::MAX - 50 } else { random.number() };
                let conn = Conn { isn, ..Conn::new(addr(plan.v6, NODE, port), plan.address(origin)) };
                let hook = if random.one_in(3) { Hook::Client } else { Hook::Egress };
                let (has_stamps, clock) = (random.one_in(2), random.number());
                talks.push(Talk { conn, sent: 0, received: 0, clock, has_stamps, hook });
            }
        }
        Self { talks }
    }

    /// A frame, and where it is met.
    pub(super) fn frame(&mut self, random: &mut Random) -> (Hook, Vec<u8>) {
        let at = random.below(self.talks.len());
        let talk = &mut self.talks[at];
        let (hook, mut packet) = talk.packet(random);
        if random.one_in(3) {
            frame_around(&mut packet, random);
        }
        let (hook, mut bytes) = match random.below(20) {
            0 => (hook, noise(random)),
            1 | 2 => (Hook::Ingress, talk.error(random)),
            _ => (hook, packet.bytes()),
        };
        if random.one_in(2) {
            damage(&mut bytes, random);
        }
        let min = match bytes.get(12..14) {
            Some([0x08, 0x00]) => IPV4_MIN,
            Some([0x86, 0xdd]) => IPV6_MIN,
            _ => ETHERNET_MIN,
        };
        bytes.resize(bytes.len().max(min), 0);
        // Sometimes it comes to the wrong place.
        let hook = if random.one_in(30) { random.of(&[Hook::Egress, Hook::Client, Hook::Ingress]) } else { hook };
        (hook, bytes)
    }
}

impl Talk {
    fn packet(&mut self, random: &mut Random) -> (Hook, Packet) {
        let (conn, sent, received) = (self.conn, self.sent, self.received);
        let len_max = if random.one_in(8) { 1200 } else { 40 };
        let len = random.below(len_max);
        let bytes = u32::try_from(len).expect("small");
        let (is_out, mut packet) = match random.below(26) {
            0..3 => (true, conn.syn_packet()),
            3..6 => (false, conn.syn_ack_packet()),
            6 => {
                if random.one_in(3) {
                    self.conn = Conn { isn: random.number(), ..conn.again() };
                    (self.sent, self.received) = (0, 0);
                }
                (false, conn.refusal_packet())
            }
            7..10 => (true, conn.out(ACK, sent, 0, received)),
            10..14 => {
                self.sent = sent.wrapping_add(bytes);
                (true, conn.out(ACK | PSH, sent, len, received))
            }
            14..18 => {
                self.received = received.wrapping_add(bytes);
                let mut packet = conn.back(ACK | PSH, received, len, sent);
                let line =
                    random.of(&["HTTP/1.1 200 OK", "HTTP/1.0 503 no", "HTTP/2 200 OK, ", "HTTP/1.1 40\u{00e9}x"]);
                for (byte, letter) in packet.payload.iter_mut().zip(line.bytes()) {
                    *byte = letter;
                }
                (false, packet)
            }
            18 => (false, conn.back(ACK, received, 0, sent)),
            19 => (true, conn.out(ACK, sent.wrapping_sub(bytes), len, received)),
            20 => (false, conn.back(ACK, received.wrapping_sub(bytes), len, sent)),
            21 => (true, conn.out(random.of(&[ACK | FIN, FIN, RST, RST | ACK]), sent, 0, received)),
            22 => (false, conn.back(ACK | FIN, received, 0, sent)),
            23 => (false, conn.back(RST, received, 0, sent)),
            24 => (false, conn.back(RST | ACK, received.wrapping_add(random.number() >> random.below(32)), 0, sent)),
            _ => (random.one_in(2), Packet { flags: random.byte(), ..conn.out(SYN, sent, len, received) }),
        };
        if random.one_in(6) {
            packet.window = random.of(&[0, 1, 5, 0xffff]);
        }
        if self.has_stamps && packet.flags & SYN == 0 && !random.one_in(8) {
            self.clock = self.clock.wrapping_add(u32::try_from(random.below(3)).expect("small"));
            let echo = self.clock.wrapping_sub(u32::try_from(random.below(3)).expect("small"));
            let (value, echo) = if is_out { (self.clock, 7) } else { (9, echo) };
            packet.options = [&[1, 1, 8, 10][..], &value.to_be_bytes(), &echo.to_be_bytes()].concat();
        }
        (if is_out { self.hook } else { Hook::Ingress }, packet)
    }

    /// An ICMP error about one of its packets: the SYN, the last data, or what never was. Nobody here looks at its checksum.
    fn error(&self, random: &mut Random) -> Vec<u8> {
        let from = self.sent.wrapping_sub(random.number() >> random.of(&[22, 26, 31]));
        let quoted =
            if random.one_in(3) { self.conn.syn_packet() } else { self.conn.out(ACK, from, 30, self.received) };
        let quoted = quoted.bytes();
        let len = quoted.len() - 14;
        let quoted = &quoted[14..14 + random.of(&[len, len, 28, 48, 27]).min(len)];
        let is_v4 = self.conn.node.is_ipv4();
        let kind = if is_v4 { random.of(&[3, 3, 3, 11, 12, 8]) } else { random.of(&[1, 1, 1, 2, 3, 128]) };
        let mut icmp = vec![kind, random.byte() & 15, 0, 0, 0, 0, 0, 0];
        icmp.extend(quoted);
        // The packet around it is any packet of the other side, with another protocol.
        let mut outer = self.conn.back(ACK, 0, 0, 0).bytes();
        outer.truncate(if is_v4 { 14 + 20 } else { 14 + 40 });
        let (at, protocol, total) = if is_v4 { (16, 23, 20 + icmp.len()) } else { (18, 20, icmp.len()) };
        outer[at..at + 2].copy_from_slice(&u16::try_from(total).expect("short").to_be_bytes());
        outer[protocol] = if is_v4 { 1 } else { 58 };
        outer.extend(icmp);
        outer
    }
}

/// Tags, options, extension headers, fragments.
fn frame_around(packet: &mut Packet, random: &mut Random) {
    match random.below(5) {
        0 => packet.vlans = (0..=random.below(3)).map(|i| u16::try_from(i).expect("few")).collect(),
        1 if packet.from.is_ipv4() => {
            let words = random.below(11);
            packet.ip_options = random.bytes(4 * words);
        }
        2 if packet.from.is_ipv4() => packet.fragment = Some((random.of(&[0, 0, 1, 185]), random.one_in(2))),
        3 => {
            let words = random.below(11);
            packet.options = random.bytes(4 * words);
        }
        _ if packet.from.is_ipv6() => {
            packet.extensions = (0..=random.below(6)).map(|_| extension(random)).collect();
        }
        _ => packet.tos = random.byte(),
    }
}

/// An extension header, mostly as it should be.
fn extension(random: &mut Random) -> (u8, Vec<u8>) {
    let number = random.of(&EXTENSIONS);
    let units = if random.one_in(6) { 1 + random.below(9) } else { 1 };
    let mut header = vec![0; units * 8];
    header[1] = match number {
        44 => random.of(&[0, 0, 7]),
        51 => u8::try_from(units * 2 - 2).expect("short"),
        _ => u8::try_from(units - 1).expect("short"),
    };
    if random.one_in(6) {
        header[3] = random.byte();
    }
    (number, header)
}

/// Bytes that nobody meant; most call themselves IP.
fn noise(random: &mut Random) -> Vec<u8> {
    let len = IPV6_MIN + random.below(80);
    let mut bytes = random.bytes(len);
    match random.below(5) {
        0 => {}
        1 | 2 => {
            bytes[12..14].copy_from_slice(&[0x08, 0x00]);
            (bytes[14], bytes[23]) = (0x45, random.of(&[1, 6, 6, 17]));
        }
        _ => {
            bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
            (bytes[14], bytes[20]) = (0x60, random.of(&[6, 6, 58, 0, 44, 60]));
        }
    }
    bytes
}

/// Changes some bytes, mostly of the headers; cuts; pads, as short frames of Ethernet are.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    match random.below(6) {
        0 => bytes.truncate(ETHERNET_MIN + random.below(bytes.len())),
        1 => {
            let len = random.below(30);
            let padding = random.bytes(len);
            bytes.extend(padding);
        }
        2 => {
            // Lengths: of IPv4, of IPv6, of TCP's header behind either.
            let at = random.of(&[14, 16, 17, 18, 19, 46, 66]).min(bytes.len() - 1);
            bytes[at] =
                if random.one_in(2) { random.byte() } else { bytes[at].wrapping_add(random.of(&[1, 255, 4, 16])) };
        }
        3 => {
            let at = random.below(bytes.len().min(HEADERS));
            bytes[at] ^= 1 << random.below(8);
        }
        _ => {
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len().min(HEADERS));
                bytes[at] = random.byte();
            }
        }
    }
}
