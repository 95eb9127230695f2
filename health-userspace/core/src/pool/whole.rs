//! `move = "service"`: all flows of a family are on one tier.

use super::{Member, Pool, Tier, WHOLE};

impl Pool {
    /// All or none: the first tier of which enough serves, however well, has everything; where none has enough, the first that
    /// serves at all. What is held, or nobody is ready for, stays at home.
    pub(super) fn keep_one_tier(&mut self) {
        let serves = |tier: &Tier| self.serving_percent(tier.number) >= u64::from(self.limits.min_usable_percent);
        let able = self.tiers.iter().find(|tier| serves(tier)).or_else(|| self.tiers.first());
        let at_home = self.stays && self.tiers.first().is_some_and(|first| first.number == self.home);
        let keeps = if at_home { self.home } else { able.map_or(self.home, |tier| tier.number) };
        self.tiers.retain(|tier| tier.number == keeps);
        self.tiers.iter_mut().for_each(|tier| (tier.keeps, tier.own_keeps) = (WHOLE, WHOLE));
    }

    /// Part of a tier's weight that serves, well or not.
    fn serving_percent(&self, tier: u8) -> u64 {
        let of_tier = self.members.iter().filter(|member| member.tier == tier);
        let weight = |serving: bool| {
            let counted = of_tier.clone().filter(|member| !serving || member.can_serve());
            counted.fold(0_u64, |sum, member| sum.saturating_add(u64::from(member.weight)))
        };
        weight(true).saturating_mul(100).checked_div(weight(false)).unwrap_or(0)
    }

    /// Where all flows are on one tier, no attempt goes to another.
    pub(super) fn is_in_force(&self, member: Member) -> bool {
        !self.limits.whole || self.tiers.iter().any(|tier| tier.number == member.tier)
    }
}
