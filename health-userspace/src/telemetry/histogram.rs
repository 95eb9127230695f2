//! Coarse histograms for `/metrics`: at most 12 buckets, the unbounded one included.

use health_common::histogram::{BUCKETS, lower_bound};
use std::time::Duration;

/// Round trips. Unit: s. Powers of two of a nanosecond, from 66 µs to 268 ms, so that the kernel's log-linear buckets fall
/// wholly into one of these.
pub const RTT_BOUNDS: &[f64] = &[
    65_536e-9,
    131_072e-9,
    262_144e-9,
    524_288e-9,
    1_048_576e-9,
    2_097_152e-9,
    4_194_304e-9,
    8_388_608e-9,
    16_777_216e-9,
    67_108_864e-9,
    268_435_456e-9,
];

/// Times to first byte. Unit: s. From 0.26 ms to 4.3 s, likewise.
pub const TTFB_BOUNDS: &[f64] = &[
    262_144e-9,
    1_048_576e-9,
    4_194_304e-9,
    16_777_216e-9,
    33_554_432e-9,
    67_108_864e-9,
    134_217_728e-9,
    268_435_456e-9,
    536_870_912e-9,
    1_073_741_824e-9,
    4_294_967_296e-9,
];

/// Steps of a failover. Unit: s. From 0.1 ms, a trip within a packet's processing, to the 10 s of a slow judgement.
pub const STEP_BOUNDS: &[f64] = &[0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 3.0, 10.0];

/// How late rounds of checks begin. Unit: s. From the millisecond of a timer to the second from which a round is dropped.
pub const LATE_BOUNDS: &[f64] = &[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];

/// Samples since the beginning, by size. Unit: s.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One more than `bounds`: the last has none.
    counts: Vec<u64>,
    sum_seconds: f64,
}

impl Histogram {
    /// No samples. `bounds` ascend, and are at most 11.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum_seconds: 0.0 }
    }

    /// Adds one sample.
    pub fn observe(&mut self, sample: Duration) {
        let seconds = sample.as_secs_f64();
        self.add(seconds, 1, seconds);
    }

    /// Adds one bucket of a finer histogram: `count` samples of at most `upper_seconds`, `sum_seconds` in all.
    pub fn add(&mut self, upper_seconds: f64, count: u64, sum_seconds: f64) {
        let place = self.bounds.partition_point(|bound| *bound < upper_seconds);
        self.counts[place] = self.counts[place].saturating_add(count);
        self.sum_seconds += sum_seconds;
    }

    /// Adds the kernel's counters. The sum is that of the buckets' mid-points, at most 11 % off: the kernel keeps none.
    pub fn add_kernel(&mut self, counts: &[u64; BUCKETS]) {
        for (bucket, &count) in counts.iter().enumerate().filter(|counted| *counted.1 > 0) {
            let low = lower_bound(bucket);
            // The last bucket is open-ended; it counts as one that is as wide as its like.
            let high = if bucket + 1 < BUCKETS { lower_bound(bucket + 1) } else { low + low / 4 };
            let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
            self.add(seconds(high), count, seconds(low.midpoint(high)) * float(count));
        }
    }

    /// Samples in all.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum. Unit: s.
    #[must_use]
    pub const fn sum_seconds(&self) -> f64 {
        self.sum_seconds
    }

    /// Upper bound and samples of each bucket, not cumulated, the unbounded one last.
    #[must_use]
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        self.bounds.iter().copied().chain([f64::INFINITY]).zip(self.counts.iter().copied()).collect()
    }
}

#[allow(clippy::cast_precision_loss, reason = "a sum of mid-points is no more exact")]
const fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_ascend_and_make_at_most_twelve_buckets() {
        for bounds in [RTT_BOUNDS, TTFB_BOUNDS, STEP_BOUNDS] {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
            assert!(Histogram::new(bounds).buckets().len() <= 12);
        }
    }

    /// A kernel bucket never straddles a bound, so no sample lands above its place or below.
    #[test]
    fn kernel_buckets_fall_wholly_into_one() {
        for bounds in [RTT_BOUNDS, TTFB_BOUNDS] {
            for bucket in 0..BUCKETS - 1 {
                let mut counts = [0; BUCKETS];
                counts[bucket] = 2;
                let mut histogram = Histogram::new(bounds);
                histogram.add_kernel(&counts);
                let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
                let (low, high) = (seconds(lower_bound(bucket)), seconds(lower_bound(bucket + 1)));
                let place = histogram.buckets().iter().position(|bucket| bucket.1 == 2).expect("somewhere");
                let above = place.checked_sub(1).map_or(0.0, |below| bounds[below]);
                assert!(above <= low && bounds.get(place).is_none_or(|bound| high <= *bound), "{bucket}");
                assert!((low * 2.0..=high * 2.0).contains(&histogram.sum_seconds()));
            }
        }
    }

    #[test]
    fn a_sample_on_a_bound_is_under_it() {
        let mut histogram = Histogram::new(STEP_BOUNDS);
        histogram.observe(Duration::from_millis(1));
        histogram.add(1.5, 4, 5.0);
        histogram.add(99.0, 1, 99.0);
        let full: Vec<_> = histogram.buckets().into_iter().filter(|bucket| bucket.1 > 0).collect();
        assert_eq!(full, [(0.001, 1), (3.0, 4), (f64::INFINITY, 1)]);
        assert_eq!(histogram.count(), 6);
        assert!((histogram.sum_seconds() - 104.001).abs() < 1e-9);
    }
}
