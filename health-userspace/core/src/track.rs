//! What is kept of each source of evidence: one layer of real traffic, or one check.

use crate::{
    evidence::{Evidence, Polarity},
    latency::{Held, Latency},
    model::{CheckSpec, Hsm, Layer, Location, Reason},
    policy::{FaultRule, Policy},
    runs::Runs,
    time::{Span, Timestamp},
    verdict::{Finding, Grade},
    window::{Tally, Window},
};
use alloc::{borrow::ToOwned, format};

mod own;
mod traffic;

pub use traffic::{Shown, TrafficTrack};

/// Evidence of one check.
#[derive(Clone, Debug)]
pub struct CheckTrack {
    layer: Layer,
    critical: bool,
    verify: bool,
    /// As in [`CheckSpec`].
    removed_fall: u8,
    /// Rounds in a row that found an HSM removed.
    removed: u32,
    window: Window,
    /// Prompt passes as `good`, slow or failing rounds as `bad`.
    prompt: Window,
    late_in_a_row: u32,
    runs: Runs,
    reason: Option<Reason>,
    /// When the present run of failures began.
    failing_since: Timestamp,
    newest_pass: Timestamp,
    /// What it found is its own trouble, for now.
    excused: bool,
    /// What traffic had shown when the present run of failures began.
    traffic_before: Shown,
    newest: Timestamp,
    /// What a passing round usually takes, learned while the origin is steady. Zero: not known.
    usual: Span,
    latency: Latency,
    /// How old the newest success of traffic may be that speaks against a failing round: the time of `fall` rounds.
    patience: Span,
    /// How long `fall` failures in a row must last at least.
    falls_after: Span,
}

/// One round of a check.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// When it began.
    pub began: Timestamp,
    /// Why it failed.
    pub reason: Option<Reason>,
    /// How long it took.
    pub took: Span,
    /// What the origin's traffic is held to: the response timeout.
    pub limit: Option<Span>,
    /// Whether the origin is well enough to learn from it.
    pub steady: bool,
}

/// A pass that took so many times as long as usual, and [`LATE_ADD`] more, and longer than traffic may, proves nothing
/// against an origin that answers too late (the factors by which design.md §5 calls latency degraded).
const LATE_FACTOR: u64 = 3;

/// See [`LATE_FACTOR`].
const LATE_ADD: Span = Span::from_millis(50);

/// What is usual moves by one part of so many with each round, as TCP's smoothed round-trip time (RFC 6298 §2.3).
const USUAL_PARTS: u64 = 8;

/// The sliding window of a check: long enough for `fall` failures and one more.
#[must_use]
pub fn check_window(policy: &Policy, interval: Span) -> Span {
    policy.window.max(interval.times(u64::from(policy.fall).saturating_add(1)))
}

/// At least so long, for traffic comes in bursts.
const PATIENCE_MIN: Span = Span::from_secs(3);

/// A restart takes seconds, and must not cost an origin its way back by stages. Rounds on suspicion follow one another faster than
/// the interval, so they alone must not make a fault of one: not before this, unless the interval itself would.
const FALLS_AFTER_MAX: Span = Span::from_secs(3);

fn falls_after(policy: &Policy, interval: Span) -> Span {
    interval.times(u64::from(policy.fall).saturating_sub(1)).min(FALLS_AFTER_MAX)
}

fn patience(policy: &Policy, interval: Span) -> Span {
    interval.times(u64::from(policy.fall)).max(PATIENCE_MIN)
}

impl CheckTrack {
    /// No round yet.
    #[must_use]
    pub fn new(spec: &CheckSpec, policy: &Policy) -> Self {
        let length = check_window(policy, spec.interval);
        Self {
            layer: spec.layer,
            critical: spec.critical,
            removed_fall: spec.removed_fall,
            removed: 0,
            verify: spec.verify,
            window: Window::new(length),
            prompt: Window::new(length),
            late_in_a_row: 0,
            runs: Runs::default(),
            reason: None,
            failing_since: Timestamp::NEVER,
            newest_pass: Timestamp::NEVER,
            excused: false,
            traffic_before: Shown::default(),
            newest: Timestamp::NEVER,
            usual: Span::ZERO,
            latency: Latency::new(1),
            patience: patience(policy, spec.interval),
            falls_after: falls_after(policy, spec.interval),
        }
    }

