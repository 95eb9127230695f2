//! Any run of packets, against a slow and obvious model: positions in streams instead of sequence numbers, and a log that
//! is read again for every question.

extern crate std;

use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::{flow::HalfOpen, net::Be16};

/// Keeps positions and clocks non-negative after a look back.
const BASE: u64 = 1 << 33;
/// Window of the SYN.
const WINDOW: u16 = 60_000;
/// Runs that are tried, if `PROPTEST_CASES` says nothing else.
const CASES: u32 = 600;

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
    /// The node's side acknowledges another number than the answer's: somebody who has not seen that one.
    NodeGuess {
        off: u32,
        len: u16,
    },
    /// The answer again, perhaps with another number.
    AnswerAgain {
        off: u32,
    },
    Wait {
        ms: u16,
    },
}

/// What a header says besides.
#[derive(Clone, Copy, Debug)]
struct Header {
    window: u16,
    clock: Clock,
}

/// The timestamps option of a header.
#[derive(Clone, Copy, Debug)]
enum Clock {
    /// The header has none.
    Missing,
    /// The node's clock since its newest stamp. From the origin: that of its echo.
    Newest(i32),
    /// From the origin: the echo of the node's stamp so many before the newest.
    Before(u8),
}

fn header() -> impl Strategy<Value = Header> {
    let window = prop_oneof![1 => Just(0), 4 => any::<u16>()];
    let clock = prop_oneof![
        1 => Just(Clock::Missing),
        8 => (-1i32..4).prop_map(Clock::Newest),
        4 => (0u8..6).prop_map(Clock::Before),
        1 => (-(1 << 29)..1 << 29).prop_map(Clock::Newest),
    ];
    (window, clock).prop_map(|(window, clock)| Header { window, clock })
}

fn before_the_flow() -> impl Strategy<Value = Op> {
    prop_oneof![
        (1u32..=u32::MAX, 0u16..3000).prop_map(|(off, len)| Op::NodeGuess { off, len }),
        prop_oneof![Just(0), any::<u32>()].prop_map(|off| Op::AnswerAgain { off }),
    ]
}

fn ops() -> impl Strategy<Value = Vec<(Op, Header)>> {
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
        2 => before_the_flow(),
        3 => (0u16..400).prop_map(|ms| Op::Wait { ms }),
    ];
    let op = (op, header());
    // The node's reset ends everything, so it comes last or not at all.
    (prop::collection::vec(op, 1..60), prop::option::weighted(0.2, header())).prop_map(|(mut ops, abort)| {
        ops.extend(abort.map(|header| (Op::NodeReset, header)));
        ops
    })
}

/// One line of the log: `node` or not, the positions of its bytes, FIN (which takes a position), acknowledgement, window as
/// it stands in the header, time. `stamp`: the node's clock, or what the origin echoes of it.
#[derive(Clone, Copy)]
struct Line {
    node: bool,
    from: u64,
    len: u64,
    fin: bool,
    ack: u64,
    window: u16,
    stamp: Option<u64>,
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

/// All packets since the flow began.
#[derive(Default)]
struct Log(Vec<Line>);

/// The numbers of a handshake, for whatever asks the log.
#[derive(Clone, Copy, Debug)]
struct Handshake {
    rtt_ns: u64,
    shift: u8,
    forwarded: bool,
}

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

    /// Whether line `i` bears a stamp that is newer than all that the node sent before; the SYN had the first.
    fn is_fresh(&self, i: usize) -> bool {
        let before = self.0[..i].iter().filter(|line| line.node).filter_map(|line| line.stamp).max();
        self.0[i].node && self.0[i].stamp > Some(before.unwrap_or(0).max(BASE))
    }

    /// The stamp whose echo is waited for, and when it was sent: the first line with new bytes and a fresh stamp behind the
    /// one whose echo, or a later stamp's, came last.
    fn waiting(&self) -> Option<(u64, u64)> {
        let mut waiting = None;
        for (i, line) in self.0.iter().enumerate() {
            match (waiting, line.stamp) {
                (None, Some(stamp)) if line.node && self.is_new(i) && self.is_fresh(i) => {
                    waiting = Some((stamp, line.at));
                }
                (Some((stamp, _)), Some(echo)) if !line.node && echo >= stamp => waiting = None,
                _ => {}
            }
        }
        waiting
    }

    /// What the node offered last. Unit: bytes.
    fn window(&self, shift: u8) -> u64 {
        let last = self.0.iter().rev().find(|line| line.node);
        last.map_or(WINDOW.into(), |line| u64::from(line.window) * 2_u64.pow(shift.into()))
    }

