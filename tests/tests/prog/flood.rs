//! Floods, handshakes that nobody saw, and packets of several segments (P05, P08).

use health_common::map::Count;

use crate::steer::goes_to_b;
use crate::support::packet::{ACK, RST};
use crate::support::{A, B, Conn, Hook, Plan, addr};

/// P05.
#[test]
fn a_flood_of_syns_evicts_no_flow_and_trips_nothing() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        let flows: Vec<_> = (40_000..40_200).map(|port| plan.conn(port)).collect();
        for conn in &flows {
            conn.handshake(&kernel);
        }
        for number in 0..20_000_u16 {
            let host = 100 + u8::try_from(number % 100).expect("small");
            let spoofed = Conn::new(addr(v6, host, 1_000 + number), plan.address(A));
            kernel.run(Hook::Client, &spoofed.syn_packet().bytes());
        }
        assert_eq!(kernel.entries()[1..], [200, 0, 0], "they have a table of their own");
        let open = u64::try_from(kernel.entries()[0]).expect("few");
        let made = kernel.count(Count::HalfOpenMade) - kernel.count(Count::HalfOpenRemoved);
        assert_eq!(made, 20_000, "each was noted");
        assert!(open <= 1024 && made > open, "what was evicted can be told: {made} made, {open} there");
        for conn in &flows {
            conn.request(&kernel);
            conn.respond(&kernel);
        }
        let found = ["request", "response", "trips"].map(|signal| kernel.signal(A, signal));
        assert_eq!((found, kernel.told(), kernel.count(Count::PickedUp)), ([200, 200, 0], vec![], 0));
    }
}

/// P05, with an origin that answers: cookies cost it nothing, and an answer is no flow.
#[test]
fn a_flood_of_syns_that_are_answered_evicts_no_flow_either() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        let flows: Vec<_> = (40_000..40_200).map(|port| plan.conn(port)).collect();
        for conn in &flows {
            conn.handshake(&kernel);
        }
        for number in 0..20_000_u16 {
            let host = 100 + u8::try_from(number % 100).expect("small");
            let spoofed = Conn::new(addr(v6, host, 1_000 + number), plan.address(A));
            kernel.run(Hook::Client, &spoofed.syn_packet().bytes());
            spoofed.syn_ack(&kernel);
            // Whoever forged it has not seen the answer, and can only guess its number.
            kernel.run(Hook::Client, &spoofed.out(ACK, 0, 100, 77).bytes());
        }
        assert_eq!(kernel.entries()[1..], [200, 0, 0], "they have a table of their own");
        for conn in &flows {
            conn.request(&kernel);
            conn.respond(&kernel);
        }
        let signals = ["syn", "synack", "opened", "request", "response"];
        assert_eq!(signals.map(|signal| kernel.signal(A, signal)), [20_200, 20_200, 200, 200, 200]);
        assert_eq!((kernel.told(), kernel.count(Count::PickedUp), kernel.count(Count::FlowMade)), (vec![], 0, 200));
    }
}

/// P05, the second run: a cookie was answered elsewhere, so that the first packet is an ACK with data.
#[test]
fn a_flow_whose_handshake_nobody_saw_is_picked_up_and_says_nothing() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        let conn = plan.conn(40_000);
        let out = conn.out(ACK, 0, 100, 0).bytes();
        assert_eq!(kernel.run(Hook::Egress, &out).packet, out);
        conn.receive(&kernel, ACK, 0, 200, 100);
        conn.receive(&kernel, RST, 200, 0, 100);
        assert_eq!((kernel.signals(A), kernel.counts(), kernel.entries()), (vec![], vec![("picked_up", 1)], [0; 4]));
    }
}

/// P08: a packet that the device is to cut is rewritten as one, counts as what it becomes, and stays what it is.
#[test]
fn a_packet_of_several_segments_is_rewritten_as_one() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        plan.trip(&mut kernel);
        let conn = plan.conn(40_000);
        conn.syn(&kernel);
        conn.at(plan.address(B)).syn_ack(&kernel);
        let out = conn.out(ACK, 0, 1400, 0);
        let (run, segments, size) = kernel.run_segments(Hook::Egress, &out.bytes(), 4, 350);
        assert_eq!((segments, size), (4, 350));
        goes_to_b(&plan, &out, &run);
        assert_eq!((kernel.signal(B, "pkts_out"), kernel.signal(B, "bytes_out")), (4, 1400));
    }
}
