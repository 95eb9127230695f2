//! Trouble while it runs: interfaces that come late, a daemon that dies, origins that never lived.
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own).

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::{
    Daemon, Family, Fault, Lab, LabConfig, LabOptions, Load, LoadOptions, Record, Status, http_get, is_long, now_ns,
    wait_until,
};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::Signal;

const ONE_LINK: LabOptions = LabOptions { two_links: false };
const SECOND: Duration = Duration::from_secs(1);
/// So many connections in a row show where traffic goes.
const RUN: usize = 50;
/// Failures that the figures allow a killed origin.
const FAILED_MAX: usize = 10;

/// Waits until the last connections that started after now were all answered by `origin`.
fn wait_all_on(load: &Load, origin: char) -> Result<()> {
    let since = now_ns();
    wait_until(&format!("{RUN} connections in a row on {origin}"), 30 * SECOND, || {
        let mut fresh = load.pick(|record| record.start_ns > since);
        fresh.sort_by_key(|record| record.start_ns);
        let good = |record: &Record| record.outcome.is_ok() && record.origin == Some(origin);
        fresh.len() >= RUN && fresh.iter().rev().take(RUN).all(good)
    })
}

/// Waits for `count` more connections to end.
fn wait_more(load: &Load, count: usize) -> Result<()> {
    let before = load.look(<[Record]>::len);
    wait_until("more connections end", 60 * SECOND, || load.look(<[Record]>::len) >= before + count)
}

fn wait_state(daemon: &Daemon, service: &str, origin: &str, wanted: &str) -> Result<BTreeSet<String>> {
    let mut seen = BTreeSet::new();
    let what = format!("{service}/{origin} is {wanted}");
    let found = wait_until(&what, 30 * SECOND, || {
        let state = daemon.status().ok().and_then(|status| status.state(service, origin).map(str::to_owned));
        let done = state.as_deref() == Some(wanted);
        seen.extend(state);
        done
    });
    found.with_context(|| format!("seen: {seen:?}"))?;
    Ok(seen)
}

fn checks(daemon: &Daemon, service: &str, origin: &str, result: &str) -> f64 {
    let labels = [("service", service), ("origin", origin), ("check", "web"), ("result", result)];
    daemon.metrics().ok().and_then(|metrics| metrics.value("sluice_check_total", &labels)).unwrap_or_default()
}

#[test]
fn a_missing_interface_is_waited_for_and_said_once() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let mut config = LabConfig::of(&lab);
    config.interfaces.push("late0".to_owned());
    let daemon = Daemon::start_in(&lab, &config)?;
    // Several rounds of everything that the daemon does again and again.
    wait_until("checks have run", 20 * SECOND, || checks(&daemon, "shop4", "a", "pass") >= 3.0)?;
    let said = daemon.log().lines().filter(|line| line.contains("late0")).count();
    assert_eq!(said, 1, "{}", daemon.log());
    lab.node.ip("link add late0 type veth peer name late1\nlink set dev late1 up\nlink set dev late0 up\n")?;
    let attached = || daemon.metrics().ok()?.value("sluice_attached", &[("interface", "late0")]);
    wait_until("late0 is attached", 20 * SECOND, || attached().is_some_and(|hooks| hooks >= 1.0))
}

/// P12 (a).
#[test]
fn kill_under_load_loses_no_connection_and_the_next_start_adopts() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let config = LabConfig::of(&lab);
    let mut daemon = Daemon::start_in(&lab, &config)?;
    let load = Load::start(&lab.node, LoadOptions::figures(lab.origin_a(Family::Ipv4)))?;
    wait_more(&load, 1000)?;
    let before = daemon.maps()?;
    daemon.kill()?;
    wait_more(&load, 1000)?;
    let orphaned = daemon.maps()?;
    // Reordered and with one service removed: neither may move evidence to another origin.
    let mut changed = config.only(Family::Ipv4);
    changed.b_first = true;
    daemon.write_config(&daemon.config_text(&changed))?;
    daemon.start()?;
    wait_more(&load, 1000)?;
    let after = daemon.maps()?;
    let records = load.finish()?;
    assert_eq!(records.iter().find(|record| !record.outcome.is_ok()), None, "a connection was lost");
    assert_eq!(after.daemon_pid, daemon.pid());
    for origin in ["a", "b"] {
        let id = |maps: &lab::MapsView| maps.origin("shop4", origin).map(|origin| origin["id"].clone());
        assert_eq!((id(&before), id(&orphaned)), (id(&after), id(&after)), "id of {origin}");
        let counted = [&before, &orphaned, &after].map(|maps| maps.counters("shop4", origin));
        for pair in counted.windows(2) {
            // What is open now, and what is still unanswered, are no counts: both may fall.
            let falls = ["conns_open", "syn_timeout", "no_response"];
            for (name, value) in pair[0].iter().filter(|(name, _)| !falls.contains(&name.as_str())) {
                assert!(pair[1].get(name) >= Some(value), "{origin}: {name} stepped back: {counted:?}");
            }
        }
    }
    let syn = |maps: &lab::MapsView| maps.counters("shop4", "a").get("syn").copied().unwrap_or_default();
    assert!(syn(&before) < syn(&orphaned) && syn(&orphaned) < syn(&after), "the kernel goes on counting");
    assert!(after.frontend(&lab.origin_a(Family::Ipv6).to_string()).is_none(), "the removed service is gone");
    Ok(())
}

