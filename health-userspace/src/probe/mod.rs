//! Active checks, on a schedule.
//!
//! One task for each question to an address: a hung target holds up nobody but itself, rounds of one check can't overlap,
//! and what several services ask alike is asked once.
//! A round has one absolute deadline over all its steps. What it says about the origin is a [`CheckResult`]; thresholds
//! over time are the judgement's. A shortage on this node (descriptors, ports, memory, a process that was stopped or
//! starved) is [`Outcome::Local`], never evidence.
//!
//! | file | does |
//! |---|---|
//! | `schedule` | what is checked, turned into jobs: the same question once; spread start, hurry |
//! | `job` | one question to one address: when it runs, whom it is about; `needs`, `verify` |
//! | `rhythm` | how long until the next round, as a pure function |
//! | `standing` | what the checks of one origin know of each other and of the judgement |
//! | `budget`, `chance` | rounds per second, of the node and of an origin; jitter |
//! | `round` | one round: deadline, lateness, `slow` |
//! | `kind` | the seam: what a kind of check is to the schedule |
//! | `resolve` | origins by name |
//! | `once` | every check once, for `sluice probe` |
//! | `sign` | signed requests |
//! | `trace` | what a round notes: steps and their times, why it ended |
//! | `icmp`, `tcp`, `tls`, `http`, `smtp`, `dns`, `grpc`, `script` | one kind of check each |
//! | `socket` | connections that carry the mark and so are never steered |
//! | `tls` | also: whom checks trust, and sessions for the other kinds |
//! | `failure` | system errors to reasons |
//! | `clock` | the kernel's monotonic clock, and whether this process lost time |
//!
//! The HTTP client is hyper and not reqwest, which is built on it: reqwest opens the socket itself, its
//! `connector_layer` only wraps that step, and no option of it sets `SO_MARK` before `connect`. Without the mark Sluice
//! would steer its own check of a dead origin to the standby and find the origin healthy. hyper also shows the steps
//! apart, which a timeout must name.
//!
//! [`CheckResult`]: health_core::model::CheckResult
//! [`Outcome::Local`]: health_core::model::Outcome::Local

mod budget;
mod chance;
mod clock;
mod dns;
mod failure;
mod grpc;
mod http;
mod icmp;
mod job;
mod kind;
mod once;
pub mod pkcs11;
mod resolve;
mod rhythm;
mod round;
mod schedule;
mod script;
mod sign;
mod smtp;
mod socket;
mod standing;
mod tcp;
#[cfg(test)]
mod tests;
mod tls;
mod trace;

pub use clock::now;
pub use once::{Ended, Probed, ProbedCheck, Selection, once};
pub use resolve::{look_up, look_up_timed};
pub use schedule::{Report, Scheduler, Settings, Target};
pub use trace::{DETAIL_CHARS_MAX, Notes, Step, Trace};

use std::{io, path::PathBuf};

/// Why checks can't be run.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// An HSM's worker can't be prepared.
    #[error("cannot check the HSM of `{origin}`")]
    Hsm {
        /// `service/origin`.
        origin: String,
        /// Why.
        source: pkcs11::HubError,
    },
    /// Without it, checks would be steered to standbys and prove nothing.
    #[error("cannot mark the sockets of checks with {mark:#x}; this needs CAP_NET_ADMIN")]
    Mark {
        /// `node.bypass.mark`.
        mark: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// An https check is configured and nothing could be trusted.
    #[error("found no certificate authority that https checks could trust; install ca-certificates")]
    NoAuthorities,
    /// The TLS library refused its own defaults.
    #[error("cannot prepare TLS for checks")]
    Tls {
        /// Why.
        source: tokio_rustls::rustls::Error,
    },
    /// Local trouble that can be foreseen.
    #[error(
        "{checks} checks need {needed} file descriptors, and this process may have {limit}; raise LimitNOFILE of the \
         service, or `ulimit -n`"
    )]
    Descriptors {
        /// How many there are.
        checks: usize,
        /// What they need at most, at one moment.
        needed: u64,
        /// The hard limit, to which the soft one was raised.
        limit: u64,
    },
    /// A file that a check names is of no use.
    #[error("the file {path} of a check {problem}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// A signing key can't be read.
    #[error("cannot read the signing key `{}`", path.display())]
    Key {
        /// The key file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A signing key can be guessed.
    #[error("the signing key `{}` has {bytes} bytes; {min} is the least", path.display())]
    ShortKey {
        /// The key file.
        path: PathBuf,
        /// What it holds.
        bytes: usize,
        /// What it should hold.
        min: usize,
    },
}
