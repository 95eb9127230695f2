//! `[[service.check]]`, whatever its kind.

use super::{
    kind::{self, CheckKind, Kind},
    model::{CheckConfig, CheckPlan, SigningConfig},
    pkcs11, plan,
    read::Section,
    service::{Names, name},
};
use health_core::{Span, model::Layer};
use std::ops::Range;

/// Shortest interval: ten rounds a second is what a confirming check needs, more is an attack.
const INTERVAL_MIN: Span = Span::from_millis(100);
/// Longest interval. A day.
const INTERVAL_MAX: Span = Span::from_secs(86_400);
/// Time between rounds where the file says nothing.
const INTERVAL_DEFAULT: Span = Span::from_secs(5);
/// Shortest deadline: below it the node's scheduler, not the origin, is measured.
const TIMEOUT_MIN: Span = Span::from_millis(10);
/// Longest deadline of a round.
const TIMEOUT_MAX: Span = Span::from_secs(600);
/// Deadline of a connection.
const TIMEOUT_TCP: Span = Span::from_secs(1);
/// Most checks of one service; a result carries the place as 16 bits, and nobody reads a longer list.
const CHECKS_MAX: usize = 64;

/// The checks of one service.
pub(super) struct ReadChecks {
    pub(super) list: Vec<CheckConfig>,
    pub(super) at: Vec<Range<usize>>,
    /// Whether the file has none, and the list is what Sluice adds.
    pub(super) added: bool,
}

/// Reads a service's checks; without any, it gets `tcp`.
pub(super) fn checks(service: &Section<'_>, signing: &[SigningConfig]) -> ReadChecks {
    let sections = service.tables("check");
    if let Some(beyond) = sections.get(CHECKS_MAX) {
        let message = format!("a service has {} checks; {CHECKS_MAX} is the most", sections.len());
        service.sink().error(beyond.at(), message, "remove some");
    }
    let mut names = Names::new("check");
    let (mut list, mut at) = (Vec::new(), Vec::new());
    for section in &sections {
        let Some(kind) = kind::of(section) else { continue };
        list.push(check(section, kind, &mut names, signing));
        at.push(section.at_key("name"));
    }
    for parent in pkcs11::add_clocks(&mut list) {
        at.push(at[parent].clone());
    }
    plan::needs(&list, &at, service.sink());
    let added = service.get("check").is_none();
    if added {
        list.push(CheckConfig {
            name: "tcp".to_owned(),
            layer: Layer::Transport,
            interval: INTERVAL_DEFAULT,
            timeout: TIMEOUT_TCP,
            slow: None,
            plan: CheckPlan::usual(INTERVAL_DEFAULT),
            kind: CheckKind::connect(),
        });
        at.push(service.at_key("name"));
    }
    ReadChecks { list, at, added }
}

fn check(section: &Section<'_>, kind: &Kind, names: &mut Names, signing: &[SigningConfig]) -> CheckConfig {
    let name = name(section, "check", Some(kind.word), names);
    let interval =
        section.time("interval", INTERVAL_MIN, INTERVAL_MAX).unwrap_or(pkcs11::interval(kind.word, INTERVAL_DEFAULT));
    let written = section.time("timeout", TIMEOUT_MIN, TIMEOUT_MAX);
    // A round ends before the next is due, unless the operator wants it otherwise.
    let mut timeout = written.unwrap_or(kind.timeout.min(interval));
    if timeout > interval {
        section.sink().warning(
            section.at_key("timeout"),
            format!("check `{name}`: timeout {timeout} is longer than its interval {interval}"),
            "rounds never overlap, so a silent origin is asked less often; let timeout be at most interval",
        );
    }
    let slow = section.time("slow", Span::from_millis(1), TIMEOUT_MAX);
    if slow.is_some_and(|slow| slow >= timeout) {
        section.sink().warning(
            section.at_key("slow"),
            format!("check `{name}`: slow is not below timeout ({timeout}), so no answer is ever slow"),
            "let slow be less than timeout",
        );
    }
    let mut plan = plan::plan(section, &name, interval, signing);
    let kind = kind::read(section, kind, &name);
    if let CheckKind::Pkcs11(rule) = &kind {
        timeout = pkcs11::timing(section, &name, rule, &mut plan, interval);
    }
    CheckConfig { name, layer: kind.layer(), interval, timeout, slow, plan, kind }
}
