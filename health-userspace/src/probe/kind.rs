//! The seam: what a kind of check is to the schedule.
//!
//! A kind is one file with a type that implements [`Probe`], an arm in [`prepare`], and its keys in `config/check`.

use super::{
    ProbeError,
    dns::DnsProbe,
    grpc::GrpcProbe,
    http::HttpProbe,
    icmp::IcmpProbe,
    pkcs11::{Hub, Pkcs11Probe},
    script::ScriptProbe,
    smtp::SmtpProbe,
    socket::Sockets,
    tcp::TcpProbe,
    tls::TlsProbe,
    tls::Trust,
    trace::Trace,
};
use crate::config::{CheckConfig, CheckKind};
use futures_util::future::BoxFuture;
use health_core::model::Outcome;
use std::{net::SocketAddr, sync::Arc};

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
    pub(super) sockets: &'a Sockets,
    /// What TLS trusts.
    pub(super) trust: &'a Trust,
    /// Service and origin, for what must be named.
    pub(super) names: (&'a str, &'a str),
    /// The HSMs' workers; none where no HSM can be checked.
    pub(super) hub: Option<&'a Arc<Hub>>,
}

/// The address that a check of an origin asks: two origins on one host may share a health page. Its own, unless a kind
/// says otherwise; never shared then.
pub(super) fn asks(check: &CheckConfig, origin: SocketAddr) -> SocketAddr {
    match &check.kind {
        CheckKind::Http(http) => {
            let port = http.requests.first().and_then(|first| first.url.port_or_known_default());
            SocketAddr::new(origin.ip(), port.unwrap_or_else(|| origin.port()))
        }
        // A host has no ports.
        CheckKind::Icmp(_) => SocketAddr::new(origin.ip(), 0),
        CheckKind::Tcp(_)
        | CheckKind::Tls(_)
        | CheckKind::Smtp(_)
        | CheckKind::Dns(_)
        | CheckKind::Grpc(_)
        | CheckKind::Script(_)
        | CheckKind::Pkcs11(_) => origin,
    }
}

/// Makes a check ready.
///
/// # Errors
///
/// It can't be run at all, which the configuration should have excluded.
pub(super) fn prepare(setting: Setting<'_>) -> Result<Box<dyn Probe>, ProbeError> {
    Ok(match &setting.check.kind {
        CheckKind::Icmp(icmp) => Box::new(IcmpProbe::new(icmp.size, setting)),
        CheckKind::Tcp(tcp) => Box::new(TcpProbe::new(tcp, setting)),
        CheckKind::Tls(tls) => Box::new(TlsProbe::new(tls, setting)?),
        CheckKind::Http(http) => Box::new(HttpProbe::new(http, setting)?),
        CheckKind::Smtp(smtp) => Box::new(SmtpProbe::new(smtp, setting)?),
        CheckKind::Dns(dns) => Box::new(DnsProbe::new(dns, setting)),
        CheckKind::Grpc(grpc) => Box::new(GrpcProbe::new(grpc, setting)?),
        CheckKind::Script(script) => Box::new(ScriptProbe::new(script, setting)),
        CheckKind::Pkcs11(rule) => {
            let (service, origin) = setting.names;
            let named = |source| ProbeError::Hsm { origin: format!("{service}/{origin}"), source };
            Box::new(Pkcs11Probe::new(setting.hub, setting.names, rule).map_err(named)?)
        }
    })
}
