//! Scenes: one small service, told second by second.

use super::*;
use crate::clients::Clients;
use crate::model::{
    Balance, CheckSpec, Family, FrontendId, FrontendSpec, Layer, LocalReason, Location, Mode, OriginSpec, Outcome,
    Reason, State,
};
use crate::policy::{Approval, Failback};
use crate::time::Span;
use alloc::{borrow::ToOwned, collections::BTreeMap, format, string::ToString, vec};

const A: OriginId = OriginId(1);
const B: OriginId = OriginId(2);
const TICK: Span = Span::from_millis(100);

/// What the kernel and the prober would do, as far as a scene says so.
struct Scene {
    engine: Engine,
    now: Timestamp,
    totals: BTreeMap<OriginId, TrafficTotals>,
    kernel: BTreeMap<OriginId, KernelView>,
    times: Vec<(OriginId, Times)>,
    neighbours: Vec<(OriginId, Option<Timestamp>)>,
    closed: Vec<ServiceId>,
    routes: Vec<(OriginId, Option<Route>)>,
    mitigated: Vec<Mitigated>,
    step: Step,
    decisions: Vec<Decision>,
}

fn origin(id: OriginId, name: &str, tier: u8) -> OriginSpec {
    OriginSpec {
        id,
        name: name.to_owned(),
        key: u64::from(id.0),
        family: Family::V4,
        tier,
        weight: 100,
        capacity_cps: None,
        capacity_conns: None,
    }
}

fn check(name: &str, layer: Layer) -> CheckSpec {
    CheckSpec {
        name: name.to_owned(),
        layer,
        interval: Span::from_millis(100),
        critical: true,
        verify: false,
        removed_fall: 0,
    }
}

fn shop(checks: &[CheckSpec]) -> ServiceSpec {
    ServiceSpec {
        id: ServiceId(1),
        name: "shop".to_owned(),
        mode: Mode::Enforce,
        policy: Policy { failback: Failback::at_once(), ..Policy::default() },
        origins: vec![origin(A, "a", 0), origin(B, "b", 1)],
        checks: checks.to_vec(),
        frontends: vec![FrontendSpec { id: FrontendId(1), own: Some(A), family: Family::V4 }],
        balance: Balance::Maglev,
    }
}

impl Scene {
    fn new(spec: ServiceSpec) -> Self {
        let now = Timestamp(1_000_000_000_000);
        Self {
            engine: Engine::new(vec![spec], now),
            now,
            totals: BTreeMap::new(),
            kernel: BTreeMap::from([(A, KernelView::default()), (B, KernelView::default())]),
            times: Vec::new(),
            neighbours: Vec::new(),
            closed: Vec::new(),
            routes: Vec::new(),
            mitigated: Vec::new(),
            step: Step::default(),
            decisions: Vec::new(),
        }
    }

    fn tick_with(&mut self, checks: Vec<CheckResult>, orders: Vec<Order>) {
        self.now = self.now.after(TICK);
        let input = Input {
            traffic: self.totals.iter().map(|(id, totals)| (*id, *totals)).collect(),
            times: core::mem::take(&mut self.times),
            kernel: self.kernel.iter().map(|(id, view)| (*id, *view)).collect(),
            checks,
            weights: Vec::new(),
            orders,
            neighbours: core::mem::take(&mut self.neighbours),
            sites: Vec::new(),
            closed: self.closed.clone(),
            routes: core::mem::take(&mut self.routes),
            mitigated: self.mitigated.clone(),
            in_sync: true,
        };
        self.step = self.engine.tick(self.now, &input);
        // The kernel does as it is told.
        for plan in &self.step.plan.origins {
            let view = self.kernel.entry(plan.id).or_default();
            view.blocked = plan.blocked;
            view.trip = view.trip.filter(|trip| plan.clear_trip.is_none_or(|at| trip.since > at));
        }
        self.decisions.extend(self.step.decisions.iter().cloned());
    }

    fn tick(&mut self) {
        self.tick_with(Vec::new(), Vec::new());
    }

    fn wait(&mut self, span: Span) {
        let end = self.now.after(span);
        while self.now < end {
            self.tick();
        }
    }

    /// Rounds of the check at `place`, one each tick: `P`ass, `S`low, `F`ail, `L`ocal.
    fn rounds(&mut self, id: OriginId, place: u16, letters: &str) {
        for letter in letters.chars() {
            let outcome = match letter {
                'P' => Outcome::Pass,
                'S' => Outcome::Slow,
                'F' => Outcome::Fail(Reason::Refused),
                'L' => Outcome::Local(LocalReason::Descriptors),
                other => panic!("{other}"),
            };
            let (began, ended) = (self.now.after(Span::from_millis(10)), self.now.after(Span::from_millis(20)));
            self.tick_with(vec![CheckResult { origin: id, check: place, began, ended, outcome }], Vec::new());
        }
    }

    fn order(&mut self, id: OriginId, what: OrderKind, until: Option<Timestamp>) {
        let (reason, by) = ("disk swap".to_owned(), "li.wei".to_owned());
        self.tick_with(Vec::new(), vec![Order { origin: id, what, reason, by, until }]);
    }

    /// Failures are of as many clients as there can be.
    fn traffic(&mut self, id: OriginId, change: impl Fn(&mut TrafficTotals)) {
        self.traffic_by(id, |totals| {
            change(totals);
            totals.connect_by = Clients::evenly(totals.refused + totals.syn_timeout + totals.unreachable);
            totals.request_by = Clients::evenly(totals.reset_early + totals.no_response + totals.http_5xx);
        });
    }

    fn traffic_by(&mut self, id: OriginId, change: impl Fn(&mut TrafficTotals)) {
        let now = self.now;
        let totals = self.totals.entry(id).or_default();
        change(totals);
        totals.last_seen = now;
        self.tick();
    }

    fn trip(&mut self, id: OriginId, streak: Streak) {
        let trip = TripView { streak, since: self.now, trials_failed: 0, trials_passed: 0 };
        self.kernel.entry(id).or_default().trip = Some(trip);
        self.tick();
    }

    fn trial(&mut self, id: OriginId, passed: bool) {
        if let Some(trip) = self.kernel.entry(id).or_default().trip.as_mut() {
            trip.trials_passed = if passed { trip.trials_passed + 1 } else { 0 };
            trip.trials_failed += u32::from(!passed);
        }
        self.tick();
    }

    fn view(&self, id: OriginId) -> &OriginView {
        let mut all = self.step.view.iter().flat_map(|service| &service.origins);
        all.find(|view| view.id == id).expect("in the view")
    }

    fn state(&self, id: OriginId) -> State {
        self.view(id).state
    }

    fn plan(&self, id: OriginId) -> OriginPlan {
        *self.step.plan.origins.iter().find(|plan| plan.id == id).expect("in the plan")
    }

    fn slots(&self, id: OriginId) -> usize {
        self.step.plan.frontends[0].slots.iter().filter(|slot| **slot == id).count()
    }

    /// Decisions since the last call: what and rule.
    fn told(&mut self) -> Vec<String> {
        let word = |decision: Decision| match decision.what {
            DecisionKind::State { origin, from, to, .. } => {
                format!("{} {}>{} {}", origin.0, from.name(), to.name(), decision.rule)
            }
            DecisionKind::Failover { from, to } => format!("failover {from}>{to} {}", decision.by),
            DecisionKind::Failback { from, to } => format!("failback {from}>{to} {}", decision.by),
            DecisionKind::Mitigation { on } => format!("mitigation {on} {}", decision.by),
            DecisionKind::Panic { on } => format!("panic {on}"),
            DecisionKind::Override { origin, order } => format!("{} {order:?} {}", origin.0, decision.by),
            DecisionKind::Stage { origin, percent } => format!("{} stage {percent}", origin.0),
            DecisionKind::Asks { origin, percent, waits } => format!("{} asks {percent} {}", origin.0, waits.name()),
            DecisionKind::TripJudged { origin, confirmed } => {
                format!("{} trip {} {}", origin.0, if confirmed { "confirmed" } else { "cleared" }, decision.rule)
            }
            DecisionKind::Withheld { origin, held } => format!("{} withheld {}", origin.0, held.name()),
            DecisionKind::CapacityUnset { standby, most } => format!("{} takes {most}", standby.0),
        };
        let mut decisions = core::mem::take(&mut self.decisions);
        // Every move of these scenes would tell it: their standbys declare nothing.
        decisions.retain(|decision| decision.rule != "capacity_unset");
        decisions.into_iter().map(word).collect()
    }
}

