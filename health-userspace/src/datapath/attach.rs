//! Programs on hooks: attached once, pinned, taken over by the next start without a gap.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf,
    programs::{
        CgroupAttachMode, CgroupSock, CgroupSockAddr, LinkOrder, ProgramError, SchedClassifier, TcAttachType,
        links::FdLink,
        tc::{NlOptions, TcAttachOptions, qdisc_add_clsact},
    },
    util::KernelVersion,
};
use nix::net::if_::if_nametoindex;

use super::{
    DatapathError,
    load::{self, Pins},
    sys,
};
use crate::config::{CgroupSetting, InterfacePattern};

/// Priority of our filters under clsact, where the kernel has no TCX: before all others.
const CLSACT_PRIORITY: u16 = 1;

/// The programs of a cgroup, and the hooks' names in output.
const CGROUP_HOOKS: [(&str, &str); 5] = [
    ("connect4", "connect4"),
    ("connect6", "connect6"),
    ("peer4", "getpeername4"),
    ("peer6", "getpeername6"),
    ("release", "sock_release"),
];

/// The programs of an interface, and the hooks' names in output.
const INTERFACE_HOOKS: [(&str, &str); 2] = [("ingress", "tc_ingress"), ("egress", "tc_egress")];

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Programs are on this interface or cgroup now.
    Attached(String),
    /// A former daemon's programs were taken over.
    Adopted(String),
    /// It went away.
    Gone(String),
    /// It is waited for.
    Waiting(String),
}

/// All hooks.
pub(super) struct Hooks {
    patterns: Vec<InterfacePattern>,
    /// Interfaces that carry our programs, and the number that they had then.
    held: BTreeMap<String, u32>,
    /// Names that were said to be waited for.
    waiting: Vec<String>,
    cgroup: Option<PathBuf>,
}

impl Hooks {
    pub(super) const fn new(patterns: Vec<InterfacePattern>) -> Self {
        Self { patterns, held: BTreeMap::new(), waiting: Vec::new(), cgroup: None }
    }

    /// Takes another list; interfaces that are no longer meant are let go.
    pub(super) fn set_patterns(&mut self, pins: &Pins, patterns: Vec<InterfacePattern>) {
        self.patterns = patterns;
        let gone: Vec<String> = self.held.keys().filter(|name| !self.is_meant(name)).cloned().collect();
        for name in gone {
            self.release(pins, &name);
        }
    }

    fn is_meant(&self, interface: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(interface))
    }

    fn release(&mut self, pins: &Pins, interface: &str) {
        self.held.remove(interface);
        for (_, hook) in INTERFACE_HOOKS {
            // A link without a pin ends with its last descriptor.
            unpin(&pins.link(&format!("{hook}-{interface}")));
        }
    }

    /// Attaches to what has appeared, forgets what is gone.
    pub(super) fn round(&mut self, ebpf: &mut Ebpf, pins: &Pins) -> Result<Vec<Change>, DatapathError> {
        let mut changes = Vec::new();
        let present = interfaces();
        let lost: Vec<String> = self
            .held
            .iter()
            .filter(|(name, index)| present.get(*name) != Some(index))
            .map(|(n, _)| n.clone())
            .collect();
        for name in lost {
            self.release(pins, &name);
            changes.push(Change::Gone(name));
        }
        for (name, &index) in &present {
            if self.is_meant(name) && !self.held.contains_key(name) {
                must_be_ethernet(name)?;
                let adopted = attach_interface(ebpf, pins, name, index)?;
                self.held.insert(name.clone(), index);
                self.waiting.retain(|waiting| waiting != name);
                changes.push(if adopted { Change::Adopted(name.clone()) } else { Change::Attached(name.clone()) });
            }
        }
        for pattern in &self.patterns {
            let name = pattern.as_str();
            if pattern.is_exact() && !self.held.contains_key(name) && !self.waiting.iter().any(|w| w == name) {
                self.waiting.push(name.to_owned());
                changes.push(Change::Waiting(name.to_owned()));
            }
        }
        Ok(changes)
    }

    /// Attaches the socket programs, or takes them away where the configuration wants none.
    pub(super) fn cgroup(
        &mut self,
        ebpf: &mut Ebpf,
        pins: &Pins,
        setting: &CgroupSetting,
    ) -> Result<(), DatapathError> {
        let path = match setting {
            CgroupSetting::Off => None,
            CgroupSetting::Path(path) => Some(path.clone()),
            CgroupSetting::Auto => Some(cgroup_root()?),
        };
        if path != self.cgroup || path.is_none() {
            if self.cgroup.is_some() || path.is_none() {
                for (_, hook) in CGROUP_HOOKS {
                    unpin(&pins.link(hook));
                }
            }
            self.cgroup = None;
        }
        let Some(path) = path else { return Ok(()) };
        if self.cgroup.is_none() {
            let folder = File::open(&path).map_err(|source| DatapathError::Path { path: path.clone(), source })?;
            for (program, hook) in CGROUP_HOOKS {
                if !take_over(ebpf, pins, hook, program, |_| true)? {
                    let link = attach_cgroup(ebpf, program, &folder, &path)?;
                    pin(link, &pins.link(hook), hook)?;
                }
            }
            self.cgroup = Some(path);
        }
        Ok(())
    }

    /// Whether an interface carries our programs.
    pub(super) fn holds(&self, interface: &str) -> bool {
        self.held.contains_key(interface)
    }

    /// All hooks that should be held.
    pub(super) fn list(&self) -> Vec<Hook> {
        let mut hooks = Vec::new();
        let mut of = |target: &str, missing: Option<String>| {
            for (_, hook) in INTERFACE_HOOKS {
                hooks.push(Hook { target: target.to_owned(), hook, missing: missing.clone() });
            }
        };
        self.held.keys().for_each(|name| of(name, None));
        for pattern in self.patterns.iter().filter(|p| p.is_exact() && !self.held.contains_key(p.as_str())) {
            of(pattern.as_str(), Some("no such interface yet".to_owned()));
        }
        if let Some(path) = &self.cgroup {
            let target = path.display().to_string();
            hooks.extend(CGROUP_HOOKS.map(|(_, hook)| Hook { target: target.clone(), hook, missing: None }));
        }
        hooks
    }
}

