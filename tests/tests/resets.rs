//! `on_fault` has two tools to end a connection: `SOCK_DESTROY` for sockets of the node, a RST to both sides for forwarded
//! flows. Both against real sockets; the last test with the programs attached and the kernel's own numbers.
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own).

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::maps::{HashMap as BpfHash, Map, MapData};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use health_common::flow::Flow;
use health_common::map::FLOWS_V4;
use health_common::net::{Be16, Be32, FlowKey4};
use lab::{Daemon, Family, Lab, LabConfig, LabOptions, Namespace, require_root, run, run_with_input, wait_until};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, recv, setsockopt, socket,
    sockopt,
};
use sluice::act::reset::{DestroyOrder, Destroyed, FlowReset, Numbers, Resets, Tuple, Which, destroy};

const LIMIT: Duration = Duration::from_secs(5);
const CHECK_MARK: u32 = 0x5311;
const PORT: u16 = 80;

/// client ── node ──┬── a
///                  └── b
struct Net {
    client: Namespace,
    node: Namespace,
    a: Namespace,
    b: Namespace,
}

/// Host `host` on the segment `segment`.
fn ip(family: Family, segment: u8, host: u8) -> IpAddr {
    match family {
        Family::Ipv4 => IpAddr::from([10, segment, 0, host]),
        Family::Ipv6 => IpAddr::from([0xfd00 + u16::from(segment), 0, 0, 0, 0, 0, 0, u16::from(host)]),
    }
}

/// Segments, by whom the node meets there.
const CLIENT: u8 = 71;
const A: u8 = 72;
const B: u8 = 73;

impl Net {
    fn new() -> Result<Self> {
        require_root()?;
        let make = |name: &str| Namespace::new(&format!("resets-{name}"));
        let net = Self { client: make("client")?, node: make("node")?, a: make("a")?, b: make("b")? };
        for (segment, peer) in [(CLIENT, &net.client), (A, &net.a), (B, &net.b)] {
            let to = format!("to{segment}");
            net.node.ip(&format!("link add {to} type veth peer name eth0 netns {}\n", peer.path().display()))?;
            for (namespace, link, host) in [(&net.node, to.as_str(), 1), (peer, "eth0", 2)] {
                let (v4, v6) = (ip(Family::Ipv4, segment, host), ip(Family::Ipv6, segment, host));
                namespace.ip(&format!(
                    "address add {v4}/24 dev {link}\naddress add {v6}/64 dev {link} nodad\nlink set dev {link} up\n"
                ))?;
            }
        }
        for (segment, peer) in [(CLIENT, &net.client), (A, &net.a), (B, &net.b)] {
            for family in Family::ALL {
                let gateway = ip(family, segment, 1);
                peer.ip(&format!("route add default via {gateway}\n"))?;
            }
        }
        net.node.sysctl("ipv4/ip_forward", "1")?;
        net.node.sysctl("ipv6/conf/all/forwarding", "1")?;
        Ok(net)
    }

    /// A server's socket on `segment`.
    fn listen(&self, family: Family, segment: u8) -> Result<TcpListener> {
        let server = if segment == A { &self.a } else { &self.b };
        Ok(server.enter(|| TcpListener::bind((ip(family, segment, 2), PORT)))??)
    }
}

/// Both ends of a connection.
struct Pair {
    near: TcpStream,
    far: TcpStream,
}

impl Pair {
    /// From `from` to whoever answers at `to`, which is `listener`.
    fn open(from: &Namespace, to: SocketAddr, listener: &TcpListener) -> Result<Self> {
        Self::with(from, listener, || TcpStream::connect_timeout(&to, LIMIT))
    }

    fn with(
        from: &Namespace,
        listener: &TcpListener,
        begin: impl FnOnce() -> io::Result<TcpStream> + Send,
    ) -> Result<Self> {
        let near = from.enter(begin)??;
        let (far, _) = listener.accept()?;
        for end in [&near, &far] {
            end.set_read_timeout(Some(LIMIT))?;
        }
        Ok(Self { near, far })
    }

    /// A request and its answer.
    fn talk(&self) -> Result<()> {
        for (mut from, mut to) in [(&self.near, &self.far), (&self.far, &self.near)] {
            from.write_all(b"hello")?;
            let mut heard = [0; 5];
            to.read_exact(&mut heard)?;
            ensure!(&heard == b"hello");
        }
        Ok(())
    }
}

