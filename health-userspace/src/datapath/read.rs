//! Reads: what the kernel counted and decided.

use std::collections::BTreeMap;

use health_common::{
    cells::{self, REQUEST_SHIFT, SYN_SHIFT},
    histogram::BUCKETS,
    map::{self, Count},
    origin::{Counters, Origin, OriginState},
    streak::{SPREAD_BITS, Streak as Run},
    trip::{REQUEST, Trip},
};
use health_core::{
    Timestamp,
    clients::{CLIENTS, Clients},
    engine::{KernelView, Streak, TripView},
};

use super::{
    DatapathError,
    maps::{self, Maps},
};

const _: () = assert!(CLIENTS == SPREAD_BITS as usize);

/// All that the kernel knows of one origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginReading {
    /// Sums over CPUs, without the histograms.
    pub signals: Counters,
    /// Handshake RTT, summed over CPUs.
    pub rtt: [u64; BUCKETS],
    /// Time to first byte, summed over CPUs.
    pub ttfb: [u64; BUCKETS],
    /// SYNs that outlived the timeout unanswered.
    pub syn_timeout: u64,
    /// Requests that outlived theirs.
    pub no_response: u64,
    /// Whose connections failed since the maps were made.
    pub connect_by: Clients,
    /// Whose requests failed.
    pub request_by: Clients,
    /// Who has sent a SYN since the last accepted answer: a bit for each client.
    pub syn_waits: u32,
    /// Who waits for a response since the last one.
    pub request_waits: u32,
    /// Last packet accepted from it.
    pub last_seen: Timestamp,
    /// Trip word and its surroundings.
    pub kernel: KernelView,
    /// Time of the next trial, while tripped.
    pub trial_next: Timestamp,
    /// The wait before it. Unit: ns.
    pub trial_wait_ns: u64,
}

impl OriginReading {
    /// Connections that are open, as far as the flow table saw them begin and end.
    #[must_use]
    pub const fn open(&self) -> u64 {
        self.signals.opened.saturating_sub(self.signals.closed)
    }

    /// Every counter by name.
    pub fn counted(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let own = [("syn_timeout", self.syn_timeout), ("no_response", self.no_response), ("conns_open", self.open())];
        Counters::NAMES.iter().copied().zip(self.signals.signals()).chain(own)
    }

    /// The same, and how many clients were behind failures since the maps were made.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let spread = self.connect_by.plus(&self.request_by).spread();
        self.counted().chain([("failure_spread", spread.into())])
    }
}

/// Reads one origin.
pub(super) fn origin(maps: &Maps, id: u16, now: Timestamp) -> Result<OriginReading, DatapathError> {
    let index = u32::from(id);
    let record = maps.origins.get(&index, 0).map_err(|source| maps::read_error(map::ORIGINS, source))?;
    let state = maps.states.get(&index, 0).map_err(|source| maps::read_error(map::STATES, source))?;
    let cpus = maps.counters.get(&index, 0).map_err(|source| maps::read_error(map::COUNTERS, source))?;
    let mut signals = Counters::ZERO;
    let (mut rtt, mut ttfb) = ([0; BUCKETS], [0; BUCKETS]);
    let (mut connect_by, mut request_by) = (Clients::NONE, Clients::NONE);
    for cpu in cpus.iter() {
        signals.add_signals(cpu);
        widen(&mut rtt, &cpu.rtt);
        widen(&mut ttfb, &cpu.ttfb);
        connect_by = connect_by.plus(&Clients(cpu.connect_by));
        request_by = request_by.plus(&Clients(cpu.request_by));
    }
    Ok(OriginReading {
        signals,
        rtt,
        ttfb,
        syn_timeout: overdue(state.syn_timeouts, &state.syn_cells, SYN_SHIFT, now, record.syn_timeout_ns),
        no_response: overdue(state.no_responses, &state.request_cells, REQUEST_SHIFT, now, record.response_timeout_ns),
        connect_by,
        request_by,
        syn_waits: Run(state.syns_open).clients(),
        request_waits: Run(state.requests_open).clients(),
        last_seen: Timestamp(state.last_seen_ns),
        kernel: view(&record, &state, now),
        trial_next: Timestamp(state.trial_next_ns),
        trial_wait_ns: state.trial_wait_ns,
    })
}

