//! What userspace is told, through the ring buffer.

use health_common::{
    event::{Event, Kind, Why},
    map::Count,
    net::Endpoint,
};

use crate::maps::{EVENTS, copy, count, scratch, zero};

/// Tells userspace. An event that doesn't fit is counted. `node` is noted in the scratch room.
#[inline(always)]
pub fn tell(what: (Kind, Why), time_ns: u64, origin: u16, other: u16, failures: (u32, u64), node: Option<&Endpoint>) {
    let mut what = what.0 as u32 | (what.1 as u32) << 8;
    if let Some(node) = node
        && let Some(scratch) = scratch()
    {
        scratch.told = *node;
        what |= WITH_NODE;
    }
    told(what, time_ns, u32::from(origin) | u32::from(other) << 16, failures.0, failures.1);
}

/// Notes the node's side for [`tell_of_noted`].
#[inline(always)]
pub fn note_for_event(node: &Endpoint) {
    if let Some(scratch) = scratch() {
        scratch.told = *node;
    }
}

/// [`tell`], with the node's side as it was noted.
#[inline(always)]
pub fn tell_of_noted(what: (Kind, Why), time_ns: u64, origin: u16, other: u16) {
    let what = what.0 as u32 | (what.1 as u32) << 8 | WITH_NODE;
    told(what, time_ns, u32::from(origin) | u32::from(other) << 16, 0, 0);
}

const WITH_NODE: u32 = 1 << 16;

/// [`tell`] of an origin, in place: where functions are so deep that another one has no stack left (Linux before 6.8).
#[inline(always)]
pub fn tell_here(kind: Kind, time_ns: u64, origin: u16) {
    let none = u32::from(health_common::NONE) << 16;
    send(kind as u32, time_ns, u32::from(origin) | none, 0, 0);
}

/// A function of its own, for the sake of the stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn told(what: u32, time_ns: u64, origins: u32, failures: u32, first_bad_ns: u64) -> u32 {
    send(what, time_ns, origins, failures, first_bad_ns)
}

#[inline(always)]
fn send(what: u32, time_ns: u64, origins: u32, failures: u32, first_bad_ns: u64) -> u32 {
    let Some(mut entry) = EVENTS.reserve::<Event>(0) else {
        count(Count::EventLost);
        return 0;
    };
    let event = entry.as_mut_ptr();
    // SAFETY: the entry is ours until it is submitted; each field is written, so none is sent as it was. Written one by one
    // because a whole event would be built on the stack first.
    unsafe {
        (*event).time_ns = time_ns;
        (*event).first_bad_ns = first_bad_ns;
        (*event).kind = what as u16 & 0xff;
        (*event).why = (what >> 8) as u16 & 0xff;
        (*event).origin = origins as u16;
        (*event).other = (origins >> 16) as u16;
        (*event).count = failures;
        let node = core::ptr::addr_of_mut!((*event).node);
        zero(node);
        if what & WITH_NODE != 0
            && let Some(scratch) = scratch()
        {
            copy(&scratch.told, node);
        }
    }
    entry.submit(0);
    1
}
