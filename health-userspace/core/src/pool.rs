//! Tiers, shares and panic: how states become shares of the new flows of a frontend.
//!
//! A pool is the origins of one family in one service; families never mix in a frontend.

use crate::{model::OriginId, steering::Share};
use alloc::vec::Vec;

mod armed;
mod whole;

/// Least usable share of a tier's weight with which it keeps all flows. Unit: percent. Default of `min_usable_percent`.
pub const MIN_USABLE_PERCENT: u8 = 70;

/// Share of usable origins below which all are used again. Unit: percent. Default of `panic_percent`: only when none is.
pub const PANIC_PERCENT: u8 = 1;

/// Most origins in a list of armed ones; the kernel's array is that long.
pub const ARMED_MAX: usize = 16;

/// All of something.
const WHOLE: u64 = 1_000_000;

/// What the pool is measured against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// See [`MIN_USABLE_PERCENT`]. Range: 1 to 100.
    pub min_usable_percent: u8,
    /// See [`PANIC_PERCENT`]. 0: never.
    pub panic_percent: u8,
    /// Whether all flows are on one tier.
    pub whole: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { min_usable_percent: MIN_USABLE_PERCENT, panic_percent: PANIC_PERCENT, whole: false }
    }
}

/// How far an origin may be used. Ordered: the best comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// `healthy`.
    Proved,
    /// `unknown`: as good in the choice of a tier, second choice as the replacement of a failed one.
    Unproved,
    /// `degraded`.
    Degraded,
    /// `high_risk`.
    HighRisk,
    /// `recovering`, in a stage: has its part and replaces nobody.
    Staged,
    /// `recovering`: passes, but waits.
    Waiting,
    /// `fault`.
    Out,
    /// `maintenance`: never, not even in panic.
    Never,
}

impl Standing {
    /// Whether new flows may go there while nothing is wrong with the pool.
    #[must_use]
    pub const fn is_usable(self) -> bool {
        match self {
            Self::Proved | Self::Unproved | Self::Degraded | Self::HighRisk | Self::Staged => true,
            Self::Waiting | Self::Out | Self::Never => false,
        }
    }
}

/// One origin, as the pool sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Who.
    pub id: OriginId,
    /// 0 is preferred.
    pub tier: u8,
    /// Share inside its tier; 0 takes nothing and is no capacity.
    pub weight: u16,
    /// What its state leaves of the weight. Unit: percent.
    pub factor: u8,
    /// How far it may be used.
    pub standing: Standing,
    /// Whether it was shown lately that it can serve. Matters to standbys: they get nothing by choice without it.
    pub ready: bool,
    /// Whether its flows may leave its tier.
    pub bound: Bound,
}

/// How far the governor holds the flows of an origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    /// They go where the shares say.
    #[default]
    Free,
    /// No plan takes them to another tier; attempts that fail are rescued, and trips act.
    Planned,
    /// Nothing takes them to another tier.
    Tier,
}

impl Member {
    fn can_replace(self) -> bool {
        self.can_serve() && self.standing != Standing::Staged
    }

    const fn can_serve(self) -> bool {
        self.weight > 0 && self.standing.is_usable()
    }

    fn effective(self) -> u64 {
        if self.can_serve() { u64::from(self.weight).saturating_mul(u64::from(self.factor)) } else { 0 }
    }
}

/// The sums of one tier.
#[derive(Clone, Copy, Debug)]
struct Tier {
    number: u8,
    /// Part of what comes to it that it keeps. Unit: ppm.
    keeps: u64,
    /// Part that its guarded addresses keep for themselves, by weight. Unit: ppm.
    own_keeps: u64,
}

/// The origins of one family in one service.
#[derive(Clone, Debug)]
pub struct Pool {
    members: Vec<Member>,
    limits: Limits,
    /// Only those with a usable part, best first.
    tiers: Vec<Tier>,
    panic: bool,
    /// The preferred tier; the others are standbys.
    home: u8,
    /// Whether a standby is.
    any_ready: bool,
    /// Whether the flows of the preferred tier stay there as far as it can serve: nobody is ready for them, or they are held.
    stays: bool,
    /// Where nothing is usable: who is used all the same.
    last_resort: Vec<Share>,
}

