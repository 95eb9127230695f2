//! The figures for people, on standard error.

use std::io::{self, Write as _};

use super::{Document, Program, Traffic};

/// What the machine of the budgets took for the trivial program. Unit: ns.
const TRIVIAL: u64 = 15;

/// Budgets of design.md §10: hot, and with 64k flows in use. Unit: ns, a bare TC program included.
const BUDGETS: [(&str, u64, u64); 10] = [
    ("not_ours", 35, 35),
    ("data", 40, 120),
    ("ack", 40, 120),
    ("sample", 75, 160),
    ("data_nat", 70, 220),
    ("syn_new", 200, 600),
    ("syn_steered", 400, 1200),
    ("syn_ack", 250, 700),
    ("rst", 70, 150),
    ("turn_around", 1500, 1500),
];

/// The least that traffic must keep.
const RATIO_MIN: f64 = 0.97;

pub(super) fn show(document: &Document) -> io::Result<()> {
    let mut out = io::stderr().lock();
    if !document.programs.is_empty() {
        writeln!(
            out,
            "\nns per packet; flows 1: one, or batches of 256 fresh ones where a packet begins or ends a flow.\n\
             Budgets are for a machine whose trivial program takes {TRIVIAL} ns, and scaled by this one's.\n\n\
             {:<9}{:<13}{:<6}{:>9}{:>7}{:>9}{:>7}{:>8}",
            "program", "case", "ip", "flows", "ns", "trivial", "ratio", "budget"
        )?;
    }
    for program in &document.programs {
        let budget = budget(program);
        let (allowed, verdict) = match budget {
            Some(budget) => (budget.to_string(), if program.ns > budget { "over" } else { "ok" }),
            None => ("-".to_owned(), ""),
        };
        let tenths = program.ns * 10 / program.trivial_ns.max(1);
        writeln!(
            out,
            "{:<9}{:<13}{:<6}{:>9}{:>7}{:>9}{:>5}.{}{allowed:>8}  {verdict}",
            program.name,
            program.case,
            program.family,
            program.flows,
            program.ns,
            program.trivial_ns,
            tenths / 10,
            tenths % 10
        )?;
    }
    if !document.traffic.is_empty() {
        writeln!(out, "\n{:<20}{:>16}{:>16}{:>8}{:>8}", "traffic", "with Sluice", "without", "ratio", "budget")?;
    }
    for Traffic { name, with, without, ratio } in &document.traffic {
        let verdict = if *ratio < RATIO_MIN { "over" } else { "ok" };
        writeln!(out, "{name:<20}{with:>16.0}{without:>16.0}{ratio:>8.3}{RATIO_MIN:>8.2}  {verdict}")?;
    }
    Ok(())
}

/// What the row may cost on this machine, if there is a budget for it: none is set for a million flows. Unit: ns.
fn budget(program: &Program) -> Option<u64> {
    let &(_, hot, full) = BUDGETS.iter().find(|(case, ..)| *case == program.case)?;
    let budget = match program.flows {
        1 => hot,
        65_536 => full,
        _ => return None,
    };
    Some(budget * program.trivial_ns / TRIVIAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_follow_the_trivial_program_of_the_same_run() {
        let row = |case: &str, flows, trivial_ns| Program {
            name: "egress".to_owned(),
            case: case.to_owned(),
            family: "ipv4".to_owned(),
            flows,
            ns: 0,
            trivial_ns,
        };
        assert_eq!(budget(&row("data_nat", 1, 15)), Some(70));
        assert_eq!(budget(&row("data_nat", 65_536, 30)), Some(440));
        assert_eq!(budget(&row("data_nat", 1_048_576, 15)), None);
    }
}
