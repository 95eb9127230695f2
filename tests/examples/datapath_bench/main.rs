//! Nanoseconds per packet of the TC programs, beside the trivial one, as JSON (design.md §11). Started by
//! `cargo xtask bench datapath`; an example, because only dev-dependencies may need the kernel half.
//!
//! Each measurement repeats `BPF_PROG_TEST_RUN` in the kernel, behind a wrapper that writes the next packet and goes on in
//! the program by tail call (`health-ebpf/src/bench.rs`). What the wrapper costs is measured around `trivial` in the same
//! round, and subtracted. Medians over rounds; the programs' own counters prove how many packets did what they should.
//!
//! `flows` 65,536 or 1,048,576: so many flows take turns, in an order that the cache can't foresee. `flows` 1: one flow;
//! where each packet begins or ends a flow, batches of 256 fresh tuples, which stay in the cache.
//!
//! Arguments `case=NAME`, `family=ipv4|ipv6` and `flows=N`, each as often as wanted, leave out the other rows.

mod cases;
mod filter;
#[path = "../../tests/prog/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the tables of ring 3 need other parts of it than the benchmark does")]
mod support;
mod wrapper;

use anyhow::Result;
use serde::Serialize;

use filter::Filter;

/// One figure.
#[derive(Clone, Copy, Debug, Serialize)]
struct Row {
    /// The program.
    name: &'static str,
    case: &'static str,
    family: &'static str,
    flows: u32,
    ns: u64,
    trivial_ns: u64,
}

fn main() -> Result<()> {
    lab::require_root()?;
    let filter = Filter::read(std::env::args().skip(1))?;
    let mut rows = Vec::new();
    for family in ["ipv4", "ipv6"] {
        for flows_log2 in cases::FLOWS_LOG2 {
            if filter.family(family) && filter.flows(1 << flows_log2) {
                rows.extend(cases::measure(family, flows_log2, &filter)?);
            }
        }
    }
    println!("{}", serde_json::to_string(&rows)?);
    Ok(())
}