impl Pool {
    /// Sums up. `members` in the configuration's order, each id once.
    #[must_use]
    pub fn new(members: Vec<Member>, limits: Limits) -> Self {
        let home = members.iter().filter(|member| member.weight > 0).map(|member| member.tier).min().unwrap_or(0);
        let any_ready =
            members.iter().any(|member| member.tier > home && member.ready && member.can_serve() && member.factor > 0);
        let bound = members.iter().any(|member| member.tier == home && member.bound > Bound::Free);
        let counted = members.iter().filter(|member| member.weight > 0 && member.standing != Standing::Never).count();
        let usable = members.iter().filter(|member| member.can_serve()).count();
        // Strictly below, and an empty pool is none (nothing could be used again).
        let panic =
            counted > 0 && usable.saturating_mul(100) < counted.saturating_mul(usize::from(limits.panic_percent));
        // A stage has its part and no more, whoever has to take the rest.
        let staged = members.iter().any(|member| member.tier == home && member.standing == Standing::Staged);
        let stays = bound || (!any_ready && !staged);
        let mut pool =
            Self { members, limits, tiers: Vec::new(), panic, home, any_ready, stays, last_resort: Vec::new() };
        pool.tiers = pool.sum_tiers();
        if limits.whole {
            pool.keep_one_tier();
        }
        if panic || pool.tiers.is_empty() {
            pool.last_resort = pool.find_last_resort(usable > 0);
        }
        pool
    }

    /// Whether too few are usable, so that all are used.
    #[must_use]
    pub const fn is_panic(&self) -> bool {
        self.panic
    }

    /// Whether nothing is usable, and nothing is used then.
    #[must_use]
    pub fn refuses(&self) -> bool {
        let counted = |member: &Member| member.weight > 0 && member.standing != Standing::Never;
        self.limits.panic_percent == 0 && self.tiers.is_empty() && self.members.iter().any(counted)
    }

    fn sum_tiers(&self) -> Vec<Tier> {
        let mut numbers: Vec<u8> = self.members.iter().map(|member| member.tier).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut tiers: Vec<Tier> = numbers.into_iter().filter_map(|number| self.sum_tier(number)).collect();
        if let Some(last) = tiers.last_mut() {
            // Nobody is left to take the rest.
            last.keeps = WHOLE;
        }
        tiers
    }

    /// `None` if nothing in it takes flows.
    fn sum_tier(&self, number: u8) -> Option<Tier> {
        let (mut weight, mut effective, mut usable, mut own) = (0_u64, 0_u64, 0_u64, 0_u64);
        let min_usable = u64::from(self.limits.min_usable_percent);
        for member in self.members.iter().filter(|member| member.tier == number) {
            weight = weight.saturating_add(u64::from(member.weight));
            effective = effective.saturating_add(self.effective(*member));
            // A stage is a part of the flows, not of a capacity that has some to spare.
            let scale = if member.standing == Standing::Staged { min_usable } else { 100 };
            usable = usable.saturating_add(self.effective(*member).saturating_mul(scale));
            own = own.saturating_add(self.own_keeps(*member).saturating_mul(u64::from(member.weight)));
        }
        if effective == 0 {
            return None;
        }
        // usable / (weight × 100 × 100) is the usable share u; u / m is kept.
        let full = weight.saturating_mul(min_usable).saturating_mul(100);
        Some(Tier {
            number,
            keeps: usable.saturating_mul(WHOLE).checked_div(full)?.min(WHOLE),
            own_keeps: own.checked_div(weight)?,
        })
    }