/// How a read ends: at once, or not within the limit.
fn end_of(stream: &mut TcpStream) -> Option<ErrorKind> {
    stream.read(&mut [0; 1]).err().map(|error| error.kind())
}

fn order(peer: SocketAddr, which: Which) -> DestroyOrder {
    DestroyOrder { peer, which, check_mark: CHECK_MARK, limit: usize::MAX }
}

impl Net {
    fn destroy(&self, order: &DestroyOrder) -> Result<Destroyed> {
        Ok(self.node.enter(|| destroy(order, |_| false))??)
    }
}

/// Connects like a check does: marked before the first packet.
fn marked(to: SocketAddr) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, sockopt::Mark, &CHECK_MARK)?;
    connect(fd.as_raw_fd(), &SockaddrStorage::from(to))?;
    Ok(fd.into())
}

#[test]
fn connections_to_one_origin_end_and_those_to_another_live() -> Result<()> {
    let net = Net::new()?;
    for family in Family::ALL {
        let (at_a, at_b) = (net.listen(family, A)?, net.listen(family, B)?);
        let (a, b) = (at_a.local_addr()?, at_b.local_addr()?);
        let mut to_a = Pair::open(&net.node, a, &at_a)?;
        let to_b = Pair::open(&net.node, b, &at_b)?;
        let mut check = Pair::with(&net.node, &at_a, || marked(a))?;
        // Nobody else's port is meant by the address alone, nor another's address by the port.
        let nobody = net.destroy(&order(SocketAddr::new(a.ip(), PORT + 1), Which::All))?;
        assert_eq!(nobody, Destroyed::default());

        let outcome = net.destroy(&order(a, Which::All))?;

        assert_eq!(outcome, Destroyed { destroyed: 1, checks: 1, ..Destroyed::default() }, "{family:?}");
        assert_eq!(end_of(&mut to_a.near), Some(ErrorKind::ConnectionAborted), "{family:?}");
        assert_eq!(end_of(&mut to_a.far), Some(ErrorKind::ConnectionReset), "{family:?}");
        to_b.talk()?;
        check.talk()?;
        let spares_nobody = net.destroy(&DestroyOrder { check_mark: 0, ..order(a, Which::All) })?;
        assert_eq!(spares_nobody, Destroyed { destroyed: 1, ..Destroyed::default() });
        assert_eq!(end_of(&mut check.near), Some(ErrorKind::ConnectionAborted));
    }
    Ok(())
}

#[test]
fn an_ipv6_socket_to_a_mapped_address_is_a_connection_to_the_ipv4_origin() -> Result<()> {
    let net = Net::new()?;
    let at_a = net.listen(Family::Ipv4, A)?;
    let a = at_a.local_addr()?;
    let IpAddr::V4(v4) = a.ip() else { anyhow::bail!("{a} is no IPv4 address") };
    let mapped = SocketAddr::new(v4.to_ipv6_mapped().into(), PORT);
    for asked in [a, mapped] {
        let mut plain = Pair::open(&net.node, a, &at_a)?;
        let mut via_v6 = Pair::open(&net.node, mapped, &at_a)?;
        let outcome = net.destroy(&order(asked, Which::All))?;
        assert_eq!(outcome, Destroyed { destroyed: 2, ..Destroyed::default() }, "{asked}");
        for end in [&mut plain.near, &mut via_v6.near] {
            assert_eq!(end_of(end), Some(ErrorKind::ConnectionAborted), "{asked}");
        }
    }
    Ok(())
}

#[test]
fn a_limit_leaves_the_rest_and_says_how_many() -> Result<()> {
    let net = Net::new()?;
    let at_a = net.listen(Family::Ipv4, A)?;
    let a = at_a.local_addr()?;
    let pairs: Result<Vec<Pair>> = (0..5).map(|_| Pair::open(&net.node, a, &at_a)).collect();
    let pairs = pairs?;
    let kept = pairs[0].near.local_addr()?;
    let limited = DestroyOrder { limit: 3, ..order(a, Which::All) };
    let mut rounds = Vec::new();
    for _ in 0..2 {
        rounds.push(net.node.enter(|| destroy(&limited, |tuple| tuple.node == kept))??);
    }
    assert_eq!(rounds[0], Destroyed { destroyed: 3, left: 1, kept: 1, ..Destroyed::default() });
    assert_eq!(rounds[1], Destroyed { destroyed: 1, kept: 1, ..Destroyed::default() });
    Ok(())
}

