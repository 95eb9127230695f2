//! Tables: one packet after another through one flow.

extern crate std;

use std::vec::Vec;

use super::*;
use crate::{
    flow::{HalfOpen, MOVED, TRIAL},
    net::Be16,
};

const MS: u64 = 1_000_000;
const SEC: u64 = 1_000 * MS;
/// Number of the client's SYN.
const ISN: u32 = 1_000;
/// Number of the origin's SYN-ACK.
const ORIGIN_ISN: u32 = 50_000;
/// The node's port.
const PORT: Be16 = Be16::new(40_000);

/// A flow under test, its packets numbered from its first bytes on.
struct Case {
    flow: Flow,
    isn: u32,
    origin_isn: u32,
}

impl Case {
    fn new() -> Self {
        Self::numbered(ISN, ORIGIN_ISN)
    }

    fn numbered(isn: u32, origin_isn: u32) -> Self {
        let flow = establish(&attempt(isn), &syn_ack(isn, origin_isn), 0, SEC + MS);
        Self { flow, isn, origin_isn }
    }

    /// From the node: `from` and `ack` count bytes since the handshake.
    fn node(&mut self, at: u64, flags: u8, from: u32, len: u32, ack: u32) -> Effects {
        let (seq, ack) =
            (self.isn.wrapping_add(1).wrapping_add(from), self.origin_isn.wrapping_add(1).wrapping_add(ack));
        from_node(&mut self.flow, &Segment { seq, ack, len, flags, window: 10_000, ..Segment::default() }, || at)
    }

    /// From the origin.
    fn origin(&mut self, at: u64, flags: u8, from: u32, len: u32, ack: u32) -> Effects {
        let (seq, ack) =
            (self.origin_isn.wrapping_add(1).wrapping_add(from), self.isn.wrapping_add(1).wrapping_add(ack));
        from_origin(&mut self.flow, &Segment { seq, ack, len, flags, window: 10_000, ..Segment::default() }, at)
    }

    /// A request of 100 bytes, and 200 bytes that answer it, all acknowledged.
    fn answered(at: u64) -> Self {
        let mut case = Self::new();
        case.node(at, ACK, 0, 100, 0);
        case.origin(at + MS, ACK, 0, 200, 100);
        case.node(at + MS, ACK, 100, 0, 200);
        case
    }
}

/// The flow of an attempt that is accepted.
fn establish(attempt: &HalfOpen, syn_ack: &Segment, node_shift: u8, now_ns: u64) -> Flow {
    let mut attempt = *attempt;
    attempt.set_node_shift(node_shift);
    accept(&mut attempt, syn_ack, PORT, now_ns);
    open(&attempt)
}

fn attempt(isn: u32) -> HalfOpen {
    HalfOpen { syn_ns: SEC, isn, client: 7, origin: 3, ..HalfOpen::default() }
}

fn syn_ack(isn: u32, seq: u32) -> Segment {
    Segment { seq, ack: isn.wrapping_add(1), flags: SYN | ACK, ..Segment::default() }
}

fn effects(bits: u32, request_ns: u64) -> Effects {
    Effects { bits, request_ns, ..NOTHING }
}

const NOTHING: Effects = Effects { bits: 0, sample_ns: 0, request_ns: 0 };

#[test]
fn only_an_answer_to_this_syn_is_one() {
    let table = [
        ("SYN-ACK", SYN | ACK, ISN + 1, Answer::Accepted),
        ("SYN-ACK of another SYN", SYN | ACK, ISN + 2, Answer::None),
        ("SYN-ACK of the SYN's own number", SYN | ACK, ISN, Answer::None),
        ("SYN-ACK with ECN's bits", SYN | ACK | 0x40, ISN + 1, Answer::Accepted),
        ("RST,ACK", RST | ACK, ISN + 1, Answer::Refused),
        ("RST,ACK with a forged number", RST | ACK, ISN + 1 + (1 << 30), Answer::None),
        ("RST,ACK one off", RST | ACK, ISN, Answer::None),
        ("RST without ACK", RST, ISN + 1, Answer::None),
        ("SYN of the other side", SYN, ISN + 1, Answer::None),
        ("a challenge ACK", ACK, ISN + 1, Answer::None),
    ];
    for (name, flags, ack, want) in table {
        let segment = Segment { seq: ORIGIN_ISN, ack, flags, ..Segment::default() };
        assert_eq!(answer(&attempt(ISN), &segment), want, "{name}");
    }
    let segment = Segment { seq: 0, ack: 0, flags: RST | ACK, ..Segment::default() };
    assert_eq!(answer(&attempt(u32::MAX), &segment), Answer::Refused, "ISN + 1 wraps to 0");
}

