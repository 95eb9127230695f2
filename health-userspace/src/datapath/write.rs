//! Writes: what the configuration fixes, and what a plan wishes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use health_common::{
    ARMED_MAX, SERVICE_ORIGINS_MAX,
    map::{self, Selector, Service, Table},
    origin::Origin,
};
use health_core::{
    Span, Timestamp,
    engine::{FrontendPlan, Lease, OriginPlan, Plan},
    model::Mode,
    policy::{Overflow, Policy, ReturnPath},
};

use super::{
    DatapathError,
    maps::{self, Maps},
    node,
    registry::{self, Registry},
};
use crate::config::{Config, OriginConfig, ServiceConfig};

/// A spare table may still be read by a packet that loaded the old selector. Far above any RCU grace period.
const GRACE_NS: u64 = 100_000_000;

/// What of a frontend's table no plan decides. A service gets another number when it is renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// Its service.
    pub(super) service: u16,
    /// The origin whose own address it is, or [`health_common::NONE`].
    pub(super) own: u16,
    /// `Table::…` bits.
    pub(super) flags: u16,
}

impl Owner {
    /// Of no service: a plan for a frontend that is no longer configured.
    const NOBODY: Self = Self { service: health_common::NONE, own: health_common::NONE, flags: 0 };
}

/// `Table::…` bits of all frontends of a service.
pub(super) const fn table_flags(policy: &Policy) -> u16 {
    let overflow = match policy.overflow {
        Overflow::Refuse => Table::REFUSE,
        Overflow::LeastBad => 0,
        Overflow::Exceed => Table::EXCEED,
    };
    if policy.panic_percent == 0 { overflow | Table::NO_PANIC } else { overflow }
}

