//! What is asked of an episode.

use lab::{Fault, Outcome, Record};

use super::{Evidence, Report, Steered};
use crate::run::plan::Route;

/// Half-open trials an episode may cost.
const TRIALS_MAX: usize = 3;
/// Connections that a had accepted when it began to refuse or fell silent.
const INFLIGHT_MAX: usize = 5;
/// Between a connection's start in the load and the kernel's choice for it. Unit: ns.
const CHOICE_NS: u64 = 5_000_000;

/// Most of each figure; `None` where nothing is asked.
#[derive(Clone, Copy, Debug)]
struct Limits {
    failed: Option<usize>,
    inflight: Option<usize>,
    added_ms: Option<f64>,
    all_ms: Option<f64>,
    back_ms: Option<f64>,
}

impl Limits {
    const NONE: Self = Self { failed: None, inflight: None, added_ms: None, all_ms: None, back_ms: None };

    const fn of(fault: Fault) -> Self {
        let inflight = Some(INFLIGHT_MAX);
        match fault {
            Fault::Refused => Self { failed: Some(0), inflight, added_ms: Some(2.0), all_ms: Some(50.0), ..Self::NONE },
            Fault::Blackhole => Self { failed: Some(0), inflight, all_ms: Some(300.0), ..Self::NONE },
            Fault::Hang => Self { all_ms: Some(400.0), ..Self::NONE },
            Fault::Errors => Self { failed: Some(30), all_ms: Some(100.0), ..Self::NONE },
            // Late answers are answers.
            Fault::Slow => Self { failed: Some(0), all_ms: Some(400.0), ..Self::NONE },
            Fault::Flap => Self { failed: Some(0), inflight, back_ms: Some(3000.0), ..Self::NONE },
            // Until the neighbour's entry fails, a black hole.
            Fault::LinkDown => Self { inflight, all_ms: Some(300.0), ..Self::NONE },
        }
    }
}

impl Evidence<'_> {
    /// Which figures were not met.
    pub(super) fn missed(&self, report: &Report, failed: &[&Record]) -> Vec<String> {
        let limits = Limits::of(self.fault);
        let mut missed = Vec::new();
        let mut at_most = |what: &str, got: usize, most: Option<usize>| {
            if let Some(most) = most.filter(|&most| got > most) {
                missed.push(format!("{what} {got} > {most}"));
            }
        };
        at_most("failed", report.failed, limits.failed);
        at_most("inflight", report.inflight, limits.inflight);
        at_most("trials", report.trials, Some(TRIALS_MAX));
        if matches!(self.fault, Fault::Hang | Fault::LinkDown) {
            missed.extend(self.failed_after_trip(failed));
        }
        if self.fault == Fault::LinkDown && !self.neighbour_lost {
            missed.push("the node never lost a's address".to_owned());
        }
        let mut within = |got: Option<f64>, most: Option<f64>, never: &str, what: &str| match (got, most) {
            (None, Some(_)) => missed.push(never.to_owned()),
            (Some(got), Some(most)) if got > most => missed.push(format!("{what} {got:.1} > {most} ms")),
            _ => {}
        };
        within(report.added_ms_p99, limits.added_ms, "nobody connected", "added to a connect");
        within(report.all_on_standby_ms, limits.all_ms, "traffic never settled on b", "all on b after");
        let back_most = limits.back_ms.or(Some(f64::INFINITY));
        within(report.back_ms, back_most, "traffic did not come back to a", "back on a after");
        if self.fault == Fault::Flap {
            missed.extend(self.stages());
        }
        if self.route == Route::Packet {
            match self.steered {
                Some(Steered { connect: 0, tc_egress: 1.., .. }) => {}
                other => missed.push(format!("NAT not proved to do it: steered {other:?}")),
            }
        }
        missed
    }

    /// Without Sluice each fault must hurt as it says, or the episode proves nothing.
    pub(super) fn not_felt(&self, report: &Report) -> Vec<String> {
        let during =
            || self.records.iter().filter(|record| (self.fault_ns..=self.restore_ns).contains(&record.start_ns));
        let late =
            |record: &&Record| record.outcome.is_ok() && record.origin == Some('a') && record.total_ns > super::SLOW_NS;
        let hurt = match self.fault {
            Fault::Refused if !self.route.is_proxied() => during().all(|record| record.outcome == Outcome::Refused),
            Fault::Refused | Fault::Blackhole | Fault::Hang | Fault::LinkDown => {
                during().all(|record| !record.outcome.is_ok()) && (self.fault != Fault::LinkDown || self.neighbour_lost)
            }
            Fault::Errors => during().all(|record| record.outcome == Outcome::Status(503)),
            Fault::Slow => during().all(|record| late(&record)),
            // Whoever began in it was answered after its end, or never.
            Fault::Flap => during().all(|record| record.end_ns() > self.restore_ns),
        };
        let mut wrong = Vec::new();
        if !hurt || during().next().is_none() {
            wrong.push("the fault was not felt by everybody".to_owned());
        }
        if report.back_ms.is_none() {
            wrong.push("a did not come back".to_owned());
        }
        wrong
    }

    /// In a hang, only requests sent before the trip may fail.
    fn failed_after_trip(&self, failed: &[&Record]) -> Option<String> {
        let trip = self.during().find(|event| event.what == "trip" && event.object == self.object);
        let Some(trip) = trip else { return Some("no trip".to_owned()) };
        let late = failed.iter().filter(|record| record.start_ns > trip.at_ns + CHOICE_NS).count();
        (late > 0).then(|| format!("{late} failed that were sent after the trip"))
    }

    /// A flap is over with its trial: no judged fault, so no hold-down and no failback by stages.
    fn stages(&self) -> Option<String> {
        let judged = |detail: &str| detail.contains("> fault") || detail.contains("> recovering");
        let event = self.during().find(|event| {
            event.what == "state" && event.object == self.object && judged(&event.detail) || event.what == "failback"
        })?;
        Some(format!("{} of {}: {}", event.what, event.object, event.detail))
    }
}
