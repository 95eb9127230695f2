//! `sluice maps`: the pinned maps, decoded, also while no daemon runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use aya::maps::{MapData, MapType};
use health_common::{
    ABI_VERSION, NONE,
    flow::{Choice, Flow, HalfOpen, Moved},
    map::{self, NameKey},
    net::FlowKey,
};
use health_core::{Timestamp, engine::Streak};

use super::{
    DatapathError, attach, handover,
    maps::{self, Maps},
    read, registry, sys,
};
use crate::{
    probe,
    report::{FrontendReport, HandoverReport, MapEntry, MapReport, MapsReport, OriginEntry, ProgramReport, TripReport},
};

/// Reads everything.
///
/// # Errors
///
/// [`DatapathError::NotLoaded`] without pins, [`DatapathError::Permission`] without the right to read them.
pub fn maps_report(pin_dir: &Path) -> Result<MapsReport, DatapathError> {
    let maps = open(pin_dir)?;
    let names = Names::read(&maps)?;
    let now = probe::now();
    let node = maps::only(map::NODE, &maps.node)?;
    Ok(MapsReport {
        abi: ABI_VERSION,
        programs: programs(pin_dir),
        handovers: handover::seen(pin_dir, now).into_iter().map(HandoverReport::from).collect(),
        maps: memory(pin_dir, &maps)?,
        frontends: frontends(&maps, &names)?,
        origins: origins(&maps, &names, now)?,
        last_daemon_pid: Some(node.daemon_pid),
        ..MapsReport::default()
    })
}

/// Entries of one map, decoded, for maps that have no report of their own.
///
/// # Errors
///
/// As [`maps_report`].
pub fn map_entries(pin_dir: &Path, name: &str) -> Result<Vec<MapEntry>, DatapathError> {
    let maps = open(pin_dir)?;
    let names = Names::read(&maps)?;
    Ok(match name {
        map::FLOWS_V4 => list(maps.flows_v4.iter(), tuple, |flow| names.flow(flow)),
        map::FLOWS_V6 => list(maps.flows_v6.iter(), tuple, |flow| names.flow(flow)),
        map::HALF_OPEN_V4 => list(maps.half_open_v4.iter(), tuple, |attempt| names.attempt(attempt)),
        map::HALF_OPEN_V6 => list(maps.half_open_v6.iter(), tuple, |attempt| names.attempt(attempt)),
        map::MOVED_OUT_V4 => list(maps.moved_out_v4.iter(), tuple, moved),
        map::MOVED_OUT_V6 => list(maps.moved_out_v6.iter(), tuple, moved),
        map::MOVED_BACK_V4 => list(maps.moved_back_v4.iter(), tuple, moved),
        map::MOVED_BACK_V6 => list(maps.moved_back_v6.iter(), tuple, moved),
        map::SOCKETS => list(maps.sockets.iter(), |cookie| format!("socket {cookie}"), |choice| names.choice(choice)),
        map::ENDPOINTS => list(
            maps.endpoints.iter(),
            |key| registry::address(key).to_string(),
            |meant| {
                let whose = if meant.origin == NONE { "virtual".to_owned() } else { names.origin(meant.origin) };
                format!("{whose}{}", if meant.frontend == NONE { "" } else { ", steered" })
            },
        ),
        map::NAMESPACES => list(maps.namespaces.iter(), |cookie| format!("namespace {cookie}"), |_| String::new()),
        map::BYPASS => list(maps.bypass.iter(), |key| format!("{key:?}"), |_| String::new()),
        map::NAMES => list(maps.names.iter(), |key| format!("{key:?}"), registry::text),
        map::COUNTS => read::counts(&maps)?
            .into_iter()
            .map(|(count, n)| MapEntry { key: count.name().to_owned(), value: n.to_string() })
            .collect(),
        // A ring buffer's entries are gone once they are read.
        map::EVENTS | map::FILTER => Vec::new(),
        _ => arrays(&maps, &names, name)?,
    })
}

