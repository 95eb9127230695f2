//! What is no fault of the origin, though it looks like one.

use super::Origin;
use crate::{
    latency::Times,
    lifecycle::{CauseBy, Input, Phase, Serving},
    model::{CheckSpec, Layer, Location},
    policy::{Policy, SuccessBelow},
    time::Timestamp,
    track::CheckTrack,
    verdict::{Grade, score_within},
};

impl Origin {
    /// Takes times to first byte. While it is tripped they are those of trials and of old connections.
    pub(crate) fn see_times(&mut self, times: &Times) {
        if self.trip.trip().is_none() {
            self.ttfb.record(times);
        }
    }

    /// Whether it could take what another one loses: used as judged, not tripped, and to be found on the link.
    pub(crate) fn can_stand_in(&self) -> bool {
        self.serves() && self.trip.trip().is_none() && self.neighbour_failed.is_none() && self.spec.weight > 0
    }

    /// Since when nothing of it answers, and who tried was not told no: silence is what a path that fails brings about.
    pub(crate) fn silent_since(&self) -> Option<Timestamp> {
        self.silent
    }

    /// Newest sign of life.
    pub(crate) fn newest_word(&self) -> Timestamp {
        let checks = self.checks.iter().map(CheckTrack::newest_pass).max().unwrap_or_default();
        checks.max(self.connect.newest_good()).max(self.request.newest_good())
    }

    /// Whether what is seen of it tells about the path: not of one that an operator has taken out.
    pub(crate) const fn is_watched(&self) -> bool {
        match self.life.phase {
            Phase::Unknown
            | Phase::Healthy
            | Phase::Degraded
            | Phase::HighRisk
            | Phase::Fault { .. }
            | Phase::Recovering { .. } => true,
            Phase::Maintenance { .. } | Phase::Failed { .. } => false,
        }
    }

    /// Notes since when it is silent: connections, checks or its next hop fail by silence, and nothing was heard since.
    pub(super) fn note_silence(&mut self, policy: &Policy) {
        let heard = self.newest_word();
        let last_seen = self.last_seen();
        let connects = self.connect.first_bad().filter(|since| {
            policy.passive && self.connect.location(last_seen) == Location::OriginHost && *since >= heard
        });
        let checks = self.checks.iter().filter_map(CheckTrack::silent_since).filter(|since| *since >= heard);
        let hop = self.neighbour_failed.filter(|since| *since >= heard);
        let since = checks.chain(connects).chain(hop).min();
        // Whoever answers at all, be it wrongly, is reached.
        let answered = self.checks.iter().any(CheckTrack::is_answered_wrongly);
        let before = self.silent.filter(|since| *since >= heard);
        self.silent = since.map(|since| before.map_or(since, |before| before.min(since))).filter(|_| !answered);
        if self.outage.is_some() && self.silent.is_none() {
            // It is heard again: what was lost on the way says nothing about it.
            self.outage = None;
            self.clear_traffic();
            self.checks.iter_mut().for_each(CheckTrack::clear);
        }
        self.checks.iter_mut().for_each(CheckTrack::end_excuse);
    }

    /// What the judgement comes to while it is held: bad enough to be seen, and no fault.
    pub(super) fn held_back(&self, input: Input) -> Input {
        let rule = match self.outage.filter(|_| self.serves()) {
            Some(Location::Path) => "path_failed",
            Some(_) => "node_failed",
            None => return input,
        };
        match input {
            Input::Failing { .. } | Input::Relapse { .. } => Input::Judged { serving: Serving::HighRisk, rule },
            Input::Silence
            | Input::Judged { .. }
            | Input::Risen { .. }
            | Input::Drain
            | Input::Fail
            | Input::End
            | Input::Clear
            | Input::Abort => input,
        }
    }

    /// Whether it keeps its share though its state would cut it: what fails is not the origin.
    pub(crate) fn is_held(&self) -> bool {
        self.serves() && (self.outage.is_some() || self.excused.is_some() || self.location() == Some(Location::Check))
    }

    /// Whether the check at `place` speaks of this origin, as the others have it: `None` where there is no word yet that is as
    /// new as the first failure (`since`).
    pub(crate) fn fails_alone(&self, place: usize, since: Timestamp, policy: &Policy) -> Option<bool> {
        let track = self.checks.get(place)?;
        if track.newest() < since {
            return None;
        }
        Some(track.runs().failures() > 0 && track.may_be_the_checks_own() && self.lower_passes(track.layer(), policy))
    }

    /// Whether lower checks and traffic pass, and one of them says so.
    fn lower_passes(&self, layer: Layer, policy: &Policy) -> bool {
        if self.trip.trip().is_some() || self.neighbour_failed.is_some() {
            return false;
        }
        let lower = || self.checks.iter().filter(|check| check.layer() < layer && check.newest() > Timestamp::NEVER);
        let below = policy.success_below_percent;
        let rates = [self.judged.connect, self.judged.request];
        let traffic_fails =
            policy.passive && rates.into_iter().any(|rate| Grade::of_rate(rate, below) > Grade::Healthy);
        let traffic_passes = policy.passive && self.judged.connect.good > 0;
        let checks_fail = lower().any(|check| check.runs().failures() > 0);
        !traffic_fails && !checks_fail && (traffic_passes || lower().any(|check| check.runs().passes() > 0))
    }

    /// Since when the check at `place` fails. Of an origin that is out for another reason, it tells nothing.
    pub(crate) fn failing_since(&self, place: usize) -> Option<Timestamp> {
        self.checks.get(place).and_then(CheckTrack::failing_since)
    }

    /// Whether the check at `place` has passed since then.
    pub(crate) fn passes_since(&self, place: usize, since: Timestamp) -> bool {
        let track = self.checks.get(place);
        track.is_some_and(|track| track.failing_since().is_none() && track.newest_pass() >= since)
    }

    /// Whether its word on a check counts: it serves, or is out because of what checks found.
    pub(crate) const fn has_a_say(&self) -> bool {
        match self.life.phase {
            Phase::Unknown | Phase::Healthy | Phase::Degraded | Phase::HighRisk => true,
            Phase::Fault { cause } => matches!(cause.by, CauseBy::Checks),
            Phase::Recovering { .. } | Phase::Maintenance { .. } | Phase::Failed { .. } => false,
        }
    }

    /// What the check at `place` found is the check's own trouble.
    pub(crate) fn excuse(&mut self, place: usize, spec: &CheckSpec, below: SuccessBelow) {
        if let Some(track) = self.checks.get_mut(place) {
            track.excuse();
        }
        for finding in self.verdict.findings.iter_mut().filter(|finding| finding.check.as_ref() == Some(&spec.name)) {
            finding.grade = finding.grade.min(Grade::Degraded);
            finding.rule = "check_fails_everywhere";
            if finding.location != Location::Certificate {
                finding.location = Location::Check;
            }
        }
        self.verdict.findings.sort_by_key(|finding| core::cmp::Reverse(finding.grade));
        let worst = self.verdict.findings.iter().map(|finding| finding.grade).max();
        self.verdict.grade = worst.unwrap_or(self.verdict.grade);
        self.verdict.score = score_within(self.verdict.grade, self.verdict.score, below);
        let own = self.verdict.findings.iter().filter(|finding| finding.rule != "check_fails_everywhere");
        let all = own.map(|finding| finding.grade).max().is_none_or(|worst| worst <= Grade::Healthy);
        self.excused = all.then_some(Location::Check);
    }
}

#[cfg(test)]
#[path = "../tests/held.rs"]
mod tests;
