//! From records and events to the figures of design.md §11, and whether they meet what is asked of them ([`limits`]). Pure.

mod limits;

use lab::{Event, Fault, Method, Record};
use serde::Serialize;

use super::plan::Route;

/// Only connections that started this long before the fault count. Unit: ns.
pub(crate) const BEFORE_NS: u64 = 5_000_000_000;
/// After the client timeout, every connection of the window has ended. Unit: ns.
pub(crate) const ENDED_NS: u64 = 5_200_000_000;
/// An answer that took longer is slow, and its connection was not simply steered. Unit: ns.
const SLOW_NS: u64 = 500_000_000;
/// A trial's event and its socket's start lie this close together. Unit: ns.
const TRIAL_NS: u64 = 200_000_000;
/// A proxied request started at most this long before the trial that it caused. Unit: ns.
const PROXIED_TRIAL_NS: u64 = 100_000_000;
/// A fault takes effect while the tool that makes it has yet to return. Unit: ns.
const EFFECT_NS: u64 = 20_000_000;
/// So many connections in a row on a mean that traffic is back, and not a trial.
const BACK_RUN: usize = 20;
/// A load that starts later than this at its 99th percentile measures its own trouble too. Unit: ms.
const LATE_MS_MAX: f64 = 5.0;
/// Connections listed where a figure was missed.
const STRAYS_MAX: usize = 40;

/// What an episode left behind. All stamps are monotonic ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence<'a> {
    pub(crate) route: Route,
    pub(crate) family: &'static str,
    pub(crate) method: Method,
    pub(crate) links: u8,
    pub(crate) fault: Fault,
    /// Whether Sluice was there to be judged.
    pub(crate) judged: bool,
    /// Whether the node was seen to have lost a's address; only looked for where a's link is down.
    pub(crate) neighbour_lost: bool,
    /// `SERVICE/ORIGIN` of a.
    pub(crate) object: &'a str,
    pub(crate) window_ns: u64,
    pub(crate) fault_ns: u64,
    pub(crate) restore_ns: u64,
    /// Sorted by start; beyond the restore too.
    pub(crate) records: &'a [Record],
    pub(crate) events: &'a [Event],
    pub(crate) steered: Option<Steered>,
}

/// Growth of `sluice_steered_total` by hook, and of the service's `sluice_rescue_total`, while the fault lasted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Steered {
    pub(crate) connect: u64,
    pub(crate) tc_egress: u64,
    pub(crate) tc_client: u64,
    pub(crate) rescued: u64,
}

impl Steered {
    /// What was counted after `before`.
    pub(crate) const fn since(self, before: Self) -> Self {
        Self {
            connect: self.connect.saturating_sub(before.connect),
            tc_egress: self.tc_egress.saturating_sub(before.tc_egress),
            tc_client: self.tc_client.saturating_sub(before.tc_client),
            rescued: self.rescued.saturating_sub(before.rescued),
        }
    }
}

/// Who moved the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Actor {
    Rescue,
    Trip,
    Judge,
}

/// One episode, as in design.md §11, and below `acted` what helps to read it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) name: &'static str,
    pub(crate) family: &'static str,
    pub(crate) path: Route,
    pub(crate) method: Method,
    pub(crate) tried: usize,
    pub(crate) failed: usize,
    pub(crate) inflight: usize,
    pub(crate) slow: usize,
    pub(crate) trials: usize,
    pub(crate) connect_ms_p99: Option<f64>,
    pub(crate) first_on_standby_ms: Option<f64>,
    pub(crate) all_on_standby_ms: Option<f64>,
    pub(crate) back_ms: Option<f64>,
    pub(crate) acted: Vec<Actor>,
    pub(crate) links: u8,
    pub(crate) steered: Option<Steered>,
    /// How much longer a connect took while the fault lasted, at the 99th percentiles; through a proxy an answer.
    pub(crate) added_ms_p99: Option<f64>,
    /// Lateness of the load itself.
    pub(crate) late_ms_p99: Option<f64>,
    /// Figures that were not met; empty is good.
    pub(crate) missed: Vec<String>,
    /// Trouble of this machine that may explain a figure.
    pub(crate) local_trouble: Vec<String>,
    /// The first connections that were not simply served by b, where a figure was missed.
    pub(crate) strays: Vec<String>,
}

/// What `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Document {
    pub(crate) ok: bool,
    pub(crate) episodes: Vec<Report>,
    /// Whether the figures were held against the table; not without Sluice.
    #[serde(skip)]
    pub(crate) judged: bool,
    /// Why episodes are missing.
    pub(crate) errors: Vec<String>,
}

