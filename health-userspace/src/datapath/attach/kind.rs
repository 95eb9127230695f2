//! How the packets of an interface begin, which decides what programs read them.

use crate::datapath::{DatapathError, sys};

/// What the programs meet first in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An Ethernet header.
    Ethernet,
    /// The IP header: tunnels, `WireGuard`, PPP.
    Bare,
}

impl Kind {
    /// Asks the kernel. What is gone by now fails at the attaching, with more to say.
    pub(super) fn of(interface: &str) -> Result<Self, DatapathError> {
        let Ok((kind, flags)) = sys::link_kind(interface) else { return Ok(Self::Ethernet) };
        Self::from_numbers(kind, flags).ok_or_else(|| DatapathError::Unreadable { interface: interface.to_owned() })
    }

    /// `ARPHRD_…` and `IFF_…`. Tunnels are those for which the kernel has no header either (`dev_is_mac_header_xmit`,
    /// `include/linux/if_arp.h`).
    ///
    /// A GRE device without a fixed far end writes the tunnel's outer header before TC egress (`ipgre_header_ops`,
    /// `net/ipv4/ip_gre.c`), so that our programs would read that instead; only the others are point-to-point.
    fn from_numbers(kind: u16, flags: u32) -> Option<Self> {
        match kind {
            libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Some(Self::Ethernet),
            libc::ARPHRD_NONE
            | libc::ARPHRD_TUNNEL
            | libc::ARPHRD_TUNNEL6
            | libc::ARPHRD_SIT
            | libc::ARPHRD_PPP
            | ARPHRD_RAWIP => Some(Self::Bare),
            libc::ARPHRD_IPGRE | ARPHRD_IP6GRE => (flags & IFF_POINTOPOINT != 0).then_some(Self::Bare),
            _ => None,
        }
    }

    /// The program that reads this kind, in the place of one that reads Ethernet.
    pub(super) fn program(self, name: &'static str, interface: &str) -> Result<&'static str, DatapathError> {
        match (self, name) {
            (Self::Ethernet, _) => Ok(name),
            (Self::Bare, "ingress") => Ok("ingress_l3"),
            (Self::Bare, "egress") => Ok("egress_l3"),
            (Self::Bare, "client") => Ok("client_l3"),
            (Self::Bare, _) => Err(DatapathError::NoXdp { interface: interface.to_owned() }),
        }
    }
}

// `include/uapi/linux/if_arp.h`; the library has them not.
const ARPHRD_RAWIP: u16 = 519;
const ARPHRD_IP6GRE: u16 = 823;
const IFF_POINTOPOINT: u32 = libc::IFF_POINTOPOINT.cast_unsigned();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_its_number() {
        let table = [
            ("Ethernet, VLAN, veth, bridge", 1, 0, Some(Kind::Ethernet)),
            ("loopback", 772, 0, Some(Kind::Ethernet)),
            ("tun, WireGuard", 0xfffe, 0, Some(Kind::Bare)),
            ("IPIP", 768, 0, Some(Kind::Bare)),
            ("IPv6 in IPv6", 769, 0, Some(Kind::Bare)),
            ("SIT", 776, 0, Some(Kind::Bare)),
            ("PPP", 512, IFF_POINTOPOINT, Some(Kind::Bare)),
            ("raw IP, of modems", 519, 0, Some(Kind::Bare)),
            ("GRE", 778, IFF_POINTOPOINT, Some(Kind::Bare)),
            ("GRE to many", 778, 0, None),
            ("GRE over IPv6", 823, IFF_POINTOPOINT, Some(Kind::Bare)),
            ("GRE over IPv6 to many", 823, 0, None),
            ("InfiniBand", 32, 0, None),
            ("WLAN, as a monitor", 803, 0, None),
        ];
        for (name, kind, flags, wanted) in table {
            assert_eq!(Kind::from_numbers(kind, flags), wanted, "{name}");
        }
    }

    #[test]
    fn xdp_needs_ethernet() {
        assert_eq!(Kind::Bare.program("egress", "gre1").ok(), Some("egress_l3"));
        for name in ["xdp_ingress", "ingress_behind"] {
            assert_eq!(Kind::Ethernet.program(name, "eth1").ok(), Some(name));
            let error = Kind::Bare.program(name, "gre1").expect_err("no frames");
            assert!(error.to_string().contains("`gre1`") && error.to_string().contains("node.xdp"), "{error}");
        }
    }
}
