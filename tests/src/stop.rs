//! Ctrl-C unwinds the run instead of killing it, so that every `Drop` cleans up.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static REQUESTED: AtomicBool = AtomicBool::new(false);
static INSTALL: Once = Once::new();

extern "C" fn note(_signal: libc::c_int) {
    REQUESTED.store(true, Ordering::Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP only set the flag that [`requested`] reads. Idempotent.
pub fn catch_signals() {
    INSTALL.call_once(|| {
        let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            // SAFETY: `note` stores one atomic, which is async-signal-safe, and is never uninstalled.
            if let Err(error) = unsafe { sigaction(signal, &action) } {
                eprintln!("cannot catch {signal}: {error}; pins may stay behind if it comes");
            }
        }
    });
}

/// Whether the run was asked to end.
#[must_use]
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// # Errors
///
/// When the run was asked to end.
pub fn check() -> Result<()> {
    if requested() {
        bail!("interrupted");
    }
    Ok(())
}
