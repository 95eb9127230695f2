//! Which origin a new flow goes to, and which standby a failed attempt.

use health_common::{
    ARMED_MAX, NONE, SLOTS,
    event::{Kind, Why},
    flow::TRIAL,
    map::{Count, Node, Selector, Table},
    origin::Origin,
};

use crate::{
    maps::{self, SELECTORS, TABLES, count},
    subject::{Subject, usable},
    tell,
};

/// A choice.
#[derive(Clone, Copy)]
pub struct Chosen {
    pub origin: u16,
    /// [`TRIAL`], if this flow is the origin's.
    pub flags: u16,
    /// Place among the armed standbys from which a rescue would go on.
    pub next: u8,
    /// It is the address's own origin, and so would be any other choice.
    pub is_settled: bool,
}

/// What to do with a new flow.
#[derive(Clone, Copy)]
pub enum Choice {
    /// Nothing was planned, or the plan is in motion, or there is nobody: leave the flow alone.
    Leave,
    /// Nobody has capacity for it: refuse it at once.
    Refuse,
    To(Chosen),
}

/// Instead of a time: read the clock if you need it.
pub const NOW: u64 = 0;
/// In a choice's word: [`Chosen::is_settled`].
const SETTLED: u64 = 1 << 40;
const LEAVE: u64 = u64::MAX;
const REFUSE: u64 = u64::MAX - 1;
/// In `how`: for an attempt that failed. Above: place from which to look, and the origin where it failed.
const RESCUE: u64 = 1;

/// Chooses for a new flow to `frontend`. `hash` spreads flows over slots.
#[inline(always)]
pub fn choose(frontend: u16, hash: u32, now: u64) -> Choice {
    unpack(choose_word(frontend, hash, now, 0))
}

/// Chooses a standby for an attempt that failed at `failed`, among those from `next` on: the ones before were tried.
#[inline(always)]
pub fn choose_again(frontend: u16, hash: u32, now: u64, failed: u16, next: u8) -> Option<Chosen> {
    match unpack(choose_word(frontend, hash, now, RESCUE | u64::from(next) << 8 | u64::from(failed) << 16)) {
        Choice::To(chosen) => Some(chosen),
        Choice::Leave | Choice::Refuse => None,
    }
}

#[inline(always)]
fn unpack(word: u64) -> Choice {
    match word {
        LEAVE => Choice::Leave,
        REFUSE => Choice::Refuse,
        _ => Choice::To(Chosen {
            origin: word as u16,
            flags: (word >> 16) as u16,
            next: (word >> 32) as u8,
            is_settled: word & SETTLED != 0,
        }),
    }
}

#[inline(always)]
fn pack(origin: u16, flags: u16, next: u8) -> u64 {
    u64::from(origin) | u64::from(flags) << 16 | u64::from(next) << 32
}

/// A function of its own to the verifier, which then looks at it once and not at every way that leads here.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn choose_word(frontend: u16, hash: u32, now: u64, how: u64) -> u64 {
    let mode = maps::node().map_or(0, |node| node.mode);
    if mode & Node::BYPASS != 0 {
        return LEAVE;
    }
    let Some((table, slot)) = slot(frontend, hash) else { return LEAVE };
    if how & RESCUE != 0 {
        let failed = (how >> 16) as u16;
        let found = armed_word(frontend, hash, now, u32::from(failed) | ((how >> 8) as u32 & 0xff) << 16);
        let (id, next) = (found as u16, (found >> 16) as u8);
        if id == NONE {
            return LEAVE;
        }
        first_flow(failed, id, now);
        return pack(id, 0, next);
    }
    if mode & Node::OBSERVE != 0 {
        // Not computed to the end: a choice takes of a standby's room, and may win a trial that nobody would do.
        if slot != table.own || usable(slot) == 0 {
            count(Count::WithheldSteer);
        }
        return LEAVE;
    }
    for_new_flow(table, frontend, slot, hash, now)
}

