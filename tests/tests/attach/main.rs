//! Hooks: which programs hang where, what keeps them from seeing, and what a start refuses.
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own).

mod foreign;

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use foreign::Foreign;
use lab::{Daemon, Family, Lab, LabConfig, LabOptions, http_get, wait_until};

const ONE_LINK: LabOptions = LabOptions { two_links: false };
const SECOND: Duration = Duration::from_secs(1);

/// The daemon with more keys in `[node]`.
fn daemon_with(lab: &Lab, config: &LabConfig, keys: &str) -> Result<Daemon> {
    let daemon = Daemon::prepare(lab, config)?;
    let text = daemon.config_text(config);
    ensure!(text.starts_with("[node]\n"), "the configuration begins with [node]: {text}");
    daemon.write_config(&text.replacen("[node]\n", &format!("[node]\n{keys}\n"), 1))?;
    Ok(daemon)
}

fn attached(daemon: &Daemon, interface: &str, hook: &str) -> Option<f64> {
    daemon.metrics().ok()?.value("sluice_attached", &[("interface", interface), ("hook", hook)])
}

fn is_attached(daemon: &Daemon, interface: &str, hook: &str) -> bool {
    attached(daemon, interface, hook).is_some_and(|value| value > 0.5)
}

/// Starts a daemon that must refuse; what it said.
fn refused(daemon: &mut Daemon) -> Result<String> {
    daemon.launch()?;
    wait_until("the daemon refuses to run", 20 * SECOND, || daemon.ended().is_some())?;
    let ended = daemon.ended().context("it has just ended")?;
    ensure!(!ended.success(), "it ended well");
    Ok(daemon.log())
}

fn event(daemon: &Daemon, what: &str) -> Result<lab::Event> {
    let find = || daemon.events().ok()?.into_iter().find(|event| event.what == what);
    wait_until(&format!("an event `{what}`"), 20 * SECOND, || find().is_some())?;
    find().context("it was there")
}

#[test]
fn programs_of_clients_and_xdp_come_and_go_with_their_interfaces() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let keys = "client_interfaces = [\"cli0\", \"orig0\"]\nxdp = [\"orig0\"]";
    let mut daemon = daemon_with(&lab, &LabConfig::of(&lab), keys)?;
    daemon.start()?;
    for (interface, hook) in [
        ("orig0", "xdp"),
        ("orig0", "tc_ingress"),
        ("orig0", "tc_egress"),
        ("orig0", "tc_client"),
        ("cli0", "tc_client"),
    ] {
        assert!(is_attached(&daemon, interface, hook), "{interface} {hook}\n{}", daemon.log());
    }
    // What clients send is steered before it is taken for an origin's answer.
    let order = chain(&lab, "orig0")?;
    assert_eq!(order, ["client", "ingress_behind"]);
    assert_eq!(daemon.events()?.iter().find(|event| event.what == "hook_blind"), None);
    lab.node.ip("link del cli0\n")?;
    wait_until("cli0 is gone", 20 * SECOND, || {
        attached(&daemon, "cli0", "tc_client").is_some_and(|value| value < 0.5)
    })?;
    lab.node.ip("link add cli0 type veth peer name cli1\nlink set dev cli0 up\n")?;
    wait_until("cli0 is attached again", 20 * SECOND, || is_attached(&daemon, "cli0", "tc_client"))?;
    // The next start takes all of them over.
    daemon.kill()?;
    daemon.start()?;
    assert_eq!(chain(&lab, "orig0")?, order, "taken over, not doubled");
    // A reload takes XDP away, and TC observes again.
    let text = fs::read_to_string(daemon.config())?.replace("xdp = [\"orig0\"]", "xdp = []");
    daemon.write_config(&text)?;
    daemon.cli(&["reload"])?.success()?;
    assert_eq!(chain(&lab, "orig0")?, ["client", "ingress"]);
    assert_eq!(attached(&daemon, "orig0", "xdp"), None);
    let answer = lab.node.enter(|| http_get(lab.origin_a(Family::Ipv4), "/", SECOND))??;
    assert_eq!(answer.origin.as_deref(), Some("a"));
    Ok(())
}

/// Names of the programs where packets arrive, in their order.
fn chain(lab: &Lab, interface: &str) -> Result<Vec<String>> {
    use aya::programs::{SchedClassifier, TcAttachType};
    let chain = lab.node.enter(|| SchedClassifier::query_tcx(interface, TcAttachType::Ingress))?;
    Ok(chain?.1.iter().filter_map(|program| program.name_as_str().map(str::to_owned)).collect())
}

/// P12 (c).
#[test]
fn a_foreign_xdp_program_is_named_and_left_alone() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let foreign = lab.node.enter(|| Foreign::xdp("orig0"))??;
    let mut daemon = daemon_with(&lab, &LabConfig::of(&lab), "xdp = [\"orig0\"]")?;
    let log = refused(&mut daemon)?;
    assert!(log.contains("orig0") && log.contains("`foreign`") && log.contains("node.xdp"), "{log}");
    let shown = lab::run(&lab.node, "ip", &["-details", "link", "show", "dev", "orig0"])?.success()?;
    assert!(shown.contains("prog/xdp"), "it is still there: {shown}");
    drop(foreign);
    Ok(())
}

#[test]
fn a_hook_that_another_program_blinds_is_found() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let foreign = lab.node.enter(|| Foreign::last_word_at_egress("orig0"))??;
    let daemon = Daemon::start_in(&lab, &LabConfig::of(&lab))?;
    let blind = event(&daemon, "hook_blind")?;
    assert!(blind.object.contains("orig0") && blind.detail.contains("tc_egress"), "{blind:?}");
    wait_until("metrics say so", 20 * SECOND, || attached(&daemon, "orig0", "tc_egress").is_some_and(|v| v < 0.5))?;
    assert!(is_attached(&daemon, "orig0", "tc_ingress"), "the other way is free");
    drop(foreign);
    daemon.cli(&["reload"])?.success()?;
    wait_until("a reload looks again", 20 * SECOND, || is_attached(&daemon, "orig0", "tc_egress"))
}