#[test]
fn a_flow_is_what_its_handshake_said() {
    let case = Case::new();

    assert_eq!((case.flow.rtt_us, case.flow.client, case.flow.origin, case.flow.wire_port), (1_000, 7, 3, PORT));
    assert_eq!((case.flow.node_next, case.flow.node_ack), (ISN + 1, ORIGIN_ISN + 1));
    assert_eq!((case.flow.origin_next, case.flow.origin_ack), (ORIGIN_ISN + 1, ISN + 1));
    let moved = HalfOpen { flags: MOVED | TRIAL | ANSWERED, ..attempt(ISN) };
    assert_eq!(establish(&moved, &syn_ack(ISN, 0), 0, SEC).flags, MOVED | TRIAL);
}

/// P05: nobody who forges SYNs makes flows of them.
#[test]
fn only_who_has_seen_the_answer_opens_the_flow() {
    let mut accepted = attempt(ISN);
    accept(&mut accepted, &syn_ack(ISN, ORIGIN_ISN), PORT, SEC + MS);
    let table = [
        ("the ACK of the answer", ACK, ISN + 1, ORIGIN_ISN + 1, true),
        ("bytes, for that was lost", ACK, ISN + 101, ORIGIN_ISN + 1, true),
        ("FIN", ACK | FIN, ISN + 1, ORIGIN_ISN + 1, true),
        ("RST", RST, ISN + 1, 0, true),
        ("a guess", ACK, ISN + 1, ORIGIN_ISN, false),
        ("another", ACK, ISN + 1, ORIGIN_ISN + 2, false),
        ("bytes without ACK", 0, ISN + 1, ORIGIN_ISN + 1, false),
    ];
    for (name, flags, seq, ack, want) in table {
        assert_eq!(opens(&accepted, &Segment { seq, ack, flags, len: 1, ..Segment::default() }), want, "{name}");
    }
}

/// The node's side may have passed elsewhere.
#[test]
fn an_origin_goes_on_at_its_exact_number() {
    let mut accepted = attempt(ISN);
    accept(&mut accepted, &syn_ack(ISN, ORIGIN_ISN), PORT, SEC + MS);
    let table = [
        ("a banner", ACK, ORIGIN_ISN + 1, 20, true),
        ("FIN", ACK | FIN, ORIGIN_ISN + 1, 0, true),
        ("nothing new", ACK, ORIGIN_ISN + 1, 0, false),
        ("its second segment", ACK, ORIGIN_ISN + 21, 20, false),
        ("the SYN again", SYN | ACK, ORIGIN_ISN + 1, 20, false),
        ("RST", RST | ACK, ORIGIN_ISN + 1, 0, false),
        ("bytes without ACK", 0, ORIGIN_ISN + 1, 20, false),
    ];
    for (name, flags, seq, len, want) in table {
        let segment = Segment { seq, ack: ISN + 1, flags, len, ..Segment::default() };
        let effects = from_origin(&mut open(&accepted), &segment, SEC);
        assert_eq!(goes_on(&accepted, &segment, &effects), want, "{name}");
    }
}

/// An origin that answers with cookies may change its number from one minute to the next.
#[test]
fn a_second_answer_changes_the_number_and_nothing_else() {
    let mut accepted = attempt(ISN);
    let stamps = Stamps { value: 1, echo: 77 };
    accept(&mut accepted, &Segment { stamps, ..syn_ack(ISN, ORIGIN_ISN) }, PORT, SEC + MS);
    let first = open(&accepted);
    accepted.repeat();
    accept(&mut accepted, &syn_ack(ISN, 9), Be16::new(1), 3 * SEC);

    assert_eq!((first.stamp, first.rtt_us), (77, 1_000));
    assert_eq!(open(&accepted), Flow { node_ack: 10, origin_next: 10, ..first });
}

#[test]
fn repeats_and_the_shift_share_a_byte() {
    let mut attempt = attempt(ISN);
    attempt.set_node_shift(14);
    for count in 1..20 {
        attempt.repeat();
        assert_eq!((attempt.repeats(), attempt.node_shift()), (count.min(15), 14));
    }
    attempt.set_node_shift(3);
    assert_eq!((attempt.repeats(), attempt.node_shift()), (15, 3));
}

/// P04 (a): neither 20 ms nor 1.02 s is the RTT (RFC 6298 §3).
#[test]
fn p04_a_a_repeated_syn_gives_no_rtt() {
    let mut repeated = attempt(ISN);
    repeated.repeat();

    assert_eq!(establish(&repeated, &syn_ack(ISN, ORIGIN_ISN), 0, SEC + 1_020 * MS).rtt_us, 0);
}

#[test]
fn a_long_or_negative_rtt_does_not_wrap() {
    let early = establish(&attempt(ISN), &syn_ack(ISN, 0), 0, SEC - 1);
    let late = establish(&attempt(ISN), &syn_ack(ISN, 0), 0, SEC + 5_000_000 * MS * 1_000);

    assert_eq!((early.rtt_us, late.rtt_us), (0, u32::MAX));
}

