//! Sockets of this host, ended by `SOCK_DESTROY`.

use std::{collections::BTreeMap, io, net::SocketAddr, time::Duration};

use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_sock_diag::{
    AF_INET, AF_INET6, IPPROTO_TCP, SockDiagDestroy, SockDiagMessage,
    inet::{
        ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags,
        nlas::{Nla, TcpInfo},
    },
};
use netlink_sys::{Socket, SocketAddr as NetlinkAddr, protocols::NETLINK_SOCK_DIAG};

use super::Tuple;

#[cfg(test)]
mod tests;

/// Why no socket could be ended.
#[derive(Debug, thiserror::Error)]
pub enum DestroyError {
    /// `SOCK_DIAG` or `SOCK_DESTROY` is not there. It came with Linux 4.5 (kernel commit 64be0aed59ad).
    #[error("this kernel cannot end sockets of others: it was built without INET_DIAG or INET_DIAG_DESTROY")]
    Unsupported,
    /// Not allowed to. Nothing was ended.
    #[error("ending sockets of others needs CAP_NET_ADMIN: run sluice as root")]
    Permission,
    /// No netlink socket, or it broke.
    #[error("cannot talk to the kernel about sockets")]
    Netlink(#[source] io::Error),
    /// The kernel's answer is not as its documentation says.
    #[error("cannot read the kernel's answer about sockets")]
    Answer(#[source] DecodeError),
}

impl DestroyError {
    /// Of an error number with which the kernel answered a request as a whole.
    fn of(errno: i32) -> Self {
        match errno {
            // A dump is answered so when no module can say anything of TCP sockets.
            libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOENT => Self::Unsupported,
            libc::EPERM | libc::EACCES => Self::Permission,
            _ => Self::Netlink(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Whether the same call may go through later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Netlink(_))
    }
}

/// Which of a peer's connections to end. Times are those of the socket (`tcp_info`), exact to the kernel's tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All.
    All,
    /// Those between two requests, as a pool of connections keeps them: nothing is on the way or unsent, the peer had the
    /// last word, and that was at least `quiet` ago.
    Idle {
        /// How long neither side must have sent payload.
        quiet: Duration,
    },
    /// Those that wait in vain: not idle, and since `quiet` neither payload nor an acknowledgement came.
    Stalled {
        /// How long nothing must have come.
        quiet: Duration,
    },
}

/// What to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestroyOrder {
    /// The connection's other end, as the socket knows it: after steering by the connect hook, the origin that serves it;
    /// where packets are redirected, the address asked for. An IPv4 peer means IPv6 sockets with its mapped address too.
    pub peer: SocketAddr,
    /// Which connections.
    pub which: Which,
    /// Sockets with this mark (Sluice's own checks, and whoever else is bypassed) are spared; 0 spares nobody.
    pub check_mark: u32,
    /// How many to end at most, so that the caller can spread the load of reconnecting clients.
    pub limit: usize,
}

/// What became of the peer's connections. Each is counted once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destroyed {
    /// Ended.
    pub destroyed: usize,
    /// To be ended, but beyond the limit.
    pub left: usize,
    /// Spared: Sluice's own, by their mark.
    pub checks: usize,
    /// Spared: not of the wanted kind ([`Which`]).
    pub other_kind: usize,
    /// Spared by the caller.
    pub kept: usize,
    /// Ended by themselves in between.
    pub gone: usize,
    /// Not ended, by error number.
    pub failed: BTreeMap<i32, usize>,
}

