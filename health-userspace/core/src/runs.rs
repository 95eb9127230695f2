//! Passes and failures in a row.

use crate::time::{Span, Timestamp};

/// Runs of one check. A pass ends a run of failures and a failure one of passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    passes: u32,
    failures: u32,
    proof: u32,
    mark: Timestamp,
    /// When the first and the newest of the failures in a row began.
    failing: (Timestamp, Timestamp),
}

impl Runs {
    /// Adds a round that began at `began`. `proves`: whether its pass proves anything.
    pub fn record(&mut self, passed: bool, began: Timestamp, proves: bool) {
        if passed {
            self.failures = 0;
            self.passes = self.passes.saturating_add(1);
            // What began before the mark may have been answered before it: no proof about what came after.
            if proves && began > self.mark {
                self.proof = self.proof.saturating_add(1);
            }
        } else {
            self.passes = 0;
            self.proof = 0;
            self.failing = (if self.failures == 0 { began } else { self.failing.0 }, began);
            self.failures = self.failures.saturating_add(1);
        }
    }

    /// From now on only rounds that begin after `at` prove anything (a trip or a fault began then).
    pub fn set_mark(&mut self, at: Timestamp) {
        self.mark = at;
        self.proof = 0;
    }

    /// What was proved since the mark no longer counts: something newer speaks against it.
    pub fn refute(&mut self) {
        self.proof = 0;
    }

    /// Passes in a row up to the newest round.
    #[must_use]
    pub const fn passes(self) -> u32 {
        self.passes
    }

    /// Failures in a row up to the newest round.
    #[must_use]
    pub const fn failures(self) -> u32 {
        self.failures
    }

    /// From the beginning of the first failure in a row to that of the newest.
    #[must_use]
    pub const fn failing_for(self) -> Span {
        self.failing.1.since(self.failing.0)
    }

    /// Passes in a row whose rounds began after the mark.
    #[must_use]
    pub const fn proof(self) -> u32 {
        self.proof
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The classic fault of such counters: failures that are not in a row add up to a fault.
    #[test]
    fn failure_counter_is_reset_on_success() {
        let mut runs = Runs::default();
        for round in 0..100_u64 {
            runs.record(round % 3 == 2, Timestamp(round), true);
            assert!(runs.failures() < 3, "two failures between passes never make three");
        }
    }

    #[test]
    fn failures_in_a_row_are_as_old_as_the_first_of_them() {
        let mut runs = Runs::default();
        runs.record(false, Timestamp(5), true);
        assert_eq!(runs.failing_for(), Span::ZERO);
        runs.record(false, Timestamp(7), true);
        assert_eq!(runs.failing_for(), Span(2));
        runs.record(true, Timestamp(8), true);
        runs.record(false, Timestamp(9), true);
        assert_eq!(runs.failing_for(), Span::ZERO);
    }

    #[test]
    fn success_counter_is_reset_on_failure() {
        let mut runs = Runs::default();
        runs.record(true, Timestamp(1), true);
        runs.record(false, Timestamp(2), true);
        runs.record(true, Timestamp(3), true);
        assert_eq!((runs.passes(), runs.failures(), runs.proof()), (1, 0, 1));
    }

    #[test]
    fn a_pass_that_came_too_late_proves_nothing() {
        let mut runs = Runs::default();
        runs.record(true, Timestamp(1), true);
        runs.record(true, Timestamp(2), false);
        assert_eq!((runs.passes(), runs.proof()), (2, 1));
    }

    #[test]
    fn only_rounds_that_began_after_the_mark_prove() {
        let mut runs = Runs::default();
        runs.record(true, Timestamp(1), true);
        runs.set_mark(Timestamp(10));
        runs.record(true, Timestamp(10), true);
        assert_eq!((runs.passes(), runs.proof()), (2, 0), "it began no later than the mark");
        runs.record(true, Timestamp(11), true);
        assert_eq!(runs.proof(), 1);
        runs.refute();
        assert_eq!((runs.passes(), runs.proof()), (3, 0));
    }
}
