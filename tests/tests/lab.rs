//! The lab itself, without Sluice: a figure is worth no more than the tool that took it.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::Result;
use lab::{
    CLIENTS, Family, Fault, HaProxy, Lab, LabOptions, Load, LoadOptions, Method, Nginx, Outcome, PROXY_PORT, ProxyKind,
    Record, Wrk, http_get, now_ns, wait_until,
};

const ONE_LINK: LabOptions = LabOptions { two_links: false };
const TWO_LINKS: LabOptions = LabOptions { two_links: true };
const SECOND: Duration = Duration::from_secs(1);

/// An ICMP answer to a datagram for a port that nobody has: the host is there, ARP or ND included.
fn host_answers(address: SocketAddr) -> bool {
    let ask = || -> io::Result<()> {
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any)?;
        socket.set_read_timeout(Some(SECOND))?;
        socket.connect(SocketAddr::new(address.ip(), 9))?;
        socket.send(b"?")?;
        socket.recv(&mut [0; 1]).map(drop)
    };
    ask().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Starts `load`, waits until `count` connections have ended, and returns all.
fn measure(lab: &Lab, options: LoadOptions, count: usize) -> Result<Vec<Record>> {
    let load = Load::start(&lab.node, options)?;
    wait_until("enough connections", 20 * SECOND, || load.look(<[Record]>::len) >= count)?;
    load.finish()
}

#[test]
fn both_origins_answer_on_both_families_over_one_link_and_two() -> Result<()> {
    for options in [ONE_LINK, TWO_LINKS] {
        let lab = Lab::new(options)?;
        for family in Family::ALL {
            for (address, name) in [(lab.origin_a(family), "a"), (lab.origin_b(family), "b")] {
                for path in ["/", "/healthz"] {
                    let answer = lab.node.enter(|| http_get(address, path, SECOND))??;
                    assert_eq!((answer.status, answer.origin.as_deref()), (200, Some(name)), "{address}{path}");
                    assert_eq!(answer.body, format!("{name}\n"));
                }
            }
        }
    }
    Ok(())
}

/// A flow moved from `orig0` to `orig1` keeps the source address of `orig0`; b's answers must come back.
#[test]
fn b_on_the_second_link_answers_the_address_of_the_first() -> Result<()> {
    let lab = Lab::new(TWO_LINKS)?;
    for family in Family::ALL {
        let (source, b) = (lab.node_towards_origins(family), lab.origin_b(family));
        let answered = lab.node.enter(|| -> io::Result<bool> {
            let socket = UdpSocket::bind(SocketAddr::new(source, 0))?;
            socket.set_read_timeout(Some(SECOND))?;
            socket.connect(SocketAddr::new(b.ip(), 9))?;
            socket.send(b"?")?;
            Ok(socket.recv(&mut [0; 1]).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused))
        })??;
        assert!(answered, "{b} does not answer {source}");
    }
    Ok(())
}

#[test]
fn two_labs_run_side_by_side_and_leave_nothing() -> Result<()> {
    let dirs = {
        let (first, second) = (Lab::new(ONE_LINK)?, Lab::new(ONE_LINK)?);
        let a = first.origin_a(Family::Ipv4);
        for lab in [&first, &second] {
            assert!(lab.node.enter(|| http_get(a, "/", SECOND))?.is_ok());
        }
        [first.dir().to_owned(), second.dir().to_owned()]
    };
    assert!(dirs.iter().all(|dir| !dir.exists()));
    // Every server of a lab names its directory on its command line.
    let mark = format!("sluice-lab-{}-", std::process::id());
    let ours = |entry: &std::fs::DirEntry| {
        std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(&mark))
    };
    assert_eq!(std::fs::read_dir("/proc")?.flatten().filter(ours).count(), 0, "no server outlives its lab");
    Ok(())
}

#[test]
fn a_killed_origin_refuses_at_once_and_comes_back() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    lab.a.fail(Fault::Refused)?;
    for family in Family::ALL {
        let a = lab.origin_a(family);
        let start = Instant::now();
        let refused = lab.node.enter(|| TcpStream::connect_timeout(&a, SECOND))?;
        assert_eq!(refused.map(drop).map_err(|error| error.kind()), Err(io::ErrorKind::ConnectionRefused));
        assert!(start.elapsed() < Duration::from_millis(50), "{:?}", start.elapsed());
    }
    lab.a.restore()?;
    let a = lab.origin_a(Family::Ipv4);
    assert!(lab.node.enter(|| http_get(a, "/", SECOND))?.is_ok());
    Ok(())
}

