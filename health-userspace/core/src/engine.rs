//! The one entry: [`Engine::tick`].

use crate::{
    governor::{Governor, Limits, Site},
    latency::Times,
    model::{CheckResult, OriginId, Pace, ServiceId, ServiceSpec},
    origin::Origin,
    policy::Policy,
    service::{Service, in_force},
    time::Timestamp,
};
use alloc::{collections::BTreeMap, string::String, vec::Vec};

mod decision;
mod ending;
mod govern;
mod memory;
mod outage;
mod plan;
mod totals;
mod view;
mod why;

pub use decision::{Decision, DecisionKind};
pub use ending::Ending;
pub use memory::Memory;
pub use outage::Route;
pub use plan::{FrontendPlan, Lease, OriginPlan, Plan};
pub use totals::{Quantile, Sum, TrafficTotals};
pub use view::{OriginView, Readiness, ServiceView, Waits};
pub use why::{Amount, Explained, Fact, Limit, LimitFrom, Of, Why};

/// Places in a frontend's slot table. Prime, as Maglev tables are.
pub const SLOTS: usize = 251;

/// Everything that happened since the last tick.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Cumulative counters of the kernel, one entry an origin that has any.
    pub traffic: Vec<(OriginId, TrafficTotals)>,
    /// Times to first byte that were measured since the last tick, of origins that have any.
    pub times: Vec<(OriginId, Times)>,
    /// The kernel's trip words, read back, one entry an origin.
    pub kernel: Vec<(OriginId, KernelView)>,
    /// Rounds of checks that ended.
    pub checks: Vec<CheckResult>,
    /// Base weights that checks set: of which origin, by the check at which place, how much.
    pub weights: Vec<(OriginId, u16, u16)>,
    /// What operators ordered.
    pub orders: Vec<Order>,
    /// Next hops that came or went since the last tick: since when the neighbour entry of an origin's next hop has FAILED;
    /// `None`: it is reachable again, or there is none any more. The newest word about an origin stands until the next; say it
    /// again for an origin that was added. That somebody can't be found on the link is positive evidence, not silence.
    pub neighbours: Vec<(OriginId, Option<Timestamp>)>,
    /// Ways to origins that are new or other ones; `None`: there is no route. Each stands until the next word.
    pub routes: Vec<(OriginId, Option<Route>)>,
    /// Services under attack: what is being mitigated there. The whole list, each time; a service that is not on it is not.
    pub mitigated: Vec<Mitigated>,
    /// Where origins are, when it becomes known or changes; without it each is a host of its own.
    pub sites: Vec<(OriginId, Site)>,
    /// Services whose window of the day is closed: no stage of a way back begins there.
    pub closed: Vec<ServiceId>,
    /// Whether every write of the last plan reached the kernel. A failed one is simply planned again.
    pub in_sync: bool,
}

/// Which of the two streaks tripped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streak {
    /// Connections: refused, unanswered or unreachable.
    Connect,
    /// Requests: early resets, no response, status 5xx.
    Request,
}

/// One origin's trip word and its surroundings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelView {
    /// The trip, if there is one.
    pub trip: Option<TripView>,
    /// Whether userspace has taken the origin out.
    pub blocked: bool,
    /// Whether that is a judgement of traffic, which trials may overrule once nobody renews it.
    pub leased: bool,
}

/// A trip in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TripView {
    /// What tripped.
    pub streak: Streak,
    /// When.
    pub since: Timestamp,
    /// Trials that failed since.
    pub trials_failed: u32,
    /// Trials that succeeded in a row; the kernel clears an unblocked trip at the first.
    pub trials_passed: u32,
}

/// An operator's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// About this origin.
    pub origin: OriginId,
    /// To do this.
    pub what: OrderKind,
    /// Why, in the operator's words.
    pub reason: String,
    /// Who, from the socket's peer credentials.
    pub by: String,
    /// When it ends by itself.
    pub until: Option<Timestamp>,
}

