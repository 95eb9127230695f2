//! One service: its origins judged, its pools summed up, its frontends planned, its moves told.

use crate::{
    engine::{Decision, DecisionKind, Mitigated, Order, OrderKind, ServiceView, Step, Waits},
    governor::Held,
    lifecycle::{self, Phase},
    model::{Family, FrontendId, Mode, OriginId, ServiceSpec, State},
    origin::{Around, Event, Origin, Place},
    policy::{Moves, Policy, StateWeights},
    pool::{Bound, Limits, Member, Pool, Standing},
    time::Timestamp,
};
use alloc::{borrow::ToOwned, boxed::Box, collections::BTreeMap, format, string::String, vec::Vec};
use frontends::{Base, Table};

mod attack;
mod canary;
mod everywhere;
mod frontends;
mod govern;
mod why;

pub(crate) use attack::in_force;

/// Most origins that the evidence of a move names.
const TOLD_MAX: usize = 4;

/// One service.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) spec: ServiceSpec,
    /// In the specification's order.
    pub(crate) origins: Vec<Origin>,
    mitigated: Option<Mitigated>,
    /// The policy while it is.
    pub(crate) raised: Option<Box<Policy>>,
    /// Checks that fail on all origins, by their places.
    everywhere: BTreeMap<usize, everywhere::Everywhere>,
    active_tier: Option<u8>,
    panic: bool,
    tables: BTreeMap<FrontendId, Table>,
    bases: Vec<Base>,
    /// Where the counters stood when the stage of an origin began.
    canaries: BTreeMap<OriginId, canary::Watch>,
}

impl Service {
    pub(crate) fn new(spec: ServiceSpec, origins: Vec<Origin>) -> Self {
        let bases = frontends::bases(&spec);
        Self {
            spec,
            origins,
            mitigated: None,
            raised: None,
            everywhere: BTreeMap::new(),
            active_tier: None,
            panic: false,
            tables: BTreeMap::new(),
            bases,
            canaries: BTreeMap::new(),
        }
    }

    /// Goes on where an older configuration of the same service was.
    pub(crate) fn inherit(&mut self, old: Self) {
        self.mitigated = old.mitigated;
        self.raise();
        self.active_tier = old.active_tier;
        self.panic = old.panic;
        self.canaries = old.canaries;
        if self.spec.origins == old.spec.origins && self.spec.balance == old.spec.balance {
            self.tables = old.tables;
            self.tables.retain(|id, _| self.spec.frontends.iter().any(|frontend| frontend.id == *id));
        }
    }

    /// Takes the base weight that the check at `check` set for the origin at `place`.
    pub(crate) fn set_weight(&mut self, place: usize, check: u16, weight: u16) {
        let Some(origin) = self.origins.get_mut(place) else { return };
        if !origin.set_weight(check, &self.spec.checks, weight) {
            return;
        }
        if let Some(spec) = self.spec.origins.get_mut(place) {
            spec.weight = weight;
        }
        self.bases = frontends::bases(&self.spec);
    }

    /// Takes an order about the origin at `place`.
    pub(crate) fn obey(&mut self, place: usize, order: &Order, now: Timestamp, decisions: &mut Vec<Decision>) {
        if order.until.is_some_and(|until| until <= now) {
            return;
        }
        let Some(origin) = self.origins.get_mut(place) else { return };
        if origin.order.as_ref() == Some(order) {
            return;
        }
        if matches!(order.what, OrderKind::Approve | OrderKind::Hold | OrderKind::Abort) && !origin.is_coming_back() {
            return;
        }
        let changed = origin.obey(order, now, in_force(self.raised.as_deref(), &self.spec));
        let evidence = order.reason.as_str();
        let what = DecisionKind::Override { origin: order.origin, order: Some(order.what) };
        decisions.push(self.decision(now, what, "operator", evidence.to_owned(), order.by.clone()));
        if let Some(changed) = changed {
            let what = self.state_change(place, changed);
            decisions.push(self.decision(now, what, changed.rule, evidence.to_owned(), order.by.clone()));
        }
    }

