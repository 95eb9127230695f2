//! `[[service.check]]`, whatever its kind.

use super::{
    http,
    model::{CheckConfig, CheckKind, CheckPlan, SigningConfig},
    plan,
    read::{At, Section},
    schema,
    service::{Names, name},
    shape,
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
/// Deadline of a request.
const TIMEOUT_HTTP: Span = Span::from_secs(2);
/// Most checks of one service; a result carries the place as 16 bits, and nobody reads a longer list.
const CHECKS_MAX: usize = 64;
/// Keys that only `type = "http"` has.
const HTTP_KEYS: &[&str] = &["url", "method", "headers", "expect"];

/// The checks of one service.
pub(super) struct ReadChecks {
    pub(super) list: Vec<CheckConfig>,
    pub(super) at: Vec<Range<usize>>,
    /// Whether the file has none, and the list is what Sluice adds.
    pub(super) added: bool,
}

#[derive(Clone, Copy)]
enum KindWord {
    Tcp,
    Http,
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
        let Some(kind) = kind(section) else { continue };
        list.push(check(section, kind, &mut names, signing));
        at.push(section.at_key("name"));
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
            kind: CheckKind::Tcp,
        });
        at.push(service.at_key("name"));
    }
    ReadChecks { list, at, added }
}

fn kind(section: &Section<'_>) -> Option<KindWord> {
    let Some(At { value, at }) = section.text("type", "tcp") else {
        if section.get("type").is_none() {
            let fix = "add type = \"tcp\" or type = \"http\"";
            section.sink().error(section.at(), "this check has no type", fix);
        }
        return None;
    };
    match value {
        "tcp" => return Some(KindWord::Tcp),
        "http" => return Some(KindWord::Http),
        "https" => section.sink().error(at, "unknown type of check `https`", "write \"http\"; the url says https://"),
        later if schema::CHECK_KINDS_LATER.contains(&later) => {
            let fix = "use \"tcp\" or \"http\", or remove the check";
            section.sink().error(at, format!("checks of type `{later}` are not supported yet"), fix);
        }
        _ => {
            let near = shape::nearest(value, ["tcp", "http"].into_iter());
            let fix = near.map_or("write \"tcp\" or \"http\"".to_owned(), |near| format!("did you mean \"{near}\"?"));
            let shown: String = value.chars().take(64).collect();
            section.sink().error(at, format!("unknown type of check `{}`", shown.escape_debug()), fix);
        }
    }
    None
}

fn check(section: &Section<'_>, kind: KindWord, names: &mut Names, signing: &[SigningConfig]) -> CheckConfig {
    let (word, layer, timeout_default) = match kind {
        KindWord::Tcp => ("tcp", Layer::Transport, TIMEOUT_TCP),
        KindWord::Http => ("http", Layer::Application, TIMEOUT_HTTP),
    };
    let name = name(section, "check", Some(word), names);
    let interval = section.time("interval", INTERVAL_MIN, INTERVAL_MAX).unwrap_or(INTERVAL_DEFAULT);
    let written = section.time("timeout", TIMEOUT_MIN, TIMEOUT_MAX);
    // A round ends before the next is due, unless the operator wants it otherwise.
    let timeout = written.unwrap_or(timeout_default.min(interval));
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
    let kind = match kind {
        KindWord::Tcp => {
            for key in HTTP_KEYS.iter().filter(|key| section.get(key).is_some()) {
                let message = format!("check `{name}`: `{key}` means nothing to a tcp check");
                section.error(key, message, "remove it, or write type = \"http\"");
            }
            CheckKind::Tcp
        }
        KindWord::Http => CheckKind::Http(Box::new(http::http(section, &name))),
    };
    let plan = plan::plan(section, &name, interval, signing);
    CheckConfig { name, layer, interval, timeout, slow, plan, kind }
}
