//! Nanoseconds per packet of the TC programs, beside the trivial one, as JSON (design.md §11). Started by
//! `cargo xtask bench datapath`; an example, because only dev-dependencies may need the kernel half.
//!
//! Each measurement repeats `BPF_PROG_TEST_RUN` in the kernel, behind a wrapper that writes the next packet and goes on in
//! the program by tail call (`health-ebpf/src/bench.rs`). What the wrapper costs is measured around `trivial` in the same
//! round, and subtracted. Medians over rounds; the programs' own counters prove how many packets did what they should.
//!
//! `flows` 65,536: so many flows take turns, in an order that the cache can't foresee. `flows` 1: one flow; where each
//! packet begins or ends a flow, batches of 256 fresh tuples, which stay in the cache.

mod cases;
#[path = "../../tests/prog/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the tables of ring 3 need other parts of it than the benchmark does")]
mod support;
mod wrapper;

use anyhow::Result;
use serde::Serialize;

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
    let mut rows = Vec::new();
    for v6 in [false, true] {
        rows.extend(cases::measure(v6)?);
    }
    println!("{}", serde_json::to_string(&rows)?);
    Ok(())
}
