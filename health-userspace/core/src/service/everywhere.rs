//! The same check failing on every origin while lower checks and traffic pass: then it is the check that fails.

use super::{Service, in_force};
use crate::{
    engine::Step,
    time::{Span, Timestamp},
};
use alloc::vec::Vec;

/// How long the word of an origin that was not asked yet is waited for, at most: two rounds, and this.
const WAIT_MORE: Span = Span::from_secs(5);

/// A check that was found to fail everywhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Everywhere {
    /// When it first passed again somewhere.
    heard: Option<Timestamp>,
}

/// What all origins together say of one check.
enum Word {
    /// Nothing that would excuse anybody.
    Nothing,
    /// It fails everywhere, as far as it was asked: at these places it was not yet.
    Waits(Vec<usize>),
    /// It fails everywhere.
    Fails,
}

impl Service {
    /// Excuses origins from what a check found on all of them.
    pub(super) fn excuse_all(&mut self, now: Timestamp, step: &mut Step) {
        for origin in &mut self.origins {
            origin.excused = None;
        }
        for place in 0..self.spec.checks.len() {
            let wait = match self.spec.checks.get(place) {
                Some(spec) if !spec.verify => spec.interval.times(2).plus(WAIT_MORE),
                Some(_) | None => continue,
            };
            let excused = match self.word(place, wait, now) {
                Word::Fails => {
                    self.everywhere.insert(place, Everywhere { heard: None });
                    true
                }
                Word::Waits(unheard) => {
                    let ids = unheard.into_iter().filter_map(|one| self.origins.get(one));
                    step.suspects.extend(ids.map(|origin| origin.spec.id));
                    true
                }
                Word::Nothing => self.is_ending(place, wait, now),
            };
            if let Some(spec) = self.spec.checks.get(place).filter(|_| excused) {
                let below = self.spec.policy.success_below_percent;
                let asked = self.origins.iter_mut().filter(|origin| origin.has_a_say());
                asked.for_each(|origin| origin.excuse(place, spec, below));
            }
        }
    }

    fn word(&self, place: usize, wait: Span, now: Timestamp) -> Word {
        let policy = in_force(self.raised.as_deref(), &self.spec);
        let asked = || self.origins.iter().enumerate().filter(|(_, origin)| origin.has_a_say());
        let Some(since) = asked().filter_map(|(_, origin)| origin.failing_since(place)).min() else {
            return Word::Nothing;
        };
        // One origin can't tell its own trouble from the check's.
        if asked().count() < 2 {
            return Word::Nothing;
        }
        // Whoever passes it, be it out for another reason or on its way back, speaks for the check.
        if self.origins.iter().any(|origin| origin.is_watched() && origin.passes_since(place, since)) {
            return Word::Nothing;
        }
        let mut unheard = Vec::new();
        for (at, origin) in asked() {
            match origin.fails_alone(place, since, policy) {
                Some(true) => {}
                None if now.since(since) < wait => unheard.push(at),
                Some(false) | None => return Word::Nothing,
            }
        }
        if unheard.is_empty() { Word::Fails } else { Word::Waits(unheard) }
    }

    /// Where it had failed everywhere and passes somewhere again: the others' next rounds are still to come.
    fn is_ending(&mut self, place: usize, wait: Span, now: Timestamp) -> bool {
        let Some(one) = self.everywhere.get_mut(&place) else { return false };
        let heard = *one.heard.get_or_insert(now);
        let ends = now.since(heard) >= wait;
        if ends {
            self.everywhere.remove(&place);
        }
        !ends
    }
}
