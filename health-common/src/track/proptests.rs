//! Any run of packets, against a slow and obvious model: positions in streams instead of sequence numbers, and a log that
//! is read again for every question.

extern crate std;

use std::vec::Vec;

use proptest::prelude::*;

use super::*;

/// Keeps positions non-negative after a look back.
const BASE: u64 = 1 << 33;
/// What the node offers throughout.
const WINDOW: u16 = 60_000;

#[derive(Clone, Debug)]
enum Op {
    /// The node sends new bytes, perhaps its FIN; it acknowledges that share of what came.
    NodeData {
        len: u16,
        fin: bool,
        ack: u8,
    },
    /// The node sends its last bytes again.
    NodeAgain {
        back: u16,
        ack: u8,
    },
    NodeAck {
        ack: u8,
    },
    NodeReset,
    /// The origin sends new bytes, perhaps its FIN; `lost` bytes before them never came here.
    OriginData {
        lost: u16,
        len: u16,
        fin: bool,
        ack: u8,
    },
    OriginAgain {
        back: u16,
        ack: u8,
    },
    OriginAck {
        ack: u8,
    },
    /// A RST at the origin's next number, at the node's last acknowledgement, or off by some.
    OriginReset {
        at: u8,
        off: i32,
    },
    /// Bytes that acknowledge what was never sent.
    Forged {
        off: i32,
        len: u16,
        ahead: u32,
        fin: bool,
    },
    Wait {
        ms: u16,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let fin = || prop::bool::weighted(0.05);
    let ack = || prop_oneof![2 => any::<u8>(), 1 => Just(u8::MAX)];
    let op = prop_oneof![
        6 => (1u16..3000, fin(), ack()).prop_map(|(len, fin, ack)| Op::NodeData { len, fin, ack }),
        2 => (1u16..3000, ack()).prop_map(|(back, ack)| Op::NodeAgain { back, ack }),
        4 => ack().prop_map(|ack| Op::NodeAck { ack }),
        6 => (0u16..100, 1u16..3000, fin(), ack())
            .prop_map(|(lost, len, fin, ack)| Op::OriginData { lost, len, fin, ack }),
        2 => (1u16..3000, ack()).prop_map(|(back, ack)| Op::OriginAgain { back, ack }),
        3 => ack().prop_map(|ack| Op::OriginAck { ack }),
        1 => (0u8..6, any::<i32>()).prop_map(|(at, off)| Op::OriginReset { at, off }),
        1 => (-3000i32..3000, 1u16..3000, 1u32..1 << 30, fin())
            .prop_map(|(off, len, ahead, fin)| Op::Forged { off, len, ahead, fin }),
        3 => (0u16..400).prop_map(|ms| Op::Wait { ms }),
    ];
    // The node's reset ends everything, so it comes last or not at all.
    (prop::collection::vec(op, 1..60), prop::bool::weighted(0.2)).prop_map(|(mut ops, abort)| {
        ops.extend(abort.then_some(Op::NodeReset));
        ops
    })
}

/// One line of the log: `node` or not, the positions of its bytes, FIN (which takes a position), acknowledgement, time.
#[derive(Clone, Copy)]
struct Line {
    node: bool,
    from: u64,
    len: u64,
    fin: bool,
    ack: u64,
    at: u64,
}

impl Line {
    fn end(&self) -> u64 {
        self.from + self.len + u64::from(self.fin)
    }

    fn payload_end(&self) -> u64 {
        self.from + self.len
    }
}

/// All packets so far.
#[derive(Default)]
struct Log(Vec<Line>);

impl Log {
    /// First position that a side has not used yet.
    fn next(&self, node: bool) -> u64 {
        self.0.iter().filter(|line| line.node == node).map(Line::end).max().unwrap_or(0).max(BASE)
    }

    /// Highest acknowledgement that a side sent.
    fn acked(&self, by_node: bool) -> u64 {
        self.0.iter().filter(|line| line.node == by_node).map(|line| line.ack).max().unwrap_or(0).max(BASE)
    }

    fn has_fin(&self, node: bool) -> bool {
        self.0.iter().any(|line| line.node == node && line.fin)
    }

    /// Whether line `i` brought bytes further than all before it.
    fn is_new(&self, i: usize) -> bool {
        let line = self.0[i];
        let before = self.0[..i].iter().filter(|other| other.node == line.node).map(Line::end).max();
        line.len > 0 && line.payload_end() > before.unwrap_or(0).max(BASE)
    }

