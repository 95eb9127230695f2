//! Orders to the daemon that go wrong, or that come at a bad time: what it says afterwards must be so.
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own).

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::{Daemon, Family, Fault, Lab, LabConfig, LabOptions, Load, LoadOptions, Record, http_get, wait_until};
use nix::sys::signal::Signal;

const ONE_LINK: LabOptions = LabOptions { two_links: false };
const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(10);

fn wait_state(daemon: &Daemon, service: &str, origin: &str, wanted: &str) -> Result<()> {
    let is = || daemon.status().is_ok_and(|status| status.state(service, origin) == Some(wanted));
    wait_until(&format!("{service}/{origin} is {wanted}"), LIMIT, is)
}

/// Who answers a connection from the node to `address`.
fn who_answers(lab: &Lab, address: SocketAddr) -> Result<Option<String>> {
    Ok(lab.node.enter(|| http_get(address, "/", SECOND))??.origin)
}

#[test]
fn a_refused_drain_leaves_steering_as_status_says() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let daemon = Daemon::start_in(&lab, &LabConfig::of(&lab).without_socket_steering())?;
    let a = lab.origin_a(Family::Ipv4);
    wait_state(&daemon, "shop4", "b", "healthy")?;
    daemon.cli(&["origin", "fail", "shop4/a"])?.success()?;
    let held = lab.node.enter(|| TcpStream::connect_timeout(&a, SECOND))??;
    assert_eq!(daemon.cli(&["detach"])?.code, Some(3));
    let refused = std::thread::scope(|scope| {
        let drain = scope.spawn(|| daemon.cli(&["detach", "--drain", "2s"]));
        // Who waits for somebody's long download must not keep the others waiting.
        wait_until("a reload meanwhile is refused", LIMIT, || {
            daemon.cli(&["reload"]).is_ok_and(|reload| reload.code == Some(3) && reload.stderr.contains("draining"))
        })?;
        drain.join().map_err(|_panic| anyhow::anyhow!("the drain panicked"))?
    })?;
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("steering goes on"), "{refused:?}");
    let share = daemon.status()?.origin("shop4", "b").and_then(|b| b.share_percent);
    assert_eq!((share, who_answers(&lab, a)?.as_deref()), (Some(100.0), Some("b")));
    drop(held);
    // Nothing is redirected now, or was cut; either way all is gone, and a answers for itself.
    daemon.cli(&["detach", "--force"])?.success()?;
    wait_until("the pins are gone", LIMIT, || !daemon.pin_dir().exists())?;
    assert_eq!(who_answers(&lab, a)?.as_deref(), Some("a"));
    Ok(())
}

#[test]
fn a_reload_that_cannot_be_applied_changes_nothing() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    let config = LabConfig::of(&lab);
    let daemon = Daemon::start_in(&lab, &config)?;
    let a = lab.origin_a(Family::Ipv4);
    wait_state(&daemon, "shop4", "b", "healthy")?;
    let before = daemon.maps()?;
    // One service less, and a namespace that is not there: known only when the kernel is written.
    let text = daemon.config_text(&config.only(Family::Ipv6));
    daemon.write_config(&text.replacen("[control]", "netns = [\"/run/netns/sluice-nowhere\"]\n[control]", 1))?;
    let refused = daemon.cli(&["reload"])?;
    assert_ne!(refused.code, Some(0), "{refused:?}");
    assert!(refused.stderr.contains("sluice-nowhere"), "{refused:?}");
    daemon.signal(Signal::SIGHUP)?;
    wait_until("the refusal is logged as an error", LIMIT, || {
        daemon.log().lines().any(|line| line.contains("ERROR") && line.contains("reload refused"))
    })?;
    let after = daemon.maps()?;
    assert_eq!(before.frontends.len(), after.frontends.len());
    lab.a.fail(Fault::Refused)?;
    wait_state(&daemon, "shop4", "a", "fault")?;
    assert_eq!(who_answers(&lab, a)?.as_deref(), Some("b"));
    let read = daemon.metrics()?.value("sluice_signal_total", &[("service", "shop4"), ("signal", "syn")]);
    assert!(read.is_some(), "its evidence is read no more");
    Ok(())
}

