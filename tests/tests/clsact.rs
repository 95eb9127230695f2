//! Kernels before 6.6 have no TCX: filters under clsact do the same job.
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own).

use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{Daemon, Family, Fault, Lab, LabConfig, LabOptions, http_get, run, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// Our filters on the node's interface towards the origins, in both directions.
fn filters(lab: &Lab) -> Result<usize> {
    let mut count = 0;
    for direction in ["ingress", "egress"] {
        let shown = run(&lab.node, "tc", &["filter", "show", "dev", "orig0", direction])?;
        ensure!(shown.code == Some(0), "tc failed: {}", shown.stderr);
        count += shown.stdout.lines().filter(|line| line.contains("direct-action")).count();
    }
    Ok(count)
}

#[test]
fn filters_steer_are_taken_over_and_go_away() -> Result<()> {
    let mut lab = Lab::new(LabOptions { two_links: false })?;
    // By packet, so that it is the filters that move the traffic.
    let config = LabConfig::of(&lab).without_socket_steering();
    let mut daemon = Daemon::prepare(&lab, &config)?;
    daemon.set_variable("SLUICE_TC", "clsact");
    daemon.start()?;
    assert_eq!(filters(&lab)?, 2);
    daemon.kill()?;
    daemon.start()?;
    assert_eq!(filters(&lab)?, 2, "taken over, not doubled");
    let a = lab.origin_a(Family::Ipv4);
    lab.a.fail(Fault::Refused)?;
    wait_until("new connections are answered by b", 20 * SECOND, || {
        let answer = lab.node.enter(|| http_get(a, "/", SECOND));
        answer.is_ok_and(|answer| answer.is_ok_and(|answer| answer.origin.as_deref() == Some("b")))
    })?;
    // The first refusals are turned around; once they have tripped the origin, SYNs are steered as they leave.
    wait_until("metrics say who did it", 20 * SECOND, || {
        // Whatever it answers: it is one more SYN.
        drop(lab.node.enter(|| http_get(a, "/", SECOND)));
        let steered = daemon.metrics().ok().and_then(|m| m.value("sluice_steered_total", &[("hook", "tc_egress")]));
        steered.is_some_and(|flows| flows >= 1.0)
    })?;
    let detached = daemon.cli(&["detach", "--force"])?;
    assert_eq!(detached.code, Some(0), "{}", detached.stderr);
    assert_eq!(filters(&lab)?, 0);
    Ok(())
}
