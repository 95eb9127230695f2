//! What the schedule runs.

use super::{
    Alarms, Hub, HubError,
    clock::{host_is_synchronised, is_skewed},
    halt::Verdict,
    hub::Handle,
    slot::{Plan, Round},
    verify::Pinned,
};
use crate::{
    config::{BusinessRule, Depth, Pkcs11Check},
    probe::{kind::Probe, trace::Trace},
};
use futures_util::future::{BoxFuture, FutureExt};
use health_core::{
    Span,
    model::{Hsm, LocalReason, Outcome, Reason},
};
use std::sync::Arc;

/// Clocks that are off alike agree to this.
const ALIKE: Span = Span::from_secs(2);

/// A check of an HSM, made ready for one origin.
pub(in crate::probe) struct Pkcs11Probe {
    hub: Arc<Hub>,
    alarms: Alarms,
    slot: Arc<Handle>,
    plan: Arc<Plan>,
}

impl Pkcs11Probe {
    pub(in crate::probe) fn new(
        hub: Option<&Arc<Hub>>,
        names: (&str, &str),
        rule: &Pkcs11Check,
    ) -> Result<Self, HubError> {
        let pinned = match &rule.depth {
            Depth::Business(BusinessRule {
                public_key: Some(path),
                operation: super::Operation::SignVerify(signing),
                ..
            }) => {
                let read = Pinned::read(path, *signing);
                Some(read.map_err(|source| HubError::Pinned { path: path.clone(), source })?)
            }
            _ => None,
        };
        let (Some(hub), Some(partition)) = (hub, &rule.partition) else { return Err(HubError::Nowhere) };
        let slot = hub.slot(names, partition, rule)?;
        let plan = Arc::new(Plan { name: name(&rule.depth), rule: rule.clone(), pinned });
        Ok(Self { hub: Arc::clone(hub), alarms: hub.alarms(names), slot, plan })
    }

    /// Whose fault it is that a token's clock and ours disagree. If all tokens are off alike, or nobody vouches for ours, it
    /// may be ours.
    async fn blame(&mut self, by_ns: i64) -> Outcome {
        let drift_max = self.plan.rule.clock.map_or(Span::ZERO, |rule| rule.drift_max);
        let others = self.hub.other_clocks(&self.slot, self.plan.rule.deadlines).await;
        let right = others.iter().any(|other| !is_skewed(*other, drift_max));
        let alike = !others.is_empty() && others.iter().all(|other| other.abs_diff(by_ns) <= ALIKE.0);
        if alike || (!right && !host_is_synchronised()) {
            let why = format!(
                "{} other tokens asked: the node's own clock is suspected, and no token held out",
                others.len()
            );
            self.alarms.raise("pkcs11_host_clock", why);
            return Outcome::Local(LocalReason::HostClock);
        }
        Outcome::Fail(Reason::Hsm(Hsm::ClockSkew))
    }
}

/// What is remembered and alarmed about is named by what is done, for two checks that do the same are one.
fn name(depth: &Depth) -> String {
    match depth {
        Depth::Info => "info".to_owned(),
        Depth::Clock => "clock".to_owned(),
        Depth::Business(rule) if rule.key.is_empty() => "random".to_owned(),
        Depth::Business(rule) => format!("key {}", rule.key),
    }
}

impl Probe for Pkcs11Probe {
    /// Each request to the worker is a step; if a call hung, its name is the last one. The deadlines are the steps' own, and the slot's task keeps them: a round that
    /// is dropped here goes on there to its end, for a call into a module can't be dropped.
    fn run<'a>(&'a mut self, trace: &'a mut Trace) -> BoxFuture<'a, Outcome> {
        async {
            let Some(Round { verdict, detail, steps }) = self.slot.round(Arc::clone(&self.plan)).await else {
                trace.explain("the daemon ends");
                return Outcome::Local(LocalReason::Start);
            };
            for step in steps {
                trace.push(step);
            }
            if let Some(detail) = detail {
                trace.explain(detail);
            }
            match verdict {
                Verdict::Pass => Outcome::Pass,
                Verdict::Fail(reason) => Outcome::Fail(reason),
                Verdict::Local(reason) => Outcome::Local(reason),
                Verdict::Skewed { by_ns } => self.blame(by_ns).await,
            }
        }
        .boxed()
    }
}
