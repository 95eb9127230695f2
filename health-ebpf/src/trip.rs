//! Streaks, trips and trials of one origin: [`health_common::trip`] with atomics.

use core::ptr::addr_of_mut;

use health_common::{
    cells::{Cell, REQUEST_CELLS, REQUEST_SHIFT, SYN_CELLS, SYN_SHIFT},
    event::{Kind, Why},
    map::Count,
    origin::{Origin, OriginState},
    streak::Streak,
    trip::{self, CONNECT, REQUEST, Trip, Usable},
};

use crate::{
    atomic, cells,
    maps::{self, count},
};

/// Steps of the time of the last answer. Unit: ns, a power of two less one.
const ANSWERED_STEP: u64 = (1 << 22) - 1;

/// An origin's record and its shared words.
#[derive(Clone, Copy)]
pub struct Subject {
    pub id: u16,
    pub origin: &'static Origin,
    pub state: *mut OriginState,
}

/// A word of the subject's state.
macro_rules! word {
    ($subject:expr, $field:ident) => {
        // SAFETY: `state` points into an array map's value, which is never freed while programs run.
        unsafe { addr_of_mut!((*$subject.state).$field) }
    };
}

pub(crate) use word;

impl Subject {
    #[inline(always)]
    pub fn find(id: u16) -> Option<Self> {
        Some(Self { id, origin: maps::origin(id)?, state: maps::state(id)? })
    }

    /// Whether new flows may go there.
    #[inline(always)]
    pub fn is_usable(&self) -> bool {
        let flags = self.origin.flags & (Origin::PRESENT | Origin::BLOCKED | Origin::OBSERVE);
        if flags & Origin::OBSERVE != 0 {
            return true;
        }
        flags == Origin::PRESENT && !self.trip_holds()
    }

    #[inline(always)]
    pub fn trip_holds(&self) -> bool {
        Trip(atomic::load(word!(self, trip))).holds(self.origin.clear_before_ns)
    }

    /// A packet of the origin was accepted.
    #[inline(always)]
    pub fn seen(&self, coarse_ns: u64) {
        let last = word!(self, last_seen_ns);
        if atomic::load(last) != coarse_ns {
            atomic::store(last, coarse_ns);
        }
    }

    /// A first SYN was sent to it.
    #[inline(always)]
    pub fn syn_sent(&self, now: u64, client: u32) {
        // SAFETY: as in `word!`.
        let cells = unsafe { addr_of_mut!((*self.state).syn_cells) }.cast::<u64>();
        cells::sent(cells, SYN_CELLS, SYN_SHIFT, now, word!(self, syn_timeouts));
        let within = self.origin.within_ns;
        let open = atomic::update(word!(self, syns_open), |run| Streak(run).add(now, client, within).0);
        if Streak(open).count() == u32::from(self.origin.after) {
            atomic::store(word!(self, syns_reached_ns), now);
        }
    }

    /// A SYN sent at `syn_ns` was answered, however.
    #[inline(always)]
    pub fn syn_done(&self, syn_ns: u64) {
        // SAFETY: as in `word!`.
        let cells = unsafe { addr_of_mut!((*self.state).syn_cells) }.cast::<u64>();
        cells::done(cells, SYN_CELLS, SYN_SHIFT, syn_ns, self.origin.syn_timeout_ns);
    }

    /// A SYN was answered where we can't see it, or by nobody who counts: it says nothing.
    #[inline(always)]
    pub fn syn_void(&self, syn_ns: u64) {
        self.syn_done(syn_ns);
        atomic::update(word!(self, syns_open), |run| Streak(run).remove().0);
    }

    /// A SYN was refused.
    #[inline(always)]
    pub fn syn_refused(&self, now: u64, client: u32) {
        atomic::update(word!(self, syns_open), |run| Streak(run).remove().0);
        self.failed(word!(self, connect_failures), now, client, Why::Refused);
    }

    /// A SYN sent at `syn_ns` was accepted.
    #[inline(always)]
    pub fn connected(&self, syn_ns: u64, now: u64, trial: bool) {
        clear(word!(self, syns_open));
        clear(word!(self, connect_failures));
        self.succeeded(CONNECT, syn_ns, now, trial);
    }