fn port() -> Scene {
    let mut scene = Scene::new(shop(&[check("port", Layer::Transport)]));
    // Enough that two failures more are no rate yet.
    scene.rounds(A, 0, "PPPPPPPPPP");
    scene.rounds(B, 0, "PPPPPPPPPP");
    scene.told();
    scene
}

#[test]
fn nothing_is_known_at_first_and_the_first_tier_serves() {
    let mut scene = Scene::new(shop(&[check("port", Layer::Transport)]));
    scene.tick();
    assert_eq!((scene.state(A), scene.slots(A)), (State::Unknown, SLOTS));
    assert_eq!(scene.told(), Vec::<String>::new());
    assert_eq!(scene.view(A).share_bp, 10_000);
}

#[test]
fn a_check_that_fails_moves_the_service_and_back_after_the_hold_down() {
    let mut scene = port();
    scene.rounds(A, 0, "FF");
    assert_eq!((scene.state(A), scene.slots(A)), (State::Healthy, SLOTS), "two are not three");
    scene.rounds(A, 0, "F");
    assert_eq!(scene.told(), ["1 healthy>fault fall_in_a_row", "failover 0>1 judge"]);
    assert_eq!((scene.slots(B), scene.plan(A).blocked, scene.plan(A).trials), (SLOTS, true, false));
    assert_eq!(scene.view(A).reasons, ["port 0/3"]);
    assert_eq!(scene.view(A).location, Some(Location::OriginProcess));

    scene.rounds(A, 0, "PFPP");
    assert_eq!(scene.told(), ["1 fault>recovering rise_in_a_row"]);
    let until = scene.view(A).hold_down_until().expect("it waits");
    assert_eq!(until.since(scene.now), Span::from_secs(30));
    assert_eq!((scene.plan(A).blocked, scene.slots(A)), (true, 0));
    scene.wait(Span::from_secs(29));
    assert_eq!(scene.told(), Vec::<String>::new());
    scene.wait(Span::from_secs(1));
    assert_eq!(scene.told(), ["1 recovering>healthy hold_down_over", "failback 1>0 judge"]);
    assert_eq!((scene.plan(A).blocked, scene.slots(A)), (false, SLOTS));
    assert!(scene.plan(A).clear_trip.is_some());
    scene.tick();
    assert_eq!(scene.plan(A).clear_trip, None, "the wish came true");
}

#[test]
fn a_failure_in_the_hold_down_is_a_fault_again_and_lengthens_it() {
    let mut scene = port();
    scene.rounds(A, 0, "FFFPPF");
    assert_eq!(
        scene.told(),
        [
            "1 healthy>fault fall_in_a_row",
            "failover 0>1 judge",
            "1 fault>recovering rise_in_a_row",
            "1 recovering>fault failed_in_hold_down"
        ]
    );
    scene.rounds(A, 0, "PP");
    assert_eq!(scene.view(A).hold_down_until().map(|until| until.since(scene.now)), Some(Span::from_secs(60)));
}

/// A local shortage is never evidence, and silence never failure.
#[test]
fn local_shortage_and_silence_move_nothing() {
    let mut scene = port();
    scene.rounds(A, 0, "LLLLLLLL");
    scene.wait(Span::from_secs(600));
    assert_eq!((scene.state(A), scene.told()), (State::Healthy, Vec::new()));
}

/// The kernel counts what is unanswered when it forgets it, with a timeout or without one.
#[test]
fn without_a_timeout_nothing_unanswered_is_a_failure() {
    let mut spec = shop(&[]);
    spec.policy.response_timeout = None;
    let mut scene = Scene::new(spec);
    for _ in 0..100 {
        // B: no answer was ever seen, so the way back may not lead past us.
        scene.traffic(B, |totals| (totals.syn, totals.syn_timeout) = (totals.syn + 5, totals.syn_timeout + 5));
        scene.traffic(A, |totals| {
            (totals.syn, totals.synack) = (totals.syn + 5, totals.synack + 5);
            (totals.request, totals.no_response) = (totals.request + 5, totals.no_response + 5);
        });
    }
    assert_eq!(scene.plan(A).response_timeout, None);
    assert_eq!((scene.state(A), scene.state(B)), (State::Healthy, State::Unknown));
    assert_eq!(scene.told(), ["1 unknown>healthy passes"]);
}

/// What was unanswered while there was no timeout is not held against an origin that gets one.
#[test]
fn a_timeout_looks_only_forward() {
    let mut scene = Scene::new(shop(&[]));
    scene.traffic(A, |totals| *totals = TrafficTotals { syn: 50, syn_timeout: 0, ..*totals });
    scene.traffic(A, |totals| *totals = TrafficTotals { syn: 51, synack: 1, ..*totals });
    assert!(scene.plan(A).syn_timeout.is_some());
    scene.traffic(A, |totals| totals.syn_timeout = 50);
    assert_eq!(scene.state(A), State::Healthy);
    scene.traffic(A, |totals| *totals = TrafficTotals { syn: 91, syn_timeout: 90, ..*totals });
    assert_eq!(scene.state(A), State::Fault);
}

#[test]
fn an_origin_that_never_answered_is_never_shown_healthy() {
    let mut scene = Scene::new(shop(&[check("port", Layer::Transport)]));
    for _ in 0..50 {
        scene.rounds(A, 0, "F");
        scene.traffic(A, |totals| totals.syn += 3);
        assert!(matches!(scene.state(A), State::Unknown | State::Fault), "{:?}", scene.state(A));
        assert_eq!(scene.plan(A).syn_timeout, None, "the return path is unknown");
    }
    assert_eq!(scene.state(A), State::Fault);
}

#[test]
fn a_mere_trip_leaves_no_trace() {
    let mut scene = port();
    scene.trip(A, Streak::Connect);
    assert_eq!((scene.state(A), scene.view(A).tripped), (State::Healthy, true));
    assert_eq!(scene.step.suspects, [A]);
    assert_eq!(scene.slots(A), SLOTS, "the slots stay: the trip word is enough, and the trial goes by them");
    scene.wait(Span::from_secs(1));
    scene.kernel.insert(A, KernelView::default());
    scene.tick();
    assert_eq!((scene.state(A), scene.view(A).tripped), (State::Healthy, false));
    assert_eq!(scene.view(A).hold_down_until(), None);
    assert_eq!(scene.told(), Vec::<String>::new());
}

#[test]
fn two_failed_trials_confirm() {
    let mut scene = port();
    scene.trip(A, Streak::Connect);
    scene.trial(A, false);
    assert_eq!(scene.state(A), State::Healthy);
    scene.trial(A, false);
    assert_eq!(scene.told(), ["1 trip confirmed trials_failed", "1 healthy>fault trials_failed", "failover 0>1 judge"]);
    assert!(!scene.plan(A).trials, "the check is the trial now");
}

#[test]
fn three_seconds_without_a_success_confirm() {
    let mut scene = port();
    scene.traffic(A, |totals| totals.synack += 100);
    scene.traffic(A, |totals| totals.refused += 12);
    scene.trip(A, Streak::Connect);
    scene.wait(Span::from_millis(2800));
    assert_eq!(scene.state(A), State::Healthy);
    scene.wait(Span::from_millis(300));
    assert_eq!(scene.told()[..2], ["1 trip confirmed tripped_3s", "1 healthy>fault tripped_3s"]);
    assert_eq!(scene.view(A).reasons, ["refused 12/12"]);
    assert_eq!(scene.view(A).location, Some(Location::OriginProcess));
}

#[test]
fn failing_checks_confirm() {
    let mut scene = port();
    scene.trip(A, Streak::Connect);
    scene.rounds(A, 0, "FFF");
    assert_eq!(scene.told()[..2], ["1 trip confirmed fall_in_a_row", "1 healthy>fault fall_in_a_row"]);
}

