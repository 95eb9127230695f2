//! VLAN tags in the frame (P07).

use health_common::map::Count;

use crate::client::client;
use crate::pass::passes_untouched;
use crate::support::packet::ACK;
use crate::support::{A, B, Hook, PASS, Packet, Plan, REDIRECT};

#[test]
fn tags_in_the_frame_are_read_over() {
    for v6 in [false, true] {
        for vlans in [vec![5], vec![5, 6]] {
            let plan = Plan::new(v6);
            let mut kernel = plan.load();
            let conn = plan.conn(40_000);
            let tagged = |packet: Packet| Packet { vlans: vlans.clone(), ..packet }.bytes();
            passes_untouched(&kernel, Hook::Egress, "SYN", &tagged(conn.syn_packet()));
            passes_untouched(&kernel, Hook::Ingress, "SYN-ACK", &tagged(conn.syn_ack_packet()));
            passes_untouched(&kernel, Hook::Egress, "request", &tagged(conn.out(ACK, 0, 77, 0)));
            passes_untouched(&kernel, Hook::Ingress, "response", &tagged(conn.back(ACK, 0, 88, 77)));
            let found = ["synack", "request", "response"].map(|signal| kernel.signal(A, signal));
            assert_eq!((found, kernel.signal(A, "bytes_in"), kernel.counts()), ([1; 3], 88, vec![]), "{vlans:?}");
            assert_eq!(kernel.entries(), [0, 1, 0, 0]);
        }
    }
}

/// The tag belongs to the primary's network, and would go along to another interface.
#[test]
fn a_syn_with_a_tag_in_its_frame_is_not_redirected() {
    for v6 in [false, true] {
        for vlans in [vec![5], vec![5, 6]] {
            let plan = Plan::new(v6);
            let mut kernel = plan.load();
            plan.trip(&mut kernel);
            let syn = Packet { vlans: vlans.clone(), ..plan.conn(40_000).syn_packet() }.bytes();
            passes_untouched(&kernel, Hook::Egress, "SYN", &syn);
            assert_eq!(kernel.count(Count::NotMovable), 1);
            assert_eq!((kernel.signal(A, "syn"), kernel.signal(B, "syn")), (6, 0), "it went to the primary");
            assert_eq!(kernel.entries(), [1, 0, 0, 0]);
        }
    }
}

/// An answer that comes with a tag, as from a device that does not take it off, finds its way back.
#[test]
fn the_answer_of_a_redirected_flow_may_have_a_tag() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        plan.trip(&mut kernel);
        let conn = plan.conn(40_000);
        assert_eq!(conn.syn(&kernel).verdict, REDIRECT);
        let answer = Packet { vlans: vec![7], ..conn.at(plan.address(B)).syn_ack_packet() };
        let run = kernel.run(Hook::Ingress, &answer.bytes());
        assert_eq!((run.verdict, kernel.signal(B, "synack")), (PASS, 1));
        assert_eq!(run.packet, Packet { from: plan.address(A), ..answer }.bytes());
    }
}

#[test]
fn a_tagged_forwarded_syn_is_followed_and_not_redirected() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    plan.trip(&mut kernel);
    let syn = Packet { vlans: vec![5], ..client(&plan, 77, 40_000).syn_packet() }.bytes();
    let run = kernel.run(Hook::Client, &syn);
    assert_eq!((run.verdict, run.packet, kernel.count(Count::NotMovable)), (PASS, syn, 1));
    assert_eq!(kernel.signal(A, "syn"), 6);
}
