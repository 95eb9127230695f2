//! `sluice flows` against the kernel's tables, beside a daemon and without one.
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own).

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::{Daemon, Family, Fault, Lab, LabConfig, LabOptions, wait_until};
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
    let check = |daemon: &Daemon, code: i32| -> Result<()> {
        for (family, stream) in &held {
            let (a, b) = (lab.origin_a(*family).to_string(), lab.origin_b(*family).to_string());
            let (got, flow) = flow(daemon, stream.local_addr()?)?;
            let flow = flow.context("the flow is not shown")?;
            assert_eq!(got, Some(code));
            let words = ["asked", "served_by", "service", "origin", "state"].map(|key| flow[key].as_str());
            assert_eq!(words, [&a, &b, family.service(), "b", "established"].map(Some), "{flow}");
            assert_eq!(flow["redirected"], true, "{flow}");
            assert!(flow["rtt_us"].as_u64().is_some_and(|us| us > 0) && flow["unanswered_ms"].is_null(), "{flow}");
        }
        Ok(())
    };
    check(&daemon, 0)?;
    let of_a = daemon.cli(&["flows", "--origin", "a"])?.success()?;
    assert!(!of_a.contains("redirected"), "{of_a}");
    let one = daemon.cli(&["flows", "--origin", "b", "--limit", "1"])?.success()?;
    assert!(one.contains("-- 1 more (--limit 0 shows all)"), "{one}");
    daemon.kill()?;
    check(&daemon, 4)
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
