//! Writes: what the configuration fixes, and what a plan wishes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
    os::unix::fs::MetadataExt,
};

use health_common::{
    ARMED_MAX, SERVICE_ORIGINS_MAX,
    map::{self, BypassKey, CGROUP_LEVEL_MAX, Node, Selector, Service, Table},
    origin::Origin,
};
use health_core::{
    Timestamp,
    engine::{FrontendPlan, OriginPlan, Plan},
    model::Mode,
    policy::Policy,
};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::{
    DatapathError,
    attach::cgroup_root,
    maps::{self, Maps},
    registry::{self, Registry},
};
use crate::config::{CgroupSetting, Config, ServiceConfig};

/// A spare table may still be read by a packet that loaded the old selector. Far above any RCU grace period.
const GRACE_NS: u64 = 100_000_000;

/// What a frontend shows the kernel.
#[derive(Clone, Debug)]
struct Frontend {
    plan: FrontendPlan,
    /// Numbers of its service and of the origin whose address it is. A service gets another when it is renamed.
    owner: (u16, u16),
    selector: Selector,
    switched: Timestamp,
}

/// What the kernel has, as far as this daemon wrote or read it.
#[derive(Default)]
pub(super) struct Written {
    origins: BTreeMap<u16, Origin>,
    frontends: BTreeMap<u16, Frontend>,
}

/// What became of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Origins and frontends that were written.
    pub written: u32,
    /// Writes that failed; they are wished again at the next tick.
    pub failed: u32,
    /// Frontends that wait for the grace period of their last change.
    pub waiting: u32,
}

impl Applied {
    /// Whether the kernel has all that was wished.
    #[must_use]
    pub const fn in_sync(&self) -> bool {
        self.failed == 0 && self.waiting == 0
    }
}

impl Written {
    /// Writes everything that only the configuration decides.
    pub(super) fn configure(
        &mut self,
        maps: &mut Maps,
        registry: &Registry,
        config: &Config,
        interfaces: &BTreeMap<SocketAddr, u32>,
    ) -> Result<(), DatapathError> {
        bypass(maps, config)?;
        namespaces(maps, config)?;
        for service in &config.services {
            self.service(maps, registry, service, interfaces)?;
        }
        for id in registry.retired().collect::<Vec<_>>() {
            self.retire(maps, id)?;
        }
        endpoints(maps, registry, config)
    }

    fn service(
        &mut self,
        maps: &mut Maps,
        registry: &Registry,
        service: &ServiceConfig,
        interfaces: &BTreeMap<SocketAddr, u32>,
    ) -> Result<(), DatapathError> {
        let spec = service.spec(registry);
        let mut members = Service { max_percent: u32::from(service.policy.trip.max_percent), ..Service::default() };
        for (origin, spec_origin) in service.origins.iter().zip(&spec.origins) {
            let v6 = if origin.address.is_ipv6() { Service::V6 } else { 0 };
            let tier = origin.tier.min(Service::TIER) | v6;
            let place = members.len as usize;
            if origin.weight > 0 && place < SERVICE_ORIGINS_MAX {
                members.origins[place] = spec_origin.id.0;
                members.tiers[place] = tier;
                members.len += 1;
            }
            let old = self.known(maps, spec_origin.id.0)?;
            let record = Origin {
                endpoint: registry::endpoint(origin.address),
                ifindex: interfaces.get(&origin.address).copied().unwrap_or(old.ifindex),
                service: spec.id.0,
                tier: u16::from(tier),
                flags: flags(service, old.flags),
                ..policy(old, &service.policy)
            };
            self.write_origin(maps, spec_origin.id.0, record)?;
        }
        maps.services.set(u32::from(spec.id.0), members, 0).map_err(|source| maps::write_error(map::SERVICES, source))
    }

