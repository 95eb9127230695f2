//! ICMP errors that quote a packet of ours (RFC 792, RFC 4443), from routers and from the origins themselves.

use std::net::SocketAddr;

use health_common::event::Kind;
use health_common::map::Count;

use crate::support::packet::{ACK, Packet, checksum, pseudo};
use crate::support::plan::addr;
use crate::support::{A, B, Hook, PASS, Plan, REDIRECT};

/// An error of a router, about a packet. `quoted` bytes of TCP are quoted.
fn error(router: SocketAddr, about: &Packet, (kind, code): (u8, u8), quoted: usize) -> Vec<u8> {
    let frame = about.bytes();
    let v6 = router.is_ipv6();
    let (ip_len, number) = if v6 { (40, 58) } else { (20, 1) };
    let mut body = vec![kind, code, 0, 0, 0, 0, 0, 0];
    body.extend(&frame[14..14 + ip_len + quoted]);
    let first = if v6 { pseudo(router.ip(), about.from.ip(), body.len(), number) } else { Vec::new() };
    let sum = checksum(&first, &body);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    // The frame of a packet from the router to the sender, with another payload.
    let mut outer = Packet::new(router, about.from, ACK).bytes()[..14 + ip_len].to_vec();
    let ip = &mut outer[14..];
    if v6 {
        ip[4..6].copy_from_slice(&u16::try_from(body.len()).expect("short").to_be_bytes());
        ip[6] = number;
    } else {
        ip[2..4].copy_from_slice(&u16::try_from(20 + body.len()).expect("short").to_be_bytes());
        (ip[9], ip[10], ip[11]) = (number, 0, 0);
        let sum = checksum(&[], ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    outer.extend(body);
    outer
}

const PORT: [(u8, u8); 2] = [(3, 3), (1, 4)];
const PROHIBITED: [(u8, u8); 2] = [(3, 13), (1, 1)];
const HOST: [(u8, u8); 2] = [(3, 1), (1, 3)];
const TOO_BIG: [(u8, u8); 2] = [(3, 4), (2, 0)];

fn of(v6: bool, kinds: [(u8, u8); 2]) -> (u8, u8) {
    kinds[usize::from(v6)]
}

#[test]
fn an_unreachable_port_is_a_refusal_and_is_turned_around() {
    for v6 in [false, true] {
        for (name, kinds, signal) in [
            ("port", PORT, "refused"),
            ("administratively prohibited", PROHIBITED, "refused"),
            ("host", HOST, "unreachable"),
        ] {
            for quoted in [8, 20] {
                let plan = Plan::new(v6).rescuing();
                let mut kernel = plan.load();
                let conn = plan.conn(40_000);
                let syn = Packet { options: vec![2, 4, 5, 0xb4, 1, 3, 3, 7], tos: 0x10, ..conn.syn_packet() };
                kernel.run(Hook::Egress, &syn.bytes());
                let run = kernel.run(Hook::Ingress, &error(addr(v6, 77, 0), &syn, of(v6, kinds), quoted));
                assert_eq!(run.verdict, REDIRECT, "{name}");
                assert_eq!(Packet::read(&run.packet), Packet { to: plan.address(B), ..syn.clone() }, "{name}");
                assert_eq!((kernel.signal(A, signal), kernel.signal(B, "turned_around")), (1, 1), "{name}");
                assert_eq!(kernel.told(), [(Kind::Turn, A)], "{name}");
            }
        }
    }
}

#[test]
fn five_unreachable_hosts_trip_and_without_rescue_the_error_reaches_the_client() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        for port in 40_001..=40_005 {
            let conn = plan.conn(port);
            conn.syn(&kernel);
            let error = error(addr(v6, 77, 0), &conn.syn_packet(), of(v6, HOST), 8);
            let run = kernel.run(Hook::Ingress, &error);
            assert_eq!((run.verdict, run.packet), (PASS, error));
        }
        assert_eq!((kernel.signal(A, "unreachable"), kernel.signal(A, "trips_unreachable")), (5, 1));
        assert_eq!((kernel.told(), kernel.entries()), (vec![(Kind::Trip, A)], [0; 4]));
    }
}

#[test]
fn an_error_that_quotes_nothing_in_flight_is_no_evidence() {
    let plan = Plan::new(false).rescuing();
    let mut kernel = plan.load();
    let conn = plan.conn(40_000);
    conn.syn(&kernel);
    let forged = Packet { seq: conn.syn_packet().seq.wrapping_add(9), ..conn.syn_packet() };
    let error_of = |about: &Packet| error(addr(false, 77, 0), about, of(false, PORT), 8);
    assert_eq!(kernel.run(Hook::Ingress, &error_of(&forged)).verdict, PASS);
    conn.syn_ack(&kernel);
    kernel.run(Hook::Ingress, &error_of(&conn.syn_packet()));
    assert_eq!((kernel.count(Count::IcmpForged), kernel.entries()[0]), (2, 1), "an answered SYN is under way no more");
    conn.send(&kernel, ACK, 0, 0, 0);
    conn.request(&kernel);
    let old = Packet { seq: conn.out(ACK, 0, 0, 0).seq.wrapping_sub(5000), ..conn.out(ACK, 0, 10, 0) };
    kernel.run(Hook::Ingress, &error(addr(false, 77, 0), &old, of(false, HOST), 8));
    assert_eq!((kernel.signal(A, "refused"), kernel.signal(A, "unreachable")), (0, 0));
    assert_eq!((kernel.count(Count::IcmpForged), kernel.told()), (3, vec![]));
    kernel.run(Hook::Ingress, &error(addr(false, 77, 0), &conn.out(ACK, 50, 10, 0), of(false, HOST), 8));
    assert_eq!(kernel.signal(A, "unreachable"), 1, "what is in flight counts");
}

/// cilium#47755: outside and inside, or the client ignores it.
#[test]
fn errors_of_redirected_flows_are_translated_both_ways() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        plan.trip(&mut kernel);
        let conn = plan.conn(40_000);
        let there = conn.at(plan.address(B));
        conn.syn(&kernel);
        there.syn_ack(&kernel);
        conn.send(&kernel, ACK, 0, 0, 0);
        conn.request(&kernel);
        for (name, router, as_seen) in [
            ("of a router", addr(v6, 77, 0), addr(v6, 77, 0)),
            ("of the standby itself", plan.address(B), plan.address(A)),
        ] {
            let came = error(router, &there.out(ACK, 0, 100, 0), of(v6, TOO_BIG), 8);
            let run = kernel.run(Hook::Ingress, &came);
            assert_eq!(
                (run.verdict, run.packet),
                (PASS, error(as_seen, &conn.out(ACK, 0, 100, 0), of(v6, TOO_BIG), 8)),
                "{name}"
            );
        }
        // Of the node's side, about a packet of the standby's, as the node's side knows it.
        let about = conn.back(ACK, 0, 900, 100);
        let node = SocketAddr::new(conn.syn_packet().from.ip(), 0);
        let run = kernel.run(Hook::Egress, &error(node, &about, of(v6, TOO_BIG), 8));
        assert_eq!(run.verdict, REDIRECT);
        assert_eq!(run.packet, error(node, &there.back(ACK, 0, 900, 100), of(v6, TOO_BIG), 8));
        assert_eq!(kernel.count(Count::IcmpTranslated), 3);
    }
}
