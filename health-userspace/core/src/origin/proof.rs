//! What confirms or clears a trip, ends a fault, and breaks a hold-down.

use super::{Origin, Worse};
use crate::{
    engine::Streak,
    lifecycle::{Cause, CauseBy, Input, Phase, Serving},
    model::Layer,
    policy::Policy,
    time::{Span, Timestamp},
    track::CheckTrack,
    trip,
    verdict::Grade,
};

/// Failed trials that confirm a trip (design.md §4).
const TRIALS_FAILED: u32 = 2;

/// Time without a success that confirms a trip (design.md §4).
const TRIPPED: Span = Span::from_secs(3);

impl Origin {
    /// What the evidence comes to, for the phase it meets.
    pub(super) fn input(&self, worse: Option<&Worse>, now: Timestamp, policy: &Policy) -> Input {
        match self.life.phase {
            Phase::Maintenance { .. } | Phase::Failed { .. } => Input::Silence,
            Phase::Fault { cause } => {
                self.risen(cause, now, policy).map_or(Input::Silence, |rule| Input::Risen { rule })
            }
            Phase::Recovering { cause, .. } => self.relapse(cause, worse, policy).unwrap_or_else(|| self.judged()),
            Phase::Unknown | Phase::Healthy | Phase::Degraded | Phase::HighRisk => {
                self.confirmed_trip(now, policy).unwrap_or_else(|| self.judged())
            }
        }
    }

    fn judged(&self) -> Input {
        let rule = self.verdict.findings.first().map_or("passes", |finding| finding.rule);
        let serves = |serving| Input::Judged { serving, rule };
        match self.verdict.grade {
            Grade::Unknown => Input::Silence,
            Grade::Healthy => serves(Serving::Healthy),
            Grade::Degraded => serves(Serving::Degraded),
            Grade::HighRisk => serves(Serving::HighRisk),
            Grade::Fault => {
                // The highest failing layer is the one to prove again; among equals the worst source comes first.
                let faults = self.verdict.findings.iter().filter(|finding| finding.grade == Grade::Fault);
                let highest = faults.rev().max_by_key(|finding| finding.layer);
                // What had tripped before the checks agreed, traffic has shown too.
                let tripped = self.trip.trip().is_some();
                highest.map_or(Input::Silence, |finding| Input::Failing {
                    cause: Cause {
                        layer: finding.layer,
                        by: match (finding.traffic, tripped) {
                            (true, _) => CauseBy::Traffic,
                            (false, true) => CauseBy::Trip,
                            (false, false) => CauseBy::Checks,
                        },
                    },
                    rule: finding.rule,
                })
            }
        }
    }

    /// Whether a better grade has to wait: not while tripped, for then traffic is not heard, and not before it has been
    /// better for a tenth of the window, or a rate that sways about a threshold would rewrite tables all the time.
    pub(super) fn holds_back(&mut self, now: Timestamp, policy: &Policy) -> bool {
        let present = match self.life.phase {
            Phase::Degraded => Grade::Degraded,
            Phase::HighRisk => Grade::HighRisk,
            Phase::Unknown
            | Phase::Healthy
            | Phase::Fault { .. }
            | Phase::Recovering { .. }
            | Phase::Maintenance { .. }
            | Phase::Failed { .. } => Grade::Unknown,
        };
        if self.verdict.grade >= present || self.trip.trip().is_some() {
            self.better_since = None;
            return self.verdict.grade < present;
        }
        let since = *self.better_since.get_or_insert(now);
        now.since(since) < policy.window.part(10)
    }

    fn confirmed_trip(&self, now: Timestamp, policy: &Policy) -> Option<Input> {
        let trip = self.trip.trip().filter(|_| policy.passive)?;
        let success = self.newest_success(trip.streak, now, policy).max(self.trip.first_seen()).max(trip.since);
        let rule = if trip.trials_failed >= TRIALS_FAILED {
            "trials_failed"
        } else if now.since(success) >= TRIPPED {
            "tripped_3s"
        } else {
            return None;
        };
        Some(Input::Failing { cause: Cause { layer: trip::layer(trip.streak), by: CauseBy::Trip }, rule })
    }

    /// Newest success at the tripped layer after the trip. Passing checks count until they have misled once.
    fn newest_success(&self, streak: Streak, now: Timestamp, policy: &Policy) -> Timestamp {
        let traffic = match streak {
            Streak::Connect => self.connect.newest_good(),
            Streak::Request => self.request.newest_good(),
        };
        let checks = self.proving(trip::layer(streak)).filter(|check| check.runs().proof() > 0);
        let passed = checks.map(CheckTrack::newest).max().unwrap_or_default();
        if self.checks_misled(now, policy) { traffic } else { traffic.max(passed) }
    }

