//! Bytes that nobody meant, and packets that somebody damaged: each passes as it is, and counts what a second reader says.
//!
//! `cargo xtask fuzz parse` runs this for longer, through `FUZZ_RUNS` and `FUZZ_SEED`.

#[path = "garbage/make.rs"]
mod make;
#[path = "garbage/read.rs"]
mod read;
#[path = "garbage/world.rs"]
mod world;

use std::collections::{BTreeMap, BTreeSet};

use health_common::map::Count;
use health_common::origin::Origin;

use crate::support::{A, B, Hook, Kernel, PASS, Packet, Plan, REDIRECT, SHOT};
use make::{Maker, Random};
use world::{Tally, World};

/// Packets, if the environment says nothing else.
const RUNS: u64 = 100_000;
const SEED: u64 = 1;
/// Packets on tables that were empty before: few enough that nothing is evicted.
const BATCH: u64 = 1_000;
/// What the frames must have meant by then, or they show nothing.
const MET: [&str; 22] = [
    "syn",
    "syn_retrans",
    "synack",
    "refused",
    "unreachable",
    "reset_early",
    RESETS,
    "rst_suspect",
    "rst_forged",
    "request",
    "response",
    "request_void",
    "client_abort",
    "local_drop",
    "retrans",
    "zero_window",
    "http_2xx",
    "http_5xx",
    "closed",
    "rtt samples",
    "ttfb samples",
    "stamp samples",
];
/// Signals that hang on clocks, as [`World`] has them.
const RESETS: &str = "reset_mid or reset_idle";

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is {text}, no number")))
}

fn plans(flags: u32) -> [Plan; 2] {
    [false, true].map(|v6| {
        let mut plan = Plan::new(v6);
        plan.origin.flags = Origin::PRESENT | flags;
        plan
    })
}

fn load(plans: &[Plan; 2]) -> Kernel {
    let mut kernel = plans[0].load();
    plans[1].write(&mut kernel);
    kernel
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).expect("not that many")
}

/// What the kernel has counted.
fn tally(kernel: &Kernel) -> Tally {
    let mut tally = Tally::default();
    for id in [A, B] {
        let counters = kernel.counters(id);
        for (name, value) in kernel.signals(id) {
            let name = if ["reset_mid", "reset_idle"].contains(&name) { RESETS } else { name };
            *tally.signals.entry((id, name)).or_default() += signed(value);
        }
        let samples =
            [("rtt samples", counters.rtt), ("ttfb samples", counters.ttfb), ("stamp samples", counters.stamp_rtt)];
        for (name, buckets) in samples {
            let sum = buckets.iter().copied().map(i64::from).sum();
            if sum != 0 {
                tally.signals.insert((id, name), sum);
            }
        }
    }
    tally.counts = kernel.counts().into_iter().map(|(name, value)| (name, signed(value))).collect();
    tally
}

/// What `after` has more than `before`.
fn since(before: &Tally, after: &Tally) -> Tally {
    Tally { signals: less(&after.signals, &before.signals), counts: less(&after.counts, &before.counts) }
}

fn less<K: Copy + Ord>(map: &BTreeMap<K, i64>, by: &BTreeMap<K, i64>) -> BTreeMap<K, i64> {
    let keys: BTreeSet<K> = map.keys().chain(by.keys()).copied().collect();
    let of = |map: &BTreeMap<K, i64>, key: K| map.get(&key).copied().unwrap_or(0);
    keys.into_iter().map(|key| (key, of(map, key) - of(by, key))).filter(|&(_, value)| value != 0).collect()
}

/// One batch of packets. `each`: compares after every packet, to find the one.
fn batch(kernel: &mut Kernel, plans: &[Plan; 2], seed: u64, each: bool) -> Result<(), String> {
    kernel.forget_flows();
    let before = tally(kernel);
    let (mut random, mut world) = (Random(seed), World::new(plans.clone()));
    let mut maker = Maker::new(plans, &mut random);
    let mut last = String::new();
    for i in 0..BATCH {
        let (hook, frame) = maker.frame(&mut random);
        let known = world.tally.clone();
        world.push(hook, &frame);
        let run = kernel.run(hook, &frame);
        if (run.verdict, &run.packet) != (PASS, &frame) {
            return Err(format!("packet {i} at {hook:?}, {frame:02x?}: {} and {:02x?}", run.verdict, run.packet));
        }
        if each {
            last = format!(
                " (packet {i} at {hook:?}, {:?}, {frame:02x?}, of it {:?})",
                read::read(&frame),
                since(&known, &world.tally)
            );
        }
        if each || i + 1 == BATCH {
            let found = since(&before, &tally(kernel));
            if found != world.tally {
                return Err(format!("counted {:?} too much{last}", since(&world.tally, &found)));
            }
            if kernel.entries() != world.entries() {
                return Err(format!("known: {:?}, but it is {:?}{last}", kernel.entries(), world.entries()));
            }
        }
    }
    if !kernel.told().is_empty() {
        return Err("an event was told".into());
    }
    Ok(())
}

