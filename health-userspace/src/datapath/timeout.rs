//! Whether the SYN timeouts that the kernel half sets are in force.
//!
//! Several programs may answer a socket's question for its first timeout, and the last answer counts. So one connect is
//! made at a start, to a port that the program `timeout` knows as a test, and the socket is asked what it waits for. It must
//! not be answered, for an answered SYN has no timeout: the port's queue is full, so its kernel ignores the SYN.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use aya::maps::{Array, MapData};
use health_common::{
    map::{self, Node},
    net::Be16,
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, connect, getsockname, listen, socket},
    time::{ClockId, clock_getres},
};

use super::{DatapathError, maps};

/// What the test asks for: far from the stack's own second, and nobody else's number.
const ASKED: Duration = Duration::from_millis(2300);

/// Connections that may fill the queue. A backlog of 0 has room for one, or for two while one is being accepted.
const FILL_MAX: usize = 4;

/// Longest wait for a handshake over the loopback device.
const HANDSHAKE: Duration = Duration::from_millis(200);

/// What the test showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutTest {
    /// The socket waits as asked.
    InForce,
    /// It waits for something else: another program has the last word, or ours is not asked.
    Overridden {
        /// What was asked for.
        asked: Duration,
        /// What it waits for.
        seen: Duration,
    },
    /// The daemon's own sockets are outside of the cgroup that is steered, so they show nothing.
    Outside,
}

/// One tick of the kernel: the step of its coarse clock.
fn tick() -> io::Result<Duration> {
    Ok(clock_getres(ClockId::CLOCK_MONOTONIC_COARSE)?.into())
}

/// Makes the test. The map `node` knows no test when it ends.
pub(super) fn test(node: &mut Array<MapData, Node>, cgroup: &Path) -> Result<TimeoutTest, DatapathError> {
    let error = |source| DatapathError::TimeoutTest { source };
    if !is_inside(cgroup).map_err(error)? {
        return Ok(TimeoutTest::Outside);
    }
    let tick = tick().map_err(error)?;
    let jiffies = u32::try_from(ASKED.as_nanos() / tick.as_nanos().max(1)).unwrap_or(u32::MAX);
    let (port, _held) = full_port().map_err(error)?;
    let before = node.get(&0, 0).map_err(|source| maps::read_error(map::NODE, source))?;
    let write = |node: &mut Array<MapData, Node>, value| {
        node.set(0, value, 0).map_err(|source| maps::write_error(map::NODE, source))
    };
    let test_port = u32::from(Be16::new(port.port()).0);
    write(node, Node { test_port, test_jiffies: jiffies, ..before })?;
    let seen = attempt(port).and_then(|socket| first_timeout(&socket));
    // Also where an earlier test was cut off.
    write(node, Node { test_port: 0, test_jiffies: 0, ..before })?;
    Ok(judge(tick * jiffies, seen.map_err(error)?, tick))
}

/// Both clocks round, so one tick of difference is none.
fn judge(asked: Duration, seen: Duration, tick: Duration) -> TimeoutTest {
    if asked.abs_diff(seen) <= tick { TimeoutTest::InForce } else { TimeoutTest::Overridden { asked, seen } }
}

/// Whether this process is in a cgroup, or in one below it. `cgroup` is a folder of the cgroup v2 mount.
pub(super) fn is_inside(cgroup: &Path) -> io::Result<bool> {
    let text = fs::read_to_string("/proc/self/cgroup")?;
    let own = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let root = super::cgroup_root().map_err(io::Error::other)?;
    Ok(root.join(own.trim_start_matches('/')).starts_with(cgroup))
}

/// A port on the loopback address that ignores SYNs, and what keeps it so.
fn full_port() -> io::Result<(SocketAddrV4, Vec<OwnedFd>)> {
    let listener = tcp()?;
    bind(listener.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)))?;
    listen(&listener, Backlog::new(0)?)?;
    let port = SocketAddrV4::from(getsockname::<SockaddrIn>(listener.as_raw_fd())?);
    let mut held = vec![listener];
    for _ in 0..FILL_MAX {
        let filler = attempt(port)?;
        let is_answered = answered(&filler)?;
        held.push(filler);
        if !is_answered {
            return Ok((port, held));
        }
    }
    Err(io::Error::other("a port with a backlog of 0 takes any number of connections"))
}

fn tcp() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Inet, SockType::Stream, flags, None)?)
}

fn attempt(to: SocketAddrV4) -> io::Result<OwnedFd> {
    let socket = tcp()?;
    match connect(socket.as_raw_fd(), &SockaddrIn::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Whether the handshake ended within the time that it takes at most.
fn answered(socket: &OwnedFd) -> io::Result<bool> {
    use std::os::fd::AsFd;
    let until = Instant::now() + HANDSHAKE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut asked = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut asked, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What a socket in SYN-SENT waits for before it repeats its SYN.
fn first_timeout(socket: &OwnedFd) -> io::Result<Duration> {
    /// `TCP_SYN_SENT` (`include/net/tcp_states.h`).
    const SYN_SENT: u8 = 2;
    // SAFETY: all bit patterns of this C structure are values.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `len` bytes to `info`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut len)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    if info.tcpi_state != SYN_SENT {
        return Err(io::Error::other("the test connect was answered"));
    }
    Ok(Duration::from_micros(info.tcpi_rto.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_of_difference_is_none() {
        let ms = Duration::from_millis;
        assert_eq!(judge(ms(2300), ms(2300), ms(4)), TimeoutTest::InForce);
        assert_eq!(judge(ms(2300), ms(2296), ms(4)), TimeoutTest::InForce);
        let seen = judge(ms(2300), ms(1000), ms(4));
        assert_eq!(seen, TimeoutTest::Overridden { asked: ms(2300), seen: ms(1000) });
    }

    /// No program is attached here, so the stack's own second (RFC 6298 §2.1) is what such a socket waits for.
    #[test]
    fn a_full_port_leaves_a_connect_waiting() {
        let (port, _held) = full_port().expect("sockets");
        let socket = attempt(port).expect("a socket");
        let seen = first_timeout(&socket).expect("it waits");
        assert!(seen.abs_diff(Duration::from_secs(1)) <= tick().expect("a clock"), "{seen:?}");
    }
}
