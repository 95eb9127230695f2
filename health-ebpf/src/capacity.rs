//! How many new connections an origin takes.

use core::ptr::addr_of_mut;

use health_common::event::Kind;

use crate::{
    atomic, maps,
    subject::{Subject, word},
    tell,
};

/// How far ahead of its capacity an origin may be: what comes at once after a trip. Unit: ns.
const BURST_NS: u64 = 100_000_000;
const ADMIT_TRIES: u32 = 4;

impl Subject {
    /// Takes one new connection of its capacity, if there is one: the generic cell rate algorithm (ITU-T I.371 annex A),
    /// one word, no timer. `exceed` takes it anyway. Two that come at the same moment may both lose the swap once.
    #[inline(always)]
    pub fn admits(&self, now: u64, exceed: bool) -> bool {
        let step = self.origin.capacity_ns;
        if step == 0 {
            return true;
        }
        let word = word!(self, admitted_ns);
        for _ in 0..ADMIT_TRIES {
            let old = atomic::load(word);
            // Connections that were not made are not saved up.
            let begins = old.max(now);
            if begins - now > BURST_NS && !exceed {
                return false;
            }
            // Nor is what was taken beyond the capacity owed for ever.
            let next = (begins + step).min(now + 2 * BURST_NS + step);
            if atomic::swap_if(word, old, next) {
                return true;
            }
        }
        exceed
    }

    /// Tells userspace that it is full, once a second.
    #[inline(always)]
    pub fn tell_full(&self, now: u64) {
        if let Some(counters) = maps::counters(self.id) {
            counters.overflow += 1;
        }
        let (told, second) = (word!(self, full_told), now >> 30);
        let last = atomic::load(told);
        if last != second && atomic::swap_if(told, last, second) {
            tell::tell_here(Kind::Full, now, self.id);
        }
    }
}
