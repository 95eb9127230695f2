//! `sluice maps` as text.

use super::{
    status::Gone,
    table::{Align, Table},
    words::{Weight, bytes, span},
};
use crate::{
    cli::outside::Look,
    report::{FrontendReport, MapEntry, MapsReport, OriginEntry, TripReport},
};

/// All maps: what is pinned, how full, and who looks after it. `abi` is that of this binary.
#[must_use]
pub fn overview(report: &MapsReport, abi: u32, gone: Option<Gone>, look: &Look) -> String {
    let attached = report.programs.iter().filter(|program| program.attached).count();
    let programs = format!("programs {attached}/{} attached", report.programs.len());
    let parts = [
        format!("pins v{}", report.abi),
        if report.abi == abi {
            format!("ABI {abi} = this binary")
        } else {
            Weight::Alarm.paint(&format!("ABI {}, THIS BINARY HAS {abi}", report.abi), look.colour)
        },
        if attached == report.programs.len() { programs } else { Weight::Alarm.paint(&programs, look.colour) },
        match (gone, report.daemon_pid) {
            (Some(gone), _) => Weight::Alarm.paint(&gone.text(), look.colour),
            (None, Some(pid)) => format!("daemon ok (pid {pid})"),
            (None, None) => "daemon ok".to_owned(),
        },
    ];
    let mut table = Table::new(
        "",
        &[
            ("MAP", Align::Left),
            ("TYPE", Align::Left),
            ("USED", Align::Right),
            ("/ MAX", Align::Left),
            ("FULL", Align::Right),
            ("MEMORY", Align::Right),
            ("NOTE", Align::Left),
        ],
    );
    for map in &report.maps {
        // Rounded to the nearest.
        let full = map.used.and_then(|used| used.saturating_mul(100).saturating_add(map.max / 2).checked_div(map.max));
        table.row([
            map.name.clone(),
            map.kind.clone(),
            map.used.map_or_else(|| "-".to_owned(), |used| used.to_string()),
            format!("/ {}", map.max),
            full.map_or_else(|| "-".to_owned(), |full| format!("{full}%")),
            map.memory_bytes.map_or_else(|| "-".to_owned(), bytes),
            map.note.clone().unwrap_or_default(),
        ]);
    }
    let missing = report.programs.iter().filter(|program| !program.attached).map(|program| {
        let place = program.interface.as_ref().map_or_else(String::new, |interface| format!(" ({interface})"));
        Weight::Alarm.paint(&format!("!! not attached: {}{place}", program.name), look.colour) + "\n"
    });
    let handovers = report.handovers.iter().map(|other| {
        format!(
            "handover: the programs of pins v{} serve {} redirected flows until those end\n",
            other.abi, other.flows
        )
    });
    parts.join("  ") + "\n" + &missing.chain(handovers).collect::<String>() + &table.text()
}

/// `sluice maps frontends`.
#[must_use]
pub fn frontends(report: &MapsReport) -> String {
    let mut table = Table::new(
        "",
        &[
            ("FRONTEND", Align::Left),
            ("SERVICE", Align::Left),
            ("GEN", Align::Left),
            ("SLOTS", Align::Left),
            ("ARMED", Align::Left),
            ("TRIPPED", Align::Left),
            ("OVERRIDE", Align::Left),
        ],
    );
    for frontend in &report.frontends {
        let slots: Vec<String> = frontend.slots.iter().map(|(name, count)| format!("{name} {count}")).collect();
        table.row([
            frontend.address.clone(),
            frontend.service.clone(),
            frontend.generation.to_string(),
            or_dash(slots.join(", ")),
            or_dash(frontend.armed.join(", ")),
            or_dash(tripped(frontend, &report.origins)),
            or_dash(frontend.order.clone().unwrap_or_default()),
        ]);
    }
    table.text()
}

/// `sluice maps origins`: counters that are 0 are left out.
#[must_use]
pub fn origins(report: &MapsReport) -> String {
    let mut table = Table::new(
        "",
        &[
            ("ID", Align::Right),
            ("ADDRESS", Align::Left),
            ("SERVICE", Align::Left),
            ("NAME", Align::Left),
            ("KERNEL", Align::Left),
            ("COUNTERS", Align::Left),
        ],
    );
    for origin in &report.origins {
        let counters = origin.counters.iter().filter(|counter| *counter.1 > 0);
        let counters: Vec<String> = counters.map(|(name, count)| format!("{name} {count}")).collect();
        let mut kernel = Vec::new();
        if origin.blocked == Some(true) {
            kernel.push("taken out".to_owned());
        }
        kernel.extend(origin.trip.as_ref().map(|trip| format!("tripped ({}){}", trip.streak, next(trip))));
        table.row([
            origin.id.to_string(),
            origin.address.clone(),
            origin.service.clone(),
            origin.name.clone(),
            or_dash(kernel.join(", ")),
            or_dash(counters.join("  ")),
        ]);
    }
    table.text()
}

/// Any other map.
#[must_use]
pub fn entries(entries: &[MapEntry]) -> String {
    let mut table = Table::new("", &[("KEY", Align::Left), ("VALUE", Align::Left)]);
    for entry in entries {
        table.row([entry.key.clone(), entry.value.clone()]);
    }
    table.text()
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

/// `a, trial in 12s (back-off 16s)`; several are parted by semicolons.
fn tripped(frontend: &FrontendReport, origins: &[OriginEntry]) -> String {
    let show = |name: &String| {
        let origin = origins.iter().find(|one| one.service == frontend.service && one.name == *name);
        let next = origin.and_then(|one| one.trip.as_ref()).map_or_else(String::new, next);
        format!("{name}{next}")
    };
    frontend.tripped.iter().map(show).collect::<Vec<_>>().join("; ")
}

fn next(trip: &TripReport) -> String {
    let back_off = trip.backoff_ms.map_or_else(String::new, |millis| format!(" (back-off {})", span(millis)));
    trip.trial_in_ms.map_or_else(String::new, |millis| format!(", trial in {}{back_off}", span(millis)))
}
