//! Giving up all rights, before a module is loaded.

use super::super::protocol::{Confine, FD_SLATE};
use nix::{
    errno::Errno,
    sys::{
        prctl,
        resource::{Resource, setrlimit},
        signal::Signal,
    },
    unistd::{Gid, Uid, dup2_stdout, getppid, setgroups, setresgid, setresuid},
};
use std::{fs, os::fd::AsFd};

/// Descriptors that a module may open.
const DESCRIPTORS_MAX: u64 = 256;

/// Makes this process one that can hurt nobody. The order matters: the signal at the parent's death is forgotten when the
/// user changes, and limits can only be set before the right to is gone.
pub(super) fn confine(limits: &Confine) -> Result<(), String> {
    let step = |what: &'static str| move |error: Errno| format!("{what}: {error}");
    // What a module prints must not get between our frames.
    let nowhere = fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    let nowhere = nowhere.map_err(|error| format!("/dev/null: {error}"))?;
    nix::unistd::dup2_stdin(nowhere.as_fd()).map_err(step("dup2"))?;
    drop(nowhere);
    dup2_stdout(std::io::stderr().as_fd()).map_err(step("dup2"))?;
    close_others();
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(step("RLIMIT_CORE"))?;
    setrlimit(Resource::RLIMIT_AS, limits.memory_max, limits.memory_max).map_err(step("RLIMIT_AS"))?;
    setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS_MAX, DESCRIPTORS_MAX).map_err(step("RLIMIT_NOFILE"))?;
    if let Some((user, group)) = limits.user {
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        if user.is_root() {
            return Err("the user is root".to_owned());
        }
        setgroups(&[]).map_err(step("setgroups"))?;
        setresgid(group, group, group).map_err(step("setresgid"))?;
        setresuid(user, user, user).map_err(step("setresuid"))?;
    }
    prctl::set_no_new_privs().map_err(step("PR_SET_NO_NEW_PRIVS"))?;
    drop_capabilities().map_err(step("capset"))?;
    prctl::set_dumpable(false).map_err(step("PR_SET_DUMPABLE"))?;
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(step("PR_SET_PDEATHSIG"))?;
    // Had the daemon died before that, nobody would tell.
    if getppid().as_raw() != limits.parent {
        return Err("the daemon has gone".to_owned());
    }
    Ok(())
}

/// Whatever else the daemon had open and did not mark: nothing of it is for a module.
fn close_others() {
    // SAFETY: the descriptors above are owned by nobody here; those that are ours lie below.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, FD_SLATE + 1 + CLONE, u32::MAX, 0) };
    debug_assert_eq!(closed, 0, "close_range(2), Linux 5.9");
}

/// The reader's clone of the socket has the first free number.
const CLONE: i32 = 1;

/// Empties the effective, permitted and inheritable sets; the ambient one follows. `capset(2)`, version 3.
fn drop_capabilities() -> Result<(), Errno> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let header = Header { version: 0x2008_0522, pid: 0 };
    let none = [0_u32; 6];
    // SAFETY: both arguments have the layout that version 3 asks for, and live until the call returns.
    let done = unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) };
    Errno::result(done).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_that_are_ours_lie_below_those_that_are_closed() {
        assert_eq!(FD_SLATE + CLONE, 6);
    }
}
