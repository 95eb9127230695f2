//! What must be counted for a frame, and what is then known of its flow. What a packet means to an established flow is asked
//! of `track`, which has a model of its own.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use health_common::flow::{ANSWERED, AT_CLIENT, FORWARDED, Flow, HalfOpen};
use health_common::map::Count;
use health_common::net::Be16;
use health_common::track::{self, ACK, Answer, Effects, FIN, RST, SYN, Segment};

use super::read::{Error, Read, Says, Tcp, read};
use crate::support::{A, B, Hook, Plan};

/// The node's side first.
type Key = (SocketAddr, SocketAddr);

/// What is expected: signals of origins, and counters of the node, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) signals: BTreeMap<(u16, &'static str), i64>,
    pub(super) counts: BTreeMap<&'static str, i64>,
}

impl Tally {
    fn add(&mut self, origin: u16, signal: &'static str, by: i64) {
        if by != 0 {
            *self.signals.entry((origin, signal)).or_default() += by;
        }
    }

    fn count(&mut self, count: Count) {
        *self.counts.entry(count.name()).or_default() += 1;
    }
}

/// Everything that was said so far.
pub(super) struct World {
    plans: [Plan; 2],
    attempts: HashMap<Key, HalfOpen>,
    flows: HashMap<Key, Flow>,
    pub(super) tally: Tally,
    clock: u64,
}

impl World {
    pub(super) fn new(plans: [Plan; 2]) -> Self {
        Self { plans, attempts: HashMap::new(), flows: HashMap::new(), tally: Tally::default(), clock: 1 }
    }

    /// Connection attempts and flows that are known.
    pub(super) fn entries(&self) -> [usize; 4] {
        [self.attempts.len(), self.flows.len(), 0, 0]
    }

    fn origin(&self, address: SocketAddr) -> Option<u16> {
        [A, B].into_iter().find(|&id| self.plans.iter().any(|plan| plan.address(id) == address))
    }

    pub(super) fn push(&mut self, hook: Hook, frame: &[u8]) {
        self.clock += 1;
        match read(frame) {
            Read::Skipped(count) => self.tally.count(count),
            Read::Error(error) if hook == Hook::Ingress => self.error(&error),
            // The node's side complains of what an origin sent: nobody's evidence.
            Read::Other | Read::Error(_) => {}
            Read::Tcp(packet) if hook == Hook::Ingress => self.origin_sent(&packet),
            Read::Tcp(packet) => self.node_sent(&packet, hook == Hook::Client),
        }
    }

    fn node_sent(&mut self, packet: &Tcp, at_client: bool) {
        let (key, segment) = ((packet.from, packet.to), &packet.segment);
        if segment.flags & (SYN | ACK | RST | FIN) == SYN {
            return self.syn(packet, at_client);
        }
        if let Some(flow) = self.flows.get_mut(&key) {
            // Whoever follows it where it arrives has counted it there.
            if flow.flags & AT_CLIENT != 0 && !at_client {
                return;
            }
            let (clock, origin) = (self.clock, flow.origin);
            let effects = track::from_node(flow, segment, || clock);
            self.tally.add(origin, "pkts_out", 1);
            self.tally.add(origin, "bytes_out", segment.len.into());
            return self.ended(key, origin, effects);
        }
        if self.origin(packet.to).is_none() {
            return;
        }
        if let Some(&attempt) = self.attempts.get(&key) {
            if attempt.flags & ANSWERED != 0 {
                if attempt.flags & AT_CLIENT == 0 || at_client {
                    self.node_opens(key, &attempt, segment);
                }
                return;
            }
            let acknowledges = segment.has(ACK) && !segment.has(RST);
            if acknowledges && segment.seq == attempt.isn.wrapping_add(1) {
                self.attempts.remove(&key);
            }
        } else if !at_client {
            self.tally.count(Count::PickedUp);
        }
    }

