//! Between an accepted answer and the node's acknowledgement of it: all is counted, and nothing is a flow yet.

use health_common::map::Count;

use crate::steer::{comes_from_a, goes_to_b};
use crate::support::packet::{ACK, FIN, RST};
use crate::support::{A, B, Conn, Hook, Kernel, PASS, Packet, Plan};

/// A connection that was answered, direct or redirected, in both families.
fn each(test: impl Fn(&Plan, &mut Kernel, &Conn, &Conn, u16)) {
    for v6 in [false, true] {
        for moved in [false, true] {
            let plan = Plan::new(v6).rescuing();
            let mut kernel = plan.load();
            if moved {
                plan.trip(&mut kernel);
            }
            let (conn, id) = (plan.conn(40_000), if moved { B } else { A });
            let there = conn.at(plan.address(id));
            conn.syn(&kernel);
            there.syn_ack(&kernel);
            test(&plan, &mut kernel, &conn, &there, id);
        }
    }
}

/// Where a packet of the node's side went.
fn goes_to(plan: &Plan, kernel: &Kernel, id: u16, packet: &Packet) {
    let run = kernel.run(Hook::Egress, &packet.bytes());
    if id == B {
        return goes_to_b(plan, packet, &run);
    }
    assert_eq!((run.verdict, run.packet), (PASS, packet.bytes()));
}

fn comes_back(plan: &Plan, kernel: &Kernel, packet: &Packet) {
    comes_from_a(plan, packet, &kernel.run(Hook::Ingress, &packet.bytes()));
}

const SIGNALS: [&str; 8] = ["syn", "syn_retrans", "synack", "opened", "request", "reset_early", "local_drop", "closed"];

#[track_caller]
fn says(kernel: &Kernel, id: u16, want: [u64; 8]) {
    let before = if id == A { 0 } else { kernel.signal(A, "syn") };
    assert!(before == 0 || before == 5, "what tripped it");
    assert_eq!(SIGNALS.map(|signal| kernel.signal(id, signal)), want, "{SIGNALS:?}");
}

/// The rest of its entries: none, or its redirection.
const fn way(id: u16) -> usize {
    (id == B) as usize
}

#[test]
fn the_first_packet_that_acknowledges_the_answer_makes_the_flow() {
    each(|plan, kernel, conn, there, id| {
        goes_to(plan, kernel, id, &conn.out(ACK, 0, 100, 0));
        says(kernel, id, [1, 0, 1, 1, 1, 0, 0, 0]);
        assert_eq!(kernel.entries(), [0, 1, way(id), way(id)]);
        comes_back(plan, kernel, &there.back(ACK, 0, 200, 100));
        assert_eq!((kernel.signal(id, "response"), kernel.signal(id, "bytes_out")), (1, 100));
        assert_eq!(kernel.counters(id).rtt.iter().sum::<u32>(), 1, "of the handshake");
    });
}

/// P05: a guess is passed on like any packet, and means nothing.
#[test]
fn a_number_that_the_answer_did_not_have_makes_no_flow() {
    each(|plan, kernel, conn, _, id| {
        for ack in [u32::MAX, 1, 77, 1 << 31] {
            goes_to(plan, kernel, id, &conn.out(ACK, 0, 100, ack));
            goes_to(plan, kernel, id, &conn.out(ACK | FIN, 100, 0, ack));
        }
        goes_to(plan, kernel, id, &conn.out(0, 0, 100, 0));
        says(kernel, id, [1, 0, 1, 0, 0, 0, 0, 0]);
        assert_eq!((kernel.signal(id, "pkts_out"), kernel.entries()), (0, [1, 0, way(id), way(id)]));
    });
}

/// P09 (a): the answer was lost on the way to the client. It goes to the same origin, whatever has become of that.
#[test]
fn a_syn_and_its_answer_may_be_repeated() {
    each(|plan, kernel, conn, there, id| {
        if id == A {
            plan.trip(kernel);
        }
        for _ in 0..3 {
            goes_to(plan, kernel, id, &conn.syn_packet());
            comes_back(plan, kernel, &there.syn_ack_packet());
        }
        let moves = kernel.signal(id, "resteered") + kernel.signal(id, "turned_around");
        assert_eq!((kernel.signal(id, "syn_retrans"), kernel.signal(id, "synack"), moves), (3, 1, 0));
        assert_eq!(kernel.counters(id).rtt.iter().sum::<u32>(), 1, "the first answer came to the first SYN");
        goes_to(plan, kernel, id, &conn.out(ACK, 0, 0, 0));
        assert_eq!((kernel.signal(id, "opened"), kernel.entries()), (1, [0, 1, way(id), way(id)]));
    });
}

