//! Which origin a new flow goes to.

use health_common::{
    ARMED_MAX, NONE, SLOTS,
    event::{Kind, Why},
    flow::TRIAL,
    map::{Count, Selector, Table},
    origin::Origin,
};

use crate::{
    maps::{self, SELECTORS, TABLES, count},
    trip::Subject,
};

/// A choice: the origin, and whether this flow is its trial.
#[derive(Clone, Copy)]
pub struct Chosen {
    pub origin: u16,
    pub flags: u16,
}

/// Nothing was planned, or the plan is in motion: leave the flow alone.
const LEAVE: u32 = u32::MAX;

/// Chooses for a flow to `frontend`. `hash` spreads flows over slots. Only a new one `may_try` a tripped origin: one that
/// has waited already is not made to wait again.
#[inline(always)]
pub fn choose(frontend: u16, hash: u32, now: u64, may_try: bool) -> Option<Chosen> {
    let word = choose_word(frontend, hash, now, u32::from(may_try));
    if word == LEAVE { None } else { Some(Chosen { origin: word as u16, flags: (word >> 16) as u16 }) }
}

/// A function of its own to the verifier, which then looks at it once and not at every way that leads here.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn choose_word(frontend: u16, hash: u32, now: u64, may_try: u32) -> u32 {
    let may_try = may_try != 0;
    let Some((table, slot)) = slot(frontend, hash) else { return LEAVE };
    let Some(subject) = Subject::find(slot) else { return LEAVE };
    // Slots don't name a blocked origin. Where its trials go on, they are done by its own address's flows.
    if may_try
        && table.own != slot
        && let Some(own) = Subject::find(table.own)
        && own.origin.is(Origin::TRIALS)
        && own.wins_trial(now)
    {
        return u32::from(table.own) | u32::from(TRIAL) << 16;
    }
    if subject.is_usable() {
        if subject.origin.is(Origin::OBSERVE) && subject.trip_holds() {
            count(Count::WithheldSteer);
            if let Some(counters) = maps::counters(slot) {
                counters.withheld_moves += 1;
            }
        }
        return u32::from(slot);
    }
    if may_try && subject.wins_trial(now) {
        return u32::from(slot) | u32::from(TRIAL) << 16;
    }
    let other = armed(table, hash, slot);
    if other == NONE {
        count(Count::Panic);
        return u32::from(slot);
    }
    if subject.is_first_flow() {
        maps::tell((Kind::FirstFlow, Why::None), now, slot, other, (0, 0), None);
    }
    u32::from(other)
}

/// The slot of the table in force. A new plan may overtake the reader once; twice is counted.
#[inline(always)]
fn slot(frontend: u16, hash: u32) -> Option<(&'static Table, u16)> {
    for _ in 0..2 {
        let selector: Selector = *SELECTORS.get(u32::from(frontend))?;
        if selector.generation() == 0 {
            return None;
        }
        let table = TABLES.get(u32::from(frontend) * 2 + selector.buffer())?;
        let word = *table.slots.get(maps::opaque(hash as usize % SLOTS) & 255)?;
        if word >> 16 == selector.generation() & 0xffff {
            return Some((table, word as u16));
        }
    }
    count(Count::SlotStale);
    None
}

/// The first usable standby; the best ones take turns by the flow's hash.
#[inline(always)]
fn armed(table: &Table, hash: u32, instead_of: u16) -> u16 {
    let (len, best) = (u32::from(table.armed_len), u32::from(table.armed_best));
    let first = if best == 0 { 0 } else { (hash >> 8) % best };
    for i in 0..ARMED_MAX as u32 {
        if i >= len {
            break;
        }
        let turn = if i < best && first + i >= best {
            first + i - best
        } else if i < best {
            first + i
        } else {
            i
        };
        let id = table.armed[(turn as usize) & (ARMED_MAX - 1)];
        if id == instead_of {
            continue;
        }
        if let Some(subject) = Subject::find(id) {
            if subject.is_usable() {
                return id;
            }
        }
    }
    NONE
}
