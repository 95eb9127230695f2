//! Turn-around: a refused SYN goes to a standby, in the place of the refusal.

use health_common::SECOND_PASS_MARK;
use health_common::event::Kind;
use health_common::map::{Count, Node};
use health_common::origin::Origin;

use crate::pass::passes_untouched;
use crate::steer::{comes_from_a, goes_to_b};
use crate::support::kernel::BARE;
use crate::support::packet::{ACK, CWR, ECE, PSH, RST, SYN};
use crate::support::{A, B, Conn, Hook, Kernel, PASS, Packet, Plan, REDIRECT, Run, SHOT};

/// Both families, and a standby on another port and on the same.
fn each(test: impl Fn(&Plan, &mut Kernel)) {
    for v6 in [false, true] {
        for port in [8443, 443] {
            let plan = Plan { ports: vec![443, port], ..Plan::new(v6).rescuing() };
            let mut kernel = plan.load();
            test(&plan, &mut kernel);
        }
    }
}

/// In the place of a refusal: the SYN as it was, but for where it goes.
#[track_caller]
fn turned(plan: &Plan, to: u16, syn: &Packet, run: &Run) {
    assert_eq!((run.verdict, run.mark), (REDIRECT, SECOND_PASS_MARK), "{syn:?}");
    assert_eq!(Packet::read(&run.packet), Packet { to: plan.address(to), ..syn.clone() });
    assert_eq!(run.packet.len(), syn.bytes().len(), "no byte is left of the refusal");
}

/// The SYN is sent, and refused.
fn refused(kernel: &Kernel, conn: &Conn, syn: &Packet) -> Run {
    assert_eq!(kernel.run(Hook::Egress, &syn.bytes()).verdict, PASS);
    conn.refuse(kernel)
}

/// The refusal reaches who asked, and nothing is left.
#[track_caller]
fn goes_through(kernel: &mut Kernel, conn: &Conn, syn: &Packet, name: &str) {
    let run = refused(kernel, conn, syn);
    assert_eq!((run.verdict, run.mark), (PASS, 0), "{name}");
    assert_eq!(run.packet, conn.refusal_packet().bytes(), "{name}");
    assert_eq!((kernel.signal(A, "refused"), kernel.signal(B, "syn")), (1, 0), "{name}");
    assert_eq!((kernel.count(Count::TurnedAround), kernel.entries()), (0, [0; 4]), "{name}");
}

#[test]
fn a_refused_syn_becomes_a_syn_to_the_standby() {
    each(|plan, kernel| {
        let conn = plan.conn(40_000);
        let there = conn.at(plan.address(B));
        let syn = conn.syn_packet();
        turned(plan, B, &syn, &refused(kernel, &conn, &syn));
        assert_eq!(kernel.entries(), [1, 0, 1, 1]);
        assert_eq!((kernel.signals(A), kernel.told()), (vec![("syn", 1), ("refused", 1)], vec![(Kind::Turn, A)]));
        assert_eq!(
            (kernel.signals(B), kernel.counts()),
            (vec![("syn", 1), ("turned_around", 1)], vec![("turned_around", 1)])
        );

        comes_from_a(plan, &there.syn_ack_packet(), &there.syn_ack(kernel));
        let out = conn.out(ACK | PSH, 0, 101, 0);
        goes_to_b(plan, &out, &kernel.run(Hook::Egress, &out.bytes()));
        let back = there.back(ACK | PSH, 0, 99, 101);
        comes_from_a(plan, &back, &kernel.run(Hook::Ingress, &back.bytes()));
        assert_eq!((kernel.signal(B, "opened"), kernel.signal(B, "response"), kernel.entries()), (1, 1, [0, 1, 1, 1]));
        assert_eq!(kernel.counters(B).rtt.iter().sum::<u32>(), 1, "its RTT counts from the turn");
    });
}

