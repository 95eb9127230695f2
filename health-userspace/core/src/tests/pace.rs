//! What checks may do to an origin, and how its condition paces them.

use crate::{
    engine::{Engine, Input, Step, TrafficTotals},
    model::{
        Balance, CheckResult, CheckSpec, Family, FrontendId, FrontendSpec, Layer, Mode, OriginId, OriginSpec, Outcome,
        Pace, Reason, ServiceId, ServiceSpec, State,
    },
    policy::Policy,
    time::{Span, Timestamp},
};
use alloc::{borrow::ToOwned, vec, vec::Vec};

const A: OriginId = OriginId(1);
const B: OriginId = OriginId(2);

struct Scene {
    engine: Engine,
    spec: ServiceSpec,
    now: Timestamp,
    step: Step,
}

fn check(name: &str, critical: bool, verify: bool) -> CheckSpec {
    CheckSpec {
        name: name.to_owned(),
        layer: Layer::Application,
        interval: Span::from_millis(100),
        critical,
        verify,
        removed_fall: 0,
    }
}

fn origin(id: OriginId, name: &str, tier: u8) -> OriginSpec {
    let key = u64::from(id.0);
    let (capacity_cps, capacity_conns) = (None, None);
    OriginSpec { id, name: name.to_owned(), key, family: Family::V4, tier, weight: 100, capacity_cps, capacity_conns }
}

impl Scene {
    fn new(checks: Vec<CheckSpec>, tier_of_b: u8) -> Self {
        let now = Timestamp(1_000_000_000_000);
        let spec = ServiceSpec {
            id: ServiceId(1),
            name: "shop".to_owned(),
            mode: Mode::Enforce,
            policy: Policy::default(),
            origins: vec![origin(A, "a", 0), origin(B, "b", tier_of_b)],
            checks,
            frontends: vec![FrontendSpec { id: FrontendId(1), own: None, family: Family::V4 }],
            balance: Balance::Weighted,
        };
        Self { engine: Engine::new(vec![spec.clone()], now), spec, now, step: Step::default() }
    }

    fn tick(&mut self, input: Input) {
        self.now = self.now.after(Span::from_millis(100));
        self.step = self.engine.tick(self.now, &Input { in_sync: true, ..input });
    }

    /// Rounds of the check at `place` of A, a letter each.
    fn rounds(&mut self, place: u16, letters: &str) {
        for letter in letters.chars() {
            let outcome = if letter == 'P' { Outcome::Pass } else { Outcome::Fail(Reason::Refused) };
            let (began, ended) = (self.now.after(Span::from_millis(10)), self.now.after(Span::from_millis(20)));
            let checks = vec![CheckResult { origin: A, check: place, began, ended, outcome }];
            self.tick(Input { checks, ..Input::default() });
        }
    }

    fn state(&self) -> State {
        self.step.view[0].origins[0].state
    }

    fn share(&self) -> u16 {
        self.step.view[0].origins[0].share_bp
    }

    fn pace(&self) -> Pace {
        self.step.paces.iter().find(|(id, _)| *id == A).expect("a pace for each origin").1
    }
}

#[test]
fn a_check_that_is_not_critical_only_degrades_and_holds_nobody_out() {
    let mut scene = Scene::new(vec![check("web", true, false), check("search", false, false)], 1);
    scene.rounds(0, "PPP");
    scene.rounds(1, "FFFFFFFF");
    assert_eq!(scene.state(), State::Degraded);
    scene.rounds(0, "FFF");
    assert_eq!(scene.state(), State::Fault);
    // It still fails, and the origin comes back all the same.
    scene.rounds(1, "F");
    scene.rounds(0, "PP");
    assert_eq!(scene.state(), State::Recovering);
    scene.rounds(1, "F");
    assert_eq!(scene.state(), State::Recovering);
}

#[test]
fn a_verify_check_decides_at_the_return_and_is_forgotten_after_it() {
    let mut scene = Scene::new(vec![check("web", true, false), check("pay", true, true)], 1);
    scene.rounds(0, "PPP");
    scene.rounds(0, "FFF");
    scene.rounds(0, "PP");
    assert_eq!((scene.state(), scene.pace()), (State::Recovering, Pace::Usual), "not before the first stage");
    for _ in 0..10_000 {
        if scene.pace() == Pace::Returning {
            break;
        }
        scene.rounds(0, "P");
    }
    assert_eq!((scene.state(), scene.pace()), (State::Recovering, Pace::Returning));
    scene.rounds(1, "F");
    assert_eq!(scene.state(), State::Fault);
    // It is not run while out, so its failure must not keep the origin there.
    scene.rounds(0, "PP");
    assert_eq!(scene.state(), State::Recovering);
}

#[test]
fn the_weight_of_a_script_replaces_the_base_and_the_state_multiplies_it() {
    let mut scene = Scene::new(vec![check("mq", true, false), check("web", true, false)], 0);
    scene.rounds(0, "P");
    assert_eq!(scene.share(), 5000);
    scene.tick(Input { weights: vec![(A, 0, 25)], ..Input::default() });
    assert_eq!(scene.share(), 2000, "25 of 125");
    // Another configuration keeps it as long as the check that set it is there.
    scene.engine.reconfigure(vec![scene.spec.clone()], scene.now);
    scene.tick(Input::default());
    assert_eq!(scene.share(), 2000);
    scene.rounds(1, "PPPFPFF");
    assert_eq!(scene.state(), State::Degraded);
    let degraded = scene.share();
    assert!(degraded < 2000, "{degraded}");
    scene.tick(Input { weights: vec![(A, 0, 0)], ..Input::default() });
    assert_eq!(scene.share(), 0);
    let mut without = scene.spec.clone();
    without.checks = vec![check("web", true, false)];
    scene.engine.reconfigure(vec![without], scene.now);
    scene.tick(Input::default());
    assert!(scene.share() > 2000, "the configuration's weight again: {}", scene.share());
}

#[test]
fn the_pace_follows_the_condition() {
    let mut scene = Scene::new(vec![check("web", true, false)], 1);
    scene.tick(Input::default());
    assert_eq!(scene.pace(), Pace::Usual, "nothing is known");
    scene.rounds(0, "PPP");
    assert_eq!((scene.state(), scene.pace()), (State::Healthy, Pace::Usual));
    let totals = |good: u64| TrafficTotals { syn: good, synack: good, ..TrafficTotals::default() };
    scene.tick(Input { traffic: vec![(A, totals(1))], ..Input::default() });
    scene.tick(Input { traffic: vec![(A, totals(150))], ..Input::default() });
    assert_eq!(scene.pace(), Pace::Usual, "some traffic");
    scene.tick(Input { traffic: vec![(A, totals(300))], ..Input::default() });
    assert_eq!(scene.pace(), Pace::Ample(Layer::Transport), "no status was read");
    let http = TrafficTotals { request: 300, response: 300, http_good: 300, ..totals(400) };
    scene.tick(Input { traffic: vec![(A, http)], ..Input::default() });
    assert_eq!(scene.pace(), Pace::Ample(Layer::Application));
    let failing = TrafficTotals { syn: 401, refused: 1, ..http };
    scene.tick(Input { traffic: vec![(A, failing)], ..Input::default() });
    assert_eq!(scene.pace(), Pace::Suspect, "a first failure");
    for _ in 0..51 {
        scene.tick(Input::default());
    }
    assert_eq!(scene.pace(), Pace::Ample(Layer::Application), "it was chance");
    scene.rounds(0, "FFF");
    assert!(matches!(scene.pace(), Pace::Out | Pace::Gentle), "{:?}", scene.pace());
}
