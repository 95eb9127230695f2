//! Log-linear histograms: four sub-buckets an octave, from 16 µs to 16 s.
//!
//! A bucket is at most 25 % wide, so its mid-point is at most 11 % off. Counters only grow; whoever wants a window
//! subtracts two reads.

/// Buckets: 20 octaves of 4, the last open-ended.
pub const BUCKETS: usize = 80;

/// First bound: everything below falls into bucket 0. Unit: ns.
const FLOOR_LOG2: u32 = 14;

/// One histogram's counters.
pub type Buckets = [u32; BUCKETS];

/// The bucket of a duration. Unit: ns.
///
/// Always below [`BUCKETS`].
#[inline(always)]
#[must_use]
pub const fn bucket(ns: u64) -> usize {
    // 2^14 ns = 16.4 µs.
    if ns < 1 << FLOOR_LOG2 {
        return 0;
    }
    let log2 = ns.ilog2();
    let octave = log2 - FLOOR_LOG2;
    let sub = (ns >> (log2 - 2)) & 3;
    let index = octave as usize * 4 + sub as usize;
    if index < BUCKETS { index } else { BUCKETS - 1 }
}

/// Lower bound of a bucket. Unit: ns.
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "buckets are few")]
pub const fn lower_bound(bucket: usize) -> u64 {
    if bucket == 0 {
        return 0;
    }
    let octave = FLOOR_LOG2 + (bucket / 4) as u32;
    (1 << octave) + (bucket as u64 % 4) * (1 << (octave - 2))
}

/// The value below which `percent` of the samples lie, as the mid-point of its bucket, and the number of samples.
///
/// `None` without samples. `newer` and `older` are two reads of the same counters; the samples between them count.
/// Unit: ns.
#[must_use]
pub fn percentile(newer: &[u64; BUCKETS], older: &[u64; BUCKETS], percent: u64) -> Option<(u64, u64)> {
    let samples = |i: usize| newer[i].saturating_sub(older[i]);
    let total: u64 = (0..BUCKETS).map(samples).sum();
    if total == 0 {
        return None;
    }
    // The rank is rounded up, so that the 99th percentile of few samples is their greatest.
    let rank = (total * percent).div_ceil(100).max(1);
    let mut seen = 0;
    for i in 0..BUCKETS {
        seen += samples(i);
        if seen >= rank {
            let low = lower_bound(i);
            let high = if i + 1 < BUCKETS { lower_bound(i + 1) } else { low + low / 4 };
            return Some((low.midpoint(high), total));
        }
    }
    None
}

/// All samples together, each as the mid-point of its bucket, and their number. Unit: ns.
#[must_use]
pub fn sum(counts: &[u64; BUCKETS]) -> (u64, u64) {
    let mid = |i: usize| {
        let low = if i == 0 { 0 } else { lower_bound(i) };
        let high = if i + 1 < BUCKETS { lower_bound(i + 1) } else { low + low / 4 };
        low.midpoint(high)
    };
    let total = (0..BUCKETS).fold(0_u64, |total, i| total.saturating_add(counts[i].saturating_mul(mid(i))));
    (total, counts.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds_and_buckets_agree() {
        for i in 1..BUCKETS {
            assert_eq!(bucket(lower_bound(i)), i, "first value of bucket {i}");
            assert_eq!(bucket(lower_bound(i) - 1), i - 1, "last value before bucket {i}");
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    proptest! {
        #[test]
        fn the_mid_point_is_at_most_11_percent_off(ns in 16_384u64..16_000_000_000) {
            let mut newer = [0; BUCKETS];
            newer[bucket(ns)] = 1;
            let (mid, samples) = percentile(&newer, &[0; BUCKETS], 50).expect("one sample");
            prop_assert_eq!(samples, 1);
            prop_assert!(mid.abs_diff(ns) * 9 <= mid, "{} for {}", mid, ns);
        }

        #[test]
        fn the_sum_is_at_most_11_percent_off(times in proptest::collection::vec(16_384u64..16_000_000_000, 1..50)) {
            let mut counts = [0; BUCKETS];
            for ns in &times {
                counts[bucket(*ns)] += 1;
            }
            let (total, samples) = sum(&counts);
            let exact: u64 = times.iter().sum();
            prop_assert_eq!(samples, times.len() as u64);
            prop_assert!(total.abs_diff(exact) * 100 <= exact * 12, "{} instead of {}", total, exact);
        }

        #[test]
        fn percentiles_are_monotonic(counts in proptest::collection::vec(0u64..1000, BUCKETS)) {
            let newer: [u64; BUCKETS] = counts.try_into().expect("as long");
            let older = [0; BUCKETS];
            let mut last = 0;
            for percent in 1..=100 {
                if let Some((value, _)) = percentile(&newer, &older, percent) {
                    prop_assert!(value >= last);
                    last = value;
                }
            }
        }
    }
}
