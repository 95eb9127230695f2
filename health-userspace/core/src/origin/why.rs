//! What a decision about an origin rests on.

use super::Origin;
use crate::{
    engine::{Amount, Fact, Limit, LimitFrom, Of, Why},
    latency::Baseline,
    model::{CheckSpec, Layer},
    policy::Policy,
    rule,
    track::CheckTrack,
    verdict::{Finding, Grade},
    window::Tally,
};
use alloc::{borrow::ToOwned, format, string::String, vec::Vec};

/// What traffic had come to when it was last judged: a step that follows may begin its windows anew.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Judged {
    pub(super) connect: Tally,
    pub(super) request: Tally,
}

impl Origin {
    /// What a decision by the rule of this name rests on. `own`: the policy without what an attack raises.
    pub(crate) fn why(&self, name: &str, specs: &[CheckSpec], (policy, own): (&Policy, &Policy)) -> Why {
        let rule = rule::find(name);
        let (bad, good) = (self.bad_facts(specs), self.good_facts(specs));
        let (because, against) = if rule.is_some_and(|rule| rule.favours) { (good, bad) } else { (bad, good) };
        Why {
            because,
            against,
            ignored: self.ignored(policy),
            limits: self.limits(name, specs, (policy, own)),
            otherwise: self.otherwise(name, specs, policy),
        }
    }

    /// What speaks against it, worst first.
    fn bad_facts(&self, specs: &[CheckSpec]) -> Vec<Fact> {
        let mut facts = Vec::new();
        if let Some(order) = &self.order {
            let reason = if order.reason.is_empty() { "no reason given" } else { order.reason.as_str() };
            facts.push(Fact { of: Of::Order, text: format!("{}: {reason}", order.by), at: self.life.since });
        }
        if let Some((trip, text)) = self.trip.trip().zip(self.trip_text()) {
            let trials =
                if trip.trials_failed > 0 { format!("{text}, {} trials failed", trip.trials_failed) } else { text };
            facts.push(Fact { of: Of::Trip, text: trials, at: trip.since });
        }
        facts.extend(self.verdict.findings.iter().map(|finding| self.fact(finding, specs)));
        // What fails and has not come to a finding.
        for (track, spec) in self.checks.iter().zip(specs) {
            let failures = track.runs().failures();
            let told = self.verdict.findings.iter().any(|finding| finding.check.as_deref() == Some(&spec.name));
            if failures > 0 && !told {
                let text = format!("{failures} failed in a row");
                facts.push(Fact { of: Of::Check(spec.name.clone()), text, at: track.newest() });
            }
        }
        for (layer, tally, at) in self.traffic() {
            let told = self.verdict.findings.iter().any(|finding| finding.traffic && finding.layer == layer);
            if tally.bad > 0 && !told {
                let text = format!("failed {}/{}", tally.bad, tally.total());
                facts.push(Fact { of: Of::Traffic(layer), text, at });
            }
        }
        facts
    }

    /// What speaks for it.
    fn good_facts(&self, specs: &[CheckSpec]) -> Vec<Fact> {
        let traffic = self.traffic().into_iter().filter(|(_, tally, _)| tally.good > 0).map(|(layer, tally, at)| {
            let word = if layer <= Layer::Transport { "accepted" } else { "answered" };
            Fact { of: Of::Traffic(layer), text: format!("{word} {}/{}", tally.good, tally.total()), at }
        });
        let passing = self.checks.iter().zip(specs).filter(|(track, _)| track.runs().passes() > 0);
        let checks = passing.map(|(track, spec)| Fact {
            of: Of::Check(spec.name.clone()),
            text: format!("{} passed in a row", track.runs().passes()),
            at: track.newest(),
        });
        traffic.chain(checks).collect()
    }

    /// Failures of fewer clients than speak for everyone.
    fn ignored(&self, policy: &Policy) -> Vec<Fact> {
        let tracks = [(&self.connect, Layer::Transport), (&self.request, Layer::Application)];
        let discounted = tracks.into_iter().filter_map(|(track, layer)| {
            let (all, judged) = (track.tally().bad, track.judged(policy).bad);
            let left = all.saturating_sub(judged);
            let text = format!("{left} of {all} failures: too few clients are behind them ({})", track.spread());
            (left > 0).then(|| Fact { of: Of::Traffic(layer), text, at: track.newest() })
        });
        discounted.collect()
    }

    const fn traffic(&self) -> [(Layer, Tally, crate::Timestamp); 2] {
        [
            (Layer::Transport, self.judged.connect, self.connect.newest()),
            (Layer::Application, self.judged.request, self.request.newest()),
        ]
    }

    fn fact(&self, finding: &Finding, specs: &[CheckSpec]) -> Fact {
        if finding.traffic && finding.rule == "unreachable" {
            return Fact {
                of: Of::NextHop,
                text: finding.text.clone(),
                at: self.neighbour_failed.unwrap_or(self.life.since),
            };
        }
        if let Some(name) = &finding.check {
            let place = specs.iter().position(|spec| spec.name == *name);
            let at = place.and_then(|place| self.checks.get(place)).map_or(self.life.since, CheckTrack::newest);
            return Fact { of: Of::Check(name.clone()), text: finding.detail(), at };
        }
        let track = if finding.layer <= Layer::Transport { &self.connect } else { &self.request };
        Fact { of: Of::Traffic(finding.layer), text: finding.text.clone(), at: track.newest() }
    }