/// An origin that answers with cookies may have another number for each answer. The newest is what counts.
#[test]
fn another_answer_may_have_another_number() {
    each(|plan, kernel, conn, there, id| {
        let other = |conn: &Conn| Conn { origin_isn: 9, ..*conn };
        comes_back(plan, kernel, &other(there).syn_ack_packet());
        goes_to(plan, kernel, id, &other(conn).out(ACK, 0, 100, 0));
        comes_back(plan, kernel, &other(there).back(ACK, 0, 200, 100));
        says(kernel, id, [1, 0, 1, 1, 1, 0, 0, 0]);
        assert_eq!(kernel.signal(id, "response"), 1);
    });
}

/// A spoofed host resets what it has not asked for.
#[test]
fn a_reset_of_the_nodes_side_ends_it() {
    each(|plan, kernel, conn, _, id| {
        goes_to(plan, kernel, id, &conn.out(RST, 0, 0, 0));
        says(kernel, id, [1, 0, 1, 1, 0, 0, 1, 1]);
        assert_eq!((kernel.entries(), kernel.count(Count::FlowMade)), ([0, 0, way(id), way(id)], 0));
    });
}

#[test]
fn only_an_exact_reset_of_the_origin_ends_it() {
    each(|plan, kernel, _, there, id| {
        comes_back(plan, kernel, &there.back(RST, 1, 0, 0));
        comes_back(plan, kernel, &there.back(RST, 1 << 30, 0, 0));
        comes_back(plan, kernel, &Packet { seq: 0, ..there.back(RST | ACK, 0, 0, 0) });
        let forged = kernel.signal(id, "rst_suspect") + kernel.signal(id, "rst_forged");
        assert_eq!((forged, kernel.entries()), (3, [1, 0, way(id), way(id)]));
        says(kernel, id, [1, 0, 1, 0, 0, 0, 0, 0]);
        comes_back(plan, kernel, &there.back(RST, 0, 0, 0));
        says(kernel, id, [1, 0, 1, 1, 0, 1, 0, 1]);
        assert_eq!(kernel.entries(), [0, 0, way(id), way(id)]);
    });
}

/// The node's acknowledgement passed elsewhere: what the origin says then shows that there was one.
#[test]
fn a_banner_at_the_exact_number_makes_the_flow_too() {
    each(|plan, kernel, conn, there, id| {
        comes_back(plan, kernel, &there.back(ACK, 30, 20, 0));
        assert_eq!(kernel.entries(), [1, 0, way(id), way(id)], "its second segment");
        comes_back(plan, kernel, &there.back(ACK, 0, 30, 0));
        assert_eq!((kernel.entries(), kernel.signal(id, "opened")), ([0, 1, way(id), way(id)], 1));
        goes_to(plan, kernel, id, &conn.out(ACK, 0, 10, 50));
        comes_back(plan, kernel, &there.back(ACK, 50, 20, 10));
        let found = ["request", "response", "pkts_in", "bytes_in"].map(|signal| kernel.signal(id, signal));
        assert_eq!(found, [1, 1, 4, 70]);
        comes_back(plan, kernel, &there.back(RST, 70, 0, 10));
        assert_eq!((kernel.signal(id, "reset_mid"), kernel.signal(id, "closed")), (1, 1));
    });
}

#[test]
fn a_forwarded_flow_is_made_where_its_client_is_followed() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        let conn = Conn { node: crate::support::addr(v6, 77, 40_000), ..plan.conn(40_000) };
        kernel.run(Hook::Client, &conn.syn_packet().bytes());
        conn.syn_ack(&kernel);
        // Its mark was lost on the way to egress, where it is not to be counted again.
        let out = conn.out(ACK, 0, 0, 0).bytes();
        assert_eq!(kernel.run(Hook::Egress, &out).packet, out);
        assert_eq!((kernel.signal(A, "opened"), kernel.entries()), (0, [1, 0, 0, 0]));
        kernel.run(Hook::Client, &out);
        kernel.run(Hook::Client, &conn.out(RST, 0, 0, 0).bytes());
        let found = ["opened", "pkts_out", "client_abort", "closed"].map(|signal| kernel.signal(A, signal));
        assert_eq!((found, kernel.entries(), kernel.counts()), ([1, 1 + 1, 1, 1], [0; 4], vec![]));
    }
}