    /// Checks cleared a trip, and traffic tripped again within a window: now traffic has to be heard.
    fn checks_misled(&self, now: Timestamp, policy: &Policy) -> bool {
        self.trip.checks_cleared().is_some_and(|cleared| now.since(cleared) < policy.window)
    }

    pub(super) fn may_clear_trip(&self, now: Timestamp, policy: &Policy) -> bool {
        let Some(trip) = self.trip.trip() else { return false };
        trip.trials_failed < TRIALS_FAILED
            && !self.checks_misled(now, policy)
            && self.proving(trip::layer(trip.streak)).any(|check| check.runs().proof() >= u32::from(policy.rise))
    }

    /// Checks whose passes prove `layer`.
    pub(super) fn proving(&self, layer: Layer) -> impl Iterator<Item = &CheckTrack> {
        self.checks.iter().filter(move |check| check.layer() >= layer)
    }

    /// Whether the origin has earned its way out of a fault, and by which rule.
    fn risen(&self, cause: Cause, now: Timestamp, policy: &Policy) -> Option<&'static str> {
        let rise = u32::from(policy.rise);
        // What only degrades can't hold it out, and what runs at its return only can't have passed before.
        let decisive = |check: &&CheckTrack| check.is_critical() && !check.is_verify();
        let heard = self.checks.iter().filter(|check| check.newest() > Timestamp::NEVER).filter(decisive);
        let vetoed = heard.clone().any(|check| check.runs().failures() > 0 || check.runs().passes() < rise);
        if vetoed || self.neighbour_failed.is_some() || self.traffic_still_fails(now, policy) {
            return None;
        }
        let proved = |check: &CheckTrack| check.runs().proof() >= rise;
        if self.proving(cause.layer).next().is_some() {
            return self.proving(cause.layer).any(proved).then_some("rise_in_a_row");
        }
        match self.trip.trip() {
            Some(trip) if trip.trials_passed >= rise => Some("trials_passed"),
            Some(_) => None,
            None if self.trial_passed => Some("trial_passed"),
            None if policy.passive && self.traffic_serves(cause.layer, policy) => Some("traffic_serves"),
            // Nothing tries that layer: the checks below it must do, or the origin would never come back.
            None => self.checks.iter().any(proved).then_some("rise_in_a_row"),
        }
    }

    /// Real traffic since the fault (established connections, panic) that fails as it did, and has not ceased to.
    fn traffic_still_fails(&self, now: Timestamp, policy: &Policy) -> bool {
        policy.passive
            && [&self.connect, &self.request].into_iter().any(|track| {
                now.since(track.newest()) < TRIPPED
                    && track.tally().total() >= u64::from(policy.samples_min.passive)
                    && Grade::of_rate(track.tally(), policy.success_below_percent) == Grade::Fault
            })
    }

    /// Real traffic since the fault (panic, observe mode) that succeeds.
    fn traffic_serves(&self, layer: Layer, policy: &Policy) -> bool {
        let track = if layer <= Layer::Transport { &self.connect } else { &self.request };
        track.tally().good >= u64::from(policy.samples_min.passive)
            && Grade::of_rate(track.tally(), policy.success_below_percent) == Grade::Healthy
    }

    /// A failure on its way back.
    fn relapse(&self, cause: Cause, worse: Option<&Worse>, policy: &Policy) -> Option<Input> {
        let in_stage = self.life.phase.part() > 0;
        if let Some(check) = self.checks.iter().find(|check| check.is_critical() && check.runs().failures() > 0) {
            let cause = Cause { layer: check.layer().max(cause.layer), by: CauseBy::Checks };
            let rule = if in_stage { "failed_in_stage" } else { "failed_in_hold_down" };
            return Some(Input::Relapse { cause, rule });
        }
        if let Some(trip) = self.trip.trip().filter(|trip| policy.passive && trip.since > self.life.since) {
            let cause = Cause { layer: trip::layer(trip.streak), by: CauseBy::Trip };
            let rule = if in_stage { "tripped_in_stage" } else { "tripped_in_hold_down" };
            return Some(Input::Relapse { cause, rule });
        }
        let by_traffic = Cause { layer: cause.layer.max(Layer::Transport), by: CauseBy::Traffic };
        if in_stage && self.verdict.grade == Grade::HighRisk {
            return Some(Input::Relapse { cause: by_traffic, rule: "worse_in_stage" });
        }
        worse.map(|worse| Input::Relapse { cause: by_traffic, rule: worse.rule })
    }
}