    /// When the last byte of the request under way was sent.
    fn request(&self) -> Option<u64> {
        let mut request = None;
        for (i, line) in self.0.iter().enumerate() {
            let first_fin = line.fin && !self.0[..i].iter().any(|other| other.node == line.node && other.fin);
            match (line.node, self.is_new(i)) {
                (true, true) => request = Some(line.at),
                (true, false) => {}
                (false, new) => {
                    if new || first_fin {
                        request = None;
                    }
                }
            }
        }
        request
    }

    /// When the origin's last new byte came.
    fn payload(&self) -> Option<u64> {
        (0..self.0.len()).rev().find(|&i| !self.0[i].node && self.is_new(i)).map(|i| self.0[i].at)
    }

    fn closed(&self) -> bool {
        self.has_fin(true)
            && self.has_fin(false)
            && self.acked(true) == self.next(false)
            && self.acked(false) == self.next(true)
    }

    /// What one more packet means.
    fn push(&mut self, line: Line) -> Effects {
        let (request, had_fin) = (self.request(), self.has_fin(line.node));
        self.0.push(line);
        let new = self.is_new(self.0.len() - 1);
        let mut bits = if self.closed() { Effects::CLOSED } else { 0 };
        let mut request_ns = 0;
        if line.node {
            bits |= match (line.len > 0, new, request) {
                (false, ..) => 0,
                (true, false, _) => Effects::RETRANS,
                (true, true, None) => Effects::REQUEST,
                (true, true, Some(_)) => Effects::REFRESHED,
            };
            if new {
                request_ns = request.unwrap_or(0);
            }
        } else if let Some(at) = request {
            if new {
                (bits, request_ns) = (bits | Effects::RESPONSE, at);
            } else if line.fin && !had_fin {
                (bits, request_ns) = (bits | Effects::VOID, at);
            }
        }
        Effects { bits, request_ns, ..Effects::default() }
    }

    /// What a RST of the origin at a position means. `rtt_ns` is the handshake's.
    fn reset(&self, position: u64, at: u64, rtt_ns: u64) -> Effects {
        if position != self.next(false) && position != self.acked(true) {
            let ahead = low(position.wrapping_sub(self.acked(true)));
            let bits = if ahead < WINDOW.into() { Effects::RST_SUSPECT } else { Effects::RST_FORGED };
            return Effects { bits, ..Effects::default() };
        }
        let (request_ns, fin) = (self.request().unwrap_or(0), self.has_fin(false));
        let void = if request_ns == 0 { 0 } else { Effects::VOID };
        let unacknowledged = self.next(false) > self.acked(true);
        let bits = match self.payload() {
            _ if fin => Effects::RESET_IDLE | void,
            None => Effects::RESET_EARLY,
            Some(last) if unacknowledged || at - last <= (4 * rtt_ns).max(200_000_000) => Effects::RESET_MID | void,
            Some(_) => Effects::RESET_IDLE | void,
        };
        Effects { bits: bits | Effects::CLOSED, request_ns, ..Effects::default() }
    }
}

/// The lower half: sequence numbers wrap.
fn low(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).expect("32 bits")
}

/// A flow, its model, and the numbers that join them.
struct Pair {
    flow: Flow,
    log: Log,
    isn: u32,
    origin_isn: u32,
    rtt_ns: u64,
    now: u64,
}

impl Pair {
    fn seq(&self, node: bool, position: u64) -> u32 {
        let isn = if node { self.isn } else { self.origin_isn };
        isn.wrapping_add(1).wrapping_add(low(position.wrapping_sub(BASE)))
    }

    /// An acknowledgement of `share` / 255 of what is not yet acknowledged.
    fn ack(&self, by_node: bool, share: u8) -> u64 {
        let (low, high) = (self.log.acked(by_node), self.log.next(!by_node));
        low + (high - low) * u64::from(share) / 255
    }

    fn send(&mut self, node: bool, from: u64, len: u64, fin: bool, ack: u64) -> (Effects, Effects) {
        let line = Line { node, from, len, fin, ack, at: self.now };
        let flags = ACK | if fin { FIN } else { 0 };
        let segment = Segment {
            seq: self.seq(node, from),
            ack: self.seq(!node, ack),
            len: low(len),
            flags,
            window: WINDOW,
            stamps: Stamps::default(),
        };
        let now = self.now;
        let got =
            if node { from_node(&mut self.flow, &segment, || now) } else { from_origin(&mut self.flow, &segment, now) };
        (got, self.log.push(line))
    }

