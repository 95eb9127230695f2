//! When answers are late.

use crate::time::Span;

/// Latency against what was learned. An absolute `slow` of a check counts beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Whether it is learned and judged at all. Default true.
    pub learn: bool,
    /// How much of the past is usual. Default 1 h.
    pub history: Span,
    /// Above this it is late: `degraded`. Default 300 % and 50 ms.
    pub degraded: LatencyOver,
    /// Late buckets of 10 s in a row that make a grade. Range: 1 to 100. Default 3.
    pub buckets: u8,
    /// Samples of the past below which nothing is usual. Default 200.
    pub samples_min: u32,
    /// Above this it is very late: `high_risk`. Default 2000 % and 1 s.
    pub high_risk: LatencyOver,
}

/// Above both of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyOver {
    /// So much of what is usual. Unit: percent, at least 100.
    pub factor_percent: u32,
    /// So much more than usual.
    pub add: Span,
}

impl LatencyOver {
    /// The limit where `usual` is usual.
    #[must_use]
    pub fn of(self, usual: Span) -> Span {
        let factor = usual.times(u64::from(self.factor_percent)).part(100);
        factor.max(usual.plus(self.add))
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            learn: true,
            history: Span::from_secs(3600),
            degraded: LatencyOver { factor_percent: 300, add: Span::from_millis(50) },
            buckets: 3,
            samples_min: 200,
            high_risk: LatencyOver { factor_percent: 2000, add: Span::from_secs(1) },
        }
    }
}

/// What a fault takes, of runs (`fall` in a row) and rates (`success_below_percent.fault`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultRule {
    /// One of the two.
    #[default]
    Either,
    /// Both. A rate alone is `high_risk` at most, a run alone nothing. A trip that is confirmed is a run of its own.
    Both,
}
