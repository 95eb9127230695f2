//! Slot tables: shares of a frontend's new flows become [`SLOTS`] places.
//!
//! A function of its arguments alone, whatever their order: the same shares give the same table on every node and after
//! every restart. Counts are exact to one slot (largest remainder). Places hold still: a [`base`] table says, from the
//! configured weights alone, whose each place is while all is well, and [`table`] departs from it only as far as the
//! shares demand. So when one origin goes, its places move, and no others.

use crate::{engine::SLOTS, model::OriginId};
use alloc::{vec, vec::Vec};

/// Part of a frontend's new flows. Units are free; only the ratio counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Who gets it.
    pub id: OriginId,
    /// How much.
    pub part: u64,
}

/// Whose each place is while all is well; `weights` are the configured ones of one tier. Empty if they are all zero.
///
/// Origins ask for slots in an order of their own and every slot keeps whom it likes best, so that a configuration with
/// one origin more or less keeps most places too.
#[must_use]
pub fn base(weights: &[Share]) -> Vec<OriginId> {
    let quotas = quotas(weights);
    match quotas.as_slice() {
        [] => Vec::new(),
        [(only, _)] => vec![*only; SLOTS],
        [..] => matched(&quotas),
    }
}

/// The table for `shares`. Empty if they are all zero. Whoever has any share has at least one slot, as long as there
/// are no more than [`SLOTS`] of them. An id that is named twice has both parts.
///
/// The owner of the address chooses first, then who holds a place in the first of the `bases`, the second, and so on;
/// what then is free goes to those who lack slots.
#[must_use]
pub fn table(shares: &[Share], own: Option<OriginId>, bases: &[&[OriginId]]) -> Vec<OriginId> {
    let mut quotas = quotas(shares);
    match quotas.as_slice() {
        [] => return Vec::new(),
        [(only, _)] => return vec![*only; SLOTS],
        [..] => {}
    }
    let mut slots: Vec<Option<OriginId>> = vec![None; SLOTS];
    let order = order_of(own.map_or(u64::MAX, |own| u64::from(own.0)));
    if let Some(own) = own {
        take(&mut slots, &mut quotas, &order, |_| Some(own));
    }
    for base in bases {
        take(&mut slots, &mut quotas, &order, |place| base.get(place).copied());
    }
    take_rest(&mut slots, &mut quotas, &order);
    let first = shares.first().map_or(OriginId(0), |share| share.id);
    slots.into_iter().map(|holder| holder.unwrap_or(first)).collect()
}

/// All places, in an order that `salt` chooses.
fn order_of(salt: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..SLOTS).collect();
    order.sort_by_cached_key(|place| mix(salt, u64::try_from(*place).unwrap_or(0)));
    order
}

/// Gives each free place to whom `holder` names, as long as their quota lasts.
fn take(
    slots: &mut [Option<OriginId>],
    quotas: &mut [(OriginId, usize)],
    order: &[usize],
    holder: impl Fn(usize) -> Option<OriginId>,
) {
    for place in order {
        let Some(slot) = slots.get_mut(*place).filter(|slot| slot.is_none()) else { continue };
        let Some(holder) = holder(*place) else { continue };
        // Quotas are sorted by id.
        let Ok(found) = quotas.binary_search_by_key(&holder, |(id, _)| *id) else { continue };
        if let Some((id, left)) = quotas.get_mut(found).filter(|(_, left)| *left > 0) {
            *left = left.saturating_sub(1);
            *slot = Some(*id);
        }
    }
}

/// Gives each free place to the one that it likes best among those who still lack some.
fn take_rest(slots: &mut [Option<OriginId>], quotas: &mut [(OriginId, usize)], order: &[usize]) {
    for place in order {
        let Some(slot) = slots.get_mut(*place).filter(|slot| slot.is_none()) else { continue };
        let salt = u64::try_from(*place).unwrap_or(0).saturating_add(1);
        let lacking = quotas.iter_mut().filter(|(_, left)| *left > 0);
        if let Some((id, left)) = lacking.max_by_key(|(id, _)| mix(u64::from(id.0), salt)) {
            *left = left.saturating_sub(1);
            *slot = Some(*id);
        }
    }
}

