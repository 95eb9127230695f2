//! Floods that somebody else sends: they are no evidence, move nobody, and take no memory.
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own). `LAB_LONG` plays them at full size.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use lab::{Daemon, Family, Lab, LabConfig, LabOptions, Load, LoadOptions, Namespace, is_long, wait_until};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket};

const ONE_LINK: LabOptions = LabOptions { two_links: false };
const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(20);
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
/// A request that leaves the connection open.
const KEPT: &[u8] = b"GET / HTTP/1.1\r\nHost: lab.test\r\n\r\n";

/// Splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((z ^ (z >> 31)) >> 32).unwrap_or_default()
    }
}

fn v4(address: SocketAddr) -> Result<SocketAddrV4> {
    match address {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(_) => bail!("{address} is no IPv4 address"),
    }
}

/// Sends packets that nobody's stack would, through a raw socket.
struct Forger {
    socket: OwnedFd,
}

impl Forger {
    /// Of the calling thread's namespace.
    fn new() -> Result<Self> {
        let socket = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)?;
        Ok(Self { socket })
    }

    /// One bare segment. A queue that is full for a moment is tried again.
    fn send(&self, from: SocketAddrV4, to: SocketAddrV4, (seq, ack): (u32, u32), flags: u8) -> Result<()> {
        let packet = segment(from, to, (seq, ack), flags);
        let target = SockaddrIn::from(to);
        loop {
            match sendto(self.socket.as_raw_fd(), &packet, &target, MsgFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(nix::errno::Errno::ENOBUFS | nix::errno::Errno::EINTR) => std::thread::yield_now(),
                Err(error) => return Err(error).context("a raw packet"),
            }
        }
    }
}

/// IPv4 and TCP headers; the kernel fills in the length and the IPv4 checksum.
fn segment(from: SocketAddrV4, to: SocketAddrV4, (seq, ack): (u32, u32), flags: u8) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
    packet.extend(from.ip().octets());
    packet.extend(to.ip().octets());
    packet.extend(from.port().to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend(seq.to_be_bytes());
    packet.extend(ack.to_be_bytes());
    packet.extend([0x50, flags, 0x40, 0, 0, 0, 0, 0]);
    // RFC 1071 over the pseudo-header (addresses, protocol, length) and the segment.
    let words = packet[12..].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum = words.sum::<u32>() + 6 + 20;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[36..38].copy_from_slice(&(!u16::try_from(sum).unwrap_or_default()).to_be_bytes());
    packet
}

/// A request on a connection that stays; who answers.
fn ask(stream: &mut TcpStream) -> io::Result<String> {
    stream.write_all(KEPT)?;
    let (mut answer, mut piece) = (Vec::new(), [0; 1024]);
    while !answer.ends_with(b"\n")
        || !answer.windows(4).any(|four| four == b"\r\n\r\n")
        || answer.ends_with(b"\r\n\r\n")
    {
        let len = stream.read(&mut piece)?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend(&piece[..len]);
    }
    let text = String::from_utf8_lossy(&answer);
    let head = text.lines().find_map(|line| line.strip_prefix("X-Origin: "));
    head.map(str::to_owned).ok_or_else(|| io::Error::other(text.into_owned()))
}

/// Connections that stay open.
fn held(ns: &Namespace, to: SocketAddr, count: usize) -> Result<Vec<TcpStream>> {
    let open = || -> io::Result<Vec<TcpStream>> {
        let connect = |_| {
            let stream = TcpStream::connect_timeout(&to, SECOND)?;
            stream.set_read_timeout(Some(5 * SECOND))?;
            Ok(stream)
        };
        (0..count).map(connect).collect()
    };
    Ok(ns.enter(open)??)
}

fn wait_state(daemon: &Daemon, origin: &str, wanted: &str) -> Result<()> {
    let is = || daemon.status().is_ok_and(|status| status.state("shop4", origin) == Some(wanted));
    wait_until(&format!("shop4/{origin} is {wanted}"), LIMIT, is)
}