#[test]
fn without_the_daemon_the_kernel_still_trips_steers_and_comes_back() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    let mut daemon = Daemon::start_in(&lab, &LabConfig::of(&lab))?;
    let load = Load::start(&lab.node, LoadOptions::figures(lab.origin_a(Family::Ipv4)))?;
    wait_more(&load, 1500)?;
    daemon.kill()?;
    let fault_ns = lab.a.fail(Fault::Refused)?;
    wait_all_on(&load, 'b')?;
    lab.a.restore()?;
    // No daemon, no confirmed fault: a trial that succeeds clears the trip.
    wait_all_on(&load, 'a')?;
    daemon.start()?;
    wait_more(&load, 500)?;
    let records = load.finish()?;
    // Those that a had accepted, and trials, are not the kernel's to save.
    let in_flight = |record: &Record| record.connected_ns().is_some_and(|at_ns| at_ns <= fault_ns);
    let failed = records.iter().filter(|record| !record.outcome.is_ok() && !in_flight(record)).count();
    let trials = daemon.events()?.iter().filter(|event| event.what == "trial").count();
    assert!(failed <= FAILED_MAX + trials, "{failed} failed, {trials} trials");
    Ok(())
}

/// The daemon judged, and died. Its word is on a lease of a minute; then trials decide.
#[test]
fn a_fault_that_traffic_showed_ends_without_the_daemon() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    let mut daemon = Daemon::start_in(&lab, &LabConfig::of(&lab).only(Family::Ipv4))?;
    let load =
        Load::start(&lab.node, LoadOptions { per_second: 100, ..LoadOptions::figures(lab.origin_a(Family::Ipv4)) })?;
    wait_more(&load, 500)?;
    lab.a.fail(Fault::Refused)?;
    wait_state(&daemon, Family::Ipv4.service(), "a", "fault")?;
    daemon.kill()?;
    lab.a.restore()?;
    let restored_ns = now_ns();
    let on_a = || load.pick(|record| record.start_ns > restored_ns && record.origin == Some('a'));
    wait_until("the lease runs out and a trial succeeds", 90 * SECOND, || on_a().len() >= RUN)?;
    let first_ns = on_a().iter().map(|record| record.start_ns).min().unwrap_or_default();
    assert!(first_ns - restored_ns > 30_000_000_000, "a came back before its lease could have run out");
    wait_all_on(&load, 'a')?;
    load.finish()?;
    daemon.start()?;
    assert!(daemon.status()?.state(Family::Ipv4.service(), "a") != Some("fault"), "it is not held out again");
    Ok(())
}

#[test]
fn an_origin_that_never_answered_is_never_healthy() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    // a swallows everything from the start; nobody has the address of b.
    lab.a.fail(Fault::Blackhole)?;
    let config = LabConfig::of(&lab).with_b_at(|family| lab.nobody(family));
    let daemon = Daemon::start_in(&lab, &config)?;
    for family in Family::ALL {
        for origin in ["a", "b"] {
            // Where nothing at all answers, it may be the node's own trouble: then they are held at `high_risk`.
            let out = |status: Status| matches!(status.state(family.service(), origin), Some("fault" | "high_risk"));
            wait_until("it is judged", 30 * SECOND, || daemon.status().is_ok_and(out))?;
        }
    }
    let ever = daemon.events()?.into_iter().find(|event| event.what == "state" && event.detail.contains("healthy"));
    assert_eq!(ever, None);
    Ok(())
}

#[test]
fn checks_and_direct_see_the_dead_origin_while_traffic_is_on_the_standby() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    let daemon = Daemon::start_in(&lab, &LabConfig::of(&lab))?;
    let a = lab.origin_a(Family::Ipv4);
    let load = Load::start(&lab.node, LoadOptions::figures(a))?;
    wait_all_on(&load, 'a')?;
    let url = format!("http://{a}/");
    let curl = ["direct", "--", "curl", "--silent", "--show-error", "--max-time", "2", &url];
    assert_eq!(daemon.cli(&curl)?.success()?, "a\n", "unsteered and alive");
    lab.a.fail(Fault::Refused)?;
    wait_all_on(&load, 'b')?;
    wait_state(&daemon, "shop4", "a", "fault")?;
    let (passed, failed) = (checks(&daemon, "shop4", "a", "pass"), checks(&daemon, "shop4", "a", "fail"));
    wait_until("checks of a go on failing", 20 * SECOND, || checks(&daemon, "shop4", "a", "fail") >= failed + 3.0)?;
    assert_eq!(checks(&daemon, "shop4", "a", "pass").total_cmp(&passed), std::cmp::Ordering::Equal, "steered to b");
    let steered = lab.node.enter(|| http_get(a, "/", SECOND))??;
    assert_eq!(steered.origin.as_deref(), Some("b"));
    let direct = daemon.cli(&curl)?;
    assert_ne!(direct.code, Some(0), "`direct` was steered: {direct:?}");
    Ok(())
}

