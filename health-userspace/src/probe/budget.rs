//! How many rounds may begin: a token bucket.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Share of a second's budget that may be spent at once.
const BURST_PART: u32 = 10;

/// Kept as the time at which it is full again.
#[derive(Debug)]
pub(super) struct Budget {
    period: Duration,
    burst: Duration,
    full_at: Mutex<Option<Instant>>,
}

impl Budget {
    pub(super) fn new(per_s: u32) -> Self {
        Self::with_burst(per_s, per_s / BURST_PART)
    }

    /// `burst` rounds may begin at once.
    pub(super) fn with_burst(per_s: u32, burst: u32) -> Self {
        let period = Duration::from_secs(1) / per_s.max(1);
        Self { period, burst: period * burst.max(1), full_at: Mutex::new(None) }
    }

    /// Takes one round out of the budget, and says how long it has to wait for it.
    pub(super) fn reserve(&self, now: Instant) -> Duration {
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = full_at.map_or(now, |full_at| full_at.max(now));
        let after = begin + self.period;
        *full_at = Some(after);
        after.duration_since(now).saturating_sub(self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_lets_a_burst_pass_and_then_spreads() {
        let budget = Budget::new(100);
        let now = Instant::now();
        let waits: Vec<u128> = (0..14).map(|_| budget.reserve(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 20, 30, 40]);
        // A second later it has recovered, and holds no more than its burst.
        let later = now + Duration::from_mins(1);
        let waits: Vec<u128> = (0..12).map(|_| budget.reserve(later).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 20]);
        assert_eq!(Budget::new(0).reserve(now), Duration::ZERO);
    }
}
