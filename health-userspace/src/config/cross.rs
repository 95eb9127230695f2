//! Rules that join several keys, and warnings about what is allowed and will hurt.

use super::{
    advice,
    diagnostic::Sink,
    kind::CheckKind,
    model::{Bypass, Config, OriginConfig},
    node::IDS_MAX,
    service::{NOWHERE, ReadService},
};
use health_core::model::Mode;
use std::collections::BTreeMap;

/// Reports what single keys can't show. `services` has the places of `config.services`, in the same order.
pub(super) fn check(config: &Config, services: &[ReadService], sink: &Sink) {
    addresses(config, services, sink);
    // Advice about a file that is wrong would only hide what is wrong.
    if sink.has_errors() {
        return;
    }
    for service in services {
        standbys(service, sink);
        checks(service, &config.node.bypass, sink);
    }
    advice::give(config, services, sink);
}

fn addresses(config: &Config, services: &[ReadService], sink: &Sink) {
    let mut owners: BTreeMap<_, (&str, &str)> = BTreeMap::new();
    let mut frontends = 0_usize;
    for (service, origin, at) in services.iter().flat_map(located_origins) {
        if origin.address == NOWHERE {
            continue;
        }
        let name = service.config.name.as_str();
        if let Some((other, other_origin)) = owners.insert(origin.address, (name, &origin.name)) {
            let message = format!("{} is already origin `{other_origin}` of service `{other}`", origin.address);
            sink.error(at.clone(), message, "an address belongs to one service, once; remove one of the two");
        }
        let allow = &config.node.redirect_allow;
        if !allow.is_empty() && !allow.iter().any(|prefix| prefix.contains(origin.address.ip())) {
            let message = format!("origin `{}` of service `{name}` lies outside `node.redirect_allow`", origin.name);
            sink.error(at.clone(), message, format!("correct {}, or add its prefix to redirect_allow", origin.address));
        }
        frontends += usize::from(service.config.guards(origin));
    }
    let named = services.iter().flat_map(|service| &service.config.origins).filter(|origin| origin.host.is_some());
    let origins = owners.len() + named.count();
    for service in services {
        frontends += service.config.vips.len();
        for (vip, at) in service.config.vips.iter().zip(&service.vips_at) {
            virtual_address(service, *vip, at, &mut owners, sink);
        }
    }
    let limits = config.node.limits;
    for (what, count, max) in [("origins", origins, limits.origins), ("frontends", frontends, limits.frontends)] {
        if count > usize::try_from(max).unwrap_or(usize::MAX) {
            let message = format!("the file has {count} {what}; `node.limits.{what}` allows {max}");
            sink.error(0..0, message, format!("raise node.limits.{what}, at most {IDS_MAX}"));
        }
    }
}

/// `owners`: the service of each address, and whose it is there.
fn virtual_address<'a>(
    service: &'a ReadService,
    vip: std::net::SocketAddr,
    at: &std::ops::Range<usize>,
    owners: &mut BTreeMap<std::net::SocketAddr, (&'a str, &'a str)>,
    sink: &Sink,
) {
    let name = service.config.name.as_str();
    match owners.insert(vip, (name, "")) {
        None => {}
        Some((other, "")) => {
            let message = format!("{vip} is already a virtual address of service `{other}`");
            sink.error(at.clone(), message, "an address belongs to one service, once; remove one of the two");
        }
        Some((other, origin)) => {
            let message = format!("virtual address {vip} is origin `{origin}` of service `{other}`");
            sink.error(at.clone(), message, "remove it here; `guard` steers an origin's own address");
        }
    }
    let may = |origin: &OriginConfig| origin.host.is_some() || origin.address.is_ipv4() == vip.is_ipv4();
    if !service.config.origins.iter().any(may) {
        let family = if vip.is_ipv4() { "IPv4" } else { "IPv6" };
        let message = format!("no origin of service `{name}` can serve {vip}: none has {family}");
        sink.error(at.clone(), message, format!("add an origin with an {family} address; families never mix"));
    }
}

type Located<'a> = (&'a ReadService, &'a OriginConfig, &'a std::ops::Range<usize>);

fn located_origins(service: &ReadService) -> impl Iterator<Item = Located<'_>> {
    service.config.origins.iter().zip(&service.origins_at).map(move |(origin, at)| (service, origin, at))
}

