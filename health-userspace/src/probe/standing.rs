//! What the checks of one origin know of each other, and of the judgement.

use super::{budget::Budget, job::Shared, rhythm::Want};
use health_core::{
    Span,
    model::{OriginId, Outcome, Pace},
};
use std::sync::{
    Mutex, PoisonError, Weak,
    atomic::{AtomicU8, Ordering},
};
use tokio::time::Instant;

/// Most rounds that one origin sees from this node, whatever its checks' intervals add up to. Unit: rounds a second.
/// Half of what 64 checks at the shortest interval would be is still an attack; ten checks each second are not.
pub(super) const ORIGIN_PER_S: u32 = 50;

/// How the newest round of a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// It has not run yet, or said nothing.
    Nothing = 0,
    Passed = 1,
    Failed = 2,
    /// It was not run, because what it needs does not pass.
    Skipped = 3,
}

/// One origin that is checked.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) id: OriginId,
    pub(super) service: String,
    pub(super) budget: Budget,
    fall: u32,
    rise: u32,
    pace: Mutex<(Pace, Instant)>,
    /// By place in the service's list.
    last: Box<[AtomicU8]>,
    /// Who waits for the check at which place.
    waiting: Mutex<Vec<(u16, Weak<Shared>)>>,
}

impl Standing {
    pub(super) fn new(id: OriginId, service: &str, (fall, rise): (u32, u32), places: usize) -> Self {
        Self {
            id,
            service: service.to_owned(),
            budget: Budget::with_burst(ORIGIN_PER_S, ORIGIN_PER_S / 2),
            fall,
            rise,
            pace: Mutex::new((Pace::Usual, Instant::now())),
            last: (0..places).map(|_| AtomicU8::new(Last::Nothing as u8)).collect(),
            waiting: Mutex::new(Vec::new()),
        }
    }

    /// Goes on where another one was.
    pub(super) fn inherit(&self, old: &Self) {
        let pace = *old.pace.lock().unwrap_or_else(PoisonError::into_inner);
        *self.pace.lock().unwrap_or_else(PoisonError::into_inner) = pace;
    }

    /// Takes the judgement's wish. Whether it is another one.
    pub(super) fn set_pace(&self, pace: Pace) -> bool {
        let mut present = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = present.0 != pace;
        if changes {
            *present = (pace, Instant::now());
        }
        changes
    }

    /// What the rhythm of its checks follows.
    pub(super) fn want(&self) -> Want {
        let (pace, since) = *self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let lasted = Span(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX));
        Want { pace, lasted, fall: self.fall, rise: self.rise }
    }

    pub(super) fn last(&self, place: u16) -> Last {
        match self.last.get(usize::from(place)).map(|last| last.load(Ordering::Relaxed)) {
            Some(1) => Last::Passed,
            Some(2) => Last::Failed,
            Some(3) => Last::Skipped,
            _ => Last::Nothing,
        }
    }

    pub(super) fn set_last(&self, place: u16, last: Last) {
        if let Some(cell) = self.last.get(usize::from(place)) {
            cell.store(last as u8, Ordering::Relaxed);
        }
    }

    /// Somebody runs only while the check at `place` passes.
    pub(super) fn add_waiting(&self, place: u16, job: Weak<Shared>) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push((place, job));
    }

    /// Takes what a round said. Those who waited for a pass are run at once.
    pub(super) fn ended(&self, place: u16, outcome: Outcome) {
        let last = match outcome {
            Outcome::Pass | Outcome::Slow => Last::Passed,
            Outcome::Fail(_) => Last::Failed,
            // It said nothing; what was known stands.
            Outcome::Local(_) => return,
        };
        let before = self.last(place);
        self.set_last(place, last);
        if (before, last) == (Last::Passed, Last::Passed) || last != Last::Passed {
            return;
        }
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let jobs = waiting.iter().filter(|(need, _)| *need == place).filter_map(|(_, job)| job.upgrade());
        jobs.for_each(|job| job.hurry());
    }
}