#[test]
fn requests_and_responses_alternate_on_a_kept_connection() {
    let mut case = Case::new();

    assert_eq!(case.node(SEC, ACK, 0, 100, 0), effects(Effects::REQUEST, 0));
    assert_eq!(case.origin(SEC + MS, ACK, 0, 0, 100), NOTHING, "an ACK is no response");
    assert_eq!(case.origin(SEC + 2 * MS, ACK, 0, 1400, 100), effects(Effects::RESPONSE, SEC));
    assert_eq!(case.origin(SEC + 3 * MS, ACK, 1400, 600, 100), NOTHING, "the rest of the response");
    assert_eq!(case.node(SEC + 3 * MS, ACK, 100, 0, 2000), NOTHING);
    assert_eq!(case.node(9 * SEC, ACK, 100, 50, 2000), effects(Effects::REQUEST, 0), "the second request");
    assert_eq!(case.origin(9 * SEC + MS, ACK, 2000, 10, 150), effects(Effects::RESPONSE, 9 * SEC));
}

#[test]
fn an_upload_renews_the_clock_of_its_request() {
    let mut case = Case::new();

    assert_eq!(case.node(SEC, ACK, 0, 1400, 0), effects(Effects::REQUEST, 0));
    assert_eq!(case.node(2 * SEC, ACK, 1400, 1400, 0), effects(Effects::REFRESHED, SEC));
    assert_eq!(case.node(3 * SEC, ACK, 2800, 1400, 0), effects(Effects::REFRESHED, 2 * SEC));
    assert_eq!(case.node(4 * SEC, ACK, 1400, 1400, 0), effects(Effects::RETRANS, 0), "a repeat renews nothing");
    assert_eq!(case.node(5 * SEC, ACK, 2800, 2800, 0), effects(Effects::REFRESHED, 3 * SEC), "half a repeat, half new");
    assert_eq!(case.origin(6 * SEC, ACK, 0, 20, 5600), effects(Effects::RESPONSE, 5 * SEC));
}

/// P04 (c): the first byte counts, however long the stream goes on.
#[test]
fn p04_c_a_stream_gives_one_sample_at_its_first_byte() {
    let mut case = Case::new();
    case.node(SEC, ACK, 0, 300, 0);

    assert_eq!(case.origin(SEC + 15 * MS, ACK, 0, 129, 300), effects(Effects::RESPONSE, SEC));
    assert_eq!(case.origin(41 * SEC, ACK, 129, 6, 300), NOTHING, "a frame 40 s later");
    assert_eq!(case.origin(301 * SEC, ACK | FIN, 135, 0, 300), NOTHING);
}

/// One segment with a stamp: whose; bytes from there on, so many; the node's clock, or its echo; the sample that ends, by
/// when its segment left.
type Stamped = (bool, u32, u32, u32, Option<u64>);

/// At each second one of `steps`, on a fresh flow whose SYN bore the stamp 100.
#[track_caller]
fn check_samples(name: &str, steps: &[Stamped]) {
    let answer = Segment { stamps: Stamps { value: 5_000, echo: 100 }, ..syn_ack(ISN, ORIGIN_ISN) };
    let mut flow = establish(&attempt(ISN), &answer, 0, SEC + MS);
    for (i, &(node, from, len, stamp, left)) in (2..).zip(steps) {
        let at = i * SEC;
        let base = Segment { len, flags: ACK, window: 10_000, ..Segment::default() };
        let got = if node {
            let stamps = Stamps { value: stamp, echo: 5_000 };
            let segment = Segment { seq: ISN + 1 + from, ack: ORIGIN_ISN + 1, stamps, ..base };
            from_node(&mut flow, &segment, || at)
        } else {
            let stamps = Stamps { value: 5_000, echo: stamp };
            let segment = Segment { seq: ORIGIN_ISN + 1 + from, ack: flow.origin_ack, stamps, ..base };
            from_origin(&mut flow, &segment, at)
        };
        assert_eq!(got.has(Effects::SAMPLE).then_some(got.sample_ns), left, "{name}: at {i} s");
    }
}

const FROM_NODE: bool = true;
const FROM_ORIGIN: bool = false;

#[test]
fn a_stamp_that_comes_back_is_a_sample() {
    check_samples(
        "one for each request",
        &[
            (FROM_NODE, 0, 100, 101, None),
            (FROM_ORIGIN, 0, 0, 101, Some(2 * SEC)),
            (FROM_NODE, 100, 100, 102, None),
            (FROM_ORIGIN, 0, 200, 102, Some(4 * SEC)),
        ],
    );
    check_samples(
        "the SYN's own stamp answers the handshake, no data",
        &[(FROM_NODE, 0, 100, 100, None), (FROM_ORIGIN, 0, 0, 100, None)],
    );
    check_samples("an ACK begins none", &[(FROM_NODE, 0, 0, 101, None), (FROM_ORIGIN, 0, 40, 101, None)]);
    check_samples(
        "data in the same tick as an ACK, which may be what the origin echoes",
        &[(FROM_NODE, 0, 0, 101, None), (FROM_NODE, 0, 100, 101, None), (FROM_ORIGIN, 0, 0, 101, None)],
    );
}

