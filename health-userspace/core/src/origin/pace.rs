//! How an origin wants to be checked, and the weight that a check of its own gave it.

use super::{Origin, SUSPECT_AGAIN};
use crate::{
    lifecycle::Phase,
    model::{CheckSpec, Layer, Pace},
    policy::Policy,
    time::{Span, Timestamp},
    track::CheckTrack,
    window::Tally,
};
use alloc::string::String;

/// A suspicion that traffic raised lasts so long: what does not come to a verdict in this time was chance.
const SUSPICION: Span = Span::from_secs(5);
/// Good traffic is ample from so many times `samples_min.passive` in a window on.
const AMPLE_TIMES: u64 = 10;
/// And if not more than this part of it fails. Unit: percent.
const AMPLE_BAD_PERCENT: u64 = 1;

/// Base weight that a check set (`dynamic_weight`), instead of the configuration's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DynamicWeight {
    /// The check.
    check: String,
    weight: u16,
}

impl Origin {
    /// Whether a check should look at it at once. Says so again only after a while.
    pub(crate) fn take_suspicion(&mut self, now: Timestamp) -> bool {
        let fresh = core::mem::take(&mut self.freshly_failing);
        let suspect = self.serves() && (fresh || self.trip.trip().is_some());
        let due = self.suspected == Timestamp::NEVER || now.since(self.suspected) >= SUSPECT_AGAIN;
        if suspect && due {
            self.suspected = now;
        }
        suspect && due
    }

    /// How it wants to be checked.
    pub(crate) fn pace(&self, now: Timestamp, policy: &Policy) -> Pace {
        let suspected = self.suspected != Timestamp::NEVER && now.since(self.suspected) < SUSPICION;
        match self.life.phase {
            Phase::Fault { .. } | Phase::Failed { .. } => Pace::Out,
            Phase::Recovering { .. } if self.life.phase.part() > 0 => Pace::Returning,
            Phase::Recovering { .. } | Phase::Maintenance { .. } => Pace::Usual,
            _ if self.trip.trip().is_some() => Pace::Suspect,
            Phase::Degraded | Phase::HighRisk => Pace::Gentle,
            Phase::Unknown | Phase::Healthy if suspected => Pace::Suspect,
            Phase::Unknown => Pace::Usual,
            Phase::Healthy => self.proved(policy).map_or(Pace::Usual, Pace::Ample),
        }
    }

    /// The highest layer that traffic proves amply and well.
    fn proved(&self, policy: &Policy) -> Option<Layer> {
        if !policy.passive {
            return None;
        }
        let floor = u64::from(policy.samples_min.passive).saturating_mul(AMPLE_TIMES);
        let ample = |tally: Tally| {
            tally.good >= floor && tally.bad.saturating_mul(100) <= tally.total().saturating_mul(AMPLE_BAD_PERCENT)
        };
        if ample(self.request.proof()) && ample(self.connect.judged(policy)) {
            Some(Layer::Application)
        } else if ample(self.connect.judged(policy)) {
            Some(Layer::Transport)
        } else {
            None
        }
    }

    /// Takes the weight that the check at `place` set. Whether that changes anything.
    pub(crate) fn set_weight(&mut self, place: u16, specs: &[CheckSpec], weight: u16) -> bool {
        let Some(check) = specs.get(usize::from(place)) else { return false };
        self.dynamic = Some(DynamicWeight { check: check.name.clone(), weight });
        core::mem::replace(&mut self.spec.weight, weight) != weight
    }

    /// After another configuration: the weight that a check set stands as long as that check does.
    pub(super) fn keep_weight(&mut self, specs: &[CheckSpec]) {
        self.dynamic = self.dynamic.take().filter(|set| specs.iter().any(|check| check.name == set.check));
        if let Some(set) = &self.dynamic {
            self.spec.weight = set.weight;
        }
    }

    /// Whether each `verify` check has passed in this stage.
    pub(super) fn is_verified(&self) -> bool {
        self.checks.iter().filter(|check| check.is_verify()).all(|check| check.runs().passes() > 0)
    }

    /// What `verify` checks said of an earlier stage says nothing about the next one.
    pub(super) fn forget_verify(&mut self, now: Timestamp) {
        self.checks.iter_mut().filter(|check| check.is_verify()).for_each(|check| CheckTrack::forget(check, now));
    }
}

#[cfg(test)]
#[path = "../tests/pace.rs"]
mod tests;
