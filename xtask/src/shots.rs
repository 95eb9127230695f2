//! `cargo xtask shots`: pictures of what `sluice probe` prints, for the documentation.
//!
//! They are made by a test of the lab, which runs the command against a real server of each kind and looks for what must be
//! there; so no picture shows what the program does not print.

use std::path::Path;
use std::process::ExitCode;

use crate::{build, command, setup};

/// Write `docs/probe/`: what `sluice probe` prints about nginx, an expired certificate, Postfix, BIND, a gRPC health server and a
/// script, as text and as pictures. Needs root.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

impl Args {
    pub(crate) fn run(self, root: &Path) -> anyhow::Result<ExitCode> {
        let Self {} = self;
        setup::ensure_all(root)?;
        build::build(root, true)?;
        let mut test = command::cargo();
        let name = "shots::what_probe_prints_about_real_servers";
        test.args(["test", "--quiet", "--package", "lab", "--test", "kinds", "--", "--exact", name]).current_dir(root);
        test.env("SLUICE_BIN", build::target_dir(root).join("release/sluice"));
        test.env("PROBE_SHOTS", root.join("docs/probe"));
        command::shown(&mut test)?;
        Ok(ExitCode::SUCCESS)
    }
}
