//! A service's frontends: whose flows go where.

use super::Service;
use crate::{
    engine::{FrontendPlan, Plan, SLOTS},
    maglev::{self, Claim},
    model::{Balance, Family, FrontendSpec, OriginId, ServiceSpec},
    pool::Pool,
    steering::{self, Share},
};
use alloc::{collections::BTreeMap, vec, vec::Vec};

/// All of a frontend's flows. Unit: ppm.
const WHOLE: u64 = 1_000_000;

/// A table and the shares that it was made from: making one costs more than comparing the shares.
#[derive(Clone, Debug)]
pub(super) struct Table {
    shares: Vec<Share>,
    slots: Vec<OriginId>,
}

/// The table of one tier in one family while all is well.
#[derive(Clone, Debug)]
pub(super) struct Base {
    family: Family,
    tier: u8,
    slots: Vec<OriginId>,
}

pub(super) fn bases(spec: &ServiceSpec) -> Vec<Base> {
    let mut keys: Vec<(Family, u8)> = spec.origins.iter().map(|origin| (origin.family, origin.tier)).collect();
    keys.sort_unstable();
    keys.dedup();
    let one = |(family, tier)| {
        let origins = spec.origins.iter().filter(|origin| (origin.family, origin.tier) == (family, tier));
        let weights: Vec<Share> =
            origins.map(|origin| Share { id: origin.id, part: u64::from(origin.weight) }).collect();
        Base { family, tier, slots: steering::base(&weights) }
    };
    keys.into_iter().map(one).collect()
}

impl Service {
    /// Each origin's part of the service's new flows, in the specification's order. Unit: ppm.
    ///
    /// Traffic comes by the addresses of the most preferred guarded tier, as their weights say, and by virtual addresses, each
    /// with the weight of the whole family; where there is neither, as it would by a virtual one.
    pub(super) fn shares(&self, pools: &[(Family, Pool)]) -> Vec<u64> {
        let place_of: BTreeMap<OriginId, usize> =
            self.origins.iter().enumerate().map(|(place, origin)| (origin.spec.id, place)).collect();
        let own = |frontend: &FrontendSpec| {
            frontend.own.and_then(|own| place_of.get(&own)).and_then(|place| self.origins.get(*place))
        };
        let first = self.spec.frontends.iter().filter_map(own).map(|origin| origin.spec.tier).min();
        let mut sums: Vec<u64> = vec![0; self.origins.len()];
        let mut total = 0_u64;
        let mut add = |shares: &[Share], weight: u64| {
            let parts = shares.iter().fold(0_u64, |sum, share| sum.saturating_add(share.part));
            for share in shares {
                let ppm = share.part.saturating_mul(WHOLE).checked_div(parts).unwrap_or(0).saturating_mul(weight);
                if let Some(sum) = place_of.get(&share.id).and_then(|place| sums.get_mut(*place)) {
                    *sum = sum.saturating_add(ppm);
                }
            }
            total = total.saturating_add(weight);
        };
        for frontend in &self.spec.frontends {
            let Some(origin) = own(frontend).filter(|origin| Some(origin.spec.tier) == first) else { continue };
            let pool = pools.iter().find(|(family, _)| *family == frontend.family);
            let unsteered = || vec![Share { id: origin.spec.id, part: WHOLE }];
            let shares = pool.map_or_else(unsteered, |(_, pool)| pool.shares_of(origin.spec.id));
            add(&shares, u64::from(origin.spec.weight.max(1)));
        }
        let mut is_virtual = false;
        for frontend in self.spec.frontends.iter().filter(|frontend| frontend.own.is_none()) {
            is_virtual = true;
            let weights = self.origins.iter().filter(|origin| origin.spec.family == frontend.family);
            let weight = weights.fold(0_u64, |sum, origin| sum.saturating_add(u64::from(origin.spec.weight)));
            let pool = pools.iter().find(|(family, _)| *family == frontend.family);
            let shares = pool.map(|(_, pool)| pool.shares()).unwrap_or_default();
            add(&shares, if shares.is_empty() { 0 } else { weight.max(1) });
        }
        if first.is_none() && !is_virtual {
            for (_, pool) in pools {
                let shares = pool.shares();
                add(&shares, u64::from(!shares.is_empty()));
            }
        }
        sums.into_iter().map(|sum| sum.checked_div(total).unwrap_or(0)).collect()
    }

