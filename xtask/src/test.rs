//! `cargo xtask test`: all that CI checks, cheapest first.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::Context as _;
use clap::ValueEnum;

use crate::build::target_dir;
use crate::command;
use crate::setup::{self, Toolchain};

/// Everything that CI checks; ends at the first step that fails.
///
/// The steps in their order: setup, fmt, tidy (the house rules that no lint knows), clippy, doc, deny (licences and
/// sources of the dependencies, where cargo-deny is installed), purity (the core builds without std), unit (rings 1 and
/// 2) and lab (rings 3 and 4: packets through the kernel and real servers, as root).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run only this step, without those before it. May be given more than once.
    #[arg(long, value_name = "STEP")]
    only: Vec<Step>,
    /// Play the lab's long scenarios at full length, which takes about fifteen minutes more.
    #[arg(long)]
    long: bool,
}

/// One thing that CI checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Step {
    Setup,
    Fmt,
    Tidy,
    Clippy,
    Doc,
    Deny,
    Purity,
    Unit,
    Lab,
}

/// How a step ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// What it needs is optional and isn't here.
    Skipped(&'static str),
}

impl Args {
    pub(crate) fn run(self, root: &Path) -> anyhow::Result<ExitCode> {
        let Self { only, long } = self;
        let begun = Instant::now();
        let steps = Step::value_variants().iter().filter(|step| only.is_empty() || only.contains(step));
        let (mut passed, mut skipped) = (0_u32, 0_u32);
        for step in steps {
            let name = step.name();
            println!("==> {name}");
            let step_begun = Instant::now();
            let outcome =
                step.run(root, long).with_context(|| format!("step `{name}` of `cargo xtask test` failed"))?;
            let seconds = step_begun.elapsed().as_secs_f32();
            match outcome {
                Outcome::Passed => {
                    passed += 1;
                    println!("<== {name} passed in {seconds:.1} s");
                }
                Outcome::Skipped(why) => {
                    skipped += 1;
                    println!("<== {name} skipped: {why}");
                }
            }
        }
        println!("cargo xtask test: every step passed, in {:.0} s", begun.elapsed().as_secs_f32());
        println!("steps: {passed} passed, 0 failed, {skipped} skipped");
        Ok(ExitCode::SUCCESS)
    }
}

impl Step {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn run(self, root: &Path, long: bool) -> anyhow::Result<Outcome> {
        let cargo = |arguments: &[&str]| {
            let mut cargo = command::cargo();
            cargo.args(arguments).current_dir(root);
            cargo
        };
        match self {
            Self::Setup => setup::ensure_all(root)?,
            Self::Fmt => {
                command::shown(&mut cargo(&["fmt", "--all", "--check"]))?;
                command::shown(&mut cargo(&["fmt", "--manifest-path", "health-ebpf/Cargo.toml", "--check"]))?;
            }
            Self::Tidy => command::shown(&mut cargo(&["test", "--quiet", "--package", "xtask", "tidy::"]))?,
            Self::Clippy => command::shown(&mut cargo(&[
                "clippy",
                "--workspace",
                "--all-targets",
                "--quiet",
                "--",
                "--deny",
                "warnings",
            ]))?,
            Self::Doc => command::shown(
                cargo(&["doc", "--workspace", "--no-deps", "--quiet"]).env("RUSTDOCFLAGS", "--deny warnings"),
            )?,
            Self::Deny => return deny(cargo(&["deny", "check", "bans", "licenses", "sources"])),
            Self::Purity => purity(root)?,
            Self::Unit => command::shown(&mut cargo(&["test"]))?,
            Self::Lab => {
                let mut test = cargo(&["test", "--package", "lab"]);
                if long {
                    test.env("LAB_LONG", "1");
                }
                lab(root, &mut cargo(&["build"]), &mut test)?;
            }
        }
        Ok(Outcome::Passed)
    }
}

/// Advisories are left out: they need the network at each run, and may fail a commit that changed nothing.
fn deny(mut check: Command) -> anyhow::Result<Outcome> {
    if command::find("cargo-deny").is_none() {
        return Ok(Outcome::Skipped("cargo-deny is not installed"));
    }
    command::shown(&mut check)?;
    Ok(Outcome::Passed)
}

/// Proves the core pure: it must build for a target that has no operating system, so no clock, file, socket or thread.
/// The compiler is the kernel half's, which has the library's source, so no target must be installed. The words are
/// checked by tidy, too.
fn purity(root: &Path) -> anyhow::Result<()> {
    let toolchain = Toolchain::read(root).context("there is no toolchain file: run `cargo xtask setup`")?;
    let mut build = toolchain.cargo();
    build
        .args(["build", "--quiet", "--package", "health-core", "--lib"])
        .args(["-Z", "build-std=core,alloc", "--target", "x86_64-unknown-none"])
        .arg("--target-dir")
        .arg(target_dir(root).join("purity"))
        .current_dir(root);
    command::shown(&mut build)
}

/// Rings 3 and 4. They share the machine's kernel, its network namespaces' names and its two cores, so one at a time.
fn lab(root: &Path, build: &mut Command, test: &mut Command) -> anyhow::Result<()> {
    command::shown(build.arg("--quiet"))?;
    // The program that the scenarios start.
    test.env("SLUICE_BIN", target_dir(root).join("debug/sluice"));
    command::shown(test.args(["--", "--test-threads=1"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_up_comes_first_and_the_dearest_last() {
        let steps = Step::value_variants();

        assert_eq!((steps.first(), steps.last()), (Some(&Step::Setup), Some(&Step::Lab)));
    }
}