    /// Where an origin's packets leave, after the routes were asked again.
    pub(super) fn set_interface(&mut self, maps: &mut Maps, id: u16, ifindex: u32) -> Result<(), DatapathError> {
        let old = self.known(maps, id)?;
        self.write_origin(maps, id, Origin { ifindex, ..old })
    }

    /// An origin that left: nothing chooses it, its flows end in peace.
    fn retire(&mut self, maps: &mut Maps, id: u16) -> Result<(), DatapathError> {
        let old = self.known(maps, id)?;
        let kept = Origin { flags: 0, syn_timeout_ns: 0, response_timeout_ns: 0, ..old };
        self.write_origin(maps, id, kept)
    }

    fn known(&self, maps: &Maps, id: u16) -> Result<Origin, DatapathError> {
        match self.origins.get(&id) {
            Some(origin) => Ok(*origin),
            None => maps.origins.get(&u32::from(id), 0).map_err(|source| maps::read_error(map::ORIGINS, source)),
        }
    }

    fn write_origin(&mut self, maps: &mut Maps, id: u16, origin: Origin) -> Result<(), DatapathError> {
        if self.origins.get(&id) == Some(&origin) {
            return Ok(());
        }
        // Forgotten first: a write that fails is not believed to have happened.
        self.origins.remove(&id);
        maps.origins.set(u32::from(id), origin, 0).map_err(|source| maps::write_error(map::ORIGINS, source))?;
        self.origins.insert(id, origin);
        Ok(())
    }

    /// Makes the kernel's steering that of the plan. What fails is counted and wished again next time.
    pub(super) fn apply(
        &mut self,
        maps: &mut Maps,
        plan: &Plan,
        services: &BTreeMap<u16, (u16, u16)>,
        now: Timestamp,
    ) -> Applied {
        let mut applied = Applied::default();
        for wish in &plan.origins {
            match self.origin(maps, wish) {
                Ok(changed) => applied.written += u32::from(changed),
                Err(_) => applied.failed += 1,
            }
        }
        for wish in &plan.frontends {
            let owner = services.get(&wish.id.0).copied().unwrap_or_default();
            match self.frontend(maps, wish, owner, now) {
                Ok(Some(changed)) => applied.written += u32::from(changed),
                Ok(None) => applied.waiting += 1,
                Err(_) => applied.failed += 1,
            }
        }
        applied
    }

    fn origin(&mut self, maps: &mut Maps, wish: &OriginPlan) -> Result<bool, DatapathError> {
        let OriginPlan { id, blocked, trials, clear_trip, syn_timeout, response_timeout } = *wish;
        let old = self.known(maps, id.0)?;
        let mut flags = old.flags & !(Origin::BLOCKED | Origin::TRIALS);
        if blocked {
            flags |= Origin::BLOCKED;
        }
        if trials {
            flags |= Origin::TRIALS;
        }
        let new = Origin {
            flags,
            clear_before_ns: clear_trip.map_or(old.clear_before_ns, |at| at.0.max(old.clear_before_ns)),
            syn_timeout_ns: syn_timeout.map_or(0, |span| span.0),
            response_timeout_ns: response_timeout.map_or(0, |span| span.0),
            ..old
        };
        let changed = self.origins.get(&id.0) != Some(&new);
        self.write_origin(maps, id.0, new)?;
        Ok(changed)
    }

    /// `None` while the spare table must not be written yet.
    fn frontend(
        &mut self,
        maps: &mut Maps,
        wish: &FrontendPlan,
        owner: (u16, u16),
        now: Timestamp,
    ) -> Result<Option<bool>, DatapathError> {
        let id = wish.id.0;
        let old = self.frontends.get(&id);
        if old.is_some_and(|old| old.plan == *wish && old.owner == owner) {
            return Ok(Some(false));
        }
        if old.is_some_and(|old| now.since(old.switched).0 < GRACE_NS) {
            return Ok(None);
        }
        let selector = match old {
            Some(old) => old.selector,
            None => maps.selectors.get(&u32::from(id), 0).map_err(|source| maps::read_error(map::SELECTORS, source))?,
        };
        let generation = selector.generation().checked_add(1).unwrap_or(1);
        let next = Selector::new(generation, selector.buffer() ^ 1);
        let table = table(wish, owner, generation);
        maps.tables
            .set(u32::from(id) * 2 + next.buffer(), table, 0)
            .map_err(|source| maps::write_error(map::TABLES, source))?;
        maps.selectors.set(u32::from(id), next, 0).map_err(|source| maps::write_error(map::SELECTORS, source))?;
        self.frontends.insert(id, Frontend { plan: wish.clone(), owner, selector: next, switched: now });
        Ok(Some(true))
    }