/// A service under attack, by the word of an operator or of the file that its scrubber touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mitigated {
    /// Which.
    pub service: ServiceId,
    /// Who says so: `file`, or the operator's name.
    pub by: String,
    /// Why, in the operator's words; empty of a file.
    pub reason: String,
}

/// What may be ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderKind {
    /// `maintenance`: no new flows, established ones stay.
    Drain,
    /// `fault`, whatever the evidence says.
    Fail,
    /// The order above ends, and so do trip, fault and hold-down: judged anew from now on.
    Clear,
    /// Its way back may go on, until the order's end; a hold is over.
    Approve,
    /// Its way back stays where it is: no further stage begins.
    Hold,
    /// Its way back ends: in fault again, with a longer hold-down.
    Abort,
}

/// What should now be so, and what changed.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// The whole wish, not a difference: the shell compares it with what the kernel has.
    pub plan: Plan,
    /// Changes of state and moves, in order.
    pub decisions: Vec<Decision>,
    /// Origins that a check should look at at once.
    pub suspects: Vec<OriginId>,
    /// How each origin wants to be checked from now on.
    pub paces: Vec<(OriginId, Pace)>,
    /// Established connections that should end now.
    pub endings: Vec<Ending>,
    /// What `status` shows.
    pub view: Vec<ServiceView>,
}

/// The state of all judgement.
#[derive(Clone, Debug)]
pub struct Engine {
    services: Vec<Service>,
    /// Failures that are no origin's.
    outages: outage::Outages,
    /// Service and place in it of each origin.
    index: BTreeMap<OriginId, (usize, usize)>,
    governor: Governor,
}

impl Engine {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(services: Vec<ServiceSpec>, now: Timestamp) -> Self {
        let mut engine = Self {
            services: Vec::new(),
            outages: outage::Outages::default(),
            index: BTreeMap::new(),
            governor: Governor::default(),
        };
        engine.reconfigure(services, now);
        engine
    }

    /// Takes another configuration. Origins whose id stays keep evidence, state and hold-down, whatever service they are
    /// in now; checks are matched by name. Results of rounds that were started under the old configuration must not be
    /// handed to the next tick, for [`CheckResult::check`] is a place in the new list.
    ///
    /// Twice the same configuration changes nothing.
    pub fn reconfigure(&mut self, services: Vec<ServiceSpec>, now: Timestamp) {
        let mut old_checks = Vec::new();
        let mut old_origins = BTreeMap::new();
        let mut old_services = BTreeMap::new();
        for (place, mut service) in core::mem::take(&mut self.services).into_iter().enumerate() {
            old_checks.push(core::mem::take(&mut service.spec.checks));
            for origin in core::mem::take(&mut service.origins) {
                old_origins.insert(origin.spec.id, (place, origin));
            }
            old_services.insert(service.spec.id, service);
        }
        self.index.clear();
        for (place, spec) in services.into_iter().enumerate() {
            let mut origins = Vec::with_capacity(spec.origins.len());
            for origin in &spec.origins {
                self.index.insert(origin.id, (place, origins.len()));
                origins.push(match old_origins.remove(&origin.id) {
                    Some((from, mut kept)) => {
                        let checks = old_checks.get(from).map_or(&[][..], Vec::as_slice);
                        kept.reconfigure(origin.clone(), checks, &spec.checks, &spec.policy);
                        kept
                    }
                    None => Origin::new(origin.clone(), &spec.checks, &spec.policy, now),
                });
            }
            let old = old_services.remove(&spec.id);
            let mut spec = spec;
            for (place, origin) in spec.origins.iter_mut().zip(&origins) {
                place.weight = origin.spec.weight;
            }
            let mut service = Service::new(spec, origins);
            if let Some(old) = old {
                service.inherit(old);
            }
            self.services.push(service);
        }
    }

