//! Answers that take another way: direct server return, and tunnels of which only one direction passes here (P03 a).
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::{
    CLIENTS, Daemon, End, Family, HTTP_PORT, Lab, LabConfig, LabOptions, Load, LoadOptions, Namespace, Record, Tunnel,
    wait_until,
};

const ONE_LINK: LabOptions = LabOptions { two_links: false };
const SECOND: Duration = Duration::from_secs(1);
/// Two seconds of them, twice the SYN timeout that nothing has shortened.
const CONNECTIONS: usize = 200;
/// The address that clients ask for, on the origin's loopback device.
const VIPS: [&str; 2] = ["198.51.100.10", "2001:db8:ff::10"];
const RETURN_PATHS: [&str; 2] = ["auto", "none"];

fn of(both: [&str; 2], family: Family) -> &str {
    both[usize::from(family == Family::Ipv6)]
}

fn http(both: [&str; 2], family: Family) -> Result<SocketAddr> {
    Ok(SocketAddr::new(of(both, family).parse()?, HTTP_PORT))
}

/// The daemon, with a way back of this kind for all services.
fn start(lab: &Lab, config: &LabConfig, return_path: &str) -> Result<Daemon> {
    let mut daemon = Daemon::prepare(lab, config)?;
    let text = daemon.config_text(config);
    let policy = "[defaults.policy]\n";
    daemon.write_config(&text.replace(policy, &format!("{policy}return_path = \"{return_path}\"\n")))?;
    daemon.start()?;
    for service in ["shop4", "shop6"] {
        for origin in ["a", "b"] {
            wait_until(&format!("{service}/{origin} is healthy"), 20 * SECOND, || {
                daemon.status().is_ok_and(|status| status.state(service, origin) == Some("healthy"))
            })?;
        }
    }
    Ok(daemon)
}

/// All connections are served by a.
fn all_well(from: &Namespace, target: SocketAddr, sources: Option<[IpAddr; CLIENTS]>) -> Result<()> {
    let load = Load::start(from, LoadOptions { per_second: 100, sources, ..LoadOptions::figures(target) })?;
    wait_until("enough connections", 20 * SECOND, || load.look(<[Record]>::len) >= CONNECTIONS)?;
    let records = load.finish()?;
    let bad = records.iter().find(|record| !record.outcome.is_ok() || record.origin != Some('a'));
    assert_eq!(bad, None, "{target}: one of {}", records.len());
    Ok(())
}

/// Attempts were seen, and nothing else: no answer, no failure, nothing moved.
fn saw_only_syns(daemon: &Daemon, family: Family, what: &str) -> Result<()> {
    let maps = daemon.maps()?;
    let service = family.service();
    let value = |origin, name: &str| maps.counters(service, origin).get(name).copied().unwrap_or_default();
    let syns = u64::try_from(CONNECTIONS)?;
    assert!(value("a", "syn") >= syns && value("a", "synack") == 0, "{what}: {:?}", maps.counters(service, "a"));
    for origin in ["a", "b"] {
        for name in [
            "syn_timeout",
            "syn_retrans",
            "refused",
            "unreachable",
            "reset_early",
            "no_response",
            "trips",
            "withheld_trips",
            "trials",
            "steered",
            "turned_around",
            "resteered",
        ] {
            assert_eq!(value(origin, name), 0, "{what}: {name} of {origin}");
        }
    }
    let moved = maps.maps.iter().filter(|map| map["name"].as_str().is_some_and(|name| name.starts_with("moved_")));
    assert!(moved.clone().count() == 4 && moved.clone().all(|map| map["used"] == 0), "{what}: {:?}", maps.maps);
    let told = daemon.events()?.into_iter().find(|event| ["trip", "trial", "rescue"].contains(&event.what.as_str()));
    assert_eq!(told, None, "{what}");
    Ok(())
}