#[test]
fn the_syn_is_sent_again_byte_for_byte() {
    let mss = [2, 4, 5, 180];
    let linux = [&mss[..], &[4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]].concat();
    let windows = [&mss[..], &[1, 3, 3, 8, 1, 1, 4, 2]].concat();
    let table = [
        ("no options", vec![], SYN, 0xff00, 0),
        ("only a largest segment", mss.to_vec(), SYN, 1, 0),
        ("as Linux does", linux.clone(), SYN, 64_240, 0),
        ("as Windows does", windows, SYN, 8192, 2),
        ("multipath TCP", [&linux[..], &[30, 4, 0, 1]].concat(), SYN, 64_240, 0),
        ("40 bytes of unknown options", [&[253, 40][..], &[9; 38]].concat(), SYN, 5000, 0xb8),
        ("asking for ECN", linux, SYN | ECE | CWR, 0, 0x28),
        ("one of its bits", vec![], SYN | ECE, 7, 0),
        ("the other", vec![], SYN | CWR, 7, 0),
    ];
    for (name, options, flags, window, tos) in table {
        each(|plan, kernel| {
            let conn = plan.conn(40_000);
            let syn = Packet { options: options.clone(), flags, window, tos, ..conn.syn_packet() };
            let run = refused(kernel, &conn, &syn);
            assert_eq!(run.verdict, REDIRECT, "{name}");
            turned(plan, B, &syn, &run);
        });
    }
}

/// Refusals of all lengths, so that the packet is made longer and shorter.
#[test]
fn any_refusal_is_turned() {
    for options in [0, 12, 20, 32, 40] {
        for of_refusal in [0, 12, 40] {
            each(|plan, kernel| {
                let conn = plan.conn(40_000);
                let syn = Packet { options: vec![1; options], ..conn.syn_packet() };
                kernel.run(Hook::Egress, &syn.bytes());
                let refusal =
                    Packet { options: vec![1; of_refusal], window: 99, tos: 4, seq: 77, ..conn.refusal_packet() };
                turned(plan, B, &syn, &kernel.run(Hook::Ingress, &refusal.bytes()));
            });
        }
    }
}

/// Ethernet fills short frames up to 60 bytes.
#[test]
fn padding_of_the_refusal_is_cut_off() {
    each(|plan, kernel| {
        let conn = plan.conn(40_000);
        let syn = Packet { options: vec![], ..conn.syn_packet() };
        kernel.run(Hook::Egress, &syn.bytes());
        let mut padded = conn.refusal_packet().bytes();
        padded.resize(padded.len().max(60), 0x5a);
        turned(plan, B, &syn, &kernel.run(Hook::Ingress, &padded));
    });
}

#[test]
fn the_largest_segment_is_cut_to_the_standbys_way() {
    each(|plan, kernel| {
        for (port, mss_max, want) in [(40_000, 1400, 1400), (40_001, 9000, 1460), (40_002, 0, 1460)] {
            kernel.set_origin(B, Origin { mss_max, ..plan.record(B) });
            let conn = plan.conn(port);
            let syn = conn.syn_packet();
            let mut options = syn.options.clone();
            options[2..4].copy_from_slice(&u16::to_be_bytes(want));
            let run = refused(kernel, &conn, &syn);
            turned(plan, B, &Packet { options, ..syn }, &run);
        }
    });
}

/// Each standby once; then the refusal goes through, with the address that was asked for.
#[test]
fn the_next_refusal_goes_to_the_next_standby() {
    for v6 in [false, true] {
        let plan = Plan::new(v6).with_tiers(&[0, 1, 2]).rescuing();
        let mut kernel = plan.load();
        let conn = plan.conn(40_000);
        let syn = conn.syn_packet();
        turned(&plan, B, &syn, &refused(&kernel, &conn, &syn));
        turned(&plan, 2, &syn, &conn.at(plan.address(B)).refuse(&kernel));
        assert_eq!(kernel.entries(), [1, 0, 1, 1], "the way to the first standby is taken back");
        assert_eq!(kernel.told(), [(Kind::Turn, A), (Kind::Turn, B)]);

        let last = conn.at(plan.address(2)).refusal_packet();
        comes_from_a(&plan, &last, &kernel.run(Hook::Ingress, &last.bytes()));
        assert_eq!([A, B, 2].map(|id| kernel.signal(id, "refused")), [1; 3]);
        assert_eq!((kernel.entries()[0], kernel.count(Count::TurnedAround)), (0, 2), "the attempt is over");
        assert_eq!(kernel.run(Hook::Ingress, &conn.refusal_packet().bytes()).verdict, PASS);
        assert_eq!(kernel.signal(A, "refused"), 1, "and nothing of it counts any more");
    }
}

#[test]
fn answers_of_the_origin_that_was_left_are_dropped() {
    each(|plan, kernel| {
        let conn = plan.conn(40_000);
        let syn = conn.syn_packet();
        turned(plan, B, &syn, &refused(kernel, &conn, &syn));
        assert_eq!(conn.refuse(kernel).verdict, SHOT, "it refuses again");
        assert_eq!(conn.syn_ack(kernel).verdict, SHOT, "it has changed its mind: too late");
        assert_eq!((kernel.count(Count::LoserDropped), kernel.signal(A, "refused")), (2, 1));
        assert_eq!((kernel.signal(A, "synack"), kernel.entries()), (0, [1, 0, 1, 1]));
    });
}

