//! What is to become of an origin: how far on its way back it is, and what was ordered.

use health_core::{engine::OriginView, lifecycle::Way, time::Timestamp};
use serde::{Deserialize, Serialize};

/// The way back of an origin that was in fault.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailbackReport {
    /// `observe`, `stage`, or `waits` where the next stage may not begin.
    pub step: String,
    /// The part of its weight that it has. Unit: percent.
    pub percent: u8,
    /// What is left of the step. Unit: ms.
    pub left_ms: Option<u64>,
    /// What the next stage waits for: `approval`, `window` or `hold`.
    pub waits_for: Option<String>,
    /// How long it has waited. Unit: ms.
    pub waits_ms: Option<u64>,
    /// Who has approved.
    pub approved_by: Option<String>,
}

/// An operator's order in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderReport {
    /// `drain` or `fail`.
    pub what: String,
    /// Who ordered it.
    pub by: String,
    /// Why, in the operator's words; may be empty.
    pub reason: String,
    /// Time until it ends by itself. Unit: ms.
    pub ends_in_ms: Option<u64>,
}

impl FailbackReport {
    /// How far on its way back an origin is, behind its hold-down.
    #[must_use]
    pub fn from_view(view: &OriginView, now: Timestamp) -> Option<Self> {
        let left = |until: Timestamp| Some(until.since(now).as_millis());
        let (step, percent, left_ms, waits_ms) = match view.way? {
            Way::Hold { .. } => return None,
            Way::Observe { until } => ("observe", 0, left(until), None),
            Way::Asks { percent, since, .. } => ("waits", percent, None, Some(now.since(since).as_millis())),
            Way::Stage { percent, until, .. } => ("stage", percent, left(until), None),
        };
        Some(Self {
            step: step.to_owned(),
            percent,
            left_ms,
            waits_for: view.waits.map(|waits| waits.name().to_owned()),
            waits_ms,
            approved_by: view.approval.as_ref().map(|approval| approval.by.clone()),
        })
    }
}
