//! What packets count: handshakes, requests, ends.

use std::time::Duration;

use health_common::histogram::lower_bound;
use health_common::map::{Count, Node};
use health_common::origin::Origin;
use nix::time::{ClockId, clock_gettime};

use crate::support::kernel::{until, wait_ms};
use crate::support::packet::{ACK, FIN, PSH, RST, SYN};
use crate::support::{A, B, Conn, Hook, Kernel, PASS, Packet, Plan, REDIRECT};

fn both(test: impl Fn(Plan)) {
    for v6 in [false, true] {
        test(Plan::new(v6));
    }
}

fn samples(buckets: &[u32]) -> u32 {
    buckets.iter().sum()
}

#[test]
fn a_connection_from_its_syn_to_its_last_ack() {
    both(|plan| {
        let mut kernel = plan.load();
        let conn = plan.conn(40_000);
        assert_eq!(conn.syn(&kernel).verdict, PASS);
        assert_eq!((kernel.signals(A), kernel.entries()), (vec![("syn", 1)], [1, 0, 0, 0]));
        conn.syn_ack(&kernel);
        assert_eq!((kernel.signal(A, "opened"), kernel.entries()), (0, [1, 0, 0, 0]), "an answer is no flow");
        conn.send(&kernel, ACK, 0, 0, 0);
        assert_eq!((kernel.signal(A, "opened"), kernel.entries()), (1, [0, 1, 0, 0]), "the attempt became a flow");
        conn.request(&kernel);
        conn.respond(&kernel);
        conn.receive(&kernel, ACK | FIN, 200, 0, 100);
        conn.send(&kernel, ACK | FIN, 100, 0, 201);
        assert_eq!(kernel.entries()[1], 1, "the last ACK is still to come");
        conn.receive(&kernel, ACK, 201, 0, 101);

        let want = [
            ("syn", 1),
            ("synack", 1),
            ("request", 1),
            ("response", 1),
            ("opened", 1),
            ("closed", 1),
            ("pkts_out", 4),
            ("pkts_in", 4),
            ("bytes_out", 100),
            ("bytes_in", 200),
        ];
        assert_eq!((kernel.signals(A), kernel.counts(), kernel.entries()), (want.into(), vec![], [0; 4]));
        let counters = kernel.counters(A);
        assert_eq!((samples(&counters.rtt), samples(&counters.ttfb)), (1, 1));
        assert!(kernel.told().is_empty());
    });
}

/// What was made, and neither removed nor is there, was evicted.
#[test]
fn entries_made_and_removed_are_counted() {
    both(|plan| {
        let mut kernel = plan.load();
        let counts = |kernel: &Kernel| {
            [Count::HalfOpenMade, Count::HalfOpenRemoved, Count::FlowMade, Count::FlowRemoved]
                .map(|what| kernel.count(what))
        };
        let conn = plan.conn(40_000);
        conn.syn(&kernel);
        assert_eq!(counts(&kernel), [1, 0, 0, 0]);
        conn.syn(&kernel);
        assert_eq!(counts(&kernel), [1, 0, 0, 0], "a repeat makes nothing");
        conn.syn_ack(&kernel);
        assert_eq!(counts(&kernel), [1, 0, 0, 0], "an answer neither");
        conn.again().syn(&kernel);
        assert_eq!(counts(&kernel), [1, 0, 0, 0], "another attempt takes the place of the one before");
        conn.syn(&kernel);
        conn.syn_ack(&kernel);
        conn.send(&kernel, ACK, 0, 0, 0);
        assert_eq!(counts(&kernel), [1, 1, 1, 0]);
        conn.receive(&kernel, RST, 0, 0, 0);
        assert_eq!(counts(&kernel), [1, 1, 1, 1]);
        let refused = plan.conn(40_001);
        refused.syn(&kernel);
        refused.refuse(&kernel);
        assert_eq!((counts(&kernel), kernel.entries()), ([2, 2, 1, 1], [0; 4]));
        let port = plan.conn(40_002);
        port.handshake(&kernel);
        port.again().handshake(&kernel);
        assert_eq!((counts(&kernel), kernel.entries()), ([4, 4, 3, 2], [0, 1, 0, 0]));
    });
}

/// P04 (a).
#[test]
fn a_repeated_syn_counts_as_such_and_gives_no_rtt() {
    let plan = Plan::new(false);
    let kernel = plan.load();
    let conn = plan.conn(40_000);
    conn.syn(&kernel);
    conn.syn(&kernel);
    conn.syn_ack(&kernel);

    assert_eq!((kernel.signal(A, "syn"), kernel.signal(A, "syn_retrans"), kernel.signal(A, "synack")), (1, 1, 1));
    assert_eq!(samples(&kernel.counters(A).rtt), 0);
}

