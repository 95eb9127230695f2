//! What a check finds that may be its own trouble, and how late it is.

use super::CheckTrack;
use crate::{
    latency::Latency,
    model::{Location, Reason},
    policy::Policy,
    time::Timestamp,
    verdict::{Finding, Grade},
    window::Tally,
};
use alloc::borrow::ToOwned;

impl CheckTrack {
    /// Since when it fails, if the newest round did.
    pub(crate) fn failing_since(&self) -> Option<Timestamp> {
        (self.runs.failures() > 0).then_some(self.failing_since)
    }

    /// The same, where nothing answers it.
    pub(crate) fn silent_since(&self) -> Option<Timestamp> {
        self.failing_since().filter(|_| self.reason.is_some_and(|reason| reason.location() == Location::OriginHost))
    }

    /// Whether the newest round failed though something answered.
    pub(crate) fn is_answered_wrongly(&self) -> bool {
        self.failing_since().is_some() && self.silent_since().is_none()
    }

    /// End of the newest round that passed.
    pub(crate) const fn newest_pass(&self) -> Timestamp {
        self.newest_pass
    }

    /// Whether its failure may be the trouble of the check itself: what an HSM fails at, a worker has told apart already.
    pub(crate) const fn may_be_the_checks_own(&self) -> bool {
        !matches!(self.reason, Some(Reason::Hsm(_)))
    }

    /// What it finds is its own trouble, until it passes.
    pub(crate) const fn excuse(&mut self) {
        self.excused = true;
    }

    /// It passes again after its own trouble: what failed meanwhile says nothing.
    pub(crate) fn end_excuse(&mut self) {
        if self.excused && self.runs.failures() == 0 {
            self.excused = false;
            self.clear();
        }
    }

    /// Rounds that pass and take much longer than usual. `prompt`: traffic's first bytes don't, so it is the check's own page.
    pub(crate) fn late(&self, name: &str, prompt: bool, policy: &Policy) -> Option<Finding> {
        let grade = self.latency.grade();
        if grade <= Grade::Healthy || self.verify {
            return None;
        }
        let contradicted = prompt || !self.critical;
        Some(Finding {
            grade: if contradicted { grade.min(Grade::Degraded) } else { grade },
            rule: "slow_learned",
            layer: self.layer,
            traffic: false,
            check: Some(name.to_owned()),
            tally: self.latency.tally(&policy.latency),
            location: if prompt { Location::Check } else { Location::OriginProcess },
            text: self.latency.text(name, &policy.latency, None),
            reason: None,
        })
    }

    /// How late it is, for a score.
    pub(crate) fn lateness(&self, policy: &Policy) -> Tally {
        self.latency.tally(&policy.latency)
    }

    /// What its rounds usually take.
    pub(crate) const fn latency(&self) -> &Latency {
        &self.latency
    }

    /// The same, to go on with what an earlier daemon had learned.
    pub(crate) const fn latency_mut(&mut self) -> &mut Latency {
        &mut self.latency
    }
}
