//! How many new connections an origin gets, and the most of the past hour.

use crate::time::{Span, Timestamp};

/// Least time over which a rate is measured.
const OVER_MIN: Span = Span::from_secs(1);

/// Counters that stand still for so long are a rate of 0. Large nodes read each origin that rarely.
const STILL: Span = Span::from_secs(30);

/// The hour is kept in parts of five minutes, each with its greatest rate.
const PARTS: usize = 12;
const PART: Span = Span::from_secs(300);

/// One origin's load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Whether it has flows of others, by the governor's leave.
    pub(crate) stands_in: bool,
    at: Timestamp,
    syns: u64,
    rate: u64,
    peaks: [u64; PARTS],
    /// Which part of time the newest of `peaks` is, counted from the clock's beginning.
    part: u64,
}

impl Load {
    /// Takes the counter of new connections. `learns`: whether the rate is the origin's usual one; while it stands in for
    /// another it is not.
    pub(crate) fn see(&mut self, syns: u64, now: Timestamp, learns: bool) {
        self.turn(now);
        if self.at == Timestamp::NEVER || syns < self.syns {
            // The first look, or new maps: only a mark.
            (self.at, self.syns, self.rate) = (now, syns, 0);
            return;
        }
        let over = now.since(self.at);
        let gained = syns.saturating_sub(self.syns);
        if over < OVER_MIN || (gained == 0 && over < STILL) {
            return;
        }
        self.rate = gained.saturating_mul(1000).checked_div(over.as_millis()).unwrap_or(0);
        (self.at, self.syns) = (now, syns);
        if learns && let Some(peak) = self.peaks.first_mut() {
            *peak = self.rate.max(*peak);
        }
    }

    fn turn(&mut self, now: Timestamp) {
        let part = now.0.checked_div(PART.0).unwrap_or(0);
        let steps = usize::try_from(part.saturating_sub(self.part)).unwrap_or(PARTS).min(PARTS);
        self.peaks.rotate_right(steps);
        self.peaks.iter_mut().take(steps).for_each(|peak| *peak = 0);
        self.part = part;
    }

    /// New connections per second, as last measured.
    pub(crate) const fn rate(&self) -> u64 {
        self.rate
    }

    /// The greatest such rate of the past hour.
    pub(crate) fn peak(&self) -> u64 {
        self.peaks.iter().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Timestamp {
        Timestamp(PART.0).after(Span::from_secs(secs))
    }

    #[test]
    fn the_rate_is_that_of_the_time_between_two_looks() {
        let mut load = Load::default();
        load.see(1000, at(0), true);
        assert_eq!((load.rate(), load.peak()), (0, 0), "one look is no rate");
        load.see(1050, Timestamp(at(0).0 + 500_000_000), true);
        assert_eq!(load.rate(), 0, "too short");
        load.see(1100, at(2), true);
        assert_eq!((load.rate(), load.peak()), (50, 50));
        load.see(1100, at(20), true);
        assert_eq!(load.rate(), 50, "perhaps it was only not read");
        load.see(1100, at(33), true);
        assert_eq!((load.rate(), load.peak()), (0, 50));
        load.see(3, at(40), true);
        assert_eq!((load.rate(), load.peak()), (0, 50), "new maps");
    }

    #[test]
    fn what_it_gets_for_others_is_no_peak_and_an_hour_is_forgotten() {
        let mut load = Load::default();
        load.see(0, at(0), true);
        load.see(400, at(10), true);
        load.see(10_400, at(20), false);
        assert_eq!((load.rate(), load.peak()), (1000, 40));
        load.see(10_401, at(3500), true);
        assert_eq!(load.peak(), 40);
        load.see(10_402, at(3700), true);
        assert_eq!(load.peak(), 0);
    }
}
