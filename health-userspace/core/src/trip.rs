//! What the judge knows of an origin's trip: the kernel's word, minus what has been cleared here already.

use crate::{
    engine::{Streak, TripView},
    model::Layer,
    time::Timestamp,
};

/// A change of the trip since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// None.
    Same,
    /// A trip began.
    Began,
    /// The kernel ended it: a trial succeeded.
    Ended,
}

/// The watch on one origin's trip.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TripWatch {
    trip: Option<TripView>,
    first_seen: Timestamp,
    cleared: Timestamp,
    wish: Option<Timestamp>,
    checks_cleared: Option<Timestamp>,
}

/// The layer that a streak speaks of.
pub(crate) const fn layer(streak: Streak) -> Layer {
    match streak {
        Streak::Connect => Layer::Transport,
        Streak::Request => Layer::Application,
    }
}

impl TripWatch {
    /// Takes the kernel's word. Also tells whether a trial failed since the last look.
    pub(crate) fn see(&mut self, kernel: Option<TripView>, now: Timestamp) -> (Change, bool) {
        // The wish stands until it has come true: a write that failed is simply wished again.
        if kernel.is_none_or(|trip| self.wish.is_some_and(|wish| trip.since > wish)) {
            self.wish = None;
        }
        let trip = kernel.filter(|trip| trip.since > self.cleared);
        let before = core::mem::replace(&mut self.trip, trip);
        match (before, trip) {
            (None, None) => (Change::Same, false),
            (Some(_), None) => (Change::Ended, false),
            (Some(old), Some(new)) if old.since == new.since && old.streak == new.streak => {
                (Change::Same, new.trials_failed > old.trials_failed)
            }
            (None | Some(_), Some(_)) => {
                self.first_seen = now;
                (Change::Began, false)
            }
        }
    }

    /// The trip in force.
    pub(crate) const fn trip(&self) -> Option<TripView> {
        self.trip
    }

    /// When the judge first saw it: after a restart an old trip gets its time as well.
    pub(crate) const fn first_seen(&self) -> Timestamp {
        self.first_seen
    }

    /// Ends every trip that began at or before `at`, here at once and in the kernel by the plan.
    pub(crate) fn clear(&mut self, at: Timestamp) {
        self.trip = self.trip.filter(|trip| trip.since > at);
        self.cleared = self.cleared.max(at);
        self.wish = Some(self.cleared);
    }

    /// The same, because checks passed.
    pub(crate) fn clear_by_checks(&mut self, now: Timestamp) {
        if let Some(trip) = self.trip {
            // Not `now`: a trip that began since the last look is newer than the passes.
            self.clear(trip.since);
            self.checks_cleared = Some(now);
        }
    }

    /// When checks last cleared a trip.
    pub(crate) const fn checks_cleared(&self) -> Option<Timestamp> {
        self.checks_cleared
    }

    /// For the plan.
    pub(crate) const fn wish(&self) -> Option<Timestamp> {
        self.wish
    }
}
