//! What must hold after every tick.

use crate::world::{Host, Truth, World};
use health_core::{
    Span, Timestamp,
    engine::{DecisionKind, FrontendPlan, Lease, OriginPlan, OriginView, SLOTS},
    governor::Held,
    model::{FrontendSpec, Layer, Location, Mode, OriginId, ServiceSpec, State},
    policy::Moves,
};
use std::collections::BTreeMap;

/// Longest time that a dead origin may go unjudged: `fall` rounds of the slower check that each time out, and more.
const JUDGED_WITHIN: Span = Span::from_secs(12);

/// Longest time that a repaired origin may wait: `rise` rounds, the longest hold-down, a clean time and stages, and a window
/// for rates.
const BACK_WITHIN: Span = Span::from_secs(61);

/// Readings of the kernel are lost now and then, never for so long.
const TOLD_WITHIN: Span = Span::from_secs(2);

/// Flows that came back to an origin that serves stay for so long.
const NO_PING_PONG: Span = Span::from_secs(60);

pub(crate) struct Judge {
    states: BTreeMap<OriginId, State>,
    /// Of origins whose flows had left for another tier: when they came back.
    came_back: BTreeMap<OriginId, Option<Timestamp>>,
}

impl Judge {
    pub(crate) fn new(world: &World) -> Self {
        Self { states: world.hosts.keys().map(|id| (*id, State::Unknown)).collect(), came_back: BTreeMap::new() }
    }

    pub(crate) fn check(&mut self, world: &World, tick: u32) {
        if world.restarted {
            self.states.values_mut().for_each(|state| *state = State::Unknown);
            self.came_back.clear();
        }
        let before = self.states.clone();
        self.decisions_tell_all(world, tick);
        for (spec, place) in world.specs.iter().zip(0..) {
            let service = Service { world, spec, place, tick };
            service.plan_is_whole();
            service.no_usable_origin_is_passed_over();
            service.status_and_plan_agree();
            service.what_is_held_stays();
            service.a_service_that_moves_as_a_whole_is_on_one_tier();
            service.connections_end_only_where_flows_have_left();
            self.no_ping_pong(&service);
            for view in service.views() {
                service.no_trip_is_left_behind(view);
                service.a_hold_down_is_served_clean(view, before[&view.id]);
                service.silence_is_never_failure(view);
                service.what_never_answered_is_never_healthy(view);
                service.dead_origins_are_judged(view);
                service.repaired_origins_come_back(view);
            }
        }
        assert!(!world.twin_differs, "seed {} tick {tick}: the same input gave another plan", world.seed);
    }

    /// Flows don't leave an origin that serves twice within a minute.
    fn no_ping_pong(&mut self, service: &Service<'_>) {
        let view = &service.world.step.view[service.place];
        for (own, away) in service.away() {
            if view.panic || view.refuses || service.view(own).order.is_some() {
                // All are used, and nothing is home or away; or it is an operator who moves them.
                self.came_back.remove(&own);
                continue;
            }
            let before = self.came_back.get(&own).copied();
            let serves = matches!(service.view(own).state, State::Degraded | State::HighRisk);
            if let (Some(Some(at)), true, true) = (before, away, serves) {
                let quiet = service.world.now.since(at);
                assert!(quiet >= NO_PING_PONG, "{}: {own:?} left again after {quiet}", service.at());
            }
            match (before, away) {
                (_, true) => drop(self.came_back.insert(own, None)),
                (Some(None), false) => drop(self.came_back.insert(own, Some(service.world.now))),
                (Some(Some(_)) | None, false) => {}
            }
        }
    }

    /// Every change of state is told, in order, and nothing else.
    fn decisions_tell_all(&mut self, world: &World, tick: u32) {
        for decision in &world.step.decisions {
            assert!(decision.at == world.now && !decision.by.is_empty(), "seed {} tick {tick}", world.seed);
            let rule = health_core::rule::find(decision.rule);
            let rule = rule.unwrap_or_else(|| panic!("seed {} tick {tick}: {decision:?}: no such rule", world.seed));
            assert!(decision.why.limits.len() >= rule.keys.len(), "seed {} tick {tick}: {decision:?}", world.seed);
            if let DecisionKind::State { origin, from, to, .. } = decision.what {
                let known = self.states.insert(origin, to);
                assert_eq!(known, Some(from), "seed {} tick {tick}: {decision:?}", world.seed);
                assert!(!decision.evidence.is_empty(), "seed {} tick {tick}: {decision:?}", world.seed);
            }
        }
        for view in world.step.view.iter().flat_map(|service| &service.origins) {
            assert_eq!(self.states.get(&view.id), Some(&view.state), "seed {} tick {tick}: untold", world.seed);
        }
    }
}

