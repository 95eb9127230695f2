//! Origins and clients behind devices without Ethernet headers, as GRE, IPIP and `WireGuard` are; here `tun`.
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own).

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use anyhow::Result;
use lab::{
    CLIENTS, Daemon, End, Family, Fault, HTTP_PORT, Lab, LabConfig, LabOptions, Load, LoadOptions, Namespace, Outcome,
    Record, Tunnel, now_ns, wait_until,
};
use nix::sys::socket::{Shutdown, shutdown};

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

/// Bytes that go each way.
const BULK: usize = 8 << 20;
/// Nobody listens there at a.
const BULK_PORT: u16 = 7;

/// Gives every connection back what it sends, until the listener is shut down. Checks come, too.
fn give_back(listener: &TcpListener) {
    std::thread::scope(|scope| {
        while let Ok((mut stream, _)) = listener.accept() {
            scope.spawn(move || {
                let mut bytes = vec![0; BULK];
                // Whoever sends less has gone, and misses nothing.
                let whole = stream.set_read_timeout(Some(20 * SECOND)).and_then(|()| stream.read_exact(&mut bytes));
                whole.and_then(|()| stream.write_all(&bytes)).ok()
            });
        }
    });
}

/// Sends bytes, and takes as many.
fn exchange(node: &Namespace, to: SocketAddr, sent: &[u8]) -> Result<Vec<u8>> {
    let mut stream = node.enter(|| TcpStream::connect_timeout(&to, SECOND))??;
    stream.set_read_timeout(Some(20 * SECOND))?;
    stream.write_all(sent)?;
    let mut got = vec![0; sent.len()];
    stream.read_exact(&mut got)?;
    Ok(got)
}

/// A stream of large segments whose sums are still to be made, as devices with offloads get them.
#[test]
fn large_segments_of_a_moved_flow_arrive_whole() -> Result<()> {
    for layout in [Layout::TwoTunnels, Layout::ToEthernet, Layout::FromEthernet] {
        let lab = Lab::new(ONE_LINK)?;
        let tunnels = layout.build(&lab, true)?;
        let mut daemon = Daemon::prepare(&lab, &layout.config(&lab).without_socket_steering())?;
        let mut text = fs::read_to_string(daemon.config())?;
        let at =
            |family| [layout.a(&lab, family), layout.b(&lab, family)].map(|at| SocketAddr::new(at.ip(), BULK_PORT));
        for family in Family::ALL {
            let [a, b] = at(family);
            let origins = format!(
                "[[service.origin]]\nname = \"a\"\naddress = \"{a}\"\n\
                 [[service.origin]]\nname = \"b\"\naddress = \"{b}\"\npriority = 1\n"
            );
            text = format!(
                "{text}\n[[service]]\nname = \"bulk-{}\"\npolicy = {{ passive = false }}\n{origins}",
                family.name()
            );
        }
        daemon.write_config(&text)?;
        daemon.start()?;
        for family in Family::ALL {
            let [a, b] = at(family);
            let listener = lab.b.namespace().enter(|| TcpListener::bind(b))??;
            let sent: Vec<u8> = (0_u32..).flat_map(u32::to_be_bytes).take(BULK).collect();
            let got = std::thread::scope(|scope| {
                scope.spawn(|| give_back(&listener));
                let got = exchange(&lab.node, a, &sent);
                shutdown(listener.as_raw_fd(), Shutdown::Both)?;
                got
            })?;
            assert!(got == sent, "{layout:?} {family:?}: what came back is something else");
        }
        // On its way to Ethernet the stream leaves the tunnel's device without having been in the tunnel.
        let segmented: u64 = tunnels.iter().map(Tunnel::segmented).sum();
        assert!(segmented > 50 || layout == Layout::ToEthernet, "{layout:?}: {segmented} were to be cut");
        for tunnel in tunnels {
            assert_eq!(tunnel.bad_sums(), 0, "{layout:?}");
            tunnel.finish()?;
        }
    }
    Ok(())
}

/// The node's end of the clients' tunnel, and the clients'.
const NODE_C: [&str; 2] = ["10.92.0.1/24", "fd92::1/64"];

/// Clients and origins behind tunnels: steered where the clients' packets arrive, before routing.
#[test]
fn clients_behind_a_tunnel_are_steered_where_they_arrive() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    lab.forward()?;
    let addresses: Vec<String> =
        (2..).take(CLIENTS).flat_map(|host| [format!("10.92.0.{host}/24"), format!("fd92::{host}/64")]).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let near = End { ns: &lab.node, device: "tun-c", addresses: &NODE_C };
    let far = End { ns: &lab.client, device: "tun0", addresses: &addresses };
    let clients = Tunnel::new(near, &[far], false)?;
    lab.client.ip("route replace 0.0.0.0/0 dev tun0\nroute replace ::/0 dev tun0\n")?;
    let layout = Layout::TwoTunnels;
    let tunnels = layout.build(&lab, false)?;
    let mut config = layout.config(&lab);
    config.client_interfaces.push("tun-c".to_owned());
    let daemon = Daemon::start_in(&lab, &config)?;
    assert_eq!(daemon.events()?.iter().find(|event| event.what == "hook_blind"), None);
    let sources = |family| {
        let mut hosts = 2_u8..;
        [(); CLIENTS].map(|()| match (family, hosts.next().unwrap_or_default()) {
            (Family::Ipv4, host) => IpAddr::from([10, 92, 0, host]),
            (Family::Ipv6, host) => IpAddr::from([0xfd92, 0, 0, 0, 0, 0, 0, u16::from(host)]),
        })
    };
    let start = |family| {
        let target = layout.a(&lab, family);
        let options = LoadOptions { per_second: 250, sources: Some(sources(family)), ..LoadOptions::figures(target) };
        Load::start(&lab.client, options)
    };
    let loads = [start(Family::Ipv4)?, start(Family::Ipv6)?];
    let all_on = |origin| loads.iter().try_for_each(|load| wait_all_on(load, origin));
    all_on('a')?;
    let fault_ns = lab.a.fail(Fault::Refused)?;
    all_on('b')?;
    for load in loads {
        let records = load.finish()?;
        let broken = broken(&records, &[fault_ns]);
        assert!(broken.is_empty(), "{} of {}: {broken:?}", broken.len(), records.len());
    }
    for tunnel in tunnels.into_iter().chain([clients]) {
        assert!(tunnel.carried() > 500);
        assert_eq!(tunnel.bad_sums(), 0);
        tunnel.finish()?;
    }
    Ok(())
}