/// Only positive evidence newer than the trip and at its layer clears it.
#[test]
fn only_newer_evidence_at_the_layer_clears_a_trip() {
    let mut scene = Scene::new(shop(&[check("port", Layer::Transport), check("page", Layer::Application)]));
    scene.rounds(A, 0, "PPP");
    scene.rounds(A, 1, "PPP");
    scene.told();
    scene.trip(A, Streak::Request);
    scene.rounds(A, 0, "PPPPP");
    assert!(scene.view(A).tripped, "the port says nothing about requests");
    let old = CheckResult {
        origin: A,
        check: 1,
        began: Timestamp(scene.now.0 - 2_000_000_000),
        ended: scene.now,
        outcome: Outcome::Pass,
    };
    scene.tick_with(vec![old, old, old], Vec::new());
    assert!(scene.view(A).tripped, "rounds that began before the trip");
    scene.rounds(A, 1, "P");
    assert!(scene.view(A).tripped);
    scene.rounds(A, 1, "P");
    assert!(!scene.view(A).tripped);
    assert_eq!(scene.told(), ["1 trip cleared rise_in_a_row"]);
    assert_eq!(scene.state(A), State::Healthy, "no hold-down");
    scene.tick();
    assert_eq!(scene.kernel[&A].trip, None);
}

/// A passing check never clears a fault that real traffic still shows.
#[test]
fn checks_that_pass_while_traffic_fails_clear_once_and_then_no_more() {
    let mut scene = port();
    scene.trip(A, Streak::Connect);
    scene.rounds(A, 0, "PP");
    assert_eq!(scene.told(), ["1 trip cleared rise_in_a_row"]);
    scene.tick();
    scene.trip(A, Streak::Connect);
    for _ in 0..40 {
        scene.rounds(A, 0, "P");
    }
    assert_eq!(scene.told()[0], "1 trip confirmed tripped_3s");
}

#[test]
fn a_failed_trial_refutes_the_passes_before_it() {
    let mut scene = port();
    scene.trip(A, Streak::Connect);
    scene.rounds(A, 0, "P");
    scene.trial(A, false);
    scene.rounds(A, 0, "P");
    assert!(scene.view(A).tripped);
}

#[test]
fn without_a_check_of_the_layer_the_kernels_trials_go_on_and_count() {
    let mut scene = port();
    scene.trip(A, Streak::Request);
    scene.wait(Span::from_millis(3100));
    assert_eq!(scene.state(A), State::Fault);
    assert!(scene.plan(A).blocked && scene.plan(A).trials);
    scene.rounds(A, 0, "PPPPP");
    scene.trial(A, true);
    assert_eq!(scene.state(A), State::Fault, "one is not enough, nor is the port");
    scene.trial(A, true);
    assert_eq!(scene.state(A), State::Recovering);
    assert!(!scene.plan(A).trials);
}

/// Regression: the kernel ends the trip in the moment in which it is confirmed. Nothing would ever try the origin again.
#[test]
fn a_trial_that_passes_while_the_fault_is_written_counts() {
    let mut scene = port();
    scene.trip(A, Streak::Request);
    scene.wait(Span::from_millis(3100));
    assert_eq!(scene.state(A), State::Fault);
    scene.kernel.entry(A).or_default().trip = None;
    scene.tick();
    assert_eq!(scene.state(A), State::Recovering);
}

#[test]
fn traffic_by_rate_degrades_and_spills() {
    let mut scene = port();
    scene.traffic(A, |totals| totals.synack += 100);
    scene.traffic(A, |totals| (totals.synack, totals.refused) = (totals.synack + 20, totals.refused + 80));
    assert_eq!(scene.state(A), State::HighRisk);
    assert_eq!((scene.slots(A), scene.slots(B)), (36, 215), "10/70 stays");
    assert_eq!(scene.view(A).share_bp, 1428);
    assert_eq!(scene.told(), ["1 healthy>high_risk success_rate"], "the tier still serves: no failover");
}

#[test]
fn passive_false_ignores_traffic() {
    let mut spec = shop(&[check("port", Layer::Transport)]);
    spec.policy.passive = false;
    let mut scene = Scene::new(spec);
    scene.rounds(A, 0, "P");
    scene.traffic(A, |totals| totals.synack += 1);
    scene.traffic(A, |totals| totals.refused += 500);
    scene.trip(A, Streak::Connect);
    scene.wait(Span::from_secs(10));
    assert_eq!(scene.state(A), State::Healthy);
    scene.rounds(A, 0, "FFF");
    assert_eq!(scene.state(A), State::Fault);
}

/// Operator > traffic > checks.
#[test]
fn orders_outrank_all_evidence() {
    let mut scene = port();
    scene.order(A, OrderKind::Fail, None);
    assert_eq!(scene.told(), ["1 Some(Fail) li.wei", "1 healthy>fault operator", "failover 0>1 li.wei"]);
    scene.rounds(A, 0, "PPPPPP");
    scene.traffic(A, |totals| totals.synack += 100);
    scene.traffic(A, |totals| totals.synack += 100);
    assert_eq!(scene.state(A), State::Fault);
    assert!(!scene.plan(A).trials);
    scene.order(A, OrderKind::Drain, None);
    assert_eq!((scene.state(A), scene.plan(A).blocked), (State::Maintenance, true));
    scene.rounds(A, 0, "FFFF");
    assert_eq!(scene.state(A), State::Maintenance);
    scene.order(A, OrderKind::Clear, None);
    assert_eq!((scene.state(A), scene.slots(A)), (State::Unknown, SLOTS), "judged anew from now on");
    assert_eq!(scene.view(A).order, None);
    scene.rounds(A, 0, "P");
    assert_eq!(scene.state(A), State::Healthy);
}

#[test]
fn an_order_runs_out() {
    let mut scene = port();
    let until = scene.now.after(Span::from_secs(5));
    scene.order(A, OrderKind::Drain, Some(until));
    scene.wait(Span::from_secs(4));
    assert_eq!((scene.state(A), scene.told().len()), (State::Maintenance, 3));
    scene.wait(Span::from_secs(2));
    assert_eq!(
        scene.told(),
        ["1 None li.wei", "1 maintenance>unknown order_ended", "1 unknown>healthy passes", "failback 1>0 judge"]
    );
}

#[test]
fn an_order_does_not_wash_away_a_fault() {
    let mut scene = port();
    scene.rounds(A, 0, "FFF");
    let until = scene.now.after(Span::from_secs(5));
    scene.order(A, OrderKind::Drain, Some(until));
    scene.wait(Span::from_secs(6));
    assert_eq!(scene.state(A), State::Fault);
    scene.rounds(A, 0, "PP");
    assert_eq!(scene.state(A), State::Recovering);
}

#[test]
fn clear_ends_trip_fault_and_hold_down() {
    let mut scene = port();
    scene.trip(A, Streak::Connect);
    scene.rounds(A, 0, "FFF");
    scene.order(A, OrderKind::Clear, None);
    assert_eq!(scene.state(A), State::Unknown);
    assert!(!scene.view(A).tripped && !scene.plan(A).blocked);
    assert_eq!(scene.plan(A).clear_trip, Some(scene.now));
    scene.tick();
    assert_eq!(scene.kernel[&A].trip, None);
}

#[test]
fn when_nothing_is_usable_all_but_maintenance_are_used() {
    let mut scene = port();
    scene.rounds(A, 0, "FFF");
    scene.told();
    scene.rounds(B, 0, "FFF");
    assert_eq!(scene.told(), ["2 healthy>fault fall_in_a_row", "panic true"]);
    assert!(scene.step.view[0].panic);
    assert!(scene.plan(A).blocked && scene.plan(B).blocked, "truthful");
    assert!(scene.slots(A) > 100 && scene.slots(B) > 100);
    scene.order(B, OrderKind::Drain, None);
    assert_eq!((scene.slots(A), scene.slots(B)), (SLOTS, 0));
    scene.rounds(A, 0, "PP");
    scene.wait(Span::from_secs(31));
    assert!(scene.told().contains(&"panic false".to_string()));
}

