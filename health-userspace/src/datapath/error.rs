//! Why the kernel does not do as planned.

use std::{io, net::SocketAddr, path::PathBuf};

use aya::{EbpfError, maps::MapError, pin::PinError, programs::ProgramError};

/// Errors of the datapath.
#[derive(Debug, thiserror::Error)]
pub enum DatapathError {
    /// Not allowed to load programs.
    #[error(
        "loading eBPF programs needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (for node.netns CAP_SYS_ADMIN too): run sluice as root"
    )]
    Permission,
    /// The pin directory is not in a BPF filesystem.
    #[error("`{}` is not in a BPF filesystem: mount one with `mount -t bpf bpf /sys/fs/bpf`, or set node.pin_dir", path.display())]
    NoBpffs {
        /// The pin directory.
        path: PathBuf,
    },
    /// Another daemon holds the pins.
    #[error("another sluice daemon{} uses `{}`: stop it first, or give this one another node.pin_dir", pid.map_or_else(String::new, |pid| format!(" (pid {pid})")), path.display())]
    Locked {
        /// The pin directory.
        path: PathBuf,
        /// The other daemon.
        pid: Option<u32>,
    },
    /// No pins: nothing was ever loaded, or it was detached.
    #[error("no sluice in `{}`: nothing is loaded there", path.display())]
    NotLoaded {
        /// The pin directory.
        path: PathBuf,
    },
    /// A file operation on the pin directory failed.
    #[error("cannot use `{}`", path.display())]
    Pins {
        /// What could not be used.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The object could not be read, or a map could not be made.
    #[error("cannot load the kernel half")]
    Object(#[source] Box<EbpfError>),
    /// The kernel refused a program.
    #[error("cannot load program `{program}`, which needs Linux {needs}")]
    Program {
        /// Which.
        program: &'static str,
        /// Least kernel.
        needs: &'static str,
        /// Why.
        source: Box<ProgramError>,
    },
    /// The verifier refused a program. Not for want of a right: that is said before it looks.
    #[error("the kernel's verifier refuses program `{program}`, which needs Linux {needs}; its last words:\n{words}")]
    Verifier {
        /// Which.
        program: &'static str,
        /// Least kernel.
        needs: &'static str,
        /// The end of its log.
        words: String,
    },
    /// A program could not be attached.
    #[error("cannot attach program `{program}` to {target}")]
    Attach {
        /// Which.
        program: &'static str,
        /// Interface or cgroup.
        target: String,
        /// Why.
        source: Box<ProgramError>,
    },
    /// A link could not be pinned, taken over or updated.
    #[error("cannot keep the link `{link}`")]
    Link {
        /// Name of its pin.
        link: String,
        /// Why.
        source: io::Error,
    },
    /// A pin failed.
    #[error("cannot pin `{name}`")]
    Pin {
        /// Name of the pin.
        name: String,
        /// Why.
        source: Box<PinError>,
    },
    /// The object lacks a part: it was built from other sources.
    #[error("the kernel half has no `{name}`: build it again with `cargo xtask build`")]
    Missing {
        /// Map or program.
        name: &'static str,
    },
    /// A map could not be opened or read.
    #[error("cannot read map `{map}`")]
    MapRead {
        /// Which.
        map: &'static str,
        /// Why.
        source: Box<MapError>,
    },
    /// A map kept its old value.
    #[error("cannot write map `{map}`")]
    MapWrite {
        /// Which.
        map: &'static str,
        /// Why.
        source: Box<MapError>,
    },
    /// No number is free.
    #[error("all {max} numbers for {what} are taken: raise node.limits.{what} and restart after `sluice detach`")]
    Full {
        /// `origins`, `frontends`.
        what: &'static str,
        /// How many there are.
        max: u32,
    },
    /// An interface whose packets begin with something that the programs can't read.
    #[error(
        "interface `{interface}` carries neither Ethernet frames nor plain IP packets (GRE without a fixed far end has its outer header before them): list the interface below it in node.interfaces"
    )]
    Unreadable {
        /// Which.
        interface: String,
    },
    /// XDP on an interface without Ethernet headers.
    #[error("interface `{interface}` carries no Ethernet frames, and XDP is for those: take it out of node.xdp")]
    NoXdp {
        /// Which.
        interface: String,
    },
    /// Somebody else's XDP program is on an interface.
    #[error(
        "interface `{interface}` carries the XDP program `{name}` (id {id}), which is not ours and is left alone: take the interface out of node.xdp, or remove that program with `ip link set dev {interface} xdp off`"
    )]
    ForeignXdp {
        /// Which.
        interface: String,
        /// The program's name.
        name: String,
        /// Its number in the kernel.
        id: u32,
    },
    /// The driver of an interface refused XDP.
    #[error(
        "cannot attach XDP in the driver of `{interface}`: take the interface out of node.xdp, and it is observed at TC, with the same counts"
    )]
    Xdp {
        /// Which.
        interface: String,
        /// Why.
        source: Box<ProgramError>,
    },
    /// The daemon of another version runs.
    #[error(
        "a sluice daemon with another map layout (v{abi}) uses `{}`: stop it first; its redirected flows are served until they end", path.display()
    )]
    OtherAbi {
        /// Its version of the layout.
        abi: u32,
        /// The pin directory of that version.
        path: PathBuf,
    },
    /// The cgroup v2 hierarchy was not found.
    #[error("no cgroup v2 hierarchy is mounted: mount one, or switch socket steering off with node.cgroup = \"\"")]
    NoCgroup,
    /// A cgroup or namespace in the configuration can't be used.
    #[error("cannot use `{}` of the configuration", path.display())]
    Path {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The routing table could not be asked.
    #[error("cannot find the route to {address}")]
    Route {
        /// To where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A hook could not be tested.
    #[error("cannot test the hooks of {target}")]
    SelfTest {
        /// Interface, or hook.
        target: String,
        /// Why.
        source: io::Error,
    },
    /// The SYN timeout could not be tested.
    #[error("cannot test the SYN timeout of sockets")]
    TimeoutTest {
        /// Why.
        source: io::Error,
    },
    /// What an origin answers would be dropped.
    #[error(
        "service `{service}`: flows that asked for `{asked}` and move to `{serving}` are answered by interface `{interface}`, where strict reverse path filtering drops them: set net.ipv4.conf.{interface}.rp_filter = 2 (loose)"
    )]
    StrictReversePath {
        /// Which.
        service: String,
        /// The origin or virtual address that the flow asked for.
        asked: String,
        /// The origin that serves it.
        serving: String,
        /// Where its answers come in.
        interface: String,
    },
    /// What is sent to a virtual address passes no hook.
    #[error(
        "service `{service}`: nothing that is sent to its virtual address {address} passes this node's hooks: steer sockets with node.cgroup, list in node.client_interfaces where clients arrive, or route the address by one of node.interfaces"
    )]
    VipUnseen {
        /// Which.
        service: String,
        /// Its virtual address.
        address: SocketAddr,
    },
    /// An origin's packets would pass us by.
    #[error(
        "the route to origin {address} leaves by `{interface}`, which is not listed in node.interfaces: add it there, or mend the route"
    )]
    UnlistedRoute {
        /// The origin.
        address: SocketAddr,
        /// Where its route leaves.
        interface: String,
    },
}

impl DatapathError {
    /// Whether the same plan may succeed at the next tick.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::MapWrite { .. } | Self::MapRead { .. })
    }
}
