//! `cargo xtask bench`: what Sluice costs (design.md §10 and §11).

mod checks;
mod programs;
mod stream;
mod table;
mod traffic;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::{build, command, setup};

/// Measure what Sluice costs. Needs root; does the set-up and a release build first.
///
/// `datapath`: nanoseconds per packet of each TC program beside a trivial one, and requests, connections and bytes per
/// second in the lab with Sluice attached and without it, in turns. Other work on the machine disturbs it.
///
/// `decisions`: how well the core judges, beside the rules of thumb that people have, in a world that is simulated: what is
/// missed, moved for nothing, how soon, and whom it harms. No root; the machine's load changes nothing. `--families`: of each
/// family of scenarios.
///
/// `checks`: processor, memory and lateness of 1,000 and 10,000 HTTP checks beside HAProxy; four minutes.
///
/// One row takes seconds: `cargo xtask bench datapath --case data_nat --family ipv4 --flows 1`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to measure.
    #[arg(value_enum, default_value_t = What::Datapath)]
    what: What,
    /// Print one JSON document on standard output.
    #[arg(long)]
    json: bool,
    /// Of each family of scenarios, too (`decisions`).
    #[arg(long)]
    families: bool,
    /// Only one half of it; the other is an empty list.
    #[arg(long, value_enum)]
    only: Option<Half>,
    /// Only the programs' rows of this case (design.md §11), and no traffic; may be given again.
    #[arg(long)]
    case: Vec<String>,
    /// Only the programs' rows of this family, `ipv4` or `ipv6`, and no traffic.
    #[arg(long)]
    family: Vec<String>,
    /// Only the programs' rows with so many flows in the table, 1, 65536 or 1048576, and no traffic; may be given again.
    #[arg(long)]
    flows: Vec<u32>,
}

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    Datapath,
    Decisions,
    Checks,
}

/// A half of the benchmark `datapath`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Half {
    Programs,
    Traffic,
}

/// What is printed.
#[derive(Debug, Default, Serialize)]
struct Document {
    programs: Vec<Program>,
    traffic: Vec<Traffic>,
}

/// Time of one program for one kind of packet, in the median.
#[derive(Debug, Serialize, Deserialize)]
struct Program {
    name: String,
    case: String,
    family: String,
    /// Flows that take turns.
    flows: u32,
    ns: u64,
    /// Of the trivial program, in the same run.
    trivial_ns: u64,
}

/// One figure with Sluice and without, in the median of runs that took turns.
#[derive(Debug, Serialize)]
struct Traffic {
    name: &'static str,
    with: f64,
    without: f64,
    /// `with` / `without`.
    ratio: f64,
}

impl Args {
    pub(crate) fn run(self, root: &Path) -> Result<ExitCode> {
        let filter = self.filter();
        let Self { what, json, only, families, .. } = self;
        if what == What::Decisions {
            return decisions(root, json, families);
        }
        setup::ensure_all(root)?;
        build::build(root, true)?;
        lab::require_root()?;
        lab::stop::catch_signals();
        if what == What::Checks {
            let checks = checks::measure(root)?;
            checks::show(&checks)?;
            return print(json, &serde_json::json!({ "checks": checks }));
        }
        let mut document = Document::default();
        if only != Some(Half::Traffic) {
            document.programs = programs::measure(root, &filter)?;
        }
        if only != Some(Half::Programs) && filter.is_empty() {
            document.traffic = traffic::measure(root)?;
        }
        table::show(&document)?;
        print(json, &document)
    }

    /// What the example that measures programs is asked for.
    fn filter(&self) -> Vec<String> {
        let cases = self.case.iter().map(|case| format!("case={case}"));
        let families = self.family.iter().map(|family| format!("family={family}"));
        cases.chain(families).chain(self.flows.iter().map(|flows| format!("flows={flows}"))).collect()
    }
}

/// It needs neither the kernel half nor root: a benchmark of the core's own.
fn decisions(root: &Path, json: bool, families: bool) -> Result<ExitCode> {
    let mut bench = command::cargo();
    bench.args(["bench", "--quiet", "--package", "health-core", "--bench", "decisions", "--"]).current_dir(root);
    bench.args(json.then_some("--json")).args(families.then_some("--families"));
    command::shown(&mut bench)?;
    Ok(ExitCode::SUCCESS)
}

/// The document on standard output, if it is wanted.
fn print(json: bool, document: &impl Serialize) -> Result<ExitCode> {
    if json {
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, document)?;
        writeln!(out)?;
    }
    Ok(ExitCode::SUCCESS)
}
