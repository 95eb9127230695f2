//! Keys that every kind of check has besides its interval: how often when, what it weighs, how its packets leave.

use super::{
    diagnostic::Sink,
    model::{CheckConfig, CheckPlan, SigningConfig, Source},
    read::{At, Section},
    shape,
};
use health_core::Span;
use std::{collections::BTreeSet, net::IpAddr, ops::Range};

/// Longest interval of any kind. A day.
const INTERVAL_MAX: Span = Span::from_secs(86_400);
/// Shortest interval of any kind.
const INTERVAL_MIN: Span = Span::from_millis(100);
/// `interval_fast` is this part of `interval` where the file says nothing: 1 s of the usual 5 s, as in the contract's example.
const FAST_PART: u64 = 5;
/// And not below this: with `fall` 3, half a second of silence must not become a fault.
const FAST_MIN: Span = Span::from_secs(1);
/// `interval_max` is so many times `interval` where the file says nothing: 30 s of the usual 5 s.
const MAX_TIMES: u64 = 6;
/// Longest name of a network interface (`IFNAMSIZ` without the NUL).
const INTERFACE_CHARS_MAX: usize = 15;

impl CheckPlan {
    /// What a check with this interval gets where the file says nothing.
    #[must_use]
    pub fn usual(interval: Span) -> Self {
        Self {
            fast: interval.part(FAST_PART).max(FAST_MIN).min(interval),
            recover: interval,
            max: interval.times(MAX_TIMES).min(INTERVAL_MAX),
            needs: Vec::new(),
            critical: true,
            verify: false,
            source: Source::default(),
            sign: None,
        }
    }
}

/// Reads them for the check `name`.
pub(super) fn plan(section: &Section<'_>, name: &str, interval: Span, signing: &[SigningConfig]) -> CheckPlan {
    let usual = CheckPlan::usual(interval);
    let time = |key| section.time(key, INTERVAL_MIN, INTERVAL_MAX);
    let (fast, recover, max) = (time("interval_fast"), time("interval_recover"), time("interval_max"));
    if fast.is_some_and(|fast| fast > interval) {
        let message = format!("check `{name}`: interval_fast is longer than interval ({interval})");
        section.error("interval_fast", message, "let interval_fast be at most interval");
    }
    let longest = interval.max(recover.unwrap_or(interval));
    if max.is_some_and(|max| max < longest) {
        let message = format!("check `{name}`: interval_max is shorter than {longest}, which it bounds");
        section.error("interval_max", message, format!("let interval_max be at least {longest}"));
    }
    let verify = section.flag("verify").unwrap_or(false);
    let needs = section.texts("needs", "port").unwrap_or_default();
    CheckPlan {
        fast: fast.unwrap_or(usual.fast),
        recover: recover.unwrap_or(usual.recover),
        max: max.unwrap_or(usual.max.max(longest)),
        needs: needs.into_iter().map(|need| need.value.to_owned()).collect(),
        critical: section.flag("critical").unwrap_or(true),
        verify,
        source: source(&section.table("source")),
        sign: sign(section, name, signing),
    }
}

fn source(section: &Section<'_>) -> Source {
    let address = section.text("address", "10.0.0.5").and_then(|text| {
        let read = text.value.parse::<IpAddr>().ok().filter(|address| !address.is_unspecified());
        if read.is_none() {
            let message = format!("`source.address` cannot be \"{}\"", text.value.escape_debug());
            section.sink().error(text.at, message, "write an address of this node, without a port");
        }
        read
    });
    let interface = section.text("interface", "eth1").and_then(|text| {
        let good = !text.value.is_empty()
            && text.value.len() <= INTERFACE_CHARS_MAX
            && !text.value.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control());
        if !good {
            let message = format!("`source.interface` cannot be \"{}\"", text.value.escape_debug());
            section.sink().error(text.at, message, "write the name of a network interface, for example \"eth1\"");
        }
        good.then(|| text.value.to_owned())
    });
    Source { address, interface }
}

fn sign(section: &Section<'_>, name: &str, signing: &[SigningConfig]) -> Option<SigningConfig> {
    let At { value, at } = section.text("sign", "probe")?;
    let found = signing.iter().find(|signing| signing.name == value);
    if found.is_none() {
        let message = format!("check `{name}`: there is no [signing.{}]", value.escape_debug());
        let near = shape::nearest(value, signing.iter().map(|signing| signing.name.as_str()));
        let fix = near
            .map_or_else(|| "add it, with header, use and keys".to_owned(), |near| format!("did you mean \"{near}\"?"));
        section.sink().error(at, message, fix);
    }
    found.cloned()
}

