//! Joins the windows of an origin into one graded opinion, with its reasons.
//!
//! Each check and each layer of traffic keeps its own window and runs; the worst one rules, so that a passing TCP check
//! never hides a failing check beside it. Traffic outranks checks: what it shows no pass can hide, and a failing check is
//! contradicted by enough traffic at its own or a higher layer, which then leaves at most `degraded`, location `check`.

use crate::{
    latency::Latency,
    model::{CheckSpec, Layer, Location, Reason},
    policy::{Policy, SuccessBelow},
    time::{Span, Timestamp},
    track::{CheckTrack, TrafficTrack},
    window::Tally,
};
use alloc::{format, string::String, vec::Vec};

/// How bad it looks. Ordered: the greatest rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// Nothing to go by.
    Unknown,
    /// Works.
    Healthy,
    /// Some of it fails or is slow.
    Degraded,
    /// Much of it fails.
    HighRisk,
    /// Does not serve.
    Fault,
}

impl Grade {
    /// Grade of a success rate; `Unknown` without samples.
    #[must_use]
    pub fn of_rate(tally: Tally, below: SuccessBelow) -> Self {
        if tally.total() == 0 {
            Self::Unknown
        } else if tally.is_below(below.fault) {
            Self::Fault
        } else if tally.is_below(below.high_risk) {
            Self::HighRisk
        } else if tally.is_below(below.degraded) {
            Self::Degraded
        } else {
            Self::Healthy
        }
    }
}

/// Something that speaks against an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad.
    pub grade: Grade,
    /// The rule that fired: `fall_in_a_row`, `success_rate`, `slow`, `contradicted`, `unreachable`.
    pub rule: &'static str,
    /// The layer that fails.
    pub layer: Layer,
    /// Whether traffic shows it, not a check.
    pub traffic: bool,
    /// The check that shows it.
    pub check: Option<String>,
    /// What was counted.
    pub tally: Tally,
    /// Where the failure sits.
    pub location: Location,
    /// Evidence in words, such as `refused 412/412` or `port 0/3`.
    pub text: String,
    /// What the newest failing round of a check ran into.
    pub reason: Option<Reason>,
}

impl Finding {
    /// The evidence with the reason of the newest failure, for events.
    #[must_use]
    pub fn detail(&self) -> String {
        match self.reason {
            None => self.text.clone(),
            Some(reason) => format!("{} ({})", self.text, reason.words()),
        }
    }
}

/// The graded opinion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The worst grade of any source.
    pub grade: Grade,
    /// 0 to 100.
    pub score: u8,
    /// What speaks against it, worst first.
    pub findings: Vec<Finding>,
}

/// All that is known of one origin.
#[derive(Debug)]
pub struct Facts<'a> {
    /// Its connections.
    pub connect: &'a mut TrafficTrack,
    /// Its requests.
    pub request: &'a mut TrafficTrack,
    /// The times to its first bytes.
    pub ttfb: &'a Latency,
    /// What those are held to at most.
    pub timeout: Option<Span>,
    /// Its checks.
    pub checks: &'a [CheckTrack],
    /// Their specifications, in the same order.
    pub specs: &'a [CheckSpec],
    /// Whether the windows of traffic judge: not while tripped, nor where the policy ignores traffic.
    pub traffic_judges: bool,
    /// When its last packet came.
    pub last_seen: Timestamp,
    /// Whether its next hop can't be found on the link, and whether somebody else can serve meanwhile.
    pub neighbour: Neighbour,
}

/// What the neighbour table says of an origin's next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// Nothing bad.
    Fine,
    /// It can't be found, and a usable standby behind another one can serve.
    Failed,
    /// It can't be found, and nobody else can serve: a move would cure nothing.
    FailedAlone,
}

/// Judges one origin.
#[must_use]
pub fn judge(facts: &mut Facts<'_>, policy: &Policy) -> Verdict {
    let mut grade = Grade::Unknown;
    let mut score = 100;
    let mut findings = Vec::new();
    let mut join = |(one, finding): (Grade, Option<Finding>), tally: Tally| {
        grade = grade.max(one);
        if one > Grade::Unknown {
            score = tally.success_percent().unwrap_or(100).min(score);
        }
        findings.extend(finding);
    };
    if facts.traffic_judges {
        let (connect, request) = (facts.connect.judged(policy), facts.request.judged(policy));
        join(facts.connect.finding(policy, facts.last_seen), connect);
        join(facts.request.finding(policy, facts.last_seen), request);
        let late = late(facts, policy);
        join((late.as_ref().map_or(Grade::Unknown, |late| late.grade), late), facts.ttfb.tally(&policy.latency));
    }
    let traffic = facts.traffic_judges.then_some((&*facts.connect, &*facts.request));
    let prompt = facts.traffic_judges && facts.ttfb.grade() == Grade::Healthy;
    for (track, spec) in facts.checks.iter().zip(facts.specs) {
        join(track.finding(&spec.name, traffic, policy), track.tally());
        let late = track.late(&spec.name, prompt, policy);
        join((late.as_ref().map_or(Grade::Unknown, |late| late.grade), late), track.lateness(policy));
    }
    if let Some(finding) = unreachable(facts.neighbour) {
        join((finding.grade, Some(finding)), Tally { good: 0, bad: 1 });
    }
    // Stable: among equals traffic comes before checks, and checks in the configuration's order.
    findings.sort_by_key(|finding| core::cmp::Reverse(finding.grade));
    Verdict { grade, score: score_within(grade, score, policy.success_below_percent), findings }
}

/// First bytes that take much longer than usual.
fn late(facts: &Facts<'_>, policy: &Policy) -> Option<Finding> {
    let grade = facts.ttfb.grade();
    (grade > Grade::Healthy).then(|| Finding {
        grade,
        rule: "slow_learned",
        layer: Layer::Application,
        traffic: true,
        check: None,
        tally: facts.ttfb.tally(&policy.latency),
        location: Location::OriginProcess,
        text: facts.ttfb.text("ttfb", &policy.latency, facts.timeout),
        reason: None,
    })
}

/// Positive evidence, which waits for no run: the kernel has asked for the next hop and nobody has answered.
fn unreachable(neighbour: Neighbour) -> Option<Finding> {
    let grade = match neighbour {
        Neighbour::Fine => return None,
        Neighbour::Failed => Grade::Fault,
        Neighbour::FailedAlone => Grade::HighRisk,
    };
    Some(Finding {
        grade,
        rule: "unreachable",
        layer: Layer::Network,
        traffic: true,
        check: None,
        tally: Tally { good: 0, bad: 1 },
        location: Location::OriginHost,
        text: String::from("next hop not found"),
        reason: None,
    })
}

/// Keeps the score inside the band of its grade, so that the two never tell different stories.
pub(crate) fn score_within(grade: Grade, score: u8, below: SuccessBelow) -> u8 {
    let (least, most) = match grade {
        Grade::Unknown => (50, 50),
        Grade::Healthy => (below.degraded, 100),
        Grade::Degraded => (below.high_risk, below.degraded.saturating_sub(1)),
        Grade::HighRisk => (below.fault, below.high_risk.saturating_sub(1)),
        Grade::Fault => (0, 0),
    };
    score.max(least).min(most.max(least))
}

#[cfg(test)]
#[path = "tests/verdict.rs"]
mod tests;
