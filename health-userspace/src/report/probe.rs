//! `sluice probe --json`.

use crate::probe::{Ended, Probed, ProbedCheck};
use health_core::{
    Span,
    model::{Layer, Outcome},
};
use serde::{Deserialize, Serialize};

/// Every selected check, once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// Whether everything ran and passed, late ones included.
    pub ok: bool,
    /// In the configuration's order.
    pub origins: Vec<ProbeOrigin>,
    /// Origins that have no address now, and why, each in a sentence.
    pub unplaced: Vec<String>,
}

/// One origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeOrigin {
    /// Its service.
    pub service: String,
    /// Its name.
    pub origin: String,
    /// Where it was asked.
    pub address: String,
    /// Its name, if the configuration has no address of it.
    pub host: Option<String>,
    /// How long it took to find out what the name stands for. Unit: ms.
    pub resolve_ms: Option<f64>,
    /// In the order in which they ran.
    pub checks: Vec<ProbeCheck>,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeCheck {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// What a pass proves.
    pub layer: String,
    /// Whether a failure may take the origin out.
    pub critical: bool,
    /// Whether it usually runs only while its origin comes back.
    pub verify: bool,
    /// `pass`, `slow`, `fail`, `local` (trouble of this node: it says nothing about the origin) or `skipped`.
    pub result: String,
    /// Stable code of a failure or of local trouble.
    pub reason: Option<String>,
    /// Step that failed.
    pub failed_step: Option<String>,
    /// Layer of that step.
    pub failed_layer: Option<String>,
    /// What came and what was expected, for people.
    pub detail: Option<String>,
    /// The check that it needs and that did not pass.
    pub needs: Option<String>,
    /// From its first step to its end. Unit: ms.
    pub took_ms: Option<f64>,
    /// In order; the last one is where it ended.
    pub steps: Vec<ProbeStep>,
    /// Weight that it set.
    pub weight: Option<u16>,
    /// When the certificate that it saw ends. Unit: seconds since 1970.
    pub cert_not_after: Option<i64>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeStep {
    /// Its stable name.
    pub name: String,
    /// What a failure of it is a failure of.
    pub layer: String,
    /// How long it took. Unit: ms.
    pub took_ms: f64,
}

impl ProbeReport {
    /// What was found.
    #[must_use]
    pub fn new(probed: &[Probed], unplaced: Vec<String>) -> Self {
        let origins: Vec<ProbeOrigin> = probed.iter().map(origin).collect();
        let passed = |check: &ProbeCheck| ["pass", "slow"].contains(&&*check.result);
        let ok = unplaced.is_empty() && origins.iter().flat_map(|origin| &origin.checks).all(passed);
        Self { ok, origins, unplaced }
    }
}

fn origin(probed: &Probed) -> ProbeOrigin {
    ProbeOrigin {
        service: probed.service.clone(),
        origin: probed.origin.clone(),
        address: probed.address.to_string(),
        host: probed.resolved.as_ref().map(|(host, _)| host.clone()),
        resolve_ms: probed.resolved.as_ref().map(|(_, took)| millis(*took)),
        checks: probed.checks.iter().map(check).collect(),
    }
}

fn check(ProbedCheck { check, ended, unmet }: &ProbedCheck) -> ProbeCheck {
    let of = |field: fn(&Ended) -> Option<String>| ended.as_ref().and_then(field);
    let failed = ended.as_ref().filter(|ended| !ended.outcome.is_pass()).and_then(|ended| ended.steps.last());
    let steps = ended.iter().flat_map(|ended| &ended.steps);
    ProbeCheck {
        name: check.name.clone(),
        kind: check.kind.name().to_owned(),
        layer: check.layer.name().to_owned(),
        critical: check.plan.critical,
        verify: check.plan.verify,
        result: ended.as_ref().map_or("skipped", |ended| ended.outcome.name()).to_owned(),
        reason: of(|ended| reason(ended.outcome)),
        failed_step: failed.map(|step| step.name.to_owned()),
        failed_layer: failed.map(|step| step.layer.name().to_owned()),
        detail: of(|ended| ended.notes.detail.clone()),
        needs: unmet.clone(),
        took_ms: ended.as_ref().map(|ended| millis(ended.took)),
        steps: steps
            .map(|step| ProbeStep {
                name: step.name.to_owned(),
                layer: Layer::name(step.layer).to_owned(),
                took_ms: millis(step.took),
            })
            .collect(),
        weight: ended.as_ref().and_then(|ended| ended.notes.weight),
        cert_not_after: ended.as_ref().and_then(|ended| ended.notes.cert_not_after),
    }
}

fn reason(outcome: Outcome) -> Option<String> {
    match outcome {
        Outcome::Pass | Outcome::Slow => None,
        Outcome::Fail(reason) => Some(reason.words()),
        Outcome::Local(reason) => Some(reason.name().to_owned()),
    }
}

/// In thousandths, which is more than a timer can tell.
fn millis(span: Span) -> f64 {
    // A round takes minutes at most, so microseconds fit exactly.
    #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
    let micros = (span.0 / 1000) as f64;
    micros / 1000.0
}
