//! Consistent tables for virtual addresses: Maglev hashing (Eisenbud et al., NSDI 2016, §3.4), with weights.
//!
//! Every origin walks the places in an order of its own, made of its address alone, and takes the next free one in its turn;
//! who weighs less has fewer turns. So all nodes that agree on who is usable make the same table, whatever numbers they gave
//! the origins and in whatever order their files name them, and an origin that comes or goes changes few places of the others.

use crate::{
    engine::SLOTS,
    model::OriginId,
    steering::{self, Share},
};
use alloc::{vec, vec::Vec};

/// One origin's claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Made of its address and port: [`crate::model::OriginSpec::key`].
    pub key: u64,
    /// Who, and how much.
    pub share: Share,
}

/// A claim that is being served.
struct Walker {
    claim: Claim,
    /// Next place of its walk.
    place: usize,
    step: usize,
    /// Rounds' worth of parts after which its next turn comes.
    due: u64,
}

impl Walker {
    fn new(claim: Claim) -> Self {
        let below = |seed: u64, limit: usize| {
            let limit = u64::try_from(limit).unwrap_or(1);
            let rest = steering::mix(claim.key, seed).checked_rem(limit);
            rest.and_then(|rest| usize::try_from(rest).ok()).unwrap_or(0)
        };
        // 251 is prime, so every step from 1 to 250 meets every place once.
        let step = below(2, SLOTS.saturating_sub(1)).saturating_add(1);
        Self { claim, place: below(1, SLOTS), step, due: 0 }
    }

    fn next(&mut self) -> usize {
        let place = self.place;
        self.place = place.saturating_add(self.step).checked_rem(SLOTS).unwrap_or(0);
        place
    }
}

/// The table of these claims: [`SLOTS`] places, or none where nobody claims anything. Whoever has any share has a place, as
/// long as there are no more than [`SLOTS`] of them.
#[must_use]
pub fn table(claims: &[Claim]) -> Vec<OriginId> {
    let mut walkers: Vec<Walker> =
        claims.iter().filter(|claim| claim.share.part > 0).copied().map(Walker::new).collect();
    walkers.sort_by_key(|walker| (walker.claim.key, walker.claim.share.id));
    walkers.truncate(SLOTS);
    let Some(greatest) = walkers.iter().map(|walker| walker.claim.share.part).max() else { return Vec::new() };
    let mut slots: Vec<Option<usize>> = vec![None; SLOTS];
    let mut left = SLOTS;
    // In the first round everybody has a turn, so whoever has any share has a place. The greatest claim has one in each, so
    // there are at most as many rounds as places.
    let mut round = 0_u64;
    while left > 0 {
        round = round.saturating_add(1);
        for (number, walker) in walkers.iter_mut().enumerate() {
            if left == 0 || round.saturating_mul(walker.claim.share.part) < walker.due {
                continue;
            }
            walker.due = walker.due.saturating_add(greatest);
            if claim_next(&mut slots, walker, number) {
                left = left.saturating_sub(1);
            }
        }
    }
    let holder = |number: Option<usize>| number.and_then(|number| walkers.get(number));
    slots.iter().map(|number| holder(*number).map_or(OriginId::NONE, |walker| walker.claim.share.id)).collect()
}

/// Takes the walker's next free place. Each place is met once, so this ends.
fn claim_next(slots: &mut [Option<usize>], walker: &mut Walker, number: usize) -> bool {
    for _ in 0..SLOTS {
        let place = walker.next();
        if let Some(slot) = slots.get_mut(place).filter(|slot| slot.is_none()) {
            *slot = Some(number);
            return true;
        }
    }
    false
}

#[cfg(test)]
#[path = "tests/maglev.rs"]
mod tests;