#[inline(always)]
fn for_new_flow(table: &Table, frontend: u16, slot: u16, hash: u32, now: u64) -> u64 {
    let Some(subject) = Subject::find(slot) else { return LEAVE };
    let is_usable = usable(slot) != 0;
    let is_observed = subject.origin.is(Origin::OBSERVE);
    // What nearly all connections get.
    if is_usable && table.own == slot && !is_observed {
        return pack(slot, 0, 0) | if table.flags & Table::OWN != 0 { SETTLED } else { 0 };
    }
    let now = if now == NOW { maps::now() } else { now };
    // Slots don't name a blocked origin. Where its trials go on, they are done by its own address's flows. And once nobody has
    // renewed its lease they try it as well, and are its own again if it is well: no plan will say so.
    if table.own != slot
        && let Some(own) = Subject::find(table.own)
        && own.origin.is(Origin::BLOCKED)
    {
        if own.wins_trial(now) {
            return pack(table.own, TRIAL, 0);
        }
        if own.origin.lease_ns != 0 && usable(table.own) != 0 {
            return pack(table.own, 0, 0);
        }
    }
    if is_usable {
        if is_observed && subject.trip_holds() {
            count(Count::WithheldSteer);
            if let Some(counters) = maps::counters(slot) {
                counters.withheld_moves += 1;
            }
        }
        // An address is itself, whatever its capacity: only what is sent elsewhere is bounded.
        if table.own == slot || candidate(slot, now, 0) == ADMITTED {
            return pack(slot, 0, 0);
        }
    } else if subject.wins_trial(now) {
        return pack(slot, TRIAL, 0);
    }
    let found =
        armed_word(frontend, hash, now, u32::from(slot) | if table.flags & Table::EXCEED != 0 { EXCEED } else { 0 });
    let (id, next) = (found as u16, (found >> 16) as u8);
    if id != NONE {
        first_flow(slot, id, now);
        return pack(id, 0, next);
    }
    if found & WAS_FULL != 0 || is_usable {
        if table.flags & Table::REFUSE != 0 {
            count(Count::OverflowRefused);
            return REFUSE;
        }
        return pack(slot, 0, 0);
    }
    count(Count::Panic);
    if table.flags & Table::NO_PANIC != 0 { REFUSE } else { pack(slot, 0, 0) }
}

/// Whether a usable standby of the frontend could take what fails at `origin`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn standby(frontend: u16, origin: u16) -> u32 {
    let Some((table, _)) = slot(frontend, 0) else { return 0 };
    for i in 0..ARMED_MAX {
        if i as u32 >= u32::from(table.armed_len) {
            break;
        }
        let id = table.armed[i];
        if id != origin && usable(id) != 0 {
            return 1;
        }
    }
    0
}

/// [`standby`], as a question.
#[inline(always)]
pub fn has_standby(frontend: u16, origin: u16) -> bool {
    standby(frontend, origin) != 0
}

/// Tells of the first flow since the trip that goes elsewhere.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn first_flow(from: u16, to: u16, now: u64) -> u32 {
    let first = Subject::find(from).is_some_and(|subject| subject.is_first_flow());
    if first {
        tell::tell((Kind::FirstFlow, Why::None), now, from, to, (0, 0), None);
    }
    u32::from(first)
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

const ADMITTED: u32 = 1;
const FULL: u32 = 2;

/// Whether an origin is usable, and has room for one more connection, which it then takes.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn candidate(id: u16, now: u64, exceed: u32) -> u32 {
    match Subject::find(id) {
        Some(subject) if subject.is_usable() => {
            if subject.admits(now, exceed != 0) {
                return ADMITTED;
            }
            subject.tell_full(now);
            FULL
        }
        _ => 0,
    }
}

/// In the argument of [`armed_word`]: capacity is no bound.
const EXCEED: u32 = 1 << 31;
/// In its answer: a standby was passed over for want of capacity.
const WAS_FULL: u32 = 1 << 31;
const FULL_TO_WAS: u32 = WAS_FULL.trailing_zeros() - FULL.trailing_zeros();

/// The first usable standby; the best ones take turns by the flow's hash. `how`: the origin that it is wanted instead of, and
/// above it the place from which to look. Gives the origin, or [`NONE`], and above it the place behind its own.
///
/// A function of its own to the verifier: its loop would be walked for each way that leads here.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn armed_word(frontend: u16, hash: u32, now: u64, how: u32) -> u32 {
    let Some((table, _)) = slot(frontend, hash) else { return u32::from(NONE) };
    // Read again in each turn: the stack has no room for them on Linux before 6.8.
    // SAFETY: both are numbers in the table, which lives in a map.
    let len = || u32::from(unsafe { core::ptr::addr_of!(table.armed_len).read_volatile() });
    // SAFETY: as above.
    let best = || u32::from(unsafe { core::ptr::addr_of!(table.armed_best).read_volatile() });
    let first = match best() {
        0 => 0,
        best => (hash >> 8) % best,
    };
    let mut full = 0;
    for i in 0..ARMED_MAX as u32 {
        let best = best();
        if i >= len() {
            break;
        }
        // Taken apart in each turn, too.
        let how = maps::opaque(how as usize) as u32;
        if i < how >> 16 & 0xff {
            continue;
        }
        let turn = if i < best && first + i >= best {
            first + i - best
        } else if i < best {
            first + i
        } else {
            i
        };
        let id = table.armed[maps::opaque(turn as usize) & (ARMED_MAX - 1)];
        full = maps::opaque(full as usize) as u32;
        if id == how as u16 {
            continue;
        }
        let found = candidate(id, now, how & EXCEED);
        if found == ADMITTED {
            return u32::from(id) | (i + 1) << 16 | full;
        }
        // Not by a branch, of which each way would be walked to the end.
        full |= (found & FULL) << FULL_TO_WAS;
    }
    u32::from(NONE) | full
}