#[test]
fn a_black_hole_swallows_tcp_only_and_established_connections_too() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    for family in Family::ALL {
        let a = lab.origin_a(family);
        let mut open = lab.node.enter(|| TcpStream::connect_timeout(&a, SECOND))??;
        lab.a.fail(Fault::Blackhole)?;
        let fresh = lab.node.enter(|| TcpStream::connect_timeout(&a, Duration::from_millis(300)))?;
        assert_eq!(fresh.map(drop).map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
        open.set_read_timeout(Some(Duration::from_millis(300)))?;
        open.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")?;
        let silent = open.read(&mut [0; 1]);
        assert_eq!(silent.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
        assert!(lab.node.enter(|| host_answers(a))?, "the host of {a} still answers");
        lab.a.restore()?;
        assert!(lab.node.enter(|| http_get(a, "/", 5 * SECOND))?.is_ok());
    }
    Ok(())
}

#[test]
fn a_hanging_origin_accepts_and_never_answers_until_it_goes_on() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    for family in Family::ALL {
        let a = lab.origin_a(family);
        lab.a.fail(Fault::Hang)?;
        assert!(lab.node.enter(|| TcpStream::connect_timeout(&a, SECOND))?.is_ok());
        let silent = lab.node.enter(|| http_get(a, "/", Duration::from_millis(300)))?;
        assert!(silent.is_err(), "{silent:?}");
        lab.a.restore()?;
        assert!(lab.node.enter(|| http_get(a, "/", 5 * SECOND))?.is_ok());
    }
    Ok(())
}

#[test]
fn the_load_keeps_its_pace_and_counts_each_connection_once() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    for (family, method) in [(Family::Ipv4, Method::Get), (Family::Ipv6, Method::Post)] {
        let options = LoadOptions { method, ..LoadOptions::figures(lab.origin_a(family)) };
        let records = measure(&lab, options, 1000)?;
        assert!(records.iter().all(|record| record.outcome.is_ok() && record.origin == Some('a')));
        assert!(records.iter().all(|record| record.local_port != 0 && record.connect_ns.is_some()));
        let mut late: Vec<u64> = records.iter().map(|record| record.late_ns).collect();
        late.sort_unstable();
        let p99 = late[late.len() * 99 / 100];
        assert!(p99 < 5_000_000, "late by {p99} ns at the 99th percentile");
        let (first, last) = (records.iter().map(|r| r.start_ns).min(), records.iter().map(|r| r.start_ns).max());
        let seconds = Duration::from_nanos(last.zip(first).map_or(0, |(last, first)| last - first)).as_secs_f64();
        let rate = f64::from(u32::try_from(records.len())?) / seconds;
        assert!((475.0..525.0).contains(&rate), "{rate} connections per second");
    }
    Ok(())
}

/// Turns `fault` on for a second of load and off again. Each connection's start in relation to the switches, and
/// what became of it. Those that may have been under way at a switch, on a busy machine, are left out: either is right.
fn switch_under_load(lab: &mut Lab, fault: Fault, family: Family, method: Method) -> Result<[Vec<Record>; 3]> {
    let ended = |load: &Load, from_ns: u64| load.look(|all| all.iter().filter(|one| one.start_ns > from_ns).count());
    let load = Load::start(&lab.node, LoadOptions { method, ..LoadOptions::figures(lab.origin_a(family)) })?;
    wait_until("a steady load", 5 * SECOND, || ended(&load, 0) >= 300)?;
    let fault_ns = lab.a.fail(fault)?;
    let over = fault_ns + 500_000_000;
    wait_until("half a second of the fault", 5 * SECOND, || now_ns() >= over)?;
    let restore_ns = lab.a.restore()?;
    wait_until("a steady load again", 5 * SECOND, || ended(&load, restore_ns) >= 400)?;
    let all = load.finish()?;
    let slack_ns = 200_000_000;
    let pick = |range: std::ops::Range<u64>| {
        all.iter().copied().filter(|one| range.contains(&one.start_ns)).collect::<Vec<_>>()
    };
    Ok([pick(0..fault_ns - slack_ns), pick(fault_ns..restore_ns - slack_ns), pick(restore_ns..u64::MAX)])
}