/// Reports needs that lead nowhere or in a circle. `at` has the place of each check.
pub(super) fn needs(list: &[CheckConfig], at: &[Range<usize>], sink: &Sink) {
    let find = |name: &str| list.iter().position(|check| check.name == name);
    for (place, (check, at)) in list.iter().zip(at).enumerate() {
        let mut reached = BTreeSet::new();
        let mut ahead: Vec<&str> = check.plan.needs.iter().map(String::as_str).collect();
        while let Some(need) = ahead.pop() {
            let Some(next) = find(need) else {
                if check.plan.needs.iter().any(|own| own == need) {
                    let message = format!("check `{}` needs `{}`, and there is none", check.name, need.escape_debug());
                    let near = shape::nearest(need, list.iter().map(|check| check.name.as_str()));
                    let fix = near.map_or_else(
                        || "name another check of this service".to_owned(),
                        |near| format!("did you mean \"{near}\"?"),
                    );
                    sink.error(at.clone(), message, fix);
                }
                continue;
            };
            if next == place {
                let message = format!("check `{}` needs itself, so it would never run", check.name);
                sink.error(at.clone(), message, "break the circle of `needs`");
                break;
            }
            if list[next].plan.verify && !check.plan.verify {
                let message = format!("check `{}` needs `{need}`, which runs at failback only (verify)", check.name);
                sink.error(at.clone(), message, "need a check that always runs");
                break;
            }
            if reached.insert(next) {
                ahead.extend(list[next].plan.needs.iter().map(String::as_str));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, parse};

    const BASE: &str = "[node]\ninterfaces = [\"eth1\"]\n[[service]]\nname = \"s\"\n\
                        origin = [{ name = \"a\", address = \"10.0.0.1:80\" }]\n";

    fn read(more: &str) -> Result<Config, String> {
        parse(&format!("{BASE}{more}"), "f").map(|loaded| loaded.config).map_err(|errors| errors.to_string())
    }

    fn check(lines: &str) -> String {
        format!("[[service.check]]\ntype = \"tcp\"\n{lines}\n")
    }

    #[test]
    fn intervals_follow_the_interval_where_the_file_says_nothing() {
        let table = [
            ("", (1000, 5000, 30_000)),
            ("interval = \"15s\"", (3000, 15_000, 90_000)),
            ("interval = \"200ms\"", (200, 200, 1200)),
            ("interval = \"2s\"", (1000, 2000, 12_000)),
            ("interval_recover = \"1m\"", (1000, 60_000, 60_000)),
            ("interval_fast = \"500ms\"\ninterval_recover = \"10s\"\ninterval_max = \"20s\"", (500, 10_000, 20_000)),
        ];
        for (lines, expected) in table {
            let config = read(&check(lines)).expect("valid");
            let CheckPlan { fast, recover, max, .. } = config.services[0].checks[0].plan.clone();
            let millis = (fast.as_millis(), recover.as_millis(), max.as_millis());
            assert_eq!(millis, expected, "{lines}");
        }
    }

    #[test]
    fn roles_source_and_signing_are_read_and_written_again() {
        let more = format!(
            "{}{}[signing.probe]\nheader = \"X-Probe\"\nuse = \"b\"\n\
             keys = [{{ id = \"a\", file = \"/k/a\" }}, {{ id = \"b\", file = \"/k/b\" }}]\n",
            check("name = \"port\""),
            check(
                "name = \"web\"\nneeds = [\"port\"]\ncritical = false\nverify = true\nsign = \"probe\"\n\
                 source = { address = \"10.0.0.5\", interface = \"eth1\" }"
            ),
        );
        let config = read(&more).expect("valid");
        let plan = &config.services[0].checks[1].plan;
        assert_eq!((plan.needs.as_slice(), plan.critical, plan.verify), (&["port".to_owned()][..], false, true));
        assert_eq!(plan.source.interface.as_deref(), Some("eth1"));
        let sign = plan.sign.as_ref().expect("signed");
        assert_eq!((sign.header.as_str(), sign.key.id.as_str(), sign.keys.len()), ("x-probe", "b", 2));
        let again = parse(&config.resolved(), "f").expect("what it wrote").config;
        assert_eq!(again, config);
    }

    #[test]
    fn what_could_never_run_is_refused_with_its_place_and_cure() {
        let ring = format!("{}{}", check("name = \"a\"\nneeds = [\"b\"]"), check("name = \"b\"\nneeds = [\"a\"]"));
        let verify = format!("{}{}", check("name = \"a\"\nneeds = [\"b\"]"), check("name = \"b\"\nverify = true"));
        let near = format!("{}{}", check("name = \"a\"\nneeds = [\"prot\"]"), check("name = \"port\""));
        let unused = "[signing.probe]\nuse = \"c\"\nkeys = [{ id = \"a\", file = \"/k/a\" }]\n";
        let table = [
            (ring.as_str(), "check `a` needs itself"),
            (&verify, "which runs at failback only"),
            (&near, "did you mean \"port\"?"),
            (&check("sign = \"prob\""), "there is no [signing.prob]"),
            (&check("interval_fast = \"10s\""), "interval_fast is longer than interval (5s)"),
            (&check("interval_max = \"4s\""), "interval_max is shorter than 5s"),
            (&check("source = { address = \"10.0.0.5:80\" }"), "`source.address` cannot be \"10.0.0.5:80\""),
            (&check("source = { interface = \"a/b\" }"), "`source.interface` cannot be"),
            (unused, "uses the key \"c\", and has none of that id"),
            ("[signing.probe]\nkeys = [{ id = \"a\", file = \"k\" }]\n", "is no absolute path"),
            ("[signing.probe]\nkey = 1\n", "unknown key `key` in `signing.probe`"),
        ];
        for (more, expected) in table {
            let errors = read(more).expect_err(more);
            assert!(errors.contains(expected), "{expected}\n{errors}");
            assert!(errors.contains("fix: "), "{errors}");
        }
    }
}