    pub(super) fn plan_frontends(&mut self, pools: &[(Family, Pool)], plan: &mut Plan) {
        let mut fresh: Vec<(Option<OriginId>, u8, Table)> = Vec::new();
        for frontend in &self.spec.frontends {
            let Some((_, pool)) = pools.iter().find(|(family, _)| *family == frontend.family) else { continue };
            let shares = match frontend.own {
                Some(own) => pool.shares_of(own),
                None => self.virtual_shares(frontend.family, pool),
            };
            if self.tables.get(&frontend.id).is_none_or(|table| table.shares != shares) {
                let table = self.table(*frontend, shares, &mut fresh);
                self.tables.insert(frontend.id, table);
            }
            let slots = self.tables.get(&frontend.id).map(|table| table.slots.clone()).unwrap_or_default();
            let (armed, armed_best) = frontend.own.map_or_else(|| pool.armed(), |own| pool.armed_of(own));
            plan.frontends.push(FrontendPlan { id: frontend.id, slots, armed, armed_best });
        }
    }

    /// The owner's own tier comes first, then those below it, then those above. Where the owner itself has no share, all
    /// its tier's addresses share one table: a tier that dies at once costs one table, not one an address.
    fn table(
        &self,
        frontend: FrontendSpec,
        shares: Vec<Share>,
        fresh: &mut Vec<(Option<OriginId>, u8, Table)>,
    ) -> Table {
        if frontend.own.is_none() {
            return self.virtual_table(frontend.family, shares);
        }
        let owner = self.spec.origins.iter().find(|origin| Some(origin.id) == frontend.own);
        let tier = owner.map_or(0, |origin| origin.tier);
        let own = frontend.own.filter(|own| shares.iter().any(|share| share.id == *own));
        let known = fresh.iter().find(|(of, at, table)| (*of, *at) == (own, tier) && table.shares == shares);
        if let Some((_, _, table)) = known {
            return table.clone();
        }
        let mut bases: Vec<&Base> = self.bases.iter().filter(|base| base.family == frontend.family).collect();
        bases.sort_by_key(|base| (base.tier < tier, base.tier));
        let bases: Vec<&[OriginId]> = bases.into_iter().map(|base| base.slots.as_slice()).collect();
        let slots = steering::table(&shares, own, &bases);
        let table = Table { shares, slots };
        fresh.push((own, tier, table.clone()));
        table
    }

    /// The pool's shares. An origin whose trials go on has the least of all besides, for only flows that come by its slot can
    /// try it: it has no address of its own here.
    fn virtual_shares(&self, family: Family, pool: &Pool) -> Vec<Share> {
        let mut shares = pool.shares();
        if !shares.is_empty() {
            let tried = self
                .origins
                .iter()
                .filter(|origin| origin.spec.family == family && origin.spec.weight > 0 && origin.wants_trials());
            let fresh: Vec<OriginId> =
                tried.map(|origin| origin.spec.id).filter(|id| shares.iter().all(|share| share.id != *id)).collect();
            shares.extend(fresh.into_iter().map(|id| Share { id, part: 1 }));
        }
        shares
    }

    /// A virtual address is its pool's, tier by tier.
    fn virtual_table(&self, family: Family, shares: Vec<Share>) -> Table {
        let slots = match self.spec.balance {
            Balance::Maglev => {
                let key = |id: OriginId| self.spec.origins.iter().find(|origin| origin.id == id).map_or(0, |o| o.key);
                let claims: Vec<Claim> =
                    shares.iter().map(|share| Claim { key: key(share.id), share: *share }).collect();
                maglev::table(&claims)
            }
            Balance::Weighted => {
                let mut bases: Vec<&Base> = self.bases.iter().filter(|base| base.family == family).collect();
                bases.sort_by_key(|base| base.tier);
                let bases: Vec<&[OriginId]> = bases.into_iter().map(|base| base.slots.as_slice()).collect();
                steering::table(&shares, None, &bases)
            }
        };
        Table { shares, slots: if slots.is_empty() { vec![OriginId::NONE; SLOTS] } else { slots } }
    }

    /// As if Sluice were not there.
    pub(super) fn plan_neutral(&self, plan: &mut Plan) {
        plan.frontends.extend(self.spec.frontends.iter().map(|frontend| FrontendPlan {
            id: frontend.id,
            slots: vec![frontend.own.unwrap_or(OriginId::NONE); SLOTS],
            armed: Vec::new(),
            armed_best: 0,
        }));
    }
}
