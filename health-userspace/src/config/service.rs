//! `[[service]]` and `[[service.origin]]`.

use super::{
    check,
    model::{CapacityScope, HostName, NodeConfig, OriginConfig, ServiceConfig, SigningConfig},
    node::{MODES, NAME_CHARS_MAX},
    pkcs11, policy, preset,
    read::{At, Section},
};
use health_core::{
    model::{Balance, Family, Mode},
    policy::Policy,
};
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::Range,
};

/// Most origins of one service: as many as the kernel's guard can count.
const ORIGINS_MAX: usize = health_common::SERVICE_ORIGINS_MAX;
/// Greatest `priority`: the kernel keeps the family in the same byte.
const PRIORITY_MAX: u8 = health_common::map::Service::TIER;

/// The words of `balance`.
pub(super) const BALANCES: &[(&str, Balance)] = &[("maglev", Balance::Maglev), ("weighted", Balance::Weighted)];

/// A service and the places that later rules point at.
pub(super) struct ReadService {
    pub(super) config: ServiceConfig,
    /// Of its name, or its header.
    pub(super) at: Range<usize>,
    /// Of each origin's address, in order.
    pub(super) origins_at: Vec<Range<usize>>,
    /// Of each virtual address, in order.
    pub(super) vips_at: Vec<Range<usize>>,
    /// Of each check, in order.
    pub(super) checks_at: Vec<Range<usize>>,
    /// Whether the only check is the one that Sluice adds.
    pub(super) check_added: bool,
}

/// Reads all services.
pub(super) fn services(root: &Section<'_>, node: &NodeConfig, signing: &[SigningConfig]) -> Vec<ReadService> {
    preset::refuse(&root.table("defaults").table("policy"));
    let defaults = policy::policy(&root.table("defaults").table("policy"), &Policy::default());
    let sections = root.tables("service");
    if root.get("service").is_none() || (sections.is_empty() && !root.sink().has_errors()) {
        let fix = "add a [[service]] with a name and one [[service.origin]] for each address";
        root.error("service", "there is no service", fix);
    }
    let mut names = Names::new("service");
    sections.iter().map(|section| service(section, (node, &defaults, signing), &mut names)).collect()
}

fn service(
    section: &Section<'_>,
    (node, defaults, signing): (&NodeConfig, &Policy, &[SigningConfig]),
    names: &mut Names,
) -> ReadService {
    let name = name(section, "service", None, names);
    let mode = section.choice("mode", MODES);
    if node.mode == Mode::Observe && mode == Some(Mode::Enforce) {
        section.sink().warning(
            section.at_key("mode"),
            format!("service `{name}` only observes, because the node does"),
            "remove mode here, or let [node] have mode = \"enforce\"",
        );
    }
    let sections = section.tables("origin");
    if section.get("origin").is_none_or(|value| value.get_ref().as_array().is_some_and(|list| list.iter().len() == 0)) {
        section.sink().error(
            section.at(),
            format!("service `{name}` has no origin"),
            "add [[service.origin]] with name = \"…\" and address = \"IP:PORT\"",
        );
    }
    if let Some(beyond) = sections.get(ORIGINS_MAX) {
        let message = format!("service `{name}` has {} origins; {ORIGINS_MAX} is the most", sections.len());
        section.sink().error(beyond.at(), message, "split the service");
    }
    let mut origin_names = Names::new("origin");
    let origins: Vec<_> = sections.iter().map(|section| origin(section, &mut origin_names)).collect();
    let origins_at = sections.iter().map(|section| section.at_key("address")).collect();
    let checks = check::checks(section, signing);
    let vips = vips(section);
    let policy = section.table("policy");
    let policy = policy::policy(&policy, &preset::base(&policy, defaults));
    pkcs11::cross(&checks.list, &checks.at, &origins, policy.fall, section.sink());
    let config = ServiceConfig {
        mode: node.mode.max(mode.unwrap_or(node.mode)),
        vips: vips.iter().map(|vip| vip.value).collect(),
        balance: section.choice("balance", BALANCES).unwrap_or_default(),
        guard: section.flag("guard").unwrap_or(true),
        policy,
        origins,
        checks: checks.list,
        name,
    };
    let at = section.at_key("name");
    let vips_at = vips.into_iter().map(|vip| vip.at).collect();
    ReadService { config, at, origins_at, vips_at, checks_at: checks.at, check_added: checks.added }
}

fn origin(section: &Section<'_>, names: &mut Names) -> OriginConfig {
    let name = name(section, "origin", None, names);
    let scopes = [("node", CapacityScope::Node), ("cluster", CapacityScope::Cluster)];
    let (address, host) = address(section, &name);
    OriginConfig {
        address,
        host,
        tier: section.number("priority", 0, PRIORITY_MAX).unwrap_or(0),
        weight: section.number("weight", 0, u16::MAX).unwrap_or(100),
        capacity_cps: section.number("capacity_cps", 1, u32::MAX),
        capacity_conns: section.number("capacity_conns", 1, u32::MAX),
        capacity_scope: section.choice("capacity_scope", &scopes).unwrap_or(CapacityScope::Node),
        guard: section.flag("guard").unwrap_or(true),
        pkcs11: pkcs11::origin(&section.table("pkcs11"), &name),
        name,
    }
}

/// Those that are addresses.
fn vips(section: &Section<'_>) -> Vec<At<SocketAddr>> {
    let list = section.texts("vips", "198.51.100.10:443").unwrap_or_default();
    let mut vips = Vec::with_capacity(list.len());
    for text in list {
        match read_address(text.value) {
            Ok(value) => vips.push(At { value, at: text.at }),
            Err((message, fix)) => section.sink().error(text.at, format!("`vips`: {message}"), fix),
        }
    }
    vips
}

