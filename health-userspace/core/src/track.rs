//! What is kept of each source of evidence: one layer of real traffic, or one check.

use crate::{
    evidence::{Evidence, Polarity},
    model::{CheckSpec, Layer, Location, Reason},
    policy::Policy,
    runs::Runs,
    time::{Span, Timestamp},
    verdict::{Finding, Grade},
    window::{Tally, Window},
};
use alloc::{format, string::String};

/// Evidence of one layer of real traffic.
#[derive(Clone, Debug)]
pub struct TrafficTrack {
    layer: Layer,
    window: Window,
    /// Of the failures in the window: answered ones as `good`, silent ones as `bad`.
    kinds: Window,
    /// The same since the last success.
    streak: Tally,
    total: Tally,
    first_bad: Timestamp,
    newest_good: Timestamp,
    newest: Timestamp,
    accused: bool,
}

impl TrafficTrack {
    /// No traffic yet. Failures in it are failures of `layer`.
    #[must_use]
    pub fn new(layer: Layer, policy: &Policy) -> Self {
        Self {
            layer,
            window: Window::new(policy.window),
            kinds: Window::new(policy.window),
            streak: Tally::EMPTY,
            total: Tally::EMPTY,
            first_bad: Timestamp::NEVER,
            newest_good: Timestamp::NEVER,
            newest: Timestamp::NEVER,
            accused: false,
        }
    }

    /// Adds evidence.
    pub fn record(&mut self, evidence: &Evidence) {
        if evidence.count == 0 {
            return;
        }
        let (tally, kind) = match evidence.polarity {
            Polarity::Good | Polarity::Slow => (Tally { good: evidence.count, bad: 0 }, Tally::EMPTY),
            Polarity::Answered => (Tally { good: 0, bad: evidence.count }, Tally { good: evidence.count, bad: 0 }),
            Polarity::Silent => (Tally { good: 0, bad: evidence.count }, Tally { good: 0, bad: evidence.count }),
        };
        self.window.record(evidence.at, tally);
        self.kinds.record(evidence.at, kind);
        self.total = self.total.plus(tally);
        self.newest = self.newest.max(evidence.at);
        if tally.good > 0 {
            self.streak = Tally::EMPTY;
            self.first_bad = Timestamp::NEVER;
            self.newest_good = self.newest_good.max(evidence.at);
        } else {
            if self.streak.total() == 0 {
                self.first_bad = evidence.at;
            }
            self.streak = self.streak.plus(kind);
        }
    }

    /// Forgets what is too old.
    pub fn advance(&mut self, now: Timestamp) {
        self.window.advance(now);
        self.kinds.advance(now);
    }

    /// Starts anew: what came before a clearing is no longer judged.
    pub fn clear(&mut self) {
        self.window.clear();
        self.kinds.clear();
        self.accused = false;
    }

    /// Takes another policy.
    pub fn reconfigure(&mut self, policy: &Policy) {
        self.window.resize(policy.window);
        self.kinds.resize(policy.window);
    }

    /// Since the beginning.
    #[must_use]
    pub const fn total(&self) -> Tally {
        self.total
    }

