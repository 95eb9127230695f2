use super::*;
use crate::telemetry::{
    histogram::{RTT_BOUNDS, STEP_BOUNDS, TTFB_BOUNDS},
    scrape::{AttachedScrape, BuildScrape, CheckScrape, MapScrape, ReloadScrape},
};
use expect_test::expect_file;
use std::time::Duration;

fn full() -> Scrape {
    let mut rtt = Histogram::new(RTT_BOUNDS);
    rtt.observe(Duration::from_micros(100));
    rtt.add(0.3, 4, 1.125);
    let mut step = Histogram::new(STEP_BOUNDS);
    step.observe(Duration::from_micros(400));
    let mut ttfb = Histogram::new(TTFB_BOUNDS);
    ttfb.observe(Duration::from_millis(30));
    let a = OriginScrape {
        name: "a".into(),
        state: Some(State::Fault),
        score: Some(0),
        weight_ratio: Some(0.0),
        signals: vec![("syn", 412), ("refused", 412), ("unreachable", 3), ("http_5xx", 7)],
        checks: vec![CheckScrape {
            name: "port".into(),
            results: vec![("pass", 9), ("fail", 3)],
            last_duration: Some(Duration::from_micros(250)),
        }],
        failure_spread: Some(7),
        evidence_age: Some(Duration::from_millis(300)),
        override_expiry: Some(Duration::from_mins(38)),
        rtt: None,
        ttfb: Some(ttfb),
    };
    let b = OriginScrape { name: "b\"\\\n".into(), state: Some(State::Healthy), ..OriginScrape::default() };
    let shop = ServiceScrape {
        name: "shop".into(),
        origins: vec![a, b],
        rtt: Some(rtt),
        ttfb: None,
        rescues: vec![("turn_around", 411), ("re_steer", 7)],
        trips: vec![("refused", 1), ("unreachable", 0), ("http_5xx", 2)],
        failovers: Some(1),
        failover_steps: vec![("trip", step)],
        panic: Some(false),
        usable_origins: Some(1),
        standby_ready: Some(1),
        overflow: Some(5),
        resets: vec![("idle", 8), ("forwarded", 2)],
        withheld: vec![("trip", 2), ("move", 0), ("rescue", 1)],
    };
    let node = NodeScrape {
        steered: vec![("connect4", 5000), ("tc_egress", 12)],
        attached: vec![AttachedScrape { interface: "eth1".into(), hook: "tc_ingress", attached: true }],
        maps: vec![
            MapScrape { name: "flows", entries: Some(61_044), max: 1_048_576 },
            MapScrape { name: "events", entries: None, max: 262_144 },
        ],
        flow_evictions: vec![("half_open", 3)],
        map_write_errors: Some(0),
        in_sync: Some(true),
        events_lost: Some(0),
        parse_skipped: vec![("fragment", 4)],
        nat_collisions: Some(1),
        check_lateness: None,
        checks_late: Some(0),
        pkcs11_sessions: vec![("hsm".to_owned(), 2, 1)],
        loop_lag: Some(Duration::from_micros(80)),
        reload: Some(ReloadScrape { success: true, applied_at: 1_796_000_000.5 }),
        build: Some(BuildScrape { version: "0.1.0".into(), abi: 1 }),
    };
    Scrape { services: vec![shop], node }
}

#[test]
fn the_page_is_this() {
    let metrics = Metrics::default();
    metrics.replace(full());
    expect_file!["../golden/metrics.txt"].assert_eq(&metrics.text().expect("encodes"));
}

#[test]
fn removed_objects_and_unmeasured_things_have_no_series() {
    let metrics = Metrics::default();
    assert_eq!(metrics.text().expect("encodes"), "");
    metrics.replace(full());
    let mut less = full();
    less.services[0].origins.remove(0);
    metrics.replace(less);
    let text = metrics.text().expect("encodes");
    assert!(!text.contains("origin=\"a\""), "{text}");
    assert!(!text.contains("sluice_origin_score"), "b has no score, so the family is gone: {text}");
    assert!(!text.contains("ttfb"), "{text}");
}

#[test]
fn exactly_one_state_is_one() {
    let metrics = Metrics::default();
    metrics.replace(full());
    let text = metrics.text().expect("encodes");
    let of_a = |line: &&str| line.starts_with("sluice_origin_state{service=\"shop\",origin=\"a\"");
    let on: Vec<_> = text.lines().filter(of_a).filter(|line| line.ends_with(" 1.0")).collect();
    assert_eq!(on, ["sluice_origin_state{service=\"shop\",origin=\"a\",state=\"fault\"} 1.0"]);
    assert_eq!(text.lines().filter(of_a).count(), State::ALL.len());
}
