//! One origin: its record and its shared words. Streaks, success, capacity, and whether it is usable.

use core::ptr::addr_of_mut;

use health_common::{
    cells::{REQUEST_CELLS, REQUEST_SHIFT, SYN_CELLS, SYN_SHIFT},
    event::{Kind, Why},
    map::Node,
    origin::{Origin, OriginState},
    streak::Streak,
    trip::{self, CONNECT, REQUEST, Trip},
};

use crate::{
    atomic, cells, maps,
    signals::blame,
    tell,
    trip::{attempt, overdue, syns_overdue},
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
        if self.origin.is(Origin::OBSERVE) {
            return true;
        }
        self.origin.is(Origin::PRESENT) && !self.is_blocked() && !self.trip_holds()
    }

    /// Whether userspace has taken it out, and said so recently enough.
    #[inline(always)]
    pub fn is_blocked(&self) -> bool {
        if !self.origin.is(Origin::BLOCKED) {
            return false;
        }
        let lease = self.origin.lease_ns;
        if lease == 0 || maps::coarse_now() < lease {
            return true;
        }
        if self.origin.is(Origin::LEASE_TRIPS) && atomic::load(word!(self, lease_over_ns)) != lease {
            self.lease_is_over(lease);
        }
        false
    }

    /// The daemon did not renew what it had judged from traffic: from now on trials decide.
    #[inline(always)]
    fn lease_is_over(&self, lease: u64) {
        let done = word!(self, lease_over_ns);
        let before = atomic::load(done);
        if before == lease || !atomic::swap_if(done, before, lease) {
            return;
        }
        let now = maps::now();
        let old = Trip(atomic::load(word!(self, trip)));
        // Of an origin that answers no requests only a handshake can say that it is well.
        let streak = match old.0 {
            0 if self.origin.response_timeout_ns == 0 => CONNECT,
            0 => REQUEST,
            _ => old.streak(),
        };
        atomic::store(word!(self, trip), Trip::new(now, streak).0);
        atomic::store(word!(self, trial_next_ns), now);
        tell::tell_here(Kind::LeaseOver, now, self.id);
    }

    /// Whether trips and rescues are computed and counted, but not done.
    #[inline(always)]
    pub fn is_withheld(&self) -> bool {
        self.origin.flags & (Origin::OBSERVE | Origin::FREEZE) != 0
            || maps::node().is_some_and(|node| node.mode & (Node::OBSERVE | Node::FREEZE) != 0)
    }

    #[inline(always)]
    pub fn trip_holds(&self) -> bool {
        Trip(atomic::load(word!(self, trip))).holds(self.origin.clear_before_ns)
    }

    /// A packet of the origin was accepted.
    #[inline(always)]
    pub fn seen(&self, coarse_ns: u64) {
        seen(self.state, coarse_ns);
    }

    /// The same, where nothing else of the origin is needed.
    #[inline(always)]
    pub fn seen_by_id(id: u16, coarse_ns: u64) {
        if let Some(state) = maps::state(id) {
            seen(state, coarse_ns);
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
        cells::done(cells, SYN_CELLS, SYN_SHIFT, syn_ns, self.origin.syn_timeout_ns, maps::coarse_now);
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
        // Compared with the times of SYNs, which the clock's step of 4 ms may make look newer: then a re-steer waits a turn.
        let coarse = now | ANSWERED_STEP;
        if atomic::load(word!(self, connected_ns)) != coarse {
            atomic::store(word!(self, connected_ns), coarse);
        }
        clear(word!(self, syns_open));
        clear(word!(self, connect_failures));
        self.succeeded(CONNECT, syn_ns, now, trial);
    }

    /// A handshake was completed, and its answer did not pass here. Not believed of an origin that is out: a client could claim
    /// it, to keep others from being sent elsewhere.
    #[inline(always)]
    pub fn answered_elsewhere(&self) {
        let connected = word!(self, connected_ns);
        if atomic::load(connected) == 0 && self.is_usable() {
            atomic::swap_if(connected, 0, OriginState::UNSEEN);
        }
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
        let timeout = self.origin.response_timeout_ns;
        cells::done(cells, REQUEST_CELLS, REQUEST_SHIFT, request_ns, timeout, maps::coarse_now);
        // Nothing to take from while answers keep coming.
        let open = word!(self, requests_open);
        if atomic::load(open) != 0 {
            atomic::update(open, |run| Streak(run).remove().0);
        }
    }

    /// The first response byte came in time.
    #[inline(always)]
    pub fn answered(&self, request_ns: u64, now: u64, trial: bool) {
        clear(word!(self, request_failures));
        self.answered_badly(now);
        self.succeeded(REQUEST, request_ns, now, trial);
    }

    /// Whether nothing speaks against it, and nobody waits longer than usual: then an answer in time changes no word but those
    /// of [`Subject::answered_well`].
    #[inline(always)]
    pub fn is_spotless(&self) -> bool {
        !self.origin.is(Origin::BLOCKED)
            && atomic::load(word!(self, trip))
                | atomic::load(word!(self, request_failures))
                | atomic::load(word!(self, requests_open))
                == 0
    }

    /// [`Subject::answered`] and [`Subject::request_done`] of a spotless origin.
    #[inline(always)]
    pub fn answered_well(&self, request_ns: u64, coarse_ns: u64) {
        // SAFETY: as in `word!`.
        let cells = unsafe { addr_of_mut!((*self.state).request_cells) }.cast::<u64>();
        cells::done(cells, REQUEST_CELLS, REQUEST_SHIFT, request_ns, self.origin.response_timeout_ns, || coarse_ns);
        self.answers_at(coarse_ns);
    }

    /// The first response byte came in time, but it began an error: no silence, no success.
    #[inline(always)]
    pub fn answered_badly(&self, now: u64) {
        clear(word!(self, requests_open));
        self.answers_at(now);
    }

    #[inline(always)]
    fn answers_at(&self, now: u64) {
        // Read by epochs of 33 ms, so a step of 4 ms is fine enough and spares the other CPUs a dirty line per answer.
        let coarse = now & !ANSWERED_STEP;
        if atomic::load(word!(self, answered_ns)) != coarse {
            atomic::store(word!(self, answered_ns), coarse);
        }
    }

    /// The answer was an error of the origin.
    #[inline(always)]
    pub fn bad_status(&self, now: u64, client: u32) {
        self.failed(word!(self, request_failures), now, client, Why::Status);
    }

    /// The network says that nobody is there for a SYN that was sent at `syn_ns`.
    #[inline(always)]
    pub fn syn_unreachable(&self, now: u64, client: u32) {
        atomic::update(word!(self, syns_open), |run| Streak(run).remove().0);
        self.failed(word!(self, connect_failures), now, client, Why::Unreachable);
    }

    /// The network says so of an established flow.
    #[inline(always)]
    pub fn flow_unreachable(&self, now: u64, client: u32) {
        self.failed(word!(self, connect_failures), now, client, Why::Unreachable);
    }

    /// Whether no handshake has succeeded since `syn_ns`, and another SYN than the one sent then is overdue as well: what
    /// one lost packet does not bring about. Nor do several, where the network loses many: the one sent then was lost `repeats`
    /// times.
    #[inline(always)]
    pub fn is_silent_since(&self, syn_ns: u64, now: u64, repeats: u8) -> bool {
        if self.origin.syn_timeout_ns == 0 || atomic::load(word!(self, connected_ns)) >= syn_ns {
            return false;
        }
        let overdue = syns_overdue(self.id, now);
        overdue >= 2 && overdue + u32::from(repeats) > self.origin.silent_from
    }

    /// The origin reset a connection before it sent a byte.
    #[inline(always)]
    pub fn reset_early(&self, now: u64, client: u32) {
        self.failed(word!(self, request_failures), now, client, Why::ResetEarly);
    }

    /// One more failure that needs no waiting.
    #[inline(always)]
    fn failed(&self, streak: *mut u64, now: u64, client: u32, why: Why) {
        if let Some(counters) = maps::counters(self.id) {
            blame(if why.is_of_requests() { &mut counters.request_by } else { &mut counters.connect_by }, client);
        }
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

/// Whether an origin is usable. A function of its own to the verifier.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn usable(id: u16) -> u32 {
    u32::from(Subject::find(id).is_some_and(|subject| subject.is_usable()))
}

/// Whether an origin's answers take a way that does not lead past this node, as far as is known. Whom they are for would get
/// them from an address that was never asked for, so no packet on the way there may be rewritten.
#[inline(always)]
pub fn is_one_way(id: u16) -> bool {
    // SAFETY: as in `word!`.
    maps::state(id)
        .is_some_and(|state| atomic::load(unsafe { addr_of_mut!((*state).connected_ns) }) == OriginState::UNSEEN)
}

#[inline(always)]
fn seen(state: *mut OriginState, coarse_ns: u64) {
    // SAFETY: as in `word!`.
    let last = unsafe { addr_of_mut!((*state).last_seen_ns) };
    if atomic::load(last) != coarse_ns {
        atomic::store(last, coarse_ns);
    }
}

/// Sets a word to 0; whether it was something else. Clean words are only read, so that CPUs don't fight over them.
#[inline(always)]
pub fn clear(word: *mut u64) -> bool {
    let old = atomic::load(word);
    old != 0 && atomic::swap_if(word, old, 0)
}
