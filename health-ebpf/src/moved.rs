//! Redirected flows: notes of who goes where, made, used, given back.

use aya_ebpf::{bindings::BPF_NOEXIST, programs::TcContext};
use health_common::{flow::Moved, map::Count, net::FlowKey};

use crate::{
    maps::{self, Family, count},
    nat::{self, Rewrite},
    observe::PASS,
    parse::Packet,
};

/// `-EEXIST`, as helpers return it.
const EEXIST: i32 = -17;

/// A redirection that nothing else names is held for this long after its last packet. Unit: ns.
const HELD_NS: u64 = 60_000_000_000;

/// Sends a packet of a redirected flow where it goes.
#[inline(always)]
pub fn send<F: Family>(ctx: &TcContext, packet: &Packet<F::Key>) -> i32
where
    F::Key: Rewrite,
{
    let Some(moved) = F::moved_out().get_ptr_mut(packet.key) else {
        return PASS;
    };
    // SAFETY: the map is preallocated; the entry of a live flow is not reused.
    let moved = unsafe { &mut *moved };
    moved.seen_ns = maps::coarse_now();
    nat::send_to(ctx, &packet.key, packet.l4, &moved.to, moved.ifindex).unwrap_or(PASS)
}

/// Notes the redirection of a tuple, both ways. False when the standby's tuple is taken, its way is unknown, or the maps
/// are full: then the flow stays where it is.
#[inline(always)]
pub fn relocate<F: Family>(key: &F::Key, to: u16) -> bool
where
    F::Key: Rewrite,
{
    let Some(origin) = maps::origin(to) else { return false };
    if origin.ifindex == 0 {
        count(Count::NatFailed);
        return false;
    }
    let there = key.with_remote(&origin.endpoint);
    if F::flows().get_ptr(there).is_some() || F::half_open().get_ptr(there).is_some() || !is_free::<F>(&there) {
        count(Count::NatCollision);
        return false;
    }
    let Some(scratch) = maps::scratch() else { return false };
    let moved = &mut scratch.moved;
    *moved = Moved { to: key.remote(), ifindex: origin.ifindex, seen_ns: maps::coarse_now(), ..Moved::default() };
    match F::moved_back().insert(there, &*moved, u64::from(BPF_NOEXIST)) {
        Ok(()) => {}
        Err(EEXIST) => {
            count(Count::NatCollision);
            return false;
        }
        Err(_) => {
            count(Count::MovedFull);
            return false;
        }
    }
    moved.to = origin.endpoint;
    if F::moved_out().insert(key, &*moved, 0).is_err() {
        maps::removed(F::moved_back().remove(there));
        count(Count::MovedFull);
        return false;
    }
    true
}

/// Whether no redirection uses the origin's side of a tuple. One that has ended gives it back.
#[inline(always)]
pub fn is_free<F: Family>(there: &F::Key) -> bool
where
    F::Key: Rewrite,
{
    let Some(back) = F::moved_back().get_ptr(there) else { return true };
    // SAFETY: the map is preallocated.
    let primary = there.with_remote(unsafe { &(*back).to });
    if let Some(out) = F::moved_out().get_ptr(primary) {
        // SAFETY: as above.
        let (ended_ns, seen_ns) = unsafe { ((*out).ended_ns, (*out).seen_ns) };
        let named = F::flows().get_ptr(primary).is_some() || F::half_open().get_ptr(primary).is_some();
        if ended_ns == 0 && (named || maps::coarse_now().saturating_sub(seen_ns) < HELD_NS) {
            return false;
        }
        maps::removed(F::moved_out().remove(primary));
    }
    maps::removed(F::moved_back().remove(there));
    true
}

/// Forgets an older flow of a tuple, and its redirection.
#[inline(always)]
pub fn forget<F: Family>(key: &F::Key)
where
    F::Key: Rewrite,
{
    if F::flows().get_ptr(key).is_some() {
        maps::removed(F::flows().remove(key));
    }
    if let Some(moved) = F::moved_out().get_ptr(key) {
        // SAFETY: the map is preallocated.
        let there = key.with_remote(unsafe { &(*moved).to });
        maps::removed(F::moved_back().remove(there));
        maps::removed(F::moved_out().remove(key));
    }
}

/// The flow is over. Its redirection stays for the last packets, until userspace or a new SYN takes it away.
#[inline(always)]
pub fn end<F: Family>(key: &F::Key, moved: bool) {
    if moved && let Some(moved) = F::moved_out().get_ptr_mut(key) {
        // SAFETY: the map is preallocated.
        unsafe { (*moved).ended_ns = maps::coarse_now() };
    }
    maps::removed(F::flows().remove(key));
}