#[test]
fn observe_judges_and_touches_nothing() {
    let mut spec = shop(&[check("port", Layer::Transport)]);
    spec.mode = Mode::Observe;
    let mut scene = Scene::new(spec);
    scene.rounds(A, 0, "PFFF");
    assert_eq!((scene.state(A), scene.slots(A), scene.plan(A).blocked), (State::Fault, SLOTS, false));
    assert!(scene.decisions.iter().all(|decision| !decision.enforced));
    assert_eq!(scene.told().last().map(String::as_str), Some("failover 0>1 judge"));
    assert_eq!(scene.view(A).share_bp, 10_000);
}

/// A restart doesn't forget what is out of service, and P14: it moves nothing else.
#[test]
fn what_the_kernel_holds_out_stays_out_after_a_restart() {
    let mut scene = Scene::new(shop(&[check("port", Layer::Transport)]));
    scene.kernel.entry(A).or_default().blocked = true;
    scene.tick();
    assert_eq!(scene.told(), ["1 unknown>fault adopted"]);
    assert_eq!((scene.state(A), scene.slots(B)), (State::Fault, SLOTS));
    scene.rounds(A, 0, "PP");
    assert_eq!(scene.state(A), State::Recovering);
}

#[test]
fn a_reload_keeps_everything_however_often() {
    let mut scene = port();
    scene.rounds(A, 0, "FF");
    for _ in 0..100 {
        let mut spec = shop(&[check("page", Layer::Application), check("port", Layer::Transport)]);
        spec.origins.reverse();
        scene.engine.reconfigure(vec![spec], scene.now);
    }
    scene.tick();
    assert_eq!((scene.state(A), scene.state(B)), (State::Healthy, State::Healthy));
    scene.rounds(A, 1, "F");
    assert_eq!(scene.told()[0], "1 healthy>fault fall_in_a_row", "the third in a row, by the check's name");
    let until = scene.view(A).since;
    scene.engine.reconfigure(vec![shop(&[check("port", Layer::Transport)])], scene.now);
    scene.tick();
    assert_eq!((scene.state(A), scene.view(A).since, scene.told()), (State::Fault, until, Vec::new()));
    let mut alone = shop(&[check("port", Layer::Transport)]);
    alone.origins.truncate(1);
    scene.engine.reconfigure(vec![alone], scene.now);
    scene.tick();
    assert_eq!(scene.step.plan.origins.len(), 1);
}

/// P10: status and plan are of one piece.
#[test]
fn p10_what_is_shown_out_has_no_slot() {
    let mut scene = port();
    for letters in ["F", "F", "F", "P", "P", "F", "P", "P", "P"] {
        scene.rounds(A, 0, letters);
        let out = matches!(scene.state(A), State::Fault | State::Recovering | State::Maintenance);
        assert_eq!((scene.slots(A) == 0, scene.plan(A).blocked, scene.view(A).share_bp == 0), (out, out, out));
    }
}

#[test]
fn families_never_mix() {
    let mut spec = shop(&[check("port", Layer::Transport)]);
    spec.origins.push(OriginSpec { family: Family::V6, ..origin(OriginId(3), "a6", 0) });
    spec.origins.push(OriginSpec { family: Family::V6, ..origin(OriginId(4), "b6", 1) });
    spec.frontends.push(FrontendSpec { id: FrontendId(2), own: Some(OriginId(3)), family: Family::V6 });
    let mut scene = Scene::new(spec);
    for id in [A, OriginId(3)] {
        scene.rounds(id, 0, "FFF");
    }
    assert_eq!(scene.step.plan.frontends[0].slots, vec![B; SLOTS]);
    assert_eq!(scene.step.plan.frontends[1].slots, vec![OriginId(4); SLOTS]);
    assert_eq!(scene.step.plan.frontends[1].armed, [OriginId(4)]);
    assert_eq!(scene.view(B).share_bp, 5_000);
}

#[test]
fn a_trip_the_write_of_whose_end_failed_is_wished_away_again() {
    let mut scene = port();
    scene.trip(A, Streak::Connect);
    let trip = scene.kernel[&A].trip;
    scene.rounds(A, 0, "PP");
    let wish = scene.plan(A).clear_trip;
    assert!(wish.is_some());
    for _ in 0..5 {
        scene.kernel.entry(A).or_default().trip = trip;
        scene.tick();
        assert_eq!((scene.plan(A).clear_trip, scene.view(A).tripped), (wish, false));
    }
    scene.tick();
    assert_eq!(scene.plan(A).clear_trip, None);
}

#[test]
fn a_suspect_is_named_again_but_not_each_tick() {
    let mut scene = port();
    scene.traffic(A, |totals| totals.synack += 5);
    scene.traffic(A, |totals| totals.refused += 1);
    assert_eq!(scene.step.suspects, [A], "freshly failing");
    scene.traffic(A, |totals| totals.refused += 1);
    assert_eq!(scene.step.suspects, []);
    scene.trip(A, Streak::Connect);
    let mut named = 0;
    for _ in 0..20 {
        scene.tick();
        named += scene.step.suspects.len();
    }
    assert!((1..=2).contains(&named), "{named} in 2 s");
}

/// A rate that sways about a threshold does not rewrite tables all the time, and a trip makes nothing look better.
#[test]
fn better_grades_wait() {
    let mut scene = port();
    scene.traffic(A, |totals| totals.synack += 1);
    scene.traffic(A, |totals| (totals.synack, totals.refused) = (totals.synack + 78, totals.refused + 22));
    assert_eq!(scene.state(A), State::Degraded);
    for _ in 0..20 {
        scene.traffic(A, |totals| totals.synack += 100);
        scene.traffic(A, |totals| totals.refused += 40);
    }
    assert_eq!(scene.told(), ["1 healthy>degraded success_rate"]);
    scene.traffic(A, |totals| totals.synack += 1000);
    scene.trip(A, Streak::Connect);
    scene.wait(Span::from_millis(2500));
    assert_eq!(scene.state(A), State::Degraded, "what traffic showed is not taken back by checks alone");
    scene.kernel.insert(A, KernelView::default());
    scene.wait(Span::from_secs(3));
    assert_eq!(scene.state(A), State::Degraded);
    scene.wait(Span::from_millis(300));
    assert_eq!(scene.told(), ["1 degraded>healthy passes"]);
}

/// A passing check never clears a fault that real traffic still shows; traffic that has ceased shows nothing.
#[test]
fn traffic_that_still_fails_keeps_a_fault() {
    let mut scene = Scene::new(shop(&[check("page", Layer::Application)]));
    scene.rounds(A, 0, "PPPPPPPPPP");
    scene.traffic(A, |totals| totals.response += 100);
    scene.trip(A, Streak::Request);
    scene.wait(Span::from_millis(3100));
    assert_eq!(scene.state(A), State::Fault);
    for _ in 0..10 {
        scene.traffic(A, |totals| totals.no_response += 10);
        scene.rounds(A, 0, "P");
    }
    assert_eq!(scene.state(A), State::Fault, "established connections still hang");
    scene.wait(Span::from_secs(3));
    assert_eq!(scene.state(A), State::Recovering);
}

/// Precedence, from the strongest down: each one holds against all below it.
#[test]
fn precedence_of_operator_traffic_and_checks() {
    for (ordered, traffic, checks, want) in [
        (Some(OrderKind::Drain), "bad", "F", State::Maintenance),
        (Some(OrderKind::Drain), "good", "P", State::Maintenance),
        (Some(OrderKind::Fail), "good", "P", State::Fault),
        (None, "bad", "P", State::Fault),
        (None, "bad", "F", State::Fault),
        (None, "good", "F", State::Degraded),
        (None, "none", "F", State::Fault),
        (None, "none", "P", State::Healthy),
        (None, "good", "P", State::Healthy),
        (None, "none", "", State::Unknown),
        (None, "good", "", State::Healthy),
    ] {
        let mut scene = Scene::new(shop(&[check("port", Layer::Transport)]));
        scene.traffic(A, |totals| totals.syn += 1);
        if let Some(what) = ordered {
            scene.order(A, what, None);
        }
        for _ in 0..4 {
            scene.traffic(A, |totals| match traffic {
                "good" => totals.synack += 30,
                "bad" => totals.refused += 30,
                _ => {}
            });
            scene.rounds(A, 0, checks);
        }
        assert_eq!(scene.state(A), want, "{ordered:?} {traffic} {checks}");
    }
}

