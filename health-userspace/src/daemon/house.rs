//! What happens around the judgement: interfaces and neighbours that come and go, routes that move, other versions whose
//! last flows end.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    net::{IpAddr, SocketAddr},
};

use health_core::{Timestamp, engine::Route, governor::Site, model::OriginId};
use tracing::{error, info, warn};

use super::{
    Daemon,
    routes::{self, Ways},
    start::{self, StartError},
};
use crate::{
    config::{Ids, place},
    datapath::{Blind, Change, DatapathError, Handover, Hop, Neighbour, Neighbours, ReversePath, TimeoutTest},
    probe,
    telemetry::MapScrape,
};

/// What the daemon knows of its surroundings.
pub(super) struct House {
    neighbours: Neighbours,
    /// First hops, as last asked.
    ways: Ways,
    /// Neighbours that nobody answers for, and since when.
    failed: BTreeMap<(u32, IpAddr), Timestamp>,
    /// Origins behind such neighbours, as the judgement was last told.
    told: BTreeMap<OriginId, Timestamp>,
    /// Routes to origins, as the judgement was last told.
    routes: BTreeMap<OriginId, Route>,
    /// Troubles with reverse paths that were said.
    said: BTreeSet<String>,
}

impl House {
    pub(super) const fn new(neighbours: Neighbours, ways: Ways) -> Self {
        Self {
            neighbours,
            ways,
            failed: BTreeMap::new(),
            told: BTreeMap::new(),
            routes: BTreeMap::new(),
            said: BTreeSet::new(),
        }
    }

    /// Waits for words about neighbours. Cancel safe.
    pub(super) async fn neighbours(&mut self) -> Vec<Neighbour> {
        self.neighbours.next().await
    }

    /// Other origins, or the same by other ways: the judgement is told anew.
    pub(super) fn reconfigured(&mut self, ways: Ways) {
        self.ways = ways;
        self.told.clear();
        self.routes.clear();
    }

    fn saw(&mut self, words: &[Neighbour], now: Timestamp) {
        for word in words {
            let at = (word.interface, word.address);
            if word.failed {
                self.failed.entry(at).or_insert(now);
            } else {
                self.failed.remove(&at);
            }
        }
    }

    /// What is new about origins: since when their next hop is missing; `None` that it is found again.
    fn news(&mut self, ids: &impl Ids) -> Vec<(OriginId, Option<Timestamp>)> {
        let since = |hop: &Hop| self.failed.get(&(hop.interface, hop.next)).copied();
        let lost: BTreeMap<OriginId, Timestamp> =
            self.ways.origins.iter().filter_map(|(&at, hop)| Some((ids.origin(at), since(hop)?))).collect();
        let found = self.told.keys().filter(|id| !lost.contains_key(id)).map(|&id| (id, None));
        let fresh = lost.iter().filter(|(id, at)| self.told.get(id) != Some(at)).map(|(&id, &at)| (id, Some(at)));
        let news = found.chain(fresh).collect();
        self.told = lost;
        news
    }
}

impl House {
    /// Routes that are new, other ones, or gone.
    fn new_routes(&mut self, ids: &impl Ids) -> Vec<(OriginId, Option<Route>)> {
        let now: BTreeMap<OriginId, Route> =
            self.ways.origins.iter().map(|(&at, hop)| (ids.origin(at), route(at.ip(), *hop))).collect();
        let gone = self.routes.keys().filter(|id| !now.contains_key(id)).map(|&id| (id, None));
        let fresh = now.iter().filter(|(id, route)| self.routes.get(id) != Some(route));
        let news = gone.chain(fresh.map(|(&id, &route)| (id, Some(route)))).collect();
        self.routes = now;
        news
    }
}