#[test]
fn another_word_on_the_syn_timeout_is_found() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let mut daemon = Daemon::start_in(&lab, &LabConfig::of(&lab))?;
    let overridden = |daemon: &Daemon| -> Result<Option<lab::Event>> {
        Ok(daemon.events()?.into_iter().find(|event| event.what == "syn_timeout_overridden"))
    };
    assert_eq!(overridden(&daemon)?, None, "{}", daemon.log());
    assert!(daemon.log().contains("SYN timeouts of sockets are in force"), "{}", daemon.log());
    // Attached after ours, so it has the last word. A little more than the stack's own second disturbs nobody.
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let root =
        mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|line| line.get(2) == Some(&"cgroup2"));
    let root = root.and_then(|line| line.get(1).copied()).context("no cgroup v2")?;
    let foreign = Foreign::timeout(root, 300)?;
    daemon.stop()?;
    daemon.start()?;
    let found = overridden(&daemon)?.with_context(|| daemon.log())?;
    assert!(found.detail.contains("2.3s"), "{found:?}");
    drop(foreign);
    Ok(())
}

#[test]
fn strict_reverse_path_filtering_before_a_standby_is_refused() -> Result<()> {
    let lab = Lab::new(LabOptions { two_links: true })?;
    lab.node.sysctl("ipv4/conf/orig1/rp_filter", "1")?;
    let mut daemon = Daemon::prepare(&lab, &LabConfig::of(&lab))?;
    let log = refused(&mut daemon)?;
    for part in ["shop4", "`a`", "`b`", "net.ipv4.conf.orig1.rp_filter = 2"] {
        assert!(log.contains(part), "{part}: {log}");
    }
    let mut daemon = Daemon::prepare(&lab, &LabConfig::of(&lab))?;
    for harmless in ["2", "0"] {
        lab.node.sysctl("ipv4/conf/orig1/rp_filter", harmless)?;
        daemon.start()?;
        daemon.stop()?;
    }
    // The stricter of the two counts.
    lab.node.sysctl("ipv4/conf/all/rp_filter", "1")?;
    let log = refused(&mut daemon)?;
    assert!(log.contains("rp_filter"), "{log}");
    Ok(())
}

#[test]
fn a_neighbour_that_nobody_answers_for_is_told() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let daemon = Daemon::start_in(&lab, &LabConfig::of(&lab))?;
    let signal = || {
        let labels = [("service", "shop4"), ("origin", "a"), ("signal", "unreachable")];
        let metrics = daemon.metrics().ok();
        metrics.and_then(|metrics| metrics.value("sluice_signal_total", &labels)).unwrap_or_default()
    };
    assert!(signal() < 0.5);
    lab.a.namespace().ip("link set dev eth0 down\n")?;
    // An entry that was good a moment ago is believed for half a minute and more, so it is forgotten; checks ask for it.
    lab.node.ip("neigh flush dev orig0\n")?;
    let lost = event(&daemon, "unreachable")?;
    assert!(lost.object.ends_with("/a"), "{lost:?}");
    wait_until("the signal is counted", 20 * SECOND, || signal() > 0.5)?;
    lab.a.namespace().ip("link set dev eth0 up\n")?;
    event(&daemon, "reachable")?;
    Ok(())
}

/// Flows that the smallest table can't hold: it has 1024 places.
const CROWD: usize = 3000;

#[test]
fn what_a_full_table_pushes_out_is_counted() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let mut daemon = daemon_with(&lab, &LabConfig::of(&lab), "limits = { flows = 1024, half_open = 1024 }")?;
    daemon.start()?;
    let value = |name: &str, labels: &[(&str, &str)]| daemon.metrics().ok()?.value(name, labels);
    wait_until("the tables are counted", 30 * SECOND, || {
        value("sluice_flow_evictions_total", &[("table", "flows")]).is_some_and(|evicted| evicted < 0.5)
    })?;
    // Nobody accepts them, and the handshakes end all the same: the backlog is longer than the crowd.
    let a = lab.origin_a(Family::Ipv4).ip();
    lab.a.namespace().sysctl("core/somaxconn", "4096")?;
    let listener = lab.a.namespace().enter(|| std::net::TcpListener::bind((a, 7)))??;
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(4096)?)?;
    let text = fs::read_to_string(daemon.config())?;
    let service = format!("\n[[service]]\nname = \"crowd\"\n[[service.origin]]\nname = \"a\"\naddress = \"{a}:7\"\n");
    daemon.write_config(&(text + &service))?;
    daemon.cli(&["reload"])?.success()?;
    let crowd: Vec<_> = lab.node.enter(|| {
        let connect = |_| std::net::TcpStream::connect_timeout(&(a, 7).into(), 5 * SECOND);
        (0..CROWD).map(connect).collect::<std::io::Result<_>>()
    })??;
    wait_until("what was pushed out is counted", 40 * SECOND, || {
        let evicted = value("sluice_flow_evictions_total", &[("table", "flows")]).unwrap_or_default();
        // The kernel gives room to some more than were asked for, for each CPU.
        evicted > 1000.0 && evicted < 3000.0
    })?;
    let entries = value("sluice_map_entries", &[("map", "flows")]).context("no entries")?;
    assert!(entries > 500.0 && entries < 2048.0, "{entries}");
    drop(crowd);
    Ok(())
}
