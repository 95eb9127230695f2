//! The blast radius of moves: how much of a node may be on the move at once, and onto whom.
//!
//! ```text
//! where the flows are        node-wide limits            limits of the standby
//! dead, traffic shows it     none: nothing is to lose    declared capacity: none, the kernel lets no more in than fits
//!                                                        none declared: per_standby_at_once, standby_load
//! dead, only checks say so   causes_at_once,             the same, and declared capacity: no_headroom
//! serves, but badly          moves_per_min (ping_pong)
//! ```
//!
//! What the standby's own limits hold stays where it is whatever happens there: a standby that is crushed serves nobody. What the
//! node-wide ones hold is held by doubt about the judgement. So the kernel goes on rescuing attempts and tripping; once traffic
//! shows the fault, nothing holds the move any longer.
//!
//! Causes are counted, not services: a host, or the next hop where that is what failed. A move counts for `AT_ONCE`; after that
//! its standby has shown that it can.

use crate::{
    model::OriginId,
    pool::Bound,
    time::{Span, Timestamp},
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

/// How long a move counts as one that happens now. The longest hold-down.
const AT_ONCE: Span = Span::from_secs(300);

/// The minute of `moves_per_min`; and an origin that serves and whose flows came back keeps them for so long.
const MINUTE: Span = Span::from_secs(60);

/// Above so many times its usual peak, a standby whose capacity nobody declared takes no further cause (design.md §6).
const PEAK_TIMES: u64 = 2;

/// And not below this, whatever its peak was. Unit: new connections per second (design.md §6).
const PEAK_FLOOR: u64 = 100;

/// `[node.governor]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Causes for which flows leave at once. At least 1. Default 3.
    pub causes_at_once: u16,
    /// Origins whose flows begin to leave, per minute. At least 1. Default 60.
    pub moves_per_min: u16,
    /// Causes whose flows go to one standby (a host) at once. At least 1. Default 2.
    pub per_standby_at_once: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Self { causes_at_once: 3, moves_per_min: 60, per_standby_at_once: 2 }
    }
}

/// Where an origin is, in numbers that are alike for what is in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Its host, whatever the port.
    pub host: u64,
    /// The next hop on the way there.
    pub hop: u64,
}

/// Why a move is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// As many causes as may be are on the move.
    CausesAtOnce,
    /// As many moves as may be began in the past minute.
    MovesPerMin,
    /// As many causes as may be went to the standby.
    PerStandby,
    /// The standby, whose capacity nobody declared, has far more load than usual.
    StandbyLoad,
    /// The standby has no room left by its declared capacity.
    NoHeadroom,
    /// Its flows have only just come back, and it serves.
    PingPong,
}

impl Held {
    /// The word for it in output and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CausesAtOnce => "causes_at_once",
            Self::MovesPerMin => "moves_per_min",
            Self::PerStandby => "per_standby_at_once",
            Self::StandbyLoad => "standby_load",
            Self::NoHeadroom => "no_headroom",
            Self::PingPong => "ping_pong",
        }
    }

    pub(crate) const fn bound(self) -> Bound {
        match self {
            Self::PerStandby | Self::StandbyLoad => Bound::Tier,
            Self::CausesAtOnce | Self::MovesPerMin | Self::NoHeadroom | Self::PingPong => Bound::Planned,
        }
    }
}

/// How the place is that flows would leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Left {
    /// Dead, as its traffic shows.
    Dead,
    /// Dead, as checks alone say.
    Doubted,
    /// It serves, but badly.
    Serves,
    /// It is on its way back: what has left is on the move until it is back, and what was held stays.
    Returns,
}

/// What a standby has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Some, of its declared capacity.
    Some,
    /// None of it.
    None,
    /// Nobody declared any.
    Unknown {
        /// New connections per second.
        rate: u64,
        /// Their greatest rate in the past hour, without what it got for others.
        peak: u64,
    },
    /// The operator lets it take all there is (`overflow = "exceed"`).
    Unbounded,
}

/// A standby that a move would go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) id: OriginId,
    /// Its host.
    pub(crate) host: u64,
    pub(crate) room: Room,
}

/// A move that the judgement asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) origin: OriginId,
    /// Host or next hop that failed.
    pub(crate) cause: u64,
    pub(crate) left: Left,
    pub(crate) to: Vec<Target>,
}

#[derive(Clone, Debug)]
struct Move {
    cause: u64,
    onto: Vec<u64>,
    since: Timestamp,
    /// Whether it was judged dead, or out before this daemon: told, or no news.
    dead: bool,
}

/// What is on the move.
#[derive(Clone, Debug, Default)]
pub(crate) struct Governor {
    pub(crate) limits: Limits,
    moves: BTreeMap<OriginId, Move>,
    /// When flows came back to an origin that had served all the while.
    came_back: BTreeMap<OriginId, Timestamp>,
    /// The answers of the last decision.
    held: BTreeMap<OriginId, Held>,
    /// Whether the first look was had: what is out then was so before this daemon.
    begun: bool,
}

/// What there is of young moves.
#[derive(Debug, Default)]
struct Tally {
    causes: BTreeSet<u64>,
    per_standby: BTreeMap<u64, BTreeSet<u64>>,
    in_minute: u64,
}

const fn is_dead(want: &Want) -> bool {
    matches!(want.left, Left::Dead | Left::Doubted)
}