    /// Whether the last packet closed the origin's window.
    fn has_shut(&self) -> bool {
        let mut windows = self.0.iter().rev().filter(|line| !line.node).map(|line| line.window);
        windows.next() == Some(0) && windows.next() != Some(0)
    }

    fn closed(&self) -> bool {
        self.has_fin(true)
            && self.has_fin(false)
            && self.acked(true) == self.next(false)
            && self.acked(false) == self.next(true)
    }

    /// Whether a packet begins the flow: of the node's side any that acknowledges the answer, of the origin the first bytes.
    fn begins(line: &Line) -> bool {
        if line.node { line.ack == BASE } else { line.from == BASE && line.end() > BASE }
    }

    /// What one more packet means. One that comes before the flow began, and does not begin it, is forgotten.
    fn push(&mut self, line: Line) -> Effects {
        let stays = !self.0.is_empty() || Self::begins(&line);
        let effects = self.add(line);
        if !stays {
            self.0.pop();
        }
        effects
    }

    fn add(&mut self, line: Line) -> Effects {
        let (request, waiting, had_fin) = (self.request(), self.waiting(), self.has_fin(line.node));
        self.0.push(line);
        let new = self.is_new(self.0.len() - 1);
        let mut bits = if self.closed() { Effects::CLOSED } else { 0 };
        let (mut request_ns, mut sample_ns) = (0, 0);
        if !line.node {
            if let Some((stamp, at)) = waiting
                && line.stamp >= Some(stamp)
            {
                bits |= if line.stamp == Some(stamp) { Effects::SAMPLE } else { 0 };
                sample_ns = at;
            }
            bits |= if self.has_shut() { Effects::ZERO_WINDOW } else { 0 };
        }
        if line.node {
            bits |= match (line.len > 0, new, request) {
                (false, ..) => 0,
                (true, false, _) => Effects::RETRANS,
                (true, true, None) => Effects::REQUEST,
                (true, true, Some(_)) => Effects::REFRESHED,
            };
            if new {
                request_ns = request.unwrap_or(0);
            } else if let (true, false, Some(at)) = (line.fin, had_fin, request) {
                (bits, request_ns) = (bits | Effects::GIVEN_UP, at);
            }
        } else if let Some(at) = request {
            if new {
                (bits, request_ns) = (bits | Effects::RESPONSE, at);
            } else if line.fin && !had_fin {
                (bits, request_ns) = (bits | Effects::VOID, at);
            }
        }
        Effects { bits, sample_ns, request_ns }
    }

    /// What a RST of the node means.
    fn abort(&self, handshake: Handshake) -> Effects {
        let whose = if handshake.forwarded { Effects::CLIENT_ABORT } else { Effects::LOCAL_DROP };
        let (void, request_ns) = self.request().map_or((0, 0), |at| (Effects::VOID, at));
        Effects { bits: whose | Effects::CLOSED | void, request_ns, sample_ns: 0 }
    }

