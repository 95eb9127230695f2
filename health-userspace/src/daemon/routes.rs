//! Ways to origins: by which interface, over which next hop, and whether what comes back is let in.

use std::{collections::BTreeMap, net::SocketAddr};

use health_core::{model::Mode, policy::ReturnPath};
use tracing::warn;

use crate::{
    config::{CgroupSetting, Config, ServiceConfig},
    datapath::{DatapathError, Hop, ReversePath, Routes, interface_name},
};

/// First hops. What has no route is left out: it is waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ways {
    /// Towards origins.
    pub(super) origins: BTreeMap<SocketAddr, Hop>,
    /// Towards virtual addresses.
    pub(super) vips: BTreeMap<SocketAddr, Hop>,
}

impl Ways {
    /// Asks for all of them.
    pub(super) async fn find(routes: &Routes, config: &Config) -> Self {
        let mut ways = Self::default();
        for service in &config.services {
            for origin in &service.origins {
                if let Ok(hop) = routes.hop(origin.address).await {
                    ways.origins.insert(origin.address, hop);
                }
            }
            for &vip in &service.vips {
                if let Ok(hop) = routes.hop(vip).await {
                    ways.vips.insert(vip, hop);
                }
            }
        }
        ways
    }

    /// Interfaces by which packets to origins leave.
    pub(super) fn interfaces(&self) -> BTreeMap<SocketAddr, u32> {
        self.origins.iter().map(|(&address, hop)| (address, hop.interface)).collect()
    }
}

/// Everything about routes that a start and a reload must refuse.
pub(super) fn check(config: &Config, ways: &Ways) -> Result<(), DatapathError> {
    pass_listed_interfaces(config, ways)?;
    pass_a_hook(config, ways)?;
    strict_reverse_paths(config, ways, ReversePath::of).into_iter().next().map_or(Ok(()), Err)
}

/// Whether an interface is origin-facing.
fn is_listed(config: &Config, interface: &str) -> bool {
    config.node.interfaces.iter().any(|pattern| pattern.matches(interface))
}

/// What is sent to a virtual address must pass a hook that steers: it is nobody's own address, so where nothing steers it,
/// nobody answers.
fn pass_a_hook(config: &Config, ways: &Ways) -> Result<(), DatapathError> {
    if config.node.cgroup != CgroupSetting::Off || !config.node.client_interfaces.is_empty() {
        return Ok(());
    }
    let mut all = config.services.iter().flat_map(|service| service.vips.iter().map(move |&vip| (service, vip)));
    let unseen = all.find(|(_, vip)| {
        let way = ways.vips.get(vip);
        !way.is_some_and(|hop| is_listed(config, &interface_name(hop.interface)))
    });
    unseen.map_or(Ok(()), |(service, address)| Err(DatapathError::VipUnseen { service: service.name.clone(), address }))
}

/// Every origin's packets must pass a listed interface, else they are never seen.
///
/// While a listed interface is still missing, a route may yet move to it: then that is said, and waited for.
fn pass_listed_interfaces(config: &Config, ways: &Ways) -> Result<(), DatapathError> {
    let missing = config
        .node
        .interfaces
        .iter()
        .any(|pattern| pattern.is_exact() && nix::net::if_::if_nametoindex(pattern.as_str()).is_err());
    for (&address, hop) in &ways.origins {
        let interface = interface_name(hop.interface);
        if is_listed(config, &interface) {
            continue;
        }
        let error = DatapathError::UnlistedRoute { address, interface };
        if !missing {
            return Err(error);
        }
        warn!("{error}; a listed interface is still missing, so this is waited for");
    }
    Ok(())
}

/// Origins whose answers the stack would drop. What moves from one origin to another is answered by the interface of the
/// second, from the address that was asked for, and strict reverse path filtering (RFC 3704 §2.2) accepts that address only
/// where its own route leaves. Linux filters IPv4 alone. Such a flow is worse off than a refused one: its client waits for
/// nothing.
pub(super) fn strict_reverse_paths(
    config: &Config,
    ways: &Ways,
    filter: impl Fn(&str) -> ReversePath,
) -> Vec<DatapathError> {
    let mut found = Vec::new();
    for service in config.services.iter().filter(|service| moves_packets(service)) {
        for serving in service.origins.iter().filter(|origin| origin.address.is_ipv4() && origin.weight > 0) {
            let Some(here) = ways.origins.get(&serving.address) else { continue };
            let interface = interface_name(here.interface);
            let Some((asked, _)) = asked(service, ways)
                .find(|(name, hop)| *name != serving.name && hop.is_some_and(|hop| hop.interface != here.interface))
            else {
                continue;
            };
            if filter(&interface) == ReversePath::Strict {
                let (service, serving) = (service.name.clone(), serving.name.clone());
                found.push(DatapathError::StrictReversePath { service, asked, serving, interface });
            }
        }
    }
    found
}