/// Each origin of the table once.
fn used(plan: &FrontendPlan) -> Vec<OriginId> {
    let mut used = plan.slots.clone();
    used.sort_unstable();
    used.dedup();
    used
}

struct Service<'a> {
    world: &'a World,
    spec: &'a ServiceSpec,
    place: usize,
    tick: u32,
}

impl Service<'_> {
    fn at(&self) -> String {
        format!("seed {} tick {} service {}", self.world.seed, self.tick, self.place)
    }

    fn views(&self) -> &[OriginView] {
        &self.world.step.view[self.place].origins
    }

    fn view(&self, id: OriginId) -> &OriginView {
        self.views().iter().find(|view| view.id == id).expect("every origin is in the view")
    }

    fn host(&self, id: OriginId) -> &Host {
        &self.world.hosts[&id]
    }

    fn plan(&self, id: OriginId) -> OriginPlan {
        *self.world.step.plan.origins.iter().find(|plan| plan.id == id).expect("every origin is in the plan")
    }

    fn frontends(&self) -> Vec<(&FrontendPlan, &FrontendSpec)> {
        let plan = |id| self.world.step.plan.frontends.iter().find(|plan| plan.id == id);
        let all = self.spec.frontends.iter();
        all.map(|spec| (plan(spec.id).expect("every frontend is in the plan"), spec)).collect()
    }

    fn is_usable(&self, id: OriginId) -> bool {
        let state = self.view(id).state;
        !matches!(state, State::Fault | State::Recovering | State::Maintenance) && self.host(id).spec.weight > 0
    }

    fn is_staged(&self, id: OriginId) -> bool {
        self.view(id).part() > 0
    }

    fn plan_is_whole(&self) {
        for (plan, spec) in self.frontends() {
            assert_eq!(plan.slots.len(), SLOTS, "{}", self.at());
            assert!(plan.armed.len() <= 16 && usize::from(plan.armed_best) <= plan.armed.len(), "{}", self.at());
            for id in used(plan).iter().filter(|id| **id != OriginId::NONE).chain(&plan.armed) {
                assert_eq!(self.host(*id).spec.family, spec.family, "{}: families mix", self.at());
                assert_eq!(self.host(*id).service, self.place, "{}: services mix", self.at());
            }
        }
    }

    /// Invariant 8, and 7 for services that only watch.
    fn no_usable_origin_is_passed_over(&self) {
        for (plan, spec) in self.frontends() {
            let own = spec.own.unwrap_or(OriginId::NONE);
            if self.spec.mode == Mode::Observe {
                assert!(plan.slots.iter().all(|slot| *slot == own), "{}: observe mode steers", self.at());
                continue;
            }
            let family = spec.family;
            let of_family = || self.spec.origins.iter().filter(|origin| origin.family == family);
            let any = of_family().any(|origin| self.is_usable(origin.id));
            let unsteered = plan.slots.iter().all(|slot| *slot == own);
            for slot in &used(plan) {
                if *slot == OriginId::NONE {
                    assert!(!any, "{}: a virtual address leads nowhere", self.at());
                    continue;
                }
                let slots = plan.slots.iter().filter(|id| *id == slot).count();
                let tried = spec.own.is_none() && self.plan(*slot).trials && slots == 1;
                // What the governor holds stays where it is.
                let held = self.view(*slot).held.is_some() && (spec.own.is_none() || spec.own == Some(*slot));
                let taken = held || tried || self.is_usable(*slot) || self.is_staged(*slot);
                assert!(!any || taken, "{}: {slot:?} passes over a usable one", self.at());
                let never = self.view(*slot).state == State::Maintenance || self.host(*slot).spec.weight == 0;
                assert!(
                    unsteered || !never,
                    "{}: {slot:?} is drained or takes nothing: {:?} {:?}",
                    self.at(),
                    spec,
                    self.views()
                );
            }
            // Its own address falls back on an origin in a stage, after all others.
            let last = |id: &OriginId| spec.own == Some(*id) && self.is_staged(*id);
            assert!(plan.armed.iter().all(|id| self.is_usable(*id) || last(id)), "{}", self.at());
        }
    }

    /// Of each guarded address whether some of its flows go to another tier, while somebody of its own serves.
    fn away(&self) -> Vec<(OriginId, bool)> {
        let tier = |id: &OriginId| self.host(*id).spec.tier;
        let guarded = self.frontends().into_iter().filter_map(|(plan, spec)| Some((plan, spec.own?)));
        guarded.map(|(plan, own)| (own, used(plan).iter().any(|id| tier(id) != tier(&own)))).collect()
    }

    /// A held move does not happen, in the plan; one that would crush a standby not by a trip either. And what traffic shows
    /// dead is not held while a standby has declared what it can take.
    fn what_is_held_stays(&self) {
        let away: BTreeMap<OriginId, bool> = self.away().into_iter().collect();
        for (plan, spec) in self.frontends() {
            let Some((own, held)) = spec.own.and_then(|own| Some((own, self.view(own).held?))) else { continue };
            assert_eq!(away.get(&own), Some(&false), "{}: {own:?} is held and leaves", self.at());
            let tier = self.host(own).spec.tier;
            let shut = matches!(held, Held::PerStandby | Held::StandbyLoad);
            let others = plan.armed.iter().any(|id| self.host(*id).spec.tier != tier);
            assert!(!(shut && others), "{}: {own:?} is held and armed", self.at());
            assert!(!(shut && self.world.declared), "{}: {own:?} {held:?}", self.at());
            let shown = self.view(own).tripped && self.view(own).state == State::Fault;
            assert!(!(shown && self.world.declared), "{}: {own:?} is dead and held: {held:?}", self.at());
        }
    }

    fn a_service_that_moves_as_a_whole_is_on_one_tier(&self) {
        let view = &self.world.step.view[self.place];
        if self.spec.policy.moves != Moves::Service || view.panic || view.refuses {
            return;
        }
        for (plan, spec) in self.frontends() {
            let mut tiers: Vec<u8> = plan.armed.iter().map(|id| self.host(*id).spec.tier).collect();
            let tried = |id: &OriginId| spec.own.is_none() && self.plan(*id).trials;
            let placed = used(plan).into_iter().filter(|id| *id != OriginId::NONE && !tried(id));
            tiers.extend(placed.map(|id| self.host(id).spec.tier));
            tiers.sort_unstable();
            tiers.dedup();
            assert!(tiers.len() <= 1, "{}: tiers {tiers:?} of one service", self.at());
        }
    }

    /// Who is reset connects anew: that must lead elsewhere.
    fn connections_end_only_where_flows_have_left(&self) {
        for ending in &self.world.step.endings {
            let Some(view) = self.views().iter().find(|view| view.id == ending.origin) else { continue };
            assert!(view.state == State::Fault && view.held.is_none(), "{}: {view:?}", self.at());
            assert!(self.plan(view.id).blocked, "{}: {view:?}", self.at());
        }
    }

    fn status_and_plan_agree(&self) {
        let mut shares = 0;
        for view in self.views() {
            let plan = self.plan(view.id);
            let out = matches!(view.state, State::Fault | State::Recovering | State::Maintenance) && view.part() == 0;
            let blocked = out && self.spec.mode == Mode::Enforce && view.held.is_none();
            assert_eq!(plan.blocked, blocked, "{}: {view:?}", self.at());
            assert!(!plan.trials || plan.blocked, "{}", self.at());
            let runs_out = matches!(plan.lease, Lease::Trips(at) | Lease::Ends(at) if at <= self.world.now);
            assert!(!runs_out, "{}: a lease was not renewed: {plan:?}", self.at());
            assert!(plan.blocked || plan.lease == Lease::Stays, "{}: {plan:?}", self.at());
            assert!(plan.clear_trip.is_none_or(|at| at <= self.world.now), "{}", self.at());
            assert_eq!(view.way.is_some(), view.state == State::Recovering, "{}", self.at());
            let in_slots = self.frontends().iter().any(|(plan, _)| plan.slots.contains(&view.id));
            assert!(in_slots || view.share_bp == 0, "{}: a share without a slot: {view:?}", self.at());
            shares += view.share_bp;
        }
        assert!((9_990..=10_000).contains(&shares), "{}: shares sum to {shares}", self.at());
    }

    /// An origin that waits and fails is back in fault (or in an operator's hands) with the same tick.
    fn a_hold_down_is_served_clean(&self, view: &OriginView, before: State) {
        if before == State::Recovering && self.host(view.id).failed_round {
            let left = matches!(view.state, State::Fault | State::Maintenance | State::Unknown);
            assert!(left, "{}: {view:?}", self.at());
        }
    }

    /// A trip that is over for the judge ends in the kernel, however many writes failed before.
    fn no_trip_is_left_behind(&self, view: &OriginView) {
        let long = |since| self.world.now.since(since) >= TOLD_WITHIN;
        let left = self.host(view.id).tripped_since().filter(|since| long(*since) && !view.tripped);
        assert!(left.is_none() || !long(self.world.writes_ok_since), "{}: {left:?} {view:?}", self.at());
    }

    fn silence_is_never_failure(&self, view: &OriginView) {
        if !self.host(view.id).tainted {
            assert!(matches!(view.state, State::Unknown | State::Healthy), "{}: {view:?}", self.at());
        }
    }

    fn what_never_answered_is_never_healthy(&self, view: &OriginView) {
        if !self.host(view.id).answered {
            assert!(!matches!(view.state, State::Healthy | State::Degraded), "{}: {view:?}", self.at());
        }
    }

    /// Undisturbed by orders and by writes that fail.
    fn is_settled(&self, view: &OriginView, span: Span) -> bool {
        let host = self.host(view.id);
        self.world.now.since(host.truth_since) >= span
            && self.world.now.since(self.world.writes_ok_since) >= span
            && host.ordered_until.is_none_or(|until| self.world.now.since(until) >= span)
    }

    /// What fails is not this origin: the same page check fails on all that have a say, or many fell silent at once.
    fn is_excused(&self, view: &OriginView) -> bool {
        let silent = |host: &&Host| matches!(host.truth, Truth::Silent | Truth::Unplugged);
        match view.location {
            Some(Location::Check) => {
                let well = |other: &OriginView| {
                    self.host(other.id).truth == Truth::Fine
                        && other.state == State::Healthy
                        && self.is_settled(other, JUDGED_WITHIN)
                };
                view.state == State::Degraded && !self.views().iter().any(well)
            }
            Some(Location::Path | Location::Node) => {
                let lasts = self.world.hosts.values().filter(silent).count() >= 3;
                // Until a while after the longest cut.
                lasts || !self.is_settled(view, JUDGED_WITHIN.times(6))
            }
            Some(Location::OriginProcess | Location::OriginHost | Location::Certificate) | None => false,
        }
    }

    fn dead_origins_are_judged(&self, view: &OriginView) {
        let sees_page = self.spec.checks.iter().any(|check| check.layer == Layer::Application);
        let dead = match self.host(view.id).truth {
            Truth::Refuses | Truth::Silent | Truth::Unplugged => true,
            Truth::Hangs | Truth::WrongPage | Truth::Errors => sees_page,
            Truth::Fine | Truth::Lossy | Truth::Slow | Truth::Grey => false,
        };
        // Where enough statuses are seen that are fine, it is the checked page that is wrong, not the origin.
        let contradicted = view.sees == Some(Layer::Application);
        let page_only = self.host(view.id).truth == Truth::WrongPage && contradicted && view.state == State::Degraded;
        if dead && !page_only && !self.is_excused(view) && self.is_settled(view, JUDGED_WITHIN) {
            assert_eq!(view.state, State::Fault, "{}: {:?} {view:?}", self.at(), self.host(view.id).truth);
        }
    }

    fn repaired_origins_come_back(&self, view: &OriginView) {
        let host = self.host(view.id);
        if host.truth == Truth::Fine && self.is_settled(view, BACK_WITHIN) {
            assert!(matches!(view.state, State::Healthy), "{}: {view:?}", self.at());
            assert_eq!(host.tripped_since(), None, "{}: {view:?}", self.at());
        }
    }
}
