//! What the main job must show besides `cargo xtask run`.
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own).

use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::{
    Daemon, Family, Fault, Lab, LabConfig, LabOptions, Load, LoadOptions, Nginx, PROXY_PORT, ProxyKind, Record, Wrk,
    http_get, wait_until,
};

const ONE_LINK: LabOptions = LabOptions { two_links: false };
const SECOND: Duration = Duration::from_secs(1);
/// wrk's connections, and so the most requests that can be in flight.
const CONNECTIONS: u32 = 8;
const WRK_SECONDS: u32 = 8;
/// Log of the requests before the fault: learning needs 20, and all connections of the pool shall be in use.
const WARM_BYTES: u64 = 500_000;

#[test]
fn wrk_through_a_keep_alive_proxy_hardly_notices_that_a_is_killed() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    let daemon = Daemon::start_in(&lab, &LabConfig::of(&lab))?;
    let a = lab.origin_a(Family::Ipv4);
    let proxy = Nginx::proxy(&lab.node, lab.dir(), PROXY_PORT, a, ProxyKind::KeepAlive)?;
    let target = lab.node_for_client(Family::Ipv4, PROXY_PORT);
    let healthy = |name| daemon.status().is_ok_and(|status| status.state("shop4", name) == Some("healthy"));
    let wrk = Wrk::start(&lab.client, target, CONNECTIONS, WRK_SECONDS)?;
    wait_until("wrk is warm and both origins are healthy", 6 * SECOND, || {
        proxy.access_log_bytes() >= WARM_BYTES && healthy("a") && healthy("b")
    })?;
    lab.a.fail(Fault::Refused)?;
    let moved = lab.client.enter(|| http_get(target, "/", SECOND))?;
    let report = wrk.finish()?;
    assert!(report.errors <= 10 + u64::from(CONNECTIONS), "{report:?}, and one at the kill: {moved:?}");
    let now = lab.client.enter(|| http_get(target, "/", SECOND))??;
    assert_eq!((now.status, now.origin.as_deref()), (200, Some("b")));
    Ok(())
}

#[test]
fn maps_are_decoded_with_the_daemon_stopped() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let mut daemon = Daemon::start_in(&lab, &LabConfig::of(&lab))?;
    let a = lab.origin_a(Family::Ipv4);
    let load = Load::start(&lab.node, LoadOptions::figures(a))?;
    wait_until("some traffic", 20 * SECOND, || load.look(<[Record]>::len) >= 500)?;
    drop(load.finish()?);
    daemon.stop()?;
    for arguments in [["maps", "--json"], ["status", "--json"]] {
        assert_eq!(daemon.cli(&arguments)?.code, Some(4), "the daemon is gone, the maps answer");
    }
    let maps = daemon.maps()?;
    assert_eq!(maps.daemon_pid, None);
    assert!(!maps.programs.is_empty() && maps.programs.iter().all(|program| program["attached"] == true), "{maps:?}");
    for map in &maps.maps {
        // What waits in a ring buffer is no number of entries.
        let counted = map["used"].is_u64() || (map["used"].is_null() && map["type"] == "ringbuf");
        let numbers = ["max", "memory_bytes"].map(|key| map[key].as_u64());
        assert!(map["name"].is_string() && counted && numbers.iter().all(Option::is_some), "{map}");
    }
    for family in Family::ALL {
        let address = lab.origin_a(family).to_string();
        let frontend = maps.frontend(&address).with_context(|| format!("no frontend {address}"))?;
        assert_eq!(frontend["service"], family.service());
        assert!(frontend["slots"].as_object().is_some_and(|slots| slots.contains_key("a")), "{frontend}");
        for (name, address) in [("a", lab.origin_a(family)), ("b", lab.origin_b(family))] {
            let origin = maps.origin(family.service(), name).with_context(|| format!("no {name}"))?;
            assert_eq!(origin["address"], address.to_string());
        }
    }
    let counters = maps.counters("shop4", "a");
    assert!(counters.get("syn") >= Some(&500) && counters.get("synack") >= Some(&500), "{counters:?}");
    Ok(())
}
