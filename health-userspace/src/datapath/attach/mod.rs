//! Programs on hooks: attached once, pinned, taken over by the next start without a gap.
//!
//! | file | does |
//! |---|---|
//! | `cgroup` | the hooks of sockets |
//! | `link` | links that are pinned, and taken over |
//! | `kind` | what the packets of an interface begin with |
//! | `interface` | TC: TCX links, or filters under clsact before Linux 6.6 |
//! | `xdp` | XDP, and whose program is there already |

mod cgroup;
mod interface;
mod kind;
mod link;
mod xdp;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use aya::Ebpf;
use nix::net::if_::if_nametoindex;

use super::{DatapathError, handover, load::Pins, selftest::Blind};
use crate::config::{InterfacePattern, NodeConfig};

pub use cgroup::cgroup_root;
pub(super) use interface::{has_tcx, pinned, remove_filters};
use kind::Kind;
pub(super) use link::find;
use link::unpin;

/// The hooks of an interface, in the order in which they are attached: what receives before what sends, for an answer
/// that nobody translates back is lost; forwarded clients last.
pub(super) const INTERFACE_HOOKS: [&str; 4] = ["xdp", "tc_ingress", "tc_egress", "tc_client"];

/// One hook that Sluice should hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Interface, or cgroup path.
    pub target: String,
    /// `tc_ingress`, `connect4`, …
    pub hook: &'static str,
    /// Why it is not held, in words; `None` when it is.
    pub missing: Option<String>,
}

/// What a round of attaching changed.
#[derive(Clone, Debug)]
pub enum Change {
    /// Programs are on this interface or cgroup now.
    Attached(String),
    /// A former daemon's programs were taken over.
    Adopted(String),
    /// It went away.
    Gone(String),
    /// It is waited for.
    Waiting(String),
    /// It can't carry the programs. Said once; tried again in each round.
    Failed(String, Arc<DatapathError>),
}

/// Which interfaces carry which programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lists {
    origin: Vec<InterfacePattern>,
    client: Vec<InterfacePattern>,
    xdp: Vec<InterfacePattern>,
}

impl Lists {
    pub(super) fn of(node: &NodeConfig) -> Self {
        Self { origin: node.interfaces.clone(), client: node.client_interfaces.clone(), xdp: node.xdp.clone() }
    }

    /// Hooks of an interface, and the program that each shall carry; in the order of [`INTERFACE_HOOKS`].
    fn wanted(&self, interface: &str) -> Vec<(&'static str, &'static str)> {
        let listed = |list: &[InterfacePattern]| list.iter().any(|pattern| pattern.matches(interface));
        let (origin, client) = (listed(&self.origin), listed(&self.client));
        let xdp = origin && listed(&self.xdp);
        let mut wanted = Vec::new();
        if xdp {
            wanted.push(("xdp", "xdp_ingress"));
        }
        if origin {
            // What XDP has observed is only rewritten at TC.
            wanted.push(("tc_ingress", if xdp { "ingress_behind" } else { "ingress" }));
            wanted.push(("tc_egress", "egress"));
        }
        if client {
            wanted.push(("tc_client", "client"));
        }
        wanted
    }

    /// Names that are waited for, in the order of the file.
    fn exact(&self) -> BTreeSet<&str> {
        self.origin
            .iter()
            .chain(&self.client)
            .filter(|pattern| pattern.is_exact())
            .map(InterfacePattern::as_str)
            .collect()
    }
}

/// An interface that carries our programs.
#[derive(Debug, Default)]
struct Held {
    /// The number that it had then: another of the same name has another.
    index: u32,
    /// Hooks and the program of each.
    hooks: BTreeMap<&'static str, &'static str>,
}

/// All hooks.
pub(super) struct Hooks {
    lists: Lists,
    held: BTreeMap<String, Held>,
    /// Names that were said to be waited for.
    waiting: BTreeSet<String>,
    /// Interfaces that failed, by the number that they had then.
    failed: BTreeMap<String, u32>,
    /// Hooks that did not see their test packet.
    blind: Vec<Blind>,
    cgroup: cgroup::Sockets,
}

impl Hooks {
    pub(super) fn new(lists: Lists) -> Self {
        Self {
            lists,
            held: BTreeMap::new(),
            waiting: BTreeSet::new(),
            failed: BTreeMap::new(),
            blind: Vec::new(),
            cgroup: cgroup::Sockets::default(),
        }
    }