/// P04 (b).
#[test]
fn p04_b_a_stamp_gives_one_sample_however_its_segments_are_ordered() {
    check_samples(
        "two segments with one stamp",
        &[
            (FROM_NODE, 0, 100, 101, None),
            (FROM_NODE, 100, 100, 101, None),
            (FROM_ORIGIN, 0, 0, 101, Some(2 * SEC)),
            (FROM_ORIGIN, 0, 0, 101, None),
        ],
    );
    check_samples(
        "reordered: the second comes here first",
        &[
            (FROM_NODE, 100, 100, 101, None),
            (FROM_NODE, 0, 100, 101, None),
            (FROM_ORIGIN, 0, 0, 101, Some(2 * SEC)),
            (FROM_ORIGIN, 0, 0, 101, None),
        ],
    );
    check_samples(
        "an older stamp behind a newer one",
        &[
            (FROM_NODE, 100, 100, 103, None),
            (FROM_NODE, 0, 100, 101, None),
            (FROM_ORIGIN, 0, 0, 101, None),
            (FROM_ORIGIN, 0, 0, 103, Some(2 * SEC)),
        ],
    );
}

#[test]
fn an_echo_that_may_be_of_a_repeat_is_no_sample() {
    check_samples(
        "the segment was sent again, with a newer stamp",
        &[
            (FROM_NODE, 0, 100, 101, None),
            (FROM_NODE, 0, 100, 301, None),
            (FROM_ORIGIN, 0, 0, 301, None),
            (FROM_ORIGIN, 0, 0, 101, None),
        ],
    );
    check_samples(
        "an echo of the future ends the wait, and the next request begins another",
        &[
            (FROM_NODE, 0, 100, 101, None),
            (FROM_ORIGIN, 0, 0, 101 + (1 << 30), None),
            (FROM_ORIGIN, 0, 0, 101, None),
            (FROM_NODE, 100, 100, 102, None),
            (FROM_ORIGIN, 0, 0, 102, Some(5 * SEC)),
        ],
    );
    check_samples(
        "an echo of what was sent before",
        &[(FROM_NODE, 0, 100, 101, None), (FROM_ORIGIN, 0, 0, 100, None), (FROM_ORIGIN, 0, 0, 101, Some(2 * SEC))],
    );
}

#[test]
fn stamps_wrap() {
    let answer = Segment { stamps: Stamps { value: 1, echo: u32::MAX }, ..syn_ack(ISN, ORIGIN_ISN) };
    let mut flow = establish(&attempt(ISN), &answer, 0, SEC + MS);
    let base = Segment { len: 10, flags: ACK, window: 10, ..Segment::default() };
    // Clock 0 with an echo is a stamp like any other.
    let stamps = Stamps { value: 0, echo: 1 };
    from_node(&mut flow, &Segment { seq: ISN + 1, ack: ORIGIN_ISN + 1, stamps, ..base }, || SEC);
    let stamps = Stamps { value: 1, echo: 0 };
    let got = from_origin(&mut flow, &Segment { seq: ORIGIN_ISN + 1, ack: ISN + 11, stamps, ..base }, 2 * SEC);

    assert_eq!((got.has(Effects::SAMPLE), got.sample_ns), (true, SEC));
}

#[test]
fn forged_echoes_end_no_wait() {
    let mut case = Case::new();
    let stamps = Stamps { value: 101, echo: 1 };
    let base = Segment { flags: ACK, window: 10_000, stamps, ..Segment::default() };
    from_node(&mut case.flow, &Segment { seq: ISN + 1, ack: ORIGIN_ISN + 1, len: 10, ..base }, || SEC);
    let before = case.flow;
    let stamps = Stamps { value: 1, echo: 101 };
    let got =
        from_origin(&mut case.flow, &Segment { seq: ORIGIN_ISN + 1, ack: ISN + 100, stamps, window: 0, ..base }, SEC);

    assert_eq!((got, case.flow), (effects(Effects::FORGED, 0), before));
}

