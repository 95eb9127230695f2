//! Forwarded flows, ended by a RST to both sides.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, OwnedFd},
};

use etherparse::PacketBuilder;
use health_common::{SECOND_PASS_MARK, flow::Flow};
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, sendto, setsockopt, socket, sockopt,
    },
};

#[cfg(test)]
mod tests;

/// Addresses and ports of a flow, seen from the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// The node's side; of forwarded flows the client's.
    pub node: SocketAddr,
    /// The origin's side.
    pub remote: SocketAddr,
}

/// Where a flow's sequence numbers stand. Of [`Flow`], which has the meanings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Next new number of the client.
    pub node_next: u32,
    /// Highest acknowledgement of the client.
    pub node_ack: u32,
    /// Next new number of the origin.
    pub origin_next: u32,
    /// Highest acknowledgement of the origin.
    pub origin_ack: u32,
}

impl From<&Flow> for Numbers {
    fn from(flow: &Flow) -> Self {
        Self {
            node_next: flow.node_next,
            node_ack: flow.node_ack,
            origin_next: flow.origin_next,
            origin_ack: flow.origin_ack,
        }
    }
}

/// A flow to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowReset {
    /// As the client knows it.
    pub asked: Tuple,
    /// As the origin knows it. Differs from `asked` where the flow is redirected; the sequence numbers don't.
    pub served: Tuple,
    /// Its sequence numbers.
    pub numbers: Numbers,
}

/// A side of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Who began it.
    Client,
    /// Who serves it.
    Origin,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Origin => "origin",
        })
    }
}

/// Why a flow is not ended.
#[derive(Debug, thiserror::Error)]
pub enum ForwardedError {
    /// Not allowed to send packets in others' names.
    #[error("resetting forwarded flows needs CAP_NET_RAW and CAP_NET_ADMIN: run sluice as root")]
    Permission,
    /// No raw socket.
    #[error("cannot open a raw socket")]
    Open(#[source] io::Error),
    /// A tuple of IPv4 and IPv6: no such flow exists.
    #[error("{} and {} are not of one family", tuple.node, tuple.remote)]
    Families {
        /// The tuple.
        tuple: Tuple,
    },
    /// A RST did not leave; the other side has got its own all the same.
    #[error("cannot send a RST to the {side} {to}")]
    Send {
        /// Which side.
        side: Side,
        /// Its address.
        to: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// Sends RSTs in the names of both sides of a flow.
#[derive(Debug)]
pub struct Resets {
    v4: OwnedFd,
    v6: OwnedFd,
}

impl Resets {
    /// Opens two raw sockets in this thread's network namespace. Their packets carry [`SECOND_PASS_MARK`], with which our
    /// programs let them pass: they are neither tracked nor translated.
    ///
    /// # Errors
    ///
    /// [`ForwardedError::Permission`] without CAP_NET_RAW and CAP_NET_ADMIN, [`ForwardedError::Open`].
    pub fn open() -> Result<Self, ForwardedError> {
        Ok(Self { v4: raw(AddressFamily::Inet)?, v6: raw(AddressFamily::Inet6)? })
    }

    /// Sends a RST to the client, from the address that it talks to, and one to the origin, from the client's.
    ///
    /// A stack takes a RST only at exactly the next number that it expects (RFC 5961 §3.2). The packets that passed us
    /// leave two candidates: all has arrived, or what is not acknowledged was lost on the way. Where they differ, a RST is
    /// sent at each: one is exact if either holds, the other is answered or ignored. A client that also has a gap between
    /// them is reset by neither, and runs into its own timeout.
    ///
    /// The flow stays in our tables: nothing of it passes the programs any more. A flow under TCP-MD5 or TCP-AO ignores
    /// unsigned RSTs. What the node itself masquerades does not end at the client: the tuple has the node's own address.
    ///
    /// # Errors
    ///
    /// [`ForwardedError::Families`], before anything is sent. [`ForwardedError::Send`] for the first RST that did not
    /// leave, after all were tried.
    pub fn send(&self, flow: &FlowReset) -> Result<(), ForwardedError> {
        let mut packets = Vec::with_capacity(4);
        for (side, from, to, [next, acked], ack) in flow.sides() {
            let families = ForwardedError::Families { tuple: Tuple { node: from, remote: to } };
            let first = packet(from, to, next, ack).ok_or(families)?;
            packets.push((side, to, first));
            if next != acked {
                packets.extend(packet(from, to, acked, ack).map(|second| (side, to, second)));
            }
        }
        let mut outcome = Ok(());
        for (side, to, bytes) in packets {
            let sent = self.put(&bytes, to).map_err(|source| ForwardedError::Send { side, to, source });
            outcome = outcome.and(sent);
        }
        outcome
    }

    fn put(&self, packet: &[u8], to: SocketAddr) -> io::Result<()> {
        // Raw sockets take the port for a protocol.
        let to = SocketAddr::new(to.ip(), 0);
        let socket = if to.is_ipv4() { &self.v4 } else { &self.v6 };
        sendto(socket.as_raw_fd(), packet, &SockaddrStorage::from(to), MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }
}

impl FlowReset {
    /// For each side: from, to, the numbers that it may expect, and an acknowledgement of all that it sent.
    const fn sides(&self) -> [(Side, SocketAddr, SocketAddr, [u32; 2], u32); 2] {
        let Numbers { node_next, node_ack, origin_next, origin_ack } = self.numbers;
        [
            (Side::Client, self.asked.remote, self.asked.node, [origin_next, node_ack], node_next),
            (Side::Origin, self.served.node, self.served.remote, [node_next, origin_ack], origin_next),
        ]
    }
}

/// A raw socket that sends what it is given, headers included: that is what its protocol number means, for both families
/// (raw(7), and `inet6_create`).
fn raw(family: AddressFamily) -> Result<OwnedFd, ForwardedError> {
    let refused = |errno: Errno| match errno {
        Errno::EPERM | Errno::EACCES => ForwardedError::Permission,
        errno => ForwardedError::Open(errno.into()),
    };
    let fd = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw).map_err(refused)?;
    setsockopt(&fd, sockopt::Mark, &SECOND_PASS_MARK).map_err(refused)?;
    Ok(fd)
}

/// The usual hop limit (RFC 1700).
const HOPS: u8 = 64;

/// A RST as Linux itself sends it for an established connection: with an acknowledgement. None if the families differ.
fn packet(from: SocketAddr, to: SocketAddr, seq: u32, ack: u32) -> Option<Vec<u8>> {
    let ip = match (from.ip().to_canonical(), to.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), HOPS),
        (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::ipv6(from.octets(), to.octets(), HOPS),
        _ => return None,
    };
    let tcp = ip.tcp(from.port(), to.port(), seq, 0).rst().ack(ack);
    let mut bytes = Vec::with_capacity(tcp.size(0));
    // Only a payload can be too long for a header.
    tcp.write_to_vec(&mut bytes, &[]).ok()?;
    Some(bytes)
}
