//! The init of a guest kernel, for `cargo xtask test-kernels`: mounts, inserts the modules, loads and attaches each program,
//! starts the daemon, runs the packet tables, and ends the machine. An example, because only dev-dependencies may need the
//! kernel half.
//!
//! What it finds goes to the second serial port as [`GuestLine`]s; the first one is the kernel's console.

mod daemon;
mod programs;

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use lab::guest::GuestLine;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};

/// The host's end reads it as a file.
const REPORT: &str = "/dev/ttyS1";

/// Type and place of each filesystem, in order.
const MOUNTS: [(&str, &str); 8] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/tmp"),
    ("tmpfs", "/run"),
    ("bpf", "/sys/fs/bpf"),
    ("cgroup2", "/sys/fs/cgroup"),
    ("tracefs", "/sys/kernel/tracing"),
];

/// Of `finit_module(2)`: the kernel unpacks the module itself (Linux 5.17, `MODULE_INIT_COMPRESSED_FILE`).
const COMPRESSED: u32 = 4;

/// What some kernels from our floor on lack, by the file that shows it: since when, and what that means to Sluice.
const FEATURES: [(&str, &str, &str); 2] = [
    ("/sys/kernel/btf/vmlinux", "BTF of the kernel", "no program can be loaded"),
    (
        "/proc/sys/net/ipv4/tcp_syn_linear_timeouts",
        "linear SYN timeouts (Linux 6.5)",
        "a SYN is repeated after 1, 3 and 7 s, not each second, and so is the rescue by a repeat",
    ),
];

fn main() {
    assert_eq!(std::process::id(), 1, "this is the init of a guest: `cargo xtask test-kernels` starts it");
    if let Err(error) = run() {
        eprintln!("init: {error:#}");
        if tell(&GuestLine::Failed { error: format!("{error:#}") }).is_err() {
            eprintln!("init: and it could not be told");
        }
    }
    // Waits for the port to send what is in its buffer.
    if let Ok(port) = File::open(REPORT) {
        nix::sys::termios::tcdrain(&port).ok();
    }
    // The host starts the machine with "no reboot", so this ends it; power off would need ACPI.
    let never = reboot(RebootMode::RB_AUTOBOOT);
    panic!("the machine does not end: {never:?}");
}

fn run() -> Result<()> {
    for (kind, place) in MOUNTS {
        fs::create_dir_all(place)?;
        let none: Option<&str> = None;
        mount(Some(kind), place, Some(kind), MsFlags::empty(), none).with_context(|| format!("cannot mount {kind}"))?;
    }
    raw()?;
    let release = nix::sys::utsname::uname()?.release().to_string_lossy().into_owned();
    tell(&GuestLine::Booted { release })?;
    modules(Path::new("/modules"))?;
    ip(&["link", "set", "lo", "up"])?;
    ip(&["link", "add", "wan0", "type", "veth", "peer", "name", "orig0"])?;
    for name in ["wan0", "orig0"] {
        ip(&["link", "set", name, "up"])?;
    }
    ip(&["address", "add", "192.0.2.1/24", "dev", "orig0"])?;
    for (file, what, so) in FEATURES {
        if !Path::new(file).exists() {
            lacks(what, so)?;
        }
    }
    let all = programs::test()?;
    daemon::test()?;
    // Each table would wait for the verifier and then say the same.
    ensure!(all, "the packet tables need every program, and not all were loaded");
    for program in names_in(Path::new("/tables"))? {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        tell(&GuestLine::Tables { name })?;
        let tables = Command::new(program).arg("--test-threads=1").stdin(Stdio::null()).stdout(port()?).status()?;
        tell(&GuestLine::Ended { code: tables.code() })?;
    }
    tell(&GuestLine::Done)
}

/// What the host put there, in the order of the names.
fn names_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths: Vec<_> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.sort();
    Ok(paths)
}

/// The port as it is: no echo, no carriage returns.
fn raw() -> Result<()> {
    let port = port()?;
    let mut settings = nix::sys::termios::tcgetattr(&port)?;
    nix::sys::termios::cfmakeraw(&mut settings);
    nix::sys::termios::tcsetattr(&port, nix::sys::termios::SetArg::TCSANOW, &settings)?;
    // Kept open: the last one to close it would reset it.
    std::mem::forget(port);
    Ok(())
}

fn port() -> Result<File> {
    OpenOptions::new().write(true).open(REPORT).with_context(|| format!("cannot open {REPORT}"))
}

fn tell(line: &GuestLine) -> Result<()> {
    Ok(port()?.write_all(format!("{}\n", serde_json::to_string(line)?).as_bytes())?)
}

fn lacks(what: &str, so: &str) -> Result<()> {
    tell(&GuestLine::Lacks { what: what.to_owned(), so: so.to_owned() })
}

/// The order is the host's: one may need another.
fn modules(folder: &Path) -> Result<()> {
    for path in names_in(folder)? {
        let compressed = path.extension().is_some_and(|extension| extension != "ko");
        let flags = if compressed { COMPRESSED } else { 0 };
        let inserted = finit_module(File::open(&path)?, &CString::default(), ModuleInitFlags::from_bits_retain(flags));
        if let Err(error) = inserted {
            lacks(&path.display().to_string(), &format!("the module could not be inserted: {error}"))?;
        }
    }
    Ok(())
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("/ip").args(arguments).output().context("cannot start ip")?;
    ensure!(output.status.success(), "ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(())
}
