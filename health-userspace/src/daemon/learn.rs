//! Percentiles of the recent past.
//!
//! The kernel's histograms only grow. What they gain while an origin is sound goes into one of two buckets of time that
//! take turns, so the answer covers the past half to full hour.

use health_common::histogram::{self, BUCKETS};
use health_core::{Span, Timestamp, engine::Quantile, latency::Times};

use crate::datapath::OriginReading;

/// Half of the hour that design.md §4 learns from.
const TURN: Span = Span::from_secs(1800);

type Counts = [u64; BUCKETS];

/// One origin's recent past.
#[derive(Clone, Debug, Default)]
pub(super) struct Learner {
    rtt: Series,
    ttfb: Series,
    turned: Timestamp,
}

#[derive(Clone, Debug)]
struct Series {
    /// The kernel's counters at the last look; `None` before the first, which only sets the mark.
    seen: Option<Counts>,
    now: Counts,
    before: Counts,
}

impl Default for Series {
    fn default() -> Self {
        Self { seen: None, now: [0; BUCKETS], before: [0; BUCKETS] }
    }
}

impl Learner {
    /// Takes what the kernel's histograms gained since the last look, or passes it by.
    ///
    /// Returns the times to first byte that they gained, learned or not.
    pub(super) fn take(&mut self, reading: &OriginReading, learns: bool, now: Timestamp) -> Times {
        if now.since(self.turned) > TURN {
            self.turned = now;
            self.rtt.turn();
            self.ttfb.turn();
        }
        let gained = self.ttfb.gained(&reading.ttfb);
        self.rtt.take(&reading.rtt, learns);
        self.ttfb.take(&reading.ttfb, learns);
        gained
    }

    /// Handshake RTT and time to first byte.
    pub(super) fn quantiles(&self) -> (Quantile, Quantile) {
        (self.rtt.p99(), self.ttfb.p99())
    }
}

impl Series {
    /// What came since the last look. Nothing at the first, and where the counters went back: those are of new maps.
    fn gained(&self, counts: &Counts) -> Times {
        let mut gained = Times::default();
        let Some(seen) = &self.seen else { return gained };
        for (bucket, (new, old)) in counts.iter().zip(seen).enumerate() {
            let more = new.saturating_sub(*old);
            if more > 0 {
                gained.add(bucket, u32::try_from(more).unwrap_or(u32::MAX));
            }
        }
        gained
    }

    fn take(&mut self, counts: &Counts, learns: bool) {
        if let Some(seen) = &self.seen
            && learns
        {
            for ((sum, new), old) in self.now.iter_mut().zip(counts).zip(seen) {
                // Counters that go back are those of new maps.
                *sum += new.saturating_sub(*old);
            }
        }
        self.seen = Some(*counts);
    }

    const fn turn(&mut self) {
        self.before = self.now;
        self.now = [0; BUCKETS];
    }

    fn p99(&self) -> Quantile {
        let mut sum = self.now;
        for (sum, before) in sum.iter_mut().zip(&self.before) {
            *sum += before;
        }
        histogram::percentile(&sum, &[0; BUCKETS], 99)
            .map_or_else(Quantile::default, |(p99, samples)| Quantile { samples, p99: Span(p99) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(ns: u64, n: u64) -> Counts {
        let mut counts = [0; BUCKETS];
        counts[histogram::bucket(ns)] = n;
        counts
    }

    #[test]
    fn what_an_ailing_origin_shows_is_passed_by() {
        let mut series = Series::default();
        series.take(&counts(1_000_000, 100), true);
        assert_eq!(series.p99().samples, 0, "the first look only sets the mark");
        series.take(&counts(1_000_000, 150), true);
        let slow = {
            let mut slow = counts(1_000_000, 150);
            slow[histogram::bucket(5_000_000_000)] = 50;
            slow
        };
        series.take(&slow, false);
        let p99 = series.p99();
        assert_eq!(p99.samples, 50);
        assert!(p99.p99 < Span::from_millis(2), "{p99:?}");
    }

    #[test]
    fn what_a_look_gains_is_what_came_since() {
        let mut series = Series::default();
        assert!(series.gained(&counts(1_500_000, 100)).is_empty(), "the first look");
        series.take(&counts(1_500_000, 100), false);
        let gained = series.gained(&counts(1_500_000, 130));
        assert_eq!((gained.samples(), gained.percentile(95).map(Span::as_millis)), (30, Some(1)));
        assert!(series.gained(&counts(1_500_000, 5)).is_empty(), "new maps");
    }

    #[test]
    fn the_past_fades_after_two_turns() {
        let mut series = Series::default();
        series.take(&counts(1_000_000, 0), true);
        series.take(&counts(1_000_000, 10), true);
        series.turn();
        assert_eq!(series.p99().samples, 10);
        series.turn();
        assert_eq!(series.p99().samples, 0);
    }
}
