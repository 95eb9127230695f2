//! Where flows go whose slot's origin is tripped.

use super::{ARMED_MAX, Bound, Member, Pool};
use crate::model::OriginId;
use alloc::vec::Vec;

impl Pool {
    /// Whether no attempt of this one's flows may go to another tier.
    fn is_shut(&self, member: Member) -> bool {
        member.bound == Bound::Tier || (self.limits.whole && member.bound > Bound::Free)
    }

    /// Where the flows of a virtual address go when their slot's origin is tripped, best first: tier by tier. Beside it how
    /// many of them, from the first, are equally good. Empty in panic.
    #[must_use]
    pub fn armed(&self) -> (Vec<OriginId>, u8) {
        if !self.last_resort.is_empty() {
            return (Vec::new(), 0);
        }
        let rank = |member: &Member| (self.is_unready(*member), member.tier, member.standing);
        let shut = self.members.iter().any(|member| member.tier == self.home && self.is_shut(*member));
        let may = |member: &&Member| {
            member.can_replace() && self.is_in_force(**member) && !(shut && member.tier != self.home)
        };
        let mut usable: Vec<&Member> = self.members.iter().filter(may).collect();
        usable.sort_by_key(|member| rank(member));
        usable.truncate(ARMED_MAX);
        let best = usable.first().map_or(0, |best| usable.iter().filter(|other| rank(other) == rank(best)).count());
        (usable.into_iter().map(|member| member.id).collect(), u8::try_from(best).unwrap_or(u8::MAX))
    }

    /// Where the flows of `own`'s address go when their slot's origin is tripped, best first: the own tier, then lower
    /// ones (higher numbers), then preferred ones, and the owner itself at the end, for slots that are not its own.
    /// Beside it how many of them, from the first, are equally good. Empty in panic.
    #[must_use]
    pub fn armed_of(&self, own: OriginId) -> (Vec<OriginId>, u8) {
        let Some(owner) = self.members.iter().find(|member| member.id == own) else { return (Vec::new(), 0) };
        if !self.last_resort.is_empty() {
            return (Vec::new(), 0);
        }
        let rank = |member: &Member| (member.tier < owner.tier, self.is_unready(*member), member.tier, member.standing);
        let may = |member: &&Member| !self.is_shut(*owner) || member.tier == owner.tier;
        let able = |member: &&Member| member.can_replace() && member.id != own && self.is_in_force(**member);
        let mut others: Vec<&Member> = self.members.iter().filter(able).filter(may).collect();
        others.sort_by_key(|member| rank(member));
        let keeps = usize::from(owner.can_serve() && self.is_in_force(*owner));
        others.truncate(ARMED_MAX.saturating_sub(keeps));
        let best = others.first().map_or(0, |best| others.iter().filter(|other| rank(other) == rank(best)).count());
        let mut armed: Vec<OriginId> = others.into_iter().map(|member| member.id).collect();
        if keeps > 0 && !armed.is_empty() {
            armed.push(own);
        }
        (armed, u8::try_from(best).unwrap_or(u8::MAX))
    }
}
