//! The judgement of one moment, and the step that follows.

use super::{Around, Event, Origin, Place, why::Judged};
use crate::{
    engine::{OrderKind, Waits},
    latency::Held,
    lifecycle::{self, Gate, Input, Phase, Way},
    model::{CheckSpec, State},
    policy::{Approval, Policy},
    time::Timestamp,
    verdict::{self, Facts},
};
use alloc::vec::Vec;

impl Origin {
    /// Forms an opinion of it, by its own evidence. `covered`: whether somebody else can stand in for it.
    pub(crate) fn assess(&mut self, specs: &[CheckSpec], covered: bool, now: Timestamp, policy: &Policy) {
        self.connect.advance(now);
        self.request.advance(now);
        let healthy = self.life.phase == Phase::Healthy && self.trip.trip().is_none();
        for check in &mut self.checks {
            check.advance(now, healthy, policy);
        }
        let timeout = self.learned.response_timeout();
        self.ttfb.advance(now, &Held { limits: &policy.latency, healthy, timeout, patience: policy.window });
        self.trip_cleared = (self.serves() && self.may_clear_trip(now, policy)).then_some("rise_in_a_row");
        if self.trip_cleared.is_some() {
            self.trip.clear_by_checks(now);
            self.clear_traffic();
        }
        self.note_silence(policy);
        self.judged = Judged { connect: self.connect.judged(policy), request: self.request.judged(policy) };
        let last_seen = self.last_seen();
        let neighbour = self.neighbour(covered, policy);
        let mut facts = Facts {
            connect: &mut self.connect,
            request: &mut self.request,
            ttfb: &self.ttfb,
            timeout,
            checks: &self.checks,
            specs,
            traffic_judges: policy.passive && self.trip.trip().is_none(),
            last_seen,
            neighbour,
        };
        self.verdict = verdict::judge(&mut facts, policy);
    }

    /// Judges, and takes the step that follows.
    pub(crate) fn judge(&mut self, around: Around<'_>, now: Timestamp, policy: &Policy, events: &mut Vec<Event>) {
        let serves = self.serves();
        let cleared = self.trip_cleared.take();
        events.extend(cleared.map(|rule| Event::Trip { confirmed: false, rule }));
        let holds_back = self.holds_back(now, policy);
        let mut input = self.held_back(self.input(around.worse, now, policy));
        // A tripped origin gets nothing new anyway: until it is known whether the trip lasts, it stays what it was.
        let waits = (holds_back || self.trip.trip().is_some()) && self.outage.is_none();
        if waits && matches!(input, Input::Judged { .. }) {
            input = Input::Silence;
        }
        let tripped = self.trip.trip().is_some();
        let before = self.life.phase;
        let decision = self.step(input, around.place, now, policy);
        events.extend(self.told_of_way(before, policy));
        if let (Some(decision), true, true, Input::Failing { rule, .. }) = (decision, serves, tripped, input)
            && decision.to == State::Fault
        {
            events.push(Event::Trip { confirmed: true, rule });
        }
        events.extend(decision.map(Event::State));
    }

    /// Steps, and does what belongs to the new phase.
    pub(super) fn step(
        &mut self,
        input: Input,
        place: Place,
        now: Timestamp,
        policy: &Policy,
    ) -> Option<lifecycle::Decision> {
        let before = self.life.phase;
        self.word.take_if(|word| word.until.is_some_and(|until| until <= now));
        let gate = Gate { bars: self.bars(place), alone: place.alone, verified: self.is_verified() };
        let (life, decision) = lifecycle::step(self.life, input, gate, now, policy);
        self.life = life;
        let asks = matches!(life.phase, Phase::Recovering { way: Way::Asks { .. }, .. });
        self.waits = gate.bars.filter(|_| asks);
        if life.phase == before {
            return decision;
        }
        match life.phase {
            Phase::Fault { .. } => {
                self.forget_verify(now);
                if matches!(input, Input::Failing { .. } | Input::Relapse { .. }) {
                    (self.why, self.location) = self.findings();
                }
                self.set_marks(now);
                self.clear_traffic();
                self.trial_passed = false;
                self.word = None;
            }
            Phase::Recovering { way, .. } => self.go_on(before, way, now, policy),
            Phase::Unknown | Phase::Healthy | Phase::Degraded | Phase::HighRisk => {
                if matches!(before, Phase::Recovering { .. }) {
                    self.word = None;
                    self.why.clear();
                    self.location = None;
                }
                if matches!(before, Phase::Recovering { .. }) && before.part() == 0 {
                    self.clear_traffic();
                    self.trip.clear(now);
                }
            }
            Phase::Maintenance { .. } | Phase::Failed { .. } => {}
        }
        decision
    }

    /// What bars the next stage.
    fn bars(&self, place: Place) -> Option<Waits> {
        match self.word.as_ref().map(|word| word.what) {
            Some(OrderKind::Hold) => Some(Waits::Hold),
            _ if !place.open => Some(Waits::Window),
            Some(OrderKind::Approve) => None,
            None | Some(OrderKind::Drain | OrderKind::Fail | OrderKind::Clear | OrderKind::Abort) => {
                Some(Waits::Approval)
            }
        }
    }

    /// The origin is a step further on its way back.
    fn go_on(&mut self, before: Phase, way: Way, now: Timestamp, policy: &Policy) {
        if !matches!(before, Phase::Recovering { .. }) {
            self.clear_traffic();
            for check in &mut self.checks {
                check.clear();
            }
        }
        let Way::Stage { stage, .. } = way else { return };
        if before.stage() == Some(stage) {
            return;
        }
        // What is judged in a stage is its own traffic, and its own `verify` rounds.
        self.clear_traffic();
        self.forget_verify(now);
        if before.part() == 0 {
            self.trip.clear(now);
        }
        if policy.failback.approval == Approval::EachStage {
            self.word = None;
        }
    }
}
