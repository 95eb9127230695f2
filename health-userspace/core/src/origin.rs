//! One origin: its evidence, the watch on its trip, its life, and what an operator ordered.

use crate::{
    engine::{Decision, KernelView, Order, OrderKind, Readiness, Route, TrafficTotals, Waits},
    evidence::{Evidence, Meter, Source},
    governor::{Held, Site},
    latency::Latency,
    learn::Learner,
    lifecycle::{self, Cause, CauseBy, Faults, Input, Lifecycle, Phase},
    load::Load,
    model::{CheckResult, CheckSpec, Layer, Location, OriginSpec, Outcome, State},
    policy::Policy,
    time::{Span, Timestamp},
    track::{CheckTrack, Round, Shown, TrafficTrack},
    trip::{self, Change, TripWatch},
    verdict::{Grade, Verdict},
};
use alloc::{borrow::ToOwned, string::String, vec::Vec};

mod ending;
mod held;
mod judge;
mod pace;
mod proof;
mod ready;
mod why;
mod wish;
mod words;

pub(crate) use why::limits;

/// Time between two wishes for a check at once. Not shorter: with `fall` 3, a flap of half a second must not become a fault
/// only because the checks looked three times while it lasted.
const SUSPECT_AGAIN: Span = Span::from_secs(1);

/// Something that happened to an origin, for the list of decisions.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// It changed state.
    State(lifecycle::Decision),
    /// Its trip was confirmed or cleared.
    Trip {
        /// Confirmed.
        confirmed: bool,
        /// By this rule.
        rule: &'static str,
    },
    /// A stage of its way back began.
    Stage {
        /// The part of its weight that it has now. Unit: percent.
        percent: u8,
    },
    /// Its next stage waits for an approval or for the window of the day.
    Asks {
        /// The part that it would have. Unit: percent.
        percent: u8,
    },
}

/// What an origin is judged with besides its own evidence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around<'a> {
    /// What its way back depends on.
    pub(crate) place: Place,
    /// How its flows in a stage are worse than the others', if they are.
    pub(crate) worse: Option<&'a Worse>,
}

/// What the way back of an origin depends on besides its own evidence.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// Whether stages may begin at this time of the day.
    pub(crate) open: bool,
    /// Whether the service has no other origin of its family that takes anything.
    pub(crate) alone: bool,
}

/// How flows in a stage are worse than those of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Worse {
    /// The rule: `canary_failures` or `canary_slow`.
    pub(crate) rule: &'static str,
    /// In words.
    pub(crate) text: String,
}

/// One origin.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) spec: OriginSpec,
    pub(crate) life: Lifecycle,
    pub(crate) order: Option<Order>,
    /// An operator's word on the way back: `Approve` or `Hold`.
    pub(crate) word: Option<Order>,
    /// What its next stage waits for.
    pub(crate) waits: Option<Waits>,
    pub(crate) trip: TripWatch,
    pub(crate) learned: Learner,
    connect: TrafficTrack,
    request: TrafficTrack,
    pub(crate) checks: Vec<CheckTrack>,
    meter: Meter,
    pub(crate) ttfb: Latency,
    /// Whether a first look at the kernel's view has been had.
    pub(crate) looked: bool,
    /// The kernel ended a trip while the origin was in fault already.
    trial_passed: bool,
    /// Evidence that began before this is no longer judged.
    fresh_from: Timestamp,
    /// What was found when it went into fault.
    pub(crate) why: Vec<String>,
    pub(crate) location: Option<Location>,
    verdict: Verdict,
    judged: why::Judged,
    /// Its last change of state.
    pub(crate) last: Option<Decision>,
    /// Since when the verdict has been better than the state.
    better_since: Option<Timestamp>,
    suspected: Timestamp,
    /// When check rounds that failed in a trip were last forgotten with it.
    forgiven: Timestamp,
    freshly_failing: bool,
    /// Since when its next hop can't be found.
    neighbour_failed: Option<Timestamp>,
    /// The way to it, as routing has it.
    pub(crate) route: Option<Route>,
    /// Since when nothing of it answers.
    silent: Option<Timestamp>,
    /// Where what looks like its failure sits, if it is not its own.
    pub(crate) outage: Option<Location>,
    /// `Check`: all that is found of it is the trouble of a check.
    pub(crate) excused: Option<Location>,
    /// The rule by which checks cleared its trip in this tick.
    trip_cleared: Option<&'static str>,
    lease: wish::Renewal,
    dynamic: Option<pace::DynamicWeight>,
    /// Where it is, as far as that is known.
    pub(crate) site: Option<Site>,
    /// Why its flows stay though it should lose them.
    pub(crate) held: Option<Held>,
    pub(crate) load: Load,
    /// When connections were last ended in a fault.
    ended: Timestamp,
    /// Whether it could take what others lose.
    pub(crate) ready: Readiness,
}