#[test]
fn only_the_right_acknowledgement_answers_a_syn() {
    both(|plan| {
        let table = [
            ("RST,ACK", RST | ACK, 1, Some("refused")),
            ("RST,ACK, one off", RST | ACK, 2, None),
            ("RST,ACK of the SYN's own number", RST | ACK, 0, None),
            ("RST without ACK", RST, 1, None),
            ("SYN-ACK", SYN | ACK, 1, Some("synack")),
            ("SYN-ACK, 1 GiB off", SYN | ACK, 1 << 30, None),
            ("challenge ACK", ACK, 1, None),
        ];
        for (name, flags, ack, signal) in table {
            let mut kernel = plan.load();
            let conn = plan.conn(40_000);
            conn.syn(&kernel);
            let packet = Packet { ack: conn.isn.wrapping_add(ack), ..conn.back(flags, u32::MAX, 0, 0) };
            assert_eq!(kernel.run(Hook::Ingress, &packet.bytes()).verdict, PASS, "{name}");
            let found = ["refused", "synack"].into_iter().find(|signal| kernel.signal(A, signal) == 1);
            assert_eq!(found, signal, "{name}: {:?}", kernel.signals(A));
            assert_eq!(
                kernel.entries()[0],
                usize::from(signal != Some("refused")),
                "{name}: the attempt goes on or not"
            );
        }
    });
}

/// P06 (a).
#[test]
fn a_refused_attempt_is_forgotten_at_once() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    let conn = plan.conn(40_000);
    conn.syn(&kernel);
    conn.refuse(&kernel);
    conn.refuse(&kernel);

    assert_eq!((kernel.signals(A), kernel.entries()), (vec![("syn", 1), ("refused", 1)], [0; 4]));
}

/// P03.
#[test]
fn what_began_elsewhere_is_no_evidence() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    plan.conn(40_000).syn_ack(&kernel);
    assert_eq!((kernel.signals(A), kernel.entries()), (vec![], [0; 4]), "(b) a SYN-ACK alone");
    plan.conn(40_001).send(&kernel, ACK, 0, 100, 0);
    assert_eq!((kernel.signals(A), kernel.counts()), (vec![], vec![("picked_up", 1)]), "(c) mid-flow data");
    plan.conn(40_001).receive(&kernel, RST, 0, 0, 100);
    assert_eq!((kernel.signals(A), kernel.entries()), (vec![], [0; 4]), "its RST");
}

/// P03 (a): answers take another way; the client's ACK shows that there was one.
#[test]
fn the_clients_ack_of_an_unseen_answer_ends_the_attempt() {
    let plan = Plan::new(false).syn_timeout_ms(3);
    let mut kernel = plan.load();
    for port in 40_001..40_020 {
        let conn = plan.conn(port);
        conn.syn(&kernel);
        conn.send(&kernel, ACK, 0, 0, 0);
        conn.request(&kernel);
    }
    assert_eq!(kernel.entries(), [0; 4]);
    let late = plan.conn(40_000);
    let begun = std::time::Instant::now();
    until("well over the SYN timeout", || {
        late.syn(&kernel);
        begun.elapsed().as_millis() > 20
    });
    assert_eq!((kernel.signal(A, "trips"), kernel.told()), (0, vec![]));
}

/// Answers that take another way would come from the standby's own address, so flows stay where they were addressed, until an
/// answer shows that the way leads past us.
#[test]
fn where_answers_pass_elsewhere_no_flow_is_moved() {
    for v6 in [false, true] {
        let plan = Plan::new(v6).rescuing();
        let mut kernel = plan.load();
        let first = plan.conn(40_000);
        first.syn(&kernel);
        first.send(&kernel, ACK, 0, 0, 0);
        let record = plan.record(A);
        kernel.set_origin(A, Origin { flags: record.flags | Origin::BLOCKED, ..record });
        let run = plan.conn(40_001).syn(&kernel);
        assert_eq!((run.verdict, kernel.count(Count::NotMovable), kernel.entries()), (PASS, 1, [1, 0, 0, 0]));
        kernel.set_origin(A, record);
        plan.conn(40_001).refuse(&kernel);
        assert_eq!((kernel.count(Count::TurnedAround), kernel.signal(B, "syn")), (0, 0), "nor is one turned around");

        plan.conn(40_002).handshake(&kernel);
        let again = plan.conn(40_003);
        again.syn(&kernel);
        again.send(&kernel, ACK, 0, 0, 0);
        kernel.set_origin(A, Origin { flags: record.flags | Origin::BLOCKED, ..record });
        assert_eq!(plan.conn(40_004).syn(&kernel).verdict, REDIRECT, "an answer was seen: this one was only missed");
    }
}

/// To keep an origin that is down from being left, it is not enough to claim its answers.
#[test]
fn an_origin_that_is_out_answers_nobody_elsewhere() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    let record = plan.record(A);
    kernel.set_origin(A, Origin { flags: record.flags | Origin::BLOCKED, ..record });
    kernel.set_node(Node { mode: Node::BYPASS, ..Node::default() });
    let liar = plan.conn(40_000);
    assert_eq!(liar.syn(&kernel).verdict, PASS);
    liar.send(&kernel, ACK, 0, 0, 0);
    kernel.set_node(Node::default());
    assert_eq!(plan.conn(40_001).syn(&kernel).verdict, REDIRECT);
}