    /// What the first look at the kernel brought.
    pub(crate) fn tell(&self, place: usize, change: lifecycle::Decision, now: Timestamp, step: &mut Step) {
        let evidence = self.origins.get(place).map(Origin::evidence).unwrap_or_default();
        let what = self.state_change(place, change);
        step.decisions.push(self.decision(now, what, change.rule, evidence, "judge".to_owned()));
    }

    /// Forms an opinion of every origin, by its own evidence.
    pub(crate) fn assess(&mut self, now: Timestamp) {
        for place in 0..self.origins.len() {
            let covered = self.is_covered(place);
            let policy = in_force(self.raised.as_deref(), &self.spec);
            if let Some(origin) = self.origins.get_mut(place) {
                origin.assess(&self.spec.checks, covered, now, policy);
            }
        }
    }

    /// Judges every origin.
    /// `open`: whether stages of a way back may begin at this time of the day.
    pub(crate) fn judge(&mut self, open: bool, now: Timestamp, step: &mut Step) {
        self.excuse_all(now, step);
        let alert = self.is_alert();
        for place in 0..self.origins.len() {
            self.end_order(place, now, step);
            let standby = self.is_standby(place);
            let way = Place { open, alone: self.is_alone(place) };
            let worse = self.compare(place);
            let policy = in_force(self.raised.as_deref(), &self.spec);
            let Some(origin) = self.origins.get_mut(place) else { continue };
            let mut events = Vec::new();
            let around = Around { place: way, worse: worse.as_ref() };
            origin.judge(around, now, policy, &mut events);
            origin.see_readiness(&self.spec.checks, now);
            if origin.take_suspicion(now) {
                step.suspects.push(origin.spec.id);
            }
            let pace = origin.pace(now, policy);
            step.paces.push((origin.spec.id, if alert && standby { pace.watched() } else { pace }));
            if events.is_empty() {
                continue;
            }
            let id = origin.spec.id;
            let evidence = worse.map_or_else(|| origin.evidence(), |worse| worse.text);
            let waits = origin.waits.unwrap_or(Waits::Window);
            for event in events {
                let (what, rule) = match event {
                    Event::State(change) => (self.state_change(place, change), change.rule),
                    Event::Trip { confirmed, rule } => (DecisionKind::TripJudged { origin: id, confirmed }, rule),
                    Event::Stage { percent } => (DecisionKind::Stage { origin: id, percent }, "clean"),
                    Event::Asks { percent } => (DecisionKind::Asks { origin: id, percent, waits }, waits.name()),
                };
                step.decisions.push(self.decision(now, what, rule, evidence.clone(), "judge".to_owned()));
            }
        }
    }

    /// Whether the one at `place` has no other of its family beside it, whatever becomes of them.
    fn is_alone(&self, place: usize) -> bool {
        let Some(own) = self.origins.get(place).map(|origin| &origin.spec) else { return false };
        let mut others = self.origins.iter().map(|origin| &origin.spec).filter(|other| other.id != own.id);
        !others.any(|other| other.family == own.family && other.weight > 0)
    }

    /// Whether another origin of the same family can stand in for the one at `place`.
    fn is_covered(&self, place: usize) -> bool {
        let Some(own) = self.origins.get(place) else { return false };
        let others = self.origins.iter().filter(|other| other.spec.id != own.spec.id);
        others.filter(|other| other.spec.family == own.spec.family).any(Origin::can_stand_in)
    }

    fn end_order(&mut self, place: usize, now: Timestamp, step: &mut Step) {
        let policy = in_force(self.raised.as_deref(), &self.spec);
        let ended = self.origins.get_mut(place).and_then(|origin| origin.end_order(now, policy));
        let Some((order, changed)) = ended else { return };
        let what = DecisionKind::Override { origin: order.origin, order: None };
        let evidence =
            if order.reason.is_empty() { "ran out".to_owned() } else { format!("{}, ran out", order.reason) };
        step.decisions.push(self.decision(now, what, "order_ended", evidence.clone(), order.by.clone()));
        if let Some(changed) = changed {
            let what = self.state_change(place, changed);
            step.decisions.push(self.decision(now, what, changed.rule, evidence, order.by));
        }
    }