/// Stands in for an address that was refused. Never leaves this module, for the refusal is an error.
pub(super) const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

fn address(section: &Section<'_>, origin: &str) -> (SocketAddr, Option<HostName>) {
    let families = [("ipv4", Family::V4), ("ipv6", Family::V6)];
    let family = section.choice("family", &families);
    let Some(text) = section.text("address", "10.0.1.10:443") else {
        if section.get("address").is_none() {
            let fix = "add, for example, address = \"10.0.1.10:443\"";
            section.sink().error(section.at(), format!("origin `{origin}` has no address"), fix);
        }
        return (NOWHERE, None);
    };
    if let Some((name, port)) = host_name(text.value) {
        return (NOWHERE, Some(HostName { name: name.to_owned(), port, family }));
    }
    match read_address(text.value) {
        Ok(address) => {
            if family.is_some_and(|family| (family == Family::V4) != address.is_ipv4()) {
                let message = format!("origin `{origin}`: its address is not of the family that it names");
                section.error("family", message, "remove family: an address has its own");
            }
            (address, None)
        }
        Err((message, fix)) => {
            section.sink().error(text.at, format!("origin `{origin}`: {message}"), fix);
            (NOWHERE, None)
        }
    }
}

/// A host's name (RFC 1123 §2.1, and underscores, which DNS has too) and a port; not what looks like a mistyped address.
fn host_name(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let good = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    let label = |label: &str| {
        (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-') && label.chars().all(good)
    };
    let labels = host.strip_suffix('.').unwrap_or(host);
    let last_is_word = labels.rsplit('.').next().is_some_and(|last| last.contains(|c: char| c.is_ascii_alphabetic()));
    (host.len() <= 253 && last_is_word && labels.split('.').all(label)).then_some((host, port))
}

/// An origin's address, or what is wrong with it and the cure.
fn read_address(text: &str) -> Result<SocketAddr, (String, String)> {
    let shown = text.escape_debug();
    let address = match text.parse::<SocketAddr>() {
        Ok(address) => address,
        Err(_no_socket_address) => return Err(explain_address(text)),
    };
    let canonical = SocketAddr::new(address.ip().to_canonical(), address.port());
    if address.port() == 0 {
        return Err((format!("\"{shown}\" has port 0"), "write a port from 1 to 65535".to_owned()));
    }
    if matches!(address, SocketAddr::V6(v6) if v6.scope_id() != 0) {
        let message = format!("\"{shown}\" has a zone, which is not yet supported");
        return Err((message, "use an address that is valid on every link".to_owned()));
    }
    if canonical.ip() != address.ip() {
        return Err((format!("\"{shown}\" is an IPv4 address in IPv6 clothes"), format!("write \"{canonical}\"")));
    }
    let ip = address.ip();
    if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        let message = format!("\"{shown}\" is no address that a server can have");
        return Err((message, "write the address that the origin listens on".to_owned()));
    }
    Ok(address)
}

fn explain_address(text: &str) -> (String, String) {
    let shown = text.escape_debug();
    if let Ok(ip) = text.parse::<IpAddr>() {
        return (format!("\"{shown}\" has no port"), format!("write, for example, \"{}\"", SocketAddr::new(ip, 443)));
    }
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    if host.parse::<std::net::Ipv6Addr>().is_ok() && !port.is_empty() {
        return (format!("\"{shown}\" is ambiguous"), format!("put brackets around the address: \"[{host}]:{port}\""));
    }
    let host_is_ip = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    if host_is_ip {
        return (format!("\"{shown}\" has a bad port"), "write a port from 1 to 65535".to_owned());
    }
    let name = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    if host.contains(|c: char| c.is_ascii_alphabetic()) && host.chars().all(name) {
        let message = format!("\"{shown}\" is no name with a port");
        return (message, "write, for example, \"dr.cloud.example:443\"".to_owned());
    }
    (format!("\"{shown}\" is no address"), "write an IP address and a port, for example \"10.0.1.10:443\"".to_owned())
}

/// The names that were given so far, to find doubles.
pub(super) struct Names {
    what: &'static str,
    given: BTreeSet<String>,
}

impl Names {
    pub(super) const fn new(what: &'static str) -> Self {
        Self { what, given: BTreeSet::new() }
    }
}

/// Reads `name`, which must be of the house's alphabet and given once. An absent one is `default`, or an error.
pub(super) fn name(section: &Section<'_>, what: &str, default: Option<&str>, names: &mut Names) -> String {
    let text = section.text("name", "shop").or_else(|| {
        let default = default.filter(|_| section.get("name").is_none())?;
        Some(At { value: default, at: section.at() })
    });
    let Some(text) = text else {
        if section.get("name").is_none() {
            section.sink().error(section.at(), format!("this {what} has no name"), "add name = \"…\"");
        }
        return "?".to_owned();
    };
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    if text.value.is_empty() || text.value.len() > NAME_CHARS_MAX || !text.value.chars().all(good) {
        let shown: String = text.value.chars().take(NAME_CHARS_MAX + 1).collect();
        let message = format!("\"{}\" cannot be the name of a {what}", shown.escape_debug());
        let fix = format!("use a to z, 0 to 9, `.`, `_` and `-`, at most {NAME_CHARS_MAX} of them");
        section.sink().error(text.at, message, fix);
        return shown;
    }
    if !names.given.insert(text.value.to_owned()) {
        let message = format!("there are two {}s named `{}`", names.what, text.value);
        section.sink().error(text.at, message, "give one of them another name");
    }
    text.value.to_owned()
}