#[test]
fn whatever_comes_passes_as_it_is_and_counts_what_it_means() {
    let (runs, seed) = (number("FUZZ_RUNS", RUNS), number("FUZZ_SEED", SEED));
    // Nothing is moved without trips and rescues, so nothing may be dropped or changed.
    let plans = plans(0);
    let mut kernel = load(&plans);
    for i in 0..runs.div_ceil(BATCH) {
        let seed = Random(seed ^ i << 32).next();
        if let Err(found) = batch(&mut kernel, &plans, seed, false) {
            let exactly = batch(&mut kernel, &plans, seed, true);
            panic!("batch {i}, seed {seed:#x}: {}", exactly.err().unwrap_or(found));
        }
    }
    println!("{} packets in {} batches, seed {seed}", runs.div_ceil(BATCH) * BATCH, runs.div_ceil(BATCH));
    let met: BTreeSet<&str> = tally(&kernel).signals.into_keys().map(|(_, name)| name).collect();
    let missed: Vec<_> = MET.iter().filter(|name| !met.contains(*name)).collect();
    assert!(missed.is_empty(), "the frames never meant {missed:?}");
}

/// With trips and rescues: only losers of a rescued handshake are dropped, each is counted, and counters stay possible.
#[test]
fn only_losers_are_dropped_whatever_comes() {
    let runs = number("FUZZ_RUNS", RUNS);
    let mut random = Random(number("FUZZ_SEED", SEED));
    let plans = plans(Origin::KERNEL_TRIP | Origin::RESCUE | Origin::ON_5XX | Origin::TRIALS);
    let plans = plans.map(|plan| plan.syn_timeout_ms(1).response_timeout_ms(1).trials_after_ms(1));
    let mut kernel = load(&plans);
    let mut dropped = 0;
    let mut maker = Maker::new(&plans, &mut random);
    for i in 0..runs {
        if i % BATCH == 0 {
            maker = Maker::new(&plans, &mut random);
            kernel.told();
        }
        let (hook, frame) = maker.frame(&mut random);
        let run = kernel.run(hook, &frame);
        assert!([PASS, REDIRECT, SHOT].contains(&run.verdict), "packet {i}: {}", run.verdict);
        assert!(run.verdict != SHOT || hook == Hook::Ingress, "packet {i} at {hook:?}, {frame:02x?}");
        dropped += u64::from(run.verdict == SHOT);
    }
    let losers = kernel.count(Count::LoserDropped) - kernel.count(Count::LoserReset);
    assert_eq!(dropped, losers, "{:?}", kernel.counts());
    assert!(kernel.count(Count::TurnedAround) > 0, "the run meant something: {:?}", kernel.counts());
    for id in [A, B] {
        let counters = kernel.counters(id);
        let signals = kernel.signals(id);
        assert!(counters.synack + counters.refused <= counters.syn + counters.syn_retrans, "{signals:?}");
        assert!(counters.closed <= counters.opened && counters.opened <= counters.synack, "{signals:?}");
        assert!(counters.response + counters.request_void <= counters.request, "{signals:?}");
        assert!(counters.bytes_out.max(counters.bytes_in) < runs * 1600, "no length is believed that isn't there");
    }
}

/// Frames that the fuzzer found to be counted wrongly, and what is right.
#[test]
fn headers_that_lie_about_themselves() {
    let [v4, v6] = plans(0).map(|plan| plan.conn(40_000).syn_packet());
    let mut other_version = [v4.bytes(), v6.bytes()];
    other_version[0][14] = 0x55;
    other_version[1][14] = 0x70;
    let [five, seven] = other_version;
    // The protocol behind it is "no next header" (RFC 8200 §4.7), so that the packet ends with its extension.
    let mut nothing = Packet { extensions: vec![(60, vec![0; 8])], ..v6 }.bytes();
    nothing.truncate(14 + 40 + 8);
    nothing[14 + 40] = 59;
    let table = [
        ("version 5 as IPv4", five, vec![("skipped_short", 1)]),
        ("version 7 as IPv6", seven, vec![("skipped_short", 1)]),
        ("an extension header, and nothing behind it", nothing, vec![]),
    ];
    for (name, frame, counts) in table {
        for hook in [Hook::Egress, Hook::Ingress] {
            let kernel = load(&plans(0));
            assert_eq!(kernel.run(hook, &frame).packet, frame, "{name}");
            assert_eq!((kernel.counts(), kernel.signals(A)), (counts.clone(), vec![]), "{name} at {hook:?}");
        }
    }
}