/// No event says that anything was moved.
fn assert_nothing_moved(daemon: &Daemon) -> Result<()> {
    let words = ["trip", "failover", "turn", "resteer"];
    let told = daemon.events()?.into_iter().find(|event| words.iter().any(|word| event.what.contains(word)));
    assert_eq!(told, None);
    Ok(())
}

/// RFC 5961 §3: a RST with any other number than the exact one proves nothing, however many there are.
#[test]
fn a_flood_of_forged_resets_is_no_signal_and_trips_nothing() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let daemon = Daemon::start_in(&lab, &LabConfig::of(&lab))?;
    let a = lab.origin_a(Family::Ipv4);
    wait_state(&daemon, "a", "healthy")?;
    wait_state(&daemon, "b", "healthy")?;
    let mut live = held(&lab.node, a, 20)?;
    for stream in &mut live {
        assert_eq!(ask(stream)?, "a");
    }
    let load = Load::start(&lab.node, LoadOptions { per_second: 100, ..LoadOptions::figures(a) })?;
    let ends = live.iter().map(|stream| v4(stream.local_addr()?)).collect::<Result<Vec<_>>>()?;
    let count: u32 = if is_long() { 1_000_000 } else { 300_000 };
    let from = v4(a)?;
    let took = lab.a.namespace().enter(move || -> Result<Duration> {
        let (forger, mut random, begun) = (Forger::new()?, Random(1), Instant::now());
        for (_, &to) in (0..count).zip(ends.iter().cycle()) {
            forger.send(from, to, (random.next(), random.next()), RST | ACK)?;
        }
        Ok(begun.elapsed())
    })??;
    println!("{count} forged resets in {took:?}: {:.0} per second", f64::from(count) / took.as_secs_f64());
    for stream in &mut live {
        assert_eq!(ask(stream)?, "a", "a live flow goes on");
    }
    let records = load.finish()?;
    assert_eq!(records.iter().find(|record| !record.outcome.is_ok()), None);
    let counters = daemon.maps()?.counters("shop4", "a");
    let of = |name: &str| counters.get(name).copied().unwrap_or(0);
    assert!(of("rst_forged") + of("rst_suspect") >= u64::from(count) * 9 / 10, "they were seen: {counters:?}");
    for signal in ["refused", "reset_early", "reset_mid", "trips", "withheld_trips"] {
        assert_eq!(of(signal), 0, "{signal}: {counters:?}");
    }
    assert_nothing_moved(&daemon)?;
    assert_eq!(daemon.status()?.state("shop4", "a"), Some("healthy"));
    Ok(())
}

