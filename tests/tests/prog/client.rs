//! Forwarded flows, steered where their client's packets arrive: rewritten before routing, and not looked at again at egress.

use health_common::event::Kind;
use health_common::map::{Count, Selector, Table};
use health_common::net::EndpointUse;
use health_common::origin::Origin;
use health_common::{NONE, SECOND_PASS_MARK};

use crate::steer::comes_from_a;
use crate::support::kernel::until;
use crate::support::packet::{ACK, FIN, PSH, RST};
use crate::support::plan::endpoint;
use crate::support::{A, B, Conn, Hook, Kernel, NODE, PASS, Packet, Plan, REDIRECT, Run, SHOT, addr};

/// A client's connection to the primary's address.
pub(crate) fn client(plan: &Plan, host: u8, port: u16) -> Conn {
    Conn::new(addr(plan.v6, host, port), plan.address(A))
}

fn arrives(kernel: &Kernel, packet: &Packet) -> Run {
    kernel.run(Hook::Client, &packet.bytes())
}

/// Passes on to routing, marked, as if it had been sent to `to`.
#[track_caller]
fn routed_to(plan: &Plan, to: u16, sent: &Packet, run: &Run) {
    assert_eq!((run.verdict, run.mark), (PASS, SECOND_PASS_MARK), "{sent:?}");
    assert_eq!(run.packet, Packet { to: plan.address(to), ..sent.clone() }.bytes(), "{:?}", Packet::read(&run.packet));
}

fn each(test: impl Fn(&Plan, &mut Kernel)) {
    for v6 in [false, true] {
        for port in [8443, 443] {
            let plan = Plan { ports: vec![443, port], ..Plan::new(v6).rescuing() };
            let mut kernel = plan.load();
            test(&plan, &mut kernel);
        }
    }
}

/// What egress does with a packet that routing sent there: with its mark, or after somebody took the mark off.
#[track_caller]
fn egress_lets_it_pass(kernel: &Kernel, routed: &Run) {
    for mark in [routed.mark, 0] {
        let before = (kernel.counts(), kernel.signals(A), kernel.signals(B));
        let run = kernel.run_marked(Hook::Egress, &routed.packet, mark);
        assert_eq!((run.verdict, run.mark, &run.packet), (PASS, 0, &routed.packet), "mark {mark:#x}");
        assert_eq!((kernel.counts(), kernel.signals(A), kernel.signals(B)), before, "mark {mark:#x}: counted twice");
    }
}

#[test]
fn a_flow_that_is_not_steered_is_followed_and_counted_once() {
    each(|plan, kernel| {
        let conn = client(plan, 77, 40_000);
        let syn = arrives(kernel, &conn.syn_packet());
        routed_to(plan, A, &conn.syn_packet(), &syn);
        egress_lets_it_pass(kernel, &syn);
        conn.syn_ack(kernel);
        for packet in [conn.out(ACK, 0, 0, 0), conn.out(ACK | PSH, 0, 100, 0)] {
            let run = arrives(kernel, &packet);
            routed_to(plan, A, &packet, &run);
            egress_lets_it_pass(kernel, &run);
        }
        conn.receive(kernel, ACK | PSH, 0, 200, 100);
        let found = ["syn", "syn_retrans", "synack", "request", "response", "pkts_out", "bytes_out"];
        assert_eq!(found.map(|signal| kernel.signal(A, signal)), [1, 0, 1, 1, 1, 2, 100]);
        assert_eq!((kernel.counts(), kernel.entries()), (vec![], [0, 1, 0, 0]));
    });
}

#[test]
fn a_new_flow_is_rewritten_before_it_is_routed() {
    each(|plan, kernel| {
        plan.trip(kernel);
        let conn = client(plan, 77, 40_000);
        let there = conn.at(plan.address(B));
        let syn = arrives(kernel, &conn.syn_packet());
        routed_to(plan, B, &conn.syn_packet(), &syn);
        assert_eq!((kernel.counts(), kernel.entries()), (vec![("steered_tc_client", 1)], [1, 0, 1, 1]));
        assert_eq!((kernel.signal(B, "syn"), kernel.signal(B, "steered")), (1, 1));
        // Its mark is left on: without it, BPF_PROG_TEST_RUN makes a SYN look like one of this host's sockets.
        let run = kernel.run_marked(Hook::Egress, &syn.packet, syn.mark);
        assert_eq!((run.verdict, run.mark, &run.packet), (PASS, 0, &syn.packet));
        comes_from_a(plan, &there.syn_ack_packet(), &there.syn_ack(kernel));
        for (len, options) in [(0, vec![]), (99, vec![]), (1460, vec![1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 8])] {
            let out = Packet { options: options.clone(), ..conn.out(ACK, 0, len, 0) };
            let run = arrives(kernel, &out);
            routed_to(plan, B, &out, &run);
            egress_lets_it_pass(kernel, &run);
            let back = Packet { options, ..there.back(ACK, 0, len, 0) };
            comes_from_a(plan, &back, &kernel.run(Hook::Ingress, &back.bytes()));
        }
        assert_eq!((kernel.signal(B, "opened"), kernel.signal(A, "pkts_out")), (1, 0));
        assert_eq!(kernel.entries(), [0, 1, 1, 1]);
    });
}

