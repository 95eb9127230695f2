//! What happens at healthy origins all the time, and must move nothing: long requests, streams, protocols in which nobody
//! answers, single clients in trouble, a little loss.
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own). `LAB_LONG` plays it at full length; the ordinary run is
//! shorter, with a response timeout that is as much shorter.

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lab::{
    Daemon, Family, Lab, LabConfig, LabOptions, Load, LoadOptions, Namespace, is_long, run_with_input, wait_until,
};
use nix::sys::socket::{setsockopt, sockopt};

const ONE_LINK: LabOptions = LabOptions { two_links: false };
const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(20);
/// Answers, as the first byte asks; speaks first; never says anything.
const PORTS: [(&str, u16); 3] = [("odd", 7000), ("banner", 7001), ("oneway", 7002)];
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na\n";
/// Between the pieces of uploads, streams and one-way data.
const BEAT: Duration = Duration::from_millis(100);
const HTTP: &str = "shop4";

/// How long the long ones last.
fn long() -> Duration {
    if is_long() { 60 * SECOND } else { 5 * SECOND }
}

/// Half of it: the long poll's.
fn poll() -> Duration {
    long() / 2
}

/// Of the services here: the default where there is time for it, else far below what the long ones last.
fn response_timeout() -> &'static str {
    if is_long() { "" } else { "response_timeout = { min = \"200ms\", initial = \"400ms\", max = \"800ms\" }\n" }
}

/// Lets time pass while the other side has nothing to say; what it says all the same is swallowed. Whether it is still there.
fn pass(stream: &mut TcpStream, time: Duration) -> io::Result<bool> {
    let end = Instant::now() + time;
    let mut piece = [0; 4096];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(true);
        }
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut piece) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// One connection of a server, by the port that it came to.
fn serve(mut stream: TcpStream, port: u16) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if port == PORTS[2].1 {
        return io::copy(&mut stream, &mut io::sink()).map(drop);
    }
    if port == PORTS[1].1 {
        stream.write_all(b"220 ready\r\n")?;
        while pass(&mut stream, SECOND)? {}
        return Ok(());
    }
    let mut first = [0];
    stream.read_exact(&mut first)?;
    match first[0] {
        b'U' => {
            while stream.read(&mut first)? == 1 && first[0] != b'E' {}
            stream.write_all(ANSWER)
        }
        b'S' => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")?;
            while pass(&mut stream, 5 * BEAT)? {
                stream.write_all(b"data: tick\n\n")?;
            }
            Ok(())
        }
        b'L' => {
            pass(&mut stream, poll())?;
            stream.write_all(ANSWER)
        }
        // Late.
        b'D' => {
            pass(&mut stream, 10 * BEAT)?;
            stream.write_all(ANSWER)
        }
        _ => stream.write_all(ANSWER),
    }?;
    // Closed in order, also where not all was read.
    stream.shutdown(Shutdown::Write)?;
    io::copy(&mut stream, &mut io::sink()).map(drop)
}

/// Listens until the process ends.
fn listen(ns: &Arc<Namespace>) -> Result<()> {
    for (name, port) in PORTS {
        let listener = ns.enter(|| TcpListener::bind(("0.0.0.0", port)))??;
        let accept = move || -> Result<()> {
            for stream in listener.incoming().flatten() {
                // A client that leaves is no failure of the server.
                std::thread::spawn(move || serve(stream, port).ok());
            }
            Ok(())
        };
        drop(ns.thread(name, accept)?);
    }
    Ok(())
}

/// Services of the lab's and of these ports, a preferred.
fn start(lab: &Lab) -> Result<Daemon> {
    for origin in [&lab.a, &lab.b] {
        listen(origin.namespace())?;
    }
    let config = LabConfig::of(lab).only(Family::Ipv4).with_forwarded(lab);
    let mut daemon = Daemon::prepare(lab, &config)?;
    let mut text = daemon.config_text(&config).replacen(
        "[defaults.policy]\n",
        &format!("[defaults.policy]\n{}", response_timeout()),
        1,
    );
    let (a, b) = (lab.origin_a(Family::Ipv4).ip(), lab.origin_b(Family::Ipv4).ip());
    for (name, port) in PORTS {
        write!(
            text,
            "\n[[service]]\nname = \"{name}\"\n[[service.origin]]\nname = \"a\"\naddress = \"{a}:{port}\"\n\
             [[service.origin]]\nname = \"b\"\naddress = \"{b}:{port}\"\npriority = 1\ncapacity_cps = 5000\n\
             [[service.check]]\ntype = \"tcp\"\ninterval = \"1s\"\n"
        )?;
    }
    daemon.write_config(&text)?;
    daemon.start()?;
    for service in PORTS.map(|(name, _)| name).into_iter().chain([HTTP]) {
        for origin in ["a", "b"] {
            wait_until(&format!("{service}/{origin} is healthy"), LIMIT, || {
                daemon.status().is_ok_and(|status| status.state(service, origin) == Some("healthy"))
            })?;
        }
    }
    Ok(daemon)
}