/// Whether packets of the service's flows are ever rewritten.
fn moves_packets(service: &ServiceConfig) -> bool {
    let is_steered = !service.vips.is_empty() || service.origins.iter().any(|origin| service.guards(origin));
    is_steered && service.mode == Mode::Enforce && service.policy.return_path != ReturnPath::None
}

/// IPv4 addresses that a flow of the service may have asked for: a virtual one, or the origin that it was sent to first.
fn asked<'a>(service: &'a ServiceConfig, ways: &'a Ways) -> impl Iterator<Item = (String, Option<&'a Hop>)> {
    let origins = service.origins.iter().filter(|origin| origin.address.is_ipv4());
    let origins = origins.map(|origin| (origin.name.clone(), ways.origins.get(&origin.address)));
    let vips = service.vips.iter().filter(|vip| vip.is_ipv4()).map(|vip| (vip.to_string(), ways.vips.get(vip)));
    origins.chain(vips)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(node: &str, service: &str, second: &str) -> Config {
        let text = format!(
            "[node]\ninterfaces = [\"eth1\"]\n{node}\n[[service]]\nname = \"shop\"\n{service}\n\
             [[service.origin]]\nname = \"a\"\naddress = \"10.0.1.10:443\"\n\
             [[service.origin]]\nname = \"b\"\naddress = \"{second}\"\npriority = 1\n"
        );
        crate::config::parse(&text, "test.toml").expect("valid").config
    }

    fn ways(config: &Config, interfaces: [u32; 2]) -> Ways {
        let hop = |at: SocketAddr, interface| (at, Hop { interface, next: at.ip() });
        let origins = config.services[0].origins.iter().map(|origin| origin.address);
        Ways {
            origins: origins.zip(interfaces).map(|(at, interface)| hop(at, interface)).collect(),
            vips: config.services[0].vips.iter().map(|&vip| hop(vip, 1_000_003)).collect(),
        }
    }

    fn found(config: &Config, interfaces: [u32; 2], filter: ReversePath) -> Vec<String> {
        strict_reverse_paths(config, &ways(config, interfaces), |_| filter).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_strict_filters_before_another_interface_are_in_the_way() {
        let (far, near) = ([1_000_001, 1_000_002], [1_000_001; 2]);
        let v4 = config("", "", "10.0.2.10:443");
        let errors = found(&v4, far, ReversePath::Strict);
        assert_eq!(errors.len(), 2, "a flow may move either way: {errors:?}");
        for part in ["shop", "`a`", "`b`", "interface 1000002", "net.ipv4.conf", "rp_filter", "= 2"] {
            assert!(errors[1].contains(part), "{part}: {errors:?}");
        }
        assert!(found(&v4, far, ReversePath::Loose).is_empty());
        assert!(found(&v4, far, ReversePath::Off).is_empty());
        assert!(found(&v4, near, ReversePath::Strict).is_empty(), "one interface");
        let v6 = config("", "", "[2001:db8::1]:443");
        assert!(found(&v6, far, ReversePath::Strict).is_empty(), "families never mix");
    }

    #[test]
    fn what_is_never_rewritten_needs_no_way_back() {
        let far = [1_000_001, 1_000_002];
        for service in ["guard = false", "mode = \"observe\"", "policy = { return_path = \"none\" }"] {
            let config = config("", service, "10.0.2.10:443");
            assert!(found(&config, far, ReversePath::Strict).is_empty(), "{service}");
        }
        let vip = config("", "guard = false\nvips = [\"198.51.100.10:443\"]", "10.0.1.11:443");
        let errors = found(&vip, [1_000_001; 2], ReversePath::Strict);
        assert!(errors.iter().all(|error| error.contains("`198.51.100.10:443`")) && errors.len() == 2, "{errors:?}");
    }

    #[test]
    fn a_virtual_address_needs_a_hook() {
        let vips = "vips = [\"198.51.100.10:443\"]";
        let unseen = |node: &str| {
            let config = config(node, vips, "10.0.1.11:443");
            pass_a_hook(&config, &ways(&config, [1_000_001; 2])).is_err()
        };
        assert!(unseen("cgroup = \"\""), "its route leaves by another interface");
        assert!(!unseen("cgroup = \"auto\""));
        assert!(!unseen("cgroup = \"\"\nclient_interfaces = [\"eth0\"]"));
    }
}
