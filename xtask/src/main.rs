//! `cargo xtask`: what the project needs done, without shell scripts.
//!
//! One file per subcommand, with its arguments (`Args`) and `Args::run`. A new one is its `mod`, its variant and its
//! row in `main`.

mod bench;
mod build;
mod command;
mod fuzz;
mod kernels;
mod run;
mod setup;
mod shots;
mod test;
#[cfg(test)]
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What the project needs done: set-up, build, run, test, benchmarks and fuzzing.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    Setup(setup::Args),
    Build(build::Args),
    Run(run::Run),
    Test(test::Args),
    Bench(bench::Args),
    Fuzz(fuzz::Args),
    Shots(shots::Args),
    TestKernels(kernels::Args),
}

fn main() -> ExitCode {
    let root = workspace_root();
    let done = match Cli::parse().task {
        Task::Setup(args) => args.run(&root),
        Task::Build(args) => args.run(&root),
        Task::Run(args) => args.run(&root),
        Task::Test(args) => args.run(&root),
        Task::Bench(args) => args.run(&root),
        Task::Fuzz(args) => args.run(&root),
        Task::Shots(args) => args.run(&root),
        Task::TestKernels(args) => args.run(&root),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The folder of the workspace: where cargo says that xtask lives now, for the clone may have been moved since it was
/// compiled.
fn workspace_root() -> PathBuf {
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    xtask.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}
