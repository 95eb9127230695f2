//! What the connect hook chose for sockets, by their cookies: for TC egress, `getpeername` and the end of the socket.

use aya_ebpf::{
    bindings::{BPF_EXIST, BPF_NOEXIST},
    macros::map,
    maps::{Array, HashMap},
};
use health_common::{
    flow::Choice,
    map::{NOTES_KERNEL, NOTES_USER},
};

use crate::atomic;

#[map(name = "sockets")]
static SOCKETS: HashMap<u64, Choice> = HashMap::with_max_entries(262_144, 0);
#[map(name = "notes")]
static NOTES: Array<u64> = Array::with_max_entries(2, 0);

/// Whether there is any note.
#[inline(always)]
fn are_any() -> bool {
    match (NOTES.get_ptr_mut(NOTES_KERNEL), NOTES.get_ptr_mut(NOTES_USER)) {
        (Some(kernel), Some(user)) => atomic::load(kernel).wrapping_add(atomic::load(user)) != 0,
        _ => false,
    }
}

/// What the connect hook noted for a socket.
///
/// Entries are written before the connection exists, and not changed until the socket connects again.
#[inline(always)]
pub fn find(cookie: impl Fn() -> u64) -> Option<Choice> {
    if !are_any() {
        return None;
    }
    // SAFETY: as said above.
    unsafe { SOCKETS.get(cookie()) }.copied()
}

/// Notes a choice for a socket. False when there is no room.
#[inline(always)]
pub fn leave(cookie: u64, choice: &Choice) -> bool {
    let Some(notes) = NOTES.get_ptr_mut(NOTES_KERNEL) else { return false };
    // Counted first: whoever looks must not be told that there is nothing.
    atomic::add(notes, 1);
    if SOCKETS.insert(cookie, choice, u64::from(BPF_NOEXIST)).is_ok() {
        return true;
    }
    atomic::add(notes, 1_u64.wrapping_neg());
    SOCKETS.insert(cookie, choice, u64::from(BPF_EXIST)).is_ok()
}

/// Forgets a socket's choice.
#[inline(always)]
pub fn forget(cookie: impl Fn() -> u64) {
    let Some(notes) = NOTES.get_ptr_mut(NOTES_KERNEL) else { return };
    if are_any() && SOCKETS.remove(cookie()).is_ok() {
        atomic::add(notes, 1_u64.wrapping_neg());
    }
}