    /// In the window.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.window.tally()
    }

    /// Newest evidence.
    #[must_use]
    pub const fn newest(&self) -> Timestamp {
        self.newest
    }

    /// Newest success.
    #[must_use]
    pub const fn newest_good(&self) -> Timestamp {
        self.newest_good
    }

    /// When the failures began that no success has ended.
    #[must_use]
    pub const fn first_bad(&self) -> Option<Timestamp> {
        if self.streak.total() > 0 { Some(self.first_bad) } else { None }
    }

    /// The failures since the last success, in words.
    #[must_use]
    pub fn streak_text(&self) -> Option<String> {
        (self.streak.total() > 0).then(|| self.text(self.streak, self.streak.total()))
    }

    /// Where those failures sit. Silence of everything since they began is the host's; anything else the process's.
    #[must_use]
    pub fn location(&self, last_seen: Timestamp) -> Location {
        let silent = self.streak.bad > self.streak.good;
        if silent && last_seen < self.first_bad { Location::OriginHost } else { Location::OriginProcess }
    }

    /// Grade of the window. The floor guards the accusation only: once accused, an origin whose weight was cut for it
    /// must not be cleared by the lack of samples which that very cut brings about.
    fn grade(&mut self, policy: &Policy) -> Grade {
        let tally = self.window.tally();
        let rate = Grade::of_rate(tally, policy.success_below_percent);
        let grade = match rate {
            Grade::Unknown | Grade::Healthy => rate,
            Grade::Degraded | Grade::HighRisk | Grade::Fault => {
                if self.accused || tally.total() >= u64::from(policy.samples_min.passive) {
                    rate
                } else {
                    Grade::Unknown
                }
            }
        };
        self.accused = grade > Grade::Healthy;
        grade
    }

    pub(crate) fn finding(&mut self, policy: &Policy, last_seen: Timestamp) -> (Grade, Option<Finding>) {
        let grade = self.grade(policy);
        let finding = (grade > Grade::Healthy).then(|| Finding {
            grade,
            rule: "success_rate",
            layer: self.layer,
            traffic: true,
            location: self.location(last_seen),
            text: self.text(self.kinds.tally(), self.window.tally().total()),
            reason: None,
        });
        (grade, finding)
    }

    fn text(&self, kinds: Tally, total: u64) -> String {
        let (answered, silent) = match self.layer {
            Layer::Network | Layer::Transport => ("refused", "no answer"),
            Layer::Tls | Layer::Application => ("reset", "no response"),
        };
        match (kinds.good, kinds.bad) {
            (refused, 0) => format!("{answered} {refused}/{total}"),
            (0, lost) => format!("{silent} {lost}/{total}"),
            (refused, lost) => format!("{answered} {refused}/{total}, {silent} {lost}/{total}"),
        }
    }
}

/// Evidence of one check.
#[derive(Clone, Debug)]
pub struct CheckTrack {
    layer: Layer,
    window: Window,
    /// Prompt passes as `good`, slow or failing rounds as `bad`.
    prompt: Window,
    late_in_a_row: u32,
    runs: Runs,
    reason: Option<Reason>,
    /// What traffic had shown when the present run of failures began.
    traffic_before: Tally,
    newest: Timestamp,
}

/// The sliding window of a check: long enough for `fall` failures and one more.
#[must_use]
pub fn check_window(policy: &Policy, interval: Span) -> Span {
    policy.window.max(interval.times(u64::from(policy.fall).saturating_add(1)))
}

impl CheckTrack {
    /// No round yet.
    #[must_use]
    pub fn new(spec: &CheckSpec, policy: &Policy) -> Self {
        let length = check_window(policy, spec.interval);
        Self {
            layer: spec.layer,
            window: Window::new(length),
            prompt: Window::new(length),
            late_in_a_row: 0,
            runs: Runs::default(),
            reason: None,
            traffic_before: Tally::EMPTY,
            newest: Timestamp::NEVER,
        }
    }

    /// Takes another specification of the check with the same name.
    pub fn reconfigure(&mut self, spec: &CheckSpec, policy: &Policy) {
        if spec.layer != self.layer {
            // It proves something else now.
            *self = Self::new(spec, policy);
        }
        let length = check_window(policy, spec.interval);
        self.window.resize(length);
        self.prompt.resize(length);
    }

    /// Adds a round that began at `began`. `traffic` is all that connections have shown so far.
    pub fn record(&mut self, evidence: &Evidence, began: Timestamp, reason: Option<Reason>, traffic: Tally) {
        let (passed, prompt) = match evidence.polarity {
            Polarity::Good => (true, true),
            Polarity::Slow => (true, false),
            Polarity::Answered | Polarity::Silent => (false, false),
        };
        let tally = |good| if good { Tally { good: 1, bad: 0 } } else { Tally { good: 0, bad: 1 } };
        if !passed && self.runs.failures() == 0 {
            self.traffic_before = traffic;
        }
        self.reason = if passed { self.reason } else { reason };
        self.runs.record(passed, began);
        self.window.record(evidence.at, tally(passed));
        self.prompt.record(evidence.at, tally(prompt));
        self.late_in_a_row = if prompt { 0 } else { self.late_in_a_row.saturating_add(1) };
        self.newest = self.newest.max(evidence.at);
    }

