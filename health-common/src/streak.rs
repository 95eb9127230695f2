//! A run of failures, or of attempts still unanswered, in one word that compare-and-swap can change.
//!
//! ```text
//! 63       36 35      16 15     0
//! | started  |  spread  |  count |
//! ```
//!
//! `started` counts units of 2^20 ns (1.05 ms) and wraps after 78 hours, which a run never lasts: it begins anew once it
//! is longer than the policy's `within`. `spread` is a bitmap of hashed clients, so that one client can't speak for all.

/// Shift of nanoseconds to `started`'s unit.
const UNIT_LOG2: u32 = 20;
const STARTED_BITS: u32 = 28;
const STARTED_MASK: u64 = (1 << STARTED_BITS) - 1;
const STARTED_SHIFT: u32 = 36;
const SPREAD_SHIFT: u32 = 16;
const COUNT_MAX: u64 = 0xffff;

/// Distinct clients that a run can tell apart. Bound of `spread_min`.
pub const SPREAD_BITS: u32 = 20;
const SPREAD_MASK: u64 = (1 << SPREAD_BITS) - 1;

/// The run. 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Streak(pub u64);

impl Streak {
    /// No run.
    pub const NONE: Self = Self(0);

    /// One more by the client that hashes to `client`; a run older than `within_ns` begins anew.
    #[inline(always)]
    #[must_use]
    pub const fn add(self, now_ns: u64, client: u32, within_ns: u64) -> Self {
        let bit = 1u64 << (client % SPREAD_BITS);
        if self.0 == 0 || self.age_ns(now_ns) > within_ns {
            let started = (now_ns >> UNIT_LOG2) & STARTED_MASK;
            return Self((started << STARTED_SHIFT) | (bit << SPREAD_SHIFT) | 1);
        }
        let grown = Self(self.0 | (bit << SPREAD_SHIFT));
        if grown.count() as u64 == COUNT_MAX { grown } else { Self(grown.0 + 1) }
    }

    /// One less: an attempt was answered, or its client gave up. The last one ends the run.
    #[inline(always)]
    #[must_use]
    pub const fn remove(self) -> Self {
        if self.count() <= 1 { Self::NONE } else { Self(self.0 - 1) }
    }

    /// How many.
    #[inline(always)]
    #[must_use]
    pub const fn count(self) -> u32 {
        (self.0 & COUNT_MAX) as u32
    }

    /// The clients that took part: a bit for each.
    #[inline(always)]
    #[must_use]
    pub const fn clients(self) -> u32 {
        ((self.0 >> SPREAD_SHIFT) & SPREAD_MASK) as u32
    }

    /// Whether at least `min` clients took part. 0 always holds.
    #[inline(always)]
    #[must_use]
    pub const fn spread_at_least(self, min: u32) -> bool {
        self.clients().count_ones() >= min
    }

    /// Time since it started, in steps of 1.05 ms. Unit: ns.
    #[inline(always)]
    #[must_use]
    pub const fn age_ns(self, now_ns: u64) -> u64 {
        let now = (now_ns >> UNIT_LOG2) & STARTED_MASK;
        let age = now.wrapping_sub(self.0 >> STARTED_SHIFT) & STARTED_MASK;
        // Another CPU's clock reading may be a step ahead of ours.
        if age > STARTED_MASK / 2 { 0 } else { age << UNIT_LOG2 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEC: u64 = 1_000_000_000;

    #[test]
    fn a_run_counts_and_begins_anew_after_its_time() {
        let one = Streak::NONE.add(SEC, 1, 10 * SEC);
        let two = one.add(2 * SEC, 2, 10 * SEC);
        assert_eq!((two.count(), two.spread_at_least(2), two.spread_at_least(3)), (2, true, false));
        assert_eq!(two.add(12 * SEC, 3, 10 * SEC).count(), 1, "the first is older than 10 s");
        assert_eq!(two.remove().remove(), Streak::NONE);
    }

    #[test]
    fn one_client_is_one_client_however_often() {
        let mut run = Streak::NONE;
        for i in 0..70_000 {
            run = run.add(SEC + i, 7, 10 * SEC);
        }
        assert_eq!(run.count(), 0xffff, "the count saturates");
        assert!(!run.spread_at_least(2));
    }

    proptest! {
        #[test]
        fn age_is_right_across_the_wrap(start in 0u64..u64::MAX / 2, age in 0u64..3_600 * SEC) {
            let run = Streak::NONE.add(start, 0, u64::MAX);
            let read = run.age_ns(start + age);
            prop_assert!(read.abs_diff(age) <= 1 << UNIT_LOG2);
        }
    }
}
