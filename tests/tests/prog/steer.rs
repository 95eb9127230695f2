//! Redirection of new flows, both ways (P08, P11).

use health_common::SECOND_PASS_MARK;
use health_common::event::Kind;
use health_common::flow::Flow;
use health_common::map::{self, Count};
use health_common::net::{FlowKey4, FlowKey6};
use health_common::origin::Origin;

use crate::support::packet::{ACK, FIN, PSH, RST};
use crate::support::{A, B, Conn, Hook, Kernel, PASS, Packet, Plan, REDIRECT, Run, SHOT};

/// Both families, and a standby on another port and on the same.
fn each(test: impl Fn(&Plan, &mut Kernel)) {
    for v6 in [false, true] {
        for port in [8443, 443] {
            let plan = Plan { ports: vec![443, port], ..Plan::new(v6) };
            let mut kernel = plan.load();
            plan.trip(&mut kernel);
            test(&plan, &mut kernel);
        }
    }
}

/// Sent on to the standby: nothing but its address and port, and the checksums, differ.
#[track_caller]
pub(crate) fn goes_to_b(plan: &Plan, sent: &Packet, run: &Run) {
    assert_eq!((run.verdict, run.mark), (REDIRECT, SECOND_PASS_MARK), "{sent:?}");
    let want = Packet { to: plan.address(B), ..sent.clone() };
    assert_eq!(run.packet, want.bytes(), "{:?}", Packet::read(&run.packet));
}

/// Handed on as if the primary had sent it.
#[track_caller]
pub(crate) fn comes_from_a(plan: &Plan, sent: &Packet, run: &Run) {
    assert_eq!((run.verdict, run.mark), (PASS, 0), "{sent:?}");
    let want = Packet { from: plan.address(A), ..sent.clone() };
    assert_eq!(run.packet, want.bytes(), "{:?}", Packet::read(&run.packet));
}

/// A flow that was redirected, and the same as the standby sees it.
fn moved(plan: &Plan, kernel: &Kernel, port: u16) -> (Conn, Conn) {
    let conn = plan.conn(port);
    let there = conn.at(plan.address(B));
    assert_eq!(conn.syn(kernel).verdict, REDIRECT);
    there.syn_ack(kernel);
    conn.send(kernel, ACK, 0, 0, 0);
    (conn, there)
}

#[test]
fn a_new_flow_goes_to_the_standby_and_its_answer_comes_back() {
    each(|plan, kernel| {
        let conn = plan.conn(40_000);
        let there = conn.at(plan.address(B));
        goes_to_b(plan, &conn.syn_packet(), &conn.syn(kernel));
        assert_eq!(kernel.entries(), [1, 0, 1, 1]);
        assert_eq!((kernel.signal(B, "syn"), kernel.signal(B, "steered"), kernel.signal(A, "syn")), (1, 1, 5));
        comes_from_a(plan, &there.syn_ack_packet(), &there.syn_ack(kernel));
        assert_eq!((kernel.signal(B, "synack"), kernel.entries()), (1, [1, 0, 1, 1]));
        assert_eq!((kernel.counts(), kernel.told()), (vec![("steered_tc_egress", 1)], vec![(Kind::FirstFlow, A)]));
        plan.conn(40_001).syn(kernel);
        assert_eq!(kernel.told(), [], "only the first one is told");
    });
}

/// P08: with odd and even lengths, with options.
#[test]
fn data_of_a_moved_flow_is_rewritten_both_ways() {
    each(|plan, kernel| {
        let (conn, there) = moved(plan, kernel, 40_000);
        let (mut sent, mut received) = (0, 0);
        for len in [1, 2, 3, 99, 1459, 1460, 0, 1337] {
            for options in [vec![], vec![1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 8]] {
                let out = Packet { options: options.clone(), ..conn.out(ACK | PSH, sent, len, received) };
                goes_to_b(plan, &out, &kernel.run(Hook::Egress, &out.bytes()));
                sent += u32::try_from(len).expect("small");
                let back = Packet { options, ..there.back(ACK, received, len, sent) };
                comes_from_a(plan, &back, &kernel.run(Hook::Ingress, &back.bytes()));
                received += u32::try_from(len).expect("small");
            }
        }
        assert_eq!((kernel.signal(B, "bytes_out"), kernel.signal(B, "bytes_in")), (sent.into(), received.into()));
        assert_eq!((kernel.signal(A, "bytes_out"), kernel.signal(A, "pkts_in")), (0, 0));
    });
}

