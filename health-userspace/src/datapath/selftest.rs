//! A test packet for each hook: a program that sits on a hook and is never asked sees nothing, and nobody would notice.
//!
//! | hook | test |
//! |---|---|
//! | TC | frames of an EtherType for experiments (0x88b5, IEEE 802), which the programs count as no IP, are sent in and out |
//! | TC behind XDP, XDP | the kernel's list of programs: at TC ours must be the first, at XDP it is the only one |
//! | sockets | a socket connects over the loopback device; the hooks change the note that was left under its cookie |
//! | `sock_ops` | see [`super::timeout`] |

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use aya::programs::{SchedClassifier, TcAttachType, TestRun, TestRunOptions};
use health_common::{
    flow::{Choice, MOVED},
    map::Count,
};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};

use super::{Datapath, DatapathError, attach, read, registry, sys, timeout};

/// Frames for each direction of an interface. The counter that shows them also counts ARP and the like, so one more is no
/// proof, and eight within a moment are.
const FRAMES: u32 = 8;

/// Longest wait for the programs to have run.
const WAIT: Duration = Duration::from_millis(300);

/// "Local experimental EtherType 1" (IEEE 802 §9.2.3), sent to nobody's address.
const FRAME: [u8; 60] = {
    let mut frame = [0; 60];
    // Locally administered, unicast.
    (frame[0], frame[6]) = (0x02, 0x02);
    (frame[11], frame[5]) = (0x01, 0x02);
    (frame[12], frame[13]) = (0x88, 0xb5);
    frame
};

/// Fields of `struct __sk_buff` by their offset, in words (`include/uapi/linux/bpf.h`).
const SKB_WORDS: usize = 48;
const SKB_MARK: usize = 2;
const SKB_PRIORITY: usize = 8;

/// A hook whose program does not see what passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blind {
    /// Interface, or cgroup path.
    pub target: String,
    /// `tc_ingress`, `connect4`, …
    pub hook: &'static str,
    /// What shows it, in words.
    pub seen: String,
}

/// Tests every hook.
pub(super) fn run(datapath: &mut Datapath) -> Result<Vec<Blind>, DatapathError> {
    let mut blind = Vec::new();
    for (interface, index) in datapath.hooks.interfaces() {
        blind.extend(direction(datapath, &interface, index, TcAttachType::Ingress)?);
        blind.extend(direction(datapath, &interface, index, TcAttachType::Egress)?);
    }
    // Sockets outside of the cgroup pass no hook of ours, and show nothing.
    let inside = |path: &&std::path::Path| timeout::is_inside(path).unwrap_or(false);
    if let Some(target) = datapath.hooks.cgroup_path().filter(inside).map(|path| path.display().to_string()) {
        for (hook, seen) in sockets(datapath)? {
            blind.push(Blind { target: target.clone(), hook, seen: seen.to_owned() });
        }
    }
    Ok(blind)
}

/// Tests one direction of an interface.
fn direction(
    datapath: &mut Datapath,
    interface: &str,
    index: u32,
    direction: TcAttachType,
) -> Result<Vec<Blind>, DatapathError> {
    let (ingress, hooks) = match direction {
        TcAttachType::Ingress => (1, &["tc_ingress", "tc_client"][..]),
        _ => (0, &["tc_egress"][..]),
    };
    // The program behind XDP leaves counting to XDP.
    let counting: Vec<&'static str> = datapath.hooks.counting(interface, hooks);
    let blind = |hook, seen| Blind { target: interface.to_owned(), hook, seen };
    let mut found = Vec::new();
    if datapath.hooks.is_behind_xdp(interface)
        && ingress == 1
        && let Some(before) = before_ours(datapath, interface)
    {
        found.push(blind("tc_ingress", before));
    }
    if counting.is_empty() {
        return Ok(found);
    }
    let wanted = u64::from(FRAMES) * u64::try_from(counting.len()).unwrap_or(1);
    let before = skipped(datapath)?;
    let is_taken = inject(datapath, interface, index, ingress)?;
    let until = Instant::now() + WAIT;
    loop {
        let seen = skipped(datapath)?.saturating_sub(before);
        if seen >= wanted {
            return Ok(found);
        }
        if Instant::now() >= until {
            if !is_taken {
                // Nothing passes there, so nothing is missed.
                tracing::warn!(interface, ?hooks, "takes no test packets (is it up?), so its hooks are not tested");
                return Ok(found);
            }
            let because = before_ours(datapath, interface).unwrap_or_else(|| "who takes them is not known".to_owned());
            let seen = format!("{seen} of {wanted} test packets reached it: {because}");
            found.extend(counting.into_iter().map(|hook| blind(hook, seen.clone())));
            return Ok(found);
        }
        thread::park_timeout(Duration::from_millis(2));
    }
}

