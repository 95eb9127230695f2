//! Connections that carry the mark, and leave from where the operator wants.

use super::{ProbeError, failure, trace::Trace};
use health_core::model::{Layer, Outcome};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    ffi::OsString,
    io,
    net::{IpAddr, SocketAddr},
};
use tokio::net::{TcpSocket, TcpStream};

/// How the sockets of a check leave this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sockets {
    /// `SO_MARK`, set before the first packet.
    pub(super) mark: u32,
    /// Source address; its port is the kernel's choice.
    pub(super) address: Option<IpAddr>,
    /// `SO_BINDTODEVICE`.
    pub(super) interface: Option<String>,
}

/// Whether this process may mark sockets.
pub(super) fn try_mark(mark: u32) -> Result<(), ProbeError> {
    let sockets = Sockets { mark, ..Sockets::default() };
    match sockets.tcp(SocketAddr::from(([127, 0, 0, 1], 0))) {
        // A shortage of descriptors at this moment says nothing about the right to mark.
        Err(source) if matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
            Err(ProbeError::Mark { mark, source })
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

impl Sockets {
    /// The step `connect`: a connection to `address`.
    ///
    /// # Errors
    ///
    /// How the round ends, explained.
    pub(super) async fn open(&self, address: SocketAddr, trace: &mut Trace) -> Result<TcpStream, Outcome> {
        trace.begin("connect", Layer::Transport);
        self.connect(address).await.map_err(|error| {
            trace.explain(error.to_string());
            failure::of_io(&error, Layer::Transport)
        })
    }

    /// A datagram or raw socket of that protocol, not blocking, which talks to `address` and nobody else.
    pub(super) fn datagrams(&self, address: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), kind.nonblocking().cloexec(), Some(protocol))?;
        self.prepare(&socket)?;
        if let Some(source) = self.address.filter(|source| source.is_ipv4() == address.is_ipv4()) {
            socket.bind(&SocketAddr::new(source, 0).into())?;
        }
        socket.connect(&address.into())?;
        Ok(socket)
    }

    /// A connection to `address`. The mark is set before the first packet, so it is neither steered nor counted.
    pub(super) async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.tcp(address)?;
        socket.set_nodelay(true)?;
        socket.connect(address).await
    }

    fn tcp(&self, address: SocketAddr) -> io::Result<TcpSocket> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        self.prepare(&socket)?;
        if let Some(source) = self.address.filter(|source| source.is_ipv4() == address.is_ipv4()) {
            // The port is chosen at connect, when the whole tuple is known: 10,000 checks from one address would else
            // run out of ports at 28,000 connections in TIME_WAIT.
            setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
            socket.bind(SocketAddr::new(source, 0))?;
        }
        Ok(socket)
    }

    /// Sets what every socket of a check carries, of whatever protocol.
    pub(super) fn prepare<F: std::os::fd::AsFd>(&self, socket: &F) -> io::Result<()> {
        setsockopt(socket, sockopt::Mark, &self.mark)?;
        if let Some(interface) = &self.interface {
            setsockopt(socket, sockopt::BindToDevice, &OsString::from(interface))?;
        }
        Ok(())
    }
}
