//! When the kernel sends an origin no more new flows, and when it may not. Pure; the programs add the atomics.

use crate::{map::Service, origin::Origin, streak::Streak};

/// The trip word: when, and which streak. 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Trip(pub u64);

/// Connections fail: refused, unanswered SYNs.
pub const CONNECT: u64 = 0;
/// Requests fail: early resets, no response.
pub const REQUEST: u64 = 1;

impl Trip {
    /// No trip.
    pub const NONE: Self = Self(0);

    /// A trip that begins now. The lowest bit of the time is given up for the streak.
    #[inline(always)]
    #[must_use]
    pub const fn new(now_ns: u64, streak: u64) -> Self {
        Self((now_ns & !1) | (streak & 1))
    }

    /// [`CONNECT`] or [`REQUEST`].
    #[inline(always)]
    #[must_use]
    pub const fn streak(self) -> u64 {
        self.0 & 1
    }

    /// When it began. Unit: ns.
    #[inline(always)]
    #[must_use]
    pub const fn since_ns(self) -> u64 {
        self.0 & !1
    }

    /// Whether it holds: userspace ends trips by moving `clear_before_ns` past their beginning.
    #[inline(always)]
    #[must_use]
    pub const fn holds(self, clear_before_ns: u64) -> bool {
        self.0 != 0 && self.since_ns() > clear_before_ns
    }

    /// Whether something that began at `began_ns` and succeeded at the layer of `streak` ends it.
    #[inline(always)]
    #[must_use]
    pub const fn is_ended_by(self, began_ns: u64, streak: u64) -> bool {
        self.0 != 0 && self.streak() == streak && began_ns > self.since_ns()
    }
}

/// Whether refusals or resets, which don't wait, have gone on long enough.
#[inline(always)]
#[must_use]
pub const fn failed_enough(run: Streak, origin: &Origin) -> bool {
    run.count() >= origin.after as u32 && run.spread_at_least(origin.spread_min as u32)
}

/// Whether SYNs without an answer have.
///
/// `open` are those sent since the last accepted SYN-ACK. The oldest must be overdue. The others must have waited for
/// half of the timeout since they became enough: else one lost SYN and a burst behind it would look like silence.
#[inline(always)]
#[must_use]
pub const fn silent_enough(open: Streak, reached_ns: u64, last_seen_ns: u64, now_ns: u64, origin: &Origin) -> bool {
    let timeout = origin.syn_timeout_ns;
    timeout != 0
        && failed_enough(open, origin)
        && open.age_ns(now_ns) >= timeout
        && reached_ns != 0
        && now_ns.saturating_sub(reached_ns) >= timeout / 2
        && now_ns.saturating_sub(last_seen_ns) >= origin.silence_min_ns
}

/// What the guard counts of the origin's service and family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usable {
    /// Other usable origins, in any tier.
    pub others: u32,
    /// Of those, in a tier behind the origin's.
    pub behind: u32,
    /// Origins of the origin's tier, itself included.
    pub tier: u32,
    /// Of those, unusable ones.
    pub tier_out: u32,
}

impl Usable {
    /// Counts one origin of the service, `own` the one that would trip.
    #[inline(always)]
    pub const fn see(&mut self, own: (u16, u16), other: (u16, u16), usable: bool) {
        let (id, tier) = own;
        let (other_id, other_tier) = other;
        // Families never stand in for each other.
        if (tier ^ other_tier) & Service::V6 as u16 != 0 {
            return;
        }
        if tier == other_tier {
            self.tier += 1;
        }
        if other_id == id {
            return;
        }
        if usable {
            self.others += 1;
            if other_tier > tier {
                self.behind += 1;
            }
        } else if tier == other_tier {
            self.tier_out += 1;
        }
    }

