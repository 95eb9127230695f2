//! `cargo xtask build`: the building part of the set-up, then both halves.

use std::path::Path;
use std::process::ExitCode;

use crate::{command, setup};

/// Build the daemon with the kernel half inside it.
///
/// Does the building part of `setup` first, which is silent when nothing is missing.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Optimise, as for a node that carries traffic.
    #[arg(long)]
    release: bool,
}

impl Args {
    pub(crate) fn run(self, root: &Path) -> anyhow::Result<ExitCode> {
        let Self { release } = self;
        setup::ensure_build(root)?;
        build(root, release)?;
        let profile = if release { "release" } else { "debug" };
        eprintln!("build: {}", target_dir(root).join(profile).join("sluice").display());
        Ok(ExitCode::SUCCESS)
    }
}

/// Builds both halves with what set-up found. What cargo says goes to standard error.
pub(crate) fn build(root: &Path, release: bool) -> anyhow::Result<()> {
    let mut cargo = command::cargo();
    cargo.arg("build").current_dir(root);
    if release {
        cargo.arg("--release");
    }
    command::shown(&mut cargo)
}

/// Where the workspace's cargo puts what it builds.
pub(crate) fn target_dir(root: &Path) -> std::path::PathBuf {
    // A relative CARGO_TARGET_DIR is relative to where cargo runs, and xtask runs it in the root.
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}