    /// Forgets frontends that are no longer planned, so that they are written anew when they come back.
    pub(super) fn keep_frontends(&mut self, live: &BTreeSet<u16>) {
        self.frontends.retain(|id, _| live.contains(id));
    }
}

fn table(wish: &FrontendPlan, (service, own): (u16, u16), generation: u32) -> Table {
    let mut armed = [health_common::NONE; ARMED_MAX];
    let mut len = 0u8;
    for (place, origin) in armed.iter_mut().zip(&wish.armed) {
        *place = origin.0;
        len += 1;
    }
    let mut slots = [0; health_common::SLOTS];
    for (slot, origin) in slots.iter_mut().zip(&wish.slots) {
        *slot = Table::slot(origin.0, generation);
    }
    Table { slots, armed_len: len, armed_best: wish.armed_best.min(len), service, own, flags: 0, armed }
}

/// Keeps what plans decide, sets what the configuration does.
fn flags(service: &ServiceConfig, old: u32) -> u32 {
    let mut flags = Origin::PRESENT | Origin::RESCUE | Origin::ON_5XX | (old & (Origin::BLOCKED | Origin::TRIALS));
    if service.policy.trip.kernel && service.policy.passive {
        flags |= Origin::KERNEL_TRIP;
    }
    if service.mode == Mode::Observe {
        flags |= Origin::OBSERVE;
    }
    flags
}

fn policy(old: Origin, policy: &Policy) -> Origin {
    let trip = &policy.trip;
    Origin {
        within_ns: trip.within.0,
        silence_min_ns: trip.silence_min.0,
        half_open_after_ns: trip.half_open_after.0,
        half_open_max_ns: trip.half_open_max.0,
        after: trip.after,
        spread_min: u16::from(trip.spread_min),
        ..old
    }
}

fn endpoints(maps: &mut Maps, registry: &Registry, config: &Config) -> Result<(), DatapathError> {
    let wanted: BTreeMap<_, _> = registry
        .endpoints(config)
        .into_iter()
        .map(|(address, meant)| {
            let key = registry::endpoint(address);
            ((key.addr.0, key.port.0), (key, meant))
        })
        .collect();
    let stale: Vec<_> =
        maps.endpoints.keys().flatten().filter(|key| !wanted.contains_key(&(key.addr.0, key.port.0))).collect();
    for key in stale {
        maps.endpoints.remove(&key).map_err(|source| maps::write_error(map::ENDPOINTS, source))?;
    }
    for (key, meant) in wanted.into_values() {
        maps.endpoints.insert(key, meant, 0).map_err(|source| maps::write_error(map::ENDPOINTS, source))?;
    }
    Ok(())
}