    /// New bytes, or, after the FIN, nothing but it again.
    fn data(&mut self, node: bool, lost: u16, len: u16, fin: bool, ack: u8) -> (Effects, Effects) {
        let (next, ack) = (self.log.next(node), self.ack(node, ack));
        if self.log.has_fin(node) {
            return self.send(node, next - 1, 0, true, ack);
        }
        self.send(node, next + u64::from(lost), u64::from(len), fin, ack)
    }

    fn again(&mut self, node: bool, back: u16, ack: u8) -> Option<(Effects, Effects)> {
        let (end, ack) = (self.log.next(node) - u64::from(self.log.has_fin(node)), self.ack(node, ack));
        let from = end.saturating_sub(u64::from(back)).max(BASE);
        (from < end).then(|| self.send(node, from, end - from, false, ack))
    }

    fn reset(&mut self, at: u8, off: i32) -> (Effects, Effects) {
        let (next, acked) = (self.log.next(false), self.log.acked(true));
        let position = match at {
            0 => next,
            1 => acked,
            _ => next.wrapping_add_signed(i64::from(off)),
        };
        let segment = Segment { seq: self.seq(false, position), flags: RST, ..Segment::default() };
        (from_origin(&mut self.flow, &segment, self.now), self.log.reset(position, self.now, self.rtt_ns))
    }

    fn step(&mut self, op: &Op) -> Option<(Effects, Effects)> {
        Some(match *op {
            Op::NodeData { len, fin, ack } => self.data(true, 0, len, fin, ack),
            Op::OriginData { lost, len, fin, ack } => self.data(false, lost, len, fin, ack),
            Op::NodeAgain { back, ack } => return self.again(true, back, ack),
            Op::OriginAgain { back, ack } => return self.again(false, back, ack),
            Op::NodeAck { ack } => self.send(true, self.log.next(true), 0, false, self.ack(true, ack)),
            Op::OriginAck { ack } => self.send(false, self.log.next(false), 0, false, self.ack(false, ack)),
            Op::OriginReset { at, off } => self.reset(at, off),
            Op::Forged { off, len, ahead, fin } => {
                let seq = self.seq(false, self.log.next(false)).wrapping_add_signed(off);
                let ack = self.seq(true, self.log.next(true)).wrapping_add(ahead);
                let flags = ACK | if fin { FIN } else { 0 };
                let before = self.flow;
                let got = from_origin(
                    &mut self.flow,
                    &Segment { seq, ack, len: len.into(), flags, window: WINDOW, stamps: Stamps::default() },
                    self.now,
                );
                assert_eq!(self.flow, before, "forged bytes change nothing");
                (got, Effects { bits: Effects::FORGED, ..Effects::default() })
            }
            Op::NodeReset => {
                let request_ns = self.log.request().unwrap_or(0);
                let void = if request_ns == 0 { 0 } else { Effects::VOID };
                let segment = Segment { seq: self.seq(true, self.log.next(true)), flags: RST, ..Segment::default() };
                let got = from_node(&mut self.flow, &segment, || 0);
                (got, Effects { bits: Effects::LOCAL_DROP | Effects::CLOSED | void, request_ns, ..Effects::default() })
            }
            Op::Wait { ms } => {
                self.now += u64::from(ms) * 1_000_000;
                return None;
            }
        })
    }
}

/// Numbers, the ones around the wraps often.
fn isn() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), u32::MAX - 4000..=u32::MAX, i32::MAX as u32 - 4000..=i32::MAX as u32 + 10]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_run_of_packets_means_what_the_model_says(
        isn in isn(), origin_isn in isn(), rtt_us in 1u64..200_000, ops in ops(),
    ) {
        let (syn_ns, rtt_ns) = (1_000_000_000, rtt_us * 1000);
        let attempt = HalfOpen { syn_ns, isn, window: WINDOW, ..HalfOpen::default() };
        let syn_ack = Segment { seq: origin_isn, ack: isn.wrapping_add(1), flags: SYN | ACK, ..Segment::default() };
        let flow = establish(&attempt, &syn_ack, 0, syn_ns + rtt_ns);
        let mut pair = Pair { flow, log: Log::default(), isn, origin_isn, rtt_ns, now: syn_ns + rtt_ns };
        for (i, op) in ops.iter().enumerate() {
            let Some((got, want)) = pair.step(op) else { continue };
            prop_assert_eq!(got, want, "packet {}: {:?}", i, op);
            if want.has(Effects::CLOSED) {
                break;
            }
            prop_assert_eq!(pair.flow.request_ns, pair.log.request().unwrap_or(0));
            prop_assert_eq!(pair.flow.origin_next, pair.seq(false, pair.log.next(false)));
            prop_assert_eq!(pair.flow.node_next, pair.seq(true, pair.log.next(true)));
        }
    }
}