    /// The last byte of a request was sent.
    #[inline(always)]
    pub fn request_sent(&self, now: u64, client: u32) {
        // SAFETY: as in `word!`.
        let cells = unsafe { addr_of_mut!((*self.state).request_cells) }.cast::<u64>();
        cells::sent(cells, REQUEST_CELLS, REQUEST_SHIFT, now, word!(self, no_responses));
        // While answers keep coming, nobody asks who waits: the word would only be fought over. Half a timeout after the last
        // one it begins to tell how many clients do.
        let quiet = now.saturating_sub(atomic::load(word!(self, answered_ns)));
        if quiet >= self.origin.response_timeout_ns / 2 {
            let within = self.origin.within_ns;
            atomic::update(word!(self, requests_open), |run| Streak(run).add(now, client, within).0);
        }
    }

    /// A request whose last byte was sent at `request_ns` is over, however.
    #[inline(always)]
    pub fn request_done(&self, request_ns: u64) {
        // SAFETY: as in `word!`.
        let cells = unsafe { addr_of_mut!((*self.state).request_cells) }.cast::<u64>();
        cells::done(cells, REQUEST_CELLS, REQUEST_SHIFT, request_ns, self.origin.response_timeout_ns);
        // Nothing to take from while answers keep coming.
        let open = word!(self, requests_open);
        if atomic::load(open) != 0 {
            atomic::update(open, |run| Streak(run).remove().0);
        }
    }

    /// The first response byte came in time.
    #[inline(always)]
    pub fn answered(&self, request_ns: u64, now: u64, trial: bool) {
        clear(word!(self, requests_open));
        clear(word!(self, request_failures));
        // Read by epochs of 33 ms, so a step of 4 ms is fine enough and spares the other CPUs a dirty line per answer.
        let coarse = now & !ANSWERED_STEP;
        if atomic::load(word!(self, answered_ns)) != coarse {
            atomic::store(word!(self, answered_ns), coarse);
        }
        self.succeeded(REQUEST, request_ns, now, trial);
    }

    /// The origin reset a connection before it sent a byte.
    #[inline(always)]
    pub fn reset_early(&self, now: u64, client: u32) {
        self.failed(word!(self, request_failures), now, client, Why::ResetEarly);
    }

    /// One more failure that needs no waiting.
    #[inline(always)]
    fn failed(&self, streak: *mut u64, now: u64, client: u32, why: Why) {
        let within = self.origin.within_ns;
        let run = Streak(atomic::update(streak, |run| Streak(run).add(now, client, within).0));
        if run.count() == 1 {
            atomic::store(word!(self, first_bad_ns), now);
        }
        if trip::failed_enough(run, self.origin) {
            attempt(self.id, now, why as u16, run.count(), atomic::load(word!(self, first_bad_ns)));
        }
    }

    /// Trips if the SYNs that are still unanswered have waited long enough.
    #[inline(always)]
    pub fn look_at_syns(&self, now: u64) {
        let open = Streak(atomic::load(word!(self, syns_open)));
        // Under the timeout's count nothing is worth a further look.
        if open.count() < u32::from(self.origin.after) {
            return;
        }
        let (reached, seen) = (atomic::load(word!(self, syns_reached_ns)), atomic::load(word!(self, last_seen_ns)));
        if trip::silent_enough(open, reached, seen, now, self.origin) {
            let first = now.saturating_sub(open.age_ns(now));
            attempt(self.id, now, Why::SynTimeout as u16, open.count(), first);
        }
    }

    /// Trips if enough requests are overdue and none was answered since the first of them. Once an epoch.
    #[inline(always)]
    pub fn look_at_requests(&self, now: u64) {
        let timeout = self.origin.response_timeout_ns;
        let looked = word!(self, looked_epoch);
        let (epoch, last) = (now >> REQUEST_SHIFT, atomic::load(looked));
        if timeout == 0 || last == epoch || !atomic::swap_if(looked, last, epoch) {
            return;
        }
        let open = Streak(atomic::load(word!(self, requests_open)));
        if open.spread_at_least(u32::from(self.origin.spread_min)) {
            let failures = overdue(self.id, now);
            if failures > 0 {
                attempt(self.id, now, Why::NoResponse as u16, failures, now.saturating_sub(open.age_ns(now)));
            }
        }
    }

