//! Ring 2: the real core in a seeded world of origins, traffic, checks, a kernel, operators, lost writes and restarts.
//!
//! After every tick the invariants of style.md §2 that concern the judgement are asserted. A failure prints its seed,
//! which then becomes a named test at the end of this file. `SIM_SEEDS=N` runs more seeds, `SIM_SEED=N` one.

#[path = "sim/invariants.rs"]
mod invariants;
#[path = "sim/world.rs"]
mod world;

use invariants::Judge;
use world::World;

/// Seeds in a plain `cargo test`.
const SEEDS: u64 = 300;

/// Ticks of 250 ms: a hundred seconds.
const TICKS: u32 = 400;

fn run(seed: u64, ticks: u32) {
    let mut world = World::new(seed);
    let mut judge = Judge::new(&world);
    for tick in 0..ticks {
        world.advance();
        judge.check(&world, tick);
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn seeds() {
    if let Some(seed) = number("SIM_SEED") {
        run(seed, TICKS);
        return;
    }
    let seeds = number("SIM_SEEDS").unwrap_or(SEEDS);
    // Two threads: the machine that checks this has few cores.
    std::thread::scope(|scope| {
        for part in 0..2 {
            scope.spawn(move || {
                for seed in (part..seeds).step_by(2) {
                    run(seed, TICKS);
                }
            });
        }
    });
}

/// Observe mode showed the addresses whose owner has no weight as steered, though they were not.
#[test]
fn seeds_194_and_299_shares_in_observe_mode() {
    run(194, 20);
    run(299, 20);
}

/// A page check that had long been contradicted by statuses stayed so after the origin had begun to refuse connections: no
/// more requests, no more statuses, and the old ones stayed in the window.
#[test]
fn seed_147_what_no_longer_answers_contradicts_no_check() {
    run(147, 200);
}

/// A virtual address sent trials to an origin that has no weight.
#[test]
fn seed_3683_who_takes_nothing_is_not_tried() {
    run(3683, 200);
}

/// Quiet for a quarter of an hour: nothing may happen at all.
#[test]
fn a_calm_world_stays_calm() {
    for seed in 0..3 {
        let mut world = World::calm(seed);
        let mut judge = Judge::new(&world);
        for tick in 0..4000 {
            world.advance();
            judge.check(&world, tick);
            for decision in &world.step.decisions {
                assert_eq!(decision.rule, "passes", "seed {seed}: {decision:?}");
            }
        }
    }
}
