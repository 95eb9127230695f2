//! How good are the decisions? Sluice's core beside the judges that people have, on the same scenarios with the same luck.
//!
//! `cargo xtask bench decisions`. Prints one JSON document (design.md §11) with `--json`, a table otherwise; `--families` adds a
//! table of each family. In the environment `SEEDS` and `ONLY` (a part of a family's name) shorten it, `TOLD` prints what was decided and why.

mod judge;
mod kernel;
mod scenario;
mod sluice;
mod world;

use judge::{Consecutive, Counting, Fixed, Judge};
use scenario::{FAMILIES, Family, SECOND, Shape};
use sluice::Sluice;
use std::env;
use world::{Outcome, play};

/// Of each family.
const SEEDS: u64 = 200;

type Make = fn(&[Shape]) -> Box<dyn Judge>;

const JUDGES: [(&str, Make); 6] = [
    ("sluice", |shapes| Box::new(Sluice::new(shapes))),
    ("count_5s", |shapes| Box::new(Counting::new(shapes, 5 * SECOND))),
    ("count_2s", |shapes| Box::new(Counting::new(shapes, 2 * SECOND))),
    ("consecutive_5", |shapes| Box::new(Consecutive::new(shapes))),
    ("never", |shapes| Box::new(Fixed::new(shapes, false))),
    ("always", |shapes| Box::new(Fixed::new(shapes, true))),
];

/// Of one judge, or of one judge in one family.
#[derive(Clone, Default)]
struct Score {
    missed: u64,
    falsely: u64,
    harmed: u64,
    flows: u64,
    /// Time to decide of each fault.
    decided: Vec<u64>,
}

impl Score {
    fn add(&mut self, outcome: Outcome) {
        self.missed += u64::from(outcome.missed);
        self.falsely += u64::from(outcome.falsely);
        self.harmed += outcome.harmed;
        self.flows += outcome.flows;
        self.decided.extend(outcome.decided);
    }

    fn join(&mut self, other: &Self) {
        self.missed += other.missed;
        self.falsely += other.falsely;
        self.harmed += other.harmed;
        self.flows += other.flows;
        self.decided.extend(&other.decided);
    }

    /// The median; of a fault that was missed, how long it lasted.
    fn decide_ms_p50(&self) -> u64 {
        let mut all = self.decided.clone();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or(0)
    }
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

fn one(family: &Family, make: Make, seeds: u64) -> Score {
    let mut score = Score::default();
    for seed in 0..seeds {
        let scenario = family.scenario(seed);
        score.add(play(&scenario, make(&scenario.origins)));
    }
    score
}

/// Of each judge in each family, on two threads: machines that run this have few cores.
fn all(seeds: u64) -> Vec<(&'static str, [Score; JUDGES.len()])> {
    let only = env::var("ONLY").ok();
    let families: Vec<&Family> =
        FAMILIES.iter().filter(|family| only.as_deref().is_none_or(|only| family.name.contains(only))).collect();
    let half = |part: usize| -> Vec<(usize, [Score; JUDGES.len()])> {
        let those = families.iter().enumerate().skip(part).step_by(2);
        those.map(|(place, family)| (place, JUDGES.map(|(_, make)| one(family, make, seeds)))).collect()
    };
    let mut scores = std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        let mut scores = half(0);
        scores.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        scores
    });
    scores.sort_by_key(|(place, _)| *place);
    scores.into_iter().map(|(place, scores)| (families[place].name, scores)).collect()
}

fn main() {
    let seeds = number("SEEDS").unwrap_or(SEEDS);
    let (json, families) = (env::args().any(|word| word == "--json"), env::args().any(|word| word == "--families"));
    let scores = all(seeds);
    if families {
        for (name, row) in &scores {
            for ((judge, _), score) in JUDGES.iter().zip(row) {
                let harmed = 100.0 * as_float(score.harmed) / as_float(score.flows.max(1));
                let (missed, falsely, p50) = (score.missed, score.falsely, score.decide_ms_p50());
                eprintln!(
                    "{name:32} {judge:14} missed {missed:4}  false {falsely:4}  p50 {p50:6} ms  harmed {harmed:6.2} %"
                );
            }
        }
    }
    let mut rows = Vec::new();
    if !json {
        println!(
            "{:14} {:>14} {:>16} {:>14} {:>13}",
            "judge", "missed faults", "false failovers", "decide ms p50", "flows harmed"
        );
    }
    for (place, (judge, _)) in JUDGES.iter().enumerate() {
        let mut score = Score::default();
        for (_, row) in &scores {
            score.join(&row[place]);
        }
        let (missed, falsely, p50, harmed) = (score.missed, score.falsely, score.decide_ms_p50(), score.harmed);
        if json {
            rows.push(format!(
                r#"{{"judge":"{judge}","missed_faults":{missed},"false_failovers":{falsely},"decide_ms_p50":{p50},"flows_harmed":{harmed}}}"#
            ));
        } else {
            println!("{judge:14} {missed:14} {falsely:16} {p50:14} {harmed:13}");
        }
    }
    if json {
        println!(r#"{{"decisions":[{}]}}"#, rows.join(","));
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of flows are far below 2^52")]
fn as_float(count: u64) -> f64 {
    count as f64
}
