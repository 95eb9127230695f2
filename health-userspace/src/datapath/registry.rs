//! Numbers: given once per address and port (services: per name), kept in the pinned maps, so that reordering a file moves
//! nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use health_common::{
    NONE,
    map::{self, Name, NameKey},
    net::{Addr, Be16, Be32, Endpoint, EndpointUse},
    origin::{Origin, OriginState},
};
use health_core::model::{FrontendId, OriginId, ServiceId};

use super::{
    DatapathError,
    maps::{self, Maps},
};
use crate::config::{Config, Ids};

/// An address and port as the kernel keys it.
#[must_use]
pub(super) fn endpoint(address: SocketAddr) -> Endpoint {
    let addr = match address.ip() {
        IpAddr::V4(ip) => Addr::v4(Be32(u32::from_ne_bytes(ip.octets()))),
        IpAddr::V6(ip) => Addr::from_octets(ip.octets()),
    };
    Endpoint::new(addr, Be16::new(address.port()))
}

/// The way back.
#[must_use]
pub(super) fn address(endpoint: &Endpoint) -> SocketAddr {
    let ip = if endpoint.addr.is_v4() {
        IpAddr::V4(endpoint.addr.low().0.to_ne_bytes().into())
    } else {
        IpAddr::V6(endpoint.addr.octets().into())
    };
    SocketAddr::new(ip, endpoint.port.get())
}

/// Numbers in use.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    origins: BTreeMap<SocketAddr, u16>,
    frontends: BTreeMap<SocketAddr, u16>,
    services: BTreeMap<String, u16>,
    /// Origins and services that the configuration in force names.
    live_origins: BTreeSet<u16>,
}

impl Ids for Registry {
    fn service(&self, name: &str) -> ServiceId {
        ServiceId(self.services.get(name).copied().unwrap_or(NONE))
    }

    fn origin(&self, address: SocketAddr) -> OriginId {
        OriginId(self.origins.get(&address).copied().unwrap_or(NONE))
    }

    fn frontend(&self, address: SocketAddr) -> FrontendId {
        FrontendId(self.frontends.get(&address).copied().unwrap_or(NONE))
    }
}

impl Registry {
    /// What the pinned maps know.
    pub(super) fn read(maps: &Maps) -> Result<Self, DatapathError> {
        let mut registry = Self::default();
        for entry in &maps.names {
            let (key, name) = entry.map_err(|source| maps::read_error(map::NAMES, source))?;
            let name = text(&name);
            match key.kind {
                NameKey::SERVICE => {
                    registry.services.insert(name, key.id);
                }
                NameKey::FRONTEND => {
                    if let Ok(address) = name.parse() {
                        registry.frontends.insert(address, key.id);
                    }
                }
                NameKey::ORIGIN => {
                    let origin = maps
                        .origins
                        .get(&u32::from(key.id), 0)
                        .map_err(|source| maps::read_error(map::ORIGINS, source))?;
                    registry.origins.insert(address(&origin.endpoint), key.id);
                }
                _ => {}
            }
        }
        Ok(registry)
    }

    /// Gives numbers to everything in the configuration that has none, and writes names.
    pub(super) fn register(&mut self, maps: &mut Maps, config: &Config) -> Result<(), DatapathError> {
        self.live_origins.clear();
        let (origins_max, frontends_max) = (maps.origins.len(), maps.selectors.len());
        for service in &config.services {
            let id = take(&mut self.services, service.name.clone(), origins_max, "origins")?;
            name(maps, NameKey::SERVICE, id, &service.name)?;
            for origin in &service.origins {
                let fresh = !self.origins.contains_key(&origin.address);
                let origin_id = match take(&mut self.origins, origin.address, origins_max, "origins") {
                    Ok(id) => id,
                    Err(full) => self.reuse(maps, config, origin.address).ok_or(full)?,
                };
                if fresh {
                    clean(maps, origin_id, origin.address)?;
                }
                self.live_origins.insert(origin_id);
                name(maps, NameKey::ORIGIN, origin_id, &origin.name)?;
            }
            for address in service.frontends() {
                let frontend = take(&mut self.frontends, address, frontends_max, "frontends")?;
                name(maps, NameKey::FRONTEND, frontend, &address.to_string())?;
            }
        }
        Ok(())
    }

    /// The number of an origin that is no longer configured and that no flow names.
    fn reuse(&mut self, maps: &Maps, config: &Config, address: SocketAddr) -> Option<u16> {
        let wanted: BTreeSet<SocketAddr> =
            config.services.iter().flat_map(|service| &service.origins).map(|origin| origin.address).collect();
        let used = named_by_flows(maps);
        let (&old, &id) = self.origins.iter().find(|(address, id)| !wanted.contains(address) && !used.contains(id))?;
        self.origins.remove(&old);
        self.origins.insert(address, id);
        Some(id)
    }

