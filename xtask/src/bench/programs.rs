//! Nanoseconds per packet, measured by an example of the lab: only its dev-dependencies may need the kernel half.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::Program;
use crate::command;

/// Runs the example, with `filter` as its arguments, and reads what it prints.
pub(super) fn measure(root: &Path, filter: &[String]) -> Result<Vec<Program>> {
    eprintln!("bench: nanoseconds per packet{}", if filter.is_empty() { ", several minutes" } else { "" });
    let mut cargo = command::cargo();
    cargo
        .args(["run", "--quiet", "--release", "--package", "lab", "--example", "datapath_bench", "--"])
        .args(filter)
        .current_dir(root)
        .stderr(std::process::Stdio::inherit());
    let output = cargo.output().context("cannot start cargo")?;
    ensure!(output.status.success(), "the example `datapath_bench` failed ({})", output.status);
    serde_json::from_slice(&output.stdout).context("the example `datapath_bench` printed something else")
}