/// Whoever there is no room for is answered at once: a client back through its tunnel, a socket of the node by its own device.
#[test]
fn what_no_standby_has_room_for_is_refused_at_once() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    let layout = Layout::OneTunnel;
    let tunnels = layout.build(&lab, false)?;
    let config = layout.config(&lab).without_socket_steering();
    let mut daemon = Daemon::prepare(&lab, &config)?;
    daemon.write_config(&daemon.config_text(&config).replace("capacity_cps = 5000", "capacity_cps = 1"))?;
    daemon.start()?;
    lab.a.fail(Fault::Refused)?;
    for family in Family::ALL {
        let load = load(&lab, layout.a(&lab, family))?;
        let full = || {
            let metrics = daemon.metrics().ok();
            metrics.and_then(|metrics| metrics.value("sluice_overflow_total", &[("service", family.service())]))
        };
        wait_until("b is full", 20 * SECOND, || full().is_some_and(|times| times > 300.0))?;
        let good = |record: &Record| {
            (record.outcome.is_ok() || record.outcome == Outcome::Refused) && record.total_ns < 500_000_000
        };
        assert_eq!(load.finish()?.into_iter().find(|record| !good(record)), None, "{family:?}");
    }
    assert!(tunnels.iter().all(|tunnel| tunnel.bad_sums() == 0));
    Ok(())
}

fn attached(daemon: &Daemon, interface: &str) -> Option<f64> {
    daemon.metrics().ok()?.value("sluice_attached", &[("interface", interface)])
}

/// Both tunnels end and are made again under the same names, and with other numbers.
#[test]
fn a_tunnel_that_comes_back_is_attached_again_and_led_to() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    let layout = Layout::TwoTunnels;
    let tunnels = layout.build(&lab, false)?;
    let daemon = Daemon::start_in(&lab, &layout.config(&lab).without_socket_steering())?;
    assert_eq!(daemon.events()?.iter().find(|event| event.what == "hook_blind"), None, "{}", daemon.log());
    for device in layout.interfaces() {
        assert!(attached(&daemon, device).is_some_and(|hooks| hooks > 1.5), "{device}: both directions");
    }
    drop(tunnels);
    for device in layout.interfaces() {
        wait_until("it is gone", 20 * SECOND, || attached(&daemon, device).is_some_and(|hooks| hooks < 0.5))?;
    }
    // So that no number is given again.
    lab.node.ip("link add other0 type veth peer name other1\n")?;
    let tunnels = layout.build(&lab, false)?;
    for device in layout.interfaces() {
        wait_until("it is attached again", 20 * SECOND, || attached(&daemon, device).is_some_and(|hooks| hooks > 1.5))?;
    }
    let loads = [load(&lab, layout.a(&lab, Family::Ipv4))?, load(&lab, layout.a(&lab, Family::Ipv6))?];
    for load in &loads {
        wait_all_on(load, 'a')?;
    }
    let before = counter(&daemon, Family::Ipv4, "a", "opened")?;
    wait_until("flows are counted there", 10 * SECOND, || {
        counter(&daemon, Family::Ipv4, "a", "opened").is_ok_and(|opened| opened > before + 50)
    })?;
    let fault_ns = lab.a.fail(Fault::Refused)?;
    for load in &loads {
        wait_all_on(load, 'b')?;
    }
    for load in loads {
        let broken = broken(&load.finish()?, &[fault_ns]);
        assert!(broken.is_empty(), "{broken:?}");
    }
    assert!(tunnels.iter().all(|tunnel| tunnel.bad_sums() == 0));
    Ok(())
}

#[test]
fn xdp_on_a_tunnel_is_refused_by_name() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let layout = Layout::ToEthernet;
    let _tunnels = layout.build(&lab, false)?;
    let config = layout.config(&lab);
    let mut daemon = Daemon::prepare(&lab, &config)?;
    let text = daemon.config_text(&config).replace("\ncgroup =", "\nxdp = [\"tun-a\"]\ncgroup =");
    daemon.write_config(&text)?;
    daemon.launch()?;
    let mut status = None;
    wait_until("it ends", 20 * SECOND, || {
        status = daemon.ended();
        status.is_some()
    })?;
    let log = daemon.log();
    assert!(status.is_some_and(|status| !status.success()), "{log}");
    assert!(log.contains("`tun-a`") && log.contains("node.xdp"), "{log}");
    Ok(())
}
