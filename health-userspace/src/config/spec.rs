//! From configuration to what the judgement knows.

use super::model::{OriginConfig, ServiceConfig};
use health_core::model::{CheckSpec, Family, FrontendId, FrontendSpec, OriginId, OriginSpec, ServiceId, ServiceSpec};
use std::net::SocketAddr;

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
                .map(|check| CheckSpec { name: check.name.clone(), layer: check.layer, interval: check.interval })
                .collect(),
            frontends: self
                .origins
                .iter()
                .filter(|origin| self.guards(origin))
                .map(|origin| FrontendSpec {
                    id: ids.frontend(origin.address),
                    own: ids.origin(origin.address),
                    family: family(origin.address),
                })
                .collect(),
        }
    }
}

fn origin_spec(origin: &OriginConfig, ids: &dyn Ids) -> OriginSpec {
    OriginSpec {
        id: ids.origin(origin.address),
        name: origin.name.clone(),
        family: family(origin.address),
        tier: origin.tier,
        weight: origin.weight,
        capacity_cps: origin.capacity_cps,
        capacity_conns: origin.capacity_conns,
    }
}

const fn family(address: std::net::SocketAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}