/// P11, from both sides of a forwarded flow.
#[test]
fn odd_but_legal_segments_of_a_forwarded_flow_are_rewritten() {
    each(|plan, kernel| {
        plan.trip(kernel);
        let conn = client(plan, 77, 40_000);
        let there = conn.at(plan.address(B));
        arrives(kernel, &conn.syn_packet());
        there.syn_ack(kernel);
        arrives(kernel, &conn.out(ACK, 0, 1000, 0));
        there.receive(kernel, ACK, 0, 1000, 1000);
        let behind = 0_u32.wrapping_sub(2 << 20);
        for (flags, from, len) in [
            (ACK, behind, 100),
            (ACK, 1 << 31, 100),
            (ACK, 999, 0),
            (ACK, 999, 1),
            (ACK | FIN, 1000, 0),
            (ACK | FIN, 1000, 0),
        ] {
            let out = conn.out(flags, from, len, 1000);
            routed_to(plan, B, &out, &arrives(kernel, &out));
            let back = there.back(flags, from, len, 1000);
            comes_from_a(plan, &back, &kernel.run(Hook::Ingress, &back.bytes()));
        }
        let failures =
            ["reset_early", "reset_mid", "reset_idle", "client_abort"].map(|signal| kernel.signal(B, signal));
        assert_eq!(failures, [0; 4]);
    });
}

#[test]
fn a_refused_forwarded_syn_is_turned_around() {
    each(|plan, kernel| {
        let conn = client(plan, 77, 40_000);
        arrives(kernel, &conn.syn_packet());
        let run = conn.refuse(kernel);
        assert_eq!((run.verdict, run.mark), (REDIRECT, SECOND_PASS_MARK));
        assert_eq!(Packet::read(&run.packet), Packet { to: plan.address(B), ..conn.syn_packet() });
        let there = conn.at(plan.address(B));
        comes_from_a(plan, &there.syn_ack_packet(), &there.syn_ack(kernel));
        let out = conn.out(ACK, 0, 10, 0);
        let run = arrives(kernel, &out);
        routed_to(plan, B, &out, &run);
        egress_lets_it_pass(kernel, &run);
        assert_eq!((kernel.signal(B, "turned_around"), kernel.signal(B, "opened")), (1, 1));
    });
}

#[test]
fn a_repeated_forwarded_syn_is_sent_on() {
    for v6 in [false, true] {
        let plan = Plan::new(v6).rescuing().syn_timeout_ms(3);
        let mut kernel = plan.load();
        let (conn, other) = (client(&plan, 77, 40_000), client(&plan, 78, 40_000));
        arrives(&kernel, &conn.syn_packet());
        arrives(&kernel, &other.syn_packet());
        until("the SYN is sent on", || {
            arrives(&kernel, &conn.syn_packet());
            kernel.count(Count::Resteered) == 1
        });
        let again = arrives(&kernel, &conn.syn_packet());
        routed_to(&plan, B, &conn.syn_packet(), &again);
        assert_eq!(kernel.told(), [(Kind::Resteer, A)]);
        let there = conn.at(plan.address(B));
        comes_from_a(&plan, &there.syn_ack_packet(), &there.syn_ack(&kernel));
        assert_eq!(conn.syn_ack(&kernel).verdict, REDIRECT, "the first origin gets its RST");
        assert_eq!((conn.syn_ack(&kernel).verdict, kernel.count(Count::LoserReset)), (SHOT, 1));
    }
}

#[test]
fn what_is_no_frontend_is_left_to_egress() {
    each(|plan, kernel| {
        let conn = client(plan, 77, 40_000).at(plan.address(B));
        let syn = conn.syn_packet().bytes();
        let run = kernel.run(Hook::Client, &syn);
        assert_eq!((run.verdict, run.mark, &run.packet), (PASS, 0, &syn));
        assert_eq!((kernel.signals(B), kernel.entries()), (vec![], [0; 4]));
        kernel.run(Hook::Egress, &syn);
        assert_eq!((kernel.signal(B, "syn"), kernel.counts()), (1, vec![]), "there it is counted");
        let run = kernel.run(Hook::Client, &conn.out(ACK, 0, 5, 0).bytes());
        assert_eq!((run.verdict, kernel.counts()), (PASS, vec![]), "not picked up here");
    });
}

