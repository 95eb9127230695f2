//! The only user of aya: load, attach, pin, adopt, read, write.
//!
//! [`Datapath`] is the daemon's handle. [`report`], [`flows`], [`detach`] and [`stop_steering`] work on the pins alone, without a
//! daemon.

mod attach;
mod census;
mod detach;
mod error;
pub mod flows;
mod handover;
pub mod live;
mod load;
mod maps;
mod neighbour;
mod node;
mod raw;
mod read;
mod registry;
pub mod report;
mod reverse;
mod ring;
mod route;
mod selftest;
mod sweep;
mod sys;
mod timeout;
mod write;

use std::{collections::BTreeMap, net::SocketAddr, path::Path};

use aya::Ebpf;
use health_common::map::Count;
use health_core::{
    Timestamp,
    engine::Plan,
    model::{OriginId, ServiceSpec},
};

pub use attach::{Change, Hook, cgroup_root};
pub use census::{Census, Table};
pub use detach::{detach, stop_steering};
pub use error::DatapathError;
pub use handover::Handover;
pub use load::{OBJECT, Sizes};
pub use neighbour::{Neighbour, Neighbours};
pub use read::OriginReading;
pub use registry::Registry;
pub use reverse::ReversePath;
pub use ring::Ring;
pub use route::{Hop, Routes, interface_name};
pub use selftest::Blind;
pub use sweep::Sweeper;
pub use timeout::TimeoutTest;
pub use write::Applied;

use crate::{config::Config, probe, report::DetachOutcome};

/// The kernel half, loaded and held by this daemon.
pub struct Datapath {
    pins: load::Pins,
    ebpf: Ebpf,
    maps: maps::Maps,
    hooks: attach::Hooks,
    others: handover::Others,
    registry: Registry,
    written: write::Written,
    /// What of each frontend no plan decides.
    owners: BTreeMap<u16, write::Owner>,
    adopted: bool,
}

impl Datapath {
    /// Takes the pins, loads the programs, adopts maps that are there.
    ///
    /// # Errors
    ///
    /// No BPF filesystem, no permission, another daemon, or a kernel that refuses a program.
    pub fn open(config: &Config) -> Result<Self, DatapathError> {
        let limits = config.node.limits;
        let sizes = Sizes {
            origins: limits.origins,
            frontends: limits.frontends,
            half_open: limits.half_open,
            flows: limits.flows,
            moved: limits.moved,
        };
        let pins = load::Pins::take(&config.node.pin_dir)?;
        let others = handover::find(&config.node.pin_dir)?;
        let (ebpf, adopted) = load::load(&pins, &sizes)?;
        let maps = maps::Maps::open(&config.node.pin_dir)?;
        let registry = Registry::read(&maps)?;
        let hooks = attach::Hooks::new(attach::Lists::of(&config.node));
        Ok(Self {
            pins,
            ebpf,
            maps,
            hooks,
            others,
            registry,
            written: write::Written::default(),
            owners: BTreeMap::new(),
            adopted,
        })
    }

    /// Passes the kernel half's log lines on, if debug lines are wanted. Within a runtime only.
    pub fn log(&mut self) {
        ring::spawn_logger(&mut self.ebpf);
    }

    /// Whether the maps of a former daemon were found.
    #[must_use]
    pub const fn adopted(&self) -> bool {
        self.adopted
    }

    /// What the pinned maps take, in bytes.
    ///
    /// # Errors
    ///
    /// A map that can't be asked.
    pub fn memory_bytes(&self) -> Result<u64, DatapathError> {
        report::memory_bytes(&self.pins.dir)
    }

    /// Gives numbers, and writes everything that only the configuration decides. Steering stays as it was until the next
    /// plan.
    ///
    /// # Errors
    ///
    /// No number is free, or a write failed.
    pub fn configure(
        &mut self,
        config: &Config,
        interfaces: &BTreeMap<SocketAddr, u32>,
    ) -> Result<Vec<ServiceSpec>, DatapathError> {
        self.registry.register(&mut self.maps, config)?;
        self.hooks.set_lists(&self.pins, attach::Lists::of(&config.node));
        self.written.configure(&mut self.maps, &self.registry, config, interfaces)?;
        let specs: Vec<ServiceSpec> = config.services.iter().map(|service| service.spec(&self.registry)).collect();
        self.owners = specs
            .iter()
            .flat_map(|spec| {
                spec.frontends.iter().map(|frontend| {
                    let own = frontend.own.unwrap_or(OriginId::NONE).0;
                    let flags = write::table_flags(&spec.policy);
                    (frontend.id.0, write::Owner { service: spec.id.0, own, flags })
                })
            })
            .collect();
        self.written.keep_frontends(&self.owners.keys().copied().collect());
        Ok(specs)
    }

    /// Attaches to interfaces that have appeared, lets go of those that are gone.
    pub fn attach(&mut self) -> Vec<Change> {
        self.hooks.round(&mut self.ebpf, &self.pins, &self.others.list())
    }