/// Arrays by number: only those in use.
fn arrays(maps: &Maps, names: &Names, name: &str) -> Result<Vec<MapEntry>, DatapathError> {
    let entry = |key: &str, value: String| MapEntry { key: key.to_owned(), value };
    let kind = match name {
        map::NODE => return Ok(vec![entry("0", format!("{:?}", maps::only(map::NODE, &maps.node)?))]),
        map::NOTES => return Ok(vec![entry("0", format!("{} sockets", maps.notes()?))]),
        map::SELECTORS | map::TABLES => NameKey::FRONTEND,
        map::SERVICES => NameKey::SERVICE,
        _ => NameKey::ORIGIN,
    };
    let of_kind = names.of.iter().filter(|((of, _), _)| *of == kind);
    of_kind
        .map(|(&(_, id), label)| {
            let index = u32::from(id);
            let value = match name {
                map::SELECTORS | map::TABLES => {
                    let word = maps.selectors.get(&index, 0);
                    let word = word.map_err(|source| maps::read_error(map::SELECTORS, source))?;
                    format!("generation {}, table {} in force", word.generation(), index * 2 + word.buffer())
                }
                map::SERVICES => {
                    let service = maps.services.get(&index, 0);
                    let service = service.map_err(|source| maps::read_error(map::SERVICES, source))?;
                    let members = service.origins.iter().filter(|&&id| id != NONE).map(|&id| names.origin(id));
                    format!("{}, max_percent {}", members.collect::<Vec<_>>().join(" "), service.max_percent)
                }
                map::ORIGINS => {
                    let origin = maps.origins.get(&index, 0);
                    format!("{:?}", origin.map_err(|source| maps::read_error(map::ORIGINS, source))?)
                }
                _ => {
                    let reading = read::origin(maps, id, probe::now())?;
                    let counted = reading.named().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}"));
                    format!("{:?} {}", reading.kernel, counted.collect::<Vec<_>>().join(" "))
                }
            };
            Ok(entry(&format!("{id} {label}"), value))
        })
        .collect()
}

pub(super) fn open(pin_dir: &Path) -> Result<Maps, DatapathError> {
    match fs::read_dir(pin_dir) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(DatapathError::Permission),
        _ => Maps::open(pin_dir),
    }
}

fn list<K, V>(
    entries: impl Iterator<Item = Result<(K, V), aya::maps::MapError>>,
    key: impl Fn(&K) -> String,
    value: impl Fn(&V) -> String,
) -> Vec<MapEntry> {
    // An entry that vanished while it was read is skipped: the map is in use.
    entries.flatten().map(|(k, v)| MapEntry { key: key(&k), value: value(&v) }).collect()
}

fn tuple<K: FlowKey>(key: &K) -> String {
    format!("{} > {}", registry::address(&key.node()), registry::address(&key.remote()))
}

fn moved(moved: &Moved) -> String {
    let ended = if moved.ended_ns == 0 { "" } else { ", ended" };
    format!("{}{ended}", registry::address(&moved.to))
}

/// Names of numbers.
pub(super) struct Names {
    pub(super) of: BTreeMap<(u16, u16), String>,
}

impl Names {
    pub(super) fn read(maps: &Maps) -> Result<Self, DatapathError> {
        let mut of = BTreeMap::new();
        for entry in &maps.names {
            let (key, name) = entry.map_err(|source| maps::read_error(map::NAMES, source))?;
            of.insert((key.kind, key.id), registry::text(&name));
        }
        Ok(Self { of })
    }

    pub(super) fn get(&self, kind: u16, id: u16) -> String {
        self.of.get(&(kind, id)).cloned().unwrap_or_else(|| format!("#{id}"))
    }

    pub(super) fn origin(&self, id: u16) -> String {
        self.get(NameKey::ORIGIN, id)
    }

    fn flow(&self, flow: &Flow) -> String {
        format!("{} {}", self.origin(flow.origin), if flow.request_ns == 0 { "idle" } else { "waits for a response" })
    }

    fn attempt(&self, attempt: &HalfOpen) -> String {
        format!("{} repeats {}", self.origin(attempt.origin), attempt.repeats())
    }

    fn choice(&self, choice: &Choice) -> String {
        format!("{} asked {}", self.origin(choice.origin), registry::address(&choice.asked))
    }
}