/// What a frontend shows the kernel.
#[derive(Clone, Debug)]
struct Frontend {
    plan: FrontendPlan,
    owner: Owner,
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
        node::write(maps, config)?;
        node::namespaces(maps, config)?;
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
                capacity_ns: capacity_ns(origin),
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
        let kept =
            Origin { flags: 0, lease_ns: 0, connect_jiffies: 0, syn_timeout_ns: 0, response_timeout_ns: 0, ..old };
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
        owners: &BTreeMap<u16, Owner>,
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
            let owner = owners.get(&wish.id.0).copied().unwrap_or(Owner::NOBODY);
            match self.frontend(maps, wish, owner, now) {
                Ok(Some(changed)) => applied.written += u32::from(changed),
                Ok(None) => applied.waiting += 1,
                Err(_) => applied.failed += 1,
            }
        }
        applied
    }

    fn origin(&mut self, maps: &mut Maps, wish: &OriginPlan) -> Result<bool, DatapathError> {
        let old = self.known(maps, wish.id.0)?;
        let new = planned(old, wish, jiffy());
        let changed = self.origins.get(&wish.id.0) != Some(&new);
        self.write_origin(maps, wish.id.0, new)?;
        Ok(changed)
    }

    /// `None` while the spare table must not be written yet.
    fn frontend(
        &mut self,
        maps: &mut Maps,
        wish: &FrontendPlan,
        owner: Owner,
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

/// Bits of [`Origin::flags`] that plans decide; the rest is the configuration's.
const PLANNED: u32 = Origin::BLOCKED | Origin::TRIALS | Origin::LEASE_TRIPS;

/// The origin's record as the plan wishes it. Times of the judgement are the kernel's: both read `CLOCK_MONOTONIC`.
fn planned(old: Origin, wish: &OriginPlan, jiffy: Span) -> Origin {
    let OriginPlan {
        id: _,
        blocked,
        trials,
        lease,
        clear_trip,
        syn_timeout,
        response_timeout,
        silent_from,
        trip_after,
        trip_spread_min,
        connect_timeout,
    } = *wish;
    let set = |flag, on| if on { flag } else { 0 };
    let (lease_ns, trips) = match lease {
        Lease::Stays => (0, false),
        Lease::Trips(at) => (at.0, true),
        Lease::Ends(at) => (at.0, false),
    };
    let flags = set(Origin::BLOCKED, blocked) | set(Origin::TRIALS, trials) | set(Origin::LEASE_TRIPS, trips);
    // Rounded up: a timeout below what was asked for would be none that was learned.
    let jiffies = connect_timeout.map_or(0, |span| span.0.div_ceil(jiffy.0.max(1)));
    Origin {
        flags: (old.flags & !PLANNED) | flags,
        lease_ns,
        clear_before_ns: clear_trip.map_or(old.clear_before_ns, |at| at.0.max(old.clear_before_ns)),
        syn_timeout_ns: syn_timeout.map_or(0, |span| span.0),
        response_timeout_ns: response_timeout.map_or(0, |span| span.0),
        connect_jiffies: u32::try_from(jiffies).unwrap_or(u32::MAX),
        silent_from: silent_from.into(),
        after: trip_after,
        spread_min: trip_spread_min.into(),
        ..old
    }
}

/// One tick of the kernel's timer, by which the coarse clock steps (`clock_getres(2)`).
pub(super) fn jiffy() -> Span {
    use nix::time::{ClockId, clock_getres};
    let resolution = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).map(std::time::Duration::from);
    // 4 ms, the default of most distributions (CONFIG_HZ=250), if the clock is not there.
    resolution.map_or(Span::from_millis(4), |span| Span(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
}

fn table(wish: &FrontendPlan, owner: Owner, generation: u32) -> Table {
    let Owner { service, own, flags } = owner;
    let mut armed = [health_common::NONE; ARMED_MAX];
    let mut len = 0u8;
    for (place, origin) in armed.iter_mut().zip(&wish.armed) {
        *place = origin.0;
        len += 1;
    }
    let mut slots = [0; health_common::SLOTS];
    let mut all_own = true;
    for (slot, origin) in slots.iter_mut().zip(&wish.slots) {
        *slot = Table::slot(origin.0, generation);
        all_own &= origin.0 == own;
    }
    let flags = if all_own { flags | Table::OWN } else { flags };
    Table { slots, armed_len: len, armed_best: wish.armed_best.min(len), service, own, flags, armed }
}

/// Keeps what plans decide, sets what the configuration does.
fn flags(service: &ServiceConfig, old: u32) -> u32 {
    let policy = &service.policy;
    let one_way = policy.return_path == ReturnPath::None;
    let set = |flag, on| if on { flag } else { 0 };
    Origin::PRESENT
        | (old & (PLANNED | Origin::FREEZE))
        | set(Origin::KERNEL_TRIP, policy.trip.kernel && policy.passive)
        | set(Origin::OBSERVE, service.mode == Mode::Observe)
        // An answer that never passes here can be neither waited for nor undone.
        | set(Origin::RESCUE, policy.rescue && !one_way)
        | set(Origin::ON_5XX, policy.trip.on_5xx)
        | set(Origin::ONE_WAY, one_way)
}

/// Time that each new connection takes of the capacity. At least 1 ns: 0 is no limit.
fn capacity_ns(origin: &OriginConfig) -> u64 {
    origin.capacity_cps.map_or(0, |cps| (1_000_000_000 / u64::from(cps.max(1))).max(1))
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
        let place = key.place();
        let bits = maps.filter.get(&place, 0).map_err(|source| maps::read_error(map::FILTER, source))?;
        // The kernel writes places of ours only.
        if bits == 0 {
            maps.filter.set(place, map::FILTER_OURS, 0).map_err(|source| maps::write_error(map::FILTER, source))?;
        }
        maps.endpoints.insert(key, meant, 0).map_err(|source| maps::write_error(map::ENDPOINTS, source))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use health_core::model::OriginId;

    fn wish(lease: Lease) -> OriginPlan {
        OriginPlan {
            id: OriginId(1),
            blocked: lease != Lease::Stays,
            trials: false,
            lease,
            clear_trip: None,
            syn_timeout: None,
            response_timeout: None,
            silent_from: 2,
            trip_after: 5,
            trip_spread_min: 3,
            connect_timeout: Some(Span::from_millis(201)),
        }
    }

    #[test]
    fn leases_and_jiffies_reach_the_record_and_leave_it_again() {
        let old = Origin { flags: Origin::PRESENT | Origin::RESCUE, ..Origin::default() };
        let jiffy = Span::from_millis(4);
        let tripped = planned(old, &wish(Lease::Trips(Timestamp(70))), jiffy);
        assert_eq!(tripped.flags, old.flags | Origin::BLOCKED | Origin::LEASE_TRIPS);
        assert_eq!((tripped.lease_ns, tripped.connect_jiffies), (70, 51));
        let ordered = planned(tripped, &wish(Lease::Ends(Timestamp(90))), jiffy);
        assert_eq!((ordered.flags, ordered.lease_ns), (old.flags | Origin::BLOCKED, 90));
        let free = planned(ordered, &OriginPlan { connect_timeout: None, ..wish(Lease::Stays) }, jiffy);
        assert_eq!((free.flags, free.lease_ns, free.connect_jiffies), (old.flags, 0, 0));
    }

    #[test]
    fn the_timer_ticks_between_100_and_1000_times_a_second() {
        assert!((Span::from_millis(1)..=Span::from_millis(10)).contains(&jiffy()), "{:?}", jiffy());
    }

    #[test]
    fn keys_become_flags() {
        let text = "[node]\ninterfaces = [\"eth1\"]\n[[service]]\nname = \"s\"\n[[service.origin]]\nname = \"a\"\n\
                    address = \"10.0.1.10:443\"\ncapacity_cps = 5000\n";
        let service = |policy: &str| {
            let text = format!("{text}[service.policy]\n{policy}");
            crate::config::parse(&text, "test.toml").expect("valid").config.services.remove(0)
        };
        let usual = Origin::PRESENT | Origin::KERNEL_TRIP | Origin::RESCUE | Origin::ON_5XX;
        assert_eq!(flags(&service(""), 0), usual);
        assert_eq!(flags(&service(""), Origin::FREEZE | Origin::BLOCKED), usual | Origin::FREEZE | Origin::BLOCKED);
        assert_eq!(flags(&service("rescue = false"), 0), usual & !Origin::RESCUE);
        assert_eq!(flags(&service("trip = { on_5xx = false }"), 0), usual & !Origin::ON_5XX);
        let one_way = (usual & !Origin::RESCUE) | Origin::ONE_WAY;
        assert_eq!(flags(&service("return_path = \"none\""), 0), one_way);
        assert_eq!(capacity_ns(&service("").origins[0]), 200_000);
        let of = |word: &str| table_flags(&service(&format!("overflow = \"{word}\"")).policy);
        assert_eq!((of("refuse"), of("least_bad"), of("exceed")), (Table::REFUSE, 0, Table::EXCEED));
        assert_eq!(table_flags(&service("panic_percent = 0").policy), Table::REFUSE | Table::NO_PANIC);
    }
}