/// How long ago `socket` received payload. Unit: ms.
fn received_ms_ago(socket: &TcpStream) -> Result<u32> {
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = u32::try_from(size_of_val(&info))?;
    let at = (&raw mut info).cast();
    // SAFETY: the kernel writes at most `length` bytes to `info`, and both outlive the call.
    let got = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, at, &raw mut length) };
    ensure!(got == 0, io::Error::last_os_error());
    Ok(info.tcpi_last_data_recv)
}

/// Waits until `socket` has received nothing for a while, so that what it then sends is later by the kernel's tick too.
fn wait_quiet(socket: &TcpStream) -> Result<()> {
    wait_until("a quiet socket", LIMIT, || received_ms_ago(socket).is_ok_and(|ms| ms >= 50))
}

#[test]
fn idle_connections_end_while_waiting_ones_live_until_they_stall() -> Result<()> {
    let net = Net::new()?;
    let at_a = net.listen(Family::Ipv4, A)?;
    let a = at_a.local_addr()?;
    let open = || -> Result<Pair> {
        let pair = Pair::open(&net.node, a, &at_a)?;
        pair.talk()?;
        Ok(pair)
    };
    let (mut idle, mut asked, mut unacknowledged) = (open()?, open()?, open()?);
    for pair in [&idle, &asked, &unacknowledged] {
        wait_quiet(&pair.near)?;
    }
    asked.near.write_all(b"?")?;
    asked.far.read_exact(&mut [0; 1])?;
    // Nothing leaves any more: what is sent now stays in flight.
    net.node.ip(&format!("link set dev to{A} down\n"))?;
    unacknowledged.near.write_all(b"?")?;

    let hour = Duration::from_hours(1);
    let too_young = net.destroy(&order(a, Which::Idle { quiet: hour }))?;
    assert_eq!(too_young, Destroyed { other_kind: 3, ..Destroyed::default() });
    let now = net.destroy(&order(a, Which::Idle { quiet: Duration::ZERO }))?;
    assert_eq!(now, Destroyed { destroyed: 1, other_kind: 2, ..Destroyed::default() });
    assert_eq!(end_of(&mut idle.near), Some(ErrorKind::ConnectionAborted));

    let not_yet = net.destroy(&order(a, Which::Stalled { quiet: hour }))?;
    assert_eq!(not_yet, Destroyed { other_kind: 2, ..Destroyed::default() });
    for pair in [&asked, &unacknowledged] {
        wait_quiet(&pair.near)?;
    }
    let stalled = net.destroy(&order(a, Which::Stalled { quiet: Duration::from_millis(20) }))?;
    assert_eq!(stalled, Destroyed { destroyed: 2, ..Destroyed::default() });
    for pair in [&mut asked, &mut unacknowledged] {
        assert_eq!(end_of(&mut pair.near), Some(ErrorKind::ConnectionAborted));
    }
    Ok(())
}

/// What one direction of a flow has shown.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    next: u32,
    ack: u32,
}

/// Sees the packets that pass a namespace.
struct Tap(OwnedFd);

impl Tap {
    fn open(namespace: &Namespace) -> Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let packets =
            namespace.enter(|| socket(AddressFamily::Packet, SockType::Datagram, flags, SockProtocol::EthAll))??;
        Ok(Self(packets))
    }

    /// What each direction, by sender and receiver, has shown since the tap was opened. Nothing is lost or reordered here,
    /// so the last packet has the newest numbers.
    fn read(&self) -> HashMap<(SocketAddr, SocketAddr), Shown> {
        let mut shown = HashMap::new();
        let mut bytes = [0; 2048];
        while let Ok(length) = recv(self.0.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            let Ok(packet) = SlicedPacket::from_ip(&bytes[..length]) else { continue };
            let Some(TransportSlice::Tcp(tcp)) = packet.transport else { continue };
            let (from, to): (IpAddr, IpAddr) = match packet.net {
                Some(NetSlice::Ipv4(ip)) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
                Some(NetSlice::Ipv6(ip)) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
                _ => continue,
            };
            let key = (SocketAddr::new(from, tcp.source_port()), SocketAddr::new(to, tcp.destination_port()));
            let length = u32::try_from(tcp.payload().len()).unwrap_or(u32::MAX);
            let next = tcp.sequence_number().wrapping_add(length).wrapping_add(tcp.syn().into());
            shown.insert(key, Shown { next, ack: tcp.acknowledgment_number() });
        }
        shown
    }
}

