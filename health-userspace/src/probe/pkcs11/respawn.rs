//! How soon a worker may follow another.

use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Waits after the first, second, … start. The last one stays below the 10 s between tests of a recovery, which are what
/// paces workers of an HSM that stays ill.
const WAITS: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
];
/// A worker that lived so long has shown that the next start may be prompt.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(5);

/// One slot's starts.
#[derive(Debug)]
pub(super) struct Respawn {
    starts: usize,
    last: Option<Instant>,
    chance: u64,
}

impl Respawn {
    /// `slot` spreads the waits of several slots, by at most a fifth.
    pub(super) fn of(slot: &str) -> Self {
        let chance = slot.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
        Self { starts: 0, last: None, chance: chance % 41 }
    }

    /// Returns when a worker may be started, and counts it.
    pub(super) async fn wait(&mut self) {
        if let Some(last) = self.last {
            sleep_until(last + self.pause()).await;
        }
        self.last = Some(Instant::now());
        self.starts = (self.starts + 1).min(WAITS.len() - 1);
    }

    fn pause(&self) -> Duration {
        let percent = u32::try_from(80 + self.chance).unwrap_or(100);
        WAITS[self.starts] * percent / 100
    }

    /// A round passed.
    pub(super) fn worked(&mut self) {
        if self.last.is_some_and(|last| last.elapsed() >= FORGOTTEN_AFTER) {
            self.starts = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_differ_between_slots() {
        let mut respawn = Respawn::of("hsm/a");
        let mut before = Duration::ZERO;
        for (starts, wait) in WAITS.iter().enumerate() {
            respawn.starts = starts;
            let pause = respawn.pause();
            assert!(pause >= before && pause >= *wait * 4 / 5 && pause <= *wait * 6 / 5, "{pause:?}");
            before = pause;
        }
        assert_ne!(Respawn::of("hsm/a").chance, Respawn::of("hsm/b").chance);
    }
}