#[test]
fn what_a_reload_removes_is_gone_from_the_next_scrape() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let config = LabConfig::of(&lab);
    let daemon = Daemon::start_in(&lab, &config)?;
    for (families, wanted) in [(config.clone().only(Family::Ipv6), false), (config, true)] {
        daemon.write_config(&daemon.config_text(&families))?;
        daemon.cli(&["reload"])?.success()?;
        let scrape = daemon.metrics()?;
        assert_eq!(scrape.as_str().contains("\"shop4\""), wanted, "{}", scrape.as_str());
        for service in families_of(wanted) {
            for origin in ["a", "b"] {
                let labels = [("service", *service), ("origin", origin)];
                assert_eq!(scrape.value("sluice_origin_state", &labels), Some(1.0), "{service}/{origin}");
            }
        }
    }
    Ok(())
}

const fn families_of(both: bool) -> &'static [&'static str] {
    if both { &["shop4", "shop6"] } else { &["shop6"] }
}

#[test]
fn a_renamed_service_keeps_its_origins_and_shows_its_new_name() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let config = LabConfig::of(&lab);
    let daemon = Daemon::start_in(&lab, &config)?;
    let a = lab.origin_a(Family::Ipv4);
    let load = Load::start(&lab.node, LoadOptions { per_second: 200, ..LoadOptions::figures(a) })?;
    wait_until("some connections end", LIMIT, || load.look(<[Record]>::len) > 100)?;
    let before = daemon.maps()?;
    daemon.write_config(&daemon.config_text(&config).replace("\"shop4\"", "\"store\""))?;
    for _ in 0..20 {
        daemon.signal(Signal::SIGHUP)?;
    }
    wait_state(&daemon, "store", "a", "healthy")?;
    wait_until("the new name is in the maps", LIMIT, || {
        let named = |maps: &lab::MapsView| maps.frontend(&a.to_string()).map(|frontend| frontend["service"].clone());
        daemon.maps().is_ok_and(|maps| named(&maps) == Some("store".into()))
    })?;
    let after = daemon.maps()?;
    let frontend = after.frontend(&a.to_string()).context("it is still steered")?;
    assert_eq!(frontend["slots"]["a"], 251, "{frontend}");
    let id = |maps: &lab::MapsView, service| maps.origin(service, "a").map(|origin| origin["id"].clone());
    assert_eq!(id(&before, "shop4"), id(&after, "store"));
    let records = load.finish()?;
    assert_eq!(records.iter().find(|record| !record.outcome.is_ok()), None, "a connection was lost");
    Ok(())
}

#[test]
fn mapped_addresses_are_steered_and_peers_are_those_asked_for() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let daemon = Daemon::start_in(&lab, &LabConfig::of(&lab))?;
    let (a4, a6) = (lab.origin_a(Family::Ipv4), lab.origin_a(Family::Ipv6));
    let SocketAddr::V4(v4) = a4 else { anyhow::bail!("{a4} is no IPv4 address") };
    let mapped = SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port());
    for origin in ["shop4/a", "shop6/a"] {
        let (service, _) = origin.split_once('/').context("a name")?;
        wait_state(&daemon, service, "b", "healthy")?;
        daemon.cli(&["origin", "fail", origin])?.success()?;
    }
    for asked in [a4, mapped, a6] {
        assert_eq!(who_answers(&lab, asked)?.as_deref(), Some("b"), "{asked}");
        let peer = lab.node.enter(|| TcpStream::connect_timeout(&asked, SECOND)?.peer_addr())??;
        assert_eq!(peer, asked);
    }
    Ok(())
}

