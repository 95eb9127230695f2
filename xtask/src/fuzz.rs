//! `cargo xtask fuzz`: the fuzzers that tests run for a moment, for as long as one likes.
//!
//! They are the tests themselves, told by their environment how much to do and from which seed, so there is nothing that
//! only the fuzzer knows. A failure prints what is needed to see it again; a named test is made of it.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use clap::ValueEnum;

use crate::command;

/// Fuzz what reads other people's bytes: rounds with one seed after another, until one fails or time is up.
///
/// `track` and `answers` need nothing; `parse` sends frames through the programs in the kernel, as root.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to fuzz; without it, all of them in turn.
    what: Option<Target>,
    /// Time for each. Unit: seconds.
    #[arg(long, default_value_t = 60, conflicts_with = "runs")]
    seconds: u64,
    /// Do one round of so many runs instead, a run being a frame or a sequence of packets.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Seed of the first round; without it, the time.
    #[arg(long)]
    seed: Option<u64>,
}

/// What can be fuzzed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// Sequences of packets through the transitions of a flow, against a slow model.
    Track,
    /// Damaged and random frames through the programs in the kernel, against a second reader.
    Parse,
    /// What origins answer to checks: HTTP heads, chunks, encoded bodies, SMTP replies, JSON, numbers, DNS and gRPC messages,
    /// against what they must mean.
    Answers,
}

impl Target {
    /// Runs of a round, some seconds long.
    const fn round(self) -> u32 {
        match self {
            Self::Track | Self::Answers => 20_000,
            Self::Parse => 200_000,
        }
    }

    /// One command a set of programs that it has to hold for.
    fn commands(self, root: &Path, runs: u32, seed: u64) -> Vec<Command> {
        let test = |arguments: &[&str], names: [&str; 2]| {
            let mut cargo = command::cargo();
            cargo.args(["test", "--quiet"]).args(arguments).current_dir(root);
            cargo.env(names[0], runs.to_string()).env(names[1], seed.to_string());
            cargo
        };
        let frames = |name| {
            let arguments = ["--package", "lab", "--test", name, "garbage::", "--", "--test-threads=1"];
            test(&arguments, ["FUZZ_RUNS", "FUZZ_SEED"])
        };
        match self {
            Self::Track => {
                let arguments = ["--package", "health-common", "--release", "--lib", "track::proptests"];
                vec![test(&arguments, ["PROPTEST_CASES", "PROPTEST_RNG_SEED"])]
            }
            Self::Parse => vec![frames("prog"), frames("prog_xdp")],
            Self::Answers => {
                let arguments = ["--package", "sluice", "--release", "--lib", "any_bytes"];
                vec![test(&arguments, ["PROPTEST_CASES", "PROPTEST_RNG_SEED"])]
            }
        }
    }
}

impl Args {
    pub(crate) fn run(self, root: &Path) -> anyhow::Result<ExitCode> {
        let Self { what, seconds, runs, seed } = self;
        let targets: Vec<Target> =
            Target::value_variants().iter().copied().filter(|target| what.is_none_or(|what| what == *target)).collect();
        let first = seed.map_or_else(now, Ok)?;
        for target in targets {
            let (begun, mut done) = (Instant::now(), 0_u64);
            for seed in (0..).map(|round| first.wrapping_add(round)) {
                let runs_now = runs.unwrap_or(target.round());
                println!("{target:?}: {runs_now} runs, seed {seed}");
                for mut command in target.commands(root, runs_now, seed) {
                    command::shown(&mut command).with_context(|| {
                        let name = format!("{target:?}").to_lowercase();
                        format!("see it again with `cargo xtask fuzz {name} --runs {runs_now} --seed {seed}`")
                    })?;
                }
                done += u64::from(runs_now);
                if runs.is_some() || begun.elapsed() >= Duration::from_secs(seconds) {
                    break;
                }
            }
            println!("{target:?}: {done} runs in {:.0} s, nothing found", begun.elapsed().as_secs_f32());
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn now() -> anyhow::Result<u64> {
    Ok(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs())
}
