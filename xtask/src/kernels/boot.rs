//! A kernel in qemu, emulated: it needs no virtualisation of the machine, which may itself be a guest.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lab::stop;

use super::mirror::Image;
use crate::command;

/// A run takes about five minutes on an idle machine, ten on Linux 6.1, where each run of XDP waits for a grace period; and an
/// emulator shares its core with whoever else is there.
const LIMIT: Duration = Duration::from_mins(40);
const POLL: Duration = Duration::from_millis(50);

/// MiB. The first filesystem is there twice until it is unpacked.
const MEMORY: &str = "1536";

/// Its last words go to the console, and a panic ends the machine.
const KERNEL_LINE: &str = "console=ttyS0 loglevel=5 panic=-1 rdinit=/init";

/// Lines that are quoted of a console.
const CONSOLE_LINES_MAX: usize = 20;

/// How a guest ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// What came through the second port.
    pub(super) port: String,
    /// The last lines of the first.
    pub(super) console: String,
    /// Why it was ended, if it did not end by itself.
    pub(super) error: Option<String>,
    pub(super) took: Duration,
}

/// The emulator, which must not outlive us.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Boots a kernel and waits for its end. Files of the run go to `folder`.
pub(super) fn boot(qemu: &Path, image: &Image, initramfs: &Path, folder: &Path) -> Result<Ended> {
    let (console, port) = (folder.join("console"), folder.join("port"));
    let begun = Instant::now();
    let mut machine =
        Machine(command_of(qemu, image, initramfs, [&console, &port]).spawn().context("cannot start qemu")?);
    let error = loop {
        stop::check()?;
        if let Some(status) = machine.0.try_wait()? {
            break (!status.success()).then(|| format!("qemu ended with {status}"));
        }
        if begun.elapsed() > LIMIT {
            break Some(format!("not done within {} s", LIMIT.as_secs()));
        }
        thread::sleep(POLL);
    };
    let took = begun.elapsed();
    drop(machine);
    let text = |path: &Path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let console = text(&console).unwrap_or_default();
    let lines: Vec<_> = console.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(CONSOLE_LINES_MAX)..).unwrap_or_default().join("\n");
    Ok(Ended { port: text(&port).unwrap_or_default(), console: last, error, took })
}

fn command_of(qemu: &Path, image: &Image, initramfs: &Path, ports: [&Path; 2]) -> Command {
    let mut command = command::foreign(qemu);
    command
        .args(["-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", MEMORY])
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-monitor", "none"])
        .arg("-kernel")
        .arg(&image.vmlinuz)
        .arg("-initrd")
        .arg(initramfs)
        .args(["-append", KERNEL_LINE])
        .stdout(Stdio::null());
    for port in ports {
        command.arg("-serial").arg(format!("file:{}", port.display()));
    }
    command
}