/// The first that was not simply served by a, if enough were there at all.
fn not_well(records: &[Record]) -> Option<Record> {
    assert!(records.len() >= 100, "only {} connections", records.len());
    let well = |one: &Record| one.outcome.is_ok() && one.origin == Some('a') && one.total_ns < 500_000_000;
    records.iter().copied().find(|one| !well(one))
}

#[test]
fn errors_begin_and_end_at_once_and_hurt_no_connection() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    for (family, method) in [(Family::Ipv4, Method::Post), (Family::Ipv6, Method::Get)] {
        let [before, during, after] = switch_under_load(&mut lab, Fault::Errors, family, method)?;
        assert_eq!((not_well(&before), not_well(&after)), (None, None), "{family:?}");
        assert!(during.len() >= 100, "{}", during.len());
        let other = during.iter().find(|one| one.outcome != Outcome::Status(503) || one.origin != Some('a'));
        assert_eq!(other, None, "503 to everything, {family:?}");
        let health = lab.origin_a(family);
        lab.a.fail(Fault::Errors)?;
        assert_eq!(lab.node.enter(|| http_get(health, "/healthz", SECOND))??.status, 503);
        lab.a.restore()?;
    }
    Ok(())
}

#[test]
fn a_slow_origin_answers_the_same_two_seconds_late() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    let (family, method) = (Family::Ipv6, Method::Post);
    let [before, during, after] = switch_under_load(&mut lab, Fault::Slow, family, method)?;
    assert_eq!((not_well(&before), not_well(&after)), (None, None), "{family:?}");
    assert!(during.len() >= 100, "{}", during.len());
    // nginx's clock ticks in milliseconds.
    let late = |one: &Record| (1_990_000_000..2_600_000_000).contains(&one.total_ns);
    let other = during.iter().find(|one| !one.outcome.is_ok() || one.origin != Some('a') || !late(one));
    assert_eq!(other, None, "all answers two seconds late, {family:?}");
    assert!(during.iter().all(|one| one.connect_ns.is_some_and(|took| took < 500_000_000)), "but accepted at once");
    Ok(())
}

#[test]
fn a_flap_silences_both_ways_and_loses_nothing() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    let (family, method) = (Family::Ipv4, Method::Get);
    let [before, during, after] = switch_under_load(&mut lab, Fault::Flap, family, method)?;
    let served = |one: &Record| one.outcome.is_ok() && one.origin == Some('a');
    assert!(before.iter().chain(&during).chain(&after).all(served), "nothing is lost for good, {family:?}");
    assert_eq!(not_well(&after), None, "{family:?}");
    assert!(during.len() >= 100, "{}", during.len());
    // The kernel repeats a SYN after a second.
    assert!(during.iter().all(|one| one.connect_ns.is_some_and(|took| took > 500_000_000)), "{family:?}");
    for family in Family::ALL {
        let a = lab.origin_a(family);
        lab.a.fail(Fault::Flap)?;
        assert!(!lab.node.enter(|| host_answers(a))?, "a silent host tells nothing either");
        lab.a.restore()?;
        assert!(lab.node.enter(|| host_answers(a))?);
    }
    Ok(())
}

/// The entry of a neighbour whose link is down fails within seconds, that of b does not, and a serves again at once.
#[test]
fn a_link_that_is_down_costs_the_neighbours_entry() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    let addresses = Family::ALL.map(|family| lab.origin_a(family));
    lab.a.fail(Fault::LinkDown)?;
    let lost = || {
        let lost = |family: Family| {
            let a = lab.origin_a(family);
            let connects =
                lab.node.enter(|| TcpStream::connect_timeout(&a, Duration::from_millis(20)).is_ok()).unwrap_or(true);
            !connects && lab.neighbour_lost(family).unwrap_or(false)
        };
        Family::ALL.into_iter().all(lost)
    };
    wait_until("both entries fail", 8 * SECOND, lost)?;
    for family in Family::ALL {
        let b = lab.origin_b(family);
        assert!(lab.node.enter(|| http_get(b, "/", SECOND))?.is_ok(), "{b} has a link of its own");
    }
    lab.a.restore()?;
    for a in addresses {
        let serves = || lab.node.enter(|| http_get(a, "/", SECOND)).is_ok_and(|answer| answer.is_ok());
        wait_until("a serves again", 3 * SECOND, serves)?;
    }
    Ok(())
}

