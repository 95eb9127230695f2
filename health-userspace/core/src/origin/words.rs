//! What is shown of an origin, and said about it.

use super::{Event, Origin};
use crate::{
    engine::{OrderKind, OriginView, Streak},
    lifecycle::{Phase, Way},
    model::{Layer, Location},
    policy::Policy,
    time::Timestamp,
    track::{CheckTrack, TrafficTrack},
    verdict::Finding,
};
use alloc::{borrow::ToOwned, format, string::String, vec::Vec};

/// Parts per million in a basis point.
const PPM_IN_BP: u64 = 100;

impl Origin {
    /// What `status` shows.
    pub(crate) fn view(&self, share_ppm: u64) -> OriginView {
        let way = match self.life.phase {
            Phase::Recovering { way, .. } => Some(way),
            Phase::Unknown
            | Phase::Healthy
            | Phase::Degraded
            | Phase::HighRisk
            | Phase::Fault { .. }
            | Phase::Maintenance { .. }
            | Phase::Failed { .. } => None,
        };
        OriginView {
            id: self.spec.id,
            state: self.life.phase.state(),
            since: self.life.since,
            score: self.score(),
            share_bp: share_ppm.checked_div(PPM_IN_BP).and_then(|bp| u16::try_from(bp).ok()).unwrap_or(0),
            tripped: self.trip.trip().is_some(),
            location: self.location(),
            sees: self.sees(),
            failure_spread: self.connect.spread().max(self.request.spread()),
            evidence_at: self.evidence_at(),
            reasons: self.reasons(),
            way,
            order: self.order.clone(),
            waits: self.waits,
            approval: self.word.clone().filter(|word| word.what == OrderKind::Approve),
            ready: None,
            held: self.held,
        }
    }

    /// What a step on the way back is told as; `before`: where it was.
    pub(super) fn told_of_way(&self, before: Phase, policy: &Policy) -> Option<Event> {
        let Phase::Recovering { way, .. } = self.life.phase else { return None };
        let asked = |phase| matches!(phase, Phase::Recovering { way: Way::Asks { .. }, .. });
        match way {
            Way::Stage { stage, percent, .. } if before.stage() != Some(stage) => Some(Event::Stage { percent }),
            Way::Asks { stage, .. } if !asked(before) => {
                let percent = policy.failback.stages.get(usize::from(stage)).copied().unwrap_or(100);
                Some(Event::Asks { percent })
            }
            Way::Hold { .. } | Way::Observe { .. } | Way::Asks { .. } | Way::Stage { .. } => None,
        }
    }

    pub(super) fn findings(&self) -> (Vec<String>, Option<Location>) {
        let mut why: Vec<String> = self.trip_text().into_iter().collect();
        why.extend(self.verdict.findings.iter().map(|finding| finding.text.clone()));
        let mut location = self.verdict.findings.first().map(|finding| finding.location);
        if let Some(trip) = self.trip.trip() {
            // Traffic outranks checks in the place of the failure too.
            location = Some(self.track(trip.streak).location(self.last_seen()));
        }
        (why, location)
    }

    pub(super) const fn track(&self, streak: Streak) -> &TrafficTrack {
        match streak {
            Streak::Connect => &self.connect,
            Streak::Request => &self.request,
        }
    }

    pub(super) fn trip_text(&self) -> Option<String> {
        let trip = self.trip.trip()?;
        let word = match trip.streak {
            Streak::Connect => "connections tripped",
            Streak::Request => "requests tripped",
        };
        Some(self.track(trip.streak).streak_text().unwrap_or_else(|| word.to_owned()))
    }

    /// Newest evidence of any kind.
    fn evidence_at(&self) -> Timestamp {
        let checks = self.checks.iter().map(CheckTrack::newest).max().unwrap_or_default();
        checks.max(self.connect.newest()).max(self.request.newest())
    }

    /// The highest layer that traffic proves to us.
    fn sees(&self) -> Option<Layer> {
        if self.request.proof_total().good > 0 {
            return Some(Layer::Application);
        }
        (self.connect.total().good > 0 || self.request.total().good > 0).then_some(Layer::Transport)
    }

    /// 0 to 100.
    fn score(&self) -> u8 {
        match self.life.phase {
            Phase::Unknown | Phase::Healthy | Phase::Degraded | Phase::HighRisk => self.verdict.score,
            // Half way back, however well it passes.
            Phase::Recovering { .. } => self.verdict.score.min(50),
            Phase::Fault { .. } | Phase::Maintenance { .. } | Phase::Failed { .. } => 0,
        }
    }

    /// Why it is so, worst first.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let mut reasons = match self.life.phase {
            Phase::Fault { .. } | Phase::Recovering { .. } => self.why.clone(),
            Phase::Unknown | Phase::Healthy | Phase::Degraded | Phase::HighRisk => {
                self.trip_text().into_iter().collect()
            }
            Phase::Maintenance { .. } | Phase::Failed { .. } => Vec::new(),
        };
        if let Some(held) = self.held {
            reasons.insert(0, format!("failover withheld: {}", held.name()));
        }
        if let Some(order) = &self.order {
            let why = if order.reason.is_empty() { String::new() } else { format!(": {}", order.reason) };
            reasons.push(format!("ordered by {}{why}", order.by));
        }
        // What was found failing already says no more by failing on, with other figures.
        let subject =
            |text: &str| text.rsplit_once(' ').map_or_else(|| text.to_owned(), |(subject, _)| subject.to_owned());
        for finding in &self.verdict.findings {
            if !reasons.iter().any(|reason| subject(reason) == subject(&finding.text)) {
                reasons.push(finding.text.clone());
            }
        }
        reasons
    }

    /// Where the failure sits.
    pub(crate) fn location(&self) -> Option<Location> {
        match self.life.phase {
            Phase::Fault { .. } | Phase::Recovering { .. } => self.location,
            Phase::Unknown | Phase::Healthy | Phase::Degraded | Phase::HighRisk => {
                let tripped = self.trip.trip().map(|trip| self.track(trip.streak).location(self.last_seen()));
                self.outage.or(tripped).or_else(|| self.verdict.findings.first().map(|finding| finding.location))
            }
            Phase::Maintenance { .. } | Phase::Failed { .. } => None,
        }
    }

    /// The evidence in words, for a decision. `None`: there is nothing to tell.
    pub(crate) fn evidence(&self) -> String {
        let mut words: Vec<String> = self.trip_text().into_iter().collect();
        words.extend(self.verdict.findings.iter().map(Finding::detail));
        if words.is_empty() {
            words.extend(self.why.iter().cloned());
        }
        if words.is_empty() { self.passing() } else { words.join(", ") }
    }

    fn passing(&self) -> String {
        let passes: u32 = self.checks.iter().map(|check| check.runs().passes()).max().unwrap_or(0);
        let connects = self.connect.tally();
        format!("{passes} passes in a row, {}/{} connections", connects.good, connects.total())
    }
}
