//! What people see while the run goes on: one redrawn screen on a terminal, lines elsewhere, and a table at the end.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use lab::{Outcome, Record};

use super::figures::{Document, Report};

/// Seconds shown besides the current one.
pub(super) const SECONDS_MAX: u64 = 12;
/// Events shown.
pub(super) const EVENTS_MAX: usize = 5;
/// A line that is broken by the terminal would be erased by halves.
const WIDTH: usize = 79;
/// Cells of a bar for the whole second's connections.
const BAR: usize = 36;
const REDRAW: Duration = Duration::from_millis(200);
const GREEN: &str = "\x1b[32m";
const BLUE: &str = "\x1b[34m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// One second's connections, by what became of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Second {
    pub(super) number: u64,
    a: usize,
    b: usize,
    failed: usize,
}

impl Second {
    pub(super) const fn new(number: u64) -> Self {
        Self { number, a: 0, b: 0, failed: 0 }
    }

    pub(super) const fn count(&mut self, record: &Record) {
        match (record.outcome, record.origin) {
            (Outcome::Ok, Some('b')) => self.b += 1,
            (Outcome::Ok, _) => self.a += 1,
            _ => self.failed += 1,
        }
    }

    fn line(self) -> String {
        let Self { number, a, b, failed } = self;
        let total = (a + b + failed).max(1);
        // A single failure must be seen.
        let cells = |count: usize| (count * BAR).div_ceil(total);
        let (red, blue) = (cells(failed), cells(b));
        let blue = blue.min(BAR - red);
        let green = if a + b + failed == 0 { 0 } else { cells(a).min(BAR - red - blue) };
        let bar = format!("{GREEN}{}{BLUE}{}{RED}{}{PLAIN}", "▒".repeat(green), "█".repeat(blue), "x".repeat(red));
        let gap = " ".repeat(BAR - green - blue - red);
        format!("  +{number:>2}s {bar}{gap} a {a:>3}  b {b:>3}  failed {failed:>3}")
    }
}

/// What the live view shows.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) title: String,
    pub(super) phase: &'static str,
    pub(super) phase_for: Duration,
    pub(super) run_for: Duration,
    pub(super) states: String,
    pub(super) seconds: Vec<Second>,
    pub(super) events: Vec<String>,
}

impl Frame {
    fn lines(&self) -> Vec<String> {
        let clip = |line: String| line.chars().filter(|letter| !letter.is_control()).take(WIDTH).collect::<String>();
        let run_for = self.run_for.as_secs();
        let mut lines = vec![
            clip(format!("── {}  ({}:{:02})", self.title, run_for / 60, run_for % 60)),
            clip(format!("   {} {:.1}s   origins: {}", self.phase, self.phase_for.as_secs_f64(), self.states)),
        ];
        lines.extend(self.seconds.iter().map(|second| second.line()));
        lines.extend(self.events.iter().map(|event| clip(format!("  {event}"))));
        lines
    }
}

/// Standard error, as a terminal or not.
#[derive(Debug)]
pub(super) struct View {
    live: bool,
    /// Lines of the frame that is on the screen.
    shown: usize,
    drawn: Instant,
}

impl View {
    pub(super) fn new() -> Self {
        Self { live: io::stderr().is_terminal(), shown: 0, drawn: Instant::now() }
    }

    pub(super) const fn is_live(&self) -> bool {
        self.live
    }

    /// A line that stays, above the frame. Nobody reading is no reason to fail.
    pub(super) fn say(&mut self, line: &str) {
        self.clear();
        writeln!(io::stderr(), "{line}").ok();
    }

    /// Shows `frame` in place of the one before, now and then.
    pub(super) fn draw(&mut self, frame: &Frame) {
        if self.shown > 0 && self.drawn.elapsed() < REDRAW {
            return;
        }
        let lines = frame.lines();
        let text = format!("{}{}\n", self.erase(), lines.join("\n"));
        io::stderr().write_all(text.as_bytes()).ok();
        self.shown = lines.len();
        self.drawn = Instant::now();
    }

    /// Takes the frame off the screen.
    pub(super) fn clear(&mut self) {
        io::stderr().write_all(self.erase().as_bytes()).ok();
        self.shown = 0;
    }

    fn erase(&self) -> String {
        if self.shown == 0 { String::new() } else { format!("\x1b[{}A\x1b[J", self.shown) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.clear();
    }
}

/// One line on one episode.
pub(super) fn summary(report: &Report, judged: bool) -> String {
    let verdict = match (judged, report.missed.as_slice()) {
        (false, []) => String::new(),
        (true, []) => "ok".to_owned(),
        (_, missed) => format!("MISSED {}", missed.join("; ")),
    };
    format!("{}  {verdict}", row(report))
}

fn row(report: &Report) -> String {
    let Report { path, family, method, links, name, tried, failed, inflight, slow, trials, .. } = report;
    let time = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
    let acted: Vec<String> = report.acted.iter().map(|actor| format!("{actor:?}").to_lowercase()).collect();
    format!(
        "{:<10}{family:<5}{:<5}{links:>2} {name:<10}{tried:>6}{failed:>7}{inflight:>9}{slow:>6}{trials:>7}{:>8}{:>9}{:>9}{:>9}  {}",
        path.name(),
        format!("{method:?}").to_uppercase(),
        time(report.connect_ms_p99),
        time(report.first_on_standby_ms),
        time(report.all_on_standby_ms),
        time(report.back_ms),
        acted.join(",")
    )
}

/// The table at the end.
pub(super) fn table(document: &Document) -> io::Result<()> {
    let mut out = io::stderr().lock();
    writeln!(
        out,
        "\n{:<10}{:<5}{:<5}{:>2} {:<10}{:>6}{:>7}{:>9}{:>6}{:>7}{:>8}{:>9}{:>9}{:>9}  acted",
        "path",
        "ip",
        "asks",
        "on",
        "fault",
        "tried",
        "failed",
        "inflight",
        "slow",
        "trials",
        "p99 ms",
        "first ms",
        "all ms",
        "back ms"
    )?;
    for report in &document.episodes {
        writeln!(out, "{}", row(report))?;
        for line in report
            .missed
            .iter()
            .map(|why| format!("MISSED {why}"))
            .chain(report.local_trouble.clone())
            .chain(report.strays.clone())
        {
            writeln!(out, "       {line}")?;
        }
    }
    for error in &document.errors {
        writeln!(out, "not played: {error}")?;
    }
    if !document.judged {
        return writeln!(out, "without Sluice: what users see today");
    }
    let met = document.episodes.iter().filter(|report| report.missed.is_empty()).count();
    writeln!(out, "{met} of {} episodes met their figures", document.episodes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_failure_is_seen_and_a_bar_is_never_too_long() {
        for (a, b, failed) in [(0, 0, 0), (499, 0, 1), (166, 167, 167), (1, 1, 498)] {
            let line = Second { number: 3, a, b, failed }.line();
            let count = |letter| line.chars().filter(|&other| other == letter).count();
            assert!(count('▒') + count('█') + count('x') <= BAR, "{line}");
            assert_eq!(failed > 0, line.contains('x'), "{line}");
        }
    }
}
