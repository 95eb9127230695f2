//! Upgrade and downgrade between layouts of the maps.
//!
//! Two layouts never meet in one map: each has its own directory, `<pin_dir>/v<ABI>/`, its own maps and its own programs.
//! A start that finds the directory of another one, with pins that still work, takes over from it:
//!
//! 1. It takes that directory's lock. A daemon of the other layout that still runs holds it, and then this start is refused.
//! 2. It writes its first plan and attaches its own programs, before those of the other layout in every chain. Nothing is
//!    detached, so no packet goes without a program.
//! 3. It *silences* the other: all words of its `selectors` become 0, which means "steer nothing new". From then on the
//!    other's programs only serve the flows that they redirected.
//! 4. The sweeper looks whether such a flow lives. When none does, the other's links and directory are removed.
//!
//! # What every layout keeps
//!
//! This much of a directory is the same in all versions, so that each can hand over to each:
//!
//! - `<pin_dir>/v<ABI>/` is locked by `flock(2)` on the directory while a daemon uses it.
//! - `selectors` is an `ARRAY` of words of 8 bytes, and 0 means that nothing new is steered.
//! - `moved_out_v4` and `moved_out_v6` are hash maps. The last two words of a value, of 8 bytes each, are `seen_ns` (last
//!   packet) and `ended_ns` (when the flow ended; 0 while it lives), by `CLOCK_MONOTONIC`.
//! - Links are pinned under `links/`, as `<hook>-<interface>` for the hooks of interfaces.
//! - Filters under clsact, where there are no links, have the layout's number as handle.
//! - Every layout marks redirected packets with the same bit, [`health_common::SECOND_PASS_MARK`], and whichever of its
//!   egress programs sees the bit first takes it off and lets the packet pass.
//!
//! # Why the order is ours first, everywhere
//!
//! - *Egress, a flow that the other redirected.* Our program has no entry for its packets and lets them pass; the other
//!   rewrites and sends them anew. On that second pass our program takes off the mark and neither judges nor steers. The
//!   other's program then sees a packet to the standby that belongs to no flow of it, and lets it pass.
//! - *Egress, a flow that we redirect.* The other never sees its first pass. On the second, we take off the mark. The other
//!   sees a SYN to the standby, which it may track and count, in maps that nobody reads any more; silenced, it steers nothing.
//!   With the other before us, it would take off our mark, and we would take our own redirected SYN for one more attempt: a
//!   flow that nothing ever answers, held against the standby.
//! - *Ingress, an answer to a flow that the other redirected.* We have no entry; the other rewrites it.
//! - *Ingress, an answer to a flow that we redirect.* We rewrite it; then it comes from an address that the other has no entry
//!   for, because it never saw the flow's first pass.
//! - *Sockets.* Programs of a cgroup run in the order in which they were attached. The other chooses nothing any more. A
//!   socket that it steered earlier keeps its peer, and `getpeername` answers what was asked until the other goes.
//!
//! Between steps 2 and 3 lie milliseconds in which both steer. A SYN that we let pass may be redirected by the other; its
//! answer is then no evidence for us, for it never carries the address that we wait for until the other has rewritten it,
//! behind us in the chain.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use aya::programs::tc::SchedClassifierLink;
use health_common::{ABI_VERSION, map};
use health_core::Timestamp;
use nix::fcntl::{Flock, FlockArg};

use super::{DatapathError, attach, raw::RawMap, sweep};
use crate::report::HandoverReport;

/// Another layout's directory, locked by this daemon.
#[derive(Debug)]
pub(super) struct Other {
    /// Its number.
    pub(super) abi: u32,
    home: PathBuf,
    /// Whether it steers nothing new.
    silenced: AtomicBool,
    /// Kept for its lock.
    _lock: Flock<File>,
}

/// All other layouts that still serve flows; shared with the sweeper.
#[derive(Clone, Debug, Default)]
pub(super) struct Others(Arc<Mutex<Vec<Arc<Other>>>>);

impl Others {
    /// Those that are left. A copy: walks over their maps must not hold up the loop.
    pub(super) fn list(&self) -> Vec<Arc<Other>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Redirected flows of theirs that live.
    pub(super) fn live(&self, now: Timestamp) -> u64 {
        self.list().iter().map(|other| other.live(now)).sum()
    }

    /// Removes those that serve nobody any more.
    pub(super) fn sweep(&self, now: Timestamp) -> Vec<Handover> {
        let mut ended = Vec::new();
        for other in self.list() {
            if other.is_silenced() && other.live(now) == 0 {
                ended.push(self.remove(&other));
            }
        }
        ended
    }

    /// Removes one, whatever it serves. What can't be removed is left to the next start.
    pub(super) fn remove(&self, other: &Arc<Other>) -> Handover {
        if let Err(error) = other.remove() {
            tracing::error!(abi = other.abi, %error, "cannot remove the programs of another version");
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|kept| kept.abi != other.abi);
        Handover { abi: other.abi, flows: 0 }
    }
}

/// What became of another layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handover {
    /// Its number.
    pub abi: u32,
    /// Its redirected flows that live.
    pub flows: u64,
}

impl From<Handover> for HandoverReport {
    fn from(Handover { abi, flows }: Handover) -> Self {
        Self { abi, flows }
    }
}

