//! `policy.latency`, `policy.fault_rule` and `policy.mitigation`: what is late, what a fault takes, and what it takes under
//! attack.

use super::read::Section;
use health_common::streak::SPREAD_BITS;
use health_core::{
    Span,
    policy::{FaultRule, Latency, LatencyOver, Mitigation},
};

/// The words of `fault_rule`.
pub(super) const FAULT_RULES: &[(&str, FaultRule)] = &[("either", FaultRule::Either), ("both", FaultRule::Both)];

/// Shortest past that tells what is usual: a part of it is a minute.
const HISTORY_MIN: Span = Span::from_secs(360);
/// Longest one. A week.
const HISTORY_MAX: Span = Span::from_secs(7 * 86_400);
/// Longest addition. An answer that takes a minute more has left every client.
const ADD_MAX: Span = Span::from_secs(60);
/// Longest time that one touch of the file lasts. A week.
const EXPIRES_MAX: Span = Span::from_secs(7 * 86_400);

/// Most clients that the kernel tells apart.
#[expect(clippy::cast_possible_truncation, reason = "it is 20")]
const SPREAD_MAX: u8 = SPREAD_BITS as u8;

/// `base` with the section's keys written over it.
pub(super) fn latency(section: &Section<'_>, base: Latency) -> Latency {
    let high_risk = section.table("high_risk");
    let merged = Latency {
        learn: section.flag("learn").unwrap_or(base.learn),
        history: section.time("history", HISTORY_MIN, HISTORY_MAX).unwrap_or(base.history),
        degraded: over(section, base.degraded),
        buckets: section.number("buckets", 1, 100).unwrap_or(base.buckets),
        samples_min: section.number("samples_min", 20, 1_000_000).unwrap_or(base.samples_min),
        high_risk: over(&high_risk, base.high_risk),
    };
    let (less, more) = (merged.degraded, merged.high_risk);
    let is_present = section.is_present() || high_risk.is_present();
    if is_present && (less.factor_percent > more.factor_percent || less.add > more.add) {
        section.sink().error(
            section.at(),
            format!(
                "`latency` is out of order: degraded above {} % and {}, high_risk above {} % and {}",
                less.factor_percent, less.add, more.factor_percent, more.add
            ),
            "let high_risk have the greater of both (default 2000 % and 1 s)",
        );
    }
    merged
}

fn over(section: &Section<'_>, base: LatencyOver) -> LatencyOver {
    LatencyOver {
        factor_percent: section.number("factor_percent", 100, 100_000).unwrap_or(base.factor_percent),
        add: section.time("add", Span::ZERO, ADD_MAX).unwrap_or(base.add),
    }
}

/// `base` with the section's keys written over it.
pub(super) fn mitigation(section: &Section<'_>, base: &Mitigation) -> Mitigation {
    let file = section.text("file", "/run/scrubber/shop.active").map(|text| {
        if !text.value.is_empty() && !text.value.starts_with('/') {
            section.sink().error(
                text.at,
                format!("`mitigation.file` is \"{}\", no absolute path", text.value.escape_debug()),
                "write, for example, file = \"/run/scrubber/shop.active\"",
            );
        }
        text.value.to_owned()
    });
    Mitigation {
        file: file.unwrap_or_else(|| base.file.clone()),
        expires: section.time("expires", Span::from_secs(1), EXPIRES_MAX).unwrap_or(base.expires),
        evidence_percent: section.number("evidence_percent", 100, 1000).unwrap_or(base.evidence_percent),
        reset_spread_min: section.number("reset_spread_min", 1, SPREAD_MAX).unwrap_or(base.reset_spread_min),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, parse};

    const BASE: &str = "[node]\ninterfaces = [\"eth1\"]\n[[service]]\nname = \"s\"\n\
                        origin = [{ name = \"a\", address = \"10.0.0.1:80\" }]\n[service.policy]\n";

    fn read(more: &str) -> Result<Config, String> {
        parse(&format!("{BASE}{more}"), "f").map(|loaded| loaded.config).map_err(|errors| errors.to_string())
    }

    #[test]
    fn what_was_read_is_written_again() {
        let config = read(
            "fault_rule = \"both\"\n\
             latency = { history = \"2h\", factor_percent = 250, add = \"20ms\", buckets = 4, samples_min = 100, \
             high_risk = { factor_percent = 1000, add = \"500ms\" } }\n\
             mitigation = { file = \"/run/x\", expires = \"1h\", evidence_percent = 300, reset_spread_min = 10 }\n",
        )
        .expect("valid");
        let policy = &config.services[0].policy;
        assert_eq!(policy.fault_rule, FaultRule::Both);
        assert_eq!((policy.latency.history, policy.latency.buckets), (Span::from_secs(7200), 4));
        let high_risk = LatencyOver { factor_percent: 1000, add: Span::from_millis(500) };
        assert_eq!((policy.latency.high_risk, policy.latency.degraded.factor_percent), (high_risk, 250));
        assert_eq!((policy.mitigation.file.as_str(), policy.mitigation.evidence_percent), ("/run/x", 300));
        let again = parse(&config.resolved(), "f").expect("what it wrote").config;
        assert_eq!(again, config);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_cure() {
        for (lines, expected) in [
            ("fault_rule = \"all\"", "fault_rule"),
            ("latency = { factor_percent = 3000 }", "`latency` is out of order"),
            ("latency = { high_risk = { add = \"10ms\" } }", "`latency` is out of order"),
            ("latency = { history = \"1m\" }", "history"),
            ("latency = { samples_min = 1 }", "samples_min"),
            ("mitigation = { file = \"shop.active\" }", "no absolute path"),
            ("mitigation = { reset_spread_min = 21 }", "from 1 to 20"),
            ("mitigation = { evidence_percent = 50 }", "from 100 to 1000"),
        ] {
            let errors = read(lines).expect_err(lines);
            assert!(errors.contains(expected) && errors.contains("fix: "), "{lines}\n{errors}");
        }
    }
}