/// P11.
#[test]
fn odd_but_legal_segments_are_rewritten_too() {
    each(|plan, kernel| {
        let (conn, there) = moved(plan, kernel, 40_000);
        conn.send(kernel, ACK, 0, 1000, 0);
        there.receive(kernel, ACK, 0, 1000, 1000);
        let behind = 0_u32.wrapping_sub(2 << 20);
        for (name, flags, from, len) in [
            ("2 MB behind", ACK, behind, 100),
            ("far beyond the window", ACK, 1 << 31, 100),
            ("keep-alive without a byte", ACK, 999, 0),
            ("keep-alive with one", ACK, 999, 1),
            ("FIN", ACK | FIN, 1000, 0),
            ("FIN again", ACK | FIN, 1000, 0),
            ("inexact RST", RST, 5000, 0),
        ] {
            let back = there.back(flags, from, len, 1000);
            comes_from_a(plan, &back, &kernel.run(Hook::Ingress, &back.bytes()));
            if flags & RST == 0 {
                let out = conn.out(flags, from, len, 1000);
                goes_to_b(plan, &out, &kernel.run(Hook::Egress, &out.bytes()));
            }
            assert_eq!(kernel.signal(B, "closed"), 0, "{name}");
        }
        let failures = ["reset_early", "reset_mid", "reset_idle"].map(|signal| kernel.signal(B, signal));
        assert_eq!(failures, [0; 3]);
    });
}

#[test]
fn a_moved_flow_that_ended_still_finds_its_way() {
    each(|plan, kernel| {
        let (conn, there) = moved(plan, kernel, 40_000);
        there.receive(kernel, ACK | FIN, 0, 0, 0);
        conn.send(kernel, ACK | FIN, 0, 0, 1);
        there.receive(kernel, ACK, 1, 0, 1);
        assert_eq!((kernel.signal(B, "closed"), kernel.entries()), (1, [0, 0, 1, 1]));
        let fin = there.back(ACK | FIN, 0, 0, 0);
        comes_from_a(plan, &fin, &kernel.run(Hook::Ingress, &fin.bytes()));
        let ack = conn.out(ACK, 1, 0, 1);
        goes_to_b(plan, &ack, &kernel.run(Hook::Egress, &ack.bytes()));
    });
}

#[test]
fn a_moved_flow_whose_record_was_evicted_still_finds_its_way() {
    each(|plan, kernel| {
        let (conn, there) = moved(plan, kernel, 40_000);
        if plan.v6 {
            evict::<FlowKey6>(kernel, map::FLOWS_V6);
        } else {
            evict::<FlowKey4>(kernel, map::FLOWS_V4);
        }
        let (out, back) = (conn.out(ACK, 0, 50, 0), there.back(ACK, 0, 50, 50));
        goes_to_b(plan, &out, &kernel.run(Hook::Egress, &out.bytes()));
        comes_from_a(plan, &back, &kernel.run(Hook::Ingress, &back.bytes()));
    });
}

fn evict<K: aya::Pod>(kernel: &mut Kernel, flows: &str) {
    let mut flows = kernel.hash::<K, Flow>(flows);
    let keys: Vec<K> = flows.keys().map(|key| key.expect("readable")).collect();
    assert_eq!(keys.len(), 1);
    for key in keys {
        flows.remove(&key).expect("it is there");
    }
}

#[test]
fn a_standby_that_refuses_is_seen_to_refuse() {
    each(|plan, kernel| {
        let conn = plan.conn(40_000);
        conn.syn(kernel);
        let refusal = conn.at(plan.address(B)).refusal_packet();
        comes_from_a(plan, &refusal, &kernel.run(Hook::Ingress, &refusal.bytes()));
        assert_eq!((kernel.signal(B, "refused"), kernel.entries()[0]), (1, 0));
    });
}

#[test]
fn the_second_pass_returns_at_once_and_takes_the_mark_off() {
    each(|plan, kernel| {
        let before = (kernel.signals(A), kernel.signals(B), kernel.entries());
        for mark in [SECOND_PASS_MARK, SECOND_PASS_MARK | 0x51] {
            let packet = plan.conn(40_000).syn_packet().bytes();
            let run = kernel.run_marked(Hook::Egress, &packet, mark);
            assert_eq!(run, Run { verdict: PASS, packet, mark: mark & !SECOND_PASS_MARK });
        }
        assert_eq!((kernel.signals(A), kernel.signals(B), kernel.entries()), before);
    });
}

#[test]
fn a_mark_of_somebody_else_survives_the_redirection() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    plan.trip(&mut kernel);
    let run = kernel.run_marked(Hook::Egress, &plan.conn(40_000).syn_packet().bytes(), 0x51);
    assert_eq!((run.verdict, run.mark), (REDIRECT, SECOND_PASS_MARK | 0x51));
}

#[test]
fn a_taken_tuple_is_not_moved_onto() {
    type Occupy = fn(&Conn, &Kernel);
    let table: [(&str, Occupy); 2] = [
        ("a connection of the same port to the standby", |there, kernel| there.handshake(kernel)),
        ("an attempt of the same port", |there, kernel| drop(there.syn(kernel))),
    ];
    for (name, occupy) in table {
        each(|plan, kernel| {
            let conn = plan.conn(40_000);
            occupy(&conn.at(plan.address(B)), kernel);
            let run = conn.again().syn(kernel);
            assert_eq!(run.verdict, REDIRECT, "{name}");
            assert_eq!((kernel.count(Count::PortTranslated), kernel.count(Count::NatCollision)), (1, 0), "{name}");
            assert_eq!(kernel.signal(A, "syn"), 5, "{name}: it went to the standby, by another port");
        });
    }
}

