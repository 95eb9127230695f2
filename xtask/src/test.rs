//! `cargo xtask test`: all that CI checks, cheapest first.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;
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
                let test = || {
                    let mut test = cargo(&["test", "--package", "lab"]);
                    if long {
                        test.env("LAB_LONG", "1");
                    }
                    test
                };
                lab(root, &mut cargo(&["build"]), test)?;
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

/// Tests of `lab` that mostly wait, or look at single packets: they run beside the others. Those whose loads measure how
/// long a failure lasts, all that are not named here, are played one at a time.
const PATIENT: [&str; 9] =
    ["bad_input", "clsact", "direct_return", "failback", "hsm", "kinds", "prog", "prog_l3", "prog_xdp"];

/// Rings 3 and 4. Each lab has its own namespaces, pins and state, so two of them share the kernel and two cores alone.
fn lab(root: &Path, build: &mut Command, test: impl Fn() -> Command + Sync) -> anyhow::Result<()> {
    command::shown(build.arg("--quiet"))?;
    // The program that the scenarios start.
    let test = || {
        let mut test = test();
        test.env("SLUICE_BIN", target_dir(root).join("debug/sluice"));
        test
    };
    // Once, or one run would wait for the other's.
    command::shown(test().arg("--no-run"))?;
    let all = lab_tests(root)?;
    let (patient, timed): (Vec<&str>, Vec<&str>) =
        all.iter().map(String::as_str).partition(|name| PATIENT.contains(name));
    anyhow::ensure!(patient.len() == PATIENT.len(), "{PATIENT:?} names a test that is not below tests/tests");
    thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let mut beside = test();
            beside
                .arg("--no-fail-fast")
                .args(patient.iter().flat_map(|name| ["--test", name]))
                .args(["--", "--test-threads=1"]);
            command::kept(&mut beside)
        });
        let shown = command::shown(
            test()
                .args(["--no-fail-fast", "--lib"])
                .args(timed.iter().flat_map(|name| ["--test", name]))
                .args(["--", "--test-threads=1"]),
        );
        let (said, ended) = beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        println!("{said}");
        shown.and(ended)
    })
}

/// The names of the integration tests of `lab`: a file or a folder each.
fn lab_tests(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join("tests/tests")).context("cannot list tests/tests")? {
        let path = entry?.path();
        let name = path.file_stem().and_then(OsStr::to_str).context("a test's name is not UTF-8")?;
        names.push(name.to_owned());
    }
    names.sort();
    Ok(names)
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