#[test]
fn a_closed_window_counts_once_until_it_opens() {
    let mut case = Case::answered(SEC);
    let mut origin = |window: u16, flags: u8, ack: u32| {
        let seq = ORIGIN_ISN + 201;
        let segment = Segment { seq, ack: ISN + 1 + ack, flags, window, ..Segment::default() };
        from_origin(&mut case.flow, &segment, 2 * SEC).bits
    };
    let table: [(&str, u16, u8, u32, u32); 6] = [
        ("closed", 0, ACK, 100, Effects::ZERO_WINDOW),
        ("still closed", 0, ACK, 100, 0),
        ("forged", 10, ACK, 999, Effects::FORGED),
        ("still closed, whatever was forged", 0, ACK, 100, 0),
        ("open", 1, ACK, 100, 0),
        ("closed again", 0, ACK, 100, Effects::ZERO_WINDOW),
    ];
    for (name, window, flags, ack, want) in table {
        assert_eq!(origin(window, flags, ack), want, "{name}");
    }
}

/// RFC 7323 §2.2, RFC 5961 §3.2.
#[test]
fn what_is_suspect_depends_on_the_scaled_window() {
    // Window of the SYN, shift, window of a later segment if there is one; where the window ends.
    let table: [(&str, u16, u8, Option<u16>, u32); 6] = [
        ("of the SYN, never scaled", 1_000, 7, None, 1_000),
        ("not scaled", 64_000, 0, Some(1_000), 1_000),
        ("scaled", 64_000, 7, Some(1_000), 128_000),
        ("as far as it goes", 64_000, 14, Some(u16::MAX), 65_535 << 14),
        ("closed", 64_000, 7, Some(0), 0),
        ("smaller than it was", 64_000, 0, Some(5), 5),
    ];
    for (name, window, shift, later, end) in table {
        let syn = HalfOpen { window, ..attempt(ISN) };
        let mut flow = establish(&syn, &syn_ack(ISN, ORIGIN_ISN), shift, SEC);
        if let Some(window) = later {
            let segment = Segment { seq: ISN + 1, ack: ORIGIN_ISN + 1, flags: ACK, window, ..Segment::default() };
            from_node(&mut flow, &segment, || 0);
        }
        let mut reset = |off: u32| {
            let seq = (ORIGIN_ISN + 1).wrapping_add(off);
            from_origin(&mut flow, &Segment { seq, flags: RST, ..Segment::default() }, SEC).bits
        };
        let last = if end > 1 { Effects::RST_SUSPECT } else { Effects::RST_FORGED };
        assert_eq!(reset(end.max(2) - 1), last, "{name}: its last byte");
        assert_eq!(reset(end.max(1)), Effects::RST_FORGED, "{name}: behind it");
        assert_eq!(reset(u32::MAX), Effects::RST_FORGED, "{name}: before it");
    }
}

/// P04 (d): a server that speaks first answers nobody.
#[test]
fn p04_d_a_banner_is_no_response() {
    let mut case = Case::new();

    assert_eq!(case.origin(SEC, ACK, 0, 40, 0), NOTHING);
    assert_eq!(case.node(SEC + MS, ACK, 0, 10, 40), effects(Effects::REQUEST, 0));
    assert_eq!(case.origin(SEC + 2 * MS, ACK, 40, 40, 10), effects(Effects::RESPONSE, SEC + MS));
}

#[test]
fn repeats_and_keep_alives_are_neither_requests_nor_responses() {
    let mut case = Case::answered(SEC);

    assert_eq!(case.node(2 * SEC, ACK, 99, 1, 200), effects(Effects::RETRANS, 0), "keep-alive with a byte");
    assert_eq!(case.node(2 * SEC, ACK, 99, 0, 200), NOTHING, "keep-alive without");
    assert_eq!(case.origin(2 * SEC, ACK, 0, 200, 100), NOTHING, "the response again");
    assert_eq!(case.origin(2 * SEC, ACK, 199, 1, 100), NOTHING, "the origin's keep-alive");
    assert_eq!(case.node(3 * SEC, ACK, 100, 10, 200), effects(Effects::REQUEST, 0));
    assert_eq!(case.origin(3 * SEC, ACK, 0, 200, 100), NOTHING, "an old response answers no new request");
    let mut again = Segment { window: 10_000, ..syn_ack(ISN, ORIGIN_ISN) };
    assert_eq!(from_origin(&mut case.flow, &again, 3 * SEC), NOTHING, "the SYN-ACK again");
    again.flags = ACK;
    assert_eq!(from_node(&mut case.flow, &again, || 0), NOTHING);
}

/// P02: what an origin does to connections that it no longer wants is no failure.
#[test]
fn p02_a_a_request_that_crosses_the_origins_fin() {
    let mut case = Case::answered(SEC);

    assert_eq!(case.origin(61 * SEC, ACK | FIN, 200, 0, 100), NOTHING);
    assert_eq!(case.node(61 * SEC + 40 * MS, ACK, 100, 80, 201), effects(Effects::REQUEST, 0));
    let reset = case.origin(61 * SEC + 41 * MS, RST, 201, 0, 0);
    assert_eq!(reset, effects(Effects::RESET_IDLE | Effects::CLOSED | Effects::VOID, 61 * SEC + 40 * MS));
}

