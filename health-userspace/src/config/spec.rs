//! From configuration to what the judgement knows.

use super::{
    kind::CheckKind,
    model::{OriginConfig, ServiceConfig},
};
use health_core::model::{CheckSpec, Family, FrontendId, FrontendSpec, OriginId, OriginSpec, ServiceId, ServiceSpec};
use std::net::{IpAddr, SocketAddr};

/// Who gives the kernel's numbers. The same object always gets the same number.
pub trait Ids {
    /// Number of a service.
    fn service(&self, name: &str) -> ServiceId;
    /// Number of an origin, given once per address and port.
    fn origin(&self, address: SocketAddr) -> OriginId;
    /// Number of a frontend.
    fn frontend(&self, address: SocketAddr) -> FrontendId;
}

impl ServiceConfig {
    /// Whether this origin's own address is steered: only in tier 0, and where both service and origin want it.
    #[must_use]
    pub fn guards(&self, origin: &OriginConfig) -> bool {
        self.guard && origin.guard && origin.tier == 0
    }

    /// Addresses that are steered: those of guarded origins, then the virtual ones.
    pub fn frontends(&self) -> impl Iterator<Item = SocketAddr> {
        let own = self.origins.iter().filter(|origin| self.guards(origin)).map(|origin| origin.address);
        own.chain(self.vips.iter().copied())
    }

    /// What the judgement knows of this service.
    #[must_use]
    pub fn spec(&self, ids: &dyn Ids) -> ServiceSpec {
        ServiceSpec {
            id: ids.service(&self.name),
            name: self.name.clone(),
            mode: self.mode,
            policy: self.policy.clone(),
            origins: self.origins.iter().map(|origin| origin_spec(origin, ids)).collect(),
            checks: self
                .checks
                .iter()
                .map(|check| CheckSpec {
                    name: check.name.clone(),
                    layer: check.layer,
                    interval: check.interval,
                    critical: check.plan.critical,
                    verify: check.plan.verify,
                    removed_fall: match &check.kind {
                        CheckKind::Pkcs11(rule) => rule.removed_fall,
                        _ => 0,
                    },
                })
                .collect(),
            balance: self.balance,
            frontends: self
                .origins
                .iter()
                .filter(|origin| self.guards(origin))
                .map(|origin| FrontendSpec {
                    id: ids.frontend(origin.address),
                    own: Some(ids.origin(origin.address)),
                    family: family(origin.address),
                })
                .chain(self.vips.iter().map(|vip| FrontendSpec {
                    id: ids.frontend(*vip),
                    own: None,
                    family: family(*vip),
                }))
                .collect(),
        }
    }
}

fn origin_spec(origin: &OriginConfig, ids: &dyn Ids) -> OriginSpec {
    OriginSpec {
        id: ids.origin(origin.address),
        name: origin.name.clone(),
        key: key(origin.address),
        family: family(origin.address),
        tier: origin.tier,
        weight: origin.weight,
        capacity_cps: origin.capacity_cps,
        capacity_conns: origin.capacity_conns,
    }
}

fn key(address: SocketAddr) -> u64 {
    number(address.ip(), &address.port().to_be_bytes())
}

/// A host, or a next hop by the interface `more`, as the judgement knows it.
#[must_use]
pub fn place(address: IpAddr, more: u32) -> u64 {
    number(address, &more.to_be_bytes())
}

/// FNV-1a (Fowler, Noll, Vo): a fixed function, so that all nodes know an origin by the same number.
fn number(address: IpAddr, more: &[u8]) -> u64 {
    let octets = match address.to_canonical() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let bytes = octets.into_iter().chain(more.iter().copied());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

const fn family(address: std::net::SocketAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}
