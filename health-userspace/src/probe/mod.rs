//! Active checks, on a schedule.
//!
//! One task for each (origin, check): a hung target holds up nobody but itself, and rounds of one check can't overlap.
//! A round has one absolute deadline over all its steps. What it says about the origin is a [`CheckResult`]; thresholds
//! over time are the judgement's. A shortage on this node (descriptors, ports, memory, a process that was stopped or
//! starved) is [`Outcome::Local`], never evidence.
//!
//! | file | does |
//! |---|---|
//! | `schedule` | who runs when: spread start, jitter, budget, hurry |
//! | `round` | one round: deadline, lateness, `slow` |
//! | `kind` | the seam: what a kind of check is to the schedule |
//! | `trace` | what a round notes: steps and their times, why it ended |
//! | `tcp`, `http` | one kind of check each |
//! | `socket` | connections that carry the mark and so are never steered |
//! | `tls` | trust, from the system's certificates |
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

mod clock;
mod failure;
mod http;
mod kind;
mod round;
mod schedule;
mod socket;
mod tcp;
#[cfg(test)]
mod tests;
mod tls;
mod trace;

pub use clock::now;
pub use schedule::{Report, Scheduler, Settings, Target};
pub use trace::{DETAIL_CHARS_MAX, Notes, Step, Trace};

use std::io;

/// Why checks can't be run.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
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
    /// A check's URL can't be asked.
    #[error("check `{check}` has a url that cannot be asked")]
    Url {
        /// The check's name.
        check: String,
    },
}