#[test]
fn a_node_that_forwards_lets_clients_ask_the_origins_themselves() -> Result<()> {
    for options in [ONE_LINK, TWO_LINKS] {
        let lab = Lab::new(options)?;
        let a = lab.origin_a(Family::Ipv4);
        let early = lab.client.enter(|| TcpStream::connect_timeout(&a, Duration::from_millis(100)))?;
        assert!(early.is_err(), "before that it forwards nothing");
        lab.forward()?;
        for family in Family::ALL {
            for (address, name) in [(lab.origin_a(family), "a"), (lab.origin_b(family), "b")] {
                let answer = lab.client.enter(|| http_get(address, "/", SECOND))??;
                assert_eq!((answer.status, answer.origin.as_deref()), (200, Some(name)), "{address}");
            }
            let sources = Some(lab.clients(family));
            let options = LoadOptions { sources, ..LoadOptions::figures(lab.origin_a(family)) };
            let load = Load::start(&lab.client, options)?;
            wait_until("each client has asked", 5 * SECOND, || load.look(<[Record]>::len) >= 4 * CLIENTS)?;
            assert!(load.finish()?.iter().all(|one| one.outcome.is_ok() && one.origin == Some('a')), "{family:?}");
        }
    }
    Ok(())
}

#[test]
fn haproxy_passes_the_origin_on() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    for family in Family::ALL {
        let port = if family == Family::Ipv4 { PROXY_PORT } else { PROXY_PORT + 1 };
        let _proxy = HaProxy::start(&lab.node, lab.dir(), port, lab.origin_a(family))?;
        for outside in Family::ALL {
            let address = lab.node_for_client(outside, port);
            let answer = lab.client.enter(|| http_get(address, "/", SECOND))??;
            assert_eq!((answer.status, answer.origin.as_deref()), (200, Some("a")));
        }
        lab.a.fail(Fault::Errors)?;
        let address = lab.node_for_client(family, port);
        assert_eq!(lab.client.enter(|| http_get(address, "/", SECOND))??.status, 503);
        lab.a.restore()?;
    }
    Ok(())
}

/// What each fault does to users without Sluice; the load must see exactly that.
#[test]
fn the_load_tells_the_faults_apart() -> Result<()> {
    let table = [
        (Fault::Refused, Outcome::Refused, false),
        (Fault::Blackhole, Outcome::Timeout, false),
        (Fault::Hang, Outcome::Timeout, true),
    ];
    for (fault, outcome, connects) in table {
        let mut lab = Lab::new(ONE_LINK)?;
        lab.a.fail(fault)?;
        // Slowly enough for the backlog (511) of a server that accepts nothing more.
        let figures = LoadOptions::figures(lab.origin_a(Family::Ipv4));
        let options = LoadOptions { limit: SECOND, per_second: 200, ..figures };
        let records = measure(&lab, options, 100)?;
        let wrong = records.iter().find(|record| record.outcome != outcome || record.connect_ns.is_some() != connects);
        assert_eq!(wrong, None, "{fault:?}");
    }
    Ok(())
}

#[test]
fn proxies_pass_the_origin_on_and_wrk_counts_what_fails() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    for (port, kind) in [(PROXY_PORT, ProxyKind::Defaults), (PROXY_PORT + 1, ProxyKind::KeepAlive)] {
        let proxy = Nginx::proxy(&lab.node, lab.dir(), port, lab.origin_a(Family::Ipv4), kind)?;
        for family in Family::ALL {
            let address = lab.node_for_client(family, port);
            let answer = lab.client.enter(|| http_get(address, "/", SECOND))??;
            assert_eq!((answer.status, answer.origin.as_deref()), (200, Some("a")));
        }
        let target = lab.node_for_client(Family::Ipv4, port);
        let healthy = Wrk::start(&lab.client, target, 8, 1)?.finish()?;
        assert!(healthy.requests > 100 && healthy.errors == 0, "{healthy:?}");
        lab.a.fail(Fault::Refused)?;
        let answer = lab.client.enter(|| http_get(target, "/", SECOND))??;
        assert_eq!(answer.status, 502);
        let broken = Wrk::start(&lab.client, target, 8, 1)?.finish()?;
        assert!(broken.errors > 100, "{broken:?}");
        lab.a.restore()?;
        drop(proxy);
    }
    Ok(())
}
