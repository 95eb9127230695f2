//! What the daemon would write for a service, in small.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use health_common::event::Kind;
use health_common::map::{Selector, Service, Table};
use health_common::net::{Addr, Be16, Be32, Endpoint, EndpointUse};
use health_common::origin::Origin;
use health_common::{ARMED_MAX, NONE, SERVICE_ORIGINS_MAX, SLOTS};

use super::{Conn, Kernel};

/// The primary's number.
pub(crate) const A: u16 = 0;
/// The standby's.
pub(crate) const B: u16 = 1;
/// Last byte of the node's address.
pub(crate) const NODE: u8 = 1;

const MS: u64 = 1_000_000;
const HOUR: u64 = 3_600_000 * MS;
/// Of a standby's interface; nobody is sent there in a test run.
const IFINDEX: u32 = 9;

/// An address of the lab, by its last byte, in the family asked for. Its first bytes, and in IPv6 its fifth and sixth, are the
/// EtherType of its family: see [`super::kernel::BARE`].
pub(crate) fn addr(v6: bool, host: u8, port: u16) -> SocketAddr {
    let ip: IpAddr = if v6 {
        Ipv6Addr::new(0x2001, 0xdb8, 0x86dd, 0, 0, 0, 0, host.into()).into()
    } else {
        Ipv4Addr::new(8, 0, 100, host).into()
    };
    SocketAddr::new(ip, port)
}

/// As the maps have it.
pub(crate) fn endpoint(address: SocketAddr) -> Endpoint {
    let ip = match address.ip() {
        IpAddr::V4(ip) => Addr::v4(Be32(u32::from_ne_bytes(ip.octets()))),
        IpAddr::V6(ip) => Addr::from_octets(ip.octets()),
    };
    Endpoint::new(ip, Be16::new(address.port()))
}

/// One service of one family: origins 0 … n-1 at hosts 11 …, the first one's own address guarded as frontend 0.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) v6: bool,
    /// Tier of each origin.
    pub(crate) tiers: Vec<u8>,
    /// Port of each origin.
    pub(crate) ports: Vec<u16>,
    /// What all origins have in common.
    pub(crate) origin: Origin,
    pub(crate) max_percent: u32,
}

impl Plan {
    /// A primary on port 443 and a standby on port 8443. Nothing times out while a table runs, unless it says so.
    pub(crate) fn new(v6: bool) -> Self {
        let origin = Origin {
            syn_timeout_ns: HOUR,
            response_timeout_ns: HOUR,
            within_ns: HOUR,
            half_open_after_ns: HOUR,
            half_open_max_ns: HOUR,
            ifindex: IFINDEX,
            after: 5,
            spread_min: 3,
            flags: Origin::PRESENT | Origin::KERNEL_TRIP | Origin::ON_5XX,
            ..Origin::default()
        };
        Self { v6, tiers: vec![0, 1], ports: vec![443, 8443], origin, max_percent: 50 }
    }

    /// Trials after so long, and so long again each time.
    pub(crate) fn trials_after_ms(mut self, ms: u64) -> Self {
        (self.origin.half_open_after_ns, self.origin.half_open_max_ns) = (ms * MS, ms * MS);
        self
    }

    /// SYNs are overdue after so long.
    pub(crate) fn syn_timeout_ms(mut self, ms: u64) -> Self {
        self.origin.syn_timeout_ns = ms * MS;
        self
    }

    /// Requests are overdue after so long.
    pub(crate) fn response_timeout_ms(mut self, ms: u64) -> Self {
        self.origin.response_timeout_ns = ms * MS;
        self
    }

    pub(crate) fn with_flags(mut self, flags: u32) -> Self {
        self.origin.flags |= flags;
        self
    }

    pub(crate) fn with_tiers(mut self, tiers: &[u8]) -> Self {
        self.tiers = tiers.to_vec();
        self.ports.resize(tiers.len(), 443);
        self
    }

    /// Failed attempts go to a standby.
    pub(crate) fn rescuing(mut self) -> Self {
        self.origin.flags |= Origin::RESCUE;
        self
    }

    pub(crate) fn address(&self, id: u16) -> SocketAddr {
        addr(self.v6, 11 + u8::try_from(id).expect("few origins"), self.ports[usize::from(id)])
    }

    /// What the map says of an origin.
    pub(crate) fn record(&self, id: u16) -> Origin {
        let family = if self.v6 { Service::V6 } else { 0 };
        Origin {
            endpoint: endpoint(self.address(id)),
            tier: (self.tiers[usize::from(id)] | family).into(),
            ..self.origin
        }
    }

    /// The frontend's table: every slot is `slot`, the armed are in the order given.
    pub(crate) fn table(slot: u16, armed: &[u16], generation: u32) -> Table {
        let mut table = Table {
            slots: [Table::slot(slot, generation); SLOTS],
            armed_len: u8::try_from(armed.len()).expect("at most 16"),
            armed_best: u8::from(!armed.is_empty()),
            service: 0,
            own: A,
            flags: 0,
            armed: [NONE; ARMED_MAX],
        };
        table.armed[..armed.len()].copy_from_slice(armed);
        table
    }

    /// Writes all of it.
    pub(crate) fn write(&self, kernel: &mut Kernel) {
        let ids: Vec<u16> = (0..).take(self.tiers.len()).collect();
        let mut service = Service { len: u32::try_from(ids.len()).expect("few"), ..Service::default() };
        assert!(ids.len() <= SERVICE_ORIGINS_MAX, "so many the guard can count");
        service.max_percent = self.max_percent;
        for &id in &ids {
            let record = self.record(id);
            service.origins[usize::from(id)] = id;
            service.tiers[usize::from(id)] = u8::try_from(record.tier).expect("a tier");
            kernel.set_origin(id, record);
            let frontend = if id == A { 0 } else { NONE };
            kernel.set_endpoint(record.endpoint, EndpointUse { origin: id, frontend });
        }
        kernel.set_service(0, service);
        kernel.set_frontend(0, &Self::table(A, &ids[1..], 1), Selector::new(1, 0));
    }

    /// A kernel with it.
    pub(crate) fn load(&self) -> Kernel {
        let mut kernel = Kernel::small();
        self.write(&mut kernel);
        kernel
    }

    /// A connection from the node's `port` to the primary's address.
    pub(crate) fn conn(&self, port: u16) -> Conn {
        Conn::new(addr(self.v6, NODE, port), self.address(A))
    }

    /// Five refusals of five clients: the primary trips.
    #[track_caller]
    pub(crate) fn trip(&self, kernel: &mut Kernel) {
        // Refused, not turned around: what trips shall leave no redirection behind.
        let record = self.record(A);
        kernel.set_origin(A, Origin { flags: record.flags & !Origin::RESCUE, ..record });
        for port in 50_001..=50_005 {
            let conn = self.conn(port);
            conn.syn(kernel);
            conn.refuse(kernel);
        }
        kernel.set_origin(A, record);
        assert_eq!(kernel.told(), [(Kind::Trip, A)], "five refusals trip");
    }
}