fn programs(pin_dir: &Path) -> Vec<ProgramReport> {
    let links = maps::home(pin_dir).join("links");
    let mut programs: Vec<ProgramReport> = fs::read_dir(links)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let (hook, interface) = match name.split_once('-') {
                Some((hook, interface)) => (hook.to_owned(), Some(interface.to_owned())),
                None => (name.clone(), None),
            };
            let attached = sys::get(&entry.path()).is_ok_and(|link| match &interface {
                // Another interface of the same name has another number.
                Some(interface) => {
                    let at = sys::link_info(&link).map_or(0, |info| info.ifindex);
                    at != 0 && attach::index_of(interface).is_none_or(|index| index == at)
                }
                None => true,
            });
            let target = interface.or_else(|| Some("cgroup".to_owned()));
            ProgramReport { name: program_of(&hook).to_owned(), attached, interface: target, hook: Some(hook) }
        })
        .collect();
    programs.sort_by(|a, b| (&a.interface, &a.hook).cmp(&(&b.interface, &b.hook)));
    programs
}

fn program_of(hook: &str) -> &str {
    match hook {
        "tc_ingress" => "ingress",
        "tc_egress" => "egress",
        "tc_client" => "client",
        "xdp" => "xdp_ingress",
        "sock_ops" => "timeout",
        "getpeername4" => "peer4",
        "getpeername6" => "peer6",
        "sock_release" => "release",
        other => other,
    }
}

fn memory(pin_dir: &Path, maps: &Maps) -> Result<Vec<MapReport>, DatapathError> {
    maps::ALL
        .iter()
        .map(|name| {
            let data = maps::raw(pin_dir, name)?;
            let info = data.info().map_err(|source| maps::read_error(name, source))?;
            let kind = info.map_type().map_or_else(|_| "unknown".to_owned(), kind);
            let note = (*name == map::EVENTS).then(|| "ring buffer".to_owned());
            Ok(MapReport {
                name: (*name).to_owned(),
                kind,
                used: used(maps, name),
                max: u64::from(info.max_entries()),
                memory_bytes: memlock(&data),
                note,
            })
        })
        .collect()
}

/// What the kernel charges for all pinned maps. Unit: bytes.
pub(super) fn memory_bytes(pin_dir: &Path) -> Result<u64, DatapathError> {
    let mut sum = 0;
    for name in maps::ALL {
        sum += memlock(&maps::raw(pin_dir, name)?).unwrap_or(0);
    }
    Ok(sum)
}

/// What the kernel charges for a map, from its descriptor's page in `/proc`.
fn memlock(map: &MapData) -> Option<u64> {
    use std::os::fd::{AsFd, AsRawFd};
    let page = fs::read_to_string(format!("/proc/self/fdinfo/{}", map.fd().as_fd().as_raw_fd())).ok()?;
    page.lines().find_map(|line| line.strip_prefix("memlock:")).and_then(|value| value.trim().parse().ok())
}

fn kind(kind: MapType) -> String {
    match kind {
        MapType::Hash => "hash",
        MapType::LruHash => "lru_hash",
        MapType::Array => "array",
        MapType::PerCpuArray => "percpu_array",
        MapType::RingBuf => "ringbuf",
        _ => "other",
    }
    .to_owned()
}

/// Entries in use. Arrays are full from the start, so their users are counted.
fn used(maps: &Maps, name: &str) -> Option<u64> {
    let numbers = |kind| maps.names.keys().flatten().filter(|key: &NameKey| key.kind == kind).count();
    let used = match name {
        map::ENDPOINTS => maps.endpoints.keys().flatten().count(),
        map::ORIGINS | map::STATES | map::COUNTERS => numbers(NameKey::ORIGIN),
        map::SERVICES => numbers(NameKey::SERVICE),
        map::SELECTORS => numbers(NameKey::FRONTEND),
        map::TABLES => 2 * numbers(NameKey::FRONTEND),
        map::HALF_OPEN_V4 => maps.half_open_v4.keys().flatten().count(),
        map::HALF_OPEN_V6 => maps.half_open_v6.keys().flatten().count(),
        map::FLOWS_V4 => maps.flows_v4.keys().flatten().count(),
        map::FLOWS_V6 => maps.flows_v6.keys().flatten().count(),
        map::MOVED_OUT_V4 => maps.moved_out_v4.keys().flatten().count(),
        map::MOVED_OUT_V6 => maps.moved_out_v6.keys().flatten().count(),
        map::MOVED_BACK_V4 => maps.moved_back_v4.keys().flatten().count(),
        map::MOVED_BACK_V6 => maps.moved_back_v6.keys().flatten().count(),
        map::SOCKETS => maps.sockets.keys().flatten().count(),
        map::NAMESPACES => maps.namespaces.keys().flatten().count(),
        map::BYPASS => maps.bypass.keys().flatten().count(),
        map::NAMES => maps.names.keys().flatten().count(),
        map::FILTER => maps.filter.iter().flatten().filter(|&bits| bits != 0).count(),
        map::NODE | map::NOTES => 1,
        map::COUNTS => map::Count::ALL.len(),
        _ => return None,
    };
    u64::try_from(used).ok()
}