    /// Takes other lists; what is no longer meant is let go at once, what is meant from now on in the next round.
    pub(super) fn set_lists(&mut self, pins: &Pins, lists: Lists) {
        if lists != self.lists {
            self.failed.clear();
        }
        self.lists = lists;
        for (name, held) in &mut self.held {
            let wanted = self.lists.wanted(name);
            held.hooks.retain(|hook, _| {
                let meant = wanted.iter().any(|(wanted, _)| wanted == hook);
                if !meant {
                    let_go(pins, hook, name);
                }
                meant
            });
        }
        self.held.retain(|_, held| !held.hooks.is_empty());
    }

    /// Attaches to what has appeared, forgets what is gone.
    pub(super) fn round(&mut self, ebpf: &mut Ebpf, pins: &Pins, others: &[Arc<handover::Other>]) -> Vec<Change> {
        let present = interfaces();
        let mut changes = self.forget(pins, &present);
        let mut touched: BTreeMap<&String, bool> = BTreeMap::new();
        // Hook by hook: a redirected flow may leave by one interface and be answered by another.
        for hook in INTERFACE_HOOKS {
            for (name, &index) in &present {
                let Some(&(_, program)) = self.lists.wanted(name).iter().find(|(wanted, _)| *wanted == hook) else {
                    continue;
                };
                if self.held.get(name).is_some_and(|held| held.hooks.get(hook) == Some(&program)) {
                    continue;
                }
                match attach(ebpf, pins, others, (hook, program), (name, index)) {
                    Ok(adopted) => {
                        let held = self.held.entry(name.clone()).or_default();
                        held.index = index;
                        held.hooks.insert(hook, program);
                        *touched.entry(name).or_default() |= adopted;
                    }
                    Err(error) => {
                        if self.failed.insert(name.clone(), index) != Some(index) {
                            changes.push(Change::Failed(name.clone(), Arc::new(error)));
                        }
                    }
                }
            }
        }
        for (name, adopted) in touched {
            if self.is_complete(name) {
                self.waiting.remove(name);
                self.failed.remove(name);
                changes.push(if adopted { Change::Adopted(name.clone()) } else { Change::Attached(name.clone()) });
            }
        }
        for name in self.lists.exact() {
            if !present.contains_key(name) && self.waiting.insert(name.to_owned()) {
                changes.push(Change::Waiting(name.to_owned()));
            }
        }
        changes
    }

    /// Interfaces that are gone, or another one of the same name.
    fn forget(&mut self, pins: &Pins, present: &BTreeMap<String, u32>) -> Vec<Change> {
        let lost: Vec<String> = self
            .held
            .iter()
            .filter(|(name, held)| present.get(*name) != Some(&held.index))
            .map(|(name, _)| name.clone())
            .collect();
        self.failed.retain(|name, index| present.get(name) == Some(index));
        lost.into_iter()
            .map(|name| {
                for hook in self.held.remove(&name).unwrap_or_default().hooks.keys() {
                    let_go(pins, hook, &name);
                }
                // That it is missing has just been said.
                self.waiting.insert(name.clone());
                Change::Gone(name)
            })
            .collect()
    }

    fn is_complete(&self, interface: &str) -> bool {
        let held = self.held.get(interface);
        self.lists
            .wanted(interface)
            .iter()
            .all(|(hook, program)| held.is_some_and(|h| h.hooks.get(hook) == Some(program)))
    }

    /// Attaches the socket programs, or takes them away where the configuration wants none.
    pub(super) fn cgroup(&mut self, ebpf: &mut Ebpf, pins: &Pins, node: &NodeConfig) -> Result<(), DatapathError> {
        self.cgroup.attach(ebpf, pins, &node.cgroup)
    }

    /// Where the socket programs hang.
    pub(super) fn cgroup_path(&self) -> Option<&Path> {
        self.cgroup.path()
    }

    /// Interfaces that carry our programs, and their numbers.
    pub(super) fn interfaces(&self) -> Vec<(String, u32)> {
        self.held.iter().map(|(name, held)| (name.clone(), held.index)).collect()
    }