#[test]
fn a_clients_reset_is_its_abort_and_a_sockets_is_the_hosts() {
    each(|plan, kernel| {
        let conn = client(plan, 77, 40_000);
        arrives(kernel, &conn.syn_packet());
        conn.syn_ack(kernel);
        arrives(kernel, &conn.out(ACK | PSH, 0, 100, 0));
        arrives(kernel, &conn.out(RST | ACK, 100, 0, 0));
        let own = plan.conn(40_000);
        own.handshake(kernel);
        own.send(kernel, RST | ACK, 0, 0, 0);
        let found = ["client_abort", "local_drop", "request_void", "closed", "reset_early"];
        assert_eq!(found.map(|signal| kernel.signal(A, signal)), [1, 1, 1, 2, 0]);
        assert_eq!(kernel.entries(), [0; 4]);
    });
}

/// Of forwarded flows it is the address that counts as one client, not the port.
#[test]
fn one_forwarded_client_cannot_speak_for_all() {
    for v6 in [false, true] {
        let mut plan = Plan::new(v6);
        plan.origin.spread_min = 2;
        let mut kernel = plan.load();
        let refused = |host, port| {
            let conn = client(&plan, host, port);
            arrives(&kernel, &conn.syn_packet());
            conn.refuse(&kernel);
        };
        (40_000..41_000).for_each(|port| refused(77, port));
        assert_eq!((kernel.signal(A, "refused"), kernel.signal(A, "trips")), (1000, 0));
        (0..20).for_each(|host| refused(100 + host, 40_000));
        assert_eq!(kernel.told().first(), Some(&(Kind::Trip, A)), "the others' refusals count");
    }
}

// === Virtual addresses ===

/// A frontend of no origin's own, whose slots name the primary.
fn vip(plan: &Plan, kernel: &mut Kernel, generation: u32) -> Conn {
    let address = addr(plan.v6, 200, 443);
    kernel.set_endpoint(endpoint(address), EndpointUse { origin: NONE, frontend: 1 });
    let table = Table { own: NONE, ..Plan::table(A, &[B], 1) };
    kernel.set_frontend(1, &table, Selector::new(generation, 0));
    Conn::new(addr(plan.v6, NODE, 40_000), address)
}

#[test]
fn a_virtual_address_is_steered_at_either_hook() {
    each(|plan, kernel| {
        let own = vip(plan, kernel, 1);
        let forwarded = Conn { node: addr(plan.v6, 77, 40_000), ..own };
        let run = own.syn(kernel);
        assert_eq!((run.verdict, run.mark), (REDIRECT, SECOND_PASS_MARK));
        assert_eq!(run.packet, Packet { to: plan.address(A), ..own.syn_packet() }.bytes());
        routed_to(plan, A, &forwarded.syn_packet(), &arrives(kernel, &forwarded.syn_packet()));
        for conn in [own, forwarded] {
            let answer = conn.at(plan.address(A)).syn_ack_packet();
            let run = kernel.run(Hook::Ingress, &answer.bytes());
            let want = Packet { from: conn.remote, ..answer };
            assert_eq!((run.verdict, run.packet), (PASS, want.bytes()));
        }
        assert_eq!((kernel.signal(A, "syn"), kernel.signal(A, "synack"), kernel.entries()), (2, 2, [2, 0, 2, 2]));
    });
}

#[test]
fn a_virtual_address_without_a_plan_is_left_alone() {
    each(|plan, kernel| {
        let conn = vip(plan, kernel, 0);
        for hook in [Hook::Egress, Hook::Client] {
            let syn = conn.syn_packet().bytes();
            let run = kernel.run(hook, &syn);
            assert_eq!((run.verdict, run.mark, run.packet), (PASS, 0, syn), "{hook:?}");
        }
        assert_eq!((kernel.counts(), kernel.signals(A), kernel.entries()), (vec![], vec![], [0; 4]));
    });
}

#[test]
fn a_refused_flow_of_a_virtual_address_goes_on_to_the_standby() {
    each(|plan, kernel| {
        let conn = vip(plan, kernel, 1);
        conn.syn(kernel);
        let run = conn.at(plan.address(A)).refuse(kernel);
        assert_eq!(run.verdict, REDIRECT);
        assert_eq!(Packet::read(&run.packet), Packet { to: plan.address(B), ..conn.syn_packet() });
        assert_eq!((kernel.told(), kernel.entries()), (vec![(Kind::Turn, A)], [1, 0, 1, 1]));
        let refusal = conn.at(plan.address(B)).refusal_packet();
        let run = kernel.run(Hook::Ingress, &refusal.bytes());
        let want = Packet { from: conn.remote, ..refusal };
        assert_eq!((run.verdict, run.packet, kernel.entries()[0]), (PASS, want.bytes(), 0), "nobody is left");
    });
}

#[test]
fn a_blocked_primary_of_a_virtual_address_gets_none() {
    each(|plan, kernel| {
        let conn = vip(plan, kernel, 1);
        let record = plan.record(A);
        kernel.set_origin(A, Origin { flags: record.flags | Origin::BLOCKED, ..record });
        let run = conn.syn(kernel);
        assert_eq!(run.packet, Packet { to: plan.address(B), ..conn.syn_packet() }.bytes());
    });
}
