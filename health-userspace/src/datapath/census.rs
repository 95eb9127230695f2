//! How full the tables are, and what was pushed out of them.
//!
//! An LRU map tells nobody what it evicts. But the kernel half counts what it makes and what it removes, so what was made,
//! and was neither removed nor is there, was evicted.

use std::{
    io,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use health_common::map::{self, Count};

use super::{
    DatapathError,
    maps::{self, Maps},
    raw::RawMap,
    read,
};

/// One table of both families.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Entries at the last count.
    pub entries: u64,
    /// Entries that were pushed out of it since the maps were made; a lower bound while traffic flows.
    pub evicted: u64,
}

/// The tables of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Connection attempts.
    pub half_open: Table,
    /// Flows.
    pub flows: Table,
}

/// The maps that are counted.
#[derive(Debug)]
pub(super) struct Counted {
    half_open: [RawMap; 2],
    flows: [RawMap; 2],
}

impl Counted {
    /// Opens the pins.
    pub(super) fn open(pin_dir: &Path) -> Result<Self, DatapathError> {
        let home = maps::home(pin_dir);
        let open = |name: &str| {
            let path = home.join(name);
            RawMap::open(&path).map_err(|source| DatapathError::Pins { path, source })
        };
        Ok(Self {
            half_open: [open(map::HALF_OPEN_V4)?, open(map::HALF_OPEN_V6)?],
            flows: [open(map::FLOWS_V4)?, open(map::FLOWS_V6)?],
        })
    }

    /// Counts everything. `None` when it was asked to stop, or a map could not be read.
    pub(super) fn take(&self, maps: &Maps, last: &Census, stop: &AtomicBool) -> Option<Census> {
        let half_open = (Count::HalfOpenMade, Count::HalfOpenRemoved);
        Some(Census {
            half_open: table(maps, &self.half_open, half_open, &last.half_open, stop)?,
            flows: table(maps, &self.flows, (Count::FlowMade, Count::FlowRemoved), &last.flows, stop)?,
        })
    }
}

fn table(
    maps: &Maps,
    walked: &[RawMap; 2],
    (made, removed): (Count, Count),
    last: &Table,
    stop: &AtomicBool,
) -> Option<Table> {
    let count = |wanted: Count| {
        let counts = read::counts(maps).ok()?;
        counts.into_iter().find(|(count, _)| *count == wanted).map(|(_, n)| n)
    };
    // What was made is read before the walk and what was removed after it: a moving table then shows fewer evictions than
    // there were, never more.
    let made = count(made)?;
    let mut entries = 0;
    for map in walked {
        entries += count_entries(map, stop).ok()?;
    }
    if stop.load(Ordering::Relaxed) {
        return None;
    }
    Some(Table { entries, evicted: evicted(made, count(removed)?, entries).max(last.evicted) })
}

fn count_entries(map: &RawMap, stop: &AtomicBool) -> io::Result<u64> {
    let mut entries = 0;
    map.walk(|_| {
        entries += 1;
        !stop.load(Ordering::Relaxed)
    })?;
    Ok(entries)
}

const fn evicted(made: u64, removed: u64, entries: u64) -> u64 {
    made.saturating_sub(removed).saturating_sub(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_and_is_nowhere_was_evicted() {
        assert_eq!(evicted(100, 40, 50), 10);
        assert_eq!(evicted(100, 50, 50), 0);
        // Made after the first count, and seen by the walk.
        assert_eq!(evicted(100, 50, 51), 0);
    }
}