    /// Endpoints as the kernel shall know them. Origins that left keep theirs, unsteered: their redirected flows need it.
    pub(super) fn endpoints(&self, config: &Config) -> BTreeMap<SocketAddr, EndpointUse> {
        let mut uses: BTreeMap<SocketAddr, EndpointUse> =
            self.origins.iter().map(|(&at, &origin)| (at, EndpointUse { origin, frontend: NONE })).collect();
        for service in &config.services {
            for address in service.frontends() {
                let Some(&frontend) = self.frontends.get(&address) else { continue };
                // A virtual address is no origin's.
                uses.entry(address).or_insert(EndpointUse { origin: NONE, frontend }).frontend = frontend;
            }
        }
        uses
    }

    /// Numbers of origins that the configuration no longer names.
    pub(super) fn retired(&self) -> impl Iterator<Item = u16> + '_ {
        self.origins.values().copied().filter(|id| !self.live_origins.contains(id))
    }

    /// Numbers of origins in force.
    #[must_use]
    pub const fn live(&self) -> &BTreeSet<u16> {
        &self.live_origins
    }
}

/// The number of `key`, a new one if need be: never one that was given before, while there are such.
fn take<K: Ord>(numbers: &mut BTreeMap<K, u16>, key: K, max: u32, what: &'static str) -> Result<u16, DatapathError> {
    if let Some(&id) = numbers.get(&key) {
        return Ok(id);
    }
    let next = numbers.values().max().map_or(0, |id| u32::from(*id) + 1);
    match u16::try_from(next) {
        Ok(id) if next < max && id != NONE => {
            numbers.insert(key, id);
            Ok(id)
        }
        _ => Err(DatapathError::Full { what, max }),
    }
}

/// Numbers of origins that flows or attempts name.
fn named_by_flows(maps: &Maps) -> BTreeSet<u16> {
    let mut used = BTreeSet::new();
    used.extend(maps.flows_v4.iter().flatten().map(|(_, flow)| flow.origin));
    used.extend(maps.flows_v6.iter().flatten().map(|(_, flow)| flow.origin));
    used.extend(maps.half_open_v4.iter().flatten().map(|(_, attempt)| attempt.origin));
    used.extend(maps.half_open_v6.iter().flatten().map(|(_, attempt)| attempt.origin));
    used
}

/// Makes a number's state and counters those of a new origin.
fn clean(maps: &mut Maps, id: u16, at: SocketAddr) -> Result<(), DatapathError> {
    let index = u32::from(id);
    let old = maps.origins.get(&index, 0).map_err(|source| maps::read_error(map::ORIGINS, source))?;
    let fresh = Origin { endpoint: endpoint(at), generation: old.generation.wrapping_add(1), ..Origin::default() };
    maps.origins.set(index, fresh, 0).map_err(|source| maps::write_error(map::ORIGINS, source))?;
    maps.states.set(index, OriginState::NEW, 0).map_err(|source| maps::write_error(map::STATES, source))?;
    let cpus = aya::util::nr_cpus().map_err(|(_, source)| DatapathError::Path { path: "/sys".into(), source })?;
    let zero = aya::maps::PerCpuValues::try_from(vec![health_common::origin::Counters::ZERO; cpus])
        .map_err(|source| DatapathError::Path { path: "/sys".into(), source })?;
    maps.counters.set(index, zero, 0).map_err(|source| maps::write_error(map::COUNTERS, source))
}

fn name(maps: &mut Maps, kind: u16, id: u16, name: &str) -> Result<(), DatapathError> {
    let mut bytes: Name = [0; 64];
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    maps.names.insert(NameKey { kind, id }, bytes, 0).map_err(|source| maps::write_error(map::NAMES, source))
}

/// A name as text.
#[must_use]
pub(super) fn text(name: &Name) -> String {
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_there_and_back() {
        for text in ["10.0.1.10:443", "[2001:db8::1]:80", "255.255.255.255:65535"] {
            let at: SocketAddr = text.parse().expect("an address");
            assert_eq!(address(&endpoint(at)), at);
        }
    }

    #[test]
    fn a_number_is_given_once_and_never_lowered() {
        let mut numbers = BTreeMap::new();
        assert_eq!(take(&mut numbers, "a", 3, "origins").ok(), Some(0));
        assert_eq!(take(&mut numbers, "b", 3, "origins").ok(), Some(1));
        assert_eq!(take(&mut numbers, "a", 3, "origins").ok(), Some(0));
        numbers.remove("a");
        assert_eq!(take(&mut numbers, "c", 3, "origins").ok(), Some(2), "0 may still be named by flows");
        assert!(take(&mut numbers, "d", 3, "origins").is_err());
    }
}