#[test]
fn an_order_ends_by_itself_and_is_told_once() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let daemon = Daemon::start_in(&lab, &LabConfig::of(&lab))?;
    wait_state(&daemon, "shop4", "a", "healthy")?;
    daemon.cli(&["origin", "drain", "shop4/a", "--for", "1s"])?.success()?;
    let shown = daemon.cli(&["status", "shop4"])?.success()?;
    assert!(
        shown.contains("ON STANDBY") && !shown.contains("drained by root(uid 0), ends in 1.0s, ordered"),
        "{shown}"
    );
    wait_state(&daemon, "shop4", "a", "healthy")?;
    let events = daemon.events()?;
    let told: Vec<&str> =
        events.iter().filter(|event| event.what == "override").map(|event| event.detail.as_str()).collect();
    assert_eq!(told, ["drain", "ended, ran out"]);
    for unknown in ["shop4/z", "nope/a"] {
        assert_eq!(daemon.cli(&["origin", "drain", unknown])?.code, Some(1), "{unknown}");
    }
    Ok(())
}

#[test]
fn a_port_famine_on_the_node_is_no_evidence() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let daemon = Daemon::start_in(&lab, &LabConfig::of(&lab))?;
    wait_state(&daemon, "shop4", "a", "healthy")?;
    wait_state(&daemon, "shop4", "b", "healthy")?;
    let load =
        Load::start(&lab.node, LoadOptions { per_second: 50, ..LoadOptions::figures(lab.origin_a(Family::Ipv4)) })?;
    lab.node.sysctl("ipv4/ip_local_port_range", "40000 40001")?;
    let starved = || {
        let kept = daemon.metrics()?.value("sluice_check_total", &[("service", "shop4"), ("result", "local")]);
        Ok::<bool, anyhow::Error>(kept.is_some_and(|checks| checks >= 8.0))
    };
    wait_until("checks are short of ports", LIMIT, || starved().unwrap_or(false))?;
    assert_eq!(daemon.log().matches("local trouble").count(), 1, "said, and said once: {}", daemon.log());
    drop(load);
    for origin in ["a", "b"] {
        assert_eq!(daemon.status()?.state("shop4", origin), Some("healthy"), "{origin}");
    }
    let moved = daemon.events()?.into_iter().find(|event| event.what == "failover" || event.what == "trip");
    assert_eq!(moved, None);
    Ok(())
}

#[test]
fn direct_says_so_when_it_cannot_keep_a_command_from_being_steered() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let config = LabConfig::of(&lab);
    let daemon = Daemon::prepare(&lab, &config)?;
    let text = daemon.config_text(&config);
    daemon.write_config(&text.replacen("[control]", "bypass = { cgroups = [] }\n[control]", 1))?;
    let direct = daemon.cli(&["direct", "--", "true"])?;
    assert_eq!(direct.code, Some(1), "{direct:?}");
    assert!(direct.stderr.contains("bypass.cgroups"), "{direct:?}");
    Ok(())
}

#[test]
fn a_process_below_a_bypassed_cgroup_is_not_steered_either() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let daemon = Daemon::start_in(&lab, &LabConfig::of(&lab))?;
    let a = lab.origin_a(Family::Ipv4);
    wait_state(&daemon, "shop4", "b", "healthy")?;
    daemon.cli(&["origin", "fail", "shop4/a"])?.success()?;
    wait_until("b answers", LIMIT, || who_answers(&lab, a).is_ok_and(|who| who.as_deref() == Some("b")))?;
    let below = sluice::datapath::cgroup_root()?.join("sluice-direct").join(lab.unique());
    std::fs::create_dir_all(&below)?;
    let script = format!("echo $$ > {}/cgroup.procs && exec curl --silent --max-time 2 http://{a}/", below.display());
    let answer = daemon.cli(&["direct", "--", "sh", "-c", &script]);
    std::fs::remove_dir(&below)?;
    assert_eq!(answer?.success()?, "a\n");
    Ok(())
}