#[test]
fn two_primaries_share_no_tuple_of_their_standby() {
    let plan = Plan::new(false).with_tiers(&[0, 1, 0]);
    let mut kernel = plan.load();
    kernel.set_endpoint(
        crate::support::plan::endpoint(plan.address(2)),
        health_common::net::EndpointUse { origin: 2, frontend: 1 },
    );
    kernel.set_frontend(1, &Plan::table(2, &[B], 1), map::Selector::new(1, 0));
    kernel.set_frontend(0, &Plan::table(A, &[B], 1), map::Selector::new(1, 0));
    for id in [A, 2] {
        let record = plan.record(id);
        kernel.set_origin(id, Origin { flags: record.flags | Origin::BLOCKED, ..record });
    }
    let (first, second) = (plan.conn(40_000), plan.conn(40_000).at(plan.address(2)));
    assert_eq!(first.syn(&kernel).verdict, REDIRECT);
    assert_eq!((second.syn(&kernel).verdict, kernel.count(Count::PortTranslated)), (REDIRECT, 1));
}

#[test]
fn a_standby_without_a_known_way_takes_nothing() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    plan.trip(&mut kernel);
    kernel.set_origin(B, Origin { ifindex: 0, ..plan.record(B) });
    assert_eq!((plan.conn(40_000).syn(&kernel).verdict, kernel.count(Count::NatFailed)), (PASS, 1));
}

#[test]
fn full_tables_leave_flows_where_they_are() {
    let plan = Plan::new(false);
    let mut kernel = Kernel::new(16, 64);
    plan.write(&mut kernel);
    plan.trip(&mut kernel);
    let verdicts: Vec<i32> = (40_000..40_080).map(|port| plan.conn(port).syn(&kernel).verdict).collect();
    assert!(verdicts[..64].iter().all(|&verdict| verdict == REDIRECT));
    assert!(verdicts[64..].iter().all(|&verdict| verdict == PASS));
    assert_eq!((kernel.count(Count::MovedFull), kernel.entries()[2..].to_vec()), (16, vec![64, 64]));
}

#[test]
fn a_late_answer_of_the_origin_that_was_left_is_dropped_and_counted() {
    each(|plan, kernel| {
        let conn = plan.conn(40_000);
        conn.syn(kernel);
        assert_eq!(conn.syn_ack(kernel).verdict, SHOT, "before the standby has answered");
        conn.at(plan.address(B)).syn_ack(kernel);
        assert_eq!(conn.syn_ack(kernel).verdict, REDIRECT, "and after it gets one RST");
        assert_eq!(conn.syn_ack(kernel).verdict, SHOT, "one");
        assert_eq!(conn.refuse(kernel).verdict, SHOT, "so is a refusal");
        assert_eq!(
            (kernel.count(Count::LoserDropped), kernel.count(Count::LoserReset), kernel.signal(A, "synack")),
            (4, 1, 0)
        );
        assert_eq!(kernel.entries(), [1, 0, 1, 1]);
        goes_to_b(plan, &conn.out(ACK, 0, 0, 0), &conn.send(kernel, ACK, 0, 0, 0));
        assert_eq!((conn.syn_ack(kernel).verdict, kernel.entries()), (SHOT, [0, 1, 1, 1]));
    });
}

/// A SYN that waits for an origin that trips meanwhile.
#[test]
fn a_repeated_syn_is_sent_on_once_its_origin_is_tripped() {
    for v6 in [false, true] {
        let plan = Plan::new(v6).rescuing();
        let mut kernel = plan.load();
        let conn = plan.conn(40_000);
        assert_eq!(conn.syn(&kernel).verdict, PASS);
        assert_eq!(conn.syn(&kernel).verdict, PASS, "repeated while its origin is well: simple loss moves nobody");
        plan.trip(&mut kernel);
        goes_to_b(&plan, &conn.syn_packet(), &conn.syn(&kernel));
        assert_eq!(kernel.told(), [(Kind::FirstFlow, A), (Kind::Resteer, A)]);
        assert_eq!((kernel.count(Count::Resteered), kernel.signal(B, "resteered")), (1, 1));
        goes_to_b(&plan, &conn.syn_packet(), &conn.syn(&kernel));
        assert_eq!(kernel.count(Count::Resteered), 1, "once");
        let there = conn.at(plan.address(B));
        comes_from_a(&plan, &there.syn_ack_packet(), &there.syn_ack(&kernel));
        assert_eq!((kernel.signal(B, "synack"), kernel.signal(A, "synack")), (1, 0));
    }
}

#[test]
fn a_connection_that_stands_stays_where_it_is() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    let conn = plan.conn(40_000);
    conn.handshake(&kernel);
    plan.trip(&mut kernel);
    let run = conn.request(&kernel);
    assert_eq!((run.verdict, run.packet), (PASS, conn.out(ACK | PSH, 0, 100, 0).bytes()));
}