/// Every origin of the lab is healthy.
fn all_healthy(daemon: &Daemon) -> bool {
    daemon.status().is_ok_and(|status| {
        let all = Family::ALL.iter().flat_map(|family| ["a", "b"].map(|origin| (family.service(), origin)));
        all.into_iter().all(|(service, origin)| status.state(service, origin) == Some("healthy"))
    })
}

/// States that changed since then, which nothing of this node's should bring about.
fn changes(daemon: &Daemon, since_ns: u64) -> Result<Vec<lab::Event>> {
    let changed = ["state", "failover", "failback", "trip"];
    Ok(daemon
        .events()?
        .into_iter()
        .filter(|event| event.at_ns > since_ns && changed.contains(&event.what.as_str()))
        .collect())
}

/// P39: what this node lacks says nothing about origins, and is said. Another test shows it for each kind of check.
#[test]
fn p39_what_the_node_lacks_changes_no_state_and_raises_an_alarm() -> Result<()> {
    // The second word about the same trouble comes ten seconds after the first: then more rounds were lost than `fall`.
    let words = if is_long() { 2 } else { 1 };
    let lab = Lab::new(ONE_LINK)?;
    let daemon = Daemon::start_in(&lab, &LabConfig::of(&lab))?;
    wait_until("all origins are healthy", 30 * SECOND, || all_healthy(&daemon))?;
    let since_ns = now_ns();
    // EADDRNOTAVAIL: the only port that there is, is taken.
    let taken = lab.node.enter(|| TcpListener::bind(("::", 20_000)))??;
    lab.node.sysctl("ipv4/ip_local_port_range", "20000 20000")?;
    let said = |reason: &str| {
        daemon.log().lines().filter(|line| line.contains("local trouble") && line.contains(reason)).count()
    };
    wait_until("a lack of ports is said", 30 * SECOND, || said("ports") >= words)?;
    ensure!(all_healthy(&daemon), "{:?}", daemon.status());
    lab.node.sysctl("ipv4/ip_local_port_range", "32768 60999")?;
    drop(taken);
    // EMFILE: not one descriptor more. The daemon can't even be asked meanwhile.
    let pid = daemon.pid().context("the daemon runs")?.to_string();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let limit = |soft: &str| Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={soft}:")]).status();
    ensure!(limit("3")?.success(), "prlimit");
    let lost = wait_until("a lack of descriptors is said", 30 * SECOND, || said("descriptors") >= words);
    // The daemon raises its own to the hard limit, which is this process's.
    ensure!(limit(&hard.to_string())?.success(), "prlimit");
    lost?;
    let before = checks(&daemon, "shop4", "a", "pass");
    wait_until("checks run again", 30 * SECOND, || checks(&daemon, "shop4", "a", "pass") >= before + 2.0)?;
    ensure!(all_healthy(&daemon), "{:?}", daemon.status());
    assert_eq!(changes(&daemon, since_ns)?, [], "the node's own trouble was held against origins");
    let alarms: Vec<_> = daemon.events()?.into_iter().filter(|event| event.what == "local_trouble").collect();
    for reason in ["ports", "descriptors"] {
        let alarm = alarms.iter().find(|alarm| alarm.detail.starts_with(reason));
        ensure!(alarm.is_some_and(|alarm| alarm.object == "lab"), "no alarm about {reason}: {alarms:?}");
    }
    Ok(())
}

/// P27 (b): what was missed while nobody ran is one round each, and held against nobody.
#[test]
fn p27_b_a_daemon_that_was_stopped_holds_nothing_against_origins() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let daemon = Daemon::start_in(&lab, &LabConfig::of(&lab))?;
    let load = Load::start(&lab.node, LoadOptions::figures(lab.origin_a(Family::Ipv4)))?;
    wait_until("all origins are healthy", 30 * SECOND, || all_healthy(&daemon))?;
    let (since_ns, failed) = (now_ns(), checks(&daemon, "shop4", "a", "fail"));
    daemon.signal(Signal::SIGSTOP)?;
    // 500 a second: half a minute, or three seconds.
    wait_more(&load, if is_long() { 15_000 } else { 1_500 })?;
    daemon.signal(Signal::SIGCONT)?;
    let passed = checks(&daemon, "shop4", "a", "pass");
    wait_until("checks run again", 30 * SECOND, || checks(&daemon, "shop4", "a", "pass") >= passed + 3.0)?;
    assert_eq!(changes(&daemon, since_ns)?, []);
    ensure!(all_healthy(&daemon), "{:?}", daemon.status());
    assert_eq!(checks(&daemon, "shop4", "a", "fail").total_cmp(&failed), std::cmp::Ordering::Equal, "a check failed");
    let lost = load.finish()?.into_iter().find(|record| !record.outcome.is_ok());
    assert_eq!(lost, None);
    Ok(())
}
