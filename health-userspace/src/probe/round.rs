//! One round of one check.

use super::{
    ProbeError,
    clock::{Stalls, duration, now},
    http::HttpProbe,
    tcp,
};
use crate::config::{CheckConfig, CheckKind};
use health_core::{
    Span, Timestamp,
    model::{Layer, LocalReason, Outcome, Reason},
};
use std::{net::SocketAddr, sync::Arc};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::rustls::ClientConfig;

/// A round that ends this long after its deadline was not ended by it.
const OVERDUE_MAX: Span = Span::from_secs(1);

/// A check made ready to be run against one origin.
pub(super) struct Round {
    address: SocketAddr,
    mark: u32,
    timeout: Span,
    slow: Option<Span>,
    kind: Kind,
}

enum Kind {
    Tcp,
    Http(Box<HttpProbe>),
}

/// When a round was, and how it ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finished {
    pub(super) began: Timestamp,
    pub(super) ended: Timestamp,
    pub(super) outcome: Outcome,
}

impl Finished {
    /// A round that was not run because its time had passed.
    pub(super) fn late() -> Self {
        let now = now();
        Self { began: now, ended: now, outcome: Outcome::Local(LocalReason::Late) }
    }
}

impl Round {
    pub(super) fn new(
        check: &CheckConfig,
        address: SocketAddr,
        mark: u32,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Self, ProbeError> {
        let kind = match &check.kind {
            CheckKind::Tcp => Kind::Tcp,
            CheckKind::Http(http) => {
                let probe = HttpProbe::new(http, address, tls);
                Kind::Http(Box::new(probe.ok_or_else(|| ProbeError::Url { check: check.name.clone() })?))
            }
        };
        Ok(Self { address, mark, timeout: check.timeout, slow: check.slow, kind })
    }

    /// Runs all steps against one absolute deadline.
    pub(super) async fn run(&self, stalls: &Stalls) -> Finished {
        let began = now();
        let deadline = Instant::now() + duration(self.timeout);
        let mut layer = Layer::Transport;
        let steps = async {
            match &self.kind {
                Kind::Tcp => tcp::run(self.address, self.mark).await,
                Kind::Http(probe) => probe.run(self.mark, &mut layer).await,
            }
        };
        let answer = timeout_at(deadline, steps).await;
        let ended = now();
        let outcome = answer.unwrap_or(Outcome::Fail(Reason::Timeout(layer)));
        let lost = stalls.lost_since(began);
        Finished { began, ended, outcome: self.settle(outcome, ended.since(began), lost) }
    }

    /// What `outcome` means, given how long the round took and how much of that this process was not running.
    fn settle(&self, outcome: Outcome, took: Span, lost: Span) -> Outcome {
        let overdue = Span(took.0.saturating_sub(self.timeout.0));
        let slow = self.slow.is_some_and(|slow| took > slow);
        // A process that lost a quarter of a round can't say that the origin was silent or slow.
        let starved = lost.times(4) >= self.timeout && lost > Span::ZERO;
        match outcome {
            _ if overdue > OVERDUE_MAX => Outcome::Local(LocalReason::Late),
            Outcome::Fail(Reason::Timeout(_)) if starved => Outcome::Local(LocalReason::Late),
            Outcome::Pass if slow && starved => Outcome::Local(LocalReason::Late),
            Outcome::Pass if slow => Outcome::Slow,
            other => other,
        }
    }
}
