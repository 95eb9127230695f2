//! `sluice flows`: the flow table, decoded, also while no daemon runs.

use std::{
    collections::{BTreeMap, HashSet},
    hash::Hash,
    path::Path,
};

use aya::{
    Pod,
    maps::{HashMap, MapData},
};
use health_common::{
    flow::{ANSWERED, FORWARDED, Flow, HalfOpen, MOVED, Moved, NODE_FIN, ORIGIN_FIN, TRIAL},
    map::{self, NameKey},
    net::FlowKey,
};
use health_core::Timestamp;

use super::{
    DatapathError,
    maps::{self, Maps},
    registry,
    report::{Names, open},
};
use crate::{
    probe,
    report::{FlowEntry, FlowsReport, OriginName},
};

/// The origins that the maps have names for, those that the configuration no longer has included: their flows live on.
///
/// # Errors
///
/// [`DatapathError::NotLoaded`] without pins, [`DatapathError::Permission`] without the right to read them.
pub fn origin_names(pin_dir: &Path) -> Result<Vec<OriginName>, DatapathError> {
    let maps = open(pin_dir)?;
    Ok(Origins::read(&maps)?.of.into_iter().map(|(id, origin)| origin.named(id)).collect())
}

/// The flow table: of the origins `of`, or of all; at most `limit` flows, those that wait longest first.
///
/// The table lives while it is read: a flow that begins or ends meanwhile may be there or not.
///
/// # Errors
///
/// As [`origin_names`].
pub fn flows_report(pin_dir: &Path, of: Option<&[u16]>, limit: usize) -> Result<FlowsReport, DatapathError> {
    let maps = open(pin_dir)?;
    let origins = Origins::read(&maps)?;
    let mut found = Found { of, limit, now: probe::now(), flows: Vec::new(), count: 0 };
    found.walk(&maps.half_open_v4, map::HALF_OPEN_V4, &maps.moved_out_v4)?;
    found.walk(&maps.half_open_v6, map::HALF_OPEN_V6, &maps.moved_out_v6)?;
    found.walk(&maps.flows_v4, map::FLOWS_V4, &maps.moved_out_v4)?;
    found.walk(&maps.flows_v6, map::FLOWS_V6, &maps.moved_out_v6)?;
    found.keep();
    let shown = found.flows.len();
    let flows = found.flows.into_iter().map(|flow| flow.entry(&origins)).collect();
    Ok(FlowsReport { flows, more: found.count.saturating_sub(shown as u64) })
}

/// An origin by its number.
struct Known {
    service: String,
    name: String,
    address: String,
}

impl Known {
    fn named(self, id: u16) -> OriginName {
        OriginName { id, service: self.service, name: self.name }
    }
}

struct Origins {
    of: BTreeMap<u16, Known>,
}

impl Origins {
    fn read(maps: &Maps) -> Result<Self, DatapathError> {
        let names = Names::read(maps)?;
        let mut of = BTreeMap::new();
        for &(_, id) in names.of.keys().filter(|(kind, _)| *kind == NameKey::ORIGIN) {
            let record =
                maps.origins.get(&u32::from(id), 0).map_err(|source| maps::read_error(map::ORIGINS, source))?;
            let service = names.get(NameKey::SERVICE, record.service);
            let address = registry::address(&record.endpoint).to_string();
            of.insert(id, Known { service, name: names.origin(id), address });
        }
        Ok(Self { of })
    }
}

/// What both tables tell of a flow.
struct Told {
    origin: u16,
    flags: u16,
    state: &'static str,
    /// When the SYN or the request was sent that waits for an answer; 0 when none does. Unit: ns.
    waits_since_ns: u64,
    rtt_us: u32,
}

trait Tell {
    fn tell(&self) -> Told;
}

impl Tell for HalfOpen {
    fn tell(&self) -> Told {
        let Self { origin, flags, syn_ns, .. } = *self;
        if flags & ANSWERED != 0 {
            // It waits for the node's side now.
            return Told { origin, flags, state: "answered", waits_since_ns: 0, rtt_us: self.accepted().rtt_us };
        }
        Told { origin, flags, state: "half_open", waits_since_ns: syn_ns, rtt_us: 0 }
    }
}