    /// Those of `hooks` that an interface carries and whose program counts what it can't read: behind XDP none does.
    pub(super) fn counting(&self, interface: &str, hooks: &[&'static str]) -> Vec<&'static str> {
        let carries = |hook: &str| self.held.get(interface).and_then(|held| held.hooks.get(hook)).copied();
        hooks.iter().copied().filter(|hook| carries(hook).is_some_and(|program| program != "ingress_behind")).collect()
    }

    /// Whether XDP observes an interface.
    pub(super) fn is_behind_xdp(&self, interface: &str) -> bool {
        self.held.get(interface).is_some_and(|held| held.hooks.contains_key("xdp"))
    }

    /// What the self-test found is shown with the hooks.
    pub(super) fn set_blind(&mut self, blind: &[Blind]) {
        self.blind = blind.to_vec();
    }

    /// Whether an interface carries our programs.
    pub(super) fn holds(&self, interface: &str) -> bool {
        self.held.contains_key(interface)
    }

    /// All hooks that should be held.
    pub(super) fn list(&self) -> Vec<Hook> {
        let mut hooks = Vec::new();
        let names: BTreeSet<&str> =
            self.lists.exact().into_iter().chain(self.held.keys().map(String::as_str)).collect();
        for name in names {
            let held = self.held.get(name);
            for (hook, program) in self.lists.wanted(name) {
                let missing = if held.is_some_and(|held| held.hooks.get(hook) == Some(&program)) {
                    None
                } else if self.failed.contains_key(name) {
                    Some("it can't be attached: see the log".to_owned())
                } else {
                    Some("no such interface yet".to_owned())
                };
                hooks.push(Hook { target: name.to_owned(), hook, missing });
            }
        }
        hooks.extend(self.cgroup.list());
        for blind in &self.blind {
            for hook in
                hooks.iter_mut().filter(|h| h.missing.is_none() && h.target == blind.target && h.hook == blind.hook)
            {
                hook.missing = Some(format!("it is blind: {}", blind.seen));
            }
        }
        hooks
    }
}

/// Attaches one hook, with the program that reads what passes there; whether a former daemon's link was taken over.
fn attach(
    ebpf: &mut Ebpf,
    pins: &Pins,
    others: &[Arc<handover::Other>],
    (hook, program): (&'static str, &'static str),
    (interface, index): (&str, u32),
) -> Result<bool, DatapathError> {
    let program = Kind::of(interface)?.program(program, interface)?;
    let place = interface::Place { hook, program, interface, index };
    if hook == "xdp" { xdp::attach(ebpf, pins, &place) } else { interface::attach(ebpf, pins, others, &place) }
}

/// A link without a pin ends with its last descriptor; a filter is removed.
fn let_go(pins: &Pins, hook: &str, interface: &str) {
    unpin(&pins.link(&link_name(hook, interface)));
    if !has_tcx() {
        interface::remove_filter(health_common::ABI_VERSION, hook, interface);
    }
}

/// The name of a link's pin.
pub(super) fn link_name(hook: &str, interface: &str) -> String {
    format!("{hook}-{interface}")
}

/// Names and numbers of this namespace's interfaces.
fn interfaces() -> BTreeMap<String, u32> {
    nix::net::if_::if_nameindex()
        .map(|list| list.iter().map(|i| (i.name().to_string_lossy().into_owned(), i.index())).collect())
        .unwrap_or_default()
}

/// The number of an interface; `None` when it isn't there.
pub(super) fn index_of(interface: &str) -> Option<u32> {
    if_nametoindex(interface).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(text: &str) -> Lists {
        let service = "[[service]]\nname = \"s\"\n[[service.origin]]\nname = \"a\"\naddress = \"10.0.1.10:443\"\n";
        let checked = crate::config::parse(&format!("[node]\n{text}\n{service}"), "test.toml").expect("valid");
        Lists::of(&checked.config.node)
    }

    #[test]
    fn an_interface_carries_what_its_lists_say() {
        let lists =
            lists("interfaces = [\"eth*\", \"both\"]\nclient_interfaces = [\"cli0\", \"both\"]\nxdp = [\"eth1\"]");
        assert_eq!(lists.wanted("eth0"), [("tc_ingress", "ingress"), ("tc_egress", "egress")]);
        assert_eq!(
            lists.wanted("eth1"),
            [("xdp", "xdp_ingress"), ("tc_ingress", "ingress_behind"), ("tc_egress", "egress")]
        );
        assert_eq!(lists.wanted("cli0"), [("tc_client", "client")]);
        let both = lists.wanted("both");
        assert_eq!(both, [("tc_ingress", "ingress"), ("tc_egress", "egress"), ("tc_client", "client")]);
        assert!(lists.wanted("lo").is_empty());
        assert_eq!(lists.exact(), BTreeSet::from(["both", "cli0"]));
    }

    #[test]
    fn hooks_are_attached_in_the_order_of_their_list() {
        let lists = lists("interfaces = [\"all\"]\nclient_interfaces = [\"all\"]\nxdp = [\"all\"]");
        let hooks: Vec<&str> = lists.wanted("all").into_iter().map(|(hook, _)| hook).collect();
        assert_eq!(hooks, INTERFACE_HOOKS);
    }
}
