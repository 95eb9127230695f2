//! `cargo xtask setup`: finds or installs what building, running and testing need.
//!
//! Two groups, because they ask for different rights. *Building* needs a compiler that can build `core` for BPF, and
//! `bpf-linker` made for that compiler's LLVM; a user without root who has both is never asked for more. *Running and
//! testing* needs root, bpffs and real servers. Everything is checked by using it, so a second run is quick, and it is
//! silent when nothing was missing.

mod apt;
mod compiler;
mod linker;
mod node;
mod toolchain;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;

pub(crate) use toolchain::Toolchain;

use crate::command;

/// Find or install what building, running and testing Sluice need.
///
/// Says what it did; silent when nothing was missing. Without root, it can still do the building part if rustup has, or
/// may fetch, a nightly compiler with its source.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

impl Args {
    #[expect(clippy::unused_self, reason = "all subcommands are run the same way")]
    pub(crate) fn run(self, root: &Path) -> anyhow::Result<ExitCode> {
        ensure_all(root)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Makes sure that `cargo build` works: a compiler and a linker for the kernel half, named in the toolchain file.
///
/// # Errors
///
/// When something is missing and can't be had; the message names it and the mend.
pub(crate) fn ensure_build(root: &Path) -> anyhow::Result<()> {
    if Toolchain::read(root).is_some_and(|toolchain| toolchain.is_current()) {
        return Ok(());
    }
    let compiler = compiler::find_or_install().context("setup of the kernel half's compiler")?;
    let linker_dir = linker::find_or_install(&compiler).context("setup of bpf-linker")?;
    let toolchain = Toolchain {
        cargo: compiler.cargo,
        rustc: compiler.rustc,
        bootstrap: compiler.bootstrap,
        version: compiler.version.line,
        linker_dir,
    };
    toolchain.write(root)?;
    announce(&format!(
        "the kernel half is built by {} ({}) and {}",
        toolchain.version,
        toolchain.rustc.display(),
        toolchain.linker_dir.join(linker::NAME).display()
    ));
    Ok(())
}

/// Makes sure that Sluice can be built, run and tested here: [`ensure_build`], bpffs, and the servers and tools of the
/// lab.
///
/// # Errors
///
/// As [`ensure_build`]; and when bpffs isn't mounted or a program is missing, and this user or machine can't mend it.
pub(crate) fn ensure_all(root: &Path) -> anyhow::Result<()> {
    ensure_build(root)?;
    node::ensure()
}

/// Makes sure that `program` is there, which Debian has in `package`.
///
/// # Errors
///
/// When it is missing and can't be installed.
pub(crate) fn ensure_program(program: &str, package: &str) -> anyhow::Result<PathBuf> {
    if let Some(path) = command::find(program) {
        return Ok(path);
    }
    apt::install(&[package])?;
    command::find(program).with_context(|| format!("{package} is installed, but `{program}` is still not to be found"))
}

/// The user's cache for Sluice.
///
/// # Errors
///
/// When the environment names no place for it.
pub(crate) fn cache_dir() -> anyhow::Result<PathBuf> {
    linker::cache_dir(env::var_os("XDG_CACHE_HOME").as_deref(), env::var_os("HOME").as_deref())
}

/// Says what the set-up does. On standard error, because standard output belongs to the JSON of the subcommands.
fn announce(what: &str) {
    eprintln!("setup: {what}");
}
