//! Who has which address. The ranges are private and never leave the lab's namespaces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::Serialize;

/// Port of the origins.
pub const HTTP_PORT: u16 = 80;

/// Port of the proxy in the node namespace.
pub const PROXY_PORT: u16 = 8080;

/// An address family of the lab, which has both everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl Family {
    /// Both, IPv4 first.
    pub const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    /// As in reports: `ipv4`, `ipv6`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
        }
    }

    /// Name of this family's service in the lab's configuration.
    #[must_use]
    pub const fn service(self) -> &'static str {
        match self {
            Self::Ipv4 => "shop4",
            Self::Ipv6 => "shop6",
        }
    }
}

/// One L2 segment of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// Client and node.
    Client,
    /// The node's `orig0`.
    Orig0,
    /// The node's `orig1`, in the lab with two links.
    Orig1,
}

impl Segment {
    const fn number(self) -> u8 {
        match self {
            Self::Client => 77,
            Self::Orig0 => 78,
            Self::Orig1 => 79,
        }
    }

    /// Address of `host` on this segment.
    pub(crate) fn host(self, family: Family, host: u8) -> IpAddr {
        match family {
            Family::Ipv4 => IpAddr::V4(Ipv4Addr::new(10, self.number(), 0, host)),
            Family::Ipv6 => {
                let net = 0xfd00 + u16::from(self.number());
                IpAddr::V6(Ipv6Addr::new(net, 0, 0, 0, 0, 0, 0, u16::from(host)))
            }
        }
    }

    /// The same with its prefix length, as `ip address add` wants it.
    pub(crate) fn host_prefix(self, family: Family, host: u8) -> String {
        let length = match family {
            Family::Ipv4 => 24,
            Family::Ipv6 => 64,
        };
        format!("{}/{length}", self.host(family, host))
    }
}

/// The node on every segment.
pub(crate) const NODE: u8 = 1;
/// The client on [`Segment::Client`]: the first of [`CLIENTS`] addresses.
pub(crate) const CLIENT: u8 = 2;
/// Addresses of the client, because no client alone is evidence.
pub const CLIENTS: usize = 8;
/// Origin a.
pub(crate) const A: u8 = 10;
/// Standby b.
pub(crate) const B: u8 = 11;

/// `address` on the wildcard of its family: what a server in a namespace listens on.
pub(crate) fn any(family: Family, port: u16) -> SocketAddr {
    match family {
        Family::Ipv4 => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port),
        Family::Ipv6 => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port),
    }
}