/// What the judgement knows of a way: the hop by a number of its own, the prefix by its bits. Prefixes are those that are
/// routed one by one: /24 (RFC 1812 §4.2.2.11 leaves no class, providers filter what is longer) and /48 (RFC 6177).
fn route(address: IpAddr, hop: Hop) -> Route {
    let number = |interface: u32, next: Option<IpAddr>| {
        let mut hasher = DefaultHasher::new();
        (interface, next).hash(&mut hasher);
        hasher.finish()
    };
    let prefix = match address.to_canonical() {
        IpAddr::V4(ip) => u64::from(ip.to_bits() >> 8),
        // The first bits of no IPv6 prefix in use are 0, so the two never meet.
        IpAddr::V6(ip) => u64::try_from(ip.to_bits() >> 80).unwrap_or(u64::MAX),
    };
    // On the link itself, it is the link that all there have in common.
    let gateway = hop.next.to_canonical() != address.to_canonical();
    Route { hop: number(hop.interface, gateway.then_some(hop.next)), prefix, gateway }
}

impl Daemon {
    /// Interfaces that came or went, routes that moved, versions that ended.
    pub(super) async fn keep_house(&mut self) {
        let changes = self.datapath.attach();
        changes.iter().for_each(start::say);
        if changes.iter().any(|change| matches!(change, Change::Attached(_) | Change::Adopted(_))) {
            self.self_test();
        }
        for ended in self.sweeper.handed_over() {
            self.handover("ended", ended);
        }
        let ways = Ways::find(&self.routes, &self.config).await;
        for (address, index) in ways.interfaces() {
            let id = self.datapath.registry().origin(address).0;
            if let Err(error) = self.datapath.set_interface(id, index) {
                warn!(%address, %error, "cannot note the origin's interface");
            }
        }
        if ways != self.house.ways {
            self.house.ways = ways;
            self.say_reverse_paths();
            self.tell_sites();
            self.tell_neighbours();
        }
        self.input.routes.extend(self.house.new_routes(self.datapath.registry()));
    }

    /// A route that was learned may bring what a start refuses. Then flows can't be kept from moving, but it is said.
    fn say_reverse_paths(&mut self) {
        let found: Vec<DatapathError> = routes::strict_reverse_paths(&self.config, &self.house.ways, ReversePath::of);
        let texts: BTreeSet<String> = found.iter().map(ToString::to_string).collect();
        for text in texts.difference(&self.house.said) {
            error!("{text}");
            self.push("reverse_path", "node".to_owned(), text.clone(), "daemon", probe::now().0);
        }
        self.house.said = texts;
    }

    /// Takes words about neighbours, and judges at once if they concern origins.
    pub(super) fn saw_neighbours(&mut self, words: &[Neighbour]) {
        self.house.saw(words, probe::now());
        if self.tell_neighbours() {
            self.tick();
        }
    }

    /// Tells the judgement where origins are: what fails together is one cause.
    pub(super) fn tell_sites(&mut self) {
        let ids = self.datapath.registry();
        let site = |(&address, hop): (&SocketAddr, &Hop)| {
            let site = Site { host: place(address.ip(), 0), hop: place(hop.next, hop.interface) };
            (ids.origin(address), site)
        };
        self.input.sites.extend(self.house.ways.origins.iter().map(site));
    }

    /// Tells the judgement what is new about the next hops of origins; whether there was something.
    pub(super) fn tell_neighbours(&mut self) -> bool {
        let news = self.house.news(self.datapath.registry());
        for &(id, since) in &news {
            let object = self.object(id.0);
            let (what, detail) = match since {
                Some(_) => ("unreachable", "nobody answers for its next hop on the link"),
                None => ("reachable", "its next hop is found again, or no longer asked for"),
            };
            if since.is_some() {
                self.tallies.unreachable(id.0);
            }
            info!(what, object, detail, "neighbour");
            self.push(what, object, detail.to_owned(), "kernel", since.unwrap_or_else(probe::now).0);
        }
        let is_news = !news.is_empty();
        self.input.neighbours.extend(news);
        is_news
    }

    /// All hooks, for the first time; then what they steer is ours alone, and they are tested.
    pub(super) fn attach_first(&mut self) -> Result<(), StartError> {
        for change in self.datapath.attach() {
            start::say(&change);
            if let Change::Failed(_, error) = change {
                return Err(StartError::Hook(error));
            }
        }
        self.datapath.attach_cgroup(&self.config)?;
        for begun in self.datapath.take_over(probe::now())? {
            self.handover("begun", begun);
        }
        self.self_test();
        self.test_timeout();
        Ok(())
    }

