//! Origins and clients behind devices without Ethernet headers, as GRE, IPIP and `WireGuard` are; here `tun`.
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use lab::{
    Daemon, End, Family, Fault, HTTP_PORT, Lab, LabConfig, LabOptions, Load, LoadOptions, Namespace, Record, Tunnel,
    now_ns, wait_until,
};

const ONE_LINK: LabOptions = LabOptions { two_links: false };
const SECOND: Duration = Duration::from_secs(1);
/// So many connections in a row show where traffic goes.
const RUN: usize = 50;

const NODE_A: [&str; 2] = ["10.90.0.1/24", "fd90::1/64"];
const FAR_A: [&str; 2] = ["10.90.0.10/24", "fd90::10/64"];
/// In the network of the first tunnel.
const FAR_B: [&str; 2] = ["10.90.0.11/24", "fd90::11/64"];
const NODE_B: [&str; 2] = ["10.91.0.1/24", "fd91::1/64"];
/// In a network of its own.
const ALONE_B: [&str; 2] = ["10.91.0.11/24", "fd91::11/64"];

/// Where a and b are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Both behind one device.
    OneTunnel,
    /// Each behind its own.
    TwoTunnels,
    /// a behind a tunnel, b on Ethernet.
    ToEthernet,
    /// a on Ethernet, b behind a tunnel.
    FromEthernet,
}

impl Layout {
    const ALL: [Self; 4] = [Self::OneTunnel, Self::TwoTunnels, Self::ToEthernet, Self::FromEthernet];

    fn interfaces(self) -> &'static [&'static str] {
        match self {
            Self::OneTunnel => &["tun-a"],
            Self::TwoTunnels => &["tun-a", "tun-b"],
            Self::ToEthernet => &["tun-a", "orig0"],
            Self::FromEthernet => &["orig0", "tun-b"],
        }
    }

    fn a(self, lab: &Lab, family: Family) -> SocketAddr {
        if self == Self::FromEthernet { lab.origin_a(family) } else { http(FAR_A, family) }
    }

    fn b(self, lab: &Lab, family: Family) -> SocketAddr {
        match self {
            Self::OneTunnel => http(FAR_B, family),
            Self::ToEthernet => lab.origin_b(family),
            Self::TwoTunnels | Self::FromEthernet => http(ALONE_B, family),
        }
    }

    /// Tunnels, and the far ends' ways back.
    fn build(self, lab: &Lab, offload: bool) -> Result<Vec<Tunnel>> {
        let (a, b) = (lab.a.namespace(), lab.b.namespace());
        let near = |device, addresses| End { ns: &lab.node, device, addresses };
        let far = |ns, addresses| End { ns, device: "tun0", addresses };
        let tunnels = match self {
            Self::OneTunnel => {
                vec![Tunnel::new(near("tun-a", &NODE_A), &[far(a, &FAR_A), far(b, &FAR_B)], offload)?]
            }
            Self::TwoTunnels => vec![
                Tunnel::new(near("tun-a", &NODE_A), &[far(a, &FAR_A)], offload)?,
                Tunnel::new(near("tun-b", &NODE_B), &[far(b, &ALONE_B)], offload)?,
            ],
            Self::ToEthernet => vec![Tunnel::new(near("tun-a", &NODE_A), &[far(a, &FAR_A)], offload)?],
            Self::FromEthernet => vec![Tunnel::new(near("tun-b", &NODE_B), &[far(b, &ALONE_B)], offload)?],
        };
        if self != Self::FromEthernet {
            back_through_the_tunnel(lab, a)?;
        }
        if self != Self::ToEthernet {
            back_through_the_tunnel(lab, b)?;
        }
        Ok(tunnels)
    }

    fn config(self, lab: &Lab) -> LabConfig {
        let mut config =
            LabConfig::of(lab).with_a_at(|family| self.a(lab, family)).with_b_at(|family| self.b(lab, family));
        config.interfaces = self.interfaces().iter().map(|&name| name.to_owned()).collect();
        config
    }
}

fn ip(addresses: [&str; 2], family: Family) -> IpAddr {
    let address = addresses[usize::from(family == Family::Ipv6)];
    address.split('/').next().and_then(|ip| ip.parse().ok()).expect("an address and its prefix length")
}

