//! `sluice flows` against the kernel's tables, beside a daemon and without one.
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own).

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::{Daemon, Family, Fault, Lab, LabConfig, LabOptions, wait_until};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use serde_json::Value;

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(10);

/// What `sluice flows --json` shows of the flow of `node`, with its exit code and how many more there are.
fn flow(daemon: &Daemon, node: SocketAddr) -> Result<(Option<i32>, Option<Value>)> {
    let shown = daemon.cli(&["flows", "--json", "--limit", "0"])?;
    let report: Value = serde_json::from_str(&shown.stdout).with_context(|| shown.stderr.clone())?;
    let flows = report["flows"].as_array().context("no list of flows")?;
    Ok((shown.code, flows.iter().find(|flow| flow["node"] == node.to_string()).cloned()))
}

#[test]
fn a_redirected_flow_shows_both_addresses_with_and_without_the_daemon() -> Result<()> {
    let lab = Lab::new(LabOptions { two_links: false })?;
    let mut daemon = Daemon::start_in(&lab, &LabConfig::of(&lab).without_socket_steering())?;
    for service in ["shop4", "shop6"] {
        let origin = format!("{service}/a");
        wait_until("b is healthy", LIMIT, || {
            daemon.status().is_ok_and(|status| status.state(service, "b") == Some("healthy"))
        })?;
        daemon.cli(&["origin", "fail", &origin])?.success()?;
    }
    let held: Result<Vec<_>> = Family::ALL
        .into_iter()
        .map(|family| {
            let a = lab.origin_a(family);
            let stream = lab.node.enter(|| TcpStream::connect_timeout(&a, SECOND))??;
            Ok((family, stream))
        })
        .collect();
    let held = held?;
    lab.node.sysctl("ipv4/ip_forward", "1")?;
    let a = lab.origin_a(Family::Ipv4);
    let client = lab.client.enter(|| TcpStream::connect_timeout(&a, SECOND))??;
    let (_, forwarded) = flow(&daemon, client.local_addr()?)?;
    let forwarded = forwarded.context("the client's flow is not shown")?;
    assert_eq!(forwarded["forwarded"], true, "{forwarded}");
    drop(client);
    let check = |daemon: &Daemon, code: i32| -> Result<()> {
        for (family, stream) in &held {
            let (a, b) = (lab.origin_a(*family).to_string(), lab.origin_b(*family).to_string());
            let (got, flow) = flow(daemon, stream.local_addr()?)?;
            let flow = flow.context("the flow is not shown")?;
            assert_eq!(got, Some(code));
            let words = ["asked", "served_by", "service", "origin", "state"].map(|key| flow[key].as_str());
            assert_eq!(words, [&a, &b, family.service(), "b", "established"].map(Some), "{flow}");
            assert_eq!((&flow["redirected"], &flow["forwarded"]), (&true.into(), &false.into()), "{flow}");
            assert!(flow["translated_port"].is_null(), "{flow}");
            assert!(flow["rtt_us"].as_u64().is_some_and(|us| us > 0) && flow["unanswered_ms"].is_null(), "{flow}");
        }
        Ok(())
    };
    check(&daemon, 0)?;
    let of_a = daemon.cli(&["flows", "--origin", "a"])?.success()?;
    assert!(!of_a.contains("redirected"), "{of_a}");
    let one = daemon.cli(&["flows", "--origin", "b", "--limit", "1"])?.success()?;
    assert!(one.contains(" more (--limit 0 shows all)"), "{one}");
    daemon.kill()?;
    check(&daemon, 4)
}

/// A connection from a given port, which others may use too, for other peers.
fn connect_from(port: u16, to: SocketAddr) -> Result<TcpStream> {
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    bind(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::from(([0, 0, 0, 0], port))))?;
    connect(fd.as_raw_fd(), &SockaddrStorage::from(to))?;
    Ok(fd.into())
}

#[test]
fn a_port_that_was_taken_on_the_way_to_the_standby_is_shown() -> Result<()> {
    const PORT: u16 = 20_000;
    let lab = Lab::new(LabOptions { two_links: false })?;
    let daemon = Daemon::start_in(&lab, &LabConfig::of(&lab).without_socket_steering())?;
    wait_until("b is healthy", LIMIT, || {
        daemon.status().is_ok_and(|status| status.state("shop4", "b") == Some("healthy"))
    })?;
    daemon.cli(&["origin", "fail", "shop4/a"])?.success()?;
    let (a, b) = (lab.origin_a(Family::Ipv4), lab.origin_b(Family::Ipv4));
    let _direct = lab.node.enter(|| connect_from(PORT, b))??;
    let _redirected = lab.node.enter(|| connect_from(PORT, a))??;
    let shown = daemon.cli(&["flows", "--json", "--origin", "shop4/b"])?.success()?;
    let report: Value = serde_json::from_str(&shown)?;
    let port_of = |asked: SocketAddr| {
        let flows = report["flows"].as_array().into_iter().flatten();
        let node = SocketAddr::new(lab.node_towards_origins(Family::Ipv4), PORT).to_string();
        let found = flows.filter(|flow| flow["asked"] == asked.to_string() && flow["node"] == node);
        found.map(|flow| flow["translated_port"].as_u64()).collect::<Vec<_>>()
    };
    assert_eq!(port_of(b), [None], "{shown}");
    let translated = port_of(a);
    assert!(translated.len() == 1 && translated[0].is_some_and(|port| port != u64::from(PORT)), "{shown}");
    Ok(())
}

#[test]
fn an_attempt_that_nobody_answers_shows_how_long() -> Result<()> {
    let mut lab = Lab::new(LabOptions { two_links: false })?;
    let daemon = Daemon::start_in(&lab, &LabConfig::of(&lab).without_socket_steering())?;
    wait_until("a is healthy", LIMIT, || {
        daemon.status().is_ok_and(|status| status.state("shop4", "a") == Some("healthy"))
    })?;
    let a = lab.origin_a(Family::Ipv4);
    // Both, or the first repeat of the SYN would be answered by the standby.
    lab.a.fail(Fault::Blackhole)?;
    lab.b.fail(Fault::Blackhole)?;
    std::thread::scope(|scope| {
        scope.spawn(|| lab.node.enter(|| TcpStream::connect_timeout(&a, 3 * SECOND)));
        wait_until("the attempt is shown with its age", 3 * SECOND, || {
            let shown = daemon.cli(&["flows"]).map(|shown| shown.stdout).unwrap_or_default();
            let attempt = shown.lines().find(|line| line.contains(" half-open "));
            attempt.is_some_and(|line| line.contains(&a.to_string()) && line.contains("ms"))
        })
    })
}