fn skipped(datapath: &Datapath) -> Result<u64, DatapathError> {
    let counts = read::counts(&datapath.maps)?;
    Ok(counts.into_iter().find(|(count, _)| *count == Count::SkippedLink).map_or(0, |(_, n)| n))
}

/// Sends test frames into an interface, as if they had arrived there, or out of it; whether it took them.
fn inject(datapath: &mut Datapath, interface: &str, index: u32, ingress: u32) -> Result<bool, DatapathError> {
    let error = |source| DatapathError::SelfTest { target: interface.to_owned(), source };
    let program: &mut SchedClassifier = attach::find(&mut datapath.ebpf, "inject")?;
    let mut context = [0u32; SKB_WORDS];
    (context[SKB_MARK], context[SKB_PRIORITY]) = (index, ingress);
    let context: Vec<u8> = context.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut is_taken = true;
    for _ in 0..FRAMES {
        let options = TestRunOptions { data_in: Some(&FRAME), ctx_in: Some(&context), ..TestRunOptions::new() };
        let ran = program.test_run(options).map_err(|source| error(io::Error::other(source)))?;
        is_taken &= ran.return_value == 0;
    }
    Ok(is_taken)
}

/// Programs of others that come before ours where packets arrive, in words.
fn before_ours(datapath: &Datapath, interface: &str) -> Option<String> {
    let (_, chain) = SchedClassifier::query_tcx(interface, TcAttachType::Ingress).ok()?;
    let own = datapath.own_programs();
    let before: Vec<String> = chain
        .iter()
        .take_while(|program| !own.contains(&program.id()))
        .map(|program| format!("`{}` (id {})", program.name_as_str().unwrap_or("?"), program.id()))
        .collect();
    (!before.is_empty()).then(|| format!("{} comes before it", before.join(", ")))
}

/// Tests the hooks of sockets; those that did nothing, and what shows it.
fn sockets(datapath: &mut Datapath) -> Result<Vec<(&'static str, &'static str)>, DatapathError> {
    let mut blind = family(datapath, Ipv4Addr::LOCALHOST.into(), "connect4", "getpeername4")?;
    // A host without IPv6 has no such sockets.
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        blind.extend(family(datapath, Ipv6Addr::LOCALHOST.into(), "connect6", "getpeername6")?);
    }
    blind.dedup();
    Ok(blind)
}

/// A connect that isn't steered takes away the note that was left under the socket's cookie; `getpeername` answers what the
/// note says; the socket's end takes it away too.
fn family(
    datapath: &mut Datapath,
    ip: IpAddr,
    connects: &'static str,
    peer: &'static str,
) -> Result<Vec<(&'static str, &'static str)>, DatapathError> {
    let error = |source| DatapathError::SelfTest { target: connects.to_owned(), source };
    let listener = TcpListener::bind((ip, 0)).map_err(error)?;
    let to = listener.local_addr().map_err(error)?;
    let (socket, cookie) = unconnected(ip).map_err(error)?;
    let asked = registry::endpoint(asked(ip));
    let note = Choice { asked, origin: health_common::NONE, frontend: health_common::NONE, flags: MOVED, next: 0 };
    let maps = &mut datapath.maps;
    let mut blind = Vec::new();
    maps.leave_note(cookie, note)?;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(to)).map_err(|errno| error(errno.into()))?;
    if maps.sockets.get(&cookie, 0).is_ok() {
        blind.push((connects, "a connect of the daemon's own did not pass it"));
    } else {
        maps.leave_note(cookie, note)?;
    }
    let stream = TcpStream::from(socket);
    if stream.peer_addr().map_err(error)? != registry::address(&asked) {
        blind.push((peer, "a question of the daemon's own did not pass it"));
    }
    drop(stream);
    if maps.sockets.get(&cookie, 0).is_ok() {
        blind.push(("sock_release", "the end of a socket of the daemon's own did not pass it"));
        // Nobody else takes it away.
        maps.take_note(cookie)?;
    }
    Ok(blind)
}

/// A socket that has asked for nothing yet, and its cookie.
fn unconnected(ip: IpAddr) -> io::Result<(OwnedFd, u64)> {
    let family = if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let cookie = sys::socket_cookie(&socket)?;
    Ok((socket, cookie))
}

/// What the note says that was asked for: addresses for documentation (RFC 5737, RFC 3849).
fn asked(ip: IpAddr) -> SocketAddr {
    match ip {
        IpAddr::V4(_) => SocketAddr::from(([192, 0, 2, 1], 9)),
        IpAddr::V6(_) => SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 9)),
    }
}
