//! The matrix for people, on standard error.

use std::io::{self, Write as _};

use super::Kernel;

/// Lines of an error that are shown.
const ERROR_LINES_MAX: usize = 12;

pub(super) fn show(kernels: &[Kernel]) -> io::Result<()> {
    let mut out = io::stderr().lock();
    writeln!(
        out,
        "\n{:<8}{:<34}{:<7}{:>8}{:>10}{:>8}{:>8}{:>6}  verdict",
        "kernel", "release", "boots", "loaded", "attached", "passed", "failed", "s"
    )?;
    for kernel in kernels {
        let Kernel { series, report, seconds, holds, .. } = kernel;
        let (loaded, attached) = (count(kernel, |p| p.loaded), count(kernel, |p| !p.attached.is_empty()));
        let release = report.release.as_deref().unwrap_or("-");
        let boots = if report.release.is_some() { "yes" } else { "no" };
        let verdict = if *holds { "holds" } else { "FAILS" };
        let all = report.programs.len();
        writeln!(
            out,
            "{series:<8}{release:<34}{boots:<7}{:>8}{:>10}{:>8}{:>8}{seconds:>6}  {verdict}",
            format!("{loaded}/{all}"),
            format!("{attached}/{all}"),
            report.tables.iter().map(|tables| tables.passed).sum::<usize>(),
            report.tables.iter().map(|tables| tables.failed.len()).sum::<usize>(),
        )?;
    }
    for kernel in kernels {
        details(&mut out, kernel)?;
    }
    writeln!(out)
}

fn count(kernel: &Kernel, wanted: impl Fn(&super::report::Program) -> bool) -> usize {
    kernel.report.programs.iter().filter(|program| wanted(program)).count()
}

/// What is behind the figures: each program by its name, and each thing that is not as it should be.
fn details(out: &mut impl io::Write, kernel: &Kernel) -> io::Result<()> {
    let Kernel { series, version, report, .. } = kernel;
    writeln!(out, "\n{series} ({version})")?;
    for program in &report.programs {
        let verdict = if program.loaded { "loaded" } else { "REFUSED" };
        let walked = program.walked.map(|walked| format!(", {walked} instructions walked")).unwrap_or_default();
        writeln!(out, "  {:<18}{verdict}{walked}; on {}", program.name, list(&program.attached))?;
        for error in &program.errors {
            writeln!(out, "{}", indented(&last_lines(error), 6))?;
        }
    }
    writeln!(out, "  {:<18}{}", "daemon", list(&report.daemon))?;
    for lack in &report.lacks {
        writeln!(out, "  lacks: {lack}")?;
    }
    for tables in &report.tables {
        writeln!(out, "  {:<18}{} passed, {} failed", tables.name, tables.passed, tables.failed.len())?;
        for failed in &tables.failed {
            writeln!(out, "    FAILED {}\n{}", failed.name, indented(&failed.said, 6))?;
        }
        if let Some(name) = &tables.unfinished {
            writeln!(out, "    the guest ended in {name}")?;
        }
    }
    for error in &report.errors {
        writeln!(out, "  {}", indented(error, 6).trim_start())?;
    }
    Ok(())
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// The verifier tells all of its way, which is thousands of lines; the document has them.
fn last_lines(error: &str) -> String {
    let lines: Vec<_> = error.lines().collect();
    let first = lines.len().saturating_sub(ERROR_LINES_MAX);
    lines.get(first..).unwrap_or_default().join("\n")
}

fn indented(text: &str, by: usize) -> String {
    text.lines().map(|line| format!("{:by$}{line}", "")).collect::<Vec<_>>().join("\n")
}