fn standbys(service: &ReadService, sink: &Sink) {
    let (name, origins) = (&service.config.name, &service.config.origins);
    let Some(best) = origins.iter().map(|origin| origin.tier).min() else { return };
    if let (Some(at), Mode::Observe) = (service.vips_at.first(), service.config.mode) {
        let message = format!("service `{name}` only observes: its virtual addresses lead nowhere");
        let fix = "remove `vips`, or let it enforce: mode = \"enforce\", here and in [node]";
        sink.warning(at.clone(), message, fix);
    }
    if origins.iter().all(|origin| origin.weight == 0) {
        let fix = "give at least one a weight above 0";
        sink.warning(service.at.clone(), format!("service `{name}`: no origin takes anything, all weights are 0"), fix);
    }
    if origins.iter().all(|origin| origin.tier == best) {
        let message = if origins.len() == 1 {
            format!("service `{name}` has no standby: when `{}` fails, nothing else can serve", origins[0].name)
        } else {
            format!("service `{name}` has no standby: its origins can only replace each other")
        };
        sink.warning(service.at.clone(), message, "add an origin with priority = 1");
    }
    if best > 0 && service.config.guard && service.config.vips.is_empty() {
        let fix = "give the preferred origins priority = 0";
        sink.warning(service.at.clone(), format!("service `{name}` steers nothing: no origin has priority 0"), fix);
    }
    for (_, origin, at) in located_origins(service) {
        if origin.tier > best && origin.capacity_cps.is_none() && origin.capacity_conns.is_none() {
            sink.warning(
                at.clone(),
                format!(
                    "standby `{name}/{}` has no capacity: a failover may send it more than it can take",
                    origin.name
                ),
                "set capacity_cps, the new connections per second that it can take",
            );
        }
        let others = || origins.iter().filter(|other| other.name != origin.name && other.weight > 0);
        let same_family =
            |other: &OriginConfig| other.host.is_some() || other.address.is_ipv4() == origin.address.is_ipv4();
        if origin.host.is_none()
            && service.config.guards(origin)
            && others().next().is_some()
            && !others().any(same_family)
        {
            let family = if origin.address.is_ipv4() { "IPv4" } else { "IPv6" };
            sink.warning(
                at.clone(),
                format!("nothing can stand in for `{name}/{}`: no other origin has {family}", origin.name),
                format!("add a standby with an {family} address; families never mix"),
            );
        }
    }
}

fn checks(service: &ReadService, bypass: &Bypass, sink: &Sink) {
    let name = &service.config.name;
    if service.check_added {
        sink.warning(
            service.at.clone(),
            format!("service `{name}` has no check; each origin gets `tcp` every 5s"),
            "add a [[service.check]] that asks what users ask",
        );
    }
    for (check, at) in service.config.checks.iter().zip(&service.checks_at) {
        let label = format!("check `{name}/{}`", check.name);
        unnamed(&check.kind, &label, at, sink);
        if let CheckKind::Script(script) = &check.kind
            && !bypass.uids.contains(&script.ids.0.as_raw())
        {
            let (user, uid) = (&script.user, script.ids.0);
            sink.warning(
                at.clone(),
                format!("{label} runs as `{user}`, whose connections are steered like anybody's"),
                format!("let it run as a user of its own, and add that one to node.bypass.uids ({user} is {uid})"),
            );
        }
        let CheckKind::Http(http) = &check.kind else { continue };
        for url in http.requests.iter().map(|request| &request.url) {
            if url.path() == "/" {
                let fix = "ask a page made for it, such as /healthz, which is cheaper and says more";
                sink.warning(at.clone(), format!("{label} asks for `/`, often the heaviest page of a site"), fix);
            }
            let named = http.tls.as_ref().is_some_and(|tls| tls.server_name.is_some());
            let by_address = matches!(url.host(), Some(url::Host::Ipv4(_) | url::Host::Ipv6(_)));
            if url.scheme() == "https" && by_address && !named {
                let fix = "write the name that the certificate is for; the address is the origin's anyway";
                sink.warning(
                    at.clone(),
                    format!("{label} has an address in its url, so no name is sent and checked"),
                    fix,
                );
            }
            ports(service, url, &label, at, sink);
        }
    }
}

/// A kind whose name on the wire no URL gives: the certificate must then be for the address, which is rarely meant.
fn unnamed(kind: &CheckKind, label: &str, at: &std::ops::Range<usize>, sink: &Sink) {
    let without_url = !matches!(kind, CheckKind::Http(_));
    let unnamed = kind.tls().is_some_and(|tls| without_url && tls.verify && tls.server_name.is_none());
    if unnamed {
        let message = format!("{label} names no server, so the certificate must be for the origin's address");
        sink.warning(at.clone(), message, "add tls = { server_name = \"…\" }, the name that the certificate is for");
    }
}

/// The port comes from the URL. One that no origin serves on is legal (a health port), but is usually forgotten.
fn ports(service: &ReadService, url: &url::Url, label: &str, at: &std::ops::Range<usize>, sink: &Sink) {
    let port = url.port_or_known_default();
    let serves = |origin: &OriginConfig| origin.host.as_ref().map_or(origin.address.port(), |host| host.port);
    let foreign = |origin: &&OriginConfig| Some(serves(origin)) != port;
    if let (None, Some(port), Some(origin)) = (url.port(), port, service.config.origins.iter().find(foreign)) {
        let serves = serves(origin);
        sink.warning(
            at.clone(),
            format!("{label} asks port {port}, and origin `{}` serves on port {serves}", origin.name),
            format!("write the port into the url if {port} is not meant, as in :{serves}"),
        );
    }
}