/// A move is an operator's only if all that are out were ordered out.
#[test]
fn a_move_names_its_cause() {
    let mut spec = shop(&[check("port", Layer::Transport)]);
    spec.origins.push(origin(OriginId(3), "a2", 0));
    let mut scene = Scene::new(spec);
    scene.rounds(A, 0, "FFF");
    scene.told();
    scene.order(OriginId(3), OrderKind::Drain, None);
    let last = scene.decisions.last().expect("a move");
    assert_eq!((last.by.as_str(), last.rule), ("judge", "tier_unusable"));
    assert_eq!(last.evidence, "a fault: port 0/3; a2 maintenance: ordered by li.wei: disk swap");
}

/// Regression: with no trip in the kernel and no check of the failing layer, nothing else would ever bring it back.
#[test]
fn a_fault_that_nothing_can_try_ends_by_the_checks_there_are() {
    let mut scene = port();
    scene.traffic(A, |totals| (totals.request, totals.response) = (20, 20));
    scene.traffic(A, |totals| totals.response += 1);
    scene.traffic(A, |totals| totals.no_response += 40);
    assert_eq!((scene.state(A), scene.plan(A).trials), (State::Fault, true));
    scene.rounds(A, 0, "P");
    scene.wait(Span::from_secs(4));
    assert_eq!(scene.state(A), State::Fault);
    scene.rounds(A, 0, "P");
    assert_eq!(scene.state(A), State::Recovering);
}

/// The worst check rules on the way back too.
#[test]
fn every_check_has_to_pass_before_it_rises() {
    let mut scene = Scene::new(shop(&[check("port", Layer::Transport), check("page", Layer::Application)]));
    scene.rounds(A, 0, "FFF");
    assert_eq!(scene.state(A), State::Fault);
    scene.rounds(A, 1, "F");
    scene.rounds(A, 0, "PPPP");
    assert_eq!(scene.state(A), State::Fault, "the page has failed since");
    scene.rounds(A, 1, "P");
    assert_eq!(scene.state(A), State::Fault);
    scene.rounds(A, 1, "P");
    let want = ["1 unknown>fault fall_in_a_row", "failover 0>1 judge", "1 fault>recovering rise_in_a_row"];
    assert_eq!(scene.told(), want, "and not in and out of its hold-down meanwhile");
}

/// Positive evidence: the kernel has asked for the next hop, and nobody has answered.
#[test]
fn an_origin_whose_next_hop_cannot_be_found_is_out_at_once_and_comes_back_by_checks() {
    let mut scene = Scene::new(shop(&[check("port", Layer::Transport)]));
    scene.rounds(A, 0, "PP");
    scene.rounds(B, 0, "PP");
    scene.neighbours = vec![(A, Some(scene.now))];
    scene.tick();
    assert_eq!((scene.state(A), scene.view(A).location), (State::Fault, Some(Location::OriginHost)));
    let told = scene.decisions.iter().rev().find(|one| matches!(one.what, DecisionKind::State { .. })).expect("told");
    assert_eq!((told.rule, told.evidence.as_str()), ("unreachable", "next hop not found"));
    let plan = scene.plan(A);
    assert!(plan.blocked && !plan.trials && matches!(plan.lease, Lease::Trips(_)), "{plan:?}");
    // No word that it is back, and no pass: it stays out however long that takes.
    scene.wait(Span::from_secs(100));
    assert_eq!(scene.state(A), State::Fault);
    scene.neighbours = vec![(A, None)];
    scene.rounds(A, 0, "PP");
    assert_eq!(scene.state(A), State::Recovering, "by `rise` and a hold-down, like any fault");
    scene.neighbours = vec![(A, Some(scene.now))];
    scene.tick();
    assert_eq!(scene.state(A), State::Fault, "it went away again");
}

/// Everything behind one gateway: a move would cure nothing.
#[test]
fn next_hops_that_fail_all_at_once_move_nothing() {
    let mut scene = Scene::new(shop(&[check("port", Layer::Transport)]));
    scene.rounds(A, 0, "PP");
    scene.rounds(B, 0, "PP");
    scene.neighbours = vec![(A, Some(scene.now)), (B, Some(scene.now))];
    scene.tick();
    assert_eq!((scene.state(A), scene.state(B)), (State::HighRisk, State::HighRisk));
    assert!(!scene.plan(A).blocked && !scene.plan(B).blocked);
}

/// The end of the failure was missed, but a check that began later got through.
#[test]
fn who_answers_a_check_is_found() {
    let mut scene = Scene::new(shop(&[check("port", Layer::Transport)]));
    scene.rounds(B, 0, "PP");
    scene.neighbours = vec![(A, Some(scene.now))];
    scene.tick();
    assert_eq!(scene.state(A), State::Fault);
    scene.rounds(A, 0, "PP");
    assert_eq!(scene.state(A), State::Recovering);
}

#[test]
fn a_fault_that_traffic_showed_is_on_a_lease_that_is_renewed_each_twenty_seconds() {
    let mut scene = Scene::new(shop(&[check("port", Layer::Transport)]));
    scene.rounds(A, 0, "P");
    scene.trip(A, Streak::Connect);
    scene.wait(Span::from_secs(4));
    assert_eq!(scene.state(A), State::Fault);
    let mut leases = Vec::new();
    for _ in 0..600 {
        scene.tick();
        let Lease::Trips(until) = scene.plan(A).lease else { panic!("{:?}", scene.plan(A)) };
        let left = until.since(scene.now);
        assert!((Span::from_secs(40)..=Span::from_secs(60)).contains(&left), "{left}");
        leases.push(until);
    }
    leases.dedup();
    assert!((3..=4).contains(&leases.len()), "a minute needs three renewals: {leases:?}");
}

#[test]
fn what_only_checks_can_see_stays_out_without_a_daemon() {
    let mut scene = Scene::new(shop(&[check("page", Layer::Application)]));
    scene.rounds(A, 0, "FFF");
    assert_eq!((scene.state(A), scene.plan(A).lease), (State::Fault, Lease::Stays));
    // Where traffic had tripped before, it has shown the fault as well.
    let mut scene = Scene::new(shop(&[check("page", Layer::Application)]));
    scene.trip(A, Streak::Request);
    scene.rounds(A, 0, "FFF");
    assert_eq!(scene.state(A), State::Fault);
    assert!(matches!(scene.plan(A).lease, Lease::Trips(_)), "{:?}", scene.plan(A));
}

#[test]
fn an_order_ends_by_itself_and_washes_no_fault_away() {
    let mut scene = Scene::new(shop(&[check("page", Layer::Application)]));
    let until = scene.now.after(Span::from_secs(30));
    scene.order(A, OrderKind::Drain, Some(until));
    assert_eq!(scene.plan(A).lease, Lease::Ends(until));
    scene.order(B, OrderKind::Drain, None);
    assert_eq!(scene.plan(B).lease, Lease::Stays);
    let mut scene = Scene::new(shop(&[check("page", Layer::Application)]));
    scene.rounds(A, 0, "FFF");
    scene.order(A, OrderKind::Drain, Some(until));
    assert_eq!(scene.plan(A).lease, Lease::Trips(until), "without a daemon, trials decide");
}

#[test]
fn a_lease_that_a_former_daemon_held_is_held_on() {
    for (leased, stays) in [(true, false), (false, true)] {
        let mut scene = Scene::new(shop(&[check("page", Layer::Application)]));
        scene.kernel.insert(A, KernelView { blocked: true, leased, ..KernelView::default() });
        scene.tick();
        assert_eq!(scene.state(A), State::Fault);
        assert_eq!(scene.plan(A).lease == Lease::Stays, stays);
    }
}

