//! The directory that a test shares with the module: rules in, log and counters out.
//!
//! `rules` is read at each call, so a fault can come and go while the module is loaded. `log` has a line per call:
//! time (CLOCK_MONOTONIC, ns), process, function, what came of it, sessions open. Counters are files whose length counts: an append and the
//! position after it are atomic, so they are right across processes that are killed at any moment.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process;
use std::sync::OnceLock;

use crate::rules::{Fault, Rules};

/// Names the directory.
pub(crate) const VARIABLE: &str = "FAULT_MODULE_DIR";

/// Ends the process: a test with rules that can't be followed would prove nothing.
fn give_up(what: &str) -> ! {
    eprintln!("fault-module: {what}");
    process::abort()
}

fn dir() -> &'static PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| match env::var_os(VARIABLE) {
        Some(dir) => dir.into(),
        None => give_up(&format!("{VARIABLE} names no directory")),
    })
}

/// Whether somebody wants this module to do anything.
pub(crate) fn is_set() -> bool {
    env::var_os(VARIABLE).is_some()
}

/// The rules as they are now.
pub(crate) fn rules() -> Rules {
    let path = dir().join("rules");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| give_up(&format!("{}: {error}", path.display())));
    Rules::parse(&text).unwrap_or_else(|why| give_up(&why))
}

fn append(name: &str) -> File {
    let path = dir().join(name);
    // Processes of other users go on with it.
    let opened = OpenOptions::new().create(true).append(true).mode(0o666).open(&path);
    opened.unwrap_or_else(|error| give_up(&format!("{}: {error}", path.display())))
}

/// Adds one to a counter; returns its value.
pub(crate) fn count(name: &str) -> u64 {
    let mut file = append(name);
    let counted = file.write_all(b".").and_then(|()| file.stream_position());
    counted.unwrap_or_else(|error| give_up(&format!("{name}: {error}")))
}

/// A counter's value.
pub(crate) fn counted(name: &str) -> u64 {
    fs::metadata(dir().join(name)).map_or(0, |file| file.len())
}

/// Sets a counter to 0.
pub(crate) fn reset(name: &str) {
    if append(name).set_len(0).is_err() {
        give_up(&format!("{name} can't be reset"));
    }
}

/// Whether `fault` strikes at this call.
pub(crate) fn strikes(fault: &Fault) -> bool {
    let hit = if fault.counts() { count(&format!("hits-{:016x}", fault.id)) } else { 1 };
    fault.strikes(hit)
}

/// Writes a line to the log. Arguments are none of it: the PIN is one.
pub(crate) fn log(function: &str, outcome: &str, sessions: u64) {
    static FILE: OnceLock<File> = OnceLock::new();
    let mut file = FILE.get_or_init(|| append("log"));
    let line = format!("{} {} {function} {outcome} {sessions}\n", now_ns(), process::id());
    if let Err(error) = file.write_all(line.as_bytes()) {
        give_up(&format!("log: {error}"));
    }
}

fn now_ns() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours and writable, and the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
