//! Whether the loop is alive.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// The loop ticks several times a second; without a tick for this long it hangs.
pub const TICK_AGE_MAX: Duration = Duration::from_secs(3);

/// The loop's sign of life. Clones are the same.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    began: Instant,
    /// Milliseconds since `began` at the last tick, and one more; 0 is never.
    last: Arc<AtomicU64>,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self { began: Instant::now(), last: Arc::new(AtomicU64::new(0)) }
    }
}

impl Heartbeat {
    /// Called by the loop at the end of each tick.
    pub fn tick(&self) {
        self.tick_at(Instant::now());
    }

    /// Whether the loop lives.
    ///
    /// # Errors
    ///
    /// It doesn't; the sentence says why.
    pub fn check(&self) -> Result<(), String> {
        self.check_at(Instant::now())
    }

    fn tick_at(&self, now: Instant) {
        self.last.store(self.millis(now).saturating_add(1), Ordering::Relaxed);
    }

    fn check_at(&self, now: Instant) -> Result<(), String> {
        let Some(last) = self.last.load(Ordering::Relaxed).checked_sub(1) else {
            return Err("the loop has not ticked yet".to_owned());
        };
        let age = Duration::from_millis(self.millis(now).saturating_sub(last));
        if age > TICK_AGE_MAX {
            return Err(format!("the loop has not ticked for {:.1}s", age.as_secs_f64()));
        }
        Ok(())
    }

    fn millis(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_lives_for_three_seconds_after_its_tick() {
        let heart = Heartbeat::default();
        let after = |millis| heart.began + Duration::from_millis(millis);
        assert_eq!(heart.check_at(after(0)), Err("the loop has not ticked yet".to_owned()));
        heart.tick_at(after(0));
        assert_eq!(heart.check_at(after(3_000)), Ok(()));
        assert_eq!(heart.check_at(after(3_100)), Err("the loop has not ticked for 3.1s".to_owned()));
        heart.tick_at(after(3_200));
        assert_eq!(heart.check_at(after(3_300)), Ok(()));
    }
}
