//! Failures of many origins at once: they sit on the path or in this node, not in the origins.
//!
//! An origin is *silent* while nothing of it answers and it has not said otherwise. If at least three silent origins, in two
//! prefixes, have one next hop, or all the node's origins are silent, and nobody behind that hop was heard since, it is the
//! path (or the node) that fails. Then a move cures only where somebody can stand in who is not behind it.

use crate::{
    model::{Location, OriginId},
    origin::Origin,
    service::Service,
    time::{Span, Timestamp},
};
use alloc::{collections::BTreeMap, vec::Vec};

/// So many origins at once are no coincidence (design.md §5).
const ORIGINS_MIN: usize = 3;

/// In so many prefixes, or it might be a rack (design.md §5).
const PREFIXES_MIN: usize = 2;

/// What began within this time began at once: a round of the usual check, three failures in a row, and some more.
const AT_ONCE: Span = Span::from_secs(30);

/// How long an outage lasts after the first of its origins was heard again: the others' rounds are still to come, and none of
/// them must go into fault because another was asked first.
const GRACE: Span = Span::from_secs(15);

/// The way to an origin, as routing has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The next hop: a gateway, or the link where the origin is on it. Equal numbers are the same hop.
    pub hop: u64,
    /// The prefix that the origin's address is in. Equal numbers are the same prefix.
    pub prefix: u64,
    /// Whether the hop is a gateway.
    pub gateway: bool,
}

/// Outages that go on.
#[derive(Clone, Debug, Default)]
pub(super) struct Outages {
    /// By hop; `None`: of the node.
    present: BTreeMap<Option<u64>, Outage>,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Outage {
    location: Location,
    /// When the newest of its origins fell silent.
    since: Timestamp,
    /// Whether everybody behind the hop was silent at some time: until then, who was not asked yet may still contradict.
    confirmed: bool,
    /// When one of its origins was first heard again.
    heard: Option<Timestamp>,
}

/// What is heard of the origins behind one hop.
#[derive(Clone, Debug, Default)]
struct Behind {
    silent: Vec<(Timestamp, u64)>,
    /// Newest word of each of the others.
    others: Vec<Timestamp>,
    gateway: bool,
}

impl Behind {
    /// When the newest of those fell silent that did so at once; `None` where they are too few or somebody was heard since.
    fn outage(&self, prefixes_min: usize) -> Option<Timestamp> {
        let newest = self.silent.iter().map(|(since, _)| *since).max()?;
        let at_once = self.silent.iter().filter(|(since, _)| newest.since(*since) <= AT_ONCE);
        let mut prefixes: Vec<u64> = at_once.map(|(_, prefix)| *prefix).collect();
        let many = prefixes.len() >= ORIGINS_MIN;
        prefixes.sort_unstable();
        prefixes.dedup();
        let heard = self.others.iter().any(|word| *word > newest);
        (many && prefixes.len() >= prefixes_min && !heard).then_some(newest)
    }
}

impl Outages {
    /// Looks at all origins, and notes what holds each of them.
    pub(super) fn find(&mut self, services: &mut [Service], now: Timestamp) {
        let silent = |origin: &Origin| origin.silent_since().is_some();
        let count = services.iter().flat_map(|service| &service.origins).filter(|origin| silent(origin)).count();
        if count < ORIGINS_MIN && self.present.is_empty() {
            return;
        }
        let (mut hops, mut node) = (BTreeMap::<u64, Behind>::new(), Behind::default());
        for origin in services.iter().flat_map(|service| &service.origins).filter(|origin| origin.is_watched()) {
            let Some(route) = origin.route else { continue };
            let hop = hops.entry(route.hop).or_default();
            hop.gateway |= route.gateway;
            for behind in [hop, &mut node] {
                match origin.silent_since() {
                    Some(since) => behind.silent.push((since, route.prefix)),
                    None => behind.others.push(origin.newest_word()),
                }
            }
        }
        let mut found: BTreeMap<Option<u64>, (Location, Timestamp)> = BTreeMap::new();
        for (hop, behind) in &hops {
            let location = if behind.gateway { Location::Path } else { Location::Node };
            found.extend(behind.outage(PREFIXES_MIN).map(|since| (Some(*hop), (location, since))));
        }
        // All of them: whoever says nothing either way has never been heard.
        if node.others.iter().all(|word| *word == Timestamp::NEVER) && found.len() != 1 {
            let location = if hops.len() == 1 && node.gateway { Location::Path } else { Location::Node };
            found.extend(node.outage(1).map(|since| (None, (location, since))));
        }
        self.update(&found, &hops, now);
        self.hold(services);
    }

    fn update(
        &mut self,
        found: &BTreeMap<Option<u64>, (Location, Timestamp)>,
        hops: &BTreeMap<u64, Behind>,
        now: Timestamp,
    ) {
        for (hop, (location, since)) in found {
            let behind = hops.iter().filter(|(own, _)| hop.is_none_or(|hop| **own == hop));
            let mut others = behind.flat_map(|(_, behind)| &behind.others);
            let before = self.present.get(hop).is_some_and(|outage| outage.confirmed);
            let confirmed = before || others.all(|word| *word == Timestamp::NEVER);
            self.present.insert(*hop, Outage { location: *location, since: *since, confirmed, heard: None });
        }
        for (hop, outage) in &mut self.present {
            if !found.contains_key(hop) {
                outage.heard.get_or_insert(now);
            }
        }
        let silent = |hop: &Option<u64>| {
            let mut behind = hops.iter().filter(|(own, _)| hop.is_none_or(|hop| **own == hop));
            behind.any(|(_, behind)| !behind.silent.is_empty())
        };
        self.present.retain(|hop, outage| {
            let lasts = outage.heard.is_none_or(|heard| outage.confirmed && now.since(heard) < GRACE);
            lasts && silent(hop)
        });
    }

    /// Of an origin with this route.
    fn of(&self, origin: &Origin) -> Option<Outage> {
        let hop = origin.route?.hop;
        self.present.get(&Some(hop)).or_else(|| self.present.get(&None)).copied()
    }

    fn hold(&self, services: &mut [Service]) {
        for service in services {
            let held: Vec<(OriginId, Option<Location>)> = service
                .origins
                .iter()
                .map(|origin| {
                    let outage = self.of(origin).filter(|_| origin.silent_since().is_some());
                    // While it ends, whoever was held waits for a round of its own.
                    let ends = |outage: &Outage| outage.heard.is_some() && origin.outage.is_some();
                    let held = outage.filter(|outage| ends(outage) || !self.has_cure(service, origin, *outage));
                    (origin.spec.id, held.map(|outage| outage.location))
                })
                .collect();
            for (origin, (_, location)) in service.origins.iter_mut().zip(held) {
                origin.outage = location;
            }
        }
    }

    /// Whether somebody can stand in who is not behind what fails, or was heard all the same.
    fn has_cure(&self, service: &Service, origin: &Origin, outage: Outage) -> bool {
        let others = service.origins.iter().filter(|other| other.spec.id != origin.spec.id);
        let mut others = others.filter(|other| other.spec.family == origin.spec.family && other.can_stand_in());
        others.any(|other| {
            let outside = self.of(other).is_none() && other.route.is_some() && other.silent_since().is_none();
            outside || other.newest_word() > outage.since
        })
    }
}
