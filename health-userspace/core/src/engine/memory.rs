//! What outlives the daemon.

use super::{Engine, Order};
use crate::{
    lifecycle::{Lifecycle, Phase, Then},
    model::{Location, OriginId},
    origin::Origin,
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
}

impl Engine {
    /// What the next daemon should know, of every origin of which there is something to know.
    #[must_use]
    pub fn remember(&self) -> Vec<Memory> {
        self.services.iter().flat_map(|service| &service.origins).filter_map(Origin::remember).collect()
    }

    /// Goes on where an earlier daemon was. To be called before the first tick. Origins that are not there any more, and
    /// those of which something is known already, are passed over. Evidence older than this call proves nothing.
    pub fn recall(&mut self, memories: Vec<Memory>, now: Timestamp) {
        for memory in memories {
            if let Some((_, origin)) = self.find(memory.origin) {
                origin.recall(memory, now);
            }
        }
    }
}

impl Origin {
    fn remember(&self) -> Option<Memory> {
        let (faults, _) = self.life.faults.parts();
        let out = match self.life.phase {
            Phase::Unknown | Phase::Healthy | Phase::Degraded | Phase::HighRisk => false,
            Phase::Fault { .. } | Phase::Recovering { .. } | Phase::Maintenance { .. } | Phase::Failed { .. } => true,
        };
        (out || faults > 0).then(|| Memory {
            origin: self.spec.id,
            life: self.life,
            order: self.order.clone(),
            word: self.word.clone(),
            why: self.why.clone(),
            location: self.location,
        })
    }

    fn recall(&mut self, memory: Memory, now: Timestamp) {
        if self.life.phase != Phase::Unknown || self.looked {
            return;
        }
        let Memory { life, order, word, why, location, .. } = memory;
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
}
