//! What isn't ours, or isn't understood, passes as it came; why is counted.

use health_common::map::{Count, Node};

use crate::support::kernel::{BARE, is_taken};
use crate::support::packet::{ACK, FIN, RST, SYN};
use crate::support::{A, Hook, Kernel, NODE, PASS, Packet, Plan, addr};

const BOTH: [Hook; 2] = [Hook::Egress, Hook::Ingress];

#[track_caller]
pub(crate) fn passes_untouched(kernel: &Kernel, hook: Hook, name: &str, packet: &[u8]) {
    let run = kernel.run(hook, packet);
    assert_eq!((run.verdict, run.mark), (PASS, 0), "{name} at {hook:?}");
    assert_eq!(run.packet, packet, "{name} at {hook:?}: the bytes");
}

/// A packet with a byte changed.
fn with(mut packet: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    packet[at] = byte;
    packet
}

#[test]
fn what_is_not_ours_passes_and_counts_nothing() {
    for v6 in [false, true] {
        let mut kernel = Plan::new(v6).load();
        let node = addr(v6, NODE, 40_000);
        let other_host = Packet::new(node, addr(v6, 99, 443), SYN).bytes();
        let protocol = if v6 { 20 } else { 23 };
        let table = [
            ("another host", other_host.clone()),
            ("another port", Packet::new(node, addr(v6, 11, 444), SYN).bytes()),
            ("another host, mid-stream", Packet::new(node, addr(v6, 99, 443), ACK).bytes()),
            ("UDP", with(Packet::new(node, addr(v6, 11, 443), SYN).bytes(), protocol, 17)),
            ("GRE", with(other_host.clone(), protocol, 47)),
            (
                "another host, with options",
                Packet { options: vec![1; 40], ..Packet::new(node, addr(v6, 99, 1), ACK) }.bytes(),
            ),
        ];
        for (name, packet) in &table {
            for hook in BOTH {
                passes_untouched(&kernel, hook, name, packet);
            }
        }
        assert_eq!((kernel.counts(), kernel.signals(A), kernel.entries()), (vec![], vec![], [0; 4]));
    }
}

/// P07.
#[test]
fn what_is_not_understood_passes_and_is_counted() {
    let node = |v6| addr(v6, NODE, 40_000);
    let syn = |v6| Packet::new(node(v6), addr(v6, 11, 443), SYN);
    let fragment = |offset, more| Packet { fragment: Some((offset, more)), ..syn(false) }.bytes();
    let whole = syn(false).bytes();
    // Where the programs find it.
    let ethertype = if BARE { 14 + 12 } else { 12 };
    let mut table: Vec<(&str, Count, Vec<u8>)> = vec![
        ("ARP", Count::SkippedLink, with(with(whole.clone(), ethertype, 8), ethertype + 1, 6)),
        ("three VLAN tags", Count::SkippedVlan, Packet { vlans: vec![5, 6, 7], ..syn(true) }.bytes()),
        ("first fragment", Count::SkippedFragment, fragment(0, true)),
        ("middle fragment", Count::SkippedFragment, fragment(1, true)),
        ("last fragment", Count::SkippedFragment, fragment(1, false)),
        ("first fragment with 8 bytes of TCP", Count::SkippedFragment, fragment(0, true)[..14 + 20 + 8].to_vec()),
        ("cut in the TCP header", Count::SkippedShort, whole[..14 + 20 + 19].to_vec()),
        ("IPv4 header of 16 bytes", Count::SkippedShort, with(whole.clone(), 14, 0x44)),
        ("TCP header of 16 bytes", Count::SkippedShort, with(whole.clone(), 14 + 20 + 12, 0x40)),
        ("TCP header longer than the packet", Count::SkippedShort, with(whole.clone(), 14 + 20 + 12, 0xf0)),
        ("IPv4 length under its header", Count::SkippedShort, with(whole.clone(), 17, 19)),
        ("IPv4 length over the packet", Count::SkippedShort, with(whole.clone(), 16, 1)),
        ("IPv6 length under TCP's header", Count::SkippedShort, with(syn(true).bytes(), 19, 19)),
        ("IPv6 length over the packet", Count::SkippedShort, with(syn(true).bytes(), 18, 1)),
    ];
    // Without a frame there are no tags in it.
    table.retain(|(_, count, packet)| is_taken(packet) && (!BARE || *count != Count::SkippedVlan));
    let mut kernel = Plan::new(false).load();
    Plan::new(true).write(&mut kernel);
    for (name, count, packet) in &table {
        for hook in BOTH {
            let before = kernel.count(*count);
            passes_untouched(&kernel, hook, name, packet);
            assert_eq!(kernel.count(*count), before + 1, "{name} at {hook:?}: {:?}", kernel.counts());
        }
    }
    assert_eq!((kernel.signals(A), kernel.entries()), (vec![], [0; 4]));
}

#[test]
fn options_of_ip_and_tcp_are_walked_over() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    let conn = plan.conn(40_000);
    kernel.run(Hook::Egress, &Packet { ip_options: vec![1; 40], ..conn.syn_packet() }.bytes());
    kernel
        .run(Hook::Ingress, &Packet { ip_options: vec![1; 4], options: vec![1; 40], ..conn.syn_ack_packet() }.bytes());
    let request = Packet { ip_options: vec![1; 40], options: vec![1; 40], ..conn.out(ACK, 0, 77, 0) };
    kernel.run(Hook::Egress, &request.bytes());

    assert_eq!((kernel.signal(A, "synack"), kernel.signal(A, "bytes_out")), (1, 77));
    assert_eq!((kernel.counts(), kernel.entries()), (vec![], [0, 1, 0, 0]));
}