/// A client's connection to `asked`, forwarded by the node to `at`, and the flow as it stands after a request.
fn forwarded(net: &Net, asked: SocketAddr, at: &TcpListener) -> Result<(Pair, FlowReset)> {
    let tap = Tap::open(&net.node)?;
    let pair = Pair::open(&net.client, asked, at)?;
    pair.talk()?;
    let node = pair.near.local_addr()?;
    let (asked, served) = (Tuple { node, remote: asked }, Tuple { node, remote: at.local_addr()? });
    let shown = tap.read();
    let of = |from, to| shown.get(&(from, to)).copied().with_context(|| format!("no packet from {from} to {to}"));
    let (client, origin) = (of(asked.node, asked.remote)?, of(served.remote, served.node)?);
    let numbers =
        Numbers { node_next: client.next, node_ack: client.ack, origin_next: origin.next, origin_ack: origin.ack };
    Ok((pair, FlowReset { asked, served, numbers }))
}

impl Net {
    fn reset(&self, flow: &FlowReset) -> Result<()> {
        Ok(self.node.enter(|| Resets::open()?.send(flow))??)
    }
}

fn assert_reset(mut pair: Pair, what: &str) {
    for (side, end) in [("client", &mut pair.near), ("origin", &mut pair.far)] {
        assert_eq!(end_of(end), Some(ErrorKind::ConnectionReset), "{what}: {side}");
    }
}

#[test]
fn both_sides_of_a_forwarded_flow_are_reset_and_wrong_numbers_reset_nobody() -> Result<()> {
    let net = Net::new()?;
    for family in Family::ALL {
        let at_a = net.listen(family, A)?;
        let (pair, flow) = forwarded(&net, at_a.local_addr()?, &at_a)?;
        for off in [1, 1000, 1 << 20, 1 << 31, u32::MAX] {
            let Numbers { node_next, node_ack, origin_next, origin_ack } = flow.numbers;
            let wrong = Numbers {
                node_next: node_next.wrapping_add(off),
                node_ack: node_ack.wrapping_add(off),
                origin_next: origin_next.wrapping_add(off),
                origin_ack: origin_ack.wrapping_add(off),
            };
            net.reset(&FlowReset { numbers: wrong, ..flow })?;
            pair.talk().with_context(|| format!("{family:?}, off by {off}"))?;
            // The talk moves the numbers: five bytes in each direction.
            net.reset(&FlowReset { numbers: wrong, ..flow })?;
            pair.talk().with_context(|| format!("{family:?}, off by {off}"))?;
        }
        let (pair, flow) = forwarded(&net, at_a.local_addr()?, &at_a)?;
        net.reset(&flow)?;
        assert_reset(pair, family.name());
    }
    Ok(())
}

#[test]
fn bytes_that_were_lost_behind_the_node_don_t_save_a_flow() -> Result<()> {
    let net = Net::new()?;
    let at_a = net.listen(Family::Ipv4, A)?;
    let (pair, flow) = forwarded(&net, at_a.local_addr()?, &at_a)?;
    // As if the node had seen a segment of each side that never arrived. The acknowledgements are from the tap, where a
    // delayed one may be missing: only what has certainly arrived is acknowledged.
    let Numbers { node_next, origin_next, .. } = flow.numbers;
    let numbers = Numbers {
        node_next: node_next.wrapping_add(1000),
        origin_next: origin_next.wrapping_add(1000),
        node_ack: origin_next,
        origin_ack: node_next,
    };
    net.reset(&FlowReset { numbers, ..flow })?;
    assert_reset(pair, "lost bytes");
    Ok(())
}