/// Names and numbers of this namespace's interfaces.
fn interfaces() -> BTreeMap<String, u32> {
    nix::net::if_::if_nameindex()
        .map(|list| list.iter().map(|i| (i.name().to_string_lossy().into_owned(), i.index())).collect())
        .unwrap_or_default()
}

/// The programs read Ethernet headers; the loopback device has them too.
fn must_be_ethernet(interface: &str) -> Result<(), DatapathError> {
    match link_type(interface) {
        Ok(libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) | Err(_) => Ok(()),
        Ok(_) => Err(DatapathError::NotEthernet { interface: interface.to_owned() }),
    }
}

/// Asked of a socket, for sysfs shows the namespace that mounted it, which need not be ours.
fn link_type(interface: &str) -> io::Result<u16> {
    use std::os::fd::AsRawFd;
    let socket = std::net::UdpSocket::bind("[::]:0").or_else(|_| std::net::UdpSocket::bind("0.0.0.0:0"))?;
    // SAFETY: all bit patterns of this C structure are values.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: the socket lives, and the kernel fills a structure of this size.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: SIOCGIFHWADDR fills this member.
    Ok(unsafe { request.ifr_ifru.ifru_hwaddr.sa_family })
}

/// Attaches both directions; whether a former daemon's links were taken over.
fn attach_interface(ebpf: &mut Ebpf, pins: &Pins, name: &str, index: u32) -> Result<bool, DatapathError> {
    let mut adopted = false;
    for (program, hook) in INTERFACE_HOOKS {
        let link = format!("{hook}-{name}");
        if take_over(ebpf, pins, &link, program, |at| at == index)? {
            adopted = true;
            continue;
        }
        let direction = if hook == "tc_ingress" { TcAttachType::Ingress } else { TcAttachType::Egress };
        let attach = |source| DatapathError::Attach { program, target: name.to_owned(), source: Box::new(source) };
        let loaded: &mut SchedClassifier = find(ebpf, program)?;
        if has_tcx() {
            // First to see what came in, last to see what goes out.
            let order = if hook == "tc_ingress" { LinkOrder::first() } else { LinkOrder::last() };
            let id = loaded.attach_with_options(name, direction, TcAttachOptions::TcxOrder(order)).map_err(attach)?;
            let link_fd = loaded.take_link(id).map_err(attach)?;
            let fd = FdLink::try_from(link_fd)
                .map_err(|error| DatapathError::Link { link: link.clone(), source: io::Error::other(error) })?;
            pin(fd, &pins.link(&link), &link)?;
        } else {
            attach_clsact(loaded, name, direction).map_err(attach)?;
        }
    }
    Ok(adopted)
}