#[test]
fn sockets_get_a_short_first_timeout_only_while_a_standby_is_usable() {
    let mut spec = shop(&[check("port", Layer::Transport)]);
    let mut scene = Scene::new(spec.clone());
    let learn = |scene: &mut Scene| {
        let rtt = Quantile { samples: 30, p99: Span::from_millis(1) };
        scene.traffic(A, |totals| *totals = TrafficTotals { syn: 30, synack: 30, rtt, ..*totals });
    };
    learn(&mut scene);
    assert_eq!(scene.plan(A).connect_timeout, Some(Span::from_millis(200)));
    scene.trip(B, Streak::Connect);
    assert_eq!(scene.plan(A).connect_timeout, None, "nobody could take it");
    spec.policy.rescue = false;
    let mut scene = Scene::new(spec);
    learn(&mut scene);
    assert_eq!(scene.plan(A).connect_timeout, None);
}

/// 503 to everything, in plain text, with a check that only connects.
#[test]
fn errors_that_we_read_are_failures_of_the_application() {
    let mut scene = Scene::new(shop(&[check("port", Layer::Transport)]));
    scene.rounds(A, 0, "P");
    scene.traffic(A, |totals| *totals = TrafficTotals::default());
    scene.traffic(A, |totals| *totals = TrafficTotals { request: 50, response: 50, http_good: 50, ..*totals });
    assert_eq!(scene.view(A).sees, Some(Layer::Application));
    scene.traffic(A, |totals| {
        *totals = TrafficTotals { request: 350, response: 350, http_good: 50, http_5xx: 300, ..*totals };
    });
    assert_eq!(
        (scene.state(A), scene.view(A).reasons.first().map(String::as_str)),
        (State::Fault, Some("status 5xx 300/350"))
    );
    assert_eq!(scene.view(A).location, Some(Location::OriginProcess));
}

#[test]
fn errors_are_answers_where_the_policy_says_so() {
    let mut spec = shop(&[check("port", Layer::Transport)]);
    spec.policy.trip.on_5xx = false;
    let mut scene = Scene::new(spec);
    scene.rounds(A, 0, "P");
    scene.traffic(A, |totals| *totals = TrafficTotals::default());
    scene.traffic(A, |totals| *totals = TrafficTotals { request: 300, response: 300, http_5xx: 300, ..*totals });
    assert_eq!(scene.state(A), State::Healthy);
}

/// The checked page is broken, while enough answers of real requests are read to be fine.
#[test]
fn only_statuses_that_we_read_contradict_a_failing_page() {
    for (read, want) in [(200, State::Degraded), (0, State::Fault)] {
        let mut scene = Scene::new(shop(&[check("page", Layer::Application)]));
        scene.rounds(A, 0, "P");
        scene.traffic(A, |totals| *totals = TrafficTotals::default());
        for round in 1..=4 {
            scene.rounds(A, 0, "F");
            let (all, http_good) = (200 * round, read * round);
            let (request, response) = (all, all);
            scene.traffic(A, |totals| *totals = TrafficTotals { request, response, http_good, ..*totals });
        }
        assert_eq!(scene.state(A), want, "{read} read");
    }
}

/// Beyond the response timeout: late answers are no successes, and neither is a check that is as slow as they.
#[test]
fn late_answers_do_not_clear_what_tripped_for_no_response() {
    let mut scene = Scene::new(shop(&[check("page", Layer::Application)]));
    scene.rounds(A, 0, "PPPP");
    scene.rounds(B, 0, "PP");
    let ttfb = Quantile { samples: 300, p99: Span::from_millis(1) };
    scene.traffic(A, |totals| *totals = TrafficTotals { request: 300, response: 300, ttfb, ..*totals });
    assert_eq!(scene.plan(A).response_timeout, Some(Span::from_millis(200)));
    scene.trip(A, Streak::Request);
    for round in 1..=40_u64 {
        let (late, began) = (300 + 5 * round, scene.now.after(Span::from_millis(10)));
        scene.traffic(A, |totals| {
            *totals = TrafficTotals {
                request: late,
                response: late,
                response_late: 5 * round,
                no_response: 5 * round,
                ..*totals
            };
        });
        let ended = began.after(Span::from_secs(2));
        scene.tick_with(vec![CheckResult { origin: A, check: 0, began, ended, outcome: Outcome::Pass }], Vec::new());
    }
    assert_eq!(scene.state(A), State::Fault, "{:?}", scene.view(A));
    assert!(!scene.decisions.iter().any(|one| matches!(one.what, DecisionKind::TripJudged { confirmed: false, .. })));
}

/// A black hole of half a second: tripped, tried after one second, and back.
#[test]
fn a_short_black_hole_leaves_no_state_and_no_hold_down() {
    let mut scene = Scene::new(shop(&[check("port", Layer::Transport)]));
    scene.rounds(A, 0, "PP");
    scene.rounds(B, 0, "PP");
    scene.trip(A, Streak::Connect);
    scene.rounds(A, 0, "F");
    scene.wait(Span::from_secs(1));
    // The kernel's trial succeeded.
    scene.kernel.entry(A).or_default().trip = None;
    scene.tick();
    assert_eq!(scene.state(A), State::Healthy);
    assert!(!scene.plan(A).blocked && scene.view(A).hold_down_until().is_none());
    assert!(scene.step.plan.frontends[0].slots.iter().all(|slot| *slot == A), "all of it is back at once");
}

#[test]
fn a_virtual_address_is_its_pools_and_one_slot_tries_who_is_out() {
    let mut spec = shop(&[check("port", Layer::Transport)]);
    spec.origins.push(origin(OriginId(3), "c", 0));
    spec.frontends = vec![FrontendSpec { id: FrontendId(9), own: None, family: Family::V4 }];
    let mut scene = Scene::new(spec.clone());
    for id in [A, B, OriginId(3)] {
        scene.rounds(id, 0, "PP");
    }
    let count = |scene: &Scene, id| scene.step.plan.frontends[0].slots.iter().filter(|slot| **slot == id).count();
    assert_eq!((count(&scene, B), count(&scene, A) + count(&scene, OriginId(3))), (0, SLOTS));
    assert_eq!(scene.step.plan.frontends[0].armed, [A, OriginId(3), B]);
    assert_eq!(scene.step.plan.frontends[0].armed_best, 2);
    // Hung: no check looks there, so trials must, and they come by a slot.
    scene.trip(A, Streak::Request);
    scene.wait(Span::from_secs(4));
    assert!(scene.plan(A).blocked && scene.plan(A).trials);
    assert_eq!(count(&scene, A), 1);
    assert_eq!(scene.step.plan.frontends[0].armed, [OriginId(3), B]);
    spec.mode = Mode::Observe;
    scene.engine.reconfigure(vec![spec], scene.now);
    scene.tick();
    assert_eq!(count(&scene, OriginId::NONE), SLOTS, "an address that is nobody's leads nowhere unless it is steered");
}

/// `a` refused, was judged, and passes again, with stages of `stage_for` seconds and no clean time before them.
fn coming_back(stages: &[u8], stage_for: u64, approval: Approval) -> Scene {
    let mut spec = shop(&[check("port", Layer::Transport)]);
    spec.policy.failback = Failback {
        observe_for: Span::from_secs(5),
        stages: stages.to_vec(),
        stage_for: Span::from_secs(stage_for),
        approval,
        ..Failback::default()
    };
    let mut scene = Scene::new(spec);
    scene.rounds(A, 0, "PPPPPPPPPP");
    scene.rounds(B, 0, "PPPPPPPPPP");
    scene.rounds(A, 0, "FFF");
    scene.rounds(A, 0, "PP");
    assert_eq!(scene.state(A), State::Recovering);
    scene.told();
    scene
}

/// Seconds with passing rounds of both origins.
fn clean(scene: &mut Scene, seconds: u64) {
    for _ in 0..seconds {
        scene.rounds(A, 0, "PPPPP");
        scene.rounds(B, 0, "PPPPP");
    }
}

fn until_stage(scene: &mut Scene, percent: u8) {
    for _ in 0..1000 {
        if scene.engine.services[0].origins[0].life.phase.part() == percent {
            return;
        }
        clean(scene, 1);
    }
    panic!("never {percent} %: {:?}", scene.view(A).way);
}