impl Tell for Flow {
    fn tell(&self) -> Told {
        let Self { origin, flags, request_ns, rtt_us, .. } = *self;
        let state = if flags & (NODE_FIN | ORIGIN_FIN) == 0 { "established" } else { "closing" };
        Told { origin, flags, state, waits_since_ns: request_ns, rtt_us }
    }
}

/// A flow to show.
struct Row {
    node: std::net::SocketAddr,
    asked: std::net::SocketAddr,
    /// Where its packets go, if they are redirected.
    to: Option<std::net::SocketAddr>,
    /// The node's port as the origin sees it.
    port: u16,
    told: Told,
    unanswered_ms: Option<u64>,
}

impl Row {
    fn entry(self, origins: &Origins) -> FlowEntry {
        let known = origins.of.get(&self.told.origin);
        let number = || format!("#{}", self.told.origin);
        let address = known.map_or_else(|| self.asked.to_string(), |known| known.address.clone());
        FlowEntry {
            node: self.node.to_string(),
            asked: self.asked.to_string(),
            service: known.map_or_else(|| "-".to_owned(), |known| known.service.clone()),
            origin: known.map_or_else(number, |known| known.name.clone()),
            served_by: self.to.map_or(address, |to| to.to_string()),
            translated_port: (self.port != self.node.port()).then_some(self.port),
            state: self.told.state.to_owned(),
            unanswered_ms: self.unanswered_ms,
            rtt_us: (self.told.rtt_us != 0).then_some(self.told.rtt_us),
            redirected: self.told.flags & MOVED != 0,
            trial: self.told.flags & TRIAL != 0,
            forwarded: self.told.flags & FORWARDED != 0,
        }
    }
}

/// What was found so far.
struct Found<'a> {
    of: Option<&'a [u16]>,
    limit: usize,
    now: Timestamp,
    flows: Vec<Row>,
    count: u64,
}

impl Found<'_> {
    /// Walks one table. When an entry ends just as the walk stands on it, the kernel begins again from the start: nothing
    /// is counted twice, and a table can't keep the walk going for ever.
    fn walk<K: FlowKey + Pod + Eq + Hash, V: Tell + Pod>(
        &mut self,
        table: &HashMap<MapData, K, V>,
        name: &'static str,
        moved: &HashMap<MapData, K, Moved>,
    ) -> Result<(), DatapathError> {
        let mut seen: HashSet<K> = HashSet::new();
        let mut again = 0_usize;
        for key in table.keys() {
            let key = key.map_err(|source| maps::read_error(name, source))?;
            if !seen.insert(key) {
                again += 1;
                if again > seen.len() {
                    break;
                }
                continue;
            }
            // It may have ended since its key was read.
            let Ok(value) = table.get(&key, 0) else { continue };
            let told = value.tell();
            if self.of.is_none_or(|of| of.contains(&told.origin)) {
                let to = if told.flags & MOVED == 0 { None } else { moved.get(&key, 0).ok() };
                self.add(&key, told, to);
            }
        }
        Ok(())
    }

    fn add(&mut self, key: &impl FlowKey, told: Told, to: Option<Moved>) {
        let since = |ns: u64| self.now.since(Timestamp(ns)).as_millis();
        let unanswered_ms = (told.waits_since_ns != 0).then(|| since(told.waits_since_ns));
        let (node, asked) = (registry::address(&key.node()), registry::address(&key.remote()));
        let port = to.map_or_else(|| node.port(), |moved| moved.node_port.get());
        let to = to.map(|moved| registry::address(&moved.to));
        self.flows.push(Row { node, asked, to, port, told, unanswered_ms });
        self.count += 1;
        // A table of a million flows must not be held to show a hundred.
        if self.flows.len() / 2 > self.limit {
            self.keep();
        }
    }

    /// Drops all but the first `limit`, in the order in which they are shown.
    fn keep(&mut self) {
        self.flows.sort_by_key(|flow| (std::cmp::Reverse(flow.unanswered_ms), flow.node, flow.asked));
        self.flows.truncate(self.limit);
    }
}