    /// Part of its own address's flows that stays. Unit: ppm.
    fn own_keeps(&self, member: Member) -> u64 {
        if !member.can_serve() {
            return 0;
        }
        if self.limits.whole {
            // Before the tiers are summed it is asked too, and no other answer would matter then.
            let has_all = self.tiers.is_empty() || self.tiers.iter().any(|tier| tier.number == member.tier);
            return if has_all && self.effective(member) > 0 { WHOLE } else { 0 };
        }
        let factor = u64::from(member.factor).saturating_mul(WHOLE);
        let full = if member.standing == Standing::Staged { 100 } else { self.limits.min_usable_percent };
        factor.checked_div(u64::from(full)).unwrap_or(WHOLE).min(WHOLE)
    }

    /// Those that pass their checks again and only wait, if there are any, before the dead ones; never `maintenance`.
    fn find_last_resort(&self, any_usable: bool) -> Vec<Share> {
        let waits =
            !any_usable && self.members.iter().any(|member| member.weight > 0 && member.standing == Standing::Waiting);
        self.members
            .iter()
            .filter(|member| member.standing != Standing::Never)
            .filter(|member| !waits || member.standing == Standing::Waiting)
            // Usable ones whose states' factors are all 0 by policy come before unusable ones.
            .filter(|member| self.panic || !any_usable || member.standing.is_usable())
            .map(|member| Share { id: member.id, part: u64::from(member.weight) })
            .filter(|share| share.part > 0)
            .collect()
    }

    /// Shares of an address that belongs to nobody: all of the first tier's, and what it can't keep in the next.
    #[must_use]
    pub fn shares(&self) -> Vec<Share> {
        if !self.last_resort.is_empty() {
            return self.last_resort.clone();
        }
        let mut shares = Vec::new();
        let at_home = self.tiers.first().is_some_and(|first| first.number == self.home);
        if !at_home && self.is_bound(self.home) {
            let held = self.members.iter().filter(|member| member.tier == self.home && member.bound > Bound::Free);
            return held.map(|member| Share { id: member.id, part: u64::from(member.weight) }).collect();
        }
        self.spill(WHOLE, |tier| !(at_home && self.stays) || tier == self.home, &mut shares);
        shares
    }

    /// Whether nothing is usable, or too little, so that shares follow no tiers.
    #[must_use]
    pub const fn is_last_resort(&self) -> bool {
        !self.last_resort.is_empty()
    }

    /// The preferred tier; the others are standbys.
    #[must_use]
    pub const fn home(&self) -> u8 {
        self.home
    }

    fn is_bound(&self, tier: u8) -> bool {
        self.members.iter().any(|member| member.tier == tier && member.bound > Bound::Free)
    }

