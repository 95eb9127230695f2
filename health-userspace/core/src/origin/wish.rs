//! What the kernel shall do about an origin, and for how long by itself.

use super::Origin;
use crate::{
    engine::{Lease, OriginPlan},
    lifecycle::{Cause, CauseBy, Phase, Then},
    model::Layer,
    policy::Policy,
    time::{Span, Timestamp},
    verdict::Neighbour,
};

/// How long a fault judged from traffic outlives the daemon that judged it (design.md §4).
const LEASE: Span = Span::from_secs(60);

/// What is left of a lease when it is renewed: each 20 s, for every renewal is a write to the kernel.
const RENEW_BELOW: Span = Span::from_secs(40);

/// When the present lease ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Renewal {
    until: Timestamp,
}

impl Renewal {
    /// The end of the lease, set anew when it comes near.
    fn at(&mut self, now: Timestamp) -> Timestamp {
        if self.until.since(now) < RENEW_BELOW {
            self.until = now.after(LEASE);
        }
        self.until
    }
}

/// Whether the kernel's trials can show that the fault is over: it was seen in traffic, or by a check that asks no more than
/// traffic does.
fn can_be_tried(cause: Cause) -> bool {
    match cause.by {
        CauseBy::Traffic | CauseBy::Trip => true,
        CauseBy::Checks => cause.layer <= Layer::Transport,
        CauseBy::Adopted => false,
    }
}

impl Origin {
    pub(super) const fn neighbour(&self, covered: bool, policy: &Policy) -> Neighbour {
        match self.neighbour_failed {
            Some(_) if policy.passive && covered => Neighbour::Failed,
            Some(_) if policy.passive => Neighbour::FailedAlone,
            Some(_) | None => Neighbour::Fine,
        }
    }

    /// Whether the kernel's trials go on: in fault, and no check looks at the layer that failed. While its next hop can't be
    /// found, a trial would only wait for an answer to ARP.
    pub(crate) fn wants_trials(&self) -> bool {
        match self.life.phase {
            Phase::Fault { .. } if self.neighbour_failed.is_some() => false,
            Phase::Fault { cause } => self.proving(cause.layer).next().is_none(),
            Phase::Unknown
            | Phase::Healthy
            | Phase::Degraded
            | Phase::HighRisk
            | Phase::Recovering { .. }
            | Phase::Maintenance { .. }
            | Phase::Failed { .. } => false,
        }
    }

    /// The kernel's part of the wish. `covered`: whether somebody else can stand in. `observe`: nothing is to be done.
    pub(crate) fn plan(&mut self, (covered, observe): (bool, bool), now: Timestamp, policy: &Policy) -> OriginPlan {
        let rescued = covered && policy.rescue && policy.sockets.set;
        OriginPlan {
            id: self.spec.id,
            blocked: !observe && self.is_blocked(),
            trials: !observe && self.wants_trials() && self.held.is_none(),
            lease: if observe { Lease::Stays } else { self.renew_lease(now) },
            clear_trip: self.trip.wish(),
            syn_timeout: self.learned.syn_timeout(),
            response_timeout: self.learned.response_timeout(),
            silent_from: self.learned.silent_from(),
            trip_after: policy.trip.after,
            trip_spread_min: policy.trip.spread_min,
            connect_timeout: self.learned.connect_timeout().filter(|_| rescued),
        }
    }

    /// The lease of what the plan blocks.
    fn renew_lease(&mut self, now: Timestamp) -> Lease {
        let until = self.order.as_ref().and_then(|order| order.until);
        match self.life.phase {
            Phase::Fault { cause } | Phase::Recovering { cause, .. } if can_be_tried(cause) && self.is_blocked() => {
                Lease::Trips(self.lease.at(now))
            }
            // An order that runs out on an origin that was in fault must not wash the fault away.
            Phase::Maintenance { then: Then::Fault(_) } | Phase::Failed { then: Then::Fault(_) } => {
                until.map_or(Lease::Stays, Lease::Trips)
            }
            Phase::Maintenance { then: Then::Judge } | Phase::Failed { then: Then::Judge } => {
                until.map_or(Lease::Stays, Lease::Ends)
            }
            Phase::Fault { .. }
            | Phase::Recovering { .. }
            | Phase::Unknown
            | Phase::Healthy
            | Phase::Degraded
            | Phase::HighRisk => Lease::Stays,
        }
    }
}