    /// The values that a rule compares with; what was learned among them.
    fn limits(&self, name: &str, specs: &[CheckSpec], policies: (&Policy, &Policy)) -> Vec<Limit> {
        let mut limits = limits(name, policies);
        let late = self.worst("slow_learned").filter(|_| name == "slow_learned");
        let usual = late.and_then(|finding| match &finding.check {
            None => self.ttfb.baseline(),
            Some(check) => {
                let place = specs.iter().position(|spec| spec.name == *check)?;
                self.checks.get(place)?.latency().baseline()
            }
        });
        let learned =
            |usual: Baseline| Limit { key: "latency", amount: Amount::Time(usual.p95), from: LimitFrom::Learned };
        limits.extend(usual.map(learned));
        limits
    }

    /// What would have prevented it.
    fn otherwise(&self, name: &str, specs: &[CheckSpec], policy: &Policy) -> Vec<String> {
        let run = |runs: u8| format!("no change if one of the last {runs} rounds had failed");
        let one = match name {
            "fall_in_a_row" => self.worst(name).and_then(|finding| {
                let check = finding.check.as_deref()?;
                Some(format!("not in fault if one of the last {} rounds of {check} had passed", policy.fall))
            }),
            "removed_in_a_row" => Some("not in fault if one of these rounds had found the token".to_owned()),
            "success_rate" | "worse_in_stage" => self.worst("success_rate").and_then(|finding| better(finding, policy)),
            "slow_learned" => self.worst(name).map(|finding| {
                let of = finding.check.as_deref().unwrap_or("time to first byte");
                format!(
                    "healthy if the {of} had been within the limit in one of {} buckets of 10 s",
                    policy.latency.buckets
                )
            }),
            "fall_and_rate" => {
                self.worst(name).map(|_| format!("high_risk at most if one of the last {} had succeeded", policy.fall))
            }
            "slow" => self.worst(name).and_then(|finding| {
                let check = finding.check.as_deref()?;
                Some(format!("healthy if {check} had kept to its `slow` in one of {} rounds", policy.fall))
            }),
            "contradicted" => Some(format!(
                "in fault if fewer than {} answers of real traffic had been seen to be fine",
                policy.samples_min.passive
            )),
            "path_failed" | "node_failed" => Some(
                "in fault if somebody behind the same next hop still answered, or could stand in from outside"
                    .to_owned(),
            ),
            "check_fails_everywhere" => Some("worse if it had passed on one origin of the service".to_owned()),
            "unreachable" => Some("healthy if its next hop had answered on the link".to_owned()),
            "trials_failed" => {
                Some("the trip would not be confirmed if one of the two trials had succeeded".to_owned())
            }
            "tripped_3s" => Some("the trip would not be confirmed after one success within three seconds".to_owned()),
            "failed_in_hold_down" | "failed_in_stage" => self.failing_check(specs).map(|check| {
                format!("its way back would go on if {check} had not failed: no failure is allowed there")
            }),
            "tripped_in_hold_down" | "tripped_in_stage" => {
                Some("its way back would go on if the kernel had not tripped it".to_owned())
            }
            "passes" => Some(format!(
                "worse if fewer than {} % of what is tried had succeeded",
                policy.success_below_percent.degraded
            )),
            "rise_in_a_row" => Some(run(policy.rise)),
            "trials_passed" => Some(format!("no change if one of the last {} trials had failed", policy.rise)),
            "trial_passed" => Some("no change if that trial had failed".to_owned()),
            "hold_down_over" | "stages_over" | "clean" => {
                Some("back in fault if anything had failed meanwhile".to_owned())
            }
            _ => None,
        };
        one.into_iter().collect()
    }

    fn worst(&self, rule: &str) -> Option<&Finding> {
        self.verdict.findings.iter().find(|finding| finding.rule == rule)
    }

    fn failing_check<'a>(&self, specs: &'a [CheckSpec]) -> Option<&'a str> {
        let failing =
            self.checks.iter().zip(specs).find(|(track, _)| track.is_critical() && track.runs().failures() > 0);
        failing.map(|(_, spec)| spec.name.as_str())
    }
}

/// The values that a rule compares with: those in force, beside the service's own.
pub(crate) fn limits(name: &str, (policy, own): (&Policy, &Policy)) -> Vec<Limit> {
    let keys = rule::find(name).map_or(&[][..], |rule| rule.keys);
    let limit = |key: &&'static str| {
        let amount = policy.amount(key)?;
        let from = if own.amount(key) == Some(amount) { LimitFrom::Policy } else { LimitFrom::Mitigation };
        Some(Limit { key, amount, from })
    };
    keys.iter().filter_map(limit).collect()
}

/// How many more successes would have made a better grade of it.
fn better(finding: &Finding, policy: &Policy) -> Option<String> {
    let below = policy.success_below_percent;
    let (word, percent) = match finding.grade {
        Grade::Fault => ("high_risk", below.fault),
        Grade::HighRisk => ("degraded", below.high_risk),
        Grade::Degraded => ("healthy", below.degraded),
        Grade::Healthy | Grade::Unknown => return None,
    };
    let Tally { good, .. } = finding.tally;
    let total = finding.tally.total();
    let needed = total.saturating_mul(u64::from(percent)).div_ceil(100).saturating_sub(good);
    let of =
        finding.check.as_deref().unwrap_or(if finding.layer <= Layer::Transport { "connections" } else { "requests" });
    Some(format!("{word} if {needed} more of {total} ({of}) had succeeded: at least {percent} %"))
}