#[test]
fn the_same_syn_again_goes_to_the_standby() {
    each(|plan, kernel| {
        let conn = plan.conn(40_000);
        let syn = conn.syn_packet();
        turned(plan, B, &syn, &refused(kernel, &conn, &syn));
        goes_to_b(plan, &syn, &conn.syn(kernel));
        assert_eq!((kernel.signal(B, "syn_retrans"), kernel.signal(A, "syn_retrans")), (1, 0));
        assert_eq!((kernel.count(Count::TurnedAround), kernel.count(Count::Resteered)), (1, 0));
    });
}

#[test]
fn a_taken_tuple_gets_another_port_at_the_standby() {
    each(|plan, kernel| {
        let conn = plan.conn(40_000);
        conn.at(plan.address(B)).handshake(kernel);
        let mine = conn.again();
        let run = refused(kernel, &mine, &mine.syn_packet());
        let sent = Packet::read(&run.packet);
        assert_ne!(sent.from.port(), 40_000);
        assert_eq!((run.verdict, kernel.count(Count::PortTranslated)), (REDIRECT, 1));
        assert_eq!(sent, Packet { from: sent.from, to: plan.address(B), ..mine.syn_packet() });
        let answer = Packet { to: sent.from, ..mine.at(plan.address(B)).syn_ack_packet() };
        let run = kernel.run(Hook::Ingress, &answer.bytes());
        let want = Packet { from: plan.address(A), to: mine.node, ..answer };
        assert_eq!((run.verdict, run.packet), (PASS, want.bytes()));
        let out = mine.out(ACK, 0, 33, 0);
        let run = kernel.run(Hook::Egress, &out.bytes());
        let want = Packet { from: sent.from, to: plan.address(B), ..out };
        assert_eq!((run.verdict, run.packet), (REDIRECT, want.bytes()));
        assert_eq!(kernel.signal(B, "opened"), 2);
    });
}

#[test]
fn only_the_refusal_of_this_syn_is_turned() {
    each(|plan, kernel| {
        let conn = plan.conn(40_000);
        conn.syn(kernel);
        let refusal = conn.refusal_packet();
        for (name, packet) in [
            ("one off", Packet { ack: refusal.ack.wrapping_add(1), ..refusal.clone() }),
            ("the SYN's own number", Packet { ack: conn.isn, ..refusal.clone() }),
            ("without ACK", Packet { flags: RST, ..refusal.clone() }),
            ("of an older SYN", conn.again().refusal_packet()),
        ] {
            passes_untouched(kernel, Hook::Ingress, name, &packet.bytes());
        }
        assert_eq!((kernel.signals(A), kernel.entries()), (vec![("syn", 1)], [1, 0, 0, 0]));
    });
}

#[test]
fn a_syn_that_only_its_origin_may_get_is_not_sent_elsewhere() {
    let signed = [&[19, 18][..], &[7; 16], &[1, 1]].concat();
    let authenticated = [&[29, 16][..], &[7; 14]].concat();
    let mut table: Vec<(&str, Packet)> = vec![
        ("data in the SYN", Packet { payload: vec![b'x'; 10], ..Plan::new(false).conn(40_000).syn_packet() }),
        (
            "asking for a Fast Open cookie",
            Packet { options: vec![34, 2, 1, 1], ..Plan::new(true).conn(40_000).syn_packet() },
        ),
        ("TCP MD5", Packet { options: signed, ..Plan::new(false).conn(40_000).syn_packet() }),
        ("TCP-AO", Packet { options: authenticated, ..Plan::new(true).conn(40_000).syn_packet() }),
        ("options of IPv4", Packet { ip_options: vec![1; 4], ..Plan::new(false).conn(40_000).syn_packet() }),
        ("authentication header", {
            let header = (51, [&[0, 4][..], &[0; 22]].concat());
            Packet { extensions: vec![header], ..Plan::new(true).conn(40_000).syn_packet() }
        }),
        ("a tag in the frame", Packet { vlans: vec![5], ..Plan::new(false).conn(40_000).syn_packet() }),
        ("two", Packet { vlans: vec![5, 6], ..Plan::new(true).conn(40_000).syn_packet() }),
    ];
    // Without a frame there are no tags in it.
    table.retain(|(_, syn)| !BARE || syn.vlans.is_empty());
    for (name, syn) in table {
        let plan = Plan::new(syn.from.is_ipv6()).rescuing();
        let mut kernel = plan.load();
        goes_through(&mut kernel, &plan.conn(40_000), &syn, name);
    }
}

