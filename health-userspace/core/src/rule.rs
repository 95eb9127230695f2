//! The rules by which the judgement decides, by their stable names: people alert on them, and `explain` tells what they mean.

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its stable name, as in [`Decision::rule`](crate::engine::Decision::rule).
    pub name: &'static str,
    /// Whether it speaks for an origin: then what is good of it is the evidence, and what is bad speaks against the decision.
    pub favours: bool,
    /// When it fires, in words.
    pub meaning: &'static str,
    /// Keys of the policy that it compares with, as in the configuration.
    pub keys: &'static [&'static str],
}

const fn against(name: &'static str, keys: &'static [&'static str], meaning: &'static str) -> Rule {
    Rule { name, favours: false, meaning, keys }
}

const fn favours(name: &'static str, keys: &'static [&'static str], meaning: &'static str) -> Rule {
    Rule { name, favours: true, meaning, keys }
}

const RATES: &[&str] = &[
    "success_below_percent.degraded",
    "success_below_percent.high_risk",
    "success_below_percent.fault",
    "samples_min.passive",
    "samples_min.active",
    "window",
    "trip.spread_min",
];
const FALL_AND_RATE: &[&str] =
    &["fall", "success_below_percent.fault", "samples_min.passive", "samples_min.active", "window", "trip.spread_min"];
const LATENCY: &[&str] = &[
    "latency.factor_percent",
    "latency.add",
    "latency.buckets",
    "latency.samples_min",
    "latency.high_risk.factor_percent",
    "latency.high_risk.add",
];
const STAGES: &[&str] = &["failback.stage_for", "failback.observe_for"];
const TRIP: &[&str] = &["trip.after", "trip.within", "trip.spread_min"];

/// All of them.
pub const RULES: &[Rule] = &[
    // What speaks against an origin.
    against("fall_in_a_row", &["fall"], "a check failed so many times in a row"),
    against("removed_in_a_row", &[], "a check found an HSM removed so many times in a row"),
    against("success_rate", RATES, "too small a share of connections, requests or rounds succeeded in the window"),
    against("slow", &["fall", "samples_min.active"], "rounds of a check took longer than its `slow`"),
    against(
        "fall_and_rate",
        FALL_AND_RATE,
        "a check, or traffic, failed in a row and too small a share of it succeeded",
    ),
    against(
        "slow_learned",
        LATENCY,
        "answers took much longer than usual, for so many buckets of ten seconds in a row",
    ),
    against(
        "path_failed",
        &[],
        "many origins behind one next hop fell silent at once: the path fails, and nobody is moved",
    ),
    against("node_failed", &[], "all origins fell silent at once: this node fails, and nobody is moved"),
    against("check_fails_everywhere", &[], "a check fails on every origin while lower checks and traffic pass"),
    against("contradicted", &["samples_min.passive"], "a check fails while enough traffic at its layer succeeds"),
    against("unreachable", &[], "its next hop is not found on the link"),
    against("trials_failed", TRIP, "the kernel tripped it, and two flows that tried it again failed"),
    against("tripped_3s", TRIP, "the kernel tripped it, and nothing succeeded for three seconds"),
    against("adopted", &[], "the kernel held it out when the daemon started"),
    // On its way back.
    against("failed_in_hold_down", &["hold_down.base", "hold_down.max"], "a check failed before it was given flows"),
    against("failed_in_stage", STAGES, "a check failed in a stage of its way back"),
    against("tripped_in_hold_down", TRIP, "the kernel tripped it before it was given flows"),
    against("tripped_in_stage", TRIP, "the kernel tripped it in a stage of its way back"),
    against("worse_in_stage", RATES, "too much of its traffic failed in a stage of its way back"),
    against(
        "canary_failures",
        &["failback.canary.fail_over_standby_percent", "failback.canary.flows_min"],
        "more of its flows failed in a stage than of those that stood in for it",
    ),
    against(
        "canary_slow",
        &["failback.canary.ttfb_factor_percent", "failback.canary.flows_min"],
        "its first bytes came later in a stage than those of the ones that stood in for it",
    ),
    // What speaks for it.
    favours("passes", RATES, "what is checked and seen of it succeeds"),
    favours("rise_in_a_row", &["rise"], "every critical check passed so many times in a row"),
    favours("trials_passed", &["rise"], "so many flows in a row that tried it succeeded"),
    favours("trial_passed", &[], "a flow that tried it succeeded, and no check looks at the layer that failed"),
    favours("traffic_serves", RATES, "traffic that still reaches it succeeds"),
    favours("hold_down_over", &["hold_down.base", "hold_down.max"], "it stayed clean for its hold-down"),
    favours("clean", STAGES, "it stayed clean, so a stage of its way back begins"),
    favours("stages_over", STAGES, "it stayed clean for all stages of its way back"),
    // What waits.
    against("approval", &["failback.approval_expires"], "the next stage waits for an operator"),
    against("window", &[], "the next stage waits for the window of the day"),
    against("hold", &[], "the next stage waits for the end of an operator's hold"),
    // A service.
    against("none_usable", &["panic_percent"], "too few origins of the service are usable"),
    against("refused", &["panic_percent"], "no origin of the service is usable, and new connections are refused"),
    favours("usable_again", &[], "enough origins of the service are usable again"),
    against("tier_unusable", &["min_usable_percent"], "no origin of the tier is usable"),
    favours("tier_usable", &["min_usable_percent"], "origins of a preferred tier are usable again"),
    against("mitigation", &[], "an attack is being mitigated, so more evidence is asked for"),
    favours("mitigation_over", &[], "no attack is being mitigated any more"),
    // The governor.
    against(
        "causes_at_once",
        &[],
        "as many causes as may be are on the move, and only checks call it dead, or it serves",
    ),
    against(
        "moves_per_min",
        &[],
        "as many moves as may be began in the past minute, and only checks call it dead, or it serves",
    ),
    against("per_standby_at_once", &[], "as many causes as may be went to its standby, which declares no capacity"),
    against("standby_load", &[], "its standby declares no capacity, and has more than twice its usual load"),
    against("no_headroom", &[], "its standby has no room left by its declared capacity, and it may serve itself"),
    against("ping_pong", &[], "its flows have only just come back, and it serves"),
    against("capacity_unset", &[], "flows went to it, and it declares no capacity"),
    // Operators.
    against("operator", &[], "an operator ordered it"),
    against("order_ended", &[], "an operator's order ran out"),
];

/// The rule of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[test]
    fn names_are_given_once_and_keys_have_values() {
        for (place, rule) in RULES.iter().enumerate() {
            assert_eq!(find(rule.name), RULES.get(place), "{} is there twice", rule.name);
            assert!(!rule.meaning.is_empty());
            for key in rule.keys {
                assert!(Policy::default().amount(key).is_some(), "{}: no value for {key}", rule.name);
            }
        }
    }
}