#[test]
fn p02_b_an_origin_that_has_forgotten_an_idle_flow() {
    let mut case = Case::answered(SEC);

    assert_eq!(case.node(601 * SEC, ACK, 100, 80, 200), effects(Effects::REQUEST, 0));
    let reset = case.origin(601 * SEC + MS, RST, 200, 0, 0);
    assert_eq!(reset, effects(Effects::RESET_IDLE | Effects::CLOSED | Effects::VOID, 601 * SEC));
}

#[test]
fn p02_c_a_reset_instead_of_the_first_answer_is_a_failure() {
    let mut case = Case::new();
    case.node(SEC, ACK, 0, 100, 0);

    let reset = case.origin(SEC + MS, RST | ACK, 0, 0, 100);
    assert_eq!(reset, effects(Effects::RESET_EARLY | Effects::CLOSED, SEC));
    assert_eq!(case.flow.request_ns, 0, "counted once");
}

#[test]
fn an_unused_connection_that_its_origin_closed_in_order_is_idle() {
    let mut case = Case::new();
    case.origin(60 * SEC, ACK | FIN, 0, 0, 0);
    case.node(60 * SEC + MS, ACK, 0, 100, 1);

    let reset = case.origin(60 * SEC + 2 * MS, RST, 1, 0, 0);
    assert_eq!(reset, effects(Effects::RESET_IDLE | Effects::CLOSED | Effects::VOID, 60 * SEC + MS));
}

#[test]
fn a_reset_is_read_by_the_phase_of_its_flow() {
    // What happens between a response at 1 s + 1 ms and the reset; when the reset comes; what it is.
    type Step = fn(&mut Case);
    let table: [(&str, Step, u64, u32); 7] = [
        ("199 ms after the last payload", |_| {}, SEC + 199 * MS, Effects::RESET_MID),
        ("later", |_| {}, SEC + 202 * MS, Effects::RESET_IDLE),
        (
            "with bytes unacknowledged",
            |case| {
                case.origin(2 * SEC, ACK, 200, 50, 100);
            },
            9 * SEC,
            Effects::RESET_MID,
        ),
        (
            "after the origin's FIN",
            |case| {
                case.origin(SEC + 2 * MS, ACK | FIN, 200, 0, 100);
            },
            SEC + 3 * MS,
            Effects::RESET_IDLE,
        ),
        (
            "after the node's FIN",
            |case| {
                case.node(SEC + 2 * MS, ACK | FIN, 100, 0, 200);
            },
            SEC + 3 * MS,
            Effects::RESET_MID,
        ),
        (
            "four of its RTTs after the last payload",
            |case| case.flow.rtt_us = 100_000,
            SEC + 390 * MS,
            Effects::RESET_MID,
        ),
        ("more than four", |case| case.flow.rtt_us = 100_000, SEC + 410 * MS, Effects::RESET_IDLE),
    ];
    for (name, between, at, want) in table {
        let mut case = Case::answered(SEC);
        between(&mut case);
        let next = case.flow.origin_next.wrapping_sub(ORIGIN_ISN + 1);
        assert_eq!(case.origin(at, RST, next, 0, 100), effects(want | Effects::CLOSED, 0), "{name}");
    }
}

#[test]
fn an_exact_reset_carries_one_of_two_numbers() {
    // 200 bytes acknowledged, 300 more under way.
    let table: [(&str, u32, u32); 9] = [
        ("the origin's next", 500, Effects::RESET_MID | Effects::CLOSED),
        ("what the node acknowledged last", 200, Effects::RESET_MID | Effects::CLOSED),
        ("between the two", 300, Effects::RST_SUSPECT),
        ("one behind", 199, Effects::RST_FORGED),
        ("one ahead", 501, Effects::RST_SUSPECT),
        ("in the window", 10_199, Effects::RST_SUSPECT),
        ("just outside of it", 10_200, Effects::RST_FORGED),
        ("1 GiB off", 200 + (1 << 30), Effects::RST_FORGED),
        ("the number before the handshake", u32::MAX, Effects::RST_FORGED),
    ];
    for (name, seq, want) in table {
        let mut case = Case::answered(SEC);
        case.origin(SEC + 2 * MS, ACK, 200, 300, 100);
        let before = case.flow;
        assert_eq!(case.origin(SEC + 3 * MS, RST, seq, 0, 100), effects(want, 0), "{name}");
        assert_eq!(case.flow, before, "{name}: a reset moves nothing");
    }
}

