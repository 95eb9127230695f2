//! Which episodes a run plays, and in which labs.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use lab::{Family, Fault, Method};
use serde::Serialize;

/// Of a run that nobody asked to be longer.
const RUN_LIMIT: Duration = Duration::from_mins(12);

/// A way of the traffic to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Route {
    /// Sockets of the node.
    Local,
    /// The same with socket steering off, so that NAT does it.
    Packet,
    /// A client that asks the origin itself; the node only forwards.
    Forwarded,
    /// A client through nginx on the node, with nginx's own defaults.
    Nginx,
    /// A client through HAProxy on the node, with HAProxy's own defaults.
    Haproxy,
}

impl Route {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Packet => "packet",
            Self::Forwarded => "forwarded",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
        }
    }

    /// Whether a proxy ends the load's connections.
    pub(crate) const fn is_proxied(self) -> bool {
        matches!(self, Self::Nginx | Self::Haproxy)
    }

    /// Whether `fault` is played on this path. A link that is down matters where packets wait for a neighbour's address,
    /// and there the paths differ: a socket that is steered never asks for it.
    const fn plays(self, fault: Fault) -> bool {
        !matches!(fault, Fault::LinkDown) || matches!(self, Self::Local | Self::Forwarded)
    }
}

/// [`Fault`] for the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EpisodeName {
    Refused,
    Blackhole,
    Hang,
    Errors,
    Slow,
    Flap,
    Linkdown,
}

impl EpisodeName {
    const fn fault(self) -> Fault {
        match self {
            Self::Refused => Fault::Refused,
            Self::Blackhole => Fault::Blackhole,
            Self::Hang => Fault::Hang,
            Self::Errors => Fault::Errors,
            Self::Slow => Fault::Slow,
            Self::Flap => Fault::Flap,
            Self::Linkdown => Fault::LinkDown,
        }
    }
}

/// [`Family`] for the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FamilyName {
    Ipv4,
    Ipv6,
}

impl FamilyName {
    const fn family(self) -> Family {
        match self {
            Self::Ipv4 => Family::Ipv4,
            Self::Ipv6 => Family::Ipv6,
        }
    }
}

/// [`Method`] for the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MethodName {
    Get,
    Post,
}

impl MethodName {
    const fn method(self) -> Method {
        match self {
            Self::Get => Method::Get,
            Self::Post => Method::Post,
        }
    }
}

/// Episodes that share a lab, a daemon and a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) route: Route,
    pub(crate) family: Family,
    pub(crate) method: Method,
    pub(crate) two_links: bool,
    pub(crate) faults: Vec<Fault>,
}

impl Group {
    pub(crate) const fn links(&self) -> u8 {
        if self.two_links { 2 } else { 1 }
    }

    pub(crate) const fn method_name(&self) -> &'static str {
        match self.method {
            Method::Get => "GET",
            Method::Post => "POST",
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { route, family, .. } = self;
        let (route, family, method) = (route.name(), family.name(), self.method_name());
        write!(f, "{route}, {family}, {method}, {} link{}", self.links(), if self.two_links { "s" } else { "" })
    }
}

/// How much is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// One path, one family, one method, the first three faults.
    Quick,
    /// Every path with every fault, while families, methods and links take turns.
    Usual,
    /// Every combination.
    Full,
}

/// What the command line asks for. An empty list leaves it to the extent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice<'a> {
    pub(crate) extent: Extent,
    pub(crate) routes: &'a [Route],
    pub(crate) families: &'a [FamilyName],
    pub(crate) methods: &'a [MethodName],
    pub(crate) episodes: &'a [EpisodeName],
}

/// Faults that share a lab. Hold-downs grow with each fault of an origin, so no lab sees all of them.
const TOGETHER: [&[Fault]; 2] =
    [&[Fault::Refused, Fault::Blackhole, Fault::Hang], &[Fault::Errors, Fault::Slow, Fault::LinkDown, Fault::Flap]];

/// Where the usual run has b on a link of its own, so that a move changes the outgoing interface.
const TWO_LINKS: [(Route, usize); 2] = [(Route::Packet, 0), (Route::Forwarded, 1)];

