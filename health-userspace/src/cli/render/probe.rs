//! What `sluice probe` prints.

use super::{
    table::{Align, Table},
    words::{clean, date_time},
};
use crate::{
    cli::outside::Look,
    report::{ProbeCheck, ProbeReport},
};
use jiff::Timestamp;
use std::fmt::Write;

/// A heading and a table for each origin, and a line that sums up.
#[must_use]
pub fn render(report: &ProbeReport, look: &Look) -> String {
    let mut text = String::new();
    for origin in &report.origins {
        // Writing to a string cannot fail.
        write!(text, "{}/{}  {}", clean(&origin.service), clean(&origin.origin), origin.address).unwrap_or_default();
        if let (Some(host), Some(took)) = (&origin.host, origin.resolve_ms) {
            write!(text, "  ({}, resolve {})", clean(host), milliseconds(took)).unwrap_or_default();
        }
        text.push('\n');
        let columns = [
            ("CHECK", Align::Left),
            ("TYPE", Align::Left),
            ("RESULT", Align::Left),
            ("TOOK", Align::Right),
            ("STEPS", Align::Left),
            ("WHY", Align::Left),
        ];
        let mut table = Table::new("   ", &columns);
        for check in &origin.checks {
            let took = check.took_ms.map(milliseconds).unwrap_or_default();
            let steps = check.steps.iter().map(|step| format!("{} {}", step.name, milliseconds(step.took_ms)));
            let steps = steps.collect::<Vec<_>>().join(", ");
            table.row([check.name.clone(), check.kind.clone(), check.result.clone(), took, steps, why(check, look)]);
        }
        text.push_str(&table.text());
        text.push('\n');
    }
    for sentence in &report.unplaced {
        writeln!(text, "{}", clean(sentence)).unwrap_or_default();
    }
    text.push_str(&sum(report));
    text
}

fn why(check: &ProbeCheck, look: &Look) -> String {
    let mut words: Vec<String> = Vec::new();
    match (&check.reason, &check.failed_step) {
        (Some(reason), Some(step)) => words.push(format!("{reason} ({step})")),
        (Some(reason), None) => words.push(reason.clone()),
        (None, _) => {}
    }
    words.extend(check.detail.clone());
    words.extend(check.needs.as_ref().map(|needs| format!("needs {needs}")));
    words.extend(check.weight.map(|weight| format!("weight {weight}")));
    let ends = check.cert_not_after.and_then(|at| Timestamp::from_second(at).ok());
    words.extend(ends.map(|at| format!("certificate until {}", date_time(at, &look.zone))));
    if check.result == "local" {
        words.push("says nothing about the origin".to_owned());
    }
    if check.result == "fail" && !check.critical {
        words.push("only degrades".to_owned());
    }
    words.join("; ")
}

fn sum(report: &ProbeReport) -> String {
    let count = |result: &str| {
        report.origins.iter().flat_map(|origin| &origin.checks).filter(|check| check.result == result).count()
    };
    let parts = ["fail", "local", "skipped", "slow", "pass"].map(|result| (count(result), result));
    let words: Vec<String> = parts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, result)| match result {
            "fail" => format!("{count} failed"),
            "pass" => format!("{count} passed"),
            "local" => format!("{count} could not be run here"),
            other => format!("{count} {other}"),
        })
        .collect();
    format!("{}\n", words.join(", "))
}

fn milliseconds(millis: f64) -> String {
    if millis < 10.0 { format!("{millis:.1}ms") } else { format!("{millis:.0}ms") }
}
