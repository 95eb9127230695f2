//! Words that all CPUs share.
//!
//! `core::sync::atomic` has no compare-and-swap for this target; the intrinsics compile to `lock` instructions of the BPF
//! instruction set v3 (Linux 5.12).

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd};

/// A compare-and-swap that loses four times in a row gives up: one lost count is better than an unbounded loop.
const TRIES: u32 = 4;

#[inline(always)]
pub fn load(word: *mut u64) -> u64 {
    // SAFETY: callers pass a field of a map value, aligned by `repr(C)`.
    unsafe { word.read_volatile() }
}

#[inline(always)]
pub fn store(word: *mut u64, value: u64) {
    // SAFETY: as for `load`.
    unsafe { word.write_volatile(value) }
}

#[inline(always)]
pub fn add(word: *mut u64, value: u64) {
    // SAFETY: as for `load`.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(word, value) };
}

#[inline(always)]
pub fn swap_if(word: *mut u64, old: u64, new: u64) -> bool {
    // SAFETY: as for `load`.
    unsafe { atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(word, old, new).1 }
}

/// Changes a word by a pure function of it; gives what it became.
#[inline(always)]
pub fn update(word: *mut u64, change: impl Fn(u64) -> u64) -> u64 {
    let mut new = 0;
    for _ in 0..TRIES {
        let old = load(word);
        new = change(old);
        if new == old || swap_if(word, old, new) {
            break;
        }
    }
    new
}
