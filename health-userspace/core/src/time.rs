//! Time as an argument.

use core::fmt;

/// Nanoseconds of the kernel's monotonic clock (`CLOCK_MONOTONIC`, `bpf_ktime_get_ns`). 0 means never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

/// A length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

impl Timestamp {
    /// Before anything: no time was recorded.
    pub const NEVER: Self = Self(0);

    /// The time from `earlier` to here; zero when the clock of one of the two ran behind.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// This time and `span` more.
    #[must_use]
    pub const fn after(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A length in milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// A length in seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Whole milliseconds, rounded down.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        match self.0.checked_div(1_000_000) {
            Some(millis) => millis,
            None => 0,
        }
    }

    /// Divided by `parts`, at least one nanosecond; `parts` of 0 counts as 1.
    #[must_use]
    pub const fn part(self, parts: u64) -> Self {
        match self.0.checked_div(parts) {
            Some(0) => Self(1),
            Some(nanos) => Self(nanos),
            None => self,
        }
    }

    /// What is left of it without `other`, not below zero.
    #[must_use]
    pub const fn since(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Not below `min` and not above `max`; `max` wins where they cross.
    #[must_use]
    pub fn within(self, min: Self, max: Self) -> Self {
        self.max(min).min(max)
    }

    /// Both, one after the other.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// `times` as long.
    #[must_use]
    pub const fn times(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }
}

impl fmt::Display for Span {
    /// Milliseconds under a second, else seconds with the milliseconds behind a point.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.as_millis();
        match (millis.checked_div(1000), millis.checked_rem(1000)) {
            (Some(0), _) => write!(f, "{millis}ms"),
            (Some(secs), Some(0)) => write!(f, "{secs}s"),
            (Some(secs), Some(rest)) => write!(f, "{secs}.{rest:03}s"),
            _ => write!(f, "{millis}ms"),
        }
    }
}
