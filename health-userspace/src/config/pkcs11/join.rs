//! What joins several keys: how often, the checks of clocks, and rules between checks, origins and policy.

use super::{CLOCK_SUFFIX, ClockRule, Depth, INTERVAL_DEFAULT, LIMITS_DEFAULT, Pkcs11Check, RECOVER_DEFAULT};
use crate::config::{
    diagnostic::Sink,
    kind::CheckKind,
    model::{CheckConfig, CheckPlan, OriginConfig},
    read::Section,
};
use health_core::Span;
use std::ops::Range;

/// A wrong clock is a fault within this, whenever it goes wrong (the seed).
const CLOCK_BOUND: Span = Span::from_secs(30);
/// Rounds come up to a tenth late, so that they spread. Unit: percent of an interval.
const JITTER_PERCENT: u64 = 110;

/// Time between rounds of a check of this kind where the file says nothing.
pub(in crate::config) fn interval(kind: &str, usual: Span) -> Span {
    if kind == "pkcs11" { INTERVAL_DEFAULT } else { usual }
}

/// What is usual for HSMs where the file says nothing: how often, and for how long at most.
pub(in crate::config) fn timing(
    section: &Section<'_>,
    name: &str,
    check: &Pkcs11Check,
    plan: &mut CheckPlan,
    interval: Span,
) -> Span {
    let unwritten = |key| section.get(key).is_none();
    if unwritten("interval_fast") {
        plan.fast = check.confirm.min(interval);
    }
    if unwritten("interval_recover") {
        plan.recover = RECOVER_DEFAULT.min(interval);
    }
    if unwritten("interval_max") {
        // An HSM that comes back is to be used, and one whose traffic passes can sign wrongly.
        plan.max = interval.max(plan.recover);
    }
    if let Some(at) = section.get("timeout").map(toml::Spanned::span) {
        let fix = "write deadlines = { business = \"5s\", … } instead: each step has its own";
        section.sink().error(at, "`timeout` means nothing to a pkcs11 check", fix);
    }
    if interval < INTERVAL_DEFAULT {
        section.sink().warning(
            section.at_key("interval"),
            format!("check `{name}` asks the HSM every {interval}; its sessions and its processor are for business"),
            "let interval be 15s to 30s: a failure is confirmed after `confirm` in any case",
        );
    }
    check.deadlines.round()
}

/// The checks that watch clocks: each has its own cadence and its own run of failures, so it is a check of its own. Without
/// a word about clocks, the service's first check of HSMs has one with all defaults.
pub(in crate::config) fn add_clocks(list: &mut Vec<CheckConfig>) -> Vec<usize> {
    let hsm = |check: &CheckConfig| matches!(check.kind, CheckKind::Pkcs11(_));
    let written = list.iter().any(|check| matches!(&check.kind, CheckKind::Pkcs11(hsm) if hsm.clock.is_some()));
    let first = list.iter().position(hsm);
    if let (false, Some(first)) = (written, first)
        && let CheckKind::Pkcs11(hsm) = &mut list[first].kind
    {
        hsm.clock = Some(ClockRule { interval: RECOVER_DEFAULT, drift_max: Span::from_secs(5), require: false });
    }
    let mut parents = Vec::new();
    for place in 0..list.len() {
        let parent = &list[place];
        let CheckKind::Pkcs11(hsm) = &parent.kind else { continue };
        let Some(rule) = hsm.clock else { continue };
        let plan = CheckPlan {
            fast: hsm.confirm.min(rule.interval),
            recover: rule.interval,
            max: rule.interval,
            ..parent.plan.clone()
        };
        let clock = CheckConfig {
            name: format!("{}{CLOCK_SUFFIX}", parent.name),
            layer: parent.layer,
            interval: rule.interval,
            timeout: parent.timeout,
            slow: None,
            plan,
            kind: CheckKind::Pkcs11(Box::new(Pkcs11Check { depth: Depth::Clock, ..(**hsm).clone() })),
        };
        list.push(clock);
        parents.push(place);
    }
    parents
}

/// Rules that join a service's checks with its origins and its `fall`.
pub(in crate::config) fn cross(
    checks: &[CheckConfig],
    at: &[Range<usize>],
    origins: &[OriginConfig],
    fall: u8,
    sink: &Sink,
) {
    let mut limits: Option<(u32, Span)> = None;
    for (check, at) in checks.iter().zip(at) {
        let CheckKind::Pkcs11(hsm) = &check.kind else { continue };
        if let Some(origin) = origins.iter().find(|origin| origin.pkcs11.is_none()) {
            let message = format!("check `{}`: origin `{}` does not say which token it is", check.name, origin.name);
            sink.error(at.clone(), message, "give it pkcs11 = { module = \"…\", serial = \"…\" }");
            return;
        }
        let own = (hsm.sessions_max, hsm.orphan_ttl);
        if limits.is_some_and(|limits| limits != own) && own != LIMITS_DEFAULT && limits != Some(LIMITS_DEFAULT) {
            let message =
                format!("check `{}`: another check of this service has other sessions_max or orphan_ttl", check.name);
            sink.error(at.clone(), message, "write them once: they are the service's");
        }
        limits = Some(limits.filter(|limits| *limits != LIMITS_DEFAULT).unwrap_or(own));
        if let (Depth::Clock, Some(rule)) = (&hsm.depth, hsm.clock) {
            clock_bound(hsm, rule, fall, at, sink);
        }
    }
    if limits.is_none()
        && let Some(origin) = origins.iter().find(|origin| origin.pkcs11.is_some())
    {
        let message = format!("origin `{}` names a token, and no check of the service looks at it", origin.name);
        let place = at.first().cloned().unwrap_or_default();
        sink.warning(place, message, "add a [[service.check]] with type = \"pkcs11\"");
    }
}

/// A wrong clock must be a fault within 30 s at any phase; settings that can't keep that are refused.
fn clock_bound(hsm: &Pkcs11Check, rule: ClockRule, fall: u8, at: &Range<usize>, sink: &Sink) {
    let wait = Span(rule.interval.0 / 100).times(JITTER_PERCENT);
    let confirm = hsm.confirm.min(rule.interval).plus(hsm.deadlines.info);
    let sum = wait.plus(hsm.deadlines.info).plus(confirm.times(u64::from(fall.saturating_sub(1))));
    if sum <= CLOCK_BOUND {
        return;
    }
    let message = format!(
        "a wrong clock would be a fault only after {sum}: clock.interval {} and a tenth, info {}, then {} × (confirm {} + \
         info {}); {CLOCK_BOUND} is the most",
        rule.interval,
        hsm.deadlines.info,
        fall.saturating_sub(1),
        hsm.confirm,
        hsm.deadlines.info
    );
    sink.error(at.clone(), message, "shorten clock.interval (default 10s), confirm (2s) or fall");
}