/// Ends TCP connections of this thread's network namespace to one peer: established ones, and those of which one side
/// has sent FIN. Connection attempts are not touched, for a rescue may save them.
///
/// `keep` is asked last, with the socket's addresses, and says whether to spare it: a flow whose packets are redirected is
/// served by another origin than its socket knows.
///
/// Blocks for as long as the kernel walks its table of sockets: milliseconds for ten thousands. What a socket does between
/// that walk and its end is not seen, so an idle connection may just have begun a request.
///
/// # Errors
///
/// [`DestroyError`]; single sockets that could not be ended are counted in [`Destroyed`] instead. Needs Linux 4.5 with
/// `CONFIG_INET_DIAG_DESTROY`, and CAP_NET_ADMIN.
pub fn destroy(order: &DestroyOrder, mut keep: impl FnMut(&Tuple) -> bool) -> Result<Destroyed, DestroyError> {
    let mut kernel = Kernel::open()?;
    let peer = SocketAddr::new(order.peer.ip().to_canonical(), order.peer.port());
    let mut outcome = Destroyed::default();
    let mut chosen: Vec<(u8, SocketId)> = Vec::new();
    // An IPv6 socket can speak IPv4, by mapped addresses.
    let families: &[u8] = if peer.is_ipv4() { &[AF_INET, AF_INET6] } else { &[AF_INET6] };
    for &family in families {
        kernel.sockets(family, peer.port(), |socket| {
            let tuple = tuple(&socket.header.socket_id);
            if tuple.remote != peer {
                return Ok(());
            }
            // Who may not end sockets is not told their marks either.
            let facts = Facts::of(&socket).ok_or(DestroyError::Permission)?;
            if order.check_mark != 0 && facts.mark == order.check_mark {
                outcome.checks += 1;
            } else if !facts.is(order.which) {
                outcome.other_kind += 1;
            } else if keep(&tuple) {
                outcome.kept += 1;
            } else if chosen.len() < order.limit {
                chosen.push((family, socket.header.socket_id));
            } else {
                outcome.left += 1;
            }
            Ok(())
        })?;
    }
    for (family, id) in chosen {
        match kernel.destroy(family, id)? {
            0 => outcome.destroyed += 1,
            // Closed, or its addresses are those of a younger socket by now.
            libc::ENOENT | libc::ESTALE => outcome.gone += 1,
            errno @ (libc::EPERM | libc::EACCES | libc::EOPNOTSUPP) => return Err(DestroyError::of(errno)),
            errno => *outcome.failed.entry(errno).or_default() += 1,
        }
    }
    Ok(outcome)
}

fn tuple(id: &SocketId) -> Tuple {
    Tuple {
        node: SocketAddr::new(id.source_address.to_canonical(), id.source_port),
        remote: SocketAddr::new(id.destination_address.to_canonical(), id.destination_port),
    }
}

/// What the kernel tells of a socket.
struct Facts {
    mark: u32,
    /// Bytes not acknowledged or not yet sent.
    unacknowledged: u32,
    info: Option<TcpInfo>,
}

impl Facts {
    /// None when the kernel keeps the mark from us.
    fn of(socket: &InetResponse) -> Option<Self> {
        let mut mark = None;
        let mut info = None;
        for attribute in &socket.nlas {
            match attribute {
                Nla::Mark(is) => mark = Some(*is),
                Nla::TcpInfo(is) => info = Some(is.clone()),
                _ => {}
            }
        }
        Some(Self { mark: mark?, unacknowledged: socket.header.send_queue, info })
    }

    /// A socket that the kernel tells nothing of is neither idle nor stalled.
    fn is(&self, which: Which) -> bool {
        let since = |ms: u32, quiet: Duration| Duration::from_millis(ms.into()) >= quiet;
        match (which, &self.info) {
            (Which::All, _) => true,
            (Which::Idle { .. } | Which::Stalled { .. }, None) => false,
            (Which::Idle { quiet }, Some(info)) => {
                self.is_idle(info) && since(info.last_data_recv, quiet) && since(info.last_data_sent, quiet)
            }
            (Which::Stalled { quiet }, Some(info)) => {
                !self.is_idle(info) && since(info.last_data_recv, quiet) && since(info.last_ack_recv, quiet)
            }
        }
    }