    /// Whom the plan would send flows of `own` to that are of another tier: the standbys that its move is about.
    #[must_use]
    pub fn standbys_of(&self, own: OriginId) -> Vec<OriginId> {
        let Some(owner) = self.members.iter().find(|member| member.id == own) else { return Vec::new() };
        let other = |id: OriginId| self.members.iter().any(|member| member.id == id && member.tier != owner.tier);
        let mut ids: Vec<OriginId> =
            self.shares_of(own).into_iter().map(|share| share.id).filter(|id| other(*id)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Shares of `own`'s guarded address. Never empty: an address with nowhere to go is left to its owner, unsteered.
    #[must_use]
    pub fn shares_of(&self, own: OriginId) -> Vec<Share> {
        let unsteered = || [Share { id: own, part: WHOLE }].to_vec();
        let Some(member) = self.members.iter().copied().find(|member| member.id == own) else { return unsteered() };
        if !self.last_resort.is_empty() {
            return self.last_resort.clone();
        }
        let keeps = self.own_keeps(member);
        if keeps >= WHOLE || self.tiers.is_empty() {
            return unsteered();
        }
        let mut shares = Vec::new();
        let rest = WHOLE.saturating_sub(keeps);
        let to_tier = self.spill_inside(member, rest, &mut shares);
        let left = rest.saturating_sub(to_tier);
        let serves = self.tiers.iter().any(|tier| tier.number == member.tier);
        let stays = member.bound > Bound::Free || (serves && member.tier == self.home && self.stays);
        let mut still = if stays { left } else { self.spill(left, |tier| tier > member.tier, &mut shares) };
        if still > 0 && !stays {
            // A standby's own address: the preferred tiers are below it.
            still = self.spill(still, |tier| tier < member.tier, &mut shares);
        }
        if still > 0 {
            // No other tier: the own one keeps everything.
            still = still.saturating_sub(self.give_inside(member, still, &mut shares));
        }
        let own_part = keeps.saturating_add(still);
        if own_part > 0 {
            shares.push(Share { id: own, part: own_part });
        }
        shares
    }

    /// The part of `rest` that the owner's own tier takes, so that the tier as a whole keeps what it should.
    fn spill_inside(&self, own: Member, rest: u64, shares: &mut Vec<Share>) -> u64 {
        let Some(tier) = self.tiers.iter().find(|tier| tier.number == own.tier) else { return 0 };
        let room = tier.keeps.saturating_sub(tier.own_keeps);
        let lacking = WHOLE.saturating_sub(tier.own_keeps);
        let part = if lacking == 0 { rest } else { scaled(rest, room, lacking) };
        self.give_inside(own, part, shares)
    }

    /// Gives `part` to the others of the owner's tier, proved ones first. Returns what was given.
    fn give_inside(&self, own: Member, part: u64, shares: &mut Vec<Share>) -> u64 {
        let others = |member: &&Member| member.tier == own.tier && member.id != own.id && self.effective(**member) > 0;
        let proved = self.members.iter().filter(others).any(|member| member.standing == Standing::Proved);
        let chosen = |member: &&Member| others(member) && !(proved && member.standing == Standing::Unproved);
        self.give(self.members.iter().filter(chosen), part, shares)
    }

    /// Gives `part` to the tiers that `may` names, each keeping its part, the last of them the rest. Returns what is left.
    fn spill(&self, part: u64, may: impl Fn(u8) -> bool, shares: &mut Vec<Share>) -> u64 {
        let mut left = part;
        let last = self.tiers.iter().rev().find(|tier| may(tier.number)).map(|tier| tier.number);
        for tier in self.tiers.iter().filter(|tier| may(tier.number)) {
            let kept = if Some(tier.number) == last { left } else { scaled(left, tier.keeps, WHOLE) };
            let members = self.members.iter().filter(|member| member.tier == tier.number);
            left = left.saturating_sub(self.give(members, kept, shares));
        }
        left
    }
}

impl Pool {
    /// A standby that nobody has seen serve lately stands behind those that were seen.
    const fn is_unready(&self, member: Member) -> bool {
        member.tier > self.home && !member.ready
    }

    /// What of its weight counts. Where somebody is known to be able to, who is not waits; what ails has its own factor.
    fn effective(&self, member: Member) -> u64 {
        let waits = self.any_ready && matches!(member.standing, Standing::Proved | Standing::Unproved);
        if waits && self.is_unready(member) { 0 } else { member.effective() }
    }

    /// Divides `part` by effective weight. Returns what was given: all or nothing.
    fn give<'a>(&self, members: impl Iterator<Item = &'a Member> + Clone, part: u64, shares: &mut Vec<Share>) -> u64 {
        let total = members.clone().fold(0_u64, |sum, member| sum.saturating_add(self.effective(*member)));
        if total == 0 || part == 0 {
            return 0;
        }
        for member in members.filter(|member| self.effective(**member) > 0) {
            // At least one, so that a tiny weight is not rounded away: the table then gives it its one slot.
            shares.push(Share { id: member.id, part: scaled(part, self.effective(*member), total).max(1) });
        }
        part
    }
}

/// `part` × `numerator` / `denominator`, rounded down.
fn scaled(part: u64, numerator: u64, denominator: u64) -> u64 {
    part.saturating_mul(numerator).checked_div(denominator).unwrap_or(0).min(part)
}

#[cfg(test)]
#[path = "tests/pool.rs"]
mod tests;
