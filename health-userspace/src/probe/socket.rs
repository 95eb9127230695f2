//! Connections that carry the mark.

use super::ProbeError;
use nix::sys::socket::{setsockopt, sockopt};
use std::{io, net::SocketAddr};
use tokio::net::{TcpSocket, TcpStream};

/// Whether this process may mark sockets.
pub(super) fn try_mark(mark: u32) -> Result<(), ProbeError> {
    match marked(SocketAddr::from(([127, 0, 0, 1], 0)), mark) {
        // A shortage of descriptors at this moment says nothing about the right to mark.
        Err(source) if matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
            Err(ProbeError::Mark { mark, source })
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// A connection to `address`. The mark is set before the first packet, so it is neither steered nor counted.
pub(super) async fn connect(address: SocketAddr, mark: u32) -> io::Result<TcpStream> {
    let socket = marked(address, mark)?;
    socket.set_nodelay(true)?;
    socket.connect(address).await
}

fn marked(address: SocketAddr, mark: u32) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    setsockopt(&socket, sockopt::Mark, &mark)?;
    Ok(socket)
}
