//! `sluice status` as text.

use super::{
    table::{Align, Table},
    words::{Weight, clean, date_time, span},
};
use crate::{
    cli::outside::Look,
    report::{FailbackReport, HookReport, OriginReport, ServiceReport, StatusReport},
};
use health_core::model::State;
use std::fmt::Write;

/// Services up to which healthy ones are shown in full; above, they are counted in one line.
const CALM_SHOWN_MAX: usize = 5;

/// How the daemon went, as far as the maps tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// Age of its last sign of life. Unit: ms.
    pub for_ms: Option<u64>,
    /// Its process.
    pub pid: Option<u32>,
}

impl Gone {
    /// `DAEMON GONE 4m12s (pid 1123): kernel acts alone`.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = "DAEMON GONE".to_owned();
        if let Some(millis) = self.for_ms {
            text.extend([" ", &span(millis)]);
        }
        if let Some(pid) = self.pid {
            text.extend([" (pid ", &pid.to_string(), ")"]);
        }
        text + ": kernel acts alone"
    }
}

/// The whole answer. `gone` where it comes from the maps; `all` shows healthy services too, however many.
#[must_use]
pub fn render(report: &StatusReport, gone: Option<Gone>, all: bool, look: &Look) -> String {
    let mut text = header(report, gone, look);
    let mut services: Vec<_> = report.services.iter().map(|service| (weigh(service), service)).collect();
    services.sort_by_key(|&(weight, service)| std::cmp::Reverse((weight, service.panic == Some(true))));
    let every = all || services.len() <= CALM_SHOWN_MAX;
    let mut folded = 0_usize;
    for &(weight, service) in &services {
        if weight == Weight::Calm && !every {
            folded += 1;
        } else {
            text.push_str(&self::service(weight, service, look));
        }
    }
    for (service, origin) in services.iter().flat_map(|(_, one)| one.origins.iter().map(move |origin| (one, origin))) {
        if let Some(order) = &origin.order {
            let line =
                format!("{} override: {}/{} {}", Weight::Notice.mark(), service.name, origin.name, ordered(order));
            text.push_str(&Weight::Notice.paint(&clean(&line), look.colour));
            text.push('\n');
        }
    }
    if folded > 0 {
        let more = if folded == services.len() { "" } else { "more " };
        let plural = if folded == 1 { "service" } else { "services" };
        writeln!(text, "   {folded} {more}{plural} healthy on tier 0 (--all)").unwrap_or_default();
    }
    text
}

/// How bad a service is: `--exit-code` asks it, and the worst come first.
#[must_use]
pub fn weigh(service: &ServiceReport) -> Weight {
    let any = |check: fn(&OriginReport) -> bool| service.origins.iter().any(check);
    let standby = service.active_tier.is_some_and(|tier| tier > 0);
    let nothing = service.state.is_some() && service.active_tier.is_none();
    let down = service.state == Some(State::Fault) || any(|origin| origin.tripped == Some(true));
    if service.panic == Some(true) || service.refuses == Some(true) || standby || nothing || down {
        return Weight::Alarm;
    }
    let calm = |origin: &OriginReport| {
        matches!(origin.state, None | Some(State::Healthy | State::Unknown))
            && origin.order.is_none()
            // From the maps: the daemon took it out before it ended.
            && (origin.state.is_some() || origin.reasons.is_empty())
    };
    if service.origins.iter().all(calm) { Weight::Calm } else { Weight::Notice }
}

fn header(report: &StatusReport, gone: Option<Gone>, look: &Look) -> String {
    let mut name = report.node.clone().unwrap_or_default();
    if let Some(mode) = &report.mode {
        name.extend([" ", &mode.to_uppercase()]);
    }
    let mut parts = vec![clean(&name), date_time(report.time, &look.zone)];
    parts.push(match gone {
        Some(gone) => Weight::Alarm.paint(&gone.text(), look.colour),
        None => "daemon ok".to_owned(),
    });
    parts.extend(hooks(&report.hooks, look));
    match report.in_sync {
        Some(true) => parts.push("maps in sync".to_owned()),
        Some(false) => parts.push(Weight::Alarm.paint("MAPS NOT IN SYNC", look.colour)),
        None => {}
    }
    parts.retain(|part| !part.is_empty());
    parts.join("  ") + "\n"
}