impl Governor {
    /// Decides about all wishes of one moment: which of them are held, and why. Those that are not wished any more have ended.
    /// `wants` in any order; the dead go first.
    ///
    /// Answers with the moves that are news of their standbys: of what is judged dead, once each; what only sheds a part of its
    /// flows is none. What is held is in [`Self::held`].
    pub(crate) fn decide(&mut self, mut wants: Vec<Want>, now: Timestamp) -> Vec<Want> {
        let before = core::mem::take(&mut self.held);
        self.end_others(&wants, now);
        let first = !core::mem::replace(&mut self.begun, true);
        let mut news = Vec::new();
        wants.retain(|want| {
            let Some(went) = self.moves.get_mut(&want.origin) else { return true };
            if is_dead(want) && !core::mem::replace(&mut went.dead, true) {
                news.push(want.clone());
            }
            false
        });
        if wants.is_empty() {
            return news;
        }
        wants.sort_by_key(|want| (want.left, want.origin));
        let mut tally = self.tally(now);
        for want in wants {
            let why = match want.left {
                _ if first => None,
                Left::Returns => before.get(&want.origin).copied(),
                Left::Dead | Left::Doubted | Left::Serves => self.holds(&want, &tally),
            };
            if let Some(why) = why {
                self.held.insert(want.origin, why);
                continue;
            }
            // What was out before this daemon is no news.
            let since = if first { Timestamp::NEVER } else { now };
            let onto = want.to.iter().map(|target| target.host).collect();
            let went = Move { cause: want.cause, onto, since, dead: first || is_dead(&want) };
            if !first {
                tally.add(&went, now);
            }
            self.moves.insert(want.origin, went);
            if !first && is_dead(&want) {
                news.push(want);
            }
        }
        news
    }

    /// The origins whose flows stay where they are, and why.
    pub(crate) const fn held(&self) -> &BTreeMap<OriginId, Held> {
        &self.held
    }

    /// Whether flows of others go to this host.
    pub(crate) fn stands_in(&self, host: u64) -> bool {
        self.moves.values().any(|went| went.onto.contains(&host))
    }

    /// Hosts that others' flows go to.
    pub(crate) fn hosts_in_use(&self) -> BTreeSet<u64> {
        self.moves.values().flat_map(|went| went.onto.iter().copied()).collect()
    }

    fn end_others(&mut self, wants: &[Want], now: Timestamp) {
        let wished: BTreeMap<OriginId, Left> = wants.iter().map(|want| (want.origin, want.left)).collect();
        let came_back = &mut self.came_back;
        self.moves.retain(|origin, _| {
            let stays = wished.contains_key(origin);
            if !stays {
                came_back.insert(*origin, now);
            }
            stays
        });
        came_back.retain(|_, at| now.since(*at) < MINUTE);
    }

    fn tally(&self, now: Timestamp) -> Tally {
        let mut tally = Tally::default();
        self.moves.values().for_each(|went| tally.add(went, now));
        tally
    }

    fn holds(&self, want: &Want, tally: &Tally) -> Option<Held> {
        let barred: Vec<Option<Held>> = want.to.iter().map(|target| self.bars(target, want, tally)).collect();
        // One that may take it is enough: the kernel asks the next where one is full.
        if !barred.is_empty() && barred.iter().all(Option::is_some) {
            return barred.into_iter().flatten().min();
        }
        match want.left {
            Left::Dead => None,
            Left::Serves if self.came_back.contains_key(&want.origin) => Some(Held::PingPong),
            Left::Doubted | Left::Serves | Left::Returns => self.node_holds(want, tally),
        }
    }

    fn node_holds(&self, want: &Want, tally: &Tally) -> Option<Held> {
        let full = |count: usize, most: u16| u64::try_from(count).unwrap_or(u64::MAX) >= u64::from(most);
        if full(tally.causes.len(), self.limits.causes_at_once) && !tally.causes.contains(&want.cause) {
            Some(Held::CausesAtOnce)
        } else if tally.in_minute >= u64::from(self.limits.moves_per_min) {
            Some(Held::MovesPerMin)
        } else {
            None
        }
    }

    /// Whether a standby must not take this.
    fn bars(&self, target: &Target, want: &Want, tally: &Tally) -> Option<Held> {
        match target.room {
            Room::Some | Room::Unbounded => None,
            Room::None => (want.left > Left::Dead).then_some(Held::NoHeadroom),
            Room::Unknown { rate, peak } => {
                let others = tally
                    .per_standby
                    .get(&target.host)
                    .map_or(0, |causes| causes.iter().filter(|cause| **cause != want.cause).count());
                if others >= usize::from(self.limits.per_standby_at_once) {
                    return Some(Held::PerStandby);
                }
                let far_more = rate > usual_most(peak);
                (far_more && (others > 0 || self.stands_in(target.host))).then_some(Held::StandbyLoad)
            }
        }
    }
}

/// The load up to which a standby of unknown capacity takes further causes. Unit: new connections per second.
pub(crate) fn usual_most(peak: u64) -> u64 {
    peak.saturating_mul(PEAK_TIMES).max(PEAK_FLOOR)
}

impl Tally {
    fn add(&mut self, went: &Move, now: Timestamp) {
        if went.since == Timestamp::NEVER {
            return;
        }
        let age = now.since(went.since);
        self.in_minute = self.in_minute.saturating_add(u64::from(age < MINUTE));
        if age < AT_ONCE {
            self.causes.insert(went.cause);
            for host in &went.onto {
                self.per_standby.entry(*host).or_default().insert(went.cause);
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/governor.rs"]
mod tests;
