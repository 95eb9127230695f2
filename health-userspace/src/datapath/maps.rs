//! The pinned maps, typed.

use std::path::{Path, PathBuf};

use aya::Pod;
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, RingBuf};
use health_common::{
    ABI_VERSION,
    flow::{Choice, Flow, HalfOpen, Moved},
    map::{self, BypassKey, Name, NameKey, Node, Selector, Service, Table},
    net::{Endpoint, EndpointUse, FlowKey4, FlowKey6},
    origin::{Counters, Origin, OriginState},
};

use super::DatapathError;

/// Names of all maps, in the order that `sluice maps` shows.
pub(super) const ALL: [&str; 24] = [
    map::ENDPOINTS,
    map::FILTER,
    map::SELECTORS,
    map::TABLES,
    map::ORIGINS,
    map::STATES,
    map::COUNTERS,
    map::SERVICES,
    map::HALF_OPEN_V4,
    map::HALF_OPEN_V6,
    map::FLOWS_V4,
    map::FLOWS_V6,
    map::MOVED_OUT_V4,
    map::MOVED_OUT_V6,
    map::MOVED_BACK_V4,
    map::MOVED_BACK_V6,
    map::SOCKETS,
    map::NOTES,
    map::NODE,
    map::NAMESPACES,
    map::BYPASS,
    map::COUNTS,
    map::EVENTS,
    map::NAMES,
];

/// Where this ABI's pins are.
#[must_use]
pub(super) fn home(pin_dir: &Path) -> PathBuf {
    pin_dir.join(format!("v{ABI_VERSION}"))
}

/// All maps that userspace reads or writes, opened from their pins.
pub(super) struct Maps {
    pub(super) node: Array<MapData, Node>,
    pub(super) endpoints: HashMap<MapData, Endpoint, EndpointUse>,
    pub(super) filter: Array<MapData, u8>,
    pub(super) origins: Array<MapData, Origin>,
    pub(super) states: Array<MapData, OriginState>,
    pub(super) counters: PerCpuArray<MapData, Counters>,
    pub(super) services: Array<MapData, Service>,
    pub(super) selectors: Array<MapData, Selector>,
    pub(super) tables: Array<MapData, Table>,
    pub(super) half_open_v4: HashMap<MapData, FlowKey4, HalfOpen>,
    pub(super) half_open_v6: HashMap<MapData, FlowKey6, HalfOpen>,
    pub(super) flows_v4: HashMap<MapData, FlowKey4, Flow>,
    pub(super) flows_v6: HashMap<MapData, FlowKey6, Flow>,
    pub(super) moved_out_v4: HashMap<MapData, FlowKey4, Moved>,
    pub(super) moved_out_v6: HashMap<MapData, FlowKey6, Moved>,
    pub(super) moved_back_v4: HashMap<MapData, FlowKey4, Moved>,
    pub(super) moved_back_v6: HashMap<MapData, FlowKey6, Moved>,
    pub(super) sockets: HashMap<MapData, u64, Choice>,
    pub(super) notes: Array<MapData, u64>,
    pub(super) namespaces: HashMap<MapData, u64, u32>,
    pub(super) bypass: HashMap<MapData, BypassKey, u32>,
    pub(super) counts: PerCpuArray<MapData, u64>,
    pub(super) names: HashMap<MapData, NameKey, Name>,
}

