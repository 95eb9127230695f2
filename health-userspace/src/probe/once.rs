//! Every check once, now, in the order that `needs` asks for; for `sluice probe`.

use super::{
    ProbeError,
    clock::Stalls,
    kind::Setting,
    pkcs11::{Hub, Program},
    round::{Finished, Round},
    socket::{self, Sockets},
    tls::Trust,
    trace::{Notes, Step},
};
use crate::config::{CheckConfig, Config, OriginConfig, ServiceConfig};
use futures_util::{StreamExt, stream};
use health_core::{Span, model::Outcome};
use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

/// Origins that are asked at the same time.
const AT_ONCE: usize = 32;

/// Which checks are run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Only this service.
    pub service: Option<String>,
    /// Only this origin of it.
    pub origin: Option<String>,
    /// Only the check of this name; what it needs is not asked.
    pub check: Option<String>,
}

/// One origin, asked once.
#[derive(Clone, Debug)]
pub struct Probed {
    /// Its service.
    pub service: String,
    /// Its name.
    pub origin: String,
    /// Where it is.
    pub address: SocketAddr,
    /// Its name, and how long it took to find out what that stands for; none if the configuration has its address.
    pub resolved: Option<(String, Span)>,
    /// In the order in which they ran.
    pub checks: Vec<ProbedCheck>,
}

/// One check, run once or not at all.
#[derive(Clone, Debug)]
pub struct ProbedCheck {
    /// What was run.
    pub check: CheckConfig,
    /// Its end; none if it was skipped.
    pub ended: Option<Ended>,
    /// What it needs and did not pass, if it was skipped.
    pub unmet: Option<String>,
}

/// How a round ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Pass, slow, fail or local trouble.
    pub outcome: Outcome,
    /// From its first step to its end.
    pub took: Span,
    /// Its steps, in order.
    pub steps: Vec<Step>,
    /// What else it found.
    pub notes: Notes,
}

/// Asks each selected origin each selected check once. `resolved`: how long the look-up of each name took. Must be called inside a tokio runtime.
///
/// # Errors
///
/// Sockets can't be marked, or a check can't be run at all.
pub async fn once(
    config: &Config,
    resolved: &BTreeMap<String, Span>,
    selection: &Selection,
) -> Result<Vec<Probed>, ProbeError> {
    socket::try_mark(config.node.bypass.mark)?;
    let chosen = |name: &String, wish: &Option<String>| wish.as_ref().is_none_or(|wish| wish == name);
    let services = config.services.iter().filter(|service| chosen(&service.name, &selection.service));
    let origins: Vec<_> = services
        .flat_map(|service| service.origins.iter().map(move |origin| (service, origin)))
        .filter(|(_, origin)| chosen(&origin.name, &selection.origin))
        .collect();
    // Its alarms are for a daemon's log; what they say is in the rounds' details too.
    let (hub, _alarms) = Hub::new(config.node.state_dir.clone(), Program::default());
    let node = Once {
        hub: Arc::clone(&hub),
        mark: config.node.bypass.mark,
        trust: Trust::default(),
        stalls: Stalls::new(),
        check: selection.check.as_deref(),
        resolved,
    };
    let asked = stream::iter(origins).map(|(service, origin)| node.origin(service, origin)).buffered(AT_ONCE).collect();
    let asked: Vec<Result<Probed, ProbeError>> = tokio::select! {
        asked = asked => asked,
        () = node.stalls.watch() => Vec::new(),
    };
    hub.shutdown().await;
    asked.into_iter().collect()
}

struct Once<'a> {
    hub: Arc<Hub>,
    mark: u32,
    trust: Trust,
    stalls: Stalls,
    check: Option<&'a str>,
    resolved: &'a BTreeMap<String, Span>,
}

impl Once<'_> {
    async fn origin(&self, service: &ServiceConfig, origin: &OriginConfig) -> Result<Probed, ProbeError> {
        let mut left: Vec<&CheckConfig> =
            service.checks.iter().filter(|check| self.check.is_none_or(|wish| wish == check.name)).collect();
        let mut checks: Vec<ProbedCheck> = Vec::with_capacity(left.len());
        // Each turn runs the first one whose needs have all had their turn; the configuration has no circles.
        while let Some(at) = left.iter().position(|check| {
            let waits = |need: &String| left.iter().any(|other| other.name == *need);
            !check.plan.needs.iter().any(waits)
        }) {
            let check = left.remove(at);
            let failed = |need: &&String| {
                let of = checks.iter().find(|done| done.check.name == **need);
                of.is_some_and(|done| !matches!(&done.ended, Some(end) if end.outcome.is_pass()))
            };
            let unmet = check.plan.needs.iter().find(failed).cloned();
            let ended = if unmet.is_none() { Some(self.round(check, (&service.name, origin)).await?) } else { None };
            checks.push(ProbedCheck { check: check.clone(), ended, unmet });
        }
        let of = |name: &String| Some((name.clone(), *self.resolved.get(name)?));
        let resolved = origin.host.as_ref().and_then(|host| of(&host.name));
        let (service, name) = (service.name.clone(), origin.name.clone());
        Ok(Probed { service, origin: name, address: origin.address, resolved, checks })
    }

    async fn round(&self, check: &CheckConfig, of: (&str, &OriginConfig)) -> Result<Ended, ProbeError> {
        let (service, origin) = of;
        let check = &check.of(origin);
        let (address, names, hub) = (origin.address, (service, origin.name.as_str()), Some(&self.hub));
        let source = &check.plan.source;
        let sockets = Sockets { mark: self.mark, address: source.address, interface: source.interface.clone() };
        let mut round = Round::new(Setting { check, address, sockets: &sockets, trust: &self.trust, names, hub })?;
        let Finished { began, ended, outcome, steps, notes } = round.run(&self.stalls).await;
        Ok(Ended { outcome, took: ended.since(began), steps, notes })
    }
}