    fn state_change(&self, place: usize, change: lifecycle::Decision) -> DecisionKind {
        let origin = self.origins.get(place);
        DecisionKind::State {
            origin: origin.map_or(OriginId(0), |origin| origin.spec.id),
            from: change.from,
            to: change.to,
            location: origin.and_then(Origin::location),
        }
    }

    fn decision(
        &self,
        at: Timestamp,
        what: DecisionKind,
        rule: &'static str,
        evidence: String,
        by: String,
    ) -> Decision {
        let why = self.why(&what, rule);
        let enforced = self.spec.mode == Mode::Enforce;
        Decision { at, service: self.spec.id, what, rule, evidence, why, by, enforced }
    }

    /// Plans the service's origins and frontends, and shows what it comes to.
    pub(crate) fn plan(&mut self, now: Timestamp, step: &mut Step) {
        let pools = self.pools(true);
        let wish = self.shares(&pools);
        let panic = pools.iter().any(|(_, pool)| pool.is_panic());
        let refuses = pools.iter().any(|(_, pool)| pool.refuses());
        self.tell_moves(now, &wish, (panic, refuses), step);
        let observe = self.spec.mode == Mode::Observe;
        for place in 0..self.origins.len() {
            let covered = self.is_covered(place);
            let policy = in_force(self.raised.as_deref(), &self.spec);
            let plan = self.origins.get_mut(place).map(|origin| origin.plan((covered, observe), now, policy));
            step.plan.origins.extend(plan);
            let policy = &self.spec.policy;
            let ending = self.origins.get_mut(place).filter(|_| covered && !observe);
            step.endings.extend(ending.and_then(|origin| origin.ending(now, policy)));
        }
        if observe {
            self.plan_neutral(&mut step.plan);
            // No pools: every address is left to its owner.
            step.view.push(self.view(&self.shares(&[]), (false, false)));
        } else {
            self.plan_frontends(&pools, &mut step.plan);
            step.view.push(self.view(&wish, (panic, refuses)));
        }
    }

    /// `bound`: what the governor holds is held.
    fn pools(&self, bound: bool) -> Vec<(Family, Pool)> {
        [Family::V4, Family::V6]
            .into_iter()
            .map(|family| {
                let origins = self.origins.iter().filter(|origin| origin.spec.family == family);
                let policy = &self.spec.policy;
                let bound = |origin: &Origin| origin.held.filter(|_| bound).map_or(Bound::Free, Held::bound);
                let members =
                    origins.map(|origin| member(origin, policy.state_weight_percent, bound(origin))).collect();
                let limits = Limits {
                    min_usable_percent: policy.min_usable_percent,
                    panic_percent: policy.panic_percent,
                    whole: policy.moves == Moves::Service,
                };
                (family, Pool::new(members, limits))
            })
            .collect()
    }

    /// The most preferred tier that is used. One that is only on its way back is not back.
    fn active_tier(&self, shares: &[u64]) -> Option<u8> {
        let used = || self.origins.iter().zip(shares).filter(|(_, share)| **share > 0).map(|(origin, _)| origin);
        let back = used().filter(|origin| origin.life.phase.part() == 0).map(|origin| origin.spec.tier).min();
        back.or_else(|| used().map(|origin| origin.spec.tier).min())
    }