/// Linux before 6.6. The filter stays by itself; a fixed priority and handle let the next start find and replace it.
fn attach_clsact(program: &mut SchedClassifier, name: &str, direction: TcAttachType) -> Result<(), ProgramError> {
    // It fails when the qdisc is there already, which is as good.
    drop(qdisc_add_clsact(name));
    let options =
        || NlOptions { priority: CLSACT_PRIORITY, handle: aya::programs::tc::TcHandle::new(0, 1), classid: None };
    let id = program.attach_with_options(name, direction, TcAttachOptions::Netlink(options())).or_else(|_| {
        let link =
            aya::programs::tc::SchedClassifierLink::attached(name, direction, CLSACT_PRIORITY, options().handle, None)
                .map_err(|error| ProgramError::IOError(io::Error::other(error)))?;
        program.attach_to_link(link)
    })?;
    // Forgotten on purpose: dropping a link detaches it, and the datapath outlives the daemon.
    std::mem::forget(program.take_link(id)?);
    Ok(())
}

fn attach_cgroup(ebpf: &mut Ebpf, program: &'static str, folder: &File, path: &Path) -> Result<FdLink, DatapathError> {
    let attach =
        |source| DatapathError::Attach { program, target: path.display().to_string(), source: Box::new(source) };
    let lost = |error| DatapathError::Link { link: program.to_owned(), source: io::Error::other(error) };
    // `Single` with a link still allows other programs beside ours; `AllowMultiple` is refused for links.
    let mode = CgroupAttachMode::Single;
    if program == "release" {
        let loaded: &mut CgroupSock = find(ebpf, program)?;
        let id = loaded.attach(folder, mode).map_err(attach)?;
        let link = loaded.take_link(id).map_err(attach)?;
        FdLink::try_from(link).map_err(lost)
    } else {
        let loaded: &mut CgroupSockAddr = find(ebpf, program)?;
        let id = loaded.attach(folder, mode).map_err(attach)?;
        let link = loaded.take_link(id).map_err(attach)?;
        FdLink::try_from(link).map_err(lost)
    }
}

/// Puts our program behind a pinned link, if there is one that still hangs where it should.
fn take_over(
    ebpf: &Ebpf,
    pins: &Pins,
    link: &str,
    program: &'static str,
    hangs_right: impl Fn(u32) -> bool,
) -> Result<bool, DatapathError> {
    let path = pins.link(link);
    if !path.exists() {
        return Ok(false);
    }
    let error = |source| DatapathError::Link { link: link.to_owned(), source };
    let fd = sys::get(&path).map_err(error)?;
    if !hangs_right(sys::ifindex(&fd).unwrap_or(0)) {
        unpin(&path);
        return Ok(false);
    }
    match sys::update(&fd, load::program_fd(ebpf, program)?.as_fd()) {
        Ok(()) => Ok(true),
        // The interface or cgroup behind it is gone.
        Err(source) if source.raw_os_error() == Some(libc::ENOLINK) => {
            unpin(&path);
            Ok(false)
        }
        Err(source) => Err(error(source)),
    }
}

fn find<'a, P>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut P, DatapathError>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or(DatapathError::Missing { name })?;
    program.try_into().map_err(|source| DatapathError::Program {
        program: name,
        needs: "6.1",
        source: Box::new(source),
    })
}

fn pin(link: FdLink, path: &Path, name: &str) -> Result<(), DatapathError> {
    unpin(path);
    // The pin keeps the link; the descriptor is no longer needed.
    link.pin(path).map(drop).map_err(|source| DatapathError::Pin { name: name.to_owned(), source: Box::new(source) })
}

fn unpin(path: &Path) {
    // Not there is as good as removed.
    drop(fs::remove_file(path));
}

/// Where cgroup v2 is mounted: the root of the hierarchy.
///
/// # Errors
///
/// [`DatapathError::NoCgroup`] when it isn't.
pub fn cgroup_root() -> Result<PathBuf, DatapathError> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&"cgroup2"))
        .and_then(|fields| fields.get(1).map(PathBuf::from))
        .ok_or(DatapathError::NoCgroup)
}

/// Links on TC hooks: Linux 6.6 (commit e420bed02507). Before, filters under clsact; `SLUICE_TC=clsact` in the environment
/// asks for them on newer kernels too, for tools that know no TCX, and for the test of this way.
pub(super) fn has_tcx() -> bool {
    std::env::var_os("SLUICE_TC").is_none_or(|wanted| wanted != "clsact")
        && KernelVersion::current().is_ok_and(|kernel| kernel >= KernelVersion::new(6, 6, 0))
}

/// The number of an interface; `None` when it isn't there.
pub(super) fn index_of(interface: &str) -> Option<u32> {
    if_nametoindex(interface).ok()
}
