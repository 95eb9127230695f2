//! A SYN on a tuple that we already know (P09).

use health_common::map::Count;
use health_common::origin::Origin;

use crate::support::packet::{ACK, FIN, SYN};
use crate::support::{A, B, Hook, Kernel, PASS, Packet, Plan, REDIRECT};

fn block(plan: &Plan, kernel: &mut Kernel, id: u16) {
    let record = plan.record(id);
    kernel.set_origin(id, Origin { flags: record.flags | Origin::BLOCKED, ..record });
}

fn unblock(plan: &Plan, kernel: &mut Kernel, id: u16) {
    kernel.set_origin(id, plan.record(id));
}

#[test]
fn p09_a_the_same_syn_goes_to_the_same_origin() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    let conn = plan.conn(40_000);
    block(&plan, &mut kernel, A);
    assert_eq!(conn.syn(&kernel).verdict, REDIRECT);
    unblock(&plan, &mut kernel, A);
    assert_eq!(conn.syn(&kernel).verdict, REDIRECT, "though the primary is usable again");
    assert_eq!((kernel.signal(B, "syn"), kernel.signal(B, "syn_retrans")), (1, 1));
}

#[test]
fn p09_b_after_both_fins_the_choice_is_fresh() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        let conn = plan.conn(40_000);
        conn.handshake(&kernel);
        conn.send(&kernel, ACK | FIN, 0, 0, 0);
        conn.receive(&kernel, ACK | FIN, 0, 0, 1);
        conn.send(&kernel, ACK, 1, 0, 1);
        block(&plan, &mut kernel, A);
        assert_eq!(conn.again().syn(&kernel).verdict, REDIRECT);
        unblock(&plan, &mut kernel, A);
        assert_eq!(conn.again().again().syn(&kernel).verdict, PASS);
        assert_eq!(kernel.entries(), [1, 0, 0, 0], "and nothing of the old redirection is left");
    }
}

#[test]
fn p09_c_an_entry_that_looks_open_does_not_hold_a_new_flow() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    let conn = plan.conn(40_000);
    conn.handshake(&kernel);
    block(&plan, &mut kernel, A);
    assert_eq!(conn.again().syn(&kernel).verdict, REDIRECT);
    assert_eq!(kernel.entries(), [1, 0, 1, 1], "the old flow is gone");

    // The other way round: moved, never ended, and its origin is well again.
    conn.again().at(plan.address(B)).syn_ack(&kernel);
    unblock(&plan, &mut kernel, A);
    let fresh = conn.again().again();
    assert_eq!(fresh.syn(&kernel).verdict, PASS);
    fresh.syn_ack(&kernel);
    fresh.send(&kernel, ACK, 0, 0, 0);
    assert_eq!((kernel.entries(), kernel.signal(A, "opened")), ([0, 1, 0, 0], 2));
}

#[test]
fn p09_d_an_origin_that_is_no_longer_there_is_not_chosen() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    let conn = plan.conn(40_000);
    conn.handshake(&kernel);
    kernel.set_origin(A, Origin::default());
    assert_eq!(conn.again().syn(&kernel).verdict, REDIRECT);

    // Numbers that no map holds: the flow is left alone, not dropped.
    kernel.set_frontend(0, &Plan::table(u16::MAX - 1, &[u16::MAX - 2], 3), health_common::map::Selector::new(3, 0));
    assert_eq!(plan.conn(40_001).syn(&kernel).verdict, PASS);
}

/// The redirection of an ended flow waits for userspace to take it away. Meanwhile its tuple is nobody's.
#[test]
fn an_ended_redirection_does_not_catch_a_direct_connection_to_the_standby() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        block(&plan, &mut kernel, A);
        let conn = plan.conn(40_000);
        let there = conn.at(plan.address(B));
        conn.syn(&kernel);
        there.refuse(&kernel);
        assert_eq!(kernel.entries(), [0, 0, 1, 1], "ended");

        let direct = there.again();
        assert_eq!(direct.syn(&kernel).verdict, PASS);
        let answer = direct.syn_ack_packet();
        assert_eq!(kernel.run(Hook::Ingress, &answer.bytes()).packet, answer.bytes(), "it is not the primary's");
        assert_eq!((kernel.signal(B, "synack"), kernel.entries()), (1, [1, 0, 0, 0]));
    }
}

/// Ports come back within seconds on a busy node, also to Sluice's own checks of the standby.
#[test]
fn an_ended_redirection_does_not_catch_a_check_of_the_standby() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        kernel.set_node(health_common::map::Node { bypass_mark: 0x51, ..Default::default() });
        block(&plan, &mut kernel, A);
        let conn = plan.conn(40_000);
        let there = conn.at(plan.address(B));
        conn.syn(&kernel);
        there.refuse(&kernel);
        assert_eq!(kernel.entries(), [0, 0, 1, 1], "ended");

        let check = there.again();
        assert_eq!(kernel.run_marked(Hook::Egress, &check.syn_packet().bytes(), 0x51).verdict, PASS);
        let answer = check.syn_ack_packet();
        assert_eq!(kernel.run(Hook::Ingress, &answer.bytes()).packet, answer.bytes(), "it is not the primary's");
        assert_eq!(kernel.entries(), [0; 4]);
    }
}

/// While it lives, both would look the same to the standby: the direct one gets another port there.
#[test]
fn a_direct_connection_on_the_tuple_of_a_live_redirection_gets_another_port() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        block(&plan, &mut kernel, A);
        let conn = plan.conn(40_000);
        conn.syn(&kernel);
        let there = conn.at(plan.address(B));
        there.syn_ack(&kernel);
        conn.send(&kernel, ACK, 0, 0, 0);
        let direct = there.again();
        let run = direct.syn(&kernel);
        assert_eq!((run.verdict, kernel.count(Count::PortTranslated)), (REDIRECT, 1));
        assert_eq!((kernel.count(Count::NatCollision), kernel.entries()), (0, [1, 1, 2, 2]), "the other goes on");
    }
}

#[test]
fn an_ended_redirection_gives_its_tuple_to_the_next_one() {
    let plan = Plan::new(false).with_tiers(&[0, 1, 0]);
    let mut kernel = plan.load();
    let frontend = |id, frontend| health_common::net::EndpointUse { origin: id, frontend };
    kernel.set_endpoint(crate::support::plan::endpoint(plan.address(2)), frontend(2, 1));
    for (id, place) in [(A, 0), (2, 1)] {
        kernel.set_frontend(place, &Plan::table(id, &[B], 1), health_common::map::Selector::new(1, 0));
        block(&plan, &mut kernel, id);
    }
    let conn = plan.conn(40_000);
    conn.syn(&kernel);
    conn.at(plan.address(B)).refuse(&kernel);
    assert_eq!(conn.at(plan.address(2)).again().syn(&kernel).verdict, REDIRECT);
    assert_eq!((kernel.count(Count::NatCollision), kernel.entries()), (0, [1, 0, 1, 1]));
}

#[test]
fn data_in_a_syn_makes_no_request() {
    let plan = Plan::new(false);
    let kernel = plan.load();
    let conn = plan.conn(40_000);
    let syn = Packet { payload: vec![b'x'; 10], flags: SYN, ..conn.syn_packet() };
    kernel.run(Hook::Egress, &syn.bytes());
    conn.syn_ack(&kernel);
    conn.send(&kernel, ACK, 0, 0, 0);
    assert_eq!((kernel.signal(A, "opened"), kernel.signal(A, "request")), (1, 0));
}