impl Maps {
    /// Opens the pins. [`DatapathError::NotLoaded`] when there are none.
    pub(super) fn open(pin_dir: &Path) -> Result<Self, DatapathError> {
        let home = home(pin_dir);
        if !home.join(map::NODE).exists() {
            return Err(DatapathError::NotLoaded { path: pin_dir.to_owned() });
        }
        Ok(Self {
            node: open(&home, map::NODE)?,
            endpoints: open(&home, map::ENDPOINTS)?,
            filter: open(&home, map::FILTER)?,
            origins: open(&home, map::ORIGINS)?,
            states: open(&home, map::STATES)?,
            counters: open(&home, map::COUNTERS)?,
            services: open(&home, map::SERVICES)?,
            selectors: open(&home, map::SELECTORS)?,
            tables: open(&home, map::TABLES)?,
            half_open_v4: open(&home, map::HALF_OPEN_V4)?,
            half_open_v6: open(&home, map::HALF_OPEN_V6)?,
            flows_v4: open(&home, map::FLOWS_V4)?,
            flows_v6: open(&home, map::FLOWS_V6)?,
            moved_out_v4: open(&home, map::MOVED_OUT_V4)?,
            moved_out_v6: open(&home, map::MOVED_OUT_V6)?,
            moved_back_v4: open(&home, map::MOVED_BACK_V4)?,
            moved_back_v6: open(&home, map::MOVED_BACK_V6)?,
            sockets: open(&home, map::SOCKETS)?,
            notes: open(&home, map::NOTES)?,
            namespaces: open(&home, map::NAMESPACES)?,
            bypass: open(&home, map::BYPASS)?,
            counts: open(&home, map::COUNTS)?,
            names: open(&home, map::NAMES)?,
        })
    }
}

/// The ring buffer of events. Only the daemon reads it.
pub(super) fn events(pin_dir: &Path) -> Result<RingBuf<MapData>, DatapathError> {
    open(&home(pin_dir), map::EVENTS)
}

/// A map's pin, without its types.
pub(super) fn raw(pin_dir: &Path, name: &'static str) -> Result<MapData, DatapathError> {
    MapData::from_pin(home(pin_dir).join(name)).map_err(|source| read_error(name, source))
}

impl Maps {
    /// Leaves a note under the cookie of a socket that has none. Counted first, so that the hooks look for it.
    pub(super) fn leave_note(&mut self, cookie: u64, note: Choice) -> Result<(), DatapathError> {
        self.count_note(1)?;
        let Err(source) = self.sockets.insert(cookie, note, 0) else { return Ok(()) };
        self.count_note(1_u64.wrapping_neg())?;
        Err(write_error(map::SOCKETS, source))
    }

    /// Takes a note away that nobody else did.
    pub(super) fn take_note(&mut self, cookie: u64) -> Result<(), DatapathError> {
        if self.sockets.remove(&cookie).is_ok() {
            self.count_note(1_u64.wrapping_neg())?;
        }
        Ok(())
    }

    /// How many there are.
    pub(super) fn notes(&self) -> Result<u64, DatapathError> {
        let share = |at| self.notes.get(&at, 0).map_err(|source| read_error(map::NOTES, source));
        Ok(share(map::NOTES_KERNEL)?.wrapping_add(share(map::NOTES_USER)?))
    }

    /// In the word that only userspace writes.
    fn count_note(&mut self, more: u64) -> Result<(), DatapathError> {
        let own = self.notes.get(&map::NOTES_USER, 0).map_err(|source| read_error(map::NOTES, source))?;
        self.notes.set(map::NOTES_USER, own.wrapping_add(more), 0).map_err(|source| write_error(map::NOTES, source))
    }
}

/// The value of an array that has only one.
pub(super) fn only<V: Pod>(name: &'static str, array: &Array<MapData, V>) -> Result<V, DatapathError> {
    array.get(&0, 0).map_err(|source| read_error(name, source))
}

/// Wraps an error of a read.
pub(super) fn read_error(map: &'static str, source: MapError) -> DatapathError {
    if is_permission(&source) {
        return DatapathError::Permission;
    }
    DatapathError::MapRead { map, source: Box::new(source) }
}

/// Wraps an error of a write.
pub(super) fn write_error(map: &'static str, source: MapError) -> DatapathError {
    DatapathError::MapWrite { map, source: Box::new(source) }
}

fn is_permission(error: &MapError) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if error
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| matches!(error.kind(), std::io::ErrorKind::PermissionDenied))
        {
            return true;
        }
        source = error.source();
    }
    false
}

fn open<T: TryFrom<Map, Error = MapError>>(home: &Path, name: &'static str) -> Result<T, DatapathError> {
    let data = MapData::from_pin(home.join(name)).map_err(|source| read_error(name, source))?;
    let map = Map::from_map_data(data).map_err(|source| read_error(name, source))?;
    T::try_from(map).map_err(|source| read_error(name, source))
}
