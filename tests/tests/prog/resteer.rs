//! Re-steer: a SYN that is repeated unanswered goes to a standby, and whoever answers first keeps it.

use std::time::Instant;

use health_common::event::Kind;
use health_common::map::{Count, Node};
use health_common::origin::Origin;
use health_common::streak::Streak;

use crate::steer::{comes_from_a, goes_to_b};
use crate::support::kernel::{until, wait_ms};
use crate::support::packet::{ACK, RST};
use crate::support::{A, B, Conn, Hook, Kernel, PASS, Packet, Plan, REDIRECT, Run, SHOT};

const TIMEOUT_MS: u64 = 3;

fn each(test: impl Fn(&Plan, &mut Kernel)) {
    for v6 in [false, true] {
        let plan = Plan::new(v6).rescuing().syn_timeout_ms(TIMEOUT_MS);
        let mut kernel = plan.load();
        test(&plan, &mut kernel);
    }
}

/// The same SYN until it is sent elsewhere.
fn resteered(kernel: &Kernel, conn: &Conn) -> Run {
    let mut run = conn.syn(kernel);
    until("the SYN is sent on", || {
        run = conn.syn(kernel);
        run.verdict == REDIRECT
    });
    run
}

/// Whether any of the SYNs, repeated for many timeouts, was sent elsewhere.
fn any_moves(kernel: &Kernel, conns: &[Conn]) -> bool {
    let begun = Instant::now();
    let mut moved = false;
    until("many timeouts", || {
        moved |= conns.iter().any(|conn| conn.syn(kernel).verdict == REDIRECT);
        begun.elapsed().as_millis() > 60
    });
    moved
}

#[test]
fn two_overdue_syns_are_moved_before_any_trip() {
    each(|plan, kernel| {
        let (first, other) = (plan.conn(40_000), plan.conn(40_001));
        let begun = Instant::now();
        first.syn(kernel);
        other.syn(kernel);
        let run = resteered(kernel, &first);
        assert!(begun.elapsed().as_millis() >= u128::from(TIMEOUT_MS), "not before the timeout");
        goes_to_b(plan, &first.syn_packet(), &run);
        assert_eq!((kernel.told(), kernel.signal(A, "trips")), (vec![(Kind::Resteer, A)], 0));
        assert_eq!((kernel.signal(B, "resteered"), kernel.signal(B, "syn"), kernel.entries()), (1, 1, [2, 0, 1, 1]));
        goes_to_b(plan, &first.syn_packet(), &first.syn(kernel));
        assert_eq!(kernel.count(Count::Resteered), 1, "once");
        resteered(kernel, &other);
        assert_eq!(kernel.count(Count::Resteered), 2, "so does the other");
    });
}

/// Where the network loses many, two are no silence yet: the attempt's own repeats count too.
#[test]
fn where_many_are_lost_it_takes_more_to_move_one() {
    for v6 in [false, true] {
        let mut plan = Plan::new(v6).rescuing().syn_timeout_ms(TIMEOUT_MS);
        plan.origin.flags &= !Origin::KERNEL_TRIP;
        plan.origin.silent_from = 8;
        let kernel = plan.load();
        let (first, other) = (plan.conn(40_000), plan.conn(40_001));
        first.syn(&kernel);
        other.syn(&kernel);
        // Cells are 17 ms wide.
        wait_ms(&kernel, u128::from(TIMEOUT_MS) + 40);
        for repeat in 1..=6 {
            assert_eq!(first.syn(&kernel).verdict, PASS, "{repeat} and 1 of the other");
        }
        goes_to_b(&plan, &first.syn_packet(), &first.syn(&kernel));
    }
}

#[test]
fn one_lost_syn_moves_nobody() {
    each(|plan, kernel| {
        let lost = plan.conn(40_000);
        lost.syn(kernel);
        assert!(!any_moves(kernel, &[lost]));
        assert!(kernel.signal(A, "syn_retrans") > 0);
        assert_eq!((kernel.entries(), kernel.told()), ([1, 0, 0, 0], vec![]));
    });
}

#[test]
fn an_origin_that_accepts_others_keeps_its_syns() {
    each(|plan, kernel| {
        let lost: Vec<Conn> = (40_000..40_004).map(|port| plan.conn(port)).collect();
        for conn in &lost {
            conn.syn(kernel);
        }
        plan.conn(41_000).handshake(kernel);
        assert!(!any_moves(kernel, &lost), "a handshake has succeeded since");
        assert_eq!(kernel.count(Count::Resteered), 0);
    });
}

/// Two in a hundred packets are always lost somewhere. A SYN that was lost before the last handshake says nothing of what came
/// after it.
#[test]
fn a_syn_lost_before_the_last_handshake_is_not_the_other_one() {
    each(|plan, kernel| {
        let (early, late) = (plan.conn(40_000), plan.conn(40_001));
        early.syn(kernel);
        assert!(!any_moves(kernel, &[early]), "it is overdue, alone");
        plan.conn(41_000).handshake(kernel);
        assert!(!any_moves(kernel, &[early]), "a handshake has succeeded since");
        late.syn(kernel);
        assert!(!any_moves(kernel, &[late]));
        assert_eq!(kernel.count(Count::Resteered), 0);
    });
}

#[test]
fn without_a_timeout_no_syn_is_overdue() {
    for v6 in [false, true] {
        let plan = Plan::new(v6).rescuing().syn_timeout_ms(0);
        let kernel = plan.load();
        let conns = [plan.conn(40_000), plan.conn(40_001)];
        assert!(!any_moves(&kernel, &conns));
    }
}

