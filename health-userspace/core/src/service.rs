//! One service: its origins judged, its pools summed up, its frontends planned, its moves told.

use crate::{
    engine::{Decision, DecisionKind, FrontendPlan, Order, OriginPlan, Plan, SLOTS, ServiceView, Step},
    lifecycle::{self, Phase},
    model::{Family, FrontendId, FrontendSpec, Mode, OriginId, ServiceSpec, State},
    origin::{Event, Origin},
    policy::StateWeights,
    pool::{Limits, Member, Pool, Standing},
    steering::{self, Share},
    time::Timestamp,
};
use alloc::{borrow::ToOwned, collections::BTreeMap, format, string::String, vec, vec::Vec};

/// All of a frontend's flows. Unit: ppm.
const WHOLE: u64 = 1_000_000;

/// Most origins that the evidence of a move names.
const TOLD_MAX: usize = 4;

/// A table and the shares that it was made from: making one costs more than comparing the shares.
#[derive(Clone, Debug)]
struct Table {
    shares: Vec<Share>,
    slots: Vec<OriginId>,
}

/// One service.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) spec: ServiceSpec,
    /// In the specification's order.
    pub(crate) origins: Vec<Origin>,
    active_tier: Option<u8>,
    panic: bool,
    tables: BTreeMap<FrontendId, Table>,
    bases: Vec<Base>,
}

/// The table of one tier in one family while all is well.
#[derive(Clone, Debug)]
struct Base {
    family: Family,
    tier: u8,
    slots: Vec<OriginId>,
}

fn bases(spec: &ServiceSpec) -> Vec<Base> {
    let mut keys: Vec<(Family, u8)> = spec.origins.iter().map(|origin| (origin.family, origin.tier)).collect();
    keys.sort_unstable();
    keys.dedup();
    let one = |(family, tier)| {
        let origins = spec.origins.iter().filter(|origin| (origin.family, origin.tier) == (family, tier));
        let weights: Vec<Share> =
            origins.map(|origin| Share { id: origin.id, part: u64::from(origin.weight) }).collect();
        Base { family, tier, slots: steering::base(&weights) }
    };
    keys.into_iter().map(one).collect()
}

impl Service {
    pub(crate) fn new(spec: ServiceSpec, origins: Vec<Origin>) -> Self {
        let bases = bases(&spec);
        Self { spec, origins, active_tier: None, panic: false, tables: BTreeMap::new(), bases }
    }