impl Origin {
    pub(crate) fn new(spec: OriginSpec, checks: &[CheckSpec], policy: &Policy, now: Timestamp) -> Self {
        Self {
            spec,
            life: Lifecycle::new(now),
            order: None,
            word: None,
            waits: None,
            trip: TripWatch::default(),
            learned: Learner::default(),
            connect: TrafficTrack::new(Layer::Transport, policy),
            request: TrafficTrack::new(Layer::Application, policy),
            checks: checks.iter().map(|check| CheckTrack::new(check, policy)).collect(),
            meter: Meter::default(),
            ttfb: Latency::new(policy.samples_min.passive.into()),
            looked: false,
            trial_passed: false,
            fresh_from: Timestamp::NEVER,
            why: Vec::new(),
            location: None,
            verdict: Verdict { grade: Grade::Unknown, score: 50, findings: Vec::new() },
            judged: why::Judged::default(),
            last: None,
            better_since: None,
            suspected: Timestamp::NEVER,
            forgiven: Timestamp::NEVER,
            freshly_failing: false,
            neighbour_failed: None,
            route: None,
            silent: None,
            outage: None,
            excused: None,
            trip_cleared: None,
            lease: wish::Renewal::default(),
            dynamic: None,
            site: None,
            held: None,
            load: Load::default(),
            ended: Timestamp::NEVER,
            ready: Readiness::Unproved,
        }
    }

    /// Takes another configuration and keeps all that was seen; checks are matched by name.
    pub(crate) fn reconfigure(&mut self, spec: OriginSpec, old: &[CheckSpec], new: &[CheckSpec], policy: &Policy) {
        self.spec = spec;
        self.connect.reconfigure(policy);
        self.request.reconfigure(policy);
        let tracks = new.iter().map(|check| {
            let place = old.iter().position(|old| old.name == check.name);
            match place.and_then(|place| self.checks.get(place)).cloned() {
                Some(mut track) => {
                    track.reconfigure(check, policy);
                    track
                }
                None => CheckTrack::new(check, policy),
            }
        });
        self.checks = tracks.collect();
        self.keep_weight(new);
    }

    /// Takes the newest counters.
    pub(crate) fn see_traffic(&mut self, totals: &TrafficTotals, now: Timestamp, policy: &Policy) {
        self.load.see(totals.syn, now, !self.load.stands_in);
        let traffic = self.meter.read(totals, self.learned.timed());
        let steady = self.is_steady();
        self.learned.read(totals, traffic.as_ref(), steady, policy);
        let Some(traffic) = traffic else { return };
        self.connect.record_clients(now, &traffic.connect_by);
        self.request.record_clients(now, &traffic.request_by);
        let before = (self.connect.first_bad(), self.request.first_bad());
        for evidence in traffic.evidence(now, policy.trip.on_5xx) {
            match evidence.source {
                Source::Connect => self.connect.record(&evidence),
                Source::Request => self.request.record(&evidence),
                Source::Check(_) => {}
            }
        }
        let failing = (self.connect.first_bad(), self.request.first_bad());
        self.freshly_failing |= policy.passive
            && ((before.0.is_none() && failing.0.is_some()) || (before.1.is_none() && failing.1.is_some()));
    }

    /// Well enough to learn from.
    fn is_steady(&self) -> bool {
        self.trip.trip().is_none() && matches!(self.life.phase, Phase::Unknown | Phase::Healthy | Phase::Degraded)
    }

    /// Takes the newest word about its next hop.
    pub(crate) fn see_neighbour(&mut self, failed: Option<Timestamp>) {
        self.freshly_failing |= failed.is_some() && self.neighbour_failed.is_none();
        self.neighbour_failed = failed;
    }

    /// Takes the kernel's view.
    pub(crate) fn see_kernel(
        &mut self,
        view: &KernelView,
        now: Timestamp,
        policy: &Policy,
    ) -> Option<lifecycle::Decision> {
        let (change, trial_failed) = self.trip.see(view.trip, now);
        match change {
            Change::Same => {}
            Change::Began => {
                // Only what is newer than the trip can clear it, and the windows judge untripped origins.
                let since = self.trip.trip().map_or(now, |trip| trip.since);
                self.set_marks(since);
                self.clear_traffic();
                self.trial_passed = false;
            }
            Change::Ended => {
                self.clear_traffic();
                self.forgive(now, policy);
                self.trial_passed = matches!(self.life.phase, Phase::Fault { .. });
            }
        }
        if trial_failed {
            // Traffic still shows the fault: passes before it prove nothing.
            for check in &mut self.checks {
                check.runs_mut().refute();
            }
        }
        let first = !core::mem::replace(&mut self.looked, true);
        (first && view.blocked && self.life.phase == Phase::Unknown).then(|| self.adopt(view.leased, now))
    }

