//! What holds while an attack on a service is being mitigated.

use super::Policy;
use crate::time::Span;
use alloc::string::String;

/// Most clients that the kernel can tell apart ([`crate::clients::CLIENTS`]).
const SPREAD_MAX: u8 = 20;

/// Greatest `trip.after`, and with it of all counts.
const COUNT_MAX: u64 = 1000;

/// What holds while an attack is being mitigated. Scrubbers drop and reset flows then, and attackers provoke resets: more is
/// asked for before an origin is called faulty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mitigation {
    /// A file that the scrubber touches: mitigation is on from then until `expires` later. Empty: none.
    pub file: String,
    /// How long it lasts after the file was touched. Default 2 h.
    pub expires: Span,
    /// Runs, volume floors, clients and late buckets are raised to so much. Unit: percent, 100 to 1000. Default 200.
    pub evidence_percent: u16,
    /// Resets count only with at least so many clients behind the failures of requests. Range: 1 to 20. Default 20.
    pub reset_spread_min: u8,
}

impl Default for Mitigation {
    fn default() -> Self {
        Self {
            file: String::new(),
            expires: Span::from_secs(7200),
            evidence_percent: 200,
            reset_spread_min: SPREAD_MAX,
        }
    }
}

impl Policy {
    /// The policy that holds while an attack is being mitigated.
    #[must_use]
    pub fn mitigated(&self) -> Self {
        let percent = u64::from(self.mitigation.evidence_percent);
        let raised = |value: u64, max: u64| value.saturating_mul(percent).div_ceil(100).min(max).max(value);
        let byte = |value: u8, max: u8| u8::try_from(raised(u64::from(value), u64::from(max))).unwrap_or(max);
        let word = |value: u32| u32::try_from(raised(u64::from(value), u64::from(u32::MAX))).unwrap_or(u32::MAX);
        let mut policy = self.clone();
        policy.fall = byte(self.fall, 100);
        policy.samples_min.passive = word(self.samples_min.passive);
        policy.samples_min.active = word(self.samples_min.active);
        policy.latency.buckets = byte(self.latency.buckets, 100);
        policy.trip.after = u16::try_from(raised(u64::from(self.trip.after), COUNT_MAX)).unwrap_or(u16::MAX);
        // With 1 nobody asks who it was, and while under attack somebody should.
        policy.trip.spread_min = byte(self.trip.spread_min.max(2), SPREAD_MAX);
        policy.reset_spread_min = self.mitigation.reset_spread_min;
        policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_is_raised_and_never_lowered_or_beyond_its_range() {
        let policy = Policy::default();
        let raised = policy.mitigated();
        assert_eq!((raised.fall, raised.samples_min.passive, raised.samples_min.active), (6, 40, 6));
        assert_eq!((raised.trip.after, raised.trip.spread_min, raised.latency.buckets), (10, 6, 6));
        assert_eq!((policy.reset_spread_min, raised.reset_spread_min), (1, 20));
        let mut extreme = policy;
        extreme.mitigation.evidence_percent = 1000;
        (extreme.fall, extreme.trip.after, extreme.trip.spread_min) = (50, 900, 15);
        let raised = extreme.mitigated();
        assert_eq!((raised.fall, raised.trip.after, raised.trip.spread_min), (100, 1000, 20));
        extreme.mitigation.evidence_percent = 100;
        assert_eq!(extreme.mitigated().fall, 50);
    }
}
