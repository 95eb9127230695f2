//! Redirections that ended, or that nothing has used for long, are taken out of the maps.
//!
//! The kernel only marks them: the last packets of a flow still need the way, and a hash map's entry of a live flow must
//! never go by itself.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use aya::maps::{HashMap, MapData};
use health_common::{flow::Moved, net::FlowKey};
use health_core::{Span, Timestamp};

use super::{DatapathError, maps::Maps};
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

/// A thread of its own that walks the tables: a pass over a quarter of a million entries must not hold the loop.
pub struct Sweeper {
    live: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sweeper {
    /// Starts it.
    pub(super) fn start(pin_dir: &Path) -> Result<Self, DatapathError> {
        let mut maps = Maps::open(pin_dir)?;
        let (live, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, asked) = (Arc::clone(&live), Arc::clone(&stop));
        let thread = thread::Builder::new().name("sweeper".to_owned()).spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                let began = Instant::now();
                seen.store(pass(&mut maps, probe::now()), Ordering::Relaxed);
                thread::park_timeout(PAUSE.max(began.elapsed() * PAUSE_FACTOR));
            }
        });
        let error = |source| DatapathError::Pins { path: pin_dir.to_owned(), source };
        Ok(Self { live, stop, thread: Some(thread.map_err(error)?) })
    }

    /// Redirected flows that had not ended at the last pass.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
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
            drop(back.remove(&key.with_remote(&moved.to)));
            drop(out.remove(&key));
        }
    }
    live
}

fn is_over(moved: &Moved, now: Timestamp) -> bool {
    if moved.ended_ns == 0 {
        now.since(Timestamp(moved.seen_ns)) > IDLE_MAX
    } else {
        now.since(Timestamp(moved.ended_ns)) > AFTER_END
    }
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