    /// Takes another specification of the check with the same name.
    pub fn reconfigure(&mut self, spec: &CheckSpec, policy: &Policy) {
        if spec.layer != self.layer {
            // It proves something else now.
            *self = Self::new(spec, policy);
        }
        (self.critical, self.verify, self.removed_fall) = (spec.critical, spec.verify, spec.removed_fall);
        let length = check_window(policy, spec.interval);
        self.window.resize(length);
        self.prompt.resize(length);
        self.patience = patience(policy, spec.interval);
        self.falls_after = falls_after(policy, spec.interval);
    }

    /// Whether a pass took so much longer than usual that real requests would not have waited for it: a page that is always
    /// heavy is not meant.
    fn is_late(&self, round: &Round) -> bool {
        let usual = Span(self.usual.times(LATE_FACTOR).0.saturating_add(LATE_ADD.0));
        self.layer >= Layer::Application
            && self.usual > Span::ZERO
            && round.took > usual
            && round.limit.is_some_and(|limit| round.took > limit)
    }

    fn learn_usual(&mut self, took: Span) {
        self.usual = if self.usual == Span::ZERO {
            took
        } else {
            let rest = self.usual.0.saturating_sub(self.usual.part(USUAL_PARTS).0);
            Span(rest.saturating_add(took.part(USUAL_PARTS).0))
        };
    }

    /// Adds a round. `traffic` is all that connections and requests have shown so far.
    pub fn record(&mut self, evidence: &Evidence, round: &Round, traffic: Shown) {
        let (passed, prompt) = match evidence.polarity {
            Polarity::Good => (true, true),
            Polarity::Slow => (true, false),
            Polarity::Answered | Polarity::Silent | Polarity::Told => (false, false),
        };
        let tally = |good| if good { Tally { good: 1, bad: 0 } } else { Tally { good: 0, bad: 1 } };
        if !passed && self.runs.failures() == 0 {
            self.traffic_before = traffic;
            self.failing_since = evidence.at;
        }
        self.reason = if passed { self.reason } else { round.reason };
        let late = passed && self.is_late(round);
        if passed && round.steady && !late {
            self.learn_usual(round.took);
        }
        if passed {
            self.newest_pass = self.newest_pass.max(evidence.at);
            self.latency.record_one(round.took);
        }
        let removed = !passed && round.reason == Some(Reason::Hsm(Hsm::Removed));
        self.removed = if removed { self.removed.saturating_add(1) } else { 0 };
        self.runs.record(passed, round.began, !late);
        self.window.record(evidence.at, tally(passed));
        self.prompt.record(evidence.at, tally(prompt));
        self.late_in_a_row = if prompt { 0 } else { self.late_in_a_row.saturating_add(1) };
        self.newest = self.newest.max(evidence.at);
    }

