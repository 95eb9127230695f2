//! What the governor is asked for a service, and what it answers.

use super::Service;
use crate::{
    engine::{DecisionKind, OriginView, Step},
    governor::{self, Held, Target, Want},
    lifecycle::Phase,
    model::{Mode, OriginId},
    origin::Origin,
    policy::Moves,
    time::Timestamp,
};
use alloc::{borrow::ToOwned, collections::BTreeMap, format, string::String, vec::Vec};

impl Service {
    /// Whether the origin at `place` stands behind others of its family.
    pub(super) fn is_standby(&self, place: usize) -> bool {
        let Some(own) = self.origins.get(place).map(|origin| &origin.spec) else { return false };
        let mut others = self.origins.iter().map(|origin| &origin.spec);
        others.any(|other| other.family == own.family && other.tier < own.tier && other.weight > 0)
    }

    /// Whether a move may be near: who serves by preference ails, or has tripped and is not yet judged.
    pub(super) fn is_alert(&self) -> bool {
        let home = self.origins.iter().filter(|origin| origin.spec.weight > 0).map(|origin| origin.spec.tier).min();
        let mut first = self.origins.iter().filter(|origin| Some(origin.spec.tier) == home);
        first.any(|origin| match origin.life.phase {
            Phase::Degraded | Phase::HighRisk => true,
            Phase::Unknown | Phase::Healthy => origin.trip.trip().is_some(),
            Phase::Fault { .. } | Phase::Recovering { .. } | Phase::Maintenance { .. } | Phase::Failed { .. } => false,
        })
    }

    /// What `status` shows of an origin.
    pub(super) fn shown(&self, place: usize, origin: &Origin, share: u64) -> OriginView {
        OriginView { ready: self.is_standby(place).then_some(origin.ready), ..origin.view(share) }
    }

    /// The moves between tiers that the judgement asks for, those under way among them.
    pub(crate) fn wants(&self) -> Vec<Want> {
        let ails = |origin: &Origin| origin.left().is_some();
        if self.spec.mode == Mode::Observe || !self.origins.iter().any(ails) {
            return Vec::new();
        }
        let mut wants = Vec::new();
        for (family, pool) in self.pools(false).into_iter().filter(|(_, pool)| !pool.is_last_resort()) {
            let home = pool.home();
            let origins = self.origins.iter().filter(|origin| origin.spec.family == family);
            for origin in origins.filter(|origin| origin.spec.tier == home && origin.spec.weight > 0) {
                let Some(left) = origin.left() else { continue };
                let to: Vec<Target> =
                    pool.standbys_of(origin.spec.id).into_iter().filter_map(|id| self.target(id)).collect();
                if !to.is_empty() {
                    wants.push(Want { origin: origin.spec.id, cause: origin.cause(), left, to });
                }
            }
        }
        wants
    }

    fn target(&self, id: OriginId) -> Option<Target> {
        let origin = self.origins.iter().find(|origin| origin.spec.id == id)?;
        Some(Target { id, host: origin.host(), room: origin.room(&self.spec.policy) })
    }

    /// Takes the governor's word.
    pub(crate) fn take_holds(&mut self, held: &BTreeMap<OriginId, Held>, now: Timestamp, step: &mut Step) {
        let mut news = Vec::new();
        for origin in &mut self.origins {
            let word = held.get(&origin.spec.id).copied();
            if let (Some(held), true) = (word, origin.held != word) {
                news.push((origin.spec.id, held, origin.evidence()));
            }
            origin.held = word;
        }
        if self.spec.policy.moves == Moves::Service {
            self.hold_together();
        }
        for (origin, held, evidence) in news {
            let what = DecisionKind::Withheld { origin, held };
            step.decisions.push(self.decision(now, what, held.name(), evidence, "governor".to_owned()));
        }
    }

    /// What moves as a whole stays as a whole: if one of a tier is held, all of it is.
    fn hold_together(&mut self) {
        let held = self.origins.iter().find_map(|origin| Some((origin.spec.tier, origin.spec.family, origin.held?)));
        let Some((tier, family, held)) = held else { return };
        let others = self.origins.iter_mut().filter(|origin| (origin.spec.tier, origin.spec.family) == (tier, family));
        for origin in others.filter(|origin| origin.held.is_none() && origin.left().is_some()) {
            origin.held = Some(held);
        }
    }

    /// Tells of the standbys among `to` whose capacity nobody declared.
    pub(crate) fn tell_unset(&self, to: &[Target], now: Timestamp, step: &mut Step) {
        for target in to {
            let governor::Room::Unknown { rate, peak } = target.room else { continue };
            let what = DecisionKind::CapacityUnset { standby: target.id, most: governor::usual_most(peak) };
            let evidence: String = format!("{rate}/s now, at most {peak}/s in the past hour");
            step.decisions.push(self.decision(now, what, "capacity_unset", evidence, "governor".to_owned()));
        }
    }
}
