//! The kernel's monotonic clock, and whether this process lost time.

use health_core::{Span, Timestamp};
use nix::time::{ClockId, clock_gettime};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Time between two beats. 20 wake-ups a second cost nothing, and see what would spoil a timeout of 200 ms.
const BEAT: Span = Span::from_millis(50);
/// A beat this late is a stall: a quarter of the shortest timeout that is usual. Idle machines are late by 2 ms.
const STALL_MIN: Span = Span::from_millis(50);

/// The kernel's monotonic clock, the one that `bpf_ktime_get_ns` reads: stamps of both can be compared.
///
/// # Panics
///
/// Never: Linux cannot refuse this clock.
#[must_use]
pub fn now() -> Timestamp {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux has a monotonic clock");
    let (secs, nanos) = (time.tv_sec().unsigned_abs(), time.tv_nsec().unsigned_abs());
    Timestamp(secs.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// A length of time for tokio.
pub(super) const fn duration(span: Span) -> Duration {
    Duration::from_nanos(span.0)
}

/// Notices that the process was stopped (SIGSTOP, a frozen cgroup, a paused machine) or starved.
///
/// A timer that comes late looks exactly like an origin that came late; only a clock of one's own tells them apart.
#[derive(Debug)]
pub(super) struct Stalls {
    beat: AtomicU64,
    /// End and length of the last stall.
    ended: AtomicU64,
    length: AtomicU64,
}

impl Stalls {
    pub(super) fn new() -> Self {
        Self { beat: AtomicU64::new(now().0), ended: AtomicU64::new(0), length: AtomicU64::new(0) }
    }

    /// Beats for ever.
    pub(super) async fn watch(&self) {
        loop {
            tokio::time::sleep(duration(BEAT)).await;
            let now = now();
            let gap = self.gap(now);
            if gap > STALL_MIN {
                self.length.store(gap.0, Ordering::Relaxed);
                self.ended.store(now.0, Ordering::Release);
            }
            self.beat.store(now.0, Ordering::Relaxed);
        }
    }

    /// Time lost in a stall that reached into the time since `began`.
    pub(super) fn lost_since(&self, began: Timestamp) -> Span {
        // The round's own timer may fire before the next beat does.
        let present = self.gap(now());
        let past = if self.ended.load(Ordering::Acquire) > began.0 {
            Span(self.length.load(Ordering::Relaxed))
        } else {
            Span::ZERO
        };
        if present > STALL_MIN { past.max(present) } else { past }
    }

    /// How much later than due the next beat already is.
    fn gap(&self, now: Timestamp) -> Span {
        let beat = Timestamp(self.beat.load(Ordering::Relaxed));
        Span(now.since(beat).0.saturating_sub(BEAT.0))
    }
}
