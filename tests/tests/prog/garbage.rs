//! Bytes that nobody meant.

use std::time::Duration;

use health_common::origin::Origin;

use crate::support::{A, B, Hook, Kernel, PASS, Plan, SHOT};

const RANDOM_PACKETS: u32 = 100_000;
const DAMAGED_PACKETS: u32 = 100_000;
const LEN_MAX: u64 = 120;
/// An Ethernet header and an IPv6 one: what calls itself IP and is shorter, BPF_PROG_TEST_RUN refuses.
const LEN_MIN: u64 = 54;

/// Splitmix64: the same packets in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).expect("small")).expect("small")
    }
}

fn hook(random: &mut Random) -> Hook {
    if random.next().is_multiple_of(2) { Hook::Egress } else { Hook::Ingress }
}

fn both_families() -> (Kernel, [Plan; 2]) {
    // Without trips nothing is moved, so nothing may be dropped.
    let plans = [false, true].map(|v6| {
        let mut plan = Plan::new(v6);
        plan.origin.flags = Origin::PRESENT;
        plan
    });
    let mut kernel = plans[0].load();
    plans[1].write(&mut kernel);
    (kernel, plans)
}

#[test]
fn random_bytes_pass_and_count_for_nobody() {
    let (mut kernel, _) = both_families();
    let mut random = Random(1);
    for i in 0..RANDOM_PACKETS {
        let len = LEN_MIN + random.next() % (LEN_MAX - LEN_MIN);
        let mut packet: Vec<u8> = (0..len).map(|_| random.next().to_le_bytes()[0]).collect();
        // Half of them claim to be IP, else the parser would see no more than the first bytes.
        match i % 4 {
            0 => packet[12..14].copy_from_slice(&[8, 0]),
            1 => packet[12..14].copy_from_slice(&[0x86, 0xdd]),
            _ => {}
        }
        let run = kernel.run(hook(&mut random), &packet);
        assert_eq!((run.verdict, &run.packet), (PASS, &packet), "packet {i}");
    }
    assert_eq!((kernel.signals(A), kernel.signals(B), kernel.entries()), (vec![], vec![], [0; 4]));
    assert!(kernel.told().is_empty());
}

/// Real packets with some bytes changed: whatever they mean now, they are not dropped, and counters stay possible.
#[test]
fn damaged_packets_are_never_dropped() {
    let (mut kernel, plans) = both_families();
    let mut random = Random(2);
    for i in 0..DAMAGED_PACKETS {
        let conn = plans[usize::from(i % 2 == 0)].conn(40_000 + u16::try_from(random.below(50)).expect("small"));
        let (hook, packet) = match random.below(6) {
            0 => (Hook::Egress, conn.syn_packet()),
            1 => (Hook::Ingress, conn.syn_ack_packet()),
            2 => (Hook::Egress, conn.out(16, 0, random.below(100), 0)),
            3 => (Hook::Ingress, conn.back(16, 0, random.below(100), 100)),
            4 => (Hook::Ingress, conn.refusal_packet()),
            _ => (Hook::Egress, conn.out(17, 100, 0, 100)),
        };
        let mut packet = packet.bytes();
        for _ in 0..random.below(4) {
            let at = random.below(packet.len());
            packet[at] = random.next().to_le_bytes()[0];
        }
        let cut = random.below(20) * usize::from(random.next().is_multiple_of(8));
        packet.truncate((packet.len() - cut).max(54));
        let run = kernel.run(hook, &packet);
        assert_ne!(run.verdict, SHOT, "packet {i}");
        assert!(hook == Hook::Egress || run.verdict == PASS, "packet {i}");
    }
    for id in [A, B] {
        let counters = kernel.counters(id);
        assert!(counters.synack + counters.refused <= counters.syn, "{:?}", kernel.signals(id));
        assert!(counters.closed <= counters.opened && counters.opened <= counters.synack, "{:?}", kernel.signals(id));
        assert!(counters.response + counters.request_void <= counters.request, "{:?}", kernel.signals(id));
        assert!(counters.bytes_out < u64::from(DAMAGED_PACKETS) * 200, "no length is believed that isn't there");
        assert!(counters.bytes_in < u64::from(DAMAGED_PACKETS) * 200, "no length is believed that isn't there");
    }
    assert!(kernel.told().len() < 1000);
    assert!(kernel.time(Hook::Trivial, &[0; 64], 1) < Duration::from_secs(1), "the kernel lives");
}
