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
pub fn done(ring: *mut u64, cells: usize, shift: u32, sent_ns: u64, timeout_ns: u64) {
    let epoch = sent_ns >> shift;
    let overdue_ns = ((epoch + 1) << shift).saturating_add(timeout_ns);
    if timeout_ns != 0 && maps::coarse_now() >= overdue_ns {
        return;
    }
    let cell = place(ring, cells, epoch);
    if Cell(atomic::load(cell)).is_of(epoch, cells) {
        atomic::add(cell, ONE_DONE);
    }
}