/// The kernel has taken nobody out, and would not have.
fn assert_no_trip(daemon: &Daemon, service: &str) -> Result<()> {
    assert_eq!(daemon.events()?.into_iter().find(|event| event.what == "trip"), None);
    let a = daemon.maps()?.counters(service, "a");
    assert_eq!((a.get("trips"), a.get("withheld_trips")), (Some(&0), Some(&0)), "{service}: {a:?}");
    Ok(())
}

/// No trip, no failover, and no new flow sent to b; a is as it was.
fn assert_nothing_moved(daemon: &Daemon, service: &str) -> Result<()> {
    assert_no_trip(daemon, service)?;
    assert_eq!(daemon.events()?.into_iter().find(|event| event.what == "failover"), None);
    let b = daemon.maps()?.counters(service, "b");
    assert_eq!(b.get("steered"), Some(&0), "{service}: {b:?}");
    assert_eq!(daemon.status()?.state(service, "a"), Some("healthy"), "{service}");
    Ok(())
}

/// A connection of the node: sends `first`, and whatever `then` does.
fn client<T: Send + 'static>(
    ns: &Namespace,
    to: (IpAddr, u16),
    then: impl FnOnce(&mut TcpStream) -> io::Result<T> + Send + 'static,
) -> Result<std::thread::JoinHandle<Result<T>>> {
    let work = move || {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from(to), SECOND)?;
        stream.set_nodelay(true)?;
        Ok(then(&mut stream)?)
    };
    ns.thread("client", work)
}

fn ended<T>(clients: Vec<std::thread::JoinHandle<Result<T>>>) -> Result<Vec<T>> {
    let joined = clients.into_iter().map(|client| client.join().ok().context("a client panicked")?);
    joined.collect()
}

/// Reads an answer whole; how long it took.
fn answered(stream: &mut TcpStream) -> io::Result<Duration> {
    let begun = Instant::now();
    stream.set_read_timeout(Some(100 * SECOND))?;
    let mut answer = vec![0; ANSWER.len()];
    stream.read_exact(&mut answer)?;
    if answer == ANSWER { Ok(begun.elapsed()) } else { Err(io::Error::other("another answer")) }
}

/// Asks quickly, again and again, so that the origin is one that usually answers.
fn background(to: (IpAddr, u16)) -> io::Result<u32> {
    let (begun, mut done) = (Instant::now(), 0);
    while begun.elapsed() < long() {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from(to), SECOND)?;
        stream.write_all(b"G")?;
        answered(&mut stream)?;
        done += 1;
        // Until the origin has closed, or so long.
        pass(&mut stream, BEAT / 4)?;
    }
    Ok(done)
}

#[test]
fn long_requests_streams_and_silent_protocols_of_a_healthy_origin_trip_nothing() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let daemon = start(&lab)?;
    let a = lab.origin_a(Family::Ipv4).ip();
    let of = |service: usize| (a, PORTS[service].1);
    let asking = lab.node.thread("background", move || Ok(background((a, PORTS[0].1))?))?;
    wait_until("the origin is known to answer", LIMIT, || {
        daemon.maps().is_ok_and(|maps| maps.counters("odd", "a").get("response") >= Some(&25))
    })?;
    let mut long_ones = Vec::new();
    for _ in 0..3 {
        long_ones.push(client(&lab.node, of(0), |stream| {
            let begun = Instant::now();
            stream.write_all(b"U")?;
            while begun.elapsed() < long() {
                stream.write_all(&[b'u'; 1000])?;
                pass(stream, BEAT)?;
            }
            stream.write_all(b"E")?;
            answered(stream)
        })?);
        long_ones.push(client(&lab.node, of(0), |stream| {
            stream.write_all(b"S")?;
            pass(stream, long())?;
            Ok(long())
        })?);
        long_ones.push(client(&lab.node, of(0), |stream| {
            stream.write_all(b"L")?;
            answered(stream)
        })?);
        long_ones.push(client(&lab.node, of(1), |stream| {
            pass(stream, long())?;
            Ok(long())
        })?);
    }
    for _ in 0..30 {
        long_ones.push(client(&lab.node, of(2), |stream| {
            let begun = Instant::now();
            while begun.elapsed() < long() {
                stream.write_all(b"measured 1\n")?;
                pass(stream, BEAT)?;
            }
            Ok(long())
        })?);
    }
    ended(long_ones)?;
    let asked = asking.join().ok().context("it panicked")??;
    assert!(asked > 25, "the origin was busy: {asked}");
    for (service, _) in PORTS {
        assert_nothing_moved(&daemon, service)?;
    }
    let late = daemon.maps()?.counters("odd", "a");
    assert!(late.get("response_late") >= Some(&3), "the polls outlived the timeout: {late:?}");
    Ok(())
}

/// How often one client is in trouble.
const TROUBLES: u32 = 1_000;