    /// Looks whether every program sees what it should. What is found is said; nothing is refused for it.
    pub(super) fn self_test(&mut self) {
        match self.datapath.self_test() {
            Ok(blind) => {
                for Blind { target, hook, seen } in blind {
                    error!(target, hook, seen, "a hook is blind");
                    self.push("hook_blind", target, format!("{hook}: {seen}"), "daemon", probe::now().0);
                }
            }
            Err(error) => error!(error = %start::chain(&error), "cannot test the hooks"),
        }
    }

    /// Looks whether the SYN timeouts of sockets are in force. Once, at the start.
    pub(super) fn test_timeout(&mut self) {
        match self.datapath.test_timeout() {
            Ok(Some(TimeoutTest::InForce)) => info!("SYN timeouts of sockets are in force"),
            Ok(Some(TimeoutTest::Outside)) => {
                info!("the daemon runs outside of node.cgroup, so it can't test the SYN timeouts of sockets there");
            }
            Ok(Some(TimeoutTest::Overridden { asked, seen })) => {
                let detail = format!(
                    "asked for {asked:?}, a socket waits {seen:?}: another sock_ops program answers after ours \
                     (`bpftool cgroup tree` shows it), so attempts are rescued only when that time is over"
                );
                warn!("SYN timeouts of sockets are not in force: {detail}");
                self.push("syn_timeout_overridden", "node".to_owned(), detail, "daemon", probe::now().0);
            }
            Ok(None) => {}
            Err(error) => error!(error = %start::chain(&error), "cannot test the SYN timeout"),
        }
    }

    fn handover(&self, word: &str, handover: Handover) {
        let Handover { abi, flows } = handover;
        let detail = format!("{word}: {flows} redirected flows are served by the programs of v{abi}");
        info!(abi, flows, word, "handover");
        self.push("handover", format!("v{abi}"), detail, "daemon", probe::now().0);
    }

    /// Entries as the sweeper last counted them.
    pub(super) fn map_scrapes(&self) -> Vec<MapScrape> {
        let limits = self.config.node.limits;
        let origins = self.datapath.registry().live().len() as u64;
        let census = self.sweeper.census();
        // These tables exist once for each family.
        let twice = |entries: u32| 2 * u64::from(entries);
        vec![
            MapScrape { name: "origins", entries: Some(origins), max: u64::from(limits.origins) },
            MapScrape { name: "moved", entries: Some(self.sweeper.live()), max: twice(limits.moved) },
            MapScrape { name: "flows", entries: census.map(|c| c.flows.entries), max: twice(limits.flows) },
            MapScrape { name: "half_open", entries: census.map(|c| c.half_open.entries), max: twice(limits.half_open) },
        ]
    }

    /// What was pushed out of the tables.
    pub(super) fn evictions(&self) -> Vec<(&'static str, u64)> {
        let census = self.sweeper.census();
        census.map_or_else(Vec::new, |c| vec![("flows", c.flows.evicted), ("half_open", c.half_open.evicted)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_is_a_hop_and_so_is_a_link() {
        let way = |address: &str, interface, next: &str| {
            route(address.parse().expect("an address"), Hop { interface, next: next.parse().expect("an address") })
        };
        let (far, farther) = (way("10.1.1.1", 2, "10.0.0.1"), way("10.1.2.1", 2, "10.0.0.1"));
        assert!(far.gateway && far.hop == farther.hop && far.prefix != farther.prefix);
        assert_ne!(far.hop, way("10.1.1.1", 3, "10.0.0.1").hop, "the same address on another link");
        let (near, beside) = (way("10.0.0.7", 2, "10.0.0.7"), way("10.0.0.8", 2, "10.0.0.8"));
        assert!(!near.gateway && near == beside, "one link, one prefix");
        assert_ne!(near.hop, far.hop);
        let (v6, other) = (way("2001:db8:1::1", 2, "fe80::1"), way("2001:db8:2::1", 2, "fe80::1"));
        assert!(v6.gateway && v6.hop == other.hop && v6.prefix != other.prefix);
    }
}
