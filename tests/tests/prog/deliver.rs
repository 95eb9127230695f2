//! Forwarded SYNs that no origin will ever see, or take: they pass, and make nobody look silent.

use std::net::SocketAddr;

use health_common::map::Count;

use crate::support::packet::{checksum, pseudo};
use crate::support::{A, Conn, Hook, Kernel, PASS, Packet, Plan, addr};

/// Of the IP header, behind Ethernet.
const L3: usize = 14;

fn client(plan: &Plan, port: u16) -> Conn {
    Conn { node: addr(plan.v6, 77, port), ..plan.conn(port) }
}

/// Writes a time to live, or hop limit, with the checksum that belongs to it.
fn with_hops(mut frame: Vec<u8>, v6: bool, hops: u8) -> Vec<u8> {
    if v6 {
        frame[L3 + 7] = hops;
        return frame;
    }
    frame[L3 + 8] = hops;
    frame[L3 + 10..L3 + 12].copy_from_slice(&[0, 0]);
    let len = usize::from(frame[L3] & 15) * 4;
    let sum = checksum(&[], &frame[L3..L3 + len]);
    frame[L3 + 10..L3 + 12].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn flipped(mut frame: Vec<u8>, at: usize) -> Vec<u8> {
    frame[at] ^= 0x20;
    frame
}

/// Passes as it is; whether it became an attempt.
#[track_caller]
fn is_attempt(kernel: &mut Kernel, name: &str, frame: &[u8]) -> bool {
    let before = (kernel.signal(A, "syn"), kernel.count(Count::SkippedUndeliverable), kernel.entries());
    let run = kernel.run(Hook::Client, frame);
    assert_eq!((run.verdict, run.packet.as_slice()), (PASS, frame), "{name}");
    let after = (kernel.signal(A, "syn"), kernel.count(Count::SkippedUndeliverable), kernel.entries());
    match (after.0 - before.0, after.1 - before.1) {
        (1, 0) => true,
        (0, 1) => {
            assert_eq!(after.2, before.2, "{name}: nothing is noted");
            false
        }
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn what_does_not_reach_the_origin_is_no_attempt() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        let frame = |port, payload: usize| {
            let conn = client(&plan, port);
            Packet { payload: vec![0x5a; payload], ..conn.syn_packet() }.bytes()
        };
        let tcp = L3 + if v6 { 40 } else { 20 };
        let sound = frame(40_000, 0);
        let end = sound.len() - 1;
        let table = [
            ("a SYN", frame(40_001, 0), true),
            ("at its last hop but one", with_hops(frame(40_002, 0), v6, 2), true),
            ("at its last hop", with_hops(sound.clone(), v6, 1), false),
            ("beyond", with_hops(sound.clone(), v6, 0), false),
            ("a wrong port", flipped(sound.clone(), tcp), false),
            ("a wrong option", flipped(sound.clone(), end), false),
            ("a wrong checksum", flipped(sound.clone(), tcp + 16), false),
            ("a byte of data", frame(40_003, 1), true),
            ("a wrong byte of data", flipped(frame(40_004, 1), end + 1), false),
            ("data of two pieces", frame(40_005, 777), true),
            ("wrong data", flipped(frame(40_006, 777), end + 777), false),
            ("data of all pieces", frame(40_007, 1460), true),
            ("wrong data of all pieces", flipped(frame(40_008, 1460), end + 1400), false),
        ];
        for (name, frame, want) in table {
            assert_eq!(is_attempt(&mut kernel, name, &frame), want, "{name}");
        }
    }
}

#[test]
fn the_header_of_ipv4_has_a_checksum_and_that_of_ipv6_extensions() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    let syn = |port| Packet { ip_options: vec![1; 8], ..client(&plan, port).syn_packet() }.bytes();
    assert!(is_attempt(&mut kernel, "with options", &syn(40_000)));
    for at in [1, 4, 10, 20, 27] {
        assert!(!is_attempt(&mut kernel, "damaged", &flipped(syn(40_001), L3 + at)), "byte {at}");
    }
    let plan = Plan::new(true);
    let mut kernel = plan.load();
    let mut padding = vec![0; 8];
    (padding[2], padding[3]) = (1, 4);
    let syn = Packet { extensions: vec![(0, padding)], ..client(&plan, 40_000).syn_packet() }.bytes();
    assert!(is_attempt(&mut kernel, "hop-by-hop options", &syn));
    let wrong = flipped(syn, L3 + 40 + 8);
    assert!(!is_attempt(&mut kernel, "with a wrong port", &wrong));
}

/// `::ffff:a.b.c.d` is the name of an origin of IPv4 here, and nobody's address on the wire.
#[test]
fn an_ipv6_packet_to_a_mapped_address_is_no_attempt() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    let SocketAddr::V4(origin) = plan.address(A) else { panic!("of IPv4") };
    let to = SocketAddr::new(origin.ip().to_ipv6_mapped().into(), origin.port());
    let syn = Conn::new(addr(true, 77, 40_000), to).syn_packet().bytes();
    assert!(!is_attempt(&mut kernel, "mapped", &syn));
}

/// The attack: five packets of three clients to a quiet origin.
#[test]
fn undeliverable_syns_trip_nothing() {
    for v6 in [false, true] {
        let plan = Plan::new(v6).syn_timeout_ms(3);
        let mut kernel = plan.load();
        let tcp = L3 + if v6 { 40 } else { 20 };
        for host in 100..140 {
            let conn = Conn::new(addr(v6, host, 40_000), plan.address(A));
            kernel.run(Hook::Client, &flipped(conn.syn_packet().bytes(), tcp + 16));
            kernel.run(Hook::Client, &with_hops(conn.syn_packet().bytes(), v6, 1));
        }
        crate::support::kernel::wait_ms(&kernel, 10);
        client(&plan, 40_000).syn(&kernel);
        assert_eq!((kernel.told(), kernel.signal(A, "trips"), kernel.signal(A, "syn")), (vec![], 0, 1));
    }
}

/// What the sums above rest on.
#[test]
fn the_tables_packets_have_right_checksums() {
    for v6 in [false, true] {
        let conn = client(&Plan::new(v6), 40_000);
        let frame = Packet { payload: vec![7; 777], ..conn.syn_packet() }.bytes();
        let tcp = &frame[L3 + if v6 { 40 } else { 20 }..];
        assert_eq!(checksum(&pseudo(conn.node.ip(), conn.remote.ip(), tcp.len(), 6), tcp), 0);
    }
}