/// P06 (b): RFC 5961 §3.
#[test]
fn p06_b_a_forged_reset_is_no_evidence_and_closes_nothing() {
    let mut case = Case::answered(SEC);

    assert_eq!(case.origin(2 * SEC, RST, 200 + (1 << 30), 0, 100), effects(Effects::RST_FORGED, 0));
    for i in 0..100 {
        let (at, done) = (3 * SEC + u64::from(i) * MS, i * 10);
        assert_eq!(case.node(at, ACK, 100 + done, 10, 200 + done), effects(Effects::REQUEST, 0));
        assert_eq!(case.origin(at, ACK, 200 + done, 10, 110 + done), effects(Effects::RESPONSE, at));
    }
}

/// P06 (c), as far as it is decided here; the flow is gone for the late ACK.
#[test]
fn p06_c_an_exact_reset_counts_once() {
    let mut case = Case::answered(SEC);

    assert_eq!(case.origin(9 * SEC, RST, 200, 0, 100), effects(Effects::RESET_IDLE | Effects::CLOSED, 0));
}

#[test]
fn forged_data_prepares_no_reset_and_answers_no_request() {
    let in_window = 5_000;
    let table: [(&str, u8, u32, u32); 5] = [
        ("acknowledges what was never sent", ACK, in_window, 100_000),
        ("acknowledges what lies long behind", ACK, in_window, 0_u32.wrapping_sub(1 << 25)),
        ("acknowledges nothing", 0, in_window, 100),
        ("lies outside of any window", ACK, (1 << 30) + 300, 100),
        ("lies outside of any window, behind", ACK, 0_u32.wrapping_sub(1 << 30), 100),
    ];
    for (name, flags, seq, ack) in table {
        let mut case = Case::answered(SEC);
        case.node(2 * SEC, ACK, 100, 10, 200);
        let before = case.flow;
        assert_eq!(case.origin(2 * SEC, flags, seq, 10, ack), effects(Effects::FORGED, 0), "{name}");
        assert_eq!(case.origin(2 * SEC, flags | FIN, seq, 10, ack), effects(Effects::FORGED, 0), "{name}, with FIN");
        assert_eq!(case.flow, before, "{name}");
        let reset = case.origin(2 * SEC, RST, seq.wrapping_add(10), 0, 0);
        assert!(
            reset == effects(Effects::RST_FORGED, 0) || reset == effects(Effects::RST_SUSPECT, 0),
            "{name}: {reset:?}"
        );
    }
}

#[test]
fn both_fins_and_both_acknowledged_end_a_flow() {
    let origin_first: &[(bool, u8, u32, u32, bool)] = &[
        (false, ACK | FIN, 200, 100, false),
        (true, ACK, 100, 201, false),
        (true, ACK | FIN, 100, 201, false),
        (false, ACK, 201, 101, true),
    ];
    let node_first: &[(bool, u8, u32, u32, bool)] =
        &[(true, ACK | FIN, 100, 200, false), (false, ACK | FIN, 200, 101, false), (true, ACK, 101, 201, true)];
    let crossing: &[(bool, u8, u32, u32, bool)] = &[
        (true, ACK | FIN, 100, 200, false),
        (false, ACK | FIN, 200, 100, false),
        (true, ACK, 101, 201, false),
        (false, ACK, 201, 101, true),
    ];
    let repeated: &[(bool, u8, u32, u32, bool)] = &[
        (true, ACK | FIN, 100, 200, false),
        (true, ACK | FIN, 100, 200, false),
        (false, ACK, 200, 101, false),
        (false, ACK | FIN, 200, 101, false),
        (false, ACK | FIN, 200, 101, false),
        (true, ACK, 101, 201, true),
    ];
    for (name, steps) in
        [("origin first", origin_first), ("node first", node_first), ("crossing", crossing), ("repeated", repeated)]
    {
        let mut case = Case::answered(SEC);
        for (i, &(node, flags, from, ack, closes)) in steps.iter().enumerate() {
            let at = 2 * SEC;
            let got = if node { case.node(at, flags, from, 0, ack) } else { case.origin(at, flags, from, 0, ack) };
            assert_eq!(got, effects(if closes { Effects::CLOSED } else { 0 }, 0), "{name}, packet {i}");
        }
    }
}

#[test]
fn a_half_closed_flow_goes_on_until_all_of_it_has_arrived() {
    let mut case = Case::new();
    case.node(SEC, ACK | FIN, 0, 100, 0);
    case.origin(SEC + MS, ACK, 0, 1000, 101);
    // Bytes 1000 to 1999 are lost on the way to the node, after they passed here.
    case.origin(SEC + MS, ACK, 1000, 1000, 101);
    case.origin(SEC + MS, ACK | FIN, 2000, 1000, 101);

    assert_eq!(case.node(SEC + 2 * MS, ACK, 101, 0, 1000), NOTHING, "a duplicate ACK");
    assert_eq!(case.origin(SEC + 200 * MS, ACK, 1000, 1000, 101), NOTHING, "the lost bytes again");
    assert_eq!(case.node(SEC + 201 * MS, ACK, 101, 0, 3001), effects(Effects::CLOSED, 0));
}