    /// Goes on where an older configuration of the same service was.
    pub(crate) fn inherit(&mut self, old: Self) {
        self.active_tier = old.active_tier;
        self.panic = old.panic;
        if self.spec.origins == old.spec.origins {
            self.tables = old.tables;
            self.tables.retain(|id, _| self.spec.frontends.iter().any(|frontend| frontend.id == *id));
        }
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
        let changed = origin.obey(order, now, &self.spec.policy);
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

    /// Judges every origin.
    pub(crate) fn judge(&mut self, now: Timestamp, step: &mut Step) {
        for place in 0..self.origins.len() {
            self.end_order(place, now, step);
            let Some(origin) = self.origins.get_mut(place) else { continue };
            let mut events = Vec::new();
            origin.judge(&self.spec.checks, now, &self.spec.policy, &mut events);
            if origin.take_suspicion(now) {
                step.suspects.push(origin.spec.id);
            }
            if events.is_empty() {
                continue;
            }
            let (id, evidence) = (origin.spec.id, origin.evidence());
            for event in events {
                let (what, rule) = match event {
                    Event::State(change) => (self.state_change(place, change), change.rule),
                    Event::Trip { confirmed, rule } => (DecisionKind::TripJudged { origin: id, confirmed }, rule),
                };
                step.decisions.push(self.decision(now, what, rule, evidence.clone(), "judge".to_owned()));
            }
        }
    }

    fn end_order(&mut self, place: usize, now: Timestamp, step: &mut Step) {
        let ended = self.origins.get_mut(place).and_then(|origin| origin.end_order(now, &self.spec.policy));
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
        Decision { at, service: self.spec.id, what, rule, evidence, by, enforced: self.spec.mode == Mode::Enforce }
    }

    /// Plans the service's origins and frontends, and shows what it comes to.
    pub(crate) fn plan(&mut self, now: Timestamp, step: &mut Step) {
        let pools = self.pools();
        let wish = self.shares(&pools);
        let panic = pools.iter().any(|(_, pool)| pool.is_panic());
        self.tell_moves(now, &wish, panic, step);
        let observe = self.spec.mode == Mode::Observe;
        step.plan.origins.extend(self.origins.iter().map(|origin| plan_origin(origin, observe)));
        if observe {
            self.plan_neutral(&mut step.plan);
            // No pools: every address is left to its owner.
            step.view.push(self.view(&self.shares(&[]), false));
        } else {
            self.plan_frontends(&pools, &mut step.plan);
            step.view.push(self.view(&wish, panic));
        }
    }

    fn pools(&self) -> Vec<(Family, Pool)> {
        [Family::V4, Family::V6]
            .into_iter()
            .map(|family| {
                let origins = self.origins.iter().filter(|origin| origin.spec.family == family);
                let weights = self.spec.policy.state_weight_percent;
                let members = origins.map(|origin| member(origin, weights)).collect();
                (family, Pool::new(members, Limits::default()))
            })
            .collect()
    }

    /// Each origin's part of the service's new flows, in the specification's order. Unit: ppm.
    ///
    /// Traffic comes by the addresses of the most preferred guarded tier, as their weights say; where there is none, as
    /// it would to an address of the service's own.
    fn shares(&self, pools: &[(Family, Pool)]) -> Vec<u64> {
        let place_of: BTreeMap<OriginId, usize> =
            self.origins.iter().enumerate().map(|(place, origin)| (origin.spec.id, place)).collect();
        let own = |frontend: &FrontendSpec| place_of.get(&frontend.own).and_then(|place| self.origins.get(*place));
        let first = self.spec.frontends.iter().filter_map(own).map(|origin| origin.spec.tier).min();
        let mut sums: Vec<u64> = vec![0; self.origins.len()];
        let mut total = 0_u64;
        let mut add = |shares: &[Share], weight: u64| {
            let parts = shares.iter().fold(0_u64, |sum, share| sum.saturating_add(share.part));
            for share in shares {
                let ppm = share.part.saturating_mul(WHOLE).checked_div(parts).unwrap_or(0).saturating_mul(weight);
                if let Some(sum) = place_of.get(&share.id).and_then(|place| sums.get_mut(*place)) {
                    *sum = sum.saturating_add(ppm);
                }
            }
            total = total.saturating_add(weight);
        };
        for frontend in &self.spec.frontends {
            let Some(origin) = own(frontend).filter(|origin| Some(origin.spec.tier) == first) else { continue };
            let pool = pools.iter().find(|(family, _)| *family == frontend.family);
            let unsteered = || vec![Share { id: frontend.own, part: WHOLE }];
            let shares = pool.map_or_else(unsteered, |(_, pool)| pool.shares_of(frontend.own));
            add(&shares, u64::from(origin.spec.weight.max(1)));
        }
        if first.is_none() {
            for (_, pool) in pools {
                let shares = pool.shares();
                add(&shares, u64::from(!shares.is_empty()));
            }
        }
        sums.into_iter().map(|sum| sum.checked_div(total).unwrap_or(0)).collect()
    }

    fn active_tier(&self, shares: &[u64]) -> Option<u8> {
        let used = self.origins.iter().zip(shares).filter(|(_, share)| **share > 0);
        used.map(|(origin, _)| origin.spec.tier).min()
    }

    /// Panic and moves between tiers since the last tick. A panic is no move: its end is compared with its beginning.
    fn tell_moves(&mut self, now: Timestamp, shares: &[u64], panic: bool, step: &mut Step) {
        if panic != self.panic {
            self.panic = panic;
            let (rule, tier) = if panic { ("none_usable", None) } else { ("usable_again", self.active_tier(shares)) };
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

    fn plan_frontends(&mut self, pools: &[(Family, Pool)], plan: &mut Plan) {
        let mut fresh: Vec<(Option<OriginId>, u8, Table)> = Vec::new();
        for frontend in &self.spec.frontends {
            let Some((_, pool)) = pools.iter().find(|(family, _)| *family == frontend.family) else { continue };
            let shares = pool.shares_of(frontend.own);
            if self.tables.get(&frontend.id).is_none_or(|table| table.shares != shares) {
                let table = self.table(*frontend, shares, &mut fresh);
                self.tables.insert(frontend.id, table);
            }
            let slots = self.tables.get(&frontend.id).map(|table| table.slots.clone()).unwrap_or_default();
            let (armed, armed_best) = pool.armed_of(frontend.own);
            plan.frontends.push(FrontendPlan { id: frontend.id, slots, armed, armed_best });
        }
    }

    /// The owner's own tier comes first, then those below it, then those above. Where the owner itself has no share, all
    /// its tier's addresses share one table: a tier that dies at once costs one table, not one an address.
    fn table(
        &self,
        frontend: FrontendSpec,
        shares: Vec<Share>,
        fresh: &mut Vec<(Option<OriginId>, u8, Table)>,
    ) -> Table {
        let owner = self.spec.origins.iter().find(|origin| origin.id == frontend.own);
        let tier = owner.map_or(0, |origin| origin.tier);
        let own = shares.iter().any(|share| share.id == frontend.own).then_some(frontend.own);
        let known = fresh.iter().find(|(of, at, table)| (*of, *at) == (own, tier) && table.shares == shares);
        if let Some((_, _, table)) = known {
            return table.clone();
        }
        let mut bases: Vec<&Base> = self.bases.iter().filter(|base| base.family == frontend.family).collect();
        bases.sort_by_key(|base| (base.tier < tier, base.tier));
        let bases: Vec<&[OriginId]> = bases.into_iter().map(|base| base.slots.as_slice()).collect();
        let slots = steering::table(&shares, own, &bases);
        let table = Table { shares, slots };
        fresh.push((own, tier, table.clone()));
        table
    }

    /// As if Sluice were not there.
    fn plan_neutral(&self, plan: &mut Plan) {
        plan.frontends.extend(self.spec.frontends.iter().map(|frontend| FrontendPlan {
            id: frontend.id,
            slots: vec![frontend.own; SLOTS],
            armed: Vec::new(),
            armed_best: 0,
        }));
    }

    fn view(&self, shares: &[u64], panic: bool) -> ServiceView {
        let used = self.origins.iter().zip(shares).filter(|(_, share)| **share > 0);
        let worst = used.map(|(origin, _)| origin.life.phase.state()).max_by_key(|state| badness(*state));
        ServiceView {
            id: self.spec.id,
            state: worst.unwrap_or(State::Unknown),
            panic,
            active_tier: self.active_tier(shares),
            origins: self.origins.iter().zip(shares).map(|(origin, share)| origin.view(*share)).collect(),
        }
    }
}

fn plan_origin(origin: &Origin, observe: bool) -> OriginPlan {
    OriginPlan {
        id: origin.spec.id,
        blocked: !observe && origin.is_blocked(),
        trials: !observe && origin.wants_trials(),
        clear_trip: origin.trip.wish(),
        syn_timeout: origin.learned.syn_timeout(),
        response_timeout: origin.learned.response_timeout(),
    }
}

fn member(origin: &Origin, weights: StateWeights) -> Member {
    let (standing, factor) = match origin.life.phase {
        Phase::Unknown => (Standing::Unproved, weights.unknown),
        Phase::Healthy => (Standing::Proved, weights.healthy),
        Phase::Degraded => (Standing::Degraded, weights.degraded),
        Phase::HighRisk => (Standing::HighRisk, weights.high_risk),
        // `fault` is out whatever its factor: the plan's `blocked` says so to the kernel as well.
        Phase::Fault { .. } | Phase::Failed { .. } => (Standing::Out, 0),
        Phase::Recovering { .. } => (Standing::Waiting, 0),
        Phase::Maintenance { .. } => (Standing::Never, 0),
    };
    let spec = &origin.spec;
    Member { id: spec.id, tier: spec.tier, weight: spec.weight, factor, standing }
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
