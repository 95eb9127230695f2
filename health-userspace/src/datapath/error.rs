//! Why the kernel does not do as planned.

use std::{io, net::SocketAddr, path::PathBuf};

use aya::{EbpfError, maps::MapError, pin::PinError, programs::ProgramError};

/// Errors of the datapath.
#[derive(Debug, thiserror::Error)]
pub enum DatapathError {
    /// Not allowed to load programs.
    #[error(
        "loading and reading eBPF programs and maps needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON: run sluice as root"
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
        /// The verifier's log is in here.
        source: Box<ProgramError>,
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
    /// An interface without Ethernet headers.
    #[error(
        "interface `{interface}` carries no Ethernet frames, which is not yet supported: list the Ethernet interface below it in node.interfaces"
    )]
    NotEthernet {
        /// Which.
        interface: String,
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