    /// Other layouts of the maps steer nothing new from now on; the sweeper removes them when their redirected flows have
    /// ended. Call it when this one's programs are attached.
    ///
    /// # Errors
    ///
    /// A map of the other that can't be written.
    pub fn take_over(&self, now: Timestamp) -> Result<Vec<Handover>, DatapathError> {
        self.others.list().iter().map(|other| other.silence(now)).collect()
    }

    /// Attaches the socket programs where the configuration wants them.
    ///
    /// # Errors
    ///
    /// No cgroup v2, or a kernel that refuses.
    pub fn attach_cgroup(&mut self, config: &Config) -> Result<(), DatapathError> {
        self.hooks.cgroup(&mut self.ebpf, &self.pins, &config.node)
    }

    /// Sends a test packet to each hook, and keeps which hooks did not see theirs.
    ///
    /// # Errors
    ///
    /// A hook that can't be tested.
    pub fn self_test(&mut self) -> Result<Vec<Blind>, DatapathError> {
        let blind = selftest::run(self)?;
        self.hooks.set_blind(&blind);
        Ok(blind)
    }

    /// Tests whether the SYN timeouts that the kernel half sets are in force. `None` where no sockets are steered.
    ///
    /// # Errors
    ///
    /// No sockets, or a map that can't be written.
    pub fn test_timeout(&mut self) -> Result<Option<TimeoutTest>, DatapathError> {
        let cgroup = self.hooks.cgroup_path();
        cgroup.map(|path| timeout::test(&mut self.maps.node, path)).transpose()
    }

    /// Numbers of our programs in the kernel.
    fn own_programs(&self) -> Vec<u32> {
        self.ebpf.programs().filter_map(|(_, program)| Some(program.info().ok()?.id())).collect()
    }

    /// Hooks that should be held.
    #[must_use]
    pub fn hooks(&self) -> Vec<Hook> {
        self.hooks.list()
    }

    /// Whether an interface carries our programs.
    #[must_use]
    pub fn holds(&self, interface: &str) -> bool {
        self.hooks.holds(interface)
    }

    /// The numbers.
    #[must_use]
    pub const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Where an origin's packets leave now.
    ///
    /// # Errors
    ///
    /// The write failed.
    pub fn set_interface(&mut self, origin: u16, ifindex: u32) -> Result<(), DatapathError> {
        self.written.set_interface(&mut self.maps, origin, ifindex)
    }

    /// Makes the kernel's steering that of the plan.
    pub fn apply(&mut self, plan: &Plan, now: Timestamp) -> Applied {
        self.written.apply(&mut self.maps, plan, &self.owners, now)
    }

    /// What the kernel knows of an origin.
    ///
    /// # Errors
    ///
    /// A map that can't be read.
    pub fn read(&self, origin: u16, now: Timestamp) -> Result<OriginReading, DatapathError> {
        read::origin(&self.maps, origin, now)
    }

    /// Node-wide counters.
    ///
    /// # Errors
    ///
    /// A map that can't be read.
    pub fn counts(&self) -> Result<Vec<(Count, u64)>, DatapathError> {
        read::counts(&self.maps)
    }

    /// The ring buffer of events. Within a runtime only.
    ///
    /// # Errors
    ///
    /// A map that can't be opened or waited for.
    pub fn events(&self) -> Result<Ring, DatapathError> {
        let ring = maps::events(&self.pins.dir)?;
        Ring::new(ring).map_err(|source| DatapathError::Pins { path: self.pins.dir.clone(), source })
    }

    /// Slots of each origin in a frontend's table in force, read back.
    ///
    /// # Errors
    ///
    /// A map that can't be read.
    pub fn shares(&self, frontend: u16) -> Result<BTreeMap<u16, u32>, DatapathError> {
        read::shares(&self.maps, frontend)
    }

    /// Starts the thread that takes ended redirections out of the maps.
    ///
    /// # Errors
    ///
    /// No thread, or a map that can't be opened.
    pub fn sweeper(&self) -> Result<Sweeper, DatapathError> {
        Sweeper::start(&self.pins.dir, self.others.clone())
    }

    /// Redirected flows that have not ended, those of other layouts too. Walks the tables.
    #[must_use]
    pub fn flows_redirected(&self) -> u64 {
        detach::live(&self.maps) + self.others.live(probe::now())
    }

    /// Steers nothing new from now on; redirected flows go on.
    ///
    /// # Errors
    ///
    /// A write failed.
    pub fn stop_steering(&mut self) -> Result<(), DatapathError> {
        detach::clear_frontends(&mut self.maps)
    }

    /// Removes programs and pins. Without `force` only while no redirected flow lives.
    ///
    /// # Errors
    ///
    /// A pin that can't be removed.
    pub fn detach(&mut self, force: bool) -> Result<DetachOutcome, DatapathError> {
        detach::remove(&self.pins.dir, &self.others, self.flows_redirected(), force)
    }

    /// Where the pins are.
    #[must_use]
    pub fn pin_dir(&self) -> &Path {
        &self.pins.dir
    }
}