    /// The node's side, where the answer has passed.
    fn node_opens(&mut self, key: Key, attempt: &HalfOpen, segment: &Segment) {
        if !track::opens(attempt, segment) {
            return;
        }
        let (mut flow, clock) = (track::open(attempt), self.clock);
        let effects = track::from_node(&mut flow, segment, || clock);
        self.tally.add(flow.origin, "pkts_out", 1);
        self.tally.add(flow.origin, "bytes_out", segment.len.into());
        self.begin(key, flow, effects);
    }

    /// The origin, before the node's side is seen to have had its answer.
    fn origin_goes_on(&mut self, key: Key, segment: &Segment) {
        let (clock, Some(attempt)) = (self.clock, self.attempts.get_mut(&key)) else { return };
        let origin = attempt.origin;
        self.tally.add(origin, "pkts_in", 1);
        self.tally.add(origin, "bytes_in", segment.len.into());
        if track::answer(attempt, segment) == Answer::Accepted {
            return track::accept(attempt, segment, Be16(0), 0);
        }
        let mut flow = track::open(attempt);
        let effects = track::from_origin(&mut flow, segment, clock);
        if effects.has(Effects::CLOSED) || track::goes_on(attempt, segment, &effects) {
            self.begin(key, flow, effects);
        } else {
            self.ended(key, origin, effects);
        }
    }

    fn begin(&mut self, key: Key, flow: Flow, effects: Effects) {
        self.tally.add(flow.origin, "opened", 1);
        self.attempts.remove(&key);
        self.flows.insert(key, flow);
        self.ended(key, flow.origin, effects);
    }

    fn syn(&mut self, packet: &Tcp, at_client: bool) {
        let (key, segment) = ((packet.from, packet.to), &packet.segment);
        let Some(origin) = self.origin(packet.to) else { return };
        if at_client && origin != A {
            // Nothing to steer there: egress will see it.
            return;
        }
        if at_client && !packet.is_deliverable {
            return self.tally.count(Count::SkippedUndeliverable);
        }
        if let Some(attempt) = self.attempts.get_mut(&key)
            && attempt.isn == segment.seq
        {
            if attempt.flags & AT_CLIENT == 0 || at_client {
                attempt.repeat();
                let origin = attempt.origin;
                self.tally.add(origin, "syn_retrans", 1);
            }
            return;
        }
        self.flows.remove(&key);
        let flags = if at_client { AT_CLIENT | FORWARDED } else { 0 };
        let mut attempt = HalfOpen { isn: segment.seq, window: segment.window, origin, flags, ..HalfOpen::default() };
        attempt.set_node_shift(window_shift(&packet.options));
        self.attempts.insert(key, attempt);
        self.tally.add(origin, "syn", 1);
    }

    fn origin_sent(&mut self, packet: &Tcp) {
        let (key, segment) = ((packet.to, packet.from), &packet.segment);
        if let Some(flow) = self.flows.get_mut(&key) {
            let origin = flow.origin;
            let effects = track::from_origin(flow, segment, self.clock);
            self.tally.add(origin, "pkts_in", 1);
            self.tally.add(origin, "bytes_in", segment.len.into());
            if effects.has(Effects::RESPONSE) {
                let class = ["", "http_1xx", "http_2xx", "http_3xx", "http_4xx", "http_5xx"][class(&packet.payload)];
                self.tally.add(origin, class, i64::from(!class.is_empty()));
            }
            return self.ended(key, origin, effects);
        }
        if self.origin(packet.from).is_none() {
            return;
        }
        let Some(attempt) = self.attempts.get_mut(&key) else { return };
        if attempt.flags & ANSWERED != 0 {
            return self.origin_goes_on(key, segment);
        }
        match track::answer(attempt, segment) {
            Answer::None => {}
            Answer::Refused => {
                self.tally.add(attempt.origin, "refused", 1);
                self.attempts.remove(&key);
            }
            Answer::Accepted => {
                for signal in ["synack", "pkts_in"] {
                    self.tally.add(attempt.origin, signal, 1);
                }
                self.tally.add(attempt.origin, "rtt samples", i64::from(attempt.repeats() == 0));
                track::accept(attempt, segment, Be16(0), 0);
            }
        }
    }