/// `eth1 tc ok`, or what is missing there: one item for each interface and kind of hook.
fn hooks(hooks: &[HookReport], look: &Look) -> Vec<String> {
    let mut groups: Vec<(String, Vec<&HookReport>)> = Vec::new();
    for hook in hooks {
        let place = match hook.hook.as_str() {
            kind if kind.starts_with("tc") => format!("{} tc", hook.interface),
            kind if kind.starts_with("xdp") => format!("{} xdp", hook.interface),
            _ => "sockets".to_owned(),
        };
        match groups.iter_mut().find(|group| group.0 == place) {
            Some(group) => group.1.push(hook),
            None => groups.push((place, vec![hook])),
        }
    }
    let show = |(place, members): (String, Vec<&HookReport>)| {
        let missing: Vec<&str> = members.iter().filter(|hook| !hook.attached).map(|hook| hook.hook.as_str()).collect();
        if missing.is_empty() {
            return clean(&format!("{place} ok"));
        }
        let mut text = format!("{place} MISSING {}", missing.join(", "));
        if let Some(detail) = members.iter().find_map(|hook| hook.detail.as_ref()) {
            text.extend([" (", detail, ")"]);
        }
        Weight::Alarm.paint(&clean(&text), look.colour)
    };
    groups.into_iter().map(show).collect()
}

fn service(weight: Weight, service: &ServiceReport, look: &Look) -> String {
    let mut head = format!("{} {}  {}", weight.mark(), service.name, headline(service));
    if service.mode.as_deref() == Some("observe") {
        head.push_str("  OBSERVED ONLY: nothing is moved");
    }
    if let Some(why) = worst(service) {
        head.extend(["   ", &why]);
    }
    let waits = |origin: &&OriginReport| {
        origin.failback.as_ref().is_some_and(|failback| failback.waits_for.as_deref() == Some("approval"))
    };
    if let Some(failback) = service.origins.iter().find(waits).and_then(|origin| origin.failback.as_ref()) {
        let waited = failback.waits_ms.map(span).unwrap_or_default();
        head.extend(["   APPROVAL WAITING ", &waited, "  ->  sluice failback ", &service.name, " approve"]);
    }
    let mut table = Table::new(
        "   ",
        &[
            ("ORIGIN", Align::Left),
            ("TIER", Align::Left),
            ("STATE", Align::Left),
            ("SHARE", Align::Right),
            ("CONN/S", Align::Right),
            ("CAP", Align::Left),
            ("OPEN", Align::Right),
            ("SEES", Align::Left),
            ("EVIDENCE", Align::Right),
            ("WHY", Align::Left),
        ],
    );
    for origin in &service.origins {
        table.row(row(origin));
    }
    format!("{}\n{}", weight.paint(&clean(&head), look.colour), table.text())
}

fn headline(service: &ServiceReport) -> String {
    if service.panic == Some(true) {
        return "PANIC: too few are usable, so all are used".to_owned();
    }
    if service.refuses == Some(true) {
        return "REFUSED: nothing is usable, so new connections are refused".to_owned();
    }
    if service.state.is_some() && service.active_tier.is_none() {
        return "NO ORIGIN HAS A SHARE".to_owned();
    }
    if let Some(tier) = service.active_tier.filter(|&tier| tier > 0) {
        let since = service.active_tier_ms.map_or_else(String::new, |millis| format!(" {}", span(millis)));
        return format!("ON STANDBY{since}, tier {tier}");
    }
    let tripped: Vec<&str> =
        service.origins.iter().filter(|one| one.tripped == Some(true)).map(|one| one.name.as_str()).collect();
    if !tripped.is_empty() {
        return format!("TRIPPED {}", tripped.join(", "));
    }
    let states = || service.origins.iter().filter_map(|origin| origin.state);
    let loud = [State::Fault, State::HighRisk, State::Degraded, State::Recovering, State::Maintenance];
    match loud.into_iter().find(|&loud| states().any(|state| state == loud)) {
        Some(state) => state.name().replace('_', " ").to_uppercase(),
        None => service.state.map_or("state not in the maps", State::name).to_owned(),
    }
}