    fn is_idle(&self, info: &TcpInfo) -> bool {
        self.unacknowledged == 0 && info.unacked == 0 && info.last_data_recv <= info.last_data_sent
    }
}

/// States of connections that can be ended by a RST.
fn states() -> StateFlags {
    StateFlags::ESTABLISHED | StateFlags::FIN_WAIT1 | StateFlags::FIN_WAIT2 | StateFlags::CLOSE_WAIT
}

/// The longest answer: the kernel fills at most this much at once for a reader with so much room (`netlink_dump`).
const ANSWER_BYTES_MAX: usize = 32 * 1024;

/// A netlink socket of the protocol `SOCK_DIAG`.
struct Kernel {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Kernel {
    fn open() -> Result<Self, DestroyError> {
        let broken = |error: io::Error| error.raw_os_error().map_or(DestroyError::Netlink(error), DestroyError::of);
        let socket = Socket::new(NETLINK_SOCK_DIAG).map_err(broken)?;
        // Nobody but the kernel may answer then.
        socket.connect(&NetlinkAddr::new(0, 0)).map_err(DestroyError::Netlink)?;
        Ok(Self { socket, buffer: vec![0; ANSWER_BYTES_MAX] })
    }

    /// Shows each connection of `family` to a peer's port `port`.
    fn sockets(
        &mut self,
        family: u8,
        port: u16,
        mut show: impl FnMut(InetResponse) -> Result<(), DestroyError>,
    ) -> Result<(), DestroyError> {
        let any = if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() };
        let id = SocketId { destination_port: port, ..any };
        self.send(SockDiagMessage::InetRequest(request(family, id)), NLM_F_REQUEST | NLM_F_DUMP)?;
        loop {
            let mut done = false;
            for answer in self.receive()? {
                match answer {
                    NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(socket)) => show(*socket)?,
                    NetlinkPayload::Done(end) if end.code == 0 => done = true,
                    NetlinkPayload::Done(end) => return Err(DestroyError::of(-end.code)),
                    NetlinkPayload::Error(error) => return Err(DestroyError::of(-error.raw_code())),
                    _ => {}
                }
            }
            if done {
                return Ok(());
            }
        }
    }

    /// Ends one socket; the kernel's error number, 0 for none.
    fn destroy(&mut self, family: u8, id: SocketId) -> Result<i32, DestroyError> {
        let order = SockDiagDestroy::new(SockDiagMessage::InetRequest(request(family, id)));
        self.send(order, NLM_F_REQUEST | NLM_F_ACK)?;
        loop {
            for answer in self.receive()? {
                if let NetlinkPayload::Error(error) = answer {
                    return Ok(-error.raw_code());
                }
            }
        }
    }

    fn send<T: NetlinkSerializable>(&self, payload: T, flags: u16) -> Result<(), DestroyError> {
        let mut message = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::InnerMessage(payload));
        message.header.flags = flags;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(drop).map_err(DestroyError::Netlink)
    }

    /// The messages of one datagram.
    fn receive(&mut self) -> Result<Vec<NetlinkPayload<SockDiagMessage>>, DestroyError> {
        let length = self.socket.recv(&mut &mut self.buffer[..], 0).map_err(DestroyError::Netlink)?;
        messages(&self.buffer[..length])
    }
}

fn messages<T: NetlinkDeserializable>(mut bytes: &[u8]) -> Result<Vec<NetlinkPayload<T>>, DestroyError> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let message = NetlinkMessage::<T>::deserialize(bytes).map_err(DestroyError::Answer)?;
        // Each begins at a multiple of four; one that ends the datagram may lack the filling.
        let length = (message.header.length as usize).next_multiple_of(4);
        bytes = bytes.get(length..).unwrap_or_default();
        found.push(message.payload);
    }
    Ok(found)
}

fn request(family: u8, id: SocketId) -> InetRequest {
    InetRequest { family, protocol: IPPROTO_TCP, extensions: ExtensionFlags::INFO, states: states(), socket_id: id }
}
