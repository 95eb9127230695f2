//! Which interface leads to an origin, over which next hop.

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
        route::{RouteAddress, RouteAttribute, RouteMessage, RouteVia},
    },
};

use super::DatapathError;

/// The first step on the way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Number of the interface by which packets leave.
    pub interface: u32,
    /// Who must be found on its link: a gateway, or the address itself.
    pub next: IpAddr,
}

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

    /// The first hop of packets to `address`.
    ///
    /// # Errors
    ///
    /// [`DatapathError::Route`] when there is no route.
    pub async fn hop(&self, address: SocketAddr) -> Result<Hop, DatapathError> {
        let question = match address.ip() {
            IpAddr::V4(ip) => RouteMessageBuilder::<std::net::Ipv4Addr>::new().destination_prefix(ip, 32).build(),
            IpAddr::V6(ip) => RouteMessageBuilder::<std::net::Ipv6Addr>::new().destination_prefix(ip, 128).build(),
        };
        let route = self.ask(question).await.map_err(|source| DatapathError::Route { address, source })?;
        let interface = route.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        });
        let interface = interface.ok_or_else(|| DatapathError::Route { address, source: no_route() })?;
        let next = route.attributes.iter().find_map(gateway).unwrap_or(address.ip());
        Ok(Hop { interface, next })
    }

    async fn ask(&self, question: RouteMessage) -> io::Result<RouteMessage> {
        // The library's own request dumps the whole table; one question without the dump flag is answered by the route
        // that a packet would take.
        let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetRoute(question));
        request.header.flags = NLM_F_REQUEST;
        let mut answers = self.handle.clone().request(request).map_err(io::Error::other)?;
        let answer = answers.next().await.ok_or_else(no_route)?;
        match answer.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => Ok(route),
            _ => Err(no_route()),
        }
    }
}

fn no_route() -> io::Error {
    io::Error::new(io::ErrorKind::NetworkUnreachable, "no route")
}

/// The gateway of a route; it may be of the other family (RFC 5549).
fn gateway(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(ip)) | RouteAttribute::Via(RouteVia::Inet(ip)) => Some((*ip).into()),
        RouteAttribute::Gateway(RouteAddress::Inet6(ip)) | RouteAttribute::Via(RouteVia::Inet6(ip)) => {
            Some((*ip).into())
        }
        _ => None,
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