/// The first reason of the worst origin that has one.
fn worst(service: &ServiceReport) -> Option<String> {
    let badness = |origin: &&OriginReport| match origin.state {
        _ if origin.tripped == Some(true) => 5,
        Some(State::Fault) => 4,
        Some(State::HighRisk) => 3,
        Some(State::Degraded) => 2,
        Some(State::Recovering | State::Maintenance) => 1,
        None | Some(State::Unknown | State::Healthy) => 0,
    };
    let mut origins: Vec<_> = service.origins.iter().filter(|origin| badness(origin) > 0).collect();
    origins.sort_by_key(|origin| std::cmp::Reverse(badness(origin)));
    let origin = origins.into_iter().find(|origin| !origin.reasons.is_empty())?;
    let location = origin.location.as_ref().map_or_else(String::new, |location| format!(" ({location})"));
    Some(format!("{} {}{location}", origin.name, origin.reasons.first()?))
}

fn row(origin: &OriginReport) -> [String; 10] {
    let dash = || "-".to_owned();
    let capacity = match (origin.capacity_cps, origin.conns_per_s) {
        (None, _) => dash(),
        (Some(capacity), Some(load)) if capacity > 0 && load >= 0.5 => {
            format!("{capacity} ({:.0}%)", load * 100.0 / f64::from(capacity))
        }
        (Some(capacity), _) => capacity.to_string(),
    };
    [
        origin.name.clone(),
        origin.priority.map_or_else(dash, |tier| tier.to_string()),
        origin.state.map_or("-", State::name).to_owned(),
        origin.share_percent.map_or_else(dash, share),
        origin.conns_per_s.map_or_else(dash, |load| format!("{load:.0}")),
        capacity,
        origin.open.map_or_else(dash, |open| open.to_string()),
        origin.sees.clone().unwrap_or_else(dash),
        origin.evidence_age_ms.map_or_else(dash, span),
        why(origin),
    ]
}

/// How far on its way back it is, and what comes next.
fn way_back(failback: &FailbackReport) -> String {
    let left = failback.left_ms.map_or_else(String::new, |millis| format!(", {} left", span(millis)));
    let waited = failback.waits_ms.map(span).unwrap_or_default();
    match (failback.step.as_str(), failback.waits_for.as_deref()) {
        ("observe", _) => format!("clean so far{left}, then stages"),
        ("stage", _) => format!("stage of {}%{left}", failback.percent),
        (_, Some(waits)) => format!("has {}%, waits for {waits} ({waited})", failback.percent),
        (_, None) => format!("has {}%", failback.percent),
    }
}

/// A share that is there never looks like none.
fn share(percent: f64) -> String {
    if percent > 0.0 && percent < 0.5 { "<1%".to_owned() } else { format!("{percent:.0}%") }
}

/// Why it is so, and what happens next.
fn why(origin: &OriginReport) -> String {
    let mut parts = Vec::new();
    if let Some(order) = &origin.order {
        parts.push(ordered(order));
    }
    if let Some(trip) = &origin.trip {
        let trial = trip.trial_in_ms.map_or_else(String::new, |millis| format!(", trial in {}", span(millis)));
        parts.push(format!("tripped ({}){trial}", trip.streak));
    } else if origin.tripped == Some(true) {
        parts.push("tripped".to_owned());
    }
    // The order has said so already, and with its end.
    let told = |reason: &str| origin.order.is_some() && reason.starts_with("ordered by ");
    parts.extend(origin.reasons.iter().filter(|reason| !told(reason)).cloned());
    if let Some(millis) = origin.hold_down_ms {
        parts.push(format!("hold-down ends in {}", span(millis)));
    }
    if let Some(failback) = &origin.failback {
        parts.push(way_back(failback));
    }
    match origin.ready.as_deref() {
        // Its state says so.
        None | Some("ready" | "unusable") => {}
        Some(why) => parts.push(format!("NOT READY: {why}")),
    }
    if parts.is_empty() {
        let ready = origin.ready.as_deref() == Some("ready");
        return match origin.weight {
            Some(0) => "weight 0, never chosen",
            _ if ready => "ready",
            _ => "-",
        }
        .to_owned();
    }
    parts.join(", ")
}

fn ordered(order: &crate::report::OrderReport) -> String {
    let verb = match order.what.as_str() {
        "drain" => "drained",
        "fail" => "failed",
        other => other,
    };
    let mut text = format!("{verb} by {}", order.by);
    if !order.reason.is_empty() {
        text.extend([" \"", &order.reason, "\""]);
    }
    match order.ends_in_ms {
        Some(millis) => text + ", ends in " + &span(millis),
        None => text + ", until cleared",
    }
}
