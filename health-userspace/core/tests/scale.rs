//! A tick must stay cheap: design.md §10 leaves 5 % of one core to 10,000 idle origins, and no loop may be quadratic.

use health_core::{
    Span, Timestamp,
    engine::{Engine, Input, KernelView, Quantile, TrafficTotals},
    model::{
        Balance, CheckResult, CheckSpec, Family, FrontendId, FrontendSpec, Layer, Mode, OriginId, OriginSpec, Outcome,
        Reason, ServiceId, ServiceSpec,
    },
    policy::Policy,
};
use std::time::{Duration, Instant};

/// Far above what is measured (release: below 1 ms for 1,000 origins; debug: some 20 ms), far below what a quadratic
/// loop would take.
const TICK_MAX: Duration = Duration::from_millis(200);

/// `services` of `size` origins each, half of them standbys, every primary's address guarded.
fn specs(services: u16, size: u16) -> Vec<ServiceSpec> {
    let origin = |service: u16, place: u16| OriginSpec {
        id: OriginId(service * size + place),
        name: format!("o{place}"),
        key: u64::from(service * size + place),
        family: Family::V4,
        tier: u8::from(place >= size / 2),
        weight: 100,
        capacity_cps: None,
        capacity_conns: None,
    };
    let check = |name: &str, layer| CheckSpec {
        name: name.into(),
        layer,
        interval: Span::from_secs(1),
        critical: true,
        verify: false,
        removed_fall: 0,
    };
    let one = |service| {
        let origins: Vec<OriginSpec> = (0..size).map(|place| origin(service, place)).collect();
        let own = origins.iter().filter(|origin| origin.tier == 0);
        ServiceSpec {
            id: ServiceId(service),
            name: format!("s{service}"),
            mode: Mode::Enforce,
            policy: Policy::default(),
            checks: vec![check("port", Layer::Transport), check("page", Layer::Application)],
            frontends: own
                .map(|own| FrontendSpec { id: FrontendId(own.id.0), own: Some(own.id), family: Family::V4 })
                .collect(),
            origins,
            balance: Balance::Maglev,
        }
    };
    (0..services).map(one).collect()
}

fn input(specs: &[ServiceSpec], now: Timestamp, round: u64, dead: bool) -> Input {
    let ids: Vec<OriginId> = specs.iter().flat_map(|spec| &spec.origins).map(|origin| origin.id).collect();
    let answered = round * 10;
    let measured = Quantile { samples: answered, p99: Span::from_millis(3) };
    let totals = TrafficTotals {
        syn: answered,
        synack: answered,
        request: answered,
        response: answered,
        last_seen: now,
        rtt: measured,
        ttfb: measured,
        ..TrafficTotals::default()
    };
    let fails = |id: OriginId| dead && id.0.is_multiple_of(2);
    let outcome = |id| if fails(id) { Outcome::Fail(Reason::Refused) } else { Outcome::Pass };
    let result = |id| CheckResult { origin: id, check: 0, began: now, ended: now, outcome: outcome(id) };
    Input {
        traffic: ids.iter().filter(|id| !fails(**id)).map(|id| (*id, totals)).collect(),
        times: Vec::new(),
        kernel: ids.iter().map(|id| (*id, KernelView::default())).collect(),
        checks: ids.iter().map(|id| result(*id)).collect(),
        weights: Vec::new(),
        orders: Vec::new(),
        neighbours: Vec::new(),
        sites: Vec::new(),
        closed: Vec::new(),
        routes: Vec::new(),
        mitigated: Vec::new(),
        in_sync: true,
    }
}

#[expect(clippy::disallowed_methods, reason = "what a tick costs is told by the machine's clock")]
fn slowest_tick(services: u16, size: u16) -> Duration {
    let specs = specs(services, size);
    let mut now = Timestamp(1_000_000_000_000);
    let mut engine = Engine::new(specs.clone(), now);
    let mut slowest = Vec::new();
    for round in 1..30_u64 {
        now = now.after(Span::from_millis(100));
        // Half of the origins die at once in the middle: tables are made anew.
        let input = input(&specs, now, round, round >= 15);
        let began = Instant::now();
        let step = engine.tick(now, &input);
        slowest.push(began.elapsed());
        assert_eq!(step.plan.origins.len(), usize::from(services * size));
    }
    slowest.sort();
    println!("{services} x {size}: median {:?}, slowest {:?}", slowest[slowest.len() / 2], slowest[slowest.len() - 1]);
    slowest[slowest.len() / 2]
}

#[test]
fn a_thousand_origins() {
    assert!(slowest_tick(500, 2) < TICK_MAX);
    assert!(slowest_tick(16, 64) < TICK_MAX, "large services");
}