/// The origin has clients' address of the service on its loopback device, and a link of its own to them.
fn direct_server_return(lab: &Lab) -> Result<()> {
    let (a, client) = (lab.a.namespace(), &lab.client);
    let to_a = format!("netns {}", a.path().display());
    client.ip(&format!("link add dsr0 type veth peer name dsr0 {to_a}\n"))?;
    client.ip("address add 10.93.0.2/24 dev dsr0\naddress add fd93::2/64 dev dsr0 nodad\nlink set dev dsr0 up\n")?;
    a.ip("address add 10.93.0.1/24 dev dsr0\naddress add fd93::1/64 dev dsr0 nodad\nlink set dev dsr0 up\n")?;
    for family in Family::ALL {
        let (vip, at) = (of(VIPS, family), lab.origin_a(family).ip());
        a.ip(&format!("address add {vip} dev lo\n"))?;
        lab.node.ip(&format!("route add {vip} via {at} dev orig0\n"))?;
        for source in lab.clients(family) {
            let gateway = of(["10.93.0.2", "fd93::2"], family);
            a.ip(&format!("route add {source} via {gateway} dev dsr0\n"))?;
        }
    }
    Ok(())
}

#[test]
fn direct_server_return_is_no_silence_and_no_flow_is_moved() -> Result<()> {
    for steered in [false, true] {
        for return_path in RETURN_PATHS {
            let lab = Lab::new(ONE_LINK)?;
            lab.forward()?;
            direct_server_return(&lab)?;
            let vip = |family| http(VIPS, family).expect("an address");
            let mut config = LabConfig::of(&lab).with_a_at(vip);
            if steered {
                config = config.with_forwarded(&lab);
            }
            let daemon = start(&lab, &config, return_path)?;
            for family in Family::ALL {
                let what = format!("{return_path}, steered: {steered}, {family:?}");
                all_well(&lab.client, vip(family), Some(lab.clients(family)))?;
                saw_only_syns(&daemon, family, &what)?;
                // Whatever takes the origin out: what would be answered by a stranger stays where it is.
                daemon.cli(&["origin", "fail", &format!("{}/a", family.service())])?.success()?;
                all_well(&lab.client, vip(family), Some(lab.clients(family)))?;
                saw_only_syns(&daemon, family, &what)?;
            }
        }
    }
    Ok(())
}

const NEAR: [&str; 2] = ["10.90.0.1/24", "fd90::1/64"];
const A: [&str; 2] = ["10.90.0.10/24", "fd90::10/64"];
const B: [&str; 2] = ["10.90.0.11/24", "fd90::11/64"];

/// What goes out by a tunnel comes back by an interface that is not listed.
#[test]
fn a_tunnel_of_which_one_direction_passes_says_nothing() -> Result<()> {
    for return_path in RETURN_PATHS {
        let lab = Lab::new(ONE_LINK)?;
        let far = |ns, addresses| End { ns, device: "tun0", addresses };
        let (a, b) = (lab.a.namespace(), lab.b.namespace());
        let near = End { ns: &lab.node, device: "tun-a", addresses: &NEAR };
        let tunnel = Tunnel::new(near, &[far(a, &A), far(b, &B)], false)?;
        for ns in [a, b] {
            for family in Family::ALL {
                let (node, gateway) = (bare(NEAR, family), lab.node_towards_origins(family));
                ns.ip(&format!("route add {node} via {gateway} dev eth0\n"))?;
            }
        }
        let at = |ends, family| SocketAddr::new(bare(ends, family), HTTP_PORT);
        let mut config = LabConfig::of(&lab).with_a_at(|family| at(A, family)).with_b_at(|family| at(B, family));
        config.interfaces = vec!["tun-a".to_owned()];
        let daemon = start(&lab, &config.without_socket_steering(), return_path)?;
        for family in Family::ALL {
            let what = format!("{return_path}, {family:?}");
            all_well(&lab.node, at(A, family), None)?;
            saw_only_syns(&daemon, family, &what)?;
            daemon.cli(&["origin", "fail", &format!("{}/a", family.service())])?.success()?;
            all_well(&lab.node, at(A, family), None)?;
            saw_only_syns(&daemon, family, &what)?;
        }
        assert_eq!(tunnel.bad_sums(), 0);
        tunnel.finish().context("the tunnel broke")?;
    }
    Ok(())
}

fn bare(both: [&str; 2], family: Family) -> IpAddr {
    let address = of(both, family);
    address.split('/').next().and_then(|ip| ip.parse().ok()).expect("an address and its prefix length")
}
