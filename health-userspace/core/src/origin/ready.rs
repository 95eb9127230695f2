//! Whether an origin could take what another one loses.

use super::Origin;
use crate::{
    engine::Readiness,
    governor::{Left, Room},
    lifecycle::{CauseBy, Phase},
    model::{CheckSpec, Location},
    policy::{Overflow, Policy},
    time::{Span, Timestamp},
    track::CheckTrack,
};

/// A pass is recent for so many intervals of its check: `fall` failures of the default would have been seen by then.
const RECENT_ROUNDS: u64 = 3;

/// And at least for so long; a success of traffic likewise.
const RECENT_MIN: Span = Span::from_secs(30);

/// Part of a declared capacity from which it is as good as used up. Unit: percent.
const FULL_PERCENT: u64 = 95;

impl Origin {
    /// Takes flows, as far as the judge is concerned; a trip is the kernel's own affair.
    pub(super) fn serves(&self) -> bool {
        matches!(self.life.phase, Phase::Unknown | Phase::Healthy | Phase::Degraded | Phase::HighRisk)
    }

    /// Whether the kernel must leave it out.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_out() && self.held.is_none()
    }

    /// Whether the judgement, or an operator, has taken it out.
    pub(crate) fn is_out(&self) -> bool {
        !self.serves() && self.life.phase.part() == 0
    }

    /// The host that it is on, or itself.
    pub(crate) fn host(&self) -> u64 {
        self.site.map_or(self.spec.key, |site| site.host)
    }

    /// What failed, for who counts causes: its host, or the next hop on the way there.
    pub(crate) fn cause(&self) -> u64 {
        let hop = self.neighbour_failed.is_some() || self.location() == Some(Location::Path);
        self.site.filter(|_| hop).map_or_else(|| self.host(), |site| site.hop)
    }

    /// Takes the word on its readiness for this moment.
    pub(crate) fn see_readiness(&mut self, specs: &[CheckSpec], now: Timestamp) {
        self.ready = self.readiness(specs, now);
    }

    fn readiness(&self, specs: &[CheckSpec], now: Timestamp) -> Readiness {
        let serves = matches!(self.life.phase, Phase::Unknown | Phase::Healthy | Phase::Degraded);
        if self.checks.iter().any(|check| check.runs().failures() > 0 && check.location() == Location::Certificate) {
            return Readiness::Certificate;
        }
        if !serves || !self.can_stand_in() {
            return Readiness::Unusable;
        }
        let traffic = self.connect.newest_good().max(self.request.newest_good());
        if traffic == Timestamp::NEVER || now.since(traffic) > RECENT_MIN {
            let decisive = |check: &CheckTrack| check.is_critical() && !check.is_verify();
            for (check, spec) in self.checks.iter().zip(specs).filter(|(check, _)| decisive(check)) {
                if check.runs().passes() == 0 {
                    return Readiness::Unproved;
                }
                if now.since(check.newest()) > spec.interval.times(RECENT_ROUNDS).max(RECENT_MIN) {
                    return Readiness::Stale;
                }
            }
        }
        if self.is_full() { Readiness::Full } else { Readiness::Ready }
    }

    /// Whether it was shown lately that it serves, whatever load it has.
    pub(crate) const fn is_fit(&self) -> bool {
        matches!(self.ready, Readiness::Ready | Readiness::Full)
    }

    fn is_full(&self) -> bool {
        let used = |load: u64, most: Option<u32>| {
            most.is_some_and(|most| load.saturating_mul(100) >= u64::from(most).saturating_mul(FULL_PERCENT))
        };
        let open = self.totals().map_or(0, |totals| totals.open);
        used(self.load.rate(), self.spec.capacity_cps) || used(open, self.spec.capacity_conns)
    }

    /// What it has left for others.
    pub(crate) fn room(&self, policy: &Policy) -> Room {
        if policy.overflow == Overflow::Exceed {
            Room::Unbounded
        } else if self.spec.capacity_cps.is_none() && self.spec.capacity_conns.is_none() {
            Room::Unknown { rate: self.load.rate(), peak: self.load.peak() }
        } else if self.is_full() {
            Room::None
        } else {
            Room::Some
        }
    }

    /// How it is as the place that flows would leave; `None`: nothing asks for that.
    pub(crate) fn left(&self) -> Option<Left> {
        match self.life.phase {
            Phase::Fault { cause } => {
                let shown = matches!(cause.by, CauseBy::Traffic | CauseBy::Trip)
                    || self.trip.trip().is_some()
                    || self.neighbour_failed.is_some();
                Some(if shown { Left::Dead } else { Left::Doubted })
            }
            Phase::Recovering { .. } => Some(Left::Returns),
            Phase::Degraded | Phase::HighRisk => Some(Left::Serves),
            Phase::Unknown | Phase::Healthy | Phase::Maintenance { .. } | Phase::Failed { .. } => None,
        }
    }
}