#[test]
fn stages_give_a_growing_part_and_end_healthy() {
    let mut scene = coming_back(&[10, 50, 100], 20, Approval::Auto);
    let mut parts = Vec::new();
    for _ in 0..400 {
        clean(&mut scene, 1);
        let slots = scene.slots(A);
        if parts.last() != Some(&slots) {
            parts.push(slots);
        }
    }
    assert_eq!(parts, [0, 25, 126, SLOTS], "a tenth and a half of 251, exact to a slot");
    assert_eq!(scene.state(A), State::Healthy);
    let told = scene.told();
    assert_eq!(
        told,
        ["1 stage 10", "1 stage 50", "1 stage 100", "failback 1>0 judge", "1 recovering>healthy stages_over"]
    );
}

#[test]
fn an_origin_in_a_stage_replaces_nobody_and_is_not_left_out() {
    let mut scene = coming_back(&[10, 100], 20, Approval::Auto);
    until_stage(&mut scene, 10);
    assert!(!scene.plan(A).blocked);
    let frontend = &scene.step.plan.frontends[0];
    assert_eq!(frontend.armed.first(), Some(&B), "{:?}", frontend.armed);
}

#[test]
fn a_failing_round_in_a_stage_rolls_back() {
    let mut scene = coming_back(&[10, 50, 100], 20, Approval::Auto);
    until_stage(&mut scene, 50);
    scene.told();
    scene.rounds(A, 0, "F");
    assert_eq!((scene.state(A), scene.slots(A)), (State::Fault, 0));
    assert_eq!(scene.told(), ["1 recovering>fault failed_in_stage"]);
    assert!(scene.plan(A).blocked);
    scene.rounds(A, 0, "PP");
    let until = scene.view(A).hold_down_until().expect("it waits");
    assert_eq!(until.since(scene.now), Span::from_secs(60), "the second fault");
}

#[test]
fn a_trip_in_a_stage_rolls_back() {
    let mut scene = coming_back(&[10, 100], 20, Approval::Auto);
    until_stage(&mut scene, 10);
    clean(&mut scene, 1);
    scene.told();
    let trip = TripView { streak: Streak::Connect, since: scene.now, trials_failed: 0, trials_passed: 0 };
    scene.kernel.insert(A, KernelView { trip: Some(trip), ..KernelView::default() });
    scene.tick();
    assert_eq!(scene.told(), ["1 recovering>fault tripped_in_stage"]);
}

#[test]
fn flows_that_fail_more_often_than_the_standbys_roll_back() {
    let mut scene = coming_back(&[10, 100], 60, Approval::Auto);
    until_stage(&mut scene, 10);
    clean(&mut scene, 1);
    scene.told();
    let mut flows = |id: OriginId, tried: u64, failed: u64| {
        let totals = scene.totals.entry(id).or_default();
        totals.syn += tried;
        totals.synack += tried - failed;
        totals.refused += failed;
    };
    flows(B, 1000, 1);
    flows(A, 199, 20);
    clean(&mut scene, 1);
    assert_eq!(scene.state(A), State::Recovering, "199 flows are too few to compare");
    let totals = scene.totals.entry(A).or_default();
    (totals.syn, totals.synack) = (totals.syn + 201, totals.synack + 201);
    clean(&mut scene, 1);
    assert_eq!(scene.told().first().map(String::as_str), Some("1 recovering>fault canary_failures"));
}

#[test]
fn answers_that_come_later_than_the_standbys_roll_back() {
    for (mean_ms, back) in [(9, false), (14, true)] {
        let mut scene = coming_back(&[10, 100], 60, Approval::Auto);
        until_stage(&mut scene, 10);
        clean(&mut scene, 1);
        scene.told();
        for (id, mean_ms) in [(A, mean_ms), (B, 10)] {
            let totals = scene.totals.entry(id).or_default();
            (totals.request, totals.response) = (totals.request + 1000, totals.response + 1000);
            totals.ttfb_all.samples += 1000;
            totals.ttfb_all.total = Span(totals.ttfb_all.total.0 + Span::from_millis(mean_ms * 1000).0);
        }
        clean(&mut scene, 1);
        let want = back.then_some("1 recovering>fault canary_slow");
        assert_eq!(scene.told().first().map(String::as_str), want, "{mean_ms} ms beside 10 ms");
    }
}

fn order(what: OrderKind, until: Option<Timestamp>) -> Order {
    Order { origin: A, what, reason: "seen the graphs".to_owned(), by: "li.wei".to_owned(), until }
}

#[test]
fn a_manual_failback_waits_for_its_approval_and_says_so_once() {
    let mut scene = coming_back(&[10, 100], 10, Approval::EachStage);
    clean(&mut scene, 100);
    assert_eq!(scene.told(), ["1 asks 10 approval"]);
    let end = scene.now.after(Span::from_secs(3600));
    scene.tick_with(Vec::new(), vec![order(OrderKind::Approve, Some(end))]);
    assert_eq!(scene.told(), ["1 Some(Approve) li.wei", "1 stage 10"]);
    clean(&mut scene, 100);
    assert_eq!(scene.told(), ["1 asks 100 approval"], "each stage asks anew");
    assert_eq!(scene.slots(A), 25, "and what it has it keeps");
    scene.tick_with(Vec::new(), vec![order(OrderKind::Abort, None)]);
    assert_eq!(scene.told(), ["1 Some(Abort) li.wei", "1 recovering>fault operator"]);
    assert_eq!(scene.slots(A), 0);
}

#[test]
fn what_waits_with_a_part_of_the_flows_is_compared_too() {
    let mut scene = coming_back(&[10, 100], 10, Approval::Auto);
    until_stage(&mut scene, 10);
    scene.tick_with(Vec::new(), vec![order(OrderKind::Hold, None)]);
    clean(&mut scene, 60);
    scene.told();
    for (id, failed) in [(A, 100), (B, 1)] {
        let totals = scene.totals.entry(id).or_default();
        (totals.syn, totals.synack, totals.refused) = (1000, 1000 - failed, failed);
    }
    clean(&mut scene, 1);
    assert_eq!(scene.told().first().map(String::as_str), Some("1 recovering>fault canary_failures"));
}

#[test]
fn a_hold_stays_until_an_approval() {
    let mut scene = coming_back(&[10, 100], 10, Approval::Auto);
    until_stage(&mut scene, 10);
    scene.told();
    scene.tick_with(Vec::new(), vec![order(OrderKind::Hold, None)]);
    clean(&mut scene, 100);
    assert_eq!(scene.told(), ["1 Some(Hold) li.wei", "1 asks 100 hold"]);
    assert_eq!(scene.slots(A), 25);
    scene.tick_with(Vec::new(), vec![order(OrderKind::Approve, None)]);
    assert_eq!(scene.told(), ["1 Some(Approve) li.wei", "1 stage 100", "failback 1>0 judge"]);
}

#[test]
fn an_approval_that_ran_out_lets_nothing_begin() {
    let mut scene = coming_back(&[100], 10, Approval::FirstStage);
    let end = scene.now.after(Span::from_secs(2));
    scene.tick_with(Vec::new(), vec![order(OrderKind::Approve, Some(end))]);
    assert!(scene.view(A).approval.is_some());
    clean(&mut scene, 100);
    assert!(scene.view(A).approval.is_none());
    assert_eq!(scene.state(A), State::Recovering);
    assert_eq!(scene.told(), ["1 Some(Approve) li.wei", "1 asks 100 approval"]);
}

#[test]
fn nothing_comes_back_while_the_window_of_the_day_is_closed() {
    let mut scene = coming_back(&[100], 10, Approval::Auto);
    scene.closed = vec![ServiceId(1)];
    clean(&mut scene, 100);
    assert_eq!((scene.told(), scene.slots(A)), (vec!["1 asks 100 window".to_owned()], 0));
    scene.closed.clear();
    clean(&mut scene, 1);
    assert_eq!(scene.told(), ["1 stage 100", "failback 1>0 judge"]);
}