    /// What a RST of the origin at a position means.
    fn reset(&self, position: u64, at: u64, handshake: Handshake) -> Effects {
        if position != self.next(false) && position != self.acked(true) {
            let ahead = low(position.wrapping_sub(self.acked(true)));
            let bits = if u64::from(ahead) < self.window(handshake.shift) {
                Effects::RST_SUSPECT
            } else {
                Effects::RST_FORGED
            };
            return Effects { bits, ..Effects::default() };
        }
        let (request_ns, fin) = (self.request().unwrap_or(0), self.has_fin(false));
        let void = if request_ns == 0 { 0 } else { Effects::VOID };
        let unacknowledged = self.next(false) > self.acked(true);
        let bits = match self.payload() {
            _ if fin => Effects::RESET_IDLE | void,
            None => Effects::RESET_EARLY,
            Some(last) if unacknowledged || at - last <= (4 * handshake.rtt_ns).max(200_000_000) => {
                Effects::RESET_MID | void
            }
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
    /// The attempt, until the flow begins.
    attempt: Option<HalfOpen>,
    flow: Flow,
    log: Log,
    isn: u32,
    origin_isn: u32,
    /// The SYN's stamp.
    stamp_isn: u32,
    handshake: Handshake,
    now: u64,
}

impl Pair {
    fn new((isn, origin_isn, stamp_isn): (u32, u32, u32), handshake: Handshake) -> Self {
        let syn_ns = 1_000_000_000;
        let flags = if handshake.forwarded { FORWARDED } else { 0 };
        let mut attempt = HalfOpen { syn_ns, isn, window: WINDOW, flags, ..HalfOpen::default() };
        attempt.set_node_shift(handshake.shift);
        let stamps = Stamps { value: 1, echo: stamp_isn };
        let syn_ack =
            Segment { seq: origin_isn, ack: isn.wrapping_add(1), flags: SYN | ACK, stamps, ..Segment::default() };
        let now = syn_ns + handshake.rtt_ns;
        accept(&mut attempt, &syn_ack, Be16(0), now);
        let flow = open(&attempt);
        Self { attempt: Some(attempt), flow, log: Log::default(), isn, origin_isn, stamp_isn, handshake, now }
    }

    fn seq(&self, node: bool, position: u64) -> u32 {
        let isn = if node { self.isn } else { self.origin_isn };
        isn.wrapping_add(1).wrapping_add(low(position.wrapping_sub(BASE)))
    }

    /// An acknowledgement of `share` / 255 of what is not yet acknowledged.
    fn ack(&self, by_node: bool, share: u8) -> u64 {
        let (low, high) = (self.log.acked(by_node), self.log.next(!by_node));
        low + (high - low) * u64::from(share) / 255
    }

    /// The node's clock that a header bears, or echoes.
    fn stamp(&self, node: bool, clock: Clock) -> Option<u64> {
        let sent: Vec<u64> = self.log.0.iter().filter(|line| line.node).filter_map(|line| line.stamp).collect();
        let newest = sent.iter().copied().max().unwrap_or(0).max(BASE);
        match clock {
            Clock::Missing => None,
            Clock::Newest(ahead) => Some(newest.saturating_add_signed(ahead.into())),
            // The node's own clock has no such choice: it stands still.
            Clock::Before(_) if node => Some(newest),
            Clock::Before(back) => Some(sent.iter().rev().nth(back.into()).copied().unwrap_or(BASE)),
        }
    }

    /// A stamp in the header. The other side's clock, which means nothing here, is never 0.
    fn stamps(&self, node: bool, stamp: Option<u64>) -> Stamps {
        let clock = |stamp: u64| self.stamp_isn.wrapping_add(low(stamp.wrapping_sub(BASE)));
        match stamp.map(clock) {
            None => Stamps::default(),
            Some(value) if node => Stamps { value, echo: 7 },
            Some(echo) => Stamps { value: 9, echo },
        }
    }

    /// What the code says of a segment.
    fn meet(&mut self, node: bool, segment: &Segment) -> Effects {
        let (now, before) = (self.now, self.flow);
        if node && self.attempt.is_some_and(|attempt| !opens(&attempt, segment)) {
            return Effects::default();
        }
        let effects =
            if node { from_node(&mut self.flow, segment, || now) } else { from_origin(&mut self.flow, segment, now) };
        if let Some(attempt) = self.attempt {
            if node || effects.has(Effects::CLOSED) || goes_on(&attempt, segment, &effects) {
                self.attempt = None;
            } else {
                self.flow = before;
            }
        }
        effects
    }

    fn send(&mut self, node: bool, bytes: (u64, u64, bool), ack: u64, header: Header) -> (Effects, Effects) {
        let ((from, len, fin), window, stamp) = (bytes, header.window, self.stamp(node, header.clock));
        let line = Line { node, from, len, fin, ack, window, stamp, at: self.now };
        let segment = Segment {
            seq: self.seq(node, from),
            ack: self.seq(!node, ack),
            len: low(len),
            flags: ACK | if fin { FIN } else { 0 },
            window,
            stamps: self.stamps(node, stamp),
        };
        (self.meet(node, &segment), self.log.push(line))
    }

    /// New bytes, or, after the FIN, nothing but it again.
    fn data(&mut self, node: bool, new: (u16, u16, bool), ack: u8, header: Header) -> (Effects, Effects) {
        let ((lost, len, fin), next, ack) = (new, self.log.next(node), self.ack(node, ack));
        if self.log.has_fin(node) {
            return self.send(node, (next - 1, 0, true), ack, header);
        }
        self.send(node, (next + u64::from(lost), len.into(), fin), ack, header)
    }

    fn again(&mut self, node: bool, back: u16, ack: u8, header: Header) -> Option<(Effects, Effects)> {
        let (end, ack) = (self.log.next(node) - u64::from(self.log.has_fin(node)), self.ack(node, ack));
        let from = end.saturating_sub(u64::from(back)).max(BASE);
        (from < end).then(|| self.send(node, (from, end - from, false), ack, header))
    }

    fn reset(&mut self, at: u8, off: i32, header: Header) -> (Effects, Effects) {
        let (next, acked) = (self.log.next(false), self.log.acked(true));
        let position = match at {
            0 => next,
            1 => acked,
            // Around the edge of the window.
            2 => acked.wrapping_add(self.log.window(self.handshake.shift)).wrapping_add_signed(i64::from(off % 3)),
            _ => next.wrapping_add_signed(i64::from(off)),
        };
        let stamps = self.stamps(false, self.stamp(false, header.clock));
        let segment = Segment { seq: self.seq(false, position), flags: RST, stamps, ..Segment::default() };
        (self.meet(false, &segment), self.log.reset(position, self.now, self.handshake))
    }

    fn forged(&mut self, off: i32, len: u16, ahead: u32, fin: bool, header: Header) -> (Effects, Effects) {
        let segment = Segment {
            seq: self.seq(false, self.log.next(false)).wrapping_add_signed(off),
            ack: self.seq(true, self.log.next(true)).wrapping_add(ahead),
            len: len.into(),
            flags: ACK | if fin { FIN } else { 0 },
            window: header.window,
            stamps: self.stamps(false, self.stamp(false, header.clock)),
        };
        let before = self.flow;
        let got = self.meet(false, &segment);
        assert_eq!(self.flow, before, "forged bytes change nothing");
        (got, Effects { bits: Effects::FORGED, ..Effects::default() })
    }

    fn step(&mut self, op: &Op, header: Header) -> Option<(Effects, Effects)> {
        let nothing = |by_node: bool, pair: &Self| (pair.log.next(by_node), 0, false);
        Some(match *op {
            Op::NodeData { len, fin, ack } => self.data(true, (0, len, fin), ack, header),
            Op::OriginData { lost, len, fin, ack } => self.data(false, (lost, len, fin), ack, header),
            Op::NodeAgain { back, ack } => return self.again(true, back, ack, header),
            Op::OriginAgain { back, ack } => return self.again(false, back, ack, header),
            Op::NodeAck { ack } => self.send(true, nothing(true, self), self.ack(true, ack), header),
            Op::OriginAck { ack } => self.send(false, nothing(false, self), self.ack(false, ack), header),
            Op::OriginReset { at, off } => self.reset(at, off, header),
            Op::Forged { off, len, ahead, fin } => self.forged(off, len, ahead, fin, header),
            Op::NodeReset => {
                let stamps = self.stamps(true, self.stamp(true, header.clock));
                let segment =
                    Segment { seq: self.seq(true, self.log.next(true)), flags: RST, stamps, ..Segment::default() };
                (self.meet(true, &segment), self.log.abort(self.handshake))
            }
            Op::NodeGuess { off, len } => {
                self.attempt?;
                let (seq, ack) = (self.seq(true, BASE), self.seq(false, BASE).wrapping_add(off));
                let segment = Segment { seq, ack, len: len.into(), flags: ACK, ..Segment::default() };
                (self.meet(true, &segment), Effects::default())
            }
            Op::AnswerAgain { off } => {
                let attempt = self.attempt.as_mut()?;
                self.origin_isn = self.origin_isn.wrapping_add(off);
                let ack = self.isn.wrapping_add(1);
                let segment = Segment { seq: self.origin_isn, ack, flags: SYN | ACK, ..Segment::default() };
                assert_eq!(answer(attempt, &segment), Answer::Accepted);
                accept(attempt, &segment, Be16(1), self.now);
                self.flow = open(attempt);
                return None;
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

fn handshake() -> impl Strategy<Value = Handshake> {
    (1u64..200_000, 0u8..=14, any::<bool>()).prop_map(|(rtt_us, shift, forwarded)| Handshake {
        rtt_ns: rtt_us * 1000,
        shift,
        forwarded,
    })
}

/// As the environment has it (`PROPTEST_CASES`, `PROPTEST_RNG_SEED`), which is how `cargo xtask fuzz track` asks for more.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().map_or(CASES, |cases| cases.parse().expect("a number of cases"));
    ProptestConfig { cases, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_run_of_packets_means_what_the_model_says(
        isns in (isn(), isn(), isn()), handshake in handshake(), ops in ops(),
    ) {
        let mut pair = Pair::new(isns, handshake);
        for (i, (op, header)) in ops.iter().enumerate() {
            let Some((got, want)) = pair.step(op, *header) else { continue };
            prop_assert_eq!(got, want, "packet {}: {:?}, {:?}", i, op, header);
            if want.has(Effects::CLOSED) {
                break;
            }
            prop_assert_eq!(pair.flow.request_ns, pair.log.request().unwrap_or(0));
            prop_assert_eq!(pair.flow.sample_ns, pair.log.waiting().map_or(0, |(_, at)| at));
            prop_assert_eq!(pair.flow.origin_next, pair.seq(false, pair.log.next(false)));
            prop_assert_eq!(pair.flow.node_next, pair.seq(true, pair.log.next(true)));
        }
    }
}