fn frontends(maps: &Maps, names: &Names) -> Result<Vec<FrontendReport>, DatapathError> {
    let steered: BTreeSet<u16> =
        maps.endpoints.iter().flatten().map(|(_, meant)| meant.frontend).filter(|&id| id != NONE).collect();
    let mut reports = Vec::new();
    for id in steered {
        let index = u32::from(id);
        let selector = maps.selectors.get(&index, 0).map_err(|source| maps::read_error(map::SELECTORS, source))?;
        if selector.generation() == 0 {
            continue;
        }
        let table = maps
            .tables
            .get(&(index * 2 + selector.buffer()), 0)
            .map_err(|source| maps::read_error(map::TABLES, source))?;
        let mut slots: BTreeMap<String, u32> = BTreeMap::new();
        let mut concerned: BTreeSet<u16> = BTreeSet::from([table.own]);
        for slot in table.slots {
            let origin = u16::try_from(slot & 0xffff).unwrap_or(NONE);
            concerned.insert(origin);
            *slots.entry(names.origin(origin)).or_default() += 1;
        }
        // A virtual address has no owner; a slot of one may lead nowhere.
        concerned.remove(&NONE);
        if table.own != NONE {
            slots.entry(names.origin(table.own)).or_default();
        }
        let armed = &table.armed[..usize::from(table.armed_len).min(table.armed.len())];
        let mut tripped = Vec::new();
        for &origin in concerned.iter().chain(armed).collect::<BTreeSet<_>>() {
            if read::origin(maps, origin, probe::now())?.kernel.trip.is_some() {
                tripped.push(names.origin(origin));
            }
        }
        reports.push(FrontendReport {
            address: names.get(NameKey::FRONTEND, id),
            service: names.get(NameKey::SERVICE, table.service),
            generation: u64::from(selector.generation()),
            slots,
            armed: armed.iter().filter(|&&id| id != table.own).map(|&id| names.origin(id)).collect(),
            tripped,
            order: None,
        });
    }
    Ok(reports)
}

fn origins(maps: &Maps, names: &Names, now: Timestamp) -> Result<Vec<OriginEntry>, DatapathError> {
    let mut entries = Vec::new();
    for (&(kind, id), name) in &names.of {
        if kind != NameKey::ORIGIN {
            continue;
        }
        let record = maps.origins.get(&u32::from(id), 0).map_err(|source| maps::read_error(map::ORIGINS, source))?;
        if !record.is(health_common::origin::Origin::PRESENT) {
            continue;
        }
        let reading = read::origin(maps, id, now)?;
        entries.push(OriginEntry {
            id: u32::from(id),
            address: registry::address(&record.endpoint).to_string(),
            service: names.get(NameKey::SERVICE, record.service),
            name: name.clone(),
            counters: reading.named().map(|(name, n)| (name.to_owned(), n)).collect(),
            blocked: Some(reading.kernel.blocked),
            trip: trip(&reading, now),
        });
    }
    Ok(entries)
}

/// A trip in force, for reports.
#[must_use]
pub fn trip(reading: &read::OriginReading, now: Timestamp) -> Option<TripReport> {
    let trip = reading.kernel.trip?;
    let ms = |ns: u64| ns / 1_000_000;
    Some(TripReport {
        streak: match trip.streak {
            Streak::Connect => "connect",
            Streak::Request => "request",
        }
        .to_owned(),
        for_ms: Some(now.since(trip.since).as_millis()),
        trial_in_ms: (!reading.kernel.blocked).then(|| reading.trial_next.since(now).as_millis()),
        backoff_ms: Some(ms(reading.trial_wait_ns)),
        trials_failed: trip.trials_failed,
    })
}
