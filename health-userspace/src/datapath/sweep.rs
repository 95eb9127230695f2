//! Redirections that ended, or that nothing has used for long, are taken out of the maps. On the way the tables are
//! counted, and other layouts that serve nobody any more are removed.
//!
//! The kernel only marks redirections: the last packets of a flow still need the way, and a hash map's entry of a live flow
//! must never go by itself.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use aya::maps::{HashMap, MapData};
use health_common::{flow::Moved, net::FlowKey};
use health_core::{Span, Timestamp};

use super::{
    DatapathError,
    census::{Census, Counted},
    handover::{Handover, Others},
    maps::Maps,
};
use crate::probe;

/// The last acknowledgements and repeats after the end.
const AFTER_END: Span = Span::from_secs(10);

/// A redirected flow without a packet for this long has lost its ends. Above the keep-alive time of Linux (2 h).
const IDLE_MAX: Span = Span::from_secs(3 * 3600);

/// Time between two passes.
const PAUSE: Duration = Duration::from_secs(1);

/// A pass over a full table takes a while; the pause is so many times as long, so that sweeping costs a tenth of a core at
/// most.
const PAUSE_FACTOR: u32 = 9;

/// Time between two counts of the tables.
const COUNT_PAUSE: Duration = Duration::from_secs(10);

/// Counting a million entries takes a few tenths of a second; the pause is so many times as long: a fiftieth of a core.
const COUNT_PAUSE_FACTOR: u32 = 49;

/// A thread of its own that walks the tables: a pass over a million entries must not hold the loop.
pub struct Sweeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    live: AtomicU64,
    stop: AtomicBool,
    census: Mutex<Option<Census>>,
    ended: Mutex<Vec<Handover>>,
}

impl Sweeper {
    /// Starts it.
    pub(super) fn start(pin_dir: &Path, others: Others) -> Result<Self, DatapathError> {
        let (mut maps, counted) = (Maps::open(pin_dir)?, Counted::open(pin_dir)?);
        let shared = Arc::new(Shared::default());
        let inside = Arc::clone(&shared);
        let thread = thread::Builder::new().name("sweeper".to_owned()).spawn(move || {
            let mut count_next = Instant::now();
            while !inside.stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                inside.live.store(pass(&mut maps, probe::now()), Ordering::Relaxed);
                lock(&inside.ended).extend(others.sweep(probe::now()));
                let swept = began.elapsed();
                if began >= count_next {
                    inside.count(&maps, &counted);
                    let took = began.elapsed().saturating_sub(swept);
                    count_next = Instant::now() + COUNT_PAUSE.max(took * COUNT_PAUSE_FACTOR);
                }
                thread::park_timeout(PAUSE.max(swept * PAUSE_FACTOR));
            }
        });
        let error = |source| DatapathError::Pins { path: pin_dir.to_owned(), source };
        Ok(Self { shared, thread: Some(thread.map_err(error)?) })
    }

    /// Redirected flows that had not ended at the last pass.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.shared.live.load(Ordering::Relaxed)
    }

    /// The last count of the tables; `None` before the first.
    #[must_use]
    pub fn census(&self) -> Option<Census> {
        *lock(&self.shared.census)
    }

    /// Other layouts that were removed since the last question.
    #[must_use]
    pub fn handed_over(&self) -> Vec<Handover> {
        std::mem::take(&mut *lock(&self.shared.ended))
    }
}

impl Shared {
    fn count(&self, maps: &Maps, counted: &Counted) {
        let last = lock(&self.census).unwrap_or_default();
        if let Some(census) = counted.take(maps, &last, &self.stop) {
            *lock(&self.census) = Some(census);
        }
    }
}

/// What is behind these locks is replaced whole, so a poisoned one is still good.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A sweeper that panicked has nothing more to sweep.
            drop(thread.join());
        }
    }
}

/// One pass. Redirected flows that live on.
fn pass(maps: &mut Maps, now: Timestamp) -> u64 {
    family(&mut maps.moved_out_v4, &mut maps.moved_back_v4, now)
        + family(&mut maps.moved_out_v6, &mut maps.moved_back_v6, now)
}

fn family<K: FlowKey + aya::Pod>(
    out: &mut HashMap<MapData, K, Moved>,
    back: &mut HashMap<MapData, K, Moved>,
    now: Timestamp,
) -> u64 {
    let (mut live, mut over) = (0, Vec::new());
    for (key, moved) in out.iter().flatten() {
        live += u64::from(moved.ended_ns == 0);
        if is_over(&moved, now) {
            over.push((key, moved));
        }
    }
    for (key, moved) in over {
        // A new flow may have taken the tuple since it was read: then it is not over any more.
        if out.get(&key, 0).is_ok_and(|current| is_over(&current, now)) {
            drop(back.remove(&key.with_remote(&moved.to).with_node_port(moved.node_port)));
            drop(out.remove(&key));
        }
    }
    live
}

fn is_over(moved: &Moved, now: Timestamp) -> bool {
    if moved.ended_ns == 0 {
        is_idle(Timestamp(moved.seen_ns), now)
    } else {
        now.since(Timestamp(moved.ended_ns)) > AFTER_END
    }
}

/// Whether a redirected flow that was last `seen` then has lost its ends.
pub(super) fn is_idle(seen: Timestamp, now: Timestamp) -> bool {
    now.since(seen) > IDLE_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_packets_still_find_their_way() {
        let at = |secs| Timestamp(Span::from_secs(secs).0);
        let ended = Moved { ended_ns: at(100).0, seen_ns: at(100).0, ..Moved::default() };
        assert!(!is_over(&ended, at(105)));
        assert!(is_over(&ended, at(111)));
        let quiet = Moved { ended_ns: 0, seen_ns: at(100).0, ..Moved::default() };
        assert!(!is_over(&quiet, at(100 + 3 * 3600)));
        assert!(is_over(&quiet, at(101 + 3 * 3600)));
    }
}
