//! `cargo xtask test-kernels`: the kernel half on other kernels than this machine's.
//!
//! Debian's kernels boot in an emulator with an init of ours (`tests/examples/kernel_init`), which loads and attaches each
//! program, starts the daemon and runs the packet tables of ring 3.

mod boot;
mod cpio;
mod guest;
mod mirror;
mod report;
mod table;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use lab::stop;
use serde::Serialize;

use crate::setup;

/// The long-lived kernels from the oldest on that Sluice is meant for. The newest that the mirror has comes beside them.
const USUAL: [&str; 3] = ["6.1", "6.12", "6.18"];

/// Test the kernel half on Debian's kernels, in an emulator. Not part of CI. Needs the network once.
///
/// Takes kernels 6.1, 6.12 and 6.18 and the newest one from the mirror that this machine's apt uses, and keeps them in the
/// user's cache. Boots each with qemu (installed if it is missing), loads and attaches every program, starts the daemon
/// and runs the packet tables. Says by name what a kernel lacks. A minute or two and a whole core for each kernel.
///
/// The exit code is 0 only if everything holds on every kernel that was tested.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this series, such as 6.12. May be given more than once.
    #[arg(long, value_name = "SERIES")]
    kernel: Vec<String>,
    /// Print one JSON document on standard output.
    #[arg(long)]
    json: bool,
}

/// A row of the matrix.
#[derive(Debug, Serialize)]
struct Kernel {
    /// Such as `6.12`.
    series: String,
    /// Debian's.
    package: String,
    version: String,
    /// Whether everything was there and right.
    holds: bool,
    /// From qemu's start to its end.
    seconds: u64,
    #[serde(flatten)]
    report: report::Report,
}

/// What is printed.
#[derive(Debug, Serialize)]
struct Document {
    kernels: Vec<Kernel>,
}

impl Args {
    pub(crate) fn run(self, root: &Path) -> Result<ExitCode> {
        let Self { kernel, json } = self;
        setup::ensure_all(root)?;
        let qemu = setup::ensure_program("qemu-system-x86_64", "qemu-system-x86")?;
        stop::catch_signals();
        let mirror = mirror::Mirror::open(&setup::cache_dir()?)?;
        let packages = mirror::choose(&mirror.newest()?, &kernel, &USUAL)?;
        let guest = guest::Guest::build(root)?;
        let mut kernels = Vec::new();
        for package in &packages {
            stop::check()?;
            kernels
                .push(test(&qemu, &mirror, &guest, package).unwrap_or_else(|error| Kernel::untested(package, &error)));
        }
        // Whoever interrupts the last one wants no verdict.
        stop::check()?;
        table::show(&kernels)?;
        let holds = kernels.iter().all(|kernel| kernel.holds);
        if json {
            let mut out = std::io::stdout().lock();
            serde_json::to_writer(&mut out, &Document { kernels })?;
            writeln!(out)?;
        }
        Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl Kernel {
    /// What is known of others must not be lost with one that could not be fetched or booted.
    fn untested(package: &mirror::Package, error: &anyhow::Error) -> Self {
        let report = report::Report { errors: vec![format!("not tested: {error:#}")], ..report::Report::default() };
        let (series, package) = (package.series(), package.name.clone());
        Self { series, package, version: "-".to_owned(), holds: false, seconds: 0, report }
    }
}

fn test(qemu: &Path, mirror: &mirror::Mirror, guest: &guest::Guest, package: &mirror::Package) -> Result<Kernel> {
    let image = mirror.image(package)?;
    let folder = tempfile::tempdir()?;
    let initramfs = folder.path().join("initramfs");
    guest.write(&image, &initramfs)?;
    eprintln!("kernels: booting {} ({})", package.series(), image.version);
    let ended = boot::boot(qemu, &image, &initramfs, folder.path())?;
    let mut report = report::Report::parse(&ended.port);
    report.errors.extend(ended.error);
    if !report.done {
        report.errors.push(format!("it did not come to its end; the console says:\n{}", ended.console));
    }
    Ok(Kernel {
        series: package.series(),
        package: package.name.clone(),
        version: image.version,
        holds: report.holds(),
        seconds: ended.took.as_secs(),
        report,
    })
}