    /// Forgets what is too old. `healthy`: whether what its rounds take is usual.
    pub fn advance(&mut self, now: Timestamp, healthy: bool, policy: &Policy) {
        let patience = self.patience.max(policy.window);
        self.latency.advance(now, &Held { limits: &policy.latency, healthy, timeout: None, patience });
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
        self.latency.restart();
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

    /// Whether a failure may take the origin out.
    #[must_use]
    pub const fn is_critical(&self) -> bool {
        self.critical
    }

    /// Whether it runs only while its origin comes back.
    #[must_use]
    pub const fn is_verify(&self) -> bool {
        self.verify
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

    /// Whether real traffic shows that it is the check that is broken: enough of it succeeds in the window at the check's
    /// layer or above, and goes on succeeding since the check began to fail and to this day, for older successes say nothing
    /// about what failed after them. Above `transport` only statuses that we read count, and they contradict no failure of
    /// integrity: a certificate or a body that is wrong stays wrong.
    fn is_contradicted(&self, (connect, request): (&TrafficTrack, &TrafficTrack), policy: &Policy) -> bool {
        let (recent, since, newest) = if self.layer <= Layer::Transport {
            (connect.judged(policy), connect.total().minus(self.traffic_before.connects), connect.newest_good())
        } else if self.reason.is_some_and(Reason::is_integrity) {
            return false;
        } else {
            (request.proof(), request.proof_total().minus(self.traffic_before.statuses), request.newest_good())
        };
        let degraded = policy.success_below_percent.degraded;
        recent.good >= u64::from(policy.samples_min.passive)
            && !recent.is_below(degraded)
            && self.newest.since(newest) <= self.patience
            && since.good > 0
            && !since.is_below(degraded)
    }

    pub(crate) fn location(&self) -> Location {
        self.reason.map_or(Location::OriginProcess, Reason::location)
    }

    pub(crate) fn finding(
        &self,
        name: &str,
        traffic: Option<(&TrafficTrack, &TrafficTrack)>,
        policy: &Policy,
    ) -> (Grade, Option<Finding>) {
        let tally = self.window.tally();
        let floor = u64::from(policy.samples_min.active);
        let one = |grade, rule, text| Finding {
            grade,
            rule,
            layer: self.layer,
            traffic: false,
            check: Some(name.to_owned()),
            tally,
            location: self.location(),
            text,
            reason: self.reason,
        };
        // One failure is no rate.
        let rate = if tally.bad < 2 { Grade::Healthy } else { Grade::of_rate(tally, policy.success_below_percent) };
        let failures = self.runs.failures();
        let removed = self.removed_fall > 0 && self.removed >= u32::from(self.removed_fall);
        // An HSM's worker has made sure already.
        let sure = self.removed_fall > 0 || self.runs.failing_for() >= self.falls_after;
        let fell = sure && failures >= u32::from(policy.fall);
        let both = policy.fault_rule == FaultRule::Both;
        let rate = if both && !fell { rate.min(Grade::HighRisk) } else { rate };
        let mut found = if both && fell && rate == Grade::Fault && tally.total() >= floor {
            one(Grade::Fault, "fall_and_rate", format!("{name} {}/{}", tally.good, tally.total()))
        } else if fell && !both {
            one(Grade::Fault, "fall_in_a_row", format!("{name} 0/{failures}"))
        } else if removed {
            one(Grade::Fault, "removed_in_a_row", format!("{name} 0/{failures}"))
        } else if rate > Grade::Healthy && tally.total() >= floor {
            one(rate, "success_rate", format!("{name} {}/{}", tally.good, tally.total()))
        } else if self.is_slow(policy) {
            let late = self.prompt.tally();
            let mut finding = one(Grade::Degraded, "slow", format!("{name} slow {}/{}", late.bad, late.total()));
            (finding.reason, finding.tally) = (None, late);
            finding
        } else if tally.good > 0 || self.runs.passes() > 0 {
            return (Grade::Healthy, None);
        } else {
            return (Grade::Unknown, None);
        };
        if found.rule != "slow" && traffic.is_some_and(|traffic| self.is_contradicted(traffic, policy)) {
            found.grade = Grade::Degraded;
            found.rule = "contradicted";
            found.location = Location::Check;
        }
        if !self.critical {
            found.grade = found.grade.min(Grade::Degraded);
        }
        (found.grade, Some(found))
    }

    /// An absolute limit, so neither learned nor graded: `fall` late rounds in a row, or a late share that, were it
    /// failures, would degrade.
    fn is_slow(&self, policy: &Policy) -> bool {
        let prompt = self.prompt.tally();
        self.late_in_a_row >= u32::from(policy.fall)
            || (prompt.total() >= u64::from(policy.samples_min.active)
                && prompt.bad > 1
                && prompt.is_below(policy.success_below_percent.degraded))
    }
}
