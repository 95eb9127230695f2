//! Which interface leads to an origin.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use futures_util::StreamExt;
use rtnetlink::{
    Handle, RouteMessageBuilder,
    packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload},
    packet_route::{
        RouteNetlinkMessage,
        route::{RouteAttribute, RouteMessage},
    },
};

use super::DatapathError;

/// Asks the routing tables of this namespace.
pub struct Routes {
    handle: Handle,
}

impl Routes {
    /// Opens a netlink socket, served by the runtime.
    ///
    /// # Errors
    ///
    /// No descriptor, or no memory.
    pub fn open() -> io::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    /// The interface by which packets to `address` leave.
    ///
    /// # Errors
    ///
    /// [`DatapathError::Route`] when there is no route.
    pub async fn interface(&self, address: SocketAddr) -> Result<u32, DatapathError> {
        let question = match address.ip() {
            IpAddr::V4(ip) => RouteMessageBuilder::<std::net::Ipv4Addr>::new().destination_prefix(ip, 32).build(),
            IpAddr::V6(ip) => RouteMessageBuilder::<std::net::Ipv6Addr>::new().destination_prefix(ip, 128).build(),
        };
        self.ask(question).await.map_err(|source| DatapathError::Route { address, source })
    }

    async fn ask(&self, question: RouteMessage) -> io::Result<u32> {
        // The library's own request dumps the whole table; one question without the dump flag is answered by the route
        // that a packet would take.
        let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetRoute(question));
        request.header.flags = NLM_F_REQUEST;
        let no_route = || io::Error::new(io::ErrorKind::NetworkUnreachable, "no route");
        let mut answers = self.handle.clone().request(request).map_err(io::Error::other)?;
        let answer = answers.next().await.ok_or_else(no_route)?;
        let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) = answer.payload else {
            return Err(no_route());
        };
        let index = route.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        });
        index.ok_or_else(no_route)
    }
}

/// An interface's name; its number where it has none any more.
#[must_use]
pub fn interface_name(index: u32) -> String {
    let mut name = [0 as libc::c_char; libc::IF_NAMESIZE];
    // SAFETY: the buffer is as long as the call demands.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    if found.is_null() {
        return format!("interface {index}");
    }
    // SAFETY: the call has written a terminated string into the buffer.
    unsafe { std::ffi::CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned()
}
