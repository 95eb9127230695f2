//! Time as the kernel half sees it, and waiting for conditions.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::time::{ClockId, clock_gettime};

use crate::stop;

/// How often a waiter looks again. Much shorter than anything that the lab waits for, and cheap.
const POLL: Duration = Duration::from_millis(5);

fn read(clock: ClockId) -> u64 {
    // Both clocks exist on every kernel that this runs on; 0 would only make a report absurd, not wrong in silence.
    let time = clock_gettime(clock).map(Duration::from).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// `CLOCK_MONOTONIC`, the clock of `bpf_ktime_get_ns`. Unit: ns.
#[must_use]
pub fn now_ns() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Offset between wall time and [`now_ns`], to place events with wall-clock stamps beside the load's records.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    offset_ns: u64,
}

impl WallClock {
    /// Reads both clocks now.
    #[must_use]
    pub fn read() -> Self {
        Self { offset_ns: read(ClockId::CLOCK_REALTIME).saturating_sub(now_ns()) }
    }

    /// `stamp_ns` on the monotonic clock. A stamp below the offset, decades ago on the wall clock, is monotonic already.
    #[must_use]
    pub const fn to_monotonic(self, stamp_ns: u64) -> u64 {
        if stamp_ns > self.offset_ns / 2 { stamp_ns.saturating_sub(self.offset_ns) } else { stamp_ns }
    }
}

/// Waits until `done` says yes.
///
/// # Errors
///
/// After `limit`, naming `what`; at once when [`stop::requested`].
pub fn wait_until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
    wait_for(what, limit, || done().then_some(()))
}

/// Waits until `look` finds something, and returns it.
///
/// # Errors
///
/// After `limit`, naming `what`; at once when [`stop::requested`].
pub fn wait_for<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        stop::check()?;
        if start.elapsed() >= limit {
            bail!("waited {limit:?} in vain: {what}");
        }
        thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_stamp_lands_near_now() {
        let wall = WallClock::read();
        let now = now_ns();
        let placed = wall.to_monotonic(read(ClockId::CLOCK_REALTIME));
        assert!(placed.abs_diff(now) < 1_000_000_000, "{placed} against {now}");
        assert_eq!(wall.to_monotonic(now), now, "a monotonic stamp stays");
    }

    #[test]
    fn waiting_in_vain_names_what_was_missing() {
        let got = wait_until("the moon", Duration::from_millis(1), || false);
        assert!(got.is_err_and(|error| error.to_string().contains("the moon")));
    }
}
