//! What the connect hook chose for sockets, by their cookies: for TC egress, `getpeername` and the end of the socket.

use aya_ebpf::{
    bindings::{BPF_EXIST, BPF_NOEXIST},
    macros::map,
    maps::{Array, HashMap},
};
use health_common::flow::Choice;

use crate::atomic;

#[map(name = "sockets")]
static SOCKETS: HashMap<u64, Choice> = HashMap::with_max_entries(262_144, 0);
#[map(name = "notes")]
static NOTES: Array<u64> = Array::with_max_entries(1, 0);

/// What the connect hook noted for a socket.
///
/// Entries are written before the connection exists, and not changed until the socket connects again.
#[inline(always)]
pub fn find(cookie: impl Fn() -> u64) -> Option<Choice> {
    if atomic::load(NOTES.get_ptr_mut(0)?) == 0 {
        return None;
    }
    // SAFETY: as said above.
    unsafe { SOCKETS.get(cookie()) }.copied()
}

/// Notes a choice for a socket. False when there is no room.
#[inline(always)]
pub fn leave(cookie: u64, choice: &Choice) -> bool {
    let Some(notes) = NOTES.get_ptr_mut(0) else { return false };
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
    let Some(notes) = NOTES.get_ptr_mut(0) else { return };
    if atomic::load(notes) != 0 && SOCKETS.remove(cookie()).is_ok() {
        atomic::add(notes, 1_u64.wrapping_neg());
    }
}