/// Resident memory of a process. Unit: KiB.
fn resident(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Bytes of all maps, and names of those with more entries than they have room for.
fn maps_size(daemon: &Daemon) -> Result<(u64, Vec<String>)> {
    let maps = daemon.maps()?;
    let bytes = maps.maps.iter().filter_map(|map| map["memory_bytes"].as_u64()).sum();
    let over = maps.maps.iter().filter(|map| map["used"].as_u64() > map["max"].as_u64());
    Ok((bytes, over.map(|map| map["name"].to_string()).collect()))
}

/// P05: the flood goes through the node, and is answered (by the origin's SYN cookies), but none of it ever completes.
#[test]
fn p05_a_syn_flood_evicts_no_redirected_flow_and_takes_no_memory() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    lab.forward()?;
    let config = LabConfig::of(&lab).with_forwarded(&lab);
    let daemon = Daemon::prepare(&lab, &config)?;
    // Small tables, so that a flood of this size goes over them many times.
    let text = daemon.config_text(&config);
    daemon.write_config(&text.replacen(
        "[control]",
        "[node.limits]\nhalf_open = 4096\nflows = 16384\n\n[control]",
        1,
    ))?;
    let mut daemon = daemon;
    daemon.start()?;
    let a = lab.origin_a(Family::Ipv4);
    wait_state(&daemon, "a", "healthy")?;
    wait_state(&daemon, "b", "healthy")?;
    // Some that were redirected, and some that were not, of the node and of a client.
    daemon.cli(&["origin", "drain", "shop4/a"])?.success()?;
    wait_until("new flows go to b", LIMIT, || {
        let redirected = || lab.client.enter(|| lab::http_get(a, "/", SECOND)).ok()?.ok()?.origin;
        redirected().as_deref() == Some("b")
    })?;
    let mut on_b = held(&lab.client, a, 100)?;
    on_b.extend(held(&lab.node, a, 20)?);
    for stream in &mut on_b {
        assert_eq!(ask(stream)?, "b");
    }
    daemon.cli(&["origin", "clear", "shop4/a"])?.success()?;
    wait_until("new flows go to a again", LIMIT, || {
        lab.client
            .enter(|| lab::http_get(a, "/", SECOND))
            .is_ok_and(|got| got.is_ok_and(|answer| answer.origin.as_deref() == Some("a")))
    })?;
    let mut on_a = held(&lab.client, a, 100)?;
    for stream in &mut on_a {
        assert_eq!(ask(stream)?, "a");
    }
    // Their checksums were never made, for no device would look at them on the way here.
    let undeliverable = daemon.metrics()?.value("sluice_parse_skipped_total", &[("reason", "undeliverable")]);
    assert!(undeliverable.is_some_and(|count| count < 1.0), "{undeliverable:?}");
    let pid = daemon.pid().context("it runs")?;
    let (before, (bytes_before, _)) = (resident(pid)?, maps_size(&daemon)?);
    let count: u32 = if is_long() { 1_000_000 } else { 100_000 };
    let to = v4(a)?;
    let took = lab.client.enter(move || -> Result<Duration> {
        let (forger, mut random, begun) = (Forger::new()?, Random(2), Instant::now());
        for i in 0..count {
            // TEST-NET-2 and the like have too few addresses: a private network that nobody in the lab has.
            let source = Ipv4Addr::from(0x0b00_0000 | (random.next() & 0x00ff_ffff));
            let port = u16::try_from(1024 + i % 60_000).unwrap_or(1024);
            forger.send(SocketAddrV4::new(source, port), to, (random.next(), 0), SYN)?;
        }
        Ok(begun.elapsed())
    })??;
    println!("{count} SYNs in {took:?}: {:.0} per second", f64::from(count) / took.as_secs_f64());
    for (streams, origin) in [(&mut on_b, "b"), (&mut on_a, "a")] {
        for stream in streams {
            assert_eq!(ask(stream)?, origin, "it keeps its origin");
        }
    }
    let counters = daemon.maps()?.counters("shop4", "a");
    assert!(counters.get("syn") >= Some(&(u64::from(count) * 9 / 10)), "the flood was seen: {counters:?}");
    let (bytes_after, over) = maps_size(&daemon)?;
    assert_eq!((bytes_after, over), (bytes_before, vec![]), "maps neither grow nor overflow");
    let after = resident(pid)?;
    assert!(after < before + 16 * 1024, "the daemon grew from {before} to {after} KiB");
    let evicted = || -> Result<[f64; 2]> {
        let metrics = daemon.metrics()?;
        let of = |table| metrics.value("sluice_flow_evictions_total", &[("table", table)]).unwrap_or(0.0);
        Ok([of("half_open"), of("flows")])
    };
    wait_until("what was pushed out is counted", LIMIT, || {
        evicted().is_ok_and(|[attempts, _]| attempts > f64::from(count / 2))
    })?;
    assert!(evicted()?[1] < 1.0, "no flow was, though the origin answers");
    println!("evicted attempts and flows: {:?}; the daemon: {before} to {after} KiB", evicted()?);
    assert_eq!(daemon.status()?.state("shop4", "a"), Some("healthy"));
    Ok(())
}