#[test]
fn observed_or_frozen_a_repeated_syn_stays() {
    for (name, flag, mode, withheld) in [
        ("the service is observed", Origin::OBSERVE, 0, true),
        ("the service is frozen", Origin::FREEZE, 0, true),
        ("the node is observed", 0, Node::OBSERVE, true),
        ("the node is frozen", 0, Node::FREEZE, true),
        ("nothing is steered", 0, Node::BYPASS, false),
    ] {
        let plan = Plan::new(false).rescuing().syn_timeout_ms(TIMEOUT_MS).with_flags(flag);
        let mut kernel = plan.load();
        kernel.set_node(Node { mode, ..Node::default() });
        assert!(!any_moves(&kernel, &[plan.conn(40_000), plan.conn(40_001)]), "{name}");
        assert_eq!(kernel.count(Count::WithheldRescue) > 0, withheld, "{name}: {:?}", kernel.counts());
    }
}

/// Two SYNs that wait, the first of them moved to the standby.
fn moved(plan: &Plan, kernel: &mut Kernel) -> Conn {
    let conn = plan.conn(40_000);
    conn.syn(kernel);
    plan.conn(40_001).syn(kernel);
    resteered(kernel, &conn);
    assert_eq!(kernel.told(), [(Kind::Resteer, A)]);
    conn
}

#[test]
fn the_first_origin_answers_first_after_all() {
    each(|plan, kernel| {
        let conn = moved(plan, kernel);
        let answer = conn.syn_ack_packet().bytes();
        let run = kernel.run(Hook::Ingress, &answer);
        assert_eq!((run.verdict, run.packet), (PASS, answer), "its own answer, as it came");
        assert_eq!((kernel.told(), kernel.count(Count::Undone)), (vec![(Kind::Undone, B)], 1));
        assert_eq!(kernel.entries(), [2, 0, 0, 0], "nothing is left of the move");
        assert_eq!((kernel.signal(A, "synack"), kernel.signal(A, "synack_late")), (1, 1));
        assert_eq!(Streak(kernel.state(B).syns_open).count(), 0, "what the standby was sent says nothing");

        let standby = conn.at(plan.address(B)).syn_ack_packet().bytes();
        let run = kernel.run(Hook::Ingress, &standby);
        assert_eq!((run.verdict, run.packet), (PASS, standby), "it meets no socket, which resets it");
        assert_eq!((kernel.signal(B, "synack"), kernel.signal(B, "opened")), (0, 0));
        let out = conn.out(ACK, 0, 50, 0).bytes();
        let run = kernel.run(Hook::Egress, &out);
        assert_eq!((run.verdict, run.packet), (PASS, out), "data goes to the first origin");
        assert_eq!((kernel.signal(A, "request"), kernel.signal(A, "opened"), kernel.signal(B, "bytes_out")), (1, 1, 0));
        assert_eq!(kernel.counters(A).rtt.iter().sum::<u32>(), 0, "no RTT of a repeated SYN");
    });
}

#[test]
fn the_standby_answers_first_and_the_first_origin_gets_one_reset() {
    each(|plan, kernel| {
        let conn = moved(plan, kernel);
        let there = conn.at(plan.address(B));
        comes_from_a(plan, &there.syn_ack_packet(), &there.syn_ack(kernel));
        let late = kernel.run(Hook::Ingress, &conn.syn_ack_packet().bytes());
        assert_eq!(late.verdict, REDIRECT);
        let want = Packet { seq: conn.isn.wrapping_add(1), window: 0, ..Packet::new(conn.node, conn.remote, RST) };
        assert_eq!(Packet::read(&late.packet), want, "RFC 9293 §3.10.7.1: its number is what was acknowledged");
        assert_eq!(conn.syn_ack(kernel).verdict, SHOT, "one is enough");
        assert_eq!(conn.receive(kernel, ACK, 0, 10, 0).verdict, SHOT, "whatever else it sends");
        assert_eq!((kernel.count(Count::LoserReset), kernel.count(Count::LoserDropped)), (1, 3));
        assert_eq!((kernel.signal(A, "synack"), kernel.signal(B, "synack"), kernel.told()), (0, 1, vec![]));
        assert_eq!(kernel.entries(), [2, 0, 1, 1]);
        goes_to_b(plan, &conn.out(ACK, 0, 9, 0), &conn.send(kernel, ACK, 0, 9, 0));
        assert_eq!((kernel.signal(B, "opened"), kernel.entries()), (1, [1, 1, 1, 1]));
        assert_eq!(conn.syn_ack(kernel).verdict, SHOT, "the flow remembers that it was told");
    });
}

/// The refusal of the first origin that comes after the move is no answer for the client.
#[test]
fn a_late_refusal_of_the_first_origin_is_dropped() {
    each(|plan, kernel| {
        let conn = moved(plan, kernel);
        assert_eq!((conn.refuse(kernel).verdict, kernel.count(Count::LoserDropped)), (SHOT, 1));
        let there = conn.at(plan.address(B));
        comes_from_a(plan, &there.syn_ack_packet(), &there.syn_ack(kernel));
        assert_eq!(kernel.signal(B, "synack"), 1);
    });
}

#[test]
fn a_standby_that_refuses_a_moved_syn_is_passed_over() {
    for v6 in [false, true] {
        let plan = Plan::new(v6).with_tiers(&[0, 1, 2]).rescuing().syn_timeout_ms(TIMEOUT_MS);
        let mut kernel = plan.load();
        let conn = moved(&plan, &mut kernel);
        let run = conn.at(plan.address(B)).refuse(&kernel);
        assert_eq!(run.verdict, REDIRECT);
        assert_eq!(Packet::read(&run.packet), Packet { to: plan.address(2), ..conn.syn_packet() });
        assert_eq!((kernel.told(), kernel.signal(B, "refused")), (vec![(Kind::Turn, B)], 1));
    }
}
