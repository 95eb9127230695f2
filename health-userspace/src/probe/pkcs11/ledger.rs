//! Who holds how many sessions on the HSMs of a service, and what killed workers may have left there.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Sessions of one service's checks. An HSM has few (some have 16), and they are for business.
#[derive(Debug)]
pub(super) struct Ledger {
    book: Mutex<Book>,
}

#[derive(Debug)]
struct Book {
    max: u32,
    /// How long a server keeps the sessions of a client that has vanished.
    orphan_ttl: Duration,
    live: BTreeMap<String, u32>,
    orphans: Vec<(u32, Instant)>,
}

impl Ledger {
    pub(super) fn new(max: u32, orphan_ttl: Duration) -> Self {
        Self { book: Mutex::new(Book { max, orphan_ttl, live: BTreeMap::new(), orphans: Vec::new() }) }
    }

    /// Other limits from now on; what is held stays held.
    pub(super) fn limit(&self, max: u32, orphan_ttl: Duration) {
        let mut book = self.lock();
        (book.max, book.orphan_ttl) = (max, orphan_ttl);
    }

    /// Lets `slot` hold up to `sessions`. False if there is no room for them; then nothing changes.
    pub(super) fn reserve(&self, slot: &str, sessions: u32, now: Instant) -> bool {
        let mut book = self.lock();
        book.forget(now);
        let own = book.live.get(slot).copied().unwrap_or(0);
        if own >= sessions {
            return true;
        }
        if book.total() - own + sessions > book.max {
            return false;
        }
        book.live.insert(slot.to_owned(), sessions);
        true
    }

    /// A worker has ended and left `orphans` sessions behind.
    pub(super) fn ended(&self, slot: &str, orphans: u32, now: Instant) {
        let mut book = self.lock();
        book.live.remove(slot);
        let until = now + book.orphan_ttl;
        if orphans > 0 && until > now {
            book.orphans.push((orphans, until));
        }
    }

    /// Sessions that may be held now: of living workers, and orphans.
    pub(super) fn counts(&self, now: Instant) -> (u32, u32) {
        let mut book = self.lock();
        book.forget(now);
        (book.live.values().sum(), book.orphans.iter().map(|(count, _)| count).sum())
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn forget(&mut self, now: Instant) {
        self.orphans.retain(|&(_, until)| until > now);
    }

    fn total(&self) -> u32 {
        self.live.values().sum::<u32>() + self.orphans.iter().map(|(count, _)| count).sum::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn there_are_never_more_than_the_limit_orphans_included() {
        let ledger = Ledger::new(10, Duration::from_mins(1));
        let mut now = Instant::now();
        for slot in ["a", "b", "c", "d", "e"] {
            assert!(ledger.reserve(slot, 2, now));
        }
        assert_eq!(ledger.counts(now), (10, 0));
        assert!(ledger.reserve("a", 2, now), "what is held already needs no room");
        assert!(!ledger.reserve("f", 1, now));
        // One is killed with two sessions: they take their room until the server forgets them.
        ledger.ended("a", 2, now);
        assert_eq!(ledger.counts(now), (8, 2));
        assert!(!ledger.reserve("a", 1, now));
        now += Duration::from_secs(59);
        assert!(!ledger.reserve("a", 1, now));
        now += Duration::from_secs(1);
        assert!(ledger.reserve("a", 2, now));
        assert_eq!(ledger.counts(now), (10, 0));
        // One that ended well leaves nothing.
        ledger.ended("b", 0, now);
        assert_eq!(ledger.counts(now), (8, 0));
    }
}
