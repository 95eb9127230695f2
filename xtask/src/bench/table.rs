//! The figures for people, on standard error.

use std::io::{self, Write as _};

use super::Document;

/// Budgets of design.md §10: hot, and with 64k flows in use. Unit: ns, a bare TC program included.
const BUDGETS: [(&str, u64, u64); 9] = [
    ("not_ours", 35, 35),
    ("data", 40, 120),
    ("ack", 40, 120),
    ("sample", 75, 160),
    ("data_nat", 70, 220),
    ("syn_new", 200, 600),
    ("syn_steered", 400, 1200),
    ("syn_ack", 250, 700),
    ("rst", 70, 150),
];

pub(super) fn show(document: &Document) -> io::Result<()> {
    let mut out = io::stderr().lock();
    let Document { programs, traffic } = document;
    if !programs.is_empty() {
        writeln!(
            out,
            "\nns per packet; flows 1: one, or batches of 256 fresh ones where a packet begins or ends a flow"
        )?;
        writeln!(
            out,
            "{:<9}{:<13}{:<6}{:>6}{:>7}{:>9}{:>8}",
            "program", "case", "ip", "flows", "ns", "trivial", "budget"
        )?;
    }
    for program in programs {
        let budget = BUDGETS.iter().find(|(case, ..)| *case == program.case);
        let budget = budget.map_or(0, |&(_, hot, full)| if program.flows == 1 { hot } else { full });
        let over = if program.ns > budget { "over" } else { "" };
        writeln!(
            out,
            "{:<9}{:<13}{:<6}{:>6}{:>7}{:>9}{budget:>8}  {over}",
            program.name, program.case, program.family, program.flows, program.ns, program.trivial_ns
        )?;
    }
    if !traffic.is_empty() {
        writeln!(out, "\n{:<20}{:>16}{:>16}{:>8}", "traffic", "with Sluice", "without", "ratio")?;
    }
    for figure in traffic {
        writeln!(out, "{:<20}{:>16.0}{:>16.0}{:>8.3}", figure.name, figure.with, figure.without, figure.ratio)?;
    }
    Ok(())
}
