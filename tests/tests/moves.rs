//! What leaves an origin that fails, and what does not: the governor holds moves, idle connections are reset.
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own).

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::{Daemon, Family, Fault, Lab, LabConfig, LabOptions, Nginx, PROXY_PORT, ProxyKind, http_get, wait_until};

const ONE_LINK: LabOptions = LabOptions { two_links: false };
const SECOND: Duration = Duration::from_secs(1);
/// Where the two primaries of the governor's scene listen.
const PRIMARY_PORT: u16 = 9101;

fn has_event(daemon: &Daemon, what: &str, object: &str, detail: &str) -> bool {
    let events = daemon.events().unwrap_or_default();
    events.iter().any(|event| event.what == what && event.object == object && event.detail.contains(detail))
}

fn state(daemon: &Daemon, service: &str, origin: &str) -> Option<String> {
    daemon.status().ok()?.state(service, origin).map(str::to_owned)
}

/// Two hosts die, as their checks alone say, and one may be on the move: the flows of the other stay, and it is said
/// everywhere.
#[test]
fn the_governor_holds_the_second_cause_and_says_so() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let (a, b) = (lab.origin_a(Family::Ipv4), lab.origin_b(Family::Ipv4));
    let primaries = [SocketAddr::new(a.ip(), PRIMARY_PORT), SocketAddr::new(b.ip(), PRIMARY_PORT)];
    let mut listeners = vec![
        lab.a.namespace().enter(|| TcpListener::bind(primaries[0]))??,
        lab.b.namespace().enter(|| TcpListener::bind(primaries[1]))??,
    ];
    let service = |name: &str, primary: SocketAddr, standby: SocketAddr| {
        format!(
            "[[service]]\nname = \"{name}\"\n[[service.origin]]\nname = \"primary\"\naddress = \"{primary}\"\n\
             [[service.origin]]\nname = \"standby\"\naddress = \"{standby}\"\npriority = 1\n\
             [[service.check]]\ntype = \"tcp\"\ninterval = \"1s\"\n"
        )
    };
    let config = LabConfig::of(&lab).bare();
    let mut daemon = Daemon::prepare(&lab, &config)?;
    let text = daemon.config_text(&config);
    let services = service("one", primaries[0], b) + &service("two", primaries[1], a);
    daemon.write_config(&format!("{text}[node.governor]\ncauses_at_once = 1\n{services}"))?;
    daemon.start()?;
    let both =
        |wanted: &str| ["one", "two"].iter().all(|name| state(&daemon, name, "primary").as_deref() == Some(wanted));
    wait_until("all are healthy", 15 * SECOND, || both("healthy")).with_context(|| daemon.log_tail())?;
    wait_until("standbys are ready", 15 * SECOND, || {
        daemon.get("/metrics").is_ok_and(|text| text.contains("sluice_standby_ready{service=\"two\"} 1"))
    })?;
    listeners.remove(0);
    wait_until("one moves", 15 * SECOND, || has_event(&daemon, "failover", "one", "tier 0 > 1"))
        .with_context(|| daemon.log_tail())?;
    assert!(has_event(&daemon, "capacity_unset", "one/standby", "no capacity is declared"));
    listeners.clear();
    wait_until("two is held", 15 * SECOND, || has_event(&daemon, "withheld", "two/primary", "causes_at_once"))
        .with_context(|| daemon.log_tail())?;
    let judged = || state(&daemon, "two", "primary").as_deref() == Some("fault");
    wait_until("and is judged all the same", 15 * SECOND, judged).with_context(|| daemon.log_tail())?;
    assert!(!has_event(&daemon, "failover", "two", ""), "it stays where it is");
    let maps = daemon.maps()?;
    let frontend = maps.frontend(&primaries[1].to_string()).context("no frontend")?;
    assert_eq!(frontend["slots"]["primary"].as_u64(), Some(251), "{frontend}");
    let status = daemon.cli(&["status"])?;
    assert!(status.stdout.contains("failover withheld: causes_at_once"), "{}", status.stdout);
    wait_until("it is counted", 5 * SECOND, || {
        let counted = "sluice_withheld_total{service=\"two\",reason=\"causes_at_once\"} 1";
        daemon.get("/metrics").is_ok_and(|text| text.contains(counted))
    })?;
    daemon.stop()
}

/// nginx keeps connections to a, which falls silent. `on_fault` decides what becomes of the pool.
struct Pool {
    lab: Lab,
    daemon: Daemon,
    _proxy: Nginx,
}

impl Pool {
    fn in_front_of_a_silent_origin(on_fault: &str) -> Result<Self> {
        let mut lab = Lab::new(ONE_LINK)?;
        let config = LabConfig::of(&lab).only(Family::Ipv4);
        let mut daemon = Daemon::prepare(&lab, &config)?;
        let text = daemon.config_text(&config);
        daemon.write_config(&text.replace("[defaults.policy]\n", &format!("[defaults.policy]\n{on_fault}")))?;
        daemon.start()?;
        let is = |wanted: &str| state(&daemon, "shop4", "a").as_deref() == Some(wanted);
        wait_until("a is healthy", 15 * SECOND, || is("healthy")).with_context(|| daemon.log_tail())?;
        let upstream = lab.origin_a(Family::Ipv4);
        let proxy = Nginx::proxy(&lab.node, lab.dir(), PROXY_PORT, upstream, ProxyKind::KeepAlive)?;
        for _ in 0..8 {
            ensure!(through(&lab)?.as_deref() == Some("a"));
        }
        lab.a.fail(Fault::Blackhole)?;
        wait_until("a is in fault", 20 * SECOND, || is("fault")).with_context(|| daemon.log_tail())?;
        Ok(Self { lab, daemon, _proxy: proxy })
    }
}

/// Who answers a request that goes through the proxy.
fn through(lab: &Lab) -> Result<Option<String>> {
    let proxy = SocketAddr::from(([127, 0, 0, 1], PROXY_PORT));
    Ok(lab.node.enter(|| http_get(proxy, "/", 2 * SECOND))??.origin)
}

#[test]
fn idle_connections_of_a_pool_end_with_the_fault_and_no_request_is_lost() -> Result<()> {
    let mut pool = Pool::in_front_of_a_silent_origin("")?;
    let daemon = &pool.daemon;
    wait_until("the pool is reset", 5 * SECOND, || has_event(daemon, "reset", "shop4/a", "idle"))
        .with_context(|| daemon.log_tail())?;
    for _ in 0..8 {
        assert_eq!(through(&pool.lab)?.as_deref(), Some("b"), "no request waits for a dead connection");
    }
    let counted = |text: &str| text.contains("sluice_connection_reset_total{service=\"shop4\",kind=\"idle\"}");
    wait_until("it is counted", 5 * SECOND, || daemon.get("/metrics").is_ok_and(|text| counted(&text)))?;
    pool.daemon.stop()
}

/// The same without it: a request that takes a connection from the pool waits for an origin that is not there.
#[test]
fn kept_connections_of_a_pool_swallow_requests() -> Result<()> {
    let mut pool = Pool::in_front_of_a_silent_origin("on_fault = \"keep\"\n")?;
    let waits = through(&pool.lab).is_err();
    assert!(waits, "the pool's connection to a was alive when it fell silent, and nobody ended it");
    assert!(!has_event(&pool.daemon, "reset", "shop4/a", ""));
    pool.daemon.stop()
}