    /// Whether this is the first new flow that goes elsewhere since the trip.
    #[inline(always)]
    pub fn is_first_flow(&self) -> bool {
        clear(word!(self, first_flow_due))
    }
}

/// Sets a word to 0; whether it was something else. Clean words are only read, so that CPUs don't fight over them.
#[inline(always)]
pub fn clear(word: *mut u64) -> bool {
    let old = atomic::load(word);
    old != 0 && atomic::swap_if(word, old, 0)
}

/// Requests that are overdue and newer than the last answer, if they are enough to trip; else 0.
///
/// A function of its own to the verifier, which then looks at it once and not at every way that leads here.
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
    let Some(scratch) = maps::scratch() else { return 0 };
    let tally = &mut scratch.tally;
    *tally = Usable::default();
    for back in 0..REQUEST_CELLS as u64 - 1 {
        let epoch = newest.wrapping_sub(back);
        if epoch < oldest || back > newest {
            break;
        }
        let cell = Cell(atomic::load(cells::place(ring, REQUEST_CELLS, epoch)));
        if cell.is_of(epoch, REQUEST_CELLS) {
            tally.others = tally.others.wrapping_add(cell.unanswered() as u32);
        }
    }
    let failures = tally.others;
    let silent = now.saturating_sub(atomic::load(word!(subject, last_seen_ns))) >= origin.silence_min_ns;
    if failures >= u32::from(origin.after) && silent { failures } else { 0 }
}

/// Trips, if nothing speaks against it. `why` is a [`Why`].
///
/// A function of its own to the verifier, as [`overdue`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn attempt(id: u16, now: u64, why: u16, failures: u32, first_bad: u64) -> u32 {
    let why = Why::from_number(why);
    let Some(subject) = Subject::find(id) else { return 0 };
    let origin = subject.origin;
    let word = word!(subject, trip);
    let old = Trip(atomic::load(word));
    if !origin.is(Origin::KERNEL_TRIP) || origin.is(Origin::BLOCKED) || old.holds(origin.clear_before_ns) {
        return 0;
    }
    let streak = match why {
        Why::ResetEarly | Why::NoResponse | Why::Status => REQUEST,
        Why::Refused | Why::SynTimeout | Why::Unreachable | Why::None => CONNECT,
    };
    let allowed = guard(&subject);
    if !atomic::swap_if(word, old.0, if allowed { Trip::new(now, streak).0 } else { 0 }) {
        return 0;
    }
    // The streak has had its say, either way: the next one begins anew, so that a withheld trip counts once a streak.
    clear(word!(subject, connect_failures));
    clear(word!(subject, request_failures));
    clear(word!(subject, syns_open));
    clear(word!(subject, requests_open));
    let observes = origin.is(Origin::OBSERVE);
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
            maps::tell((Kind::Withheld, why), now, id, health_common::NONE, (failures, first_bad), None);
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
    maps::tell((kind, why), now, id, health_common::NONE, (failures, first_bad), None);
    1
}

/// Whether the service can do without the origin.
#[inline(always)]
fn guard(subject: &Subject) -> bool {
    let Some(service) = maps::SERVICES.get(u32::from(subject.origin.service)) else { return false };
    let own = (subject.id, subject.origin.tier);
    let Some(scratch) = maps::scratch() else { return false };
    let usable = &mut scratch.tally;
    *usable = Usable::default();
    for i in 0..health_common::SERVICE_ORIGINS_MAX {
        if i as u32 >= service.len {
            break;
        }
        let other = service.origins[i];
        if let Some(other) = Subject::find(other) {
            usable.see(own, (other.id, other.origin.tier), other.id != own.0 && other.is_usable());
        }
    }
    usable.allows(service.max_percent)
}
