//! Success rate and volume over a sliding window, in integers.

use crate::time::{Span, Timestamp};

/// Parts that a window is cut into; the one that is filling comes on top, so at least the whole window is always covered.
const PARTS: u64 = 10;

/// [`PARTS`], and the one that is filling.
const BUCKETS: usize = 11;

/// Successes and failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Successes.
    pub good: u64,
    /// Failures.
    pub bad: u64,
}

impl Tally {
    /// Nothing happened.
    pub const EMPTY: Self = Self { good: 0, bad: 0 };

    /// Samples.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.good.saturating_add(self.bad)
    }

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { good: self.good.saturating_add(other.good), bad: self.bad.saturating_add(other.bad) }
    }

    /// What came on top of `earlier`.
    #[must_use]
    pub const fn minus(self, earlier: Self) -> Self {
        Self { good: self.good.saturating_sub(earlier.good), bad: self.bad.saturating_sub(earlier.bad) }
    }

    /// Whether the success rate is strictly below `percent`. Never, without samples: silence is not failure.
    #[must_use]
    pub fn is_below(self, percent: u8) -> bool {
        self.total() > 0 && self.good.saturating_mul(100) < self.total().saturating_mul(u64::from(percent))
    }

    /// Success rate, rounded down. Unit: percent. `None` without samples.
    #[must_use]
    pub fn success_percent(self) -> Option<u8> {
        let percent = self.good.saturating_mul(100).checked_div(self.total())?;
        u8::try_from(percent).ok()
    }
}

/// The tallies of the past `length`, forgotten in steps of a tenth.
///
/// Covers at least `length` and at most a tenth more. A clock that steps back adds to the newest bucket; one that leaps
/// forward empties the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    length: Span,
    bucket: Span,
    newest: u64,
    ring: [Tally; BUCKETS],
}

impl Window {
    /// An empty window.
    #[must_use]
    pub fn new(length: Span) -> Self {
        Self { length, bucket: length.part(PARTS), newest: 0, ring: [Tally::EMPTY; BUCKETS] }
    }

    /// Adds what happened just before `now`.
    pub fn record(&mut self, now: Timestamp, tally: Tally) {
        self.advance(now);
        if let Some(bucket) = self.ring.get_mut(Self::place(self.newest)) {
            *bucket = bucket.plus(tally);
        }
    }

    /// Forgets what is too old at `now`.
    pub fn advance(&mut self, now: Timestamp) {
        let Some(newest) = now.0.checked_div(self.bucket.0) else { return };
        let steps = newest.saturating_sub(self.newest);
        if steps == 0 {
            return;
        }
        if usize::try_from(steps).map_or(true, |steps| steps >= BUCKETS) {
            self.ring = [Tally::EMPTY; BUCKETS];
        } else {
            for old in self.newest.saturating_add(1)..=newest {
                if let Some(bucket) = self.ring.get_mut(Self::place(old)) {
                    *bucket = Tally::EMPTY;
                }
            }
        }
        self.newest = newest;
    }

    /// What the window holds, as of the last [`advance`](Self::advance).
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.ring.iter().fold(Tally::EMPTY, |sum, bucket| sum.plus(*bucket))
    }

    /// Starts anew.
    pub fn clear(&mut self) {
        self.ring = [Tally::EMPTY; BUCKETS];
    }

    /// Takes another length. What the window holds then counts as of its newest moment.
    pub fn resize(&mut self, length: Span) {
        if length == self.length {
            return;
        }
        let held = self.tally();
        let at = Timestamp(self.newest.saturating_mul(self.bucket.0));
        *self = Self::new(length);
        self.record(at, held);
    }

    fn place(bucket: u64) -> usize {
        u64::try_from(BUCKETS)
            .ok()
            .and_then(|buckets| bucket.checked_rem(buckets))
            .and_then(|place| usize::try_from(place).ok())
            .unwrap_or(0)
    }
}

#[cfg(test)]
#[path = "tests/window.rs"]
mod tests;
