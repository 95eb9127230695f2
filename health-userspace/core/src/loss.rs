//! How many SYNs the network loses by itself, and so how many lost ones say that an origin is silent.

use crate::engine::TrafficTotals;

/// SYNs below which nothing is known.
const SYNS_MIN: u64 = 50;
/// SYNs after which older ones count half, so that a network which gets better or worse is noticed.
const SYNS_MAX: u64 = 10_000;
/// Chance at which that many lost SYNs are no accident. Unit: millionths.
const CHANCE_MAX: u64 = 10;
const MILLION: u64 = 1_000_000;
/// Two lost SYNs are the least (design.md §4, re-steer); five are silence anyway.
const AT_LEAST: u8 = 2;
const AT_MOST: u8 = 5;

/// What was lost on the way to one origin while it was well.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loss {
    syns: u64,
    repeats: u64,
    /// The counters as they were last read.
    last: Option<(u64, u64)>,
}

impl Loss {
    /// Reads the newest counters. While `steady` is false, repeats are the origin's doing and not the network's.
    pub(crate) fn read(&mut self, totals: &TrafficTotals, steady: bool) {
        let now = (totals.syn, totals.syn_retrans);
        let last = self.last.replace(now).unwrap_or(now);
        if !steady {
            return;
        }
        self.syns = self.syns.saturating_add(now.0.saturating_sub(last.0));
        self.repeats = self.repeats.saturating_add(now.1.saturating_sub(last.1));
        while self.syns > SYNS_MAX {
            self.syns >>= 1_u32;
            self.repeats >>= 1_u32;
        }
    }

    /// So many SYNs that are lost one after the other are hardly the network's doing.
    pub(crate) fn silent_from(&self) -> u8 {
        if self.syns < SYNS_MIN {
            return AT_LEAST;
        }
        let share = self.repeats.saturating_mul(MILLION).checked_div(self.syns).unwrap_or(0).min(MILLION);
        let mut chance = share;
        for lost in AT_LEAST..AT_MOST {
            chance = chance.saturating_mul(share) / MILLION;
            if chance <= CHANCE_MAX {
                return lost;
            }
        }
        AT_MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_is_lost_the_more_it_takes() {
        for (syn, syn_retrans, want) in [
            (0, 0, 2),
            (49, 40, 2),
            (1000, 0, 2),
            (1000, 3, 2),
            (1000, 10, 3),
            (1000, 20, 3),
            (1000, 43, 4),
            (1000, 90, 5),
            (100, 900, 5),
        ] {
            let mut loss = Loss::default();
            loss.read(&TrafficTotals::default(), true);
            loss.read(&TrafficTotals { syn, syn_retrans, ..TrafficTotals::default() }, true);
            assert_eq!(loss.silent_from(), want, "{syn_retrans} of {syn}");
        }
    }

    #[test]
    fn what_an_origin_in_trouble_loses_is_not_the_networks_doing() {
        let mut loss = Loss::default();
        let totals = |syn, syn_retrans| TrafficTotals { syn, syn_retrans, ..TrafficTotals::default() };
        loss.read(&totals(0, 0), true);
        loss.read(&totals(1000, 0), true);
        loss.read(&totals(1500, 1000), false);
        assert_eq!(loss.silent_from(), 2);
        loss.read(&totals(1600, 1000), true);
        assert_eq!(loss.silent_from(), 2, "nor when it is over");
        loss.read(&totals(100, 0), true);
        assert_eq!(loss.silent_from(), 2, "new maps");
    }

    #[test]
    fn a_network_that_got_better_is_noticed() {
        let mut loss = Loss::default();
        let totals = |syn, syn_retrans| TrafficTotals { syn, syn_retrans, ..TrafficTotals::default() };
        loss.read(&totals(0, 0), true);
        loss.read(&totals(10_000, 500), true);
        assert_eq!(loss.silent_from(), 4);
        for turn in 1..=200 {
            loss.read(&totals(10_000 + turn * 1000, 500), true);
        }
        assert_eq!(loss.silent_from(), 2);
    }
}
