//! Attempts counted by the time at which they were sent: [`health_common::cells`] with atomics.

use health_common::cells::{Cell, ONE_DONE, ONE_SENT};

use crate::{atomic, maps};

/// The place of a time in a ring whose length is a power of two.
#[inline(always)]
pub fn place(ring: *mut u64, cells: usize, epoch: u64) -> *mut u64 {
    // SAFETY: the index is below the ring's length.
    unsafe { ring.add((epoch as usize) & (cells - 1)) }
}

/// One more attempt. A cell of an older epoch is folded into the total first.
#[inline(always)]
pub fn sent(ring: *mut u64, cells: usize, shift: u32, now: u64, folded: *mut u64) {
    let epoch = now >> shift;
    let cell = place(ring, cells, epoch);
    let old = Cell(atomic::load(cell));
    if !old.is_of(epoch, cells) && atomic::swap_if(cell, old.0, Cell::new(epoch, cells).0) {
        atomic::add(folded, old.unanswered());
    }
    atomic::add(cell, ONE_SENT);
}

/// An attempt is over. In a cell that counts as overdue already it stays a failure: totals never step back.
#[inline(always)]
pub fn done(ring: *mut u64, cells: usize, shift: u32, sent_ns: u64, timeout_ns: u64, now: impl Fn() -> u64) {
    let epoch = sent_ns >> shift;
    let overdue_ns = ((epoch + 1) << shift).saturating_add(timeout_ns);
    if timeout_ns != 0 && now() >= overdue_ns {
        return;
    }
    let cell = place(ring, cells, epoch);
    if Cell(atomic::load(cell)).is_of(epoch, cells) {
        atomic::add(cell, ONE_DONE);
    }
}

/// What is unanswered of the epochs from `oldest` to `newest`; of the newest of them, if they are more than a ring holds.
#[inline(always)]
pub fn unanswered<const CELLS: usize>(ring: *mut u64, oldest: u64, newest: u64) -> u32 {
    let Some(scratch) = maps::scratch() else { return 0 };
    let tally = &mut scratch.tally;
    // SAFETY: a record of words, all of which may be 0.
    unsafe { maps::zero(tally) };
    let epochs = (newest + 1).saturating_sub(oldest);
    // One cell is the next one to be used anew.
    for back in 0..CELLS as u64 - 1 {
        if back >= epochs {
            break;
        }
        let epoch = newest.wrapping_sub(back);
        let cell = Cell(atomic::load(place(ring, CELLS, epoch)));
        if cell.is_of(epoch, CELLS) {
            tally.others = tally.others.wrapping_add(cell.unanswered() as u32);
        }
    }
    tally.others
}
