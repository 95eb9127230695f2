//! What outlives the daemon.

use super::{Engine, Order};
use crate::{
    latency::Baseline,
    lifecycle::{Lifecycle, Phase, Then},
    model::{CheckSpec, Location, OriginId},
    origin::Origin,
    service::Service,
    time::Timestamp,
};
use alloc::{string::String, vec::Vec};

/// What is remembered of one origin: what evidence of the present can't tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Which.
    pub origin: OriginId,
    /// Its state, and its recent faults.
    pub life: Lifecycle,
    /// The operator's order in force.
    pub order: Option<Order>,
    /// An operator's word on the way back.
    pub word: Option<Order>,
    /// What was found when it went into fault.
    pub why: Vec<String>,
    /// Where the failure sat.
    pub location: Option<Location>,
    /// What was usual: of its first bytes (`None`), and of its checks by name.
    pub usual: Vec<(Option<String>, Baseline)>,
}

impl Engine {
    /// What the next daemon should know, of every origin of which there is something to know.
    #[must_use]
    pub fn remember(&self) -> Vec<Memory> {
        let of = |service: &Service| {
            let origins = service.origins.iter();
            origins.filter_map(|origin| origin.remember(&service.spec.checks)).collect::<Vec<_>>()
        };
        self.services.iter().flat_map(of).collect()
    }

    /// Goes on where an earlier daemon was. To be called before the first tick. Origins that are not there any more, and
    /// those of which something is known already, are passed over. Evidence older than this call proves nothing.
    pub fn recall(&mut self, memories: Vec<Memory>, now: Timestamp) {
        for memory in memories {
            let Some(&(service, place)) = self.index.get(&memory.origin) else { continue };
            let Some(service) = self.services.get_mut(service) else { continue };
            if let Some(origin) = service.origins.get_mut(place) {
                origin.recall(memory, &service.spec.checks, now);
            }
        }
    }
}

impl Origin {
    fn remember(&self, specs: &[CheckSpec]) -> Option<Memory> {
        let (faults, _) = self.life.faults.parts();
        let out = match self.life.phase {
            Phase::Unknown | Phase::Healthy | Phase::Degraded | Phase::HighRisk => false,
            Phase::Fault { .. } | Phase::Recovering { .. } | Phase::Maintenance { .. } | Phase::Failed { .. } => true,
        };
        let usual = self.usual(specs);
        (out || faults > 0 || !usual.is_empty()).then(|| Memory {
            origin: self.spec.id,
            life: self.life,
            order: self.order.clone(),
            word: self.word.clone(),
            why: self.why.clone(),
            location: self.location,
            usual,
        })
    }

    fn recall(&mut self, memory: Memory, specs: &[CheckSpec], now: Timestamp) {
        if self.life.phase != Phase::Unknown || self.looked {
            return;
        }
        let Memory { life, order, word, why, location, usual, origin: _ } = memory;
        self.know_usual(&usual, specs);
        let phase = match (life.phase, &order) {
            // The order ran out meanwhile.
            (Phase::Maintenance { then } | Phase::Failed { then }, None) => match then {
                Then::Judge => {
                    // What the kernel may still hold out was the order's, no judgement's.
                    self.looked = true;
                    Phase::Unknown
                }
                Then::Fault(cause) => Phase::Fault { cause },
            },
            // How it serves is judged anew.
            (Phase::Unknown | Phase::Healthy | Phase::Degraded | Phase::HighRisk, _) => Phase::Unknown,
            (phase, _) => phase,
        };
        let since = if phase == life.phase { life.since } else { now };
        self.life = Lifecycle { phase, since, faults: life.faults };
        (self.order, self.word) = (order, word);
        (self.why, self.location) = (why, location);
        self.set_marks(now);
    }

    /// What is usual of it.
    fn usual(&self, specs: &[CheckSpec]) -> Vec<(Option<String>, Baseline)> {
        let ttfb = self.ttfb.baseline().map(|usual| (None, usual));
        let checks = self.checks.iter().zip(specs).filter(|(check, _)| !check.is_verify());
        let checks = checks.filter_map(|(check, spec)| Some((Some(spec.name.clone()), check.latency().baseline()?)));
        ttfb.into_iter().chain(checks).collect()
    }

    fn know_usual(&mut self, usual: &[(Option<String>, Baseline)], specs: &[CheckSpec]) {
        for (name, baseline) in usual {
            let Some(name) = name else {
                self.ttfb.inherit(*baseline);
                continue;
            };
            let place = specs.iter().position(|spec| spec.name == *name);
            if let Some(check) = place.and_then(|place| self.checks.get_mut(place)) {
                check.latency_mut().inherit(*baseline);
            }
        }
    }
}