    /// An error from an origin's side: it means something if what it quotes is under way.
    fn error(&mut self, error: &Error) {
        let key = (error.from, error.to);
        if self.origin(error.to).is_none() {
            return;
        }
        if let Some(attempt) = self.attempts.get(&key) {
            if attempt.isn != error.seq || attempt.flags & ANSWERED != 0 {
                self.tally.count(Count::IcmpForged);
            } else if error.says != Says::Other {
                let signal = if error.says == Says::Refused { "refused" } else { "unreachable" };
                self.tally.add(attempt.origin, signal, 1);
                self.attempts.remove(&key);
            }
        } else if let Some(flow) = self.flows.get(&key) {
            // From the first unacknowledged byte on, and before what is still to be sent.
            let (sent, since) = (flow.node_next.wrapping_sub(flow.origin_ack), error.seq.wrapping_sub(flow.origin_ack));
            if since >= sent {
                self.tally.count(Count::IcmpForged);
            } else if error.says == Says::Unreachable {
                self.tally.add(flow.origin, "unreachable", 1);
            }
        }
    }

    /// Counts what a packet of a flow meant; whether the flow goes on.
    fn ended(&mut self, key: Key, origin: u16, effects: Effects) {
        let table = [
            (Effects::REQUEST, "request"),
            (Effects::RESPONSE, "response"),
            (Effects::VOID, "request_void"),
            (Effects::RESET_EARLY, "reset_early"),
            // Which of the two hangs on a clock that is not ours.
            (Effects::RESET_MID | Effects::RESET_IDLE, "reset_mid or reset_idle"),
            (Effects::RST_SUSPECT, "rst_suspect"),
            (Effects::RST_FORGED, "rst_forged"),
            (Effects::CLIENT_ABORT, "client_abort"),
            (Effects::LOCAL_DROP, "local_drop"),
            (Effects::CLOSED, "closed"),
            (Effects::RETRANS, "retrans"),
            (Effects::ZERO_WINDOW, "zero_window"),
            (Effects::SAMPLE, "stamp samples"),
            (Effects::RESPONSE, "ttfb samples"),
        ];
        for (bits, signal) in table {
            self.tally.add(origin, signal, i64::from(effects.has(bits)));
        }
        if effects.has(Effects::FORGED) {
            self.tally.count(Count::Forged);
        }
        if effects.has(Effects::CLOSED) {
            self.flows.remove(&key);
        }
    }
}

/// RFC 7323 §2.2: option 3, of three bytes; at most 14. Options that make no sense end the list.
fn window_shift(options: &[u8]) -> u8 {
    let (mut at, mut shift) = (0, 0);
    while let Some(&kind) = options.get(at) {
        at += match (kind, options.get(at + 1)) {
            (1, _) => 1,
            (0, _) | (_, None | Some(0 | 1)) => break,
            (_, Some(&len)) if at + usize::from(len) > options.len() => break,
            (3, Some(&len)) if len >= 3 => {
                shift = options[at + 2].min(14);
                len.into()
            }
            (_, Some(&len)) => len.into(),
        };
    }
    shift
}

/// RFC 9112 §4.
fn class(payload: &[u8]) -> usize {
    let line = payload.get(..12).and_then(|line| std::str::from_utf8(line).ok());
    let Some((version, status)) = line.and_then(|line| line.split_once(' ')) else { return 0 };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let minor = version.strip_prefix("HTTP/1.").is_some_and(|minor| minor.len() == 1 && digits(minor));
    match status.bytes().next() {
        Some(first @ b'1'..=b'5') if minor && status.len() == 3 && digits(status) => usize::from(first - b'0'),
        _ => 0,
    }
}