/// Start of the first connection after `restore_ns` that begins a run on a.
pub(crate) fn back_ns(records: &[Record], restore_ns: u64) -> Option<u64> {
    let mut run: Option<(u64, usize)> = None;
    for record in records.iter().filter(|record| record.start_ns >= restore_ns) {
        let on_a = record.outcome.is_ok() && record.origin == Some('a');
        run = on_a.then(|| run.map_or((record.start_ns, 1), |(start, length)| (start, length + 1)));
        if let Some((start, BACK_RUN)) = run {
            return Some(start);
        }
    }
    None
}

impl Evidence<'_> {
    /// Computes the figures and holds them against the table.
    pub(crate) fn judge(&self) -> Report {
        let (trial_count, is_trial) = self.trials();
        let window: Vec<(&Record, bool)> = (self.records.iter().zip(is_trial))
            .filter(|(record, _)| (self.window_ns..=self.until_ns()).contains(&record.start_ns))
            .collect();
        let others = || window.iter().filter(|(_, trial)| !trial).map(|&(record, _)| record);
        let failed: Vec<&Record> =
            others().filter(|record| !record.outcome.is_ok() && !self.in_flight(record)).collect();
        let slow = |record: &&Record| record.outcome.is_ok() && record.total_ns > SLOW_NS && !self.in_flight(record);
        let after = || others().filter(|record| record.start_ns > self.fault_ns);
        let on_b = |record: &&Record| record.outcome.is_ok() && record.origin == Some('b');
        let offset_ms = |record: &Record| ms(record.start_ns - self.fault_ns);
        let direct = |record: &&Record| on_b(record) && record.total_ns <= SLOW_NS;
        let last_stray = after().rfind(|record| !direct(record)).map_or(0.0, offset_ms);
        // Never settled: nothing after the last stray was served by b.
        let settled = after().next_back().is_some_and(|record| direct(&record));
        let mut report = Report {
            name: self.fault.name(),
            family: self.family,
            path: self.route,
            method: self.method,
            tried: window.len(),
            failed: failed.len(),
            inflight: others().filter(|record| !record.outcome.is_ok() && self.in_flight(record)).count(),
            slow: others().filter(slow).count(),
            trials: trial_count,
            connect_ms_p99: p99_ms(others().filter_map(|record| record.connect_ns).collect()),
            first_on_standby_ms: after().find(on_b).map(offset_ms),
            all_on_standby_ms: settled.then_some(last_stray),
            back_ms: back_ns(self.records, self.restore_ns).map(|start_ns| ms(start_ns - self.restore_ns)),
            acted: self.acted(),
            links: self.links,
            steered: self.steered,
            added_ms_p99: self.added_ms_p99(&window),
            late_ms_p99: p99_ms(window.iter().map(|(record, _)| record.late_ns).collect()),
            missed: Vec::new(),
            local_trouble: Vec::new(),
            strays: Vec::new(),
        };
        report.missed = if self.judged { self.missed(&report, &failed) } else { self.not_felt(&report) };
        if !report.missed.is_empty() {
            let stray = |record: &&Record| {
                !direct(record) && !self.in_flight(record) && record.end_ns() + EFFECT_NS > self.fault_ns
            };
            let mut strays: Vec<&Record> = others().filter(stray).collect();
            strays.sort_by_key(|record| record.outcome.is_ok());
            report.strays = strays.into_iter().map(|record| self.describe(record)).take(STRAYS_MAX).collect();
        }
        report.local_trouble = self.local_trouble(&report);
        report
    }

    /// End of the window: a flap is judged by what its aftermath costs, too.
    const fn until_ns(&self) -> u64 {
        match self.fault {
            Fault::Flap => self.restore_ns + ENDED_NS,
            _ => self.restore_ns,
        }
    }

    /// Of what was not a trial, against the same before the fault.
    fn added_ms_p99(&self, window: &[(&Record, bool)]) -> Option<f64> {
        let p99 = |during: bool| {
            let records = window.iter().filter(|(record, trial)| !trial && (record.start_ns > self.fault_ns) == during);
            let took =
                |record: &Record| if self.route.is_proxied() { Some(record.total_ns) } else { record.connect_ns };
            // What was under way when the fault began is no measure of what was before.
            let records = records.filter(|(record, _)| during || record.end_ns() <= self.fault_ns);
            p99_ms(records.filter_map(|(record, _)| took(record)).collect())
        };
        Some(p99(true)? - p99(false)?)
    }

    /// One connection, in words.
    fn describe(&self, record: &Record) -> String {
        let start =
            ms(record.start_ns.saturating_sub(self.fault_ns)) - ms(self.fault_ns.saturating_sub(record.start_ns));
        let connected = record.connect_ns.map_or_else(|| "never".to_owned(), |took| format!("{:.1} ms", ms(took)));
        let origin = record.origin.unwrap_or('-');
        format!(
            "{start:.1} ms, port {}: {:?} after {:.1} ms, connected {connected}, on {origin}",
            record.local_port,
            record.outcome,
            ms(record.total_ns)
        )
    }

    /// Connected before the fault and not finished when it took effect, a little before its stamp: a had accepted it.
    fn in_flight(&self, record: &Record) -> bool {
        record.connected_ns().is_some_and(|at_ns| at_ns <= self.fault_ns) && record.end_ns() + EFFECT_NS > self.fault_ns
    }

    fn during(&self) -> impl Iterator<Item = &Event> {
        let begin_ns = self.fault_ns.saturating_sub(EFFECT_NS);
        self.events.iter().filter(move |event| (begin_ns..=self.until_ns()).contains(&event.at_ns))
    }

    /// How many trials there were, and which records they were.
    fn trials(&self) -> (usize, Vec<bool>) {
        let mut is_trial = vec![false; self.records.len()];
        let mut seen = Vec::new();
        for event in self.during().filter(|event| event.what == "trial" && event.object == self.object) {
            // One trial may have more than one line, such as its start and its end.
            let port = event.port();
            if port.is_some() && seen.contains(&port) {
                continue;
            }
            seen.push(port);
            let found = self
                .records
                .iter()
                .enumerate()
                .position(|(index, record)| !is_trial[index] && self.is_of_trial(record, event));
            if let Some(index) = found {
                is_trial[index] = true;
            }
        }
        (seen.len(), is_trial)
    }

    fn is_of_trial(&self, record: &Record, event: &Event) -> bool {
        if self.route.is_proxied() {
            // The port is the proxy's. Only a request that the trial hurt, or brought to a, can be told from the rest.
            let marked = !record.outcome.is_ok() || record.total_ns > SLOW_NS || record.origin == Some('a');
            let since = event.at_ns.checked_sub(record.start_ns);
            return marked && record.start_ns > self.fault_ns && since.is_some_and(|ns| ns <= PROXIED_TRIAL_NS);
        }
        event.port() == Some(record.local_port) && record.start_ns.abs_diff(event.at_ns) <= TRIAL_NS
    }

    fn acted(&self) -> Vec<Actor> {
        let mut acted = Vec::new();
        if self.steered.is_some_and(|steered| steered.rescued > 0) {
            acted.push(Actor::Rescue);
        }
        // The other family's service sees the same fault; what acted there is not what acted here.
        let service = |object: &'_ str| object.split('/').next().map(str::to_owned);
        for event in self.during().filter(|event| service(&event.object) == service(self.object)) {
            let actor = match (event.what.as_str(), event.by.as_str()) {
                ("rescue", _) => Actor::Rescue,
                ("trip", _) => Actor::Trip,
                ("state" | "failover", "judge") => Actor::Judge,
                _ => continue,
            };
            if !acted.contains(&actor) {
                acted.push(actor);
            }
        }
        acted
    }

    fn local_trouble(&self, report: &Report) -> Vec<String> {
        let mut trouble = Vec::new();
        if let Some(late_ms) = report.late_ms_p99.filter(|&late_ms| late_ms > LATE_MS_MAX) {
            trouble.push(format!("the load itself was late: {late_ms:.1} ms at its 99th percentile"));
        }
        let short = self.records.iter().filter(|record| record.outcome.is_local()).count();
        if short > 0 {
            trouble.push(format!("{short} connections for which this machine had no descriptor, port or memory"));
        }
        trouble
    }
}

fn ms(ns: u64) -> f64 {
    // To the microsecond, which is what the clocks are good for here.
    let us = u32::try_from(ns / 1000).unwrap_or(u32::MAX);
    f64::from(us) / 1000.0
}

fn p99_ms(mut values: Vec<u64>) -> Option<f64> {
    values.sort_unstable();
    values.get((values.len() * 99 / 100).min(values.len().saturating_sub(1))).map(|&ns| ms(ns))
}

#[cfg(test)]
mod tests;