/// A segment that the stack paces leaves at the time that it is stamped with. A stamp of another clock is none.
#[test]
fn a_segment_of_the_stack_leaves_when_its_stamp_says() {
    const MS: u64 = 1_000_000;
    let plan = Plan::new(false);
    let kernel = plan.load();
    let [paced, slow, other] = [40_000, 40_001, 40_002].map(|port| plan.conn(port));
    // The clock that stamps are compared with: it may lag by a tick and more.
    let now = clock_ns(ClockId::CLOCK_MONOTONIC_COARSE);
    kernel.run_stamped(Hook::Egress, &paced.syn_packet().bytes(), now + 12 * MS);
    kernel.run_stamped(Hook::Egress, &slow.syn_packet().bytes(), now + 500 * MS);
    kernel.run_stamped(Hook::Egress, &other.syn_packet().bytes(), clock_ns(ClockId::CLOCK_REALTIME));
    until("all are answered late", || clock_ns(ClockId::CLOCK_MONOTONIC) > now + 14 * MS);
    let rtt_of = |conn: &Conn| {
        let before = kernel.counters(A).rtt;
        conn.syn_ack(&kernel);
        let after = kernel.counters(A).rtt;
        lower_bound(before.iter().zip(after).position(|(old, new)| new > *old).expect("a sample"))
    };
    let [paced, slow, other] = [paced, slow, other].map(|conn| rtt_of(&conn));
    assert!(paced < slow.min(other), "2 ms, and 10 or more, or as much more: {paced}, {slow}, {other}");
}

fn clock_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).expect("the clock is there");
    Duration::from(time).as_nanos().try_into().expect("below 500 years")
}

/// P04 (d).
#[test]
fn a_banner_gives_no_ttfb() {
    let plan = Plan::new(false);
    let kernel = plan.load();
    let conn = plan.conn(25_000);
    conn.handshake(&kernel);
    conn.receive(&kernel, ACK | PSH, 0, 40, 0);

    assert_eq!((kernel.signal(A, "response"), samples(&kernel.counters(A).ttfb)), (0, 0));
}

#[test]
fn repeats_of_data_count_as_such() {
    let plan = Plan::new(false);
    let kernel = plan.load();
    let conn = plan.conn(40_000);
    conn.handshake(&kernel);
    conn.request(&kernel);
    conn.request(&kernel);
    conn.send(&kernel, ACK, 99, 1, 0);

    assert_eq!((kernel.signal(A, "request"), kernel.signal(A, "retrans")), (1, 2));
}

#[test]
fn the_clients_reset_is_its_own_doing() {
    both(|plan| {
        let mut kernel = plan.load();
        let conn = plan.conn(40_000);
        conn.handshake(&kernel);
        conn.request(&kernel);
        conn.send(&kernel, RST | ACK, 100, 0, 0);

        let ended = ["local_drop", "request_void", "closed"].map(|signal| kernel.signal(A, signal));
        assert_eq!((ended, kernel.entries()), ([1, 1, 1], [0; 4]));
        let resets = ["reset_early", "reset_mid", "reset_idle", "rst_suspect"].map(|signal| kernel.signal(A, signal));
        assert_eq!(resets, [0; 4]);
    });
}

#[test]
fn a_late_answer_is_counted_late() {
    let plan = Plan::new(false).syn_timeout_ms(3).response_timeout_ms(40);
    let kernel = plan.load();
    let conn = plan.conn(40_000);
    conn.syn(&kernel);
    wait_ms(&kernel, 4);
    conn.syn_ack(&kernel);
    conn.request(&kernel);
    wait_ms(&kernel, 42);
    conn.respond(&kernel);

    let late = ["synack", "synack_late", "response", "response_late"].map(|signal| kernel.signal(A, signal));
    assert_eq!(late, [1; 4]);
    let long = kernel.counters(A).ttfb.iter().position(|&count| count == 1).map(health_common::histogram::lower_bound);
    assert!(long >= Some(33_000_000), "{long:?}");
}

#[test]
fn bytes_that_no_receiver_takes_are_no_sign_of_life() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    let conn = plan.conn(40_000);
    conn.handshake(&kernel);
    conn.request(&kernel);
    let seen = kernel.state(A).last_seen_ns;
    wait_ms(&kernel, 12);
    conn.receive(&kernel, ACK, 0, 100, 1_000_000);

    assert_eq!((kernel.signal(A, "response"), kernel.count(Count::Forged)), (0, 1));
    assert_eq!(kernel.state(A).last_seen_ns, seen);
    conn.receive(&kernel, RST, 100, 0, 0);
    assert_eq!(kernel.signal(A, "rst_suspect") + kernel.signal(A, "rst_forged"), 1, "its end is no exact number");
}
