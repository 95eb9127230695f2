//! The hooks of this host's sockets, on a cgroup v2.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf,
    programs::{CgroupAttachMode, CgroupSock, CgroupSockAddr, SockOps, links::FdLink},
};

use super::{
    Hook,
    link::{Taken, find, pin, take_over, unpin},
};
use crate::{
    config::CgroupSetting,
    datapath::{DatapathError, load::Pins},
};

/// The programs of a cgroup, and the hooks' names in output.
const CGROUP_HOOKS: [(&str, &str); 6] = [
    ("connect4", "connect4"),
    ("connect6", "connect6"),
    ("peer4", "getpeername4"),
    ("peer6", "getpeername6"),
    ("release", "sock_release"),
    ("timeout", "sock_ops"),
];

/// The socket programs, and where they hang.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    cgroup: Option<PathBuf>,
}

impl Sockets {
    /// Attaches the programs, or takes them away where the configuration wants none.
    pub(super) fn attach(
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
                if let Taken::Absent = take_over(ebpf, pins, hook, program, |_| true)? {
                    let link = attach(ebpf, program, &folder, &path)?;
                    pin(link, &pins.link(hook), hook)?;
                }
            }
            self.cgroup = Some(path);
        }
        Ok(())
    }

    pub(super) fn path(&self) -> Option<&Path> {
        self.cgroup.as_deref()
    }

    pub(super) fn list(&self) -> Vec<Hook> {
        let Some(path) = &self.cgroup else { return Vec::new() };
        let target = path.display().to_string();
        CGROUP_HOOKS.map(|(_, hook)| Hook { target: target.clone(), hook, missing: None }).to_vec()
    }
}

fn attach(ebpf: &mut Ebpf, program: &'static str, folder: &File, path: &Path) -> Result<FdLink, DatapathError> {
    let attach =
        |source| DatapathError::Attach { program, target: path.display().to_string(), source: Box::new(source) };
    let lost = |error| DatapathError::Link { link: program.to_owned(), source: io::Error::other(error) };
    // `Single` with a link still allows other programs beside ours; `AllowMultiple` is refused for links.
    let mode = CgroupAttachMode::Single;
    match program {
        "release" => {
            let loaded: &mut CgroupSock = find(ebpf, program)?;
            let id = loaded.attach(folder, mode).map_err(attach)?;
            FdLink::try_from(loaded.take_link(id).map_err(attach)?).map_err(lost)
        }
        "timeout" => {
            let loaded: &mut SockOps = find(ebpf, program)?;
            let id = loaded.attach(folder, mode).map_err(attach)?;
            FdLink::try_from(loaded.take_link(id).map_err(attach)?).map_err(lost)
        }
        _ => {
            let loaded: &mut CgroupSockAddr = find(ebpf, program)?;
            let id = loaded.attach(folder, mode).map_err(attach)?;
            FdLink::try_from(loaded.take_link(id).map_err(attach)?).map_err(lost)
        }
    }
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
