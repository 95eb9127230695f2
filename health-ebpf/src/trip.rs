//! Trips: when an origin gets no more new flows, and what may speak against it. [`health_common::trip`] with atomics.
//!
//! Global functions: the verifier looks at each once, and not at every way that leads there.

use core::ptr::addr_of_mut;

use health_common::{
    cells::{REQUEST_CELLS, REQUEST_SHIFT, SYN_CELLS, SYN_SHIFT},
    event::{Kind, Why},
    map::Count,
    origin::Origin,
    trip::{CONNECT, REQUEST, Trip},
};

use crate::{
    atomic, cells,
    maps::{self, count},
    subject::{Subject, clear, usable as is_usable, word},
    tell,
};

/// Requests that are overdue and newer than the last answer, if they are enough to trip; else 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn overdue(id: u16, now: u64) -> u32 {
    let Some(subject) = Subject::find(id) else { return 0 };
    let origin = subject.origin;
    let timeout = origin.response_timeout_ns;
    // A cell counts from its end, so that every request in it is overdue.
    let newest = (now.saturating_sub(timeout) >> REQUEST_SHIFT).saturating_sub(1);
    let oldest = (atomic::load(word!(subject, answered_ns)) >> REQUEST_SHIFT) + 1;
    let oldest = oldest.max(now.saturating_sub(timeout + origin.within_ns) >> REQUEST_SHIFT);
    // SAFETY: as in `word!`.
    let ring = unsafe { addr_of_mut!((*subject.state).request_cells) }.cast::<u64>();
    let failures = cells::unanswered::<REQUEST_CELLS>(ring, oldest, newest);
    let silent = now.saturating_sub(atomic::load(word!(subject, last_seen_ns))) >= origin.silence_min_ns;
    if failures >= u32::from(origin.after) && silent { failures } else { 0 }
}

/// SYNs that are overdue, of those that were sent since the last handshake: one that was lost before it is lost alone.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn syns_overdue(id: u16, now: u64) -> u32 {
    let Some(subject) = Subject::find(id) else { return 0 };
    let newest = (now.saturating_sub(subject.origin.syn_timeout_ns) >> SYN_SHIFT).saturating_sub(1);
    let oldest = atomic::load(word!(subject, connected_ns)) >> SYN_SHIFT;
    // SAFETY: as in `word!`.
    let ring = unsafe { addr_of_mut!((*subject.state).syn_cells) }.cast::<u64>();
    cells::unanswered::<SYN_CELLS>(ring, oldest, newest)
}

/// Trips, if nothing speaks against it. `why` is a [`Why`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn attempt(id: u16, now: u64, why: u16, failures: u32, first_bad: u64) -> u32 {
    let why = Why::from_number(why);
    let Some(subject) = Subject::find(id) else { return 0 };
    let origin = subject.origin;
    let word = word!(subject, trip);
    let old = Trip(atomic::load(word));
    if !origin.is(Origin::KERNEL_TRIP) || subject.is_blocked() || old.holds(origin.clear_before_ns) {
        return 0;
    }
    let streak = if why.is_of_requests() { REQUEST } else { CONNECT };
    // A frozen service keeps what is planned. Observed, a trip is noted all the same, for it moves nothing.
    let frozen = subject.is_withheld() && !origin.is(Origin::OBSERVE);
    let allowed = !frozen && guard(&subject);
    if !atomic::swap_if(word, old.0, if allowed { Trip::new(now, streak).0 } else { 0 }) {
        return 0;
    }
    // The streak has had its say, either way: the next one begins anew, so that a withheld trip counts once a streak.
    clear(word!(subject, connect_failures));
    clear(word!(subject, request_failures));
    clear(word!(subject, syns_open));
    clear(word!(subject, requests_open));
    let observes = subject.is_withheld();
    if let Some(counters) = maps::counters(id) {
        if !allowed || observes {
            counters.withheld_trips += 1;
        } else {
            counters.trips += 1;
            match why {
                Why::Refused => counters.trips_refused += 1,
                Why::SynTimeout => counters.trips_syn_timeout += 1,
                Why::ResetEarly => counters.trips_reset_early += 1,
                Why::NoResponse => counters.trips_no_response += 1,
                Why::Unreachable => counters.trips_unreachable += 1,
                Why::Status => counters.trips_http_5xx += 1,
                Why::None => {}
            }
        }
    }
    if !allowed {
        count(Count::WithheldTrip);
        // Streak follows streak while nobody can stand in, and must not flood the ring. Without a trip there is no trial,
        // so that the word for the next one can say when to speak again; what is far ahead is left of a former trip.
        let (next, step) = (word!(subject, trial_next_ns), origin.half_open_after_ns);
        let due = atomic::load(next);
        if (now >= due || due > now + step) && atomic::swap_if(next, due, now + step) {
            tell::tell((Kind::Withheld, why), now, id, health_common::NONE, (failures, first_bad), None);
        }
        return 0;
    }
    // Two CPUs may have tripped the last two at once, each counting on the other: then this one steps back.
    if !observes && !guard(&subject) {
        atomic::store(word, 0);
        count(Count::WithheldTrip);
        return 0;
    }
    atomic::store(word!(subject, trials_failed), 0);
    atomic::store(word!(subject, trials_passed), 0);
    atomic::store(word!(subject, trial_open_ns), 0);
    atomic::store(word!(subject, trial_wait_ns), origin.half_open_after_ns);
    atomic::store(word!(subject, trial_next_ns), now + origin.half_open_after_ns);
    atomic::store(word!(subject, first_flow_due), 1);
    let kind = if observes { Kind::Withheld } else { Kind::Trip };
    tell::tell((kind, why), now, id, health_common::NONE, (failures, first_bad), None);
    1
}

/// Whether the service can do without the origin.
#[inline(always)]
fn guard(subject: &Subject) -> bool {
    let Some(service) = maps::SERVICES.get(u32::from(subject.origin.service)) else { return false };
    let own = (subject.id, subject.origin.tier);
    let Some(scratch) = maps::scratch() else { return false };
    let usable = &mut scratch.tally;
    // SAFETY: a record of words, all of which may be 0.
    unsafe { maps::zero(usable) };
    for i in 0..health_common::SERVICE_ORIGINS_MAX {
        if i as u32 >= service.len {
            break;
        }
        let other = service.origins[i];
        if let Some(record) = maps::origin(other) {
            usable.see(own, (other, record.tier), other != own.0 && is_usable(other) != 0);
        }
    }
    usable.allows(service.max_percent)
}