/// All other layouts with pins below `pin_dir`, locked.
///
/// # Errors
///
/// [`DatapathError::OtherAbi`] when a daemon of another layout runs.
pub(super) fn find(pin_dir: &Path) -> Result<Others, DatapathError> {
    let error = |source| DatapathError::Pins { path: pin_dir.to_owned(), source };
    let mut others = Vec::new();
    for entry in fs::read_dir(pin_dir).map_err(error)? {
        let home = entry.map_err(error)?.path();
        let Some(abi) = home.file_name().and_then(|name| number(&name.to_string_lossy())) else { continue };
        if abi == ABI_VERSION {
            continue;
        }
        let folder = File::open(&home).map_err(error)?;
        let lock = Flock::lock(folder, FlockArg::LockExclusiveNonblock)
            .map_err(|_held| DatapathError::OtherAbi { abi, path: home.clone() })?;
        others.push(Arc::new(Other { abi, home, silenced: AtomicBool::new(false), _lock: lock }));
    }
    others.sort_by_key(|other| other.abi);
    Ok(Others(Arc::new(Mutex::new(others))))
}

/// The same as [`find`] for whoever only looks: nothing is locked, and what can't be read is left out.
pub(super) fn seen(pin_dir: &Path, now: Timestamp) -> Vec<Handover> {
    let homes = fs::read_dir(pin_dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut seen: Vec<Handover> = homes
        .filter_map(|home| {
            let abi = home.file_name().and_then(|name| number(&name.to_string_lossy()))?;
            (abi != ABI_VERSION).then(|| Handover { abi, flows: live_below(&home, now) })
        })
        .collect();
    seen.sort_by_key(|other| other.abi);
    seen
}

/// Redirected flows of a layout that live.
fn live_below(home: &Path, now: Timestamp) -> u64 {
    [map::MOVED_OUT_V4, map::MOVED_OUT_V6].iter().map(|name| live_in(&home.join(name), now)).sum()
}

/// The number in a directory's name.
fn number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix('v')?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

impl Other {
    /// Its link at a hook of an interface, if it hangs there.
    pub(super) fn link(&self, hook: &str, interface: &str, index: u32) -> Option<SchedClassifierLink> {
        attach::pinned(&self.home.join("links").join(attach::link_name(hook, interface)), index)
    }

    /// From now on it steers nothing new. Its flows that live.
    pub(super) fn silence(&self, now: Timestamp) -> Result<Handover, DatapathError> {
        let path = self.home.join(map::SELECTORS);
        let error = |source| DatapathError::Pins { path: path.clone(), source };
        // A start that failed half-way leaves a directory without maps.
        if path.exists() {
            RawMap::open(&path).and_then(|selectors| selectors.zero()).map_err(error)?;
        }
        self.silenced.store(true, Ordering::Relaxed);
        Ok(Handover { abi: self.abi, flows: self.live(now) })
    }

    /// Whether [`Self::silence`] was called: before, its flows come and go.
    pub(super) fn is_silenced(&self) -> bool {
        self.silenced.load(Ordering::Relaxed)
    }

    /// Redirected flows of it that live: not ended, and seen within the time after which the sweeper gives a flow up.
    pub(super) fn live(&self, now: Timestamp) -> u64 {
        live_below(&self.home, now)
    }

    /// Removes its programs and pins.
    pub(super) fn remove(&self) -> Result<(), DatapathError> {
        super::detach::remove_home(&self.home, self.abi).map(drop)
    }
}

/// A map that can't be read holds nobody: its programs can't serve anything either.
fn live_in(path: &Path, now: Timestamp) -> u64 {
    let mut live = 0;
    let walked = RawMap::open(path).and_then(|moved| {
        moved.walk(|value| {
            live += u64::from(lives(value, now));
            true
        })
    });
    if let Err(error) = walked {
        tracing::warn!(path = %path.display(), %error, "cannot read the redirected flows of another version");
    }
    live
}

/// Whether a redirected flow lives, by the last two words of its value.
fn lives(value: &[u8], now: Timestamp) -> bool {
    let word = |from_end: usize| {
        let at = value.len().checked_sub(from_end)?;
        value.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
    };
    let (Some(seen_ns), Some(ended_ns)) = (word(16), word(8)) else { return false };
    ended_ns == 0 && !sweep::is_idle(Timestamp(seen_ns), now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use health_common::flow::Moved;

    #[test]
    fn only_directories_of_layouts_count() {
        assert_eq!(number("v1"), Some(1));
        assert_eq!(number("v12"), Some(12));
        for name in ["v", "1", "vx", "v1x", "v-1", "v99999999999", "links"] {
            assert_eq!(number(name), None, "{name}");
        }
    }

    /// The contract with other layouts: the last two words, whatever stands before them.
    #[test]
    fn the_last_two_words_say_whether_a_flow_lives() {
        let hour = 3_600_000_000_000;
        let now = Timestamp(10 * hour);
        let value = |before: usize, seen: u64, ended: u64| {
            let mut value = vec![0xff; before];
            value.extend(seen.to_ne_bytes());
            value.extend(ended.to_ne_bytes());
            value
        };
        for before in [0, 8, 32, 100] {
            assert!(lives(&value(before, 9 * hour, 0), now));
            assert!(!lives(&value(before, 9 * hour, 9 * hour), now), "it ended");
            assert!(!lives(&value(before, 6 * hour, 0), now), "nobody has used it for hours");
        }
        assert!(!lives(&[0; 15], now), "no layout has such values");
    }

    #[test]
    fn ours_ends_with_the_two_words() {
        assert_eq!(std::mem::offset_of!(Moved, seen_ns), size_of::<Moved>() - 16);
        assert_eq!(std::mem::offset_of!(Moved, ended_ns), size_of::<Moved>() - 8);
    }
}
