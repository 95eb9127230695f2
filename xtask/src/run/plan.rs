//! Which episodes a run plays, and in which labs.

use std::fmt;

use clap::ValueEnum;
use lab::{Family, Fault};
use serde::Serialize;

/// A way of the traffic to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Route {
    /// Sockets of the node.
    Local,
    /// The same with socket steering off, so that NAT does it.
    Packet,
    /// A client through nginx on the node, with nginx's own defaults.
    Nginx,
}

impl Route {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Packet => "packet",
            Self::Nginx => "nginx",
        }
    }
}

/// [`Fault`] for the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EpisodeName {
    Refused,
    Blackhole,
    Hang,
}

impl EpisodeName {
    const fn fault(self) -> Fault {
        match self {
            Self::Refused => Fault::Refused,
            Self::Blackhole => Fault::Blackhole,
            Self::Hang => Fault::Hang,
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

/// Episodes that share a lab, a daemon and a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) route: Route,
    pub(crate) family: Family,
    pub(crate) two_links: bool,
    pub(crate) faults: Vec<Fault>,
}

impl Group {
    pub(crate) const fn links(&self) -> u8 {
        if self.two_links { 2 } else { 1 }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { route, family, .. } = self;
        write!(f, "{}, {}, {} link{}", route.name(), family.name(), self.links(), if self.two_links { "s" } else { "" })
    }
}

/// What the command line asks for. An empty list means all, or with `quick` the one kind that it plays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice<'a> {
    pub(crate) quick: bool,
    pub(crate) routes: &'a [Route],
    pub(crate) families: &'a [FamilyName],
    pub(crate) episodes: &'a [EpisodeName],
}

/// The episodes with b on a link of its own: the moves that change the outgoing interface.
const TWO_LINKS: [(Route, Family, &[Fault]); 2] = [
    (Route::Packet, Family::Ipv4, &[Fault::Blackhole, Fault::Refused]),
    (Route::Local, Family::Ipv6, &[Fault::Refused]),
];

impl Choice<'_> {
    /// The labs to play, in order. Each path and family has a lab of its own, so that hold-downs, which grow with each
    /// fault of an origin, start anew.
    pub(crate) fn groups(&self) -> Vec<Group> {
        let routes = match (self.routes, self.quick) {
            ([], true) => &[Route::Local][..],
            ([], false) => Route::value_variants(),
            (asked, _) => asked,
        };
        let families: Vec<Family> = match (self.families, self.quick) {
            ([], true) => vec![Family::Ipv4],
            ([], false) => Family::ALL.to_vec(),
            (asked, _) => asked.iter().map(|name| name.family()).collect(),
        };
        let wanted =
            |fault: &Fault| self.episodes.is_empty() || self.episodes.iter().any(|name| name.fault() == *fault);
        let pick = |faults: &[Fault]| -> Vec<Fault> { faults.iter().copied().filter(wanted).collect() };
        let mut groups = Vec::new();
        for &route in routes {
            for &family in &families {
                groups.push(Group { route, family, two_links: false, faults: pick(&Fault::ALL) });
            }
        }
        for (route, family, faults) in TWO_LINKS {
            if !self.quick && routes.contains(&route) && families.contains(&family) {
                groups.push(Group { route, family, two_links: true, faults: pick(faults) });
            }
        }
        groups.retain(|group| !group.faults.is_empty());
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_run_has_every_path_family_and_fault_and_two_links() {
        let all = Choice { quick: false, routes: &[], families: &[], episodes: &[] }.groups();
        let one_link = all.iter().filter(|group| !group.two_links);
        assert_eq!(one_link.map(|group| group.faults.len()).sum::<usize>(), 3 * 2 * 3);
        assert_eq!(all.iter().filter(|group| group.two_links).map(|group| group.faults.len()).sum::<usize>(), 3);
    }

    #[test]
    fn quick_is_each_fault_once() {
        let quick = Choice { quick: true, routes: &[], families: &[], episodes: &[] }.groups();
        let want = Group { route: Route::Local, family: Family::Ipv4, two_links: false, faults: Fault::ALL.to_vec() };
        assert_eq!(quick, [want]);
        let other = Choice { quick: true, routes: &[Route::Nginx], families: &[], episodes: &[EpisodeName::Hang] };
        assert_eq!(other.groups().len(), 1);
    }
}