#[test]
fn an_orderly_end_without_an_answer_is_void() {
    let mut case = Case::new();
    case.node(SEC, ACK, 0, 100, 0);

    assert_eq!(case.origin(2 * SEC, ACK | FIN, 0, 0, 100), effects(Effects::VOID, SEC));
    assert_eq!(case.origin(3 * SEC, ACK | FIN, 0, 0, 100), NOTHING, "the same FIN again");
}

#[test]
fn an_answer_that_ends_the_stream_is_an_answer() {
    let mut case = Case::new();
    case.node(SEC, ACK, 0, 100, 0);

    assert_eq!(case.origin(2 * SEC, ACK | FIN, 0, 50, 100), effects(Effects::RESPONSE, SEC));
}

#[test]
fn a_reset_of_the_node_is_its_own_doing() {
    let mut idle = Case::answered(SEC);
    assert_eq!(idle.node(2 * SEC, RST, 100, 0, 0), effects(Effects::LOCAL_DROP | Effects::CLOSED, 0));

    let mut waiting = Case::new();
    waiting.node(SEC, ACK, 0, 100, 0);
    let abort = Effects::LOCAL_DROP | Effects::CLOSED | Effects::VOID;
    assert_eq!(waiting.node(2 * SEC, RST | ACK, 100, 0, 0), effects(abort, SEC));
}

/// Whose RST it was is known by whose flow it is: a client's, or of a socket of this host.
#[test]
fn a_reset_of_a_forwarded_flow_is_its_clients_doing() {
    let attempt = HalfOpen { flags: FORWARDED, ..attempt(ISN) };
    let mut flow = establish(&attempt, &syn_ack(ISN, ORIGIN_ISN), 0, SEC + MS);
    let reset = Segment { seq: ISN + 1, flags: RST, ..Segment::default() };

    assert_eq!(from_node(&mut flow, &reset, || 0), effects(Effects::CLIENT_ABORT | Effects::CLOSED, 0));
}

/// A client that has waited long enough closes; the request stays due. So does one that half-closes at once, as some
/// protocols do, and is answered.
#[test]
fn who_closes_while_a_request_waits_has_given_it_up() {
    let mut case = Case::new();
    case.node(SEC, ACK, 0, 100, 0);
    assert_eq!(case.node(6 * SEC, ACK | FIN, 100, 0, 0), effects(Effects::GIVEN_UP, SEC));
    assert_eq!(case.node(7 * SEC, ACK | FIN, 100, 0, 0), NOTHING, "once");
    assert_eq!(case.origin(8 * SEC, ACK, 0, 10, 101), effects(Effects::RESPONSE, SEC));

    let mut idle = Case::answered(SEC);
    assert_eq!(idle.node(2 * SEC, ACK | FIN, 100, 0, 200), NOTHING);
    let mut last = Case::new();
    assert_eq!(
        last.node(SEC, ACK | FIN, 0, 100, 0),
        effects(Effects::REQUEST, 0),
        "its last words are one more request"
    );
}

#[test]
fn the_clock_is_read_for_new_bytes_only() {
    let mut case = Case::answered(SEC);
    let unread = || -> u64 { panic!("not for this packet") };
    let base = Segment { seq: ISN + 101, ack: ORIGIN_ISN + 201, flags: ACK, ..Segment::default() };
    for segment in [base, Segment { seq: ISN + 1, len: 100, ..base }, Segment { flags: ACK | FIN, ..base }] {
        from_node(&mut case.flow, &segment, unread);
    }
}

#[test]
fn numbers_wrap() {
    for isn in [u32::MAX - 50, u32::MAX - 1, u32::MAX, 0, i32::MAX as u32 - 50] {
        for origin_isn in [u32::MAX - 120, u32::MAX, i32::MAX as u32] {
            let mut case = Case::numbered(isn, origin_isn);
            let steps: Vec<Effects> = [
                case.node(SEC, ACK, 0, 100, 0),
                case.origin(SEC, ACK, 0, 200, 100),
                case.node(SEC, ACK, 0, 100, 200),
                case.node(2 * SEC, ACK, 100, 100, 200),
                case.origin(2 * SEC, ACK, 200, 200, 200),
                case.node(2 * SEC, ACK, 200, 0, 400),
                case.origin(3 * SEC, RST, 400, 0, 0),
            ]
            .into();
            let want = [
                effects(Effects::REQUEST, 0),
                effects(Effects::RESPONSE, SEC),
                effects(Effects::RETRANS, 0),
                effects(Effects::REQUEST, 0),
                effects(Effects::RESPONSE, 2 * SEC),
                NOTHING,
                effects(Effects::RESET_IDLE | Effects::CLOSED, 0),
            ];
            assert_eq!(steps, want, "{isn} and {origin_isn}");
        }
    }
}
