//! The seam: what a kind of check is to the schedule.
//!
//! A kind is one file with a type that implements [`Probe`], an arm in [`prepare`], and its keys in `config/check`.

use super::{ProbeError, http::HttpProbe, tcp::TcpProbe, trace::Trace};
use crate::config::{CheckConfig, CheckKind};
use futures_util::future::BoxFuture;
use health_core::model::Outcome;
use std::{net::SocketAddr, sync::Arc};
use tokio_rustls::rustls::ClientConfig;

/// A check made ready to be run against one origin, again and again.
pub(super) trait Probe: Send {
    /// One round, step by step; each begins with [`Trace::begin`], and [`Trace::explain`] says why it failed.
    ///
    /// The deadline ends a round by dropping the future, at whatever step it is; so whatever it holds must be released by
    /// being dropped. Rounds of one check never overlap.
    fn run<'a>(&'a mut self, trace: &'a mut Trace) -> BoxFuture<'a, Outcome>;
}

/// All that a kind may know of its surroundings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    /// What to do.
    pub(super) check: &'a CheckConfig,
    /// The origin's address; a URL may name another port.
    pub(super) address: SocketAddr,
    /// How its sockets leave this node.
    pub(super) sockets: &'a super::socket::Sockets,
    /// What TLS trusts; none if no check of the configuration needs it.
    pub(super) tls: Option<&'a Arc<ClientConfig>>,
}

/// The address that a check of an origin asks: two origins on one host may share a health page. Its own, unless a kind
/// says otherwise; never shared then.
pub(super) fn asks(check: &CheckConfig, origin: SocketAddr) -> SocketAddr {
    match &check.kind {
        CheckKind::Http(http) => {
            SocketAddr::new(origin.ip(), http.url.port_or_known_default().unwrap_or_else(|| origin.port()))
        }
        CheckKind::Tcp => origin,
    }
}

/// Makes a check ready.
///
/// # Errors
///
/// It can't be run at all, which the configuration should have excluded.
pub(super) fn prepare(setting: Setting<'_>) -> Result<Box<dyn Probe>, ProbeError> {
    match &setting.check.kind {
        CheckKind::Tcp => Ok(Box::new(TcpProbe::new(setting))),
        CheckKind::Http(http) => {
            let probe = HttpProbe::new(http, setting);
            let url = || ProbeError::Url { check: setting.check.name.clone() };
            Ok(Box::new(probe.ok_or_else(url)?))
        }
    }
}
