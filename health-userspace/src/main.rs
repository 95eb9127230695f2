//! `sluice`: the daemon and its command line.

use sluice::cli::{self, shell::Shell};
use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main(&Shell).into()
}