    /// Judges and plans. Call it whenever something happened, and at least every 100 ms or so, for time moves it too.
    ///
    /// The first tick after [`new`](Self::new), and the first after an origin was added, must carry the kernel's view of
    /// it: an origin that the kernel still holds out then stays out, while without the view it would be let in.
    ///
    /// The order of things in one tick: counters, trips, neighbours, checks, orders, judgement, plan. So a trip outranks the traffic
    /// that was counted before it, and an order everything.
    #[must_use]
    pub fn tick(&mut self, now: Timestamp, input: &Input) -> Step {
        let mut step = Step::default();
        for (id, totals) in &input.traffic {
            if let Some((policy, origin)) = self.find(*id) {
                origin.see_traffic(totals, now, policy);
            }
        }
        for (id, times) in &input.times {
            if let Some((_, origin)) = self.find(*id) {
                origin.see_times(times);
            }
        }
        for (id, view) in &input.kernel {
            let adopted = self.find(*id).and_then(|(policy, origin)| origin.see_kernel(view, now, policy));
            if let (Some(change), Some((service, place))) = (adopted, self.index.get(id))
                && let Some(service) = self.services.get(*service)
            {
                service.tell(*place, change, now, &mut step);
            }
        }
        for (id, failed) in &input.neighbours {
            if let Some((_, origin)) = self.find(*id) {
                origin.see_neighbour(*failed);
            }
        }
        self.take_places(input);
        for result in &input.checks {
            if let Some((_, origin)) = self.find(result.origin) {
                origin.see_check(result);
            }
        }
        for &(id, check, weight) in &input.weights {
            let Some((service, place)) = self.index.get(&id) else { continue };
            if let Some(service) = self.services.get_mut(*service) {
                service.set_weight(*place, check, weight);
            }
        }
        for order in &input.orders {
            let Some((service, place)) = self.index.get(&order.origin) else { continue };
            if let Some(service) = self.services.get_mut(*service) {
                service.obey(*place, order, now, &mut step.decisions);
            }
        }
        for service in &mut self.services {
            let word = input.mitigated.iter().find(|word| word.service == service.spec.id);
            service.mitigate(word, now, &mut step);
            service.assess(now);
        }
        self.outages.find(&mut self.services, now);
        for service in &mut self.services {
            service.judge(!input.closed.contains(&service.spec.id), now, &mut step);
        }
        self.govern(now, &mut step);
        for service in &mut self.services {
            service.plan(now, &mut step);
        }
        for decision in &step.decisions {
            if let DecisionKind::State { origin, .. } = decision.what
                && let Some((_, origin)) = self.find(origin)
            {
                origin.last = Some(decision.clone());
            }
        }
        step
    }

    /// All that is to be said of one origin. `None`: there is no such origin.
    #[must_use]
    pub fn explain(&self, id: OriginId) -> Option<Explained> {
        let (service, place) = self.index.get(&id)?;
        self.services.get(*service)?.explain(*place)
    }

    /// Sets how much may be on the move at once.
    pub const fn set_governor(&mut self, limits: Limits) {
        self.governor.limits = limits;
    }

    /// Where origins are, and the ways there.
    fn take_places(&mut self, input: &Input) {
        for (id, route) in &input.routes {
            if let Some((_, origin)) = self.find(*id) {
                origin.route = *route;
            }
        }
        for (id, site) in &input.sites {
            if let Some((_, origin)) = self.find(*id) {
                origin.site = Some(*site);
            }
        }
    }

    fn find(&mut self, id: OriginId) -> Option<(&Policy, &mut Origin)> {
        let (service, place) = self.index.get(&id)?;
        let service = self.services.get_mut(*service)?;
        Some((in_force(service.raised.as_deref(), &service.spec), service.origins.get_mut(*place)?))
    }
}

#[cfg(test)]
#[path = "tests/engine.rs"]
mod tests;