    /// Panic and moves between tiers since the last tick. A panic is no move: its end is compared with its beginning.
    fn tell_moves(&mut self, now: Timestamp, shares: &[u64], (panic, refuses): (bool, bool), step: &mut Step) {
        let panic = panic || refuses;
        if panic != self.panic {
            self.panic = panic;
            let (rule, tier) = if refuses {
                ("refused", None)
            } else if panic {
                ("none_usable", None)
            } else {
                ("usable_again", self.active_tier(shares))
            };
            let (evidence, by) = self.why_moved(tier);
            step.decisions.push(self.decision(now, DecisionKind::Panic { on: panic }, rule, evidence, by));
        }
        let active = self.active_tier(shares);
        if panic || active == self.active_tier {
            return;
        }
        if let (Some(from), Some(to)) = (self.active_tier, active) {
            let (what, rule, tier) = if to > from {
                (DecisionKind::Failover { from, to }, "tier_unusable", from)
            } else {
                (DecisionKind::Failback { from, to }, "tier_usable", to)
            };
            let (evidence, by) = self.why_moved(Some(tier));
            step.decisions.push(self.decision(now, what, rule, evidence, by));
        }
        self.active_tier = active;
    }

    /// What the origins of a tier (or all) say about a move, those that are out first; and whose doing it is: an
    /// operator's, if all that are out were ordered out.
    fn why_moved(&self, tier: Option<u8>) -> (String, String) {
        let mut origins: Vec<&Origin> =
            self.origins.iter().filter(|origin| tier.is_none_or(|tier| origin.spec.tier == tier)).collect();
        origins.sort_by_key(|origin| !origin.is_blocked());
        let out = origins.iter().take_while(|origin| origin.is_blocked());
        let orders: Option<Vec<&Order>> = out.map(|origin| origin.order.as_ref()).collect();
        let by = orders.and_then(|orders| orders.first().map(|order| order.by.clone()));
        let words: Vec<String> = origins
            .iter()
            .take(TOLD_MAX)
            .map(|origin| match origin.reasons().first() {
                Some(reason) => format!("{} {}: {reason}", origin.spec.name, origin.life.phase.state().name()),
                None => format!("{} {}", origin.spec.name, origin.life.phase.state().name()),
            })
            .collect();
        (words.join("; "), by.unwrap_or_else(|| "judge".to_owned()))
    }

    fn view(&self, shares: &[u64], (panic, refuses): (bool, bool)) -> ServiceView {
        let used = self.origins.iter().zip(shares).filter(|(_, share)| **share > 0);
        let worst = used.map(|(origin, _)| origin.life.phase.state()).max_by_key(|state| badness(*state));
        ServiceView {
            id: self.spec.id,
            state: worst.unwrap_or(State::Unknown),
            panic,
            refuses,
            active_tier: self.active_tier(shares),
            origins: (0..)
                .zip(self.origins.iter().zip(shares))
                .map(|(place, (origin, share))| self.shown(place, origin, *share))
                .collect(),
        }
    }
}

fn member(origin: &Origin, weights: StateWeights, bound: Bound) -> Member {
    let (standing, factor) = match origin.life.phase {
        Phase::Unknown => (Standing::Unproved, weights.unknown),
        Phase::Healthy => (Standing::Proved, weights.healthy),
        Phase::Degraded => (Standing::Degraded, weights.degraded),
        Phase::HighRisk => (Standing::HighRisk, weights.high_risk),
        // `fault` is out whatever its factor: the plan's `blocked` says so to the kernel as well.
        Phase::Fault { .. } | Phase::Failed { .. } => (Standing::Out, 0),
        Phase::Recovering { .. } if origin.life.phase.part() > 0 => (Standing::Staged, origin.life.phase.part()),
        Phase::Recovering { .. } => (Standing::Waiting, 0),
        Phase::Maintenance { .. } => (Standing::Never, 0),
    };
    // What fails is not the origin, so nobody is moved from it.
    let factor = if origin.is_held() { weights.healthy } else { factor };
    let spec = &origin.spec;
    let ready = origin.is_fit();
    Member { id: spec.id, tier: spec.tier, weight: spec.weight, factor, standing, ready, bound }
}

/// For the heading of a service.
const fn badness(state: State) -> u8 {
    match state {
        State::Healthy => 0,
        State::Unknown => 1,
        State::Recovering => 2,
        State::Degraded => 3,
        State::HighRisk => 4,
        State::Maintenance => 5,
        State::Fault => 6,
    }
}