/// Ethernet fills short frames up to 60 bytes.
#[test]
fn padding_is_no_payload() {
    let plan = Plan::new(false);
    let kernel = plan.load();
    let conn = plan.conn(40_000);
    conn.handshake(&kernel);
    let mut padded = conn.out(ACK, 0, 0, 0).bytes();
    padded.resize(60, 0);
    kernel.run(Hook::Egress, &padded);

    assert_eq!((kernel.signal(A, "bytes_out"), kernel.signal(A, "request")), (0, 0));
}

#[test]
fn flags_that_make_no_syn_are_none() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    for (port, flags) in (40_001..).zip([SYN | FIN, SYN | RST, SYN | RST | FIN, 0, FIN, 0xff]) {
        let conn = plan.conn(port);
        passes_untouched(&kernel, Hook::Egress, "no SYN", &Packet { flags, ..conn.syn_packet() }.bytes());
    }
    assert_eq!((kernel.signals(A), kernel.entries()), (vec![], [0; 4]), "no origin would answer these");
}

#[test]
fn what_carries_the_bypass_mark_is_left_alone() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    kernel.set_node(Node { bypass_mark: 0x51, ..Node::default() });
    plan.trip(&mut kernel);
    let conn = plan.conn(40_000);
    for packet in [conn.syn_packet(), conn.out(ACK, 0, 0, 0), conn.out(ACK, 0, 100, 0)] {
        let run = kernel.run_marked(Hook::Egress, &packet.bytes(), 0x51);
        assert_eq!((run.verdict, run.mark, run.packet), (PASS, 0x51, packet.bytes()));
    }
    for packet in [conn.syn_ack_packet(), conn.back(ACK, 0, 100, 100), conn.back(RST, 100, 0, 100)] {
        passes_untouched(&kernel, Hook::Ingress, "an answer", &packet.bytes());
    }
    assert_eq!((kernel.signal(A, "syn"), kernel.entries()), (5, [0, 0, 0, 0]), "only those that tripped it");
    assert_eq!(kernel.counts(), [], "not even as picked up");
    assert_eq!(conn.syn(&kernel).verdict, crate::support::REDIRECT, "without the mark it is steered");
}

#[test]
fn p01_checks_that_end_with_a_reset_count_for_nobody_and_traffic_beside_them_counts() {
    for last in [RST, FIN | ACK] {
        let plan = Plan::new(false);
        let mut kernel = plan.load();
        kernel.set_node(Node { bypass_mark: 0x51, ..Node::default() });
        for second in 0..120 {
            // From the same address of the node: only the mark tells them apart.
            let check = plan.conn(20_000 + second);
            let out = |packet: Packet| kernel.run_marked(Hook::Egress, &packet.bytes(), 0x51);
            out(check.syn_packet());
            check.syn_ack(&kernel);
            out(check.out(ACK, 0, 0, 0));
            out(check.out(last, 0, 0, 0));
            if last & FIN != 0 {
                check.receive(&kernel, FIN | ACK, 0, 0, 1);
                out(check.out(ACK, 1, 0, 1));
            }
            for client in 0..5 {
                let conn = plan.conn(30_000 + second * 5 + client);
                conn.handshake(&kernel);
                conn.request(&kernel);
                conn.respond(&kernel);
                // What the node's side ends with is its own doing too.
                conn.send(&kernel, RST, 100, 0, 100);
            }
        }
        let resets: u64 = ["reset_early", "reset_mid", "reset_idle"].map(|kind| kernel.signal(A, kind)).iter().sum();
        assert_eq!((resets, kernel.signal(A, "trips"), kernel.told()), (0, 0, vec![]));
        let counted = ["syn", "synack", "request", "response", "local_drop"].map(|kind| kernel.signal(A, kind));
        assert_eq!(counted, [600; 5], "the clients' and none of the checks'");
        assert_eq!(kernel.entries(), [0; 4]);
    }
}

#[test]
fn a_check_on_a_tuple_of_old_traffic_meets_nothing_of_it() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    kernel.set_node(Node { bypass_mark: 0x51, ..Node::default() });
    plan.trip(&mut kernel);
    let old = plan.conn(40_000);
    old.syn(&kernel);
    old.at(plan.address(1)).syn_ack(&kernel);
    old.send(&kernel, ACK, 0, 0, 0);
    assert_eq!(kernel.entries()[1..], [1, 1, 1], "moved to the standby");

    let check = old.again();
    for packet in [check.syn_packet(), check.out(ACK, 0, 0, 0), check.out(ACK, 0, 100, 0)] {
        let run = kernel.run_marked(Hook::Egress, &packet.bytes(), 0x51);
        assert_eq!((run.verdict, run.packet), (PASS, packet.bytes()));
    }
    passes_untouched(&kernel, Hook::Ingress, "its answer", &check.syn_ack_packet().bytes());
    assert_eq!(kernel.entries(), [0; 4]);
}

#[test]
fn without_a_plan_a_frontend_is_only_observed() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    kernel.set_frontend(0, &Plan::table(1, &[1], 7), health_common::map::Selector::new(0, 0));
    let conn = plan.conn(40_000);
    passes_untouched(&kernel, Hook::Egress, "generation 0", &conn.syn_packet().bytes());
    conn.syn_ack(&kernel);
    assert_eq!(kernel.signal(A, "synack"), 1);
}

#[test]
fn a_slot_of_another_plan_is_not_followed() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    kernel.set_frontend(0, &Plan::table(1, &[1], 7), health_common::map::Selector::new(8, 0));
    passes_untouched(&kernel, Hook::Egress, "stale", &plan.conn(40_000).syn_packet().bytes());
    assert_eq!(kernel.counts(), [("slot_stale", 1)]);
}
