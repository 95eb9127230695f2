//! Trials: one new flow at a time tries an origin that is out, and what comes of it.

use core::ptr::addr_of_mut;

use health_common::{
    event::{Kind, Why},
    origin::Origin,
    trip::Trip,
};

use crate::{
    atomic, maps,
    subject::{Subject, clear, word},
    tell,
};

impl Subject {
    /// Whether the caller's flow is the trial.
    #[inline(always)]
    pub fn wins_trial(&self, now: u64) -> bool {
        let blocked = self.is_blocked();
        if (blocked && !self.origin.is(Origin::TRIALS)) || (!blocked && !self.trip_holds()) {
            return false;
        }
        let next = word!(self, trial_next_ns);
        let due = atomic::load(next);
        if now < due {
            return false;
        }
        let wait = atomic::load(word!(self, trial_wait_ns)).max(self.origin.half_open_after_ns);
        let doubled = (wait * 2).min(self.origin.half_open_max_ns);
        if !atomic::swap_if(next, due, now + doubled) {
            return false;
        }
        atomic::store(word!(self, trial_wait_ns), doubled);
        // One that never came to an end was not answered.
        self.trial_failed(now);
        atomic::store(word!(self, trial_open_ns), now);
        if let Some(counters) = maps::counters(self.id) {
            counters.trials += 1;
        }
        true
    }

    /// The trial, if one is under way, failed.
    #[inline(always)]
    pub fn trial_failed(&self, now: u64) {
        if clear(word!(self, trial_open_ns)) {
            atomic::add(word!(self, trials_failed), 1);
            atomic::store(word!(self, trials_passed), 0);
            tell::tell((Kind::TrialFailed, Why::None), now, self.id, health_common::NONE, (0, 0), None);
        }
    }

    /// The trial's client ended it: it says nothing.
    #[inline(always)]
    pub fn trial_void(&self) {
        clear(word!(self, trial_open_ns));
    }

    /// The trial's socket was closed. Before an answer was due, that says nothing: it may never have sent a SYN, for want of
    /// a port. Later, the next trial will find it unanswered.
    #[inline(always)]
    pub fn trial_given_up(&self, now: u64) {
        let opened = atomic::load(word!(self, trial_open_ns));
        let due = self.origin.syn_timeout_ns.max(self.origin.response_timeout_ns);
        if opened != 0 && now.saturating_sub(opened) < due {
            self.trial_void();
        }
    }

    /// Something that began at `began` succeeded at the layer of `streak`.
    #[inline(always)]
    pub fn succeeded(&self, streak: u64, began: u64, now: u64, trial: bool) {
        let word = word!(self, trip);
        let old = Trip(atomic::load(word));
        if self.is_blocked() {
            // A blocked origin without a trip was judged from traffic as a whole: both layers speak for it.
            if trial && (old.0 == 0 || old.streak() == streak) && clear(word!(self, trial_open_ns)) {
                atomic::add(word!(self, trials_passed), 1);
                atomic::store(word!(self, trial_wait_ns), 0);
                atomic::store(word!(self, trial_next_ns), now + self.origin.half_open_after_ns);
            }
            return;
        }
        if old.is_ended_by(began, streak) && atomic::swap_if(word, old.0, 0) && old.holds(self.origin.clear_before_ns) {
            clear(word!(self, trial_open_ns));
            clear(word!(self, first_flow_due));
            tell::tell((Kind::Clear, Why::None), now, self.id, health_common::NONE, (0, 0), None);
        }
    }
}