fn widen(to: &mut [u64; BUCKETS], from: &[u32; BUCKETS]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += u64::from(*from);
    }
}

fn overdue(folded: u64, ring: &[u64], shift: u32, now: Timestamp, timeout_ns: u64) -> u64 {
    // Without a timeout, what is unanswered proves nothing; what was folded then is left out too, by whoever differences.
    let timeout = if timeout_ns == 0 { u64::MAX } else { timeout_ns };
    folded + if timeout == u64::MAX { 0 } else { cells::overdue(ring, shift, now.0, timeout) }
}

/// Whether a former daemon's word still keeps it out. An order that ran out leaves nothing; a lease that did leaves a trip, once
/// a packet has met it, and from then on the trip tells.
const fn is_blocked(record: &Origin, state: &OriginState, now: Timestamp) -> bool {
    let over = record.lease_ns != 0 && record.lease_ns <= now.0;
    let acted_on = !record.is(Origin::LEASE_TRIPS) || state.lease_over_ns == record.lease_ns;
    record.is(Origin::BLOCKED) && !(over && acted_on)
}

fn view(record: &Origin, state: &OriginState, now: Timestamp) -> KernelView {
    let trip = Trip(state.trip);
    let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let in_force = trip.holds(record.clear_before_ns);
    KernelView {
        // Trials of a blocked origin without a trip are told by the same numbers, under the time at which they began.
        trip: in_force.then(|| TripView {
            streak: if trip.streak() == REQUEST { Streak::Request } else { Streak::Connect },
            since: Timestamp(trip.since_ns()),
            trials_failed: count(state.trials_failed),
            trials_passed: count(state.trials_passed),
        }),
        blocked: is_blocked(record, state, now),
        leased: record.is(Origin::LEASE_TRIPS),
    }
}

/// Node-wide counters, summed over CPUs.
pub(super) fn counts(maps: &Maps) -> Result<Vec<(Count, u64)>, DatapathError> {
    let mut counts = Vec::with_capacity(Count::ALL.len());
    for &count in Count::ALL {
        let cpus = maps.counts.get(&(count as u32), 0).map_err(|source| maps::read_error(map::COUNTS, source))?;
        counts.push((count, cpus.iter().sum()));
    }
    Ok(counts)
}

/// Slots of each origin in a frontend's table in force. Empty before the first plan.
pub(super) fn shares(maps: &Maps, frontend: u16) -> Result<BTreeMap<u16, u32>, DatapathError> {
    let index = u32::from(frontend);
    let selector = maps.selectors.get(&index, 0).map_err(|source| maps::read_error(map::SELECTORS, source))?;
    let mut shares = BTreeMap::new();
    if selector.generation() == 0 {
        return Ok(shares);
    }
    let table =
        maps.tables.get(&(index * 2 + selector.buffer()), 0).map_err(|source| maps::read_error(map::TABLES, source))?;
    for slot in table.slots {
        *shares.entry(u16::try_from(slot & 0xffff).unwrap_or(health_common::NONE)).or_default() += 1;
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_out_after_its_lease() {
        let (lease_ns, now) = (100, Timestamp(100));
        let at = |flags, lease_over_ns| {
            let record = Origin { flags: Origin::BLOCKED | flags, lease_ns, ..Origin::default() };
            let state = OriginState { lease_over_ns, ..OriginState::NEW };
            (is_blocked(&record, &state, Timestamp(99)), is_blocked(&record, &state, now))
        };
        assert_eq!(at(0, 0), (true, false), "an order");
        assert_eq!(at(Origin::LEASE_TRIPS, 0), (true, true), "no packet has met the end of the lease yet");
        assert_eq!(at(Origin::LEASE_TRIPS, lease_ns), (true, false), "the kernel has tripped it, or cleared it since");
        let stays = Origin { flags: Origin::BLOCKED, ..Origin::default() };
        assert!(is_blocked(&stays, &OriginState::NEW, Timestamp(u64::MAX)));
    }
}