    /// Forgets what is too old.
    pub fn advance(&mut self, now: Timestamp) {
        self.window.advance(now);
        self.prompt.advance(now);
    }

    /// As if no round had ever been; only rounds that begin after `at` will prove anything.
    pub fn forget(&mut self, at: Timestamp) {
        self.clear();
        self.late_in_a_row = 0;
        self.runs = Runs::default();
        self.runs.set_mark(at);
        self.reason = None;
        self.newest = Timestamp::NEVER;
    }

    /// The success rate starts anew; runs go on.
    pub fn clear(&mut self) {
        self.window.clear();
        self.prompt.clear();
    }

    /// In the window.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.window.tally()
    }

    /// What a pass proves.
    #[must_use]
    pub const fn layer(&self) -> Layer {
        self.layer
    }

    /// Passes and failures in a row.
    #[must_use]
    pub const fn runs(&self) -> Runs {
        self.runs
    }

    /// The same, to set its mark.
    pub fn runs_mut(&mut self) -> &mut Runs {
        &mut self.runs
    }

    /// End of the newest round that says anything.
    #[must_use]
    pub const fn newest(&self) -> Timestamp {
        self.newest
    }

    /// Whether real traffic shows that it is the check that is broken: enough connections succeed in the window, and
    /// they go on succeeding since the check began to fail, for older ones say nothing about what failed after them.
    fn is_contradicted(&self, connect: &TrafficTrack, policy: &Policy) -> bool {
        let (recent, since) = (connect.window.tally(), connect.total.minus(self.traffic_before));
        let degraded = policy.success_below_percent.degraded;
        self.layer <= Layer::Transport
            && recent.good >= u64::from(policy.samples_min.passive)
            && !recent.is_below(degraded)
            && since.good > 0
            && !since.is_below(degraded)
    }

    fn location(&self) -> Location {
        match self.reason {
            Some(Reason::Timeout(Layer::Network | Layer::Transport) | Reason::Unreachable) => Location::OriginHost,
            Some(
                Reason::Timeout(Layer::Tls | Layer::Application)
                | Reason::Refused
                | Reason::Reset
                | Reason::Tls
                | Reason::Status(_)
                | Reason::Body
                | Reason::Protocol,
            )
            | None => Location::OriginProcess,
        }
    }

    pub(crate) fn finding(
        &self,
        name: &str,
        connect: Option<&TrafficTrack>,
        policy: &Policy,
    ) -> (Grade, Option<Finding>) {
        let tally = self.window.tally();
        let floor = u64::from(policy.samples_min.active);
        let one = |grade, rule, text| Finding {
            grade,
            rule,
            layer: self.layer,
            traffic: false,
            location: self.location(),
            text,
            reason: self.reason,
        };
        let rate = Grade::of_rate(tally, policy.success_below_percent);
        let failures = self.runs.failures();
        let mut found = if failures >= u32::from(policy.fall) {
            one(Grade::Fault, "fall_in_a_row", format!("{name} 0/{failures}"))
        } else if rate > Grade::Healthy && tally.total() >= floor {
            one(rate, "success_rate", format!("{name} {}/{}", tally.good, tally.total()))
        } else if self.is_slow(policy) {
            let late = self.prompt.tally();
            let mut finding = one(Grade::Degraded, "slow", format!("{name} slow {}/{}", late.bad, late.total()));
            finding.reason = None;
            finding
        } else if tally.good > 0 || self.runs.passes() > 0 {
            return (Grade::Healthy, None);
        } else {
            return (Grade::Unknown, None);
        };
        if found.rule != "slow" && connect.is_some_and(|connect| self.is_contradicted(connect, policy)) {
            found.grade = Grade::Degraded;
            found.rule = "contradicted";
            found.location = Location::Check;
        }
        (found.grade, Some(found))
    }

    /// An absolute limit, so neither learned nor graded: `fall` late rounds in a row, or a late share that, were it
    /// failures, would degrade.
    fn is_slow(&self, policy: &Policy) -> bool {
        let prompt = self.prompt.tally();
        self.late_in_a_row >= u32::from(policy.fall)
            || (prompt.total() >= u64::from(policy.samples_min.active)
                && prompt.is_below(policy.success_below_percent.degraded))
    }
}