fn bypass(maps: &mut Maps, config: &Config) -> Result<(), DatapathError> {
    let bypass = &config.node.bypass;
    let mut wanted: Vec<BypassKey> =
        bypass.uids.iter().map(|&uid| BypassKey { id: u64::from(uid), kind: BypassKey::USER }).collect();
    let mut bypass_levels = 0;
    if config.node.cgroup != CgroupSetting::Off || !bypass.cgroups.is_empty() {
        for cgroup in &bypass.cgroups {
            wanted.push(BypassKey { id: cgroup_id(cgroup)?, kind: BypassKey::CGROUP });
            bypass_levels |= 1 << level(cgroup)?;
        }
    }
    let stale: Vec<_> = maps.bypass.keys().flatten().filter(|key| !wanted.contains(key)).collect();
    for key in stale {
        maps.bypass.remove(&key).map_err(|source| maps::write_error(map::BYPASS, source))?;
    }
    for key in &wanted {
        maps.bypass.insert(key, 1, 0).map_err(|source| maps::write_error(map::BYPASS, source))?;
    }
    let node = Node {
        bypass_mark: bypass.mark,
        bypass_users: u32::from(!bypass.uids.is_empty()),
        bypass_levels,
        daemon_pid: std::process::id(),
        ..Node::default()
    };
    maps.node.set(0, node, 0).map_err(|source| maps::write_error(map::NODE, source))
}

/// How deep below the root a cgroup lies.
fn level(cgroup: &str) -> Result<u32, DatapathError> {
    let depth = cgroup.split('/').filter(|part| !part.is_empty()).count();
    match u32::try_from(depth) {
        Ok(level) if (1..=CGROUP_LEVEL_MAX).contains(&level) => Ok(level),
        _ => Err(DatapathError::Path {
            path: cgroup.into(),
            source: std::io::Error::other(format!(
                "a bypassed cgroup lies 1 to {CGROUP_LEVEL_MAX} levels below the root"
            )),
        }),
    }
}

/// A cgroup's id is its folder's inode. It is made if it isn't there, so that its id is known before its first process.
fn cgroup_id(cgroup: &str) -> Result<u64, DatapathError> {
    let path = cgroup_root()?.join(cgroup.trim_start_matches('/'));
    let error = |source| DatapathError::Path { path: path.clone(), source };
    fs::create_dir_all(&path).map_err(error)?;
    Ok(fs::metadata(&path).map_err(error)?.ino())
}

fn namespaces(maps: &mut Maps, config: &Config) -> Result<(), DatapathError> {
    let mut wanted = vec![namespace_cookie()?];
    for path in &config.node.netns {
        wanted.push(cookie_of(path)?);
    }
    let stale: Vec<_> = maps.namespaces.keys().flatten().filter(|cookie| !wanted.contains(cookie)).collect();
    for cookie in stale {
        maps.namespaces.remove(&cookie).map_err(|source| maps::write_error(map::NAMESPACES, source))?;
    }
    for cookie in wanted {
        maps.namespaces.insert(cookie, 1, 0).map_err(|source| maps::write_error(map::NAMESPACES, source))?;
    }
    Ok(())
}

/// The cookie of the calling thread's namespace. `SO_NETNS_COOKIE`: Linux 5.14.
fn namespace_cookie() -> Result<u64, DatapathError> {
    use std::os::fd::AsRawFd;
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let error = |source| DatapathError::Path { path: "/proc/self/ns/net".into(), source };
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
        .map_err(|errno| error(errno.into()))?;
    let mut cookie = 0u64;
    let mut len = libc::socklen_t::try_from(size_of::<u64>()).unwrap_or(8);
    // SAFETY: the kernel writes `len` bytes to `cookie`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, (&raw mut cookie).cast(), &raw mut len)
    };
    if result < 0 { Err(error(std::io::Error::last_os_error())) } else { Ok(cookie) }
}

/// The cookie of another namespace, read by a thread that enters it and ends.
fn cookie_of(path: &std::path::Path) -> Result<u64, DatapathError> {
    let error = |source| DatapathError::Path { path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(error)?;
    let thread = std::thread::spawn(move || {
        nix::sched::setns(&file, nix::sched::CloneFlags::CLONE_NEWNET)?;
        namespace_cookie().map_err(std::io::Error::other)
    });
    let panicked = || error(std::io::Error::other("the thread panicked"));
    thread.join().map_or_else(|_| Err(panicked()), |cookie| cookie.map_err(error))
}
