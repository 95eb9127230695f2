//! What may stand around TCP: extension headers of IPv6 (P07). Tags of frames are in `tags`.

use health_common::map::Count;

use crate::pass::passes_untouched;
use crate::support::kernel::is_taken;
use crate::support::packet::SYN;
use crate::support::{A, B, Hook, NODE, PASS, Packet, Plan, REDIRECT, addr};

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

/// An extension header of so many bytes.
fn extension(number: u8, len: usize) -> (u8, Vec<u8>) {
    let mut bytes = vec![0; len];
    bytes[1] = match number {
        AUTHENTICATION => u8::try_from(len / 4 - 2).expect("short"),
        FRAGMENT => 0,
        _ => u8::try_from(len / 8 - 1).expect("short"),
    };
    (number, bytes)
}

#[test]
fn four_extension_headers_are_looked_through() {
    let (movable, fixed) = (true, false);
    let table = [
        ("hop-by-hop", vec![extension(HOP_BY_HOP, 8)], movable),
        ("hop-by-hop of 64 bytes", vec![extension(HOP_BY_HOP, 64)], movable),
        ("destination options", vec![extension(DESTINATION, 8)], movable),
        ("four", vec![extension(DESTINATION, 16); 4], movable),
        ("routing, at its last stop", vec![extension(ROUTING, 24)], fixed),
        ("authentication, which covers addresses", vec![extension(AUTHENTICATION, 24)], fixed),
        ("whole in one fragment (RFC 6946)", vec![extension(FRAGMENT, 8)], fixed),
        ("a mix", vec![extension(HOP_BY_HOP, 8), extension(ROUTING, 24), extension(DESTINATION, 8)], fixed),
    ];
    for (name, extensions, is_movable) in table {
        let plan = Plan::new(true);
        let mut kernel = plan.load();
        plan.trip(&mut kernel);
        let conn = plan.conn(40_000);
        let syn = Packet { extensions, ..conn.syn_packet() };
        let run = kernel.run(Hook::Egress, &syn.bytes());
        let to = if is_movable { B } else { A };
        assert_eq!(run.verdict, if is_movable { REDIRECT } else { PASS }, "{name}");
        let want = Packet { to: plan.address(to), ..syn.clone() };
        assert_eq!(run.packet, want.bytes(), "{name}: {:?}", Packet::read(&run.packet));
        assert_eq!(kernel.count(Count::NotMovable), u64::from(!is_movable), "{name}");
        let answer = Packet { extensions: syn.extensions, ..conn.at(plan.address(to)).syn_ack_packet() };
        let run = kernel.run(Hook::Ingress, &answer.bytes());
        let want = Packet { from: plan.address(A), ..answer };
        assert_eq!((run.verdict, run.packet), (PASS, want.bytes()), "{name}");
        assert_eq!(kernel.signal(to, "synack"), 1, "{name}");
    }
}

#[test]
fn what_lies_deeper_passes_and_is_counted() {
    let with = |extensions| Packet { extensions, ..Packet::new(addr(true, NODE, 40_000), addr(true, 11, 443), SYN) };
    let (mut later, mut stops) = (extension(FRAGMENT, 8), extension(ROUTING, 24));
    later.1[3] = 0x08;
    stops.1[3] = 1;
    let mut more = extension(FRAGMENT, 8);
    more.1[3] = 0x01;
    let whole = with(vec![extension(HOP_BY_HOP, 8)]).bytes();
    let mut table: Vec<(&str, Option<Count>, Vec<u8>)> = vec![
        ("five", Some(Count::SkippedExtension), with(vec![extension(DESTINATION, 8); 5]).bytes()),
        ("eight", Some(Count::SkippedExtension), with(vec![extension(DESTINATION, 8); 8]).bytes()),
        ("four, 256 bytes", Some(Count::SkippedExtension), with(vec![extension(DESTINATION, 64); 4]).bytes()),
        ("first fragment", Some(Count::SkippedFragment), with(vec![more]).bytes()),
        ("later fragment", Some(Count::SkippedFragment), with(vec![later]).bytes()),
        ("cut in the extension", Some(Count::SkippedShort), whole[..14 + 40 + 6].to_vec()),
        ("cut behind it", Some(Count::SkippedShort), whole[..14 + 40 + 8 + 19].to_vec()),
        ("a stop on its way: the destination is not its last", None, with(vec![stops]).bytes()),
    ];
    table.retain(|(_, _, packet)| is_taken(packet));
    let mut kernel = Plan::new(true).load();
    for (name, count, packet) in &table {
        for hook in [Hook::Egress, Hook::Ingress] {
            let before = kernel.counts();
            let counted = count.map(|count| kernel.count(count));
            passes_untouched(&kernel, hook, name, packet);
            match (count, counted) {
                (Some(count), Some(before)) => {
                    assert_eq!(kernel.count(*count), before + 1, "{name} at {hook:?}: {:?}", kernel.counts());
                }
                _ => assert_eq!(kernel.counts(), before, "{name} at {hook:?}"),
            }
        }
    }
    assert_eq!((kernel.signals(A), kernel.entries()), (vec![], [0; 4]));
}
