//! The newest events, kept in memory for `sluice events`.

use crate::report::EventLine;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::broadcast;

/// Events kept, the oldest going first: some hours of a busy node, about 2 MiB.
pub const EVENTS_MAX: usize = 8192;

/// Events that a follower may lag behind before it misses some.
const FOLLOW_LAG_MAX: usize = 4096;

/// A bounded ring of events that one side fills and many read. Clones are the same log.
#[derive(Clone, Debug)]
pub struct EventLog {
    ring: Arc<Mutex<Ring>>,
    follow: broadcast::Sender<Arc<EventLine>>,
}

#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<Arc<EventLine>>,
    limit: usize,
    forgotten: u64,
    lost: u64,
}

/// What a reader gets.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// Oldest first.
    pub events: Vec<Arc<EventLine>>,
    /// Events that never got here, since the start.
    pub lost: u64,
    /// Events that the ring no longer holds.
    pub forgotten: u64,
}

impl Default for EventLog {
    fn default() -> Self {
        Self::with_limit(EVENTS_MAX)
    }
}

impl EventLog {
    /// An empty log that keeps `limit` events.
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        let ring = Ring { limit: limit.max(1), ..Ring::default() };
        Self { ring: Arc::new(Mutex::new(ring)), follow: broadcast::Sender::new(FOLLOW_LAG_MAX) }
    }

    /// Adds an event. Never waits for a reader.
    pub fn push(&self, event: EventLine) {
        let event = Arc::new(event);
        let mut ring = self.lock();
        if ring.events.len() == ring.limit {
            ring.events.pop_front();
            ring.forgotten += 1;
        }
        ring.events.push_back(Arc::clone(&event));
        // Under the lock, so that a reader that subscribes while it copies sees each event once. No follower is no error.
        drop(self.follow.send(event));
    }

    /// Counts events that were lost before they could be added, such as by a full ring buffer in the kernel.
    pub fn add_lost(&self, count: u64) {
        self.lock().lost += count;
    }

    /// What is kept of the time at or after `since_ns`.
    #[must_use]
    pub fn since(&self, since_ns: u64) -> Kept {
        self.lock().since(since_ns)
    }

    /// The same, and all that follows.
    #[must_use]
    pub fn follow(&self, since_ns: u64) -> (Kept, broadcast::Receiver<Arc<EventLine>>) {
        let ring = self.lock();
        (ring.since(since_ns), self.follow.subscribe())
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        // A panic elsewhere can't leave the ring half changed.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn since(&self, since_ns: u64) -> Kept {
        let events = self.events.iter().filter(|event| event.time_ns >= since_ns).cloned().collect();
        Kept { events, lost: self.lost, forgotten: self.forgotten }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time_ns: u64) -> EventLine {
        EventLine { time_ns, ..EventLine::default() }
    }

    fn times(kept: &Kept) -> Vec<u64> {
        kept.events.iter().map(|event| event.time_ns).collect()
    }

    #[test]
    fn the_oldest_goes_first_and_is_counted() {
        let log = EventLog::with_limit(3);
        (1..=5).for_each(|time| log.push(at(time)));
        log.add_lost(7);
        let kept = log.since(0);
        assert_eq!((times(&kept), kept.forgotten, kept.lost), (vec![3, 4, 5], 2, 7));
        assert_eq!(times(&log.since(5)), [5]);
    }

    #[test]
    fn a_follower_sees_each_event_once() {
        let log = EventLog::default();
        log.push(at(1));
        let (kept, mut rest) = log.follow(0);
        log.push(at(2));
        assert_eq!(times(&kept), [1]);
        assert_eq!(rest.try_recv().expect("one more").time_ns, 2);
        assert!(rest.try_recv().is_err());
    }
}
