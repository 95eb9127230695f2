//! Writes what concerns the node as a whole: bypasses, its mode, its namespaces.

use std::{fs, os::unix::fs::MetadataExt};

use health_common::map::{self, BypassKey, CGROUP_LEVEL_MAX, Node};
use health_core::model::Mode;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::{
    DatapathError,
    attach::cgroup_root,
    maps::{self, Maps},
};
use crate::config::{CgroupSetting, Config};

/// Users and cgroups that are never steered, and the word `mode`.
pub(super) fn write(maps: &mut Maps, config: &Config) -> Result<(), DatapathError> {
    let bypass = &config.node.bypass;
    let mut wanted: Vec<BypassKey> =
        bypass.uids.iter().map(|&uid| BypassKey { id: u64::from(uid), kind: BypassKey::USER }).collect();
    let mut bypass_levels = 0;
    if config.node.cgroup != CgroupSetting::Off || !bypass.cgroups.is_empty() {
        for cgroup in &bypass.cgroups {
            wanted.push(BypassKey { id: cgroup_id(cgroup)?, kind: BypassKey::CGROUP });
            bypass_levels |= 1 << level(cgroup)?;
        }
    }
    let stale: Vec<_> = maps.bypass.keys().flatten().filter(|key| !wanted.contains(key)).collect();
    for key in stale {
        maps.bypass.remove(&key).map_err(|source| maps::write_error(map::BYPASS, source))?;
    }
    for key in &wanted {
        maps.bypass.insert(key, 1, 0).map_err(|source| maps::write_error(map::BYPASS, source))?;
    }
    let old = maps::only(map::NODE, &maps.node)?;
    let node = Node {
        bypass_mark: bypass.mark,
        bypass_users: u32::from(!bypass.uids.is_empty()),
        bypass_levels,
        daemon_pid: std::process::id(),
        mode: mode(config, old.mode),
        ..old
    };
    maps.node.set(0, node, 0).map_err(|source| maps::write_error(map::NODE, source))
}

/// The word that every program reads. What an operator ordered outlives the daemon that wrote it.
fn mode(config: &Config, old: u32) -> u32 {
    let observe = if config.node.mode == Mode::Observe { Node::OBSERVE } else { 0 };
    (old & !Node::OBSERVE) | observe
}

/// How deep below the root a cgroup lies.
fn level(cgroup: &str) -> Result<u32, DatapathError> {
    let depth = cgroup.split('/').filter(|part| !part.is_empty()).count();
    match u32::try_from(depth) {
        Ok(level) if (1..=CGROUP_LEVEL_MAX).contains(&level) => Ok(level),
        _ => Err(DatapathError::Path {
            path: cgroup.into(),
            source: std::io::Error::other(format!(
                "a bypassed cgroup lies 1 to {CGROUP_LEVEL_MAX} levels below the root"
            )),
        }),
    }
}

/// A cgroup's id is its folder's inode. It is made if it isn't there, so that its id is known before its first process.
fn cgroup_id(cgroup: &str) -> Result<u64, DatapathError> {
    let path = cgroup_root()?.join(cgroup.trim_start_matches('/'));
    let error = |source| DatapathError::Path { path: path.clone(), source };
    fs::create_dir_all(&path).map_err(error)?;
    Ok(fs::metadata(&path).map_err(error)?.ino())
}

/// Namespaces whose sockets are steered.
pub(super) fn namespaces(maps: &mut Maps, config: &Config) -> Result<(), DatapathError> {
    let mut wanted = vec![namespace_cookie()?];
    for path in &config.node.netns {
        wanted.push(cookie_of(path)?);
    }
    let stale: Vec<_> = maps.namespaces.keys().flatten().filter(|cookie| !wanted.contains(cookie)).collect();
    for cookie in stale {
        maps.namespaces.remove(&cookie).map_err(|source| maps::write_error(map::NAMESPACES, source))?;
    }
    for cookie in wanted {
        maps.namespaces.insert(cookie, 1, 0).map_err(|source| maps::write_error(map::NAMESPACES, source))?;
    }
    Ok(())
}

/// The cookie of the calling thread's namespace. `SO_NETNS_COOKIE`: Linux 5.14.
fn namespace_cookie() -> Result<u64, DatapathError> {
    use std::os::fd::AsRawFd;
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let error = |source| DatapathError::Path { path: "/proc/self/ns/net".into(), source };
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
        .map_err(|errno| error(errno.into()))?;
    let mut cookie = 0u64;
    let mut len = libc::socklen_t::try_from(size_of::<u64>()).unwrap_or(8);
    // SAFETY: the kernel writes `len` bytes to `cookie`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, (&raw mut cookie).cast(), &raw mut len)
    };
    if result < 0 { Err(error(std::io::Error::last_os_error())) } else { Ok(cookie) }
}

/// The cookie of another namespace, read by a thread that enters it and ends.
fn cookie_of(path: &std::path::Path) -> Result<u64, DatapathError> {
    let error = |source| DatapathError::Path { path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(error)?;
    let thread = std::thread::spawn(move || {
        nix::sched::setns(&file, nix::sched::CloneFlags::CLONE_NEWNET)?;
        namespace_cookie().map_err(std::io::Error::other)
    });
    let panicked = || error(std::io::Error::other("the thread panicked"));
    thread.join().map_or_else(|_| Err(panicked()), |cookie| cookie.map_err(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_sets_observe_and_leaves_orders_alone() {
        let text = "[node]\ninterfaces = [\"eth1\"]\n[[service]]\nname = \"s\"\n[[service.origin]]\nname = \"a\"\n\
                    address = \"10.0.1.10:443\"\n";
        let config = |text: &str| crate::config::parse(text, "test.toml").expect("valid").config;
        let enforce = config(text);
        let observe = config(&text.replace("[node]\n", "[node]\nmode = \"observe\"\n"));
        assert_eq!(mode(&observe, Node::FREEZE), Node::OBSERVE | Node::FREEZE);
        assert_eq!(mode(&enforce, Node::OBSERVE | Node::BYPASS), Node::BYPASS);
    }
}