    /// The kernel still holds the origin out for an earlier daemon: a restart does not forget what is out of service.
    fn adopt(&mut self, leased: bool, now: Timestamp) -> lifecycle::Decision {
        let checked = self.checks.iter().map(CheckTrack::layer).max().unwrap_or(Layer::Transport);
        let layer = self.trip.trip().map_or(checked, |trip| trip::layer(trip.streak));
        // What the earlier daemon had judged from traffic stays on a lease.
        let by = if leased { CauseBy::Traffic } else { CauseBy::Adopted };
        let cause = Cause { layer, by };
        // Not through `step`: this fault was counted, if at all, by the daemon that judged it.
        self.life = Lifecycle { phase: Phase::Fault { cause }, since: now, faults: Faults::default() };
        self.why = ["held out since before the restart".to_owned()].to_vec();
        self.set_marks(now);
        lifecycle::Decision { from: State::Unknown, to: State::Fault, rule: "adopted" }
    }

    /// Takes a round of a check.
    pub(crate) fn see_check(&mut self, result: &CheckResult) {
        if result.began < self.fresh_from {
            return;
        }
        let steady = self.is_steady();
        let Some(track) = self.checks.get_mut(usize::from(result.check)) else { return };
        let Some(evidence) = Evidence::of_check(result, track.layer()) else { return };
        let reason = match result.outcome {
            Outcome::Fail(reason) => Some(reason),
            Outcome::Pass | Outcome::Slow => {
                // Who answers is found: its end of the failure was missed.
                self.neighbour_failed = self.neighbour_failed.filter(|since| result.began <= *since);
                None
            }
            Outcome::Local(_) => None,
        };
        let took = result.ended.since(result.began);
        let round = Round { began: result.began, reason, took, limit: self.learned.response_timeout(), steady };
        track.record(&evidence, &round, Shown::so_far(&self.connect, &self.request));
    }

    /// Takes an operator's order.
    pub(crate) fn obey(&mut self, order: &Order, now: Timestamp, policy: &Policy) -> Option<lifecycle::Decision> {
        let input = match order.what {
            OrderKind::Drain => Input::Drain,
            OrderKind::Fail => Input::Fail,
            OrderKind::Clear => Input::Clear,
            OrderKind::Abort => Input::Abort,
            OrderKind::Approve | OrderKind::Hold => {
                self.word = Some(order.clone());
                return None;
            }
        };
        match order.what {
            OrderKind::Drain | OrderKind::Fail => self.order = Some(order.clone()),
            OrderKind::Clear => self.forget(now, policy),
            OrderKind::Abort | OrderKind::Approve | OrderKind::Hold => self.word = None,
        }
        self.step(input, Place::default(), now, policy)
    }

    /// Ends the order if its time is over. The outer `Option`: whether it did.
    pub(crate) fn end_order(
        &mut self,
        now: Timestamp,
        policy: &Policy,
    ) -> Option<(Order, Option<lifecycle::Decision>)> {
        let over = self.order.as_ref().is_some_and(|order| order.until.is_some_and(|until| until <= now));
        let order = if over { self.order.take() } else { None }?;
        Some((order, self.step(Input::End, Place::default(), now, policy)))
    }

    fn forget(&mut self, now: Timestamp, policy: &Policy) {
        (self.order, self.word) = (None, None);
        self.connect = TrafficTrack::new(Layer::Transport, policy);
        self.request = TrafficTrack::new(Layer::Application, policy);
        self.ttfb = Latency::new(policy.samples_min.passive.into());
        for check in &mut self.checks {
            check.forget(now);
            *check.latency_mut() = Latency::new(1);
        }
        self.why.clear();
        self.location = None;
        self.trial_passed = false;
        self.fresh_from = now;
        self.trip.clear(now);
    }

    pub(crate) fn set_marks(&mut self, at: Timestamp) {
        for check in &mut self.checks {
            check.runs_mut().set_mark(at);
        }
    }

    /// A trip that ended is over, and so are the rounds of checks that failed in it: they must not degrade what has come back.
    /// Once in a window only, or an origin that comes and goes would be forgiven for ever.
    fn forgive(&mut self, now: Timestamp, policy: &Policy) {
        if self.serves() && (self.forgiven == Timestamp::NEVER || now.since(self.forgiven) >= policy.window) {
            self.forgiven = now;
            self.checks.iter_mut().for_each(CheckTrack::clear);
        }
    }

    fn clear_traffic(&mut self) {
        self.ttfb.restart();
        self.connect.clear();
        self.request.clear();
    }

    /// Whether it is on its way back.
    pub(crate) const fn is_coming_back(&self) -> bool {
        matches!(self.life.phase, Phase::Recovering { .. })
    }

    /// The newest counters.
    pub(crate) const fn totals(&self) -> Option<&TrafficTotals> {
        self.meter.last()
    }

    fn last_seen(&self) -> Timestamp {
        self.meter.last().map_or(Timestamp::NEVER, |totals| totals.last_seen)
    }
}