/// Slots for each origin, by id; they sum to [`SLOTS`].
fn quotas(shares: &[Share]) -> Vec<(OriginId, usize)> {
    let mut parts: Vec<Share> = shares.iter().copied().filter(|share| share.part > 0).collect();
    parts.sort_by_key(|share| share.id);
    parts.dedup_by(|later, kept| {
        let same = later.id == kept.id;
        if same {
            kept.part = kept.part.saturating_add(later.part);
        }
        same
    });
    let total: u128 = parts.iter().fold(0, |sum, share| sum.saturating_add(u128::from(share.part)));
    let slots = u128::try_from(SLOTS).unwrap_or(0);
    let mut left = SLOTS;
    let mut remainders = Vec::with_capacity(parts.len());
    let mut quotas: Vec<(OriginId, usize)> = Vec::with_capacity(parts.len());
    for share in &parts {
        let exact = u128::from(share.part).saturating_mul(slots);
        let whole = exact.checked_div(total).and_then(|whole| usize::try_from(whole).ok()).unwrap_or(0);
        remainders.push((core::cmp::Reverse(exact.checked_rem(total).unwrap_or(0)), quotas.len()));
        quotas.push((share.id, whole));
        left = left.saturating_sub(whole);
    }
    remainders.sort_unstable();
    for (_, place) in remainders.into_iter().take(left) {
        if let Some((_, quota)) = quotas.get_mut(place) {
            *quota = quota.saturating_add(1);
        }
    }
    at_least_one(&mut quotas);
    quotas
}

/// Takes from the greatest what those without a slot need.
fn at_least_one(quotas: &mut [(OriginId, usize)]) {
    for place in 0..quotas.len() {
        if quotas.get(place).is_none_or(|(_, quota)| *quota > 0) {
            continue;
        }
        let Some((_, greatest)) = quotas.iter_mut().max_by_key(|(id, quota)| (*quota, core::cmp::Reverse(*id))) else {
            return;
        };
        if *greatest < 2 {
            return;
        }
        *greatest = greatest.saturating_sub(1);
        if let Some((_, quota)) = quotas.get_mut(place) {
            *quota = 1;
        }
    }
}

/// Gale and Shapley, with origins asking and slots choosing. The result does not depend on who asks first.
fn matched(quotas: &[(OriginId, usize)]) -> Vec<OriginId> {
    let mut slots: Vec<Option<usize>> = vec![None; SLOTS];
    let mut walks: Vec<Walk> = quotas.iter().map(|(id, _)| Walk::new(*id)).collect();
    let mut asking: Vec<(usize, usize)> = quotas.iter().map(|(_, quota)| *quota).enumerate().collect();
    while let Some((asker, wanted)) = asking.pop() {
        for _ in 0..wanted {
            ask(asker, quotas, &mut walks, &mut slots, &mut asking);
        }
    }
    let first = quotas.first().map_or(OriginId(0), |(id, _)| *id);
    slots.into_iter().map(|holder| holder.and_then(|holder| quotas.get(holder)).map_or(first, |(id, _)| *id)).collect()
}

/// One origin asks slot after slot until one takes it; whom that slot drops asks again later.
fn ask(
    asker: usize,
    quotas: &[(OriginId, usize)],
    walks: &mut [Walk],
    slots: &mut [Option<usize>],
    asking: &mut Vec<(usize, usize)>,
) {
    let liking = |who: usize, place: usize| {
        quotas.get(who).map(|(id, _)| mix(u64::from(id.0), u64::try_from(place).unwrap_or(0).saturating_add(1)))
    };
    // Each slot is asked at most once by each: the walk visits every place once.
    for _ in 0..SLOTS {
        let Some(place) = walks.get_mut(asker).map(Walk::next) else { return };
        let Some(slot) = slots.get_mut(place) else { return };
        match *slot {
            None => {
                *slot = Some(asker);
                return;
            }
            Some(holder) if holder != asker && liking(asker, place) > liking(holder, place) => {
                *slot = Some(asker);
                asking.push((holder, 1));
                return;
            }
            Some(_) => {}
        }
    }
}

/// An origin's own order of all places: a start and a step, as in Maglev; [`SLOTS`] is prime, so it meets each once.
struct Walk {
    place: usize,
    step: usize,
}

impl Walk {
    fn new(id: OriginId) -> Self {
        let below = |seed: u64, limit: usize| {
            let limit = u64::try_from(limit).unwrap_or(1);
            mix(u64::from(id.0), seed).checked_rem(limit).and_then(|rest| usize::try_from(rest).ok()).unwrap_or(0)
        };
        let steps = SLOTS.saturating_sub(1);
        Self { place: below(u64::MAX, SLOTS), step: below(u64::MAX.saturating_sub(1), steps).saturating_add(1) }
    }

    fn next(&mut self) -> usize {
        let place = self.place;
        self.place = place.saturating_add(self.step).checked_rem(SLOTS).unwrap_or(0);
        place
    }
}

/// `SplitMix64`'s finaliser (Steele, Lea, Flood 2014): a fixed function, so no seed is needed.
pub(crate) const fn mix(id: u64, salt: u64) -> u64 {
    let mut z = id.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.wrapping_mul(0xd1b5_4a32_d192_ed03);
    z = (z ^ (z >> 30_u32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27_u32)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31_u32)
}

#[cfg(test)]
#[path = "tests/steering.rs"]
mod tests;