#[test]
fn a_redirected_flow_is_reset_by_the_address_that_each_side_knows() -> Result<()> {
    let net = Net::new()?;
    for (family, table) in [(Family::Ipv4, "ip"), (Family::Ipv6, "ip6")] {
        let asked = SocketAddr::new(ip(family, A, 2), 8000);
        let at_b = net.listen(family, B)?;
        let b = at_b.local_addr()?;
        // nftables stands in for the redirection of our programs: the client talks to a, and b serves it.
        let rule = format!(
            "table {table} resets {{\n chain c {{\n type nat hook prerouting priority dstnat;\n \
             {table} daddr {} tcp dport {} dnat to {b};\n }}\n}}\n",
            asked.ip(),
            asked.port()
        );
        run_with_input(&net.node, "nft", &["-f", "-"], &rule)?.success()?;
        let (pair, flow) = forwarded(&net, asked, &at_b)?;
        assert_ne!(flow.asked, flow.served);
        net.reset(&flow)?;
        assert_reset(pair, family.name());
    }
    Ok(())
}

/// The kernel's entry of a flow.
fn kernel_flow(daemon: &Daemon, tuple: Tuple) -> Result<Flow> {
    let (SocketAddr::V4(node), SocketAddr::V4(remote)) = (tuple.node, tuple.remote) else {
        anyhow::bail!("{tuple:?} is not IPv4");
    };
    let address = |ip: &std::net::Ipv4Addr| Be32(u32::from_ne_bytes(ip.octets()));
    let key = FlowKey4 {
        node: address(node.ip()),
        remote: address(remote.ip()),
        node_port: Be16::new(node.port()),
        remote_port: Be16::new(remote.port()),
    };
    let pin = daemon.pin_dir().join(format!("v{}", health_common::ABI_VERSION)).join(FLOWS_V4);
    let flows: BpfHash<MapData, FlowKey4, Flow> = Map::from_map_data(MapData::from_pin(pin)?)?.try_into()?;
    Ok(flows.get(&key, 0)?)
}

#[test]
fn flows_end_by_the_kernel_s_own_numbers_and_past_its_programs() -> Result<()> {
    let lab = Lab::new(LabOptions { two_links: false })?;
    let daemon = Daemon::start_in(&lab, &LabConfig::of(&lab).without_socket_steering())?;
    lab.node.sysctl("ipv4/ip_forward", "1")?;
    wait_until("b is healthy", 2 * LIMIT, || {
        daemon.status().is_ok_and(|status| status.state("shop4", "b") == Some("healthy"))
    })?;
    let (a, b) = (lab.origin_a(Family::Ipv4), lab.origin_b(Family::Ipv4));
    for served_by in [a, b] {
        if served_by == b {
            daemon.cli(&["origin", "fail", "shop4/a"])?.success()?;
        }
        let mut client = lab.client.enter(|| TcpStream::connect_timeout(&a, LIMIT))??;
        client.set_read_timeout(Some(LIMIT))?;
        client.write_all(b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n")?;
        ensure!(client.read(&mut [0; 4096])? > 0);
        let node = client.local_addr()?;
        let origin = if served_by == a { &lab.a } else { &lab.b };
        let filter = format!("dport = :{}", node.port());
        let open = || -> Result<usize> {
            let shown = run(origin.namespace(), "ss", &["-Htn", "state", "established", &filter])?.success()?;
            Ok(shown.lines().count())
        };
        assert_eq!(open()?, 1, "{served_by}");
        let (asked, served) = (Tuple { node, remote: a }, Tuple { node, remote: served_by });
        let numbers = Numbers::from(&kernel_flow(&daemon, asked)?);
        lab.node.enter(|| Resets::open()?.send(&FlowReset { asked, served, numbers }))??;
        assert_eq!(end_of(&mut client), Some(ErrorKind::ConnectionReset), "{served_by}");
        wait_until("the origin's socket is gone", LIMIT, || open().is_ok_and(|open| open == 0))?;
    }
    let told = daemon.maps()?;
    for origin in ["a", "b"] {
        let entry = told.origin("shop4", origin).context("it is in the maps")?;
        for signal in ["reset_early", "reset_mid", "reset_idle", "client_abort"] {
            assert_eq!(entry["counters"][signal], 0, "{origin}: {signal}");
        }
    }
    Ok(())
}
