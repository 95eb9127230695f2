//! What operators want done, as the loop gets it.

use super::protocol::{FailbackKind, OrderKind, Outcome};
use std::time::Duration;
use tokio::sync::oneshot;

/// What operators want done.
#[derive(Debug)]
pub enum Command {
    /// `sluice origin …`.
    Origin {
        /// The order.
        order: OriginOrder,
        /// Where the outcome goes.
        reply: oneshot::Sender<Outcome>,
    },
    /// `sluice failback …`.
    Failback {
        /// Name of the service.
        service: String,
        /// What is to become of its way back.
        what: FailbackKind,
        /// Why.
        reason: String,
        /// Who.
        by: String,
        /// Where the outcome goes.
        reply: oneshot::Sender<Outcome>,
    },
    /// `sluice reload`.
    Reload {
        /// Only say what would change.
        dry_run: bool,
        /// Who.
        by: String,
        /// Where the outcome goes.
        reply: oneshot::Sender<Outcome>,
    },
    /// `sluice detach`: remove programs and pins, answer, and end.
    Detach {
        /// Steer nothing new and wait this long for redirected flows to end.
        drain: Option<Duration>,
        /// Cut redirected flows.
        force: bool,
        /// Who.
        by: String,
        /// Where the outcome goes.
        reply: oneshot::Sender<Outcome>,
    },
}

/// An order about one origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginOrder {
    /// Name of the service.
    pub service: String,
    /// Name of the origin.
    pub origin: String,
    /// What to do with it.
    pub kind: OrderKind,
    /// Why, in the operator's words.
    pub reason: String,
    /// Who, such as `li.wei(uid 1007)`.
    pub by: String,
    /// When it ends by itself, from now.
    pub lasts: Option<Duration>,
}