/// The SYN could go, but this refusal can't become it: it reaches who asked.
#[test]
fn a_refusal_that_cannot_be_written_over_goes_through() {
    type Change = fn(Packet) -> Packet;
    let table: [(&str, bool, Change); 4] = [
        ("data in the refusal", false, |packet| Packet { payload: b"go away".to_vec(), ..packet }),
        ("options of IPv4", false, |packet| Packet { ip_options: vec![1; 8], ..packet }),
        ("an extension header", true, |packet| Packet { extensions: vec![(60, vec![0; 8])], ..packet }),
        ("a tag in the frame", true, |packet| Packet { vlans: vec![9], ..packet }),
    ];
    // The last needs a frame.
    for &(name, v6, change) in &table[..if BARE { 3 } else { 4 }] {
        let plan = Plan::new(v6).rescuing();
        let mut kernel = plan.load();
        let conn = plan.conn(40_000);
        conn.syn(&kernel);
        let refusal = change(conn.refusal_packet()).bytes();
        let run = kernel.run(Hook::Ingress, &refusal);
        assert_eq!((run.verdict, run.packet), (PASS, refusal), "{name}");
        assert_eq!((kernel.count(Count::TurnFailed), kernel.count(Count::TurnedAround)), (1, 0), "{name}");
        assert_eq!((kernel.signal(A, "refused"), kernel.entries()[0]), (1, 0), "{name}");
        assert_eq!(
            health_common::streak::Streak(kernel.state(B).syns_open).count(),
            0,
            "{name}: the standby owes nothing"
        );
    }
}

#[test]
fn without_a_standby_that_can_take_it_the_refusal_goes_through() {
    type Change = fn(&Plan, &mut Kernel);
    let table: [(&str, Change); 5] = [
        ("the service has no rescue", |plan, kernel| {
            let record = plan.record(A);
            kernel.set_origin(A, Origin { flags: record.flags & !Origin::RESCUE, ..record });
        }),
        ("the standby is blocked", |plan, kernel| {
            let record = plan.record(B);
            kernel.set_origin(B, Origin { flags: record.flags | Origin::BLOCKED, ..record });
        }),
        ("its way is not known", |plan, kernel| kernel.set_origin(B, Origin { ifindex: 0, ..plan.record(B) })),
        ("its answers don't pass here", |plan, kernel| {
            let record = plan.record(B);
            kernel.set_origin(B, Origin { flags: record.flags | Origin::ONE_WAY, ..record });
        }),
        ("nothing is steered", |_, kernel| kernel.set_node(Node { mode: Node::BYPASS, ..Node::default() })),
    ];
    for (name, change) in table {
        each(|plan, kernel| {
            change(plan, kernel);
            let conn = plan.conn(40_000);
            goes_through(kernel, &conn, &conn.syn_packet(), name);
        });
    }
}

#[test]
fn observed_or_frozen_a_rescue_is_counted_and_not_done() {
    for (name, flag, mode) in [
        ("the service is observed", Origin::OBSERVE, 0),
        ("the service is frozen", Origin::FREEZE, 0),
        ("the node is observed", 0, Node::OBSERVE),
        ("the node is frozen", 0, Node::FREEZE),
    ] {
        for v6 in [false, true] {
            let plan = Plan::new(v6).rescuing().with_flags(flag);
            let mut kernel = plan.load();
            kernel.set_node(Node { mode, ..Node::default() });
            let conn = plan.conn(40_000);
            goes_through(&mut kernel, &conn, &conn.syn_packet(), name);
            assert_eq!((kernel.count(Count::WithheldRescue), kernel.signal(A, "withheld_rescues")), (1, 1), "{name}");
            assert_eq!(kernel.told(), [], "{name}");
        }
    }
}

#[test]
fn rescued_refusals_trip_like_others() {
    each(|plan, kernel| {
        for port in 50_001..=50_005 {
            let conn = plan.conn(port);
            turned(plan, B, &conn.syn_packet(), &refused(kernel, &conn, &conn.syn_packet()));
        }
        let told = kernel.told();
        assert!(told.contains(&(Kind::Trip, A)) && !told.contains(&(Kind::Withheld, A)), "{told:?}");
        assert_eq!(plan.conn(40_000).syn(kernel).verdict, REDIRECT, "from now on they go there at once");
    });
}