fn http(addresses: [&str; 2], family: Family) -> SocketAddr {
    SocketAddr::new(ip(addresses, family), HTTP_PORT)
}

/// Whatever the node sends from, it is answered through the tunnel.
fn back_through_the_tunnel(lab: &Lab, far: &Namespace) -> Result<()> {
    let mut batch = "route replace 0.0.0.0/0 dev tun0\nroute replace ::/0 dev tun0\n".to_owned();
    for family in Family::ALL {
        batch = batch + "route add " + &lab.node_towards_origins(family).to_string() + " dev tun0\n";
    }
    far.ip(&batch)
}

fn wait_all_on(load: &Load, origin: char) -> Result<()> {
    let since = now_ns();
    wait_until(&format!("{RUN} connections in a row on {origin}"), 30 * SECOND, || {
        let mut fresh = load.pick(|record| record.start_ns > since);
        fresh.sort_by_key(|record| record.start_ns);
        let good = |record: &Record| record.outcome.is_ok() && record.origin == Some(origin);
        fresh.len() >= RUN && fresh.iter().rev().take(RUN).all(good)
    })
}

fn load(lab: &Lab, target: SocketAddr) -> Result<Load> {
    Load::start(&lab.node, LoadOptions { per_second: 250, ..LoadOptions::figures(target) })
}

/// How long a server takes to die: what it accepts meanwhile ends with it, before the fault's stamp. Unit: ns.
const DYING_NS: u64 = 200_000_000;

/// Those that broke though no fault excuses it: what a had accepted when it began is in flight.
fn broken(records: &[Record], faults: &[u64]) -> Vec<Record> {
    let in_flight = |record: &Record| {
        let accepted_ns = record.connected_ns();
        let met = |&fault_ns: &u64| {
            accepted_ns.is_some_and(|at_ns| at_ns <= fault_ns) && record.end_ns() + DYING_NS >= fault_ns
        };
        faults.iter().any(met)
    };
    records.iter().copied().filter(|record| !record.outcome.is_ok() && !in_flight(record)).collect()
}

fn counter(daemon: &Daemon, family: Family, origin: &str, name: &str) -> Result<u64> {
    Ok(daemon.maps()?.counters(family.service(), origin).get(name).copied().unwrap_or_default())
}

/// Refused attempts are turned around, unanswered ones sent again elsewhere, and all of them arrive with right sums.
#[test]
fn origins_behind_tunnels_are_rescued_as_others_are() -> Result<()> {
    for layout in Layout::ALL {
        let mut lab = Lab::new(ONE_LINK)?;
        let tunnels = layout.build(&lab, false)?;
        let daemon = Daemon::start_in(&lab, &layout.config(&lab).without_socket_steering())?;
        let loads = [load(&lab, layout.a(&lab, Family::Ipv4))?, load(&lab, layout.a(&lab, Family::Ipv6))?];
        let all_on = |origin| loads.iter().try_for_each(|load| wait_all_on(load, origin));
        all_on('a')?;
        let mut faults = Vec::new();
        for (fault, rescue) in [(Fault::Refused, "turned_around"), (Fault::Blackhole, "resteered")] {
            faults.push(lab.a.fail(fault)?);
            all_on('b')?;
            wait_until(&format!("{layout:?}: {rescue}"), 10 * SECOND, || {
                Family::ALL
                    .into_iter()
                    .all(|family| counter(&daemon, family, "b", rescue).is_ok_and(|count| count >= 3))
            })?;
            lab.a.restore()?;
            all_on('a')?;
        }
        for (load, family) in loads.into_iter().zip(Family::ALL) {
            let records = load.finish()?;
            let broken = broken(&records, &faults);
            assert!(broken.is_empty(), "{layout:?} {family:?}: {} of {}: {broken:?}", broken.len(), records.len());
        }
        for tunnel in tunnels {
            assert!(tunnel.carried() > 500, "{layout:?}");
            assert_eq!(tunnel.bad_sums(), 0, "{layout:?}");
            tunnel.finish()?;
        }
    }
    Ok(())
}
