//! Established flows of origins, for whoever ends them.

use std::{
    collections::{BTreeSet, HashSet},
    hash::Hash,
    net::SocketAddr,
    path::Path,
};

use aya::{
    Pod,
    maps::{HashMap, MapData},
};
use health_common::{
    flow::{FORWARDED, Flow, MOVED, Moved},
    map,
    net::FlowKey,
};
use health_core::{Span, Timestamp};

use super::{DatapathError, maps, registry, report::open};
use crate::probe;

/// An established flow.
#[derive(Clone, Copy, Debug)]
pub struct LiveFlow {
    /// Who serves it.
    pub origin: u16,
    /// The node's side, and what it asked for.
    pub asked: (SocketAddr, SocketAddr),
    /// The same as the origin knows it; differs where packets are redirected.
    pub served: (SocketAddr, SocketAddr),
    /// Whether packets are redirected.
    pub moved: bool,
    /// Whether a client's packets are forwarded; else it is a socket of this node.
    pub forwarded: bool,
    /// How long its request has waited for the first byte of an answer; `None`: nothing is waited for.
    pub waits: Option<Span>,
    /// The kernel's record.
    pub flow: Flow,
}

/// The flows that these origins serve, and those redirected ones that had asked for one of `addresses`.
///
/// # Errors
///
/// Pins that can't be read.
pub fn live_flows(
    pin_dir: &Path,
    origins: &BTreeSet<u16>,
    addresses: &BTreeSet<SocketAddr>,
) -> Result<Vec<LiveFlow>, DatapathError> {
    let maps = open(pin_dir)?;
    let mut found = Vec::new();
    let wanted = Wanted { origins, addresses, now: probe::now() };
    wanted.walk(&maps.flows_v4, map::FLOWS_V4, &maps.moved_out_v4, &mut found)?;
    wanted.walk(&maps.flows_v6, map::FLOWS_V6, &maps.moved_out_v6, &mut found)?;
    Ok(found)
}

struct Wanted<'a> {
    origins: &'a BTreeSet<u16>,
    addresses: &'a BTreeSet<SocketAddr>,
    now: Timestamp,
}

impl Wanted<'_> {
    /// As [`super::flows`] walks: an entry that ends under the walk sets it back, and nothing is taken twice.
    fn walk<K: FlowKey + Pod + Eq + Hash>(
        &self,
        table: &HashMap<MapData, K, Flow>,
        name: &'static str,
        moved: &HashMap<MapData, K, Moved>,
        found: &mut Vec<LiveFlow>,
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
            let Ok(flow) = table.get(&key, 0) else { continue };
            let is_moved = flow.flags & MOVED != 0;
            let asked = (registry::address(&key.node()), registry::address(&key.remote()));
            let away = is_moved && self.addresses.contains(&asked.1);
            if !self.origins.contains(&flow.origin) && !away {
                continue;
            }
            let to = if is_moved { moved.get(&key, 0).ok() } else { None };
            let served =
                to.map_or(asked, |to| (SocketAddr::new(asked.0.ip(), to.node_port.get()), registry::address(&to.to)));
            found.push(LiveFlow {
                origin: flow.origin,
                asked,
                served,
                moved: is_moved,
                forwarded: flow.flags & FORWARDED != 0,
                waits: (flow.request_ns != 0).then(|| self.now.since(Timestamp(flow.request_ns))),
                flow,
            });
        }
        Ok(())
    }
}