    /// Whether one more may go: never the last usable one; of a tier at most max(1, n × `max_percent`), unless a tier
    /// behind it can serve.
    #[inline(always)]
    #[must_use]
    pub const fn allows(&self, max_percent: u32) -> bool {
        if self.others == 0 {
            return false;
        }
        if self.behind > 0 {
            return true;
        }
        let share = self.tier * max_percent / 100;
        let most = if share > 1 { share } else { 1 };
        self.tier_out < most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    /// Name, the origin that would trip, all origins with tier and usability, whether it may.
    type Case<'a> = (&'a str, (u16, u16), &'a [(u16, u16, bool)], bool);

    fn origin() -> Origin {
        Origin { after: 5, spread_min: 3, syn_timeout_ns: 100 * MS, within_ns: 10 * SEC, ..Origin::default() }
    }

    fn run(at: &[u64]) -> (Streak, u64) {
        let (mut run, mut reached) = (Streak::NONE, 0);
        for (client, &at) in (0..).zip(at) {
            run = run.add(at, client, 10 * SEC);
            if run.count() == 5 {
                reached = at;
            }
        }
        (run, reached)
    }

    #[test]
    fn a_silent_origin_trips_at_its_timeout() {
        let (open, reached) = run(&[SEC, SEC + 10 * MS, SEC + 20 * MS, SEC + 30 * MS, SEC + 40 * MS]);
        assert!(!silent_enough(open, reached, 0, SEC + 95 * MS, &origin()));
        assert!(silent_enough(open, reached, 0, SEC + 102 * MS, &origin()));
    }

    #[test]
    fn one_lost_syn_and_a_burst_behind_it_is_not_silence() {
        let (open, reached) = run(&[SEC, SEC + 100 * MS, SEC + 100 * MS, SEC + 100 * MS, SEC + 100 * MS]);
        assert!(!silent_enough(open, reached, 0, SEC + 103 * MS, &origin()), "four of them are 3 ms old");
    }

    #[test]
    fn without_a_timeout_silence_is_no_evidence() {
        let (open, reached) = run(&[SEC; 9]);
        let origin = Origin { syn_timeout_ns: 0, ..origin() };
        assert!(!silent_enough(open, reached, 0, 100 * SEC, &origin));
    }

    #[test]
    fn silence_min_waits_for_the_last_byte() {
        let (open, reached) = run(&[SEC; 5]);
        let origin = Origin { silence_min_ns: 700 * MS, ..origin() };
        assert!(!silent_enough(open, reached, SEC, SEC + 500 * MS, &origin));
        assert!(silent_enough(open, reached, SEC, SEC + 701 * MS, &origin));
    }

    #[test]
    fn the_guard() {
        let count = |own: (u16, u16), all: &[(u16, u16, bool)]| {
            let mut usable = Usable::default();
            for &(id, tier, is) in all {
                usable.see(own, (id, tier), is);
            }
            usable
        };
        let v6 = u16::from(Service::V6);
        let table: [Case<'_>; 8] = [
            ("alone", (0, 0), &[(0, 0, true)], false),
            ("with a standby", (0, 0), &[(0, 0, true), (1, 1, true)], true),
            ("the standby is out", (0, 0), &[(0, 0, true), (1, 1, false)], false),
            ("the standby of the other family", (0, 0), &[(0, 0, true), (1, 1 | v6, true)], false),
            ("one of two", (0, 0), &[(0, 0, true), (1, 0, true)], true),
            ("two of four", (0, 0), &[(0, 0, true), (1, 0, true), (2, 0, false), (3, 0, true)], true),
            ("three of four", (0, 0), &[(0, 0, true), (1, 0, true), (2, 0, false), (3, 0, false)], false),
            ("all of a tier that has one behind", (0, 0), &[(0, 0, true), (1, 0, false), (2, 1, true)], true),
        ];
        for (name, own, all, want) in table {
            assert_eq!(count(own, all).allows(50), want, "{name}");
        }
    }

    #[test]
    fn only_what_began_after_the_trip_ends_it() {
        let trip = Trip::new(SEC, REQUEST);
        assert!(!trip.is_ended_by(SEC, REQUEST));
        assert!(trip.is_ended_by(SEC + 1, REQUEST));
        assert!(!trip.is_ended_by(SEC + 1, CONNECT));
        assert!(trip.holds(SEC - 1) && !trip.holds(SEC));
    }
}