impl Choice<'_> {
    /// The labs to play, in order.
    pub(crate) fn groups(&self) -> Vec<Group> {
        let routes = match (self.routes, self.extent) {
            ([], Extent::Quick) => &[Route::Local][..],
            ([], _) => Route::value_variants(),
            (asked, _) => asked,
        };
        let together =
            if self.extent == Extent::Quick && self.episodes.is_empty() { &TOGETHER[..1] } else { &TOGETHER };
        let wanted =
            |fault: &Fault| self.episodes.is_empty() || self.episodes.iter().any(|name| name.fault() == *fault);
        let mut groups = Vec::new();
        for &route in routes {
            for (half, faults) in together.iter().enumerate() {
                let faults: Vec<Fault> =
                    faults.iter().copied().filter(|&fault| wanted(&fault) && route.plays(fault)).collect();
                for (family, method, two_links) in self.variants(route, half) {
                    groups.push(Group { route, family, method, two_links, faults: faults.clone() });
                }
            }
        }
        groups.retain(|group| !group.faults.is_empty());
        groups
    }

    /// Of the whole run; none where every combination was asked for.
    pub(crate) const fn limit(&self) -> Option<Duration> {
        match self.extent {
            Extent::Full => None,
            Extent::Quick | Extent::Usual => Some(RUN_LIMIT),
        }
    }

    /// Families, methods and links of one path's half of the faults.
    fn variants(&self, route: Route, half: usize) -> Vec<(Family, Method, bool)> {
        // Turns such that each path meets both families and both methods, and each half of the faults every pair.
        let turn = match route {
            Route::Local => 0,
            Route::Forwarded => 1,
            Route::Packet => 2,
            Route::Nginx => 3,
            Route::Haproxy => 4,
        };
        let in_turn = |two: [bool; 2]| two[(turn + half) % 2];
        let (ipv6, post, two_links) = match self.extent {
            Extent::Quick => (vec![false], vec![false], vec![false]),
            Extent::Usual => {
                let post = in_turn([false, true]) != (turn / 2 % 2 == 1);
                (vec![in_turn([false, true])], vec![post], vec![TWO_LINKS.contains(&(route, half))])
            }
            Extent::Full if route.is_proxied() => (vec![false, true], vec![false, true], vec![false]),
            Extent::Full => (vec![false, true], vec![false, true], vec![false, true]),
        };
        let families: Vec<Family> = if self.families.is_empty() {
            ipv6.into_iter().map(|ipv6| if ipv6 { Family::Ipv6 } else { Family::Ipv4 }).collect()
        } else {
            self.families.iter().map(|name| name.family()).collect()
        };
        let methods: Vec<Method> = if self.methods.is_empty() {
            post.into_iter().map(|post| if post { Method::Post } else { Method::Get }).collect()
        } else {
            self.methods.iter().map(|name| name.method()).collect()
        };
        let mut variants = Vec::new();
        for &family in &families {
            for &method in &methods {
                variants.extend(two_links.iter().map(|&two_links| (family, method, two_links)));
            }
        }
        variants
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Choice<'_> = Choice { extent: Extent::Usual, routes: &[], families: &[], methods: &[], episodes: &[] };

    #[test]
    fn the_usual_run_has_every_path_with_every_fault_once_and_everything_meets_both_families_and_methods() {
        let all = ALL.groups();
        for &route in Route::value_variants() {
            let of_route = || all.iter().filter(|group| group.route == route);
            let faults: Vec<Fault> = of_route().flat_map(|group| group.faults.clone()).collect();
            let want = Fault::ALL.into_iter().filter(|&fault| route.plays(fault)).count();
            assert_eq!(faults.len(), want, "{faults:?}");
            assert!(Family::ALL.iter().all(|&family| of_route().any(|group| group.family == family)), "{route:?}");
            let methods = [Method::Get, Method::Post];
            assert!(methods.iter().all(|&method| of_route().any(|group| group.method == method)), "{route:?}");
        }
        for fault in Fault::ALL {
            let of_fault = || all.iter().filter(|group| group.faults.contains(&fault));
            assert!(Family::ALL.iter().all(|&family| of_fault().any(|group| group.family == family)), "{fault:?}");
            let methods = [Method::Get, Method::Post];
            assert!(methods.iter().all(|&method| of_fault().any(|group| group.method == method)), "{fault:?}");
        }
        let over_two =
            |group: &Group| group.two_links && group.route == Route::Packet && group.faults.contains(&Fault::Refused);
        assert!(all.iter().any(over_two));
    }

    #[test]
    fn quick_is_the_first_three_faults_once() {
        let quick = Choice { extent: Extent::Quick, ..ALL };
        let want = Group {
            route: Route::Local,
            family: Family::Ipv4,
            method: Method::Get,
            two_links: false,
            faults: vec![Fault::Refused, Fault::Blackhole, Fault::Hang],
        };
        assert_eq!(quick.groups(), [want]);
        let other = Choice { routes: &[Route::Nginx], episodes: &[EpisodeName::Errors], ..quick };
        assert_eq!(other.groups().iter().map(|group| group.faults.len()).sum::<usize>(), 1);
    }

    #[test]
    fn full_is_every_combination_and_a_selector_is_taken_at_its_word() {
        let full = Choice { extent: Extent::Full, ..ALL }.groups();
        let count =
            |route| full.iter().filter(|group| group.route == route).map(|group| group.faults.len()).sum::<usize>();
        assert_eq!((count(Route::Local), count(Route::Packet), count(Route::Haproxy)), (7 * 8, 6 * 8, 6 * 4));
        let asked = Choice { families: &[FamilyName::Ipv6, FamilyName::Ipv4], methods: &[MethodName::Post], ..ALL };
        let groups = asked.groups();
        assert_eq!(groups.len(), 2 * 2 * Route::value_variants().len());
        assert!(groups.iter().all(|group| group.method == Method::Post));
    }
}
