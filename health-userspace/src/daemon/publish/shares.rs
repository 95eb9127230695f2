//! Who has how much, read back from the kernel's tables.

use std::collections::BTreeMap;

use health_core::model::ServiceSpec;

use crate::datapath::Datapath;

/// Share of the service's new flows by the slot tables, read back; frontends count alike. Unit: percent.
pub(super) fn shares(datapath: &Datapath, spec: &ServiceSpec) -> BTreeMap<u16, f64> {
    let mut slots: BTreeMap<u16, u32> = spec.origins.iter().map(|origin| (origin.id.0, 0)).collect();
    let mut all = 0u32;
    for frontend in &spec.frontends {
        for (origin, count) in datapath.shares(frontend.id.0).unwrap_or_default() {
            *slots.entry(origin).or_default() += count;
            all += count;
        }
    }
    if all == 0 {
        return BTreeMap::new();
    }
    slots.into_iter().map(|(id, count)| (id, f64::from(count) * 100.0 / f64::from(all))).collect()
}