/// Refuses one address, as a ban or a connection limit of the origin does.
fn refuse_client(lab: &Lab, client: IpAddr) -> Result<()> {
    let rules = format!(
        "table inet lab_ban {{\n  chain input {{ type filter hook input priority 0; \
         ip saddr {client} tcp dport 80 reject with tcp reset; }}\n}}\n"
    );
    run_with_input(lab.a.namespace(), "nft", &["-f", "-"], &rules)?.success().map(drop)
}

#[test]
fn one_client_that_aborts_or_is_refused_trips_nothing_while_others_succeed() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    lab.forward()?;
    let daemon = start(&lab)?;
    let a = lab.origin_a(Family::Ipv4);
    let load = Load::start(&lab.node, LoadOptions { per_second: 100, ..LoadOptions::figures(a) })?;
    let own = lab.client.enter(move || -> Result<IpAddr> {
        let mut own = None;
        for _ in 0..TROUBLES {
            let mut stream = TcpStream::connect_timeout(&a, SECOND)?;
            own = Some(stream.local_addr()?.ip());
            stream.write_all(b"POST / HTTP/1.1\r\nHost: lab.test\r\nContent-Length: 9\r\n\r\n")?;
            // Closing is a RST.
            setsockopt(&stream.as_fd(), sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
        }
        own.context("it had an address")
    })??;
    assert_nothing_moved(&daemon, HTTP)?;
    let counters = daemon.maps()?.counters(HTTP, "a");
    assert!(counters.get("client_abort") >= Some(&u64::from(TROUBLES * 9 / 10)), "they were seen: {counters:?}");
    refuse_client(&lab, own)?;
    // Whether the client sees it or a standby takes it: both are right.
    lab.client.enter(move || {
        for _ in 0..TROUBLES {
            TcpStream::connect_timeout(&a, SECOND).ok();
        }
    })?;
    let counters = daemon.maps()?.counters(HTTP, "a");
    assert!(counters.get("refused") >= Some(&u64::from(TROUBLES * 9 / 10)), "they were seen: {counters:?}");
    assert_no_trip(&daemon, HTTP)?;
    // A fast machine is through with the troubles in half a second.
    wait_until("others asked as well", 10 * SECOND, || load.look(<[lab::Record]>::len) > 50)?;
    // Nor does the window that judges shares of connections let one client speak for the others.
    let labels = [("service", HTTP), ("origin", "a")];
    wait_until("the refusals are in the window", 10 * SECOND, || {
        daemon.metrics().is_ok_and(|metrics| metrics.value("sluice_failure_spread", &labels) >= Some(1.0))
    })?;
    assert_eq!(daemon.status()?.state(HTTP, "a"), Some("healthy"));
    let records = load.finish()?;
    assert_eq!(records.iter().find(|record| !record.outcome.is_ok()), None, "the others were served");
    Ok(())
}

/// Two of a hundred packets are lost, each way.
const LOSS: &str = "table inet lab_loss {
  chain input { type filter hook prerouting priority -300; tcp dport 7000 numgen random mod 100 < 2 drop; }
  chain output { type filter hook output priority -300; tcp sport 7000 numgen random mod 100 < 2 drop; }
}
";

/// Asks for so long; every fiftieth answer is late by a second. How many there were.
fn patient(to: (IpAddr, u16), first: u32, time: Duration) -> io::Result<u32> {
    let begun = Instant::now();
    let mut done = 0;
    while begun.elapsed() < time {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from(to), 30 * SECOND)?;
        stream.write_all(if (first + done).is_multiple_of(50) { b"D" } else { b"G" })?;
        answered(&mut stream)?;
        done += 1;
    }
    Ok(done)
}

#[test]
fn a_little_loss_and_a_few_slow_answers_move_nothing() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let daemon = start(&lab)?;
    run_with_input(lab.a.namespace(), "nft", &["-f", "-"], LOSS)?.success()?;
    let to = (lab.origin_a(Family::Ipv4).ip(), PORTS[0].1);
    let time = if is_long() { 600 * SECOND } else { 20 * SECOND };
    let mut clients = Vec::new();
    for i in 0..8 {
        clients.push(lab.node.thread("patient", move || Ok(patient(to, i * 6, time)?))?);
    }
    let asked: u32 = ended(clients)?.into_iter().sum();
    assert!(asked > 500, "it was asked {asked} times only");
    let counters = daemon.maps()?.counters("odd", "a");
    assert!(
        counters.get("syn_retrans") > Some(&0) && counters.get("retrans") > Some(&0),
        "packets were lost: {counters:?}"
    );
    println!(
        "{asked} requests; SYNs repeated {:?}, late {:?}",
        counters.get("syn_retrans"),
        counters.get("response_late")
    );
    assert_nothing_moved(&daemon, "odd")?;
    assert_eq!(daemon.maps()?.counters("odd", "b").get("resteered"), Some(&0));
    Ok(())
}