#[test]
fn an_origin_without_another_beside_it_has_no_stages() {
    let mut spec = shop(&[check("port", Layer::Transport)]);
    spec.policy.failback = Failback::default();
    spec.origins.truncate(1);
    let mut scene = Scene::new(spec);
    scene.rounds(A, 0, "PPPPPPPPPP");
    scene.rounds(A, 0, "FFF");
    scene.rounds(A, 0, "PP");
    for _ in 0..40 {
        scene.rounds(A, 0, "PPPPPPPPPP");
    }
    assert_eq!(scene.state(A), State::Healthy, "nobody else has its flows");
}

#[test]
fn a_stage_lasts_until_its_verify_checks_have_passed() {
    let mut spec =
        shop(&[check("port", Layer::Transport), CheckSpec { verify: true, ..check("pay", Layer::Application) }]);
    let stages = [10, 100].to_vec();
    spec.policy.failback =
        Failback { observe_for: Span::ZERO, stages, stage_for: Span::from_secs(5), ..Failback::default() };
    let mut scene = Scene::new(spec);
    scene.rounds(A, 0, "PPPPPPPPPP");
    scene.rounds(B, 0, "PPPPPPPPPP");
    scene.rounds(A, 0, "FFFPP");
    until_stage(&mut scene, 10);
    clean(&mut scene, 60);
    scene.told();
    assert_eq!(scene.slots(A), 25, "nothing has verified it");
    scene.rounds(A, 1, "P");
    clean(&mut scene, 1);
    assert_eq!(scene.told(), ["1 stage 100", "failback 1>0 judge"]);
    scene.rounds(A, 1, "F");
    assert_eq!(scene.told().first().map(String::as_str), Some("1 recovering>fault failed_in_stage"));
}

#[test]
fn what_serves_is_neither_approved_nor_aborted() {
    let mut scene = port();
    scene.tick_with(Vec::new(), vec![order(OrderKind::Approve, None), order(OrderKind::Abort, None)]);
    assert_eq!(scene.told(), Vec::<String>::new());
    assert_eq!(scene.state(A), State::Healthy);
}

/// The scene goes on with another engine, which knows what the first one remembered.
fn restart(scene: &mut Scene) {
    let memories = scene.engine.remember();
    let specs: Vec<ServiceSpec> = scene.engine.services.iter().map(|service| service.spec.clone()).collect();
    scene.engine = Engine::new(specs, scene.now);
    scene.engine.recall(memories, scene.now);
}

#[test]
fn a_restart_in_a_stage_goes_on_where_it_was() {
    let mut scene = coming_back(&[10, 50, 100], 20, Approval::Auto);
    until_stage(&mut scene, 50);
    clean(&mut scene, 15);
    scene.told();
    restart(&mut scene);
    clean(&mut scene, 1);
    assert_eq!((scene.state(A), scene.slots(A)), (State::Recovering, 126), "the same part at once");
    clean(&mut scene, 10);
    assert!(scene.told().contains(&"1 stage 100".to_owned()), "and no longer than it would have taken");
}

#[test]
fn a_restart_forgets_neither_orders_nor_faults() {
    let mut scene = coming_back(&[100], 10, Approval::FirstStage);
    clean(&mut scene, 60);
    scene.tick_with(Vec::new(), vec![order(OrderKind::Hold, None)]);
    let drain = Order { origin: B, ..order(OrderKind::Drain, None) };
    scene.tick_with(Vec::new(), vec![drain.clone()]);
    restart(&mut scene);
    scene.told();
    clean(&mut scene, 20);
    assert_eq!((scene.state(A), scene.state(B)), (State::Recovering, State::Maintenance));
    assert_eq!(scene.view(B).order.as_ref(), Some(&drain));
    assert_eq!(scene.view(A).waits, Some(Waits::Hold));
    assert!(scene.view(A).reasons.iter().any(|reason| reason.starts_with("port 0/3")), "{:?}", scene.view(A).reasons);
    scene.rounds(A, 0, "F");
    scene.rounds(A, 0, "PP");
    let until = scene.view(A).hold_down_until().expect("it waits");
    assert_eq!(until.since(scene.now), Span::from_secs(60), "the second fault");
}

#[test]
fn what_was_healthy_is_judged_anew_and_an_order_that_ran_out_is_over() {
    let mut scene = port();
    assert_eq!(scene.engine.remember(), [], "nothing to remember");
    let until = Some(scene.now.after(Span::from_secs(30)));
    scene.tick_with(Vec::new(), vec![order(OrderKind::Drain, until)]);
    let mut memories = scene.engine.remember();
    for memory in &mut memories {
        memory.order = None;
    }
    let specs: Vec<ServiceSpec> = scene.engine.services.iter().map(|service| service.spec.clone()).collect();
    scene.engine = Engine::new(specs, scene.now);
    scene.engine.recall(memories, scene.now);
    clean(&mut scene, 2);
    assert_eq!(scene.state(A), State::Healthy);
}

#[path = "judgement.rs"]
mod judgement;

#[path = "location.rs"]
mod location;

#[path = "cases.rs"]
mod cases;

/// Readiness: a slow primary sheds flows only to a standby that was seen to serve, lately; a dead one takes what there is.
#[test]
fn nothing_goes_by_choice_to_a_standby_that_is_not_ready() {
    let mut scene = Scene::new(shop(&[check("port", Layer::Transport)]));
    scene.rounds(A, 0, "PPPPPPPPPP");
    assert_eq!((scene.view(A).ready, scene.view(B).ready), (None, Some(Readiness::Unproved)));
    scene.rounds(A, 0, "SSS");
    assert_eq!((scene.state(A), scene.slots(A)), (State::Degraded, SLOTS), "nobody is ready");
    scene.tick();
    let pace = scene.step.paces.iter().find(|(id, _)| *id == B).map(|(_, pace)| *pace);
    assert_eq!(pace, Some(Pace::Suspect), "its turn may be near: it is checked often");
    scene.rounds(B, 0, "P");
    assert_eq!(scene.view(B).ready, Some(Readiness::Ready));
    assert_eq!(scene.slots(A), 179, "5/7 of 251 stay");
    // Its last pass is too long ago, and the primary still serves.
    for _ in 0..40 {
        scene.rounds(A, 0, "SSSSSSSSSS");
    }
    assert_eq!((scene.view(B).ready, scene.slots(A)), (Some(Readiness::Stale), SLOTS));
    scene.rounds(A, 0, "FFF");
    assert_eq!((scene.state(A), scene.slots(B)), (State::Fault, SLOTS));
}

/// `panic_percent` 0: nothing usable means refused, visibly, and no panic.
#[test]
fn without_panic_a_service_refuses() {
    let mut spec = shop(&[check("port", Layer::Transport)]);
    spec.policy.panic_percent = 0;
    let mut scene = Scene::new(spec);
    scene.rounds(A, 0, "PPPPPPPPPP");
    scene.rounds(B, 0, "PPPPPPPPPP");
    scene.rounds(A, 0, "FFF");
    scene.told();
    scene.rounds(B, 0, "FFF");
    let last = scene.decisions.last().expect("told");
    assert_eq!((&last.what, last.rule), (&DecisionKind::Panic { on: true }, "refused"));
    let view = &scene.step.view[0];
    assert!(view.refuses && !view.panic);
    assert!(scene.plan(A).blocked && scene.plan(B).blocked && scene.step.plan.frontends[0].armed.is_empty());
}

/// `on_fault`: the connections of an origin whose flows have left are named, those of one that still serves never.
#[test]
fn connections_of_a_fault_end_while_somebody_stands_in() {
    let mut scene = port();
    scene.rounds(A, 0, "FFF");
    let ending = scene.step.endings.first().copied().expect("at once");
    assert_eq!((ending.origin, ending.all, ending.stalled), (A, false, Span::from_secs(3)));
    scene.tick();
    assert!(scene.step.endings.is_empty(), "not in each tick");
    scene.rounds(B, 0, "FFF");
    for _ in 0..50 {
        scene.tick();
        assert!(scene.step.endings.is_empty(), "nobody can stand in, so nobody is sent to connect anew");
    }
}
