//! The way back: hold-down, a clean time, stages.

use super::{Cause, Decision, Lifecycle, Phase, Serving};
use crate::{
    engine::Waits,
    policy::{Approval, Policy},
    time::{Span, Timestamp},
};

/// Where on its way back an origin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It waits out its hold-down.
    Hold {
        /// Its end.
        until: Timestamp,
    },
    /// It stays clean for a while, still without flows.
    Observe {
        /// The end of that.
        until: Timestamp,
    },
    /// It waits for an approval or for the window of the day, and keeps what it has.
    Asks {
        /// The stage to come, from 0.
        stage: u8,
        /// The part of its weight that it has. Unit: percent.
        percent: u8,
        /// Since when it waits.
        since: Timestamp,
    },
    /// It has a part of its weight.
    Stage {
        /// Which stage, from 0.
        stage: u8,
        /// The part. Unit: percent.
        percent: u8,
        /// The end of the stage.
        until: Timestamp,
    },
}

/// What lets a way back go on besides the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// What bars the next stage.
    pub bars: Option<Waits>,
    /// The service has no other origin, so that nobody has the flows that it waits for.
    pub alone: bool,
    /// Each `verify` check has passed in this stage.
    pub verified: bool,
}

impl Gate {
    /// Nothing is in the way.
    pub const OPEN: Self = Self { bars: None, alone: false, verified: true };

    fn lets(self, stage: u8, approval: Approval) -> bool {
        match (self.bars, approval) {
            (None, _) | (Some(Waits::Approval), Approval::Auto) => true,
            (Some(Waits::Approval), Approval::FirstStage) => stage > 0,
            (Some(Waits::Approval), Approval::EachStage) | (Some(Waits::Hold | Waits::Window), _) => false,
        }
    }
}

impl Phase {
    /// The part of its weight that an origin on its way back has. Unit: percent.
    #[must_use]
    pub const fn part(self) -> u8 {
        match self {
            Self::Recovering { way: Way::Asks { percent, .. } | Way::Stage { percent, .. }, .. } => percent,
            Self::Recovering { way: Way::Hold { .. } | Way::Observe { .. }, .. }
            | Self::Unknown
            | Self::Healthy
            | Self::Degraded
            | Self::HighRisk
            | Self::Fault { .. }
            | Self::Maintenance { .. }
            | Self::Failed { .. } => 0,
        }
    }

    /// The stage of its way back, from 0.
    #[must_use]
    pub const fn stage(self) -> Option<u8> {
        match self {
            Self::Recovering { way: Way::Stage { stage, .. }, .. } => Some(stage),
            Self::Recovering { .. }
            | Self::Unknown
            | Self::Healthy
            | Self::Degraded
            | Self::HighRisk
            | Self::Fault { .. }
            | Self::Maintenance { .. }
            | Self::Failed { .. } => None,
        }
    }
}

impl Lifecycle {
    /// As far on its way back as time, proof and `gate` let it go.
    pub(super) fn come_back(
        self,
        (cause, mut way): (Cause, Way),
        (serving, mut gate): (Serving, Gate),
        now: Timestamp,
        policy: &Policy,
    ) -> (Self, Option<Decision>) {
        let failback = &policy.failback;
        loop {
            way = match way {
                Way::Hold { until } if now >= until => Way::Observe { until: now.after(failback.observe_for) },
                Way::Observe { .. } | Way::Asks { .. } | Way::Stage { .. } if gate.alone => {
                    return self.moved(serving.phase(), "hold_down_over", now);
                }
                Way::Observe { until } if now >= until => Way::Asks { stage: 0, percent: 0, since: now },
                Way::Asks { stage, .. } if gate.lets(stage, failback.approval) => {
                    // One approval, one stage, where each needs its own.
                    if failback.approval == Approval::EachStage {
                        gate.bars = Some(Waits::Approval);
                    }
                    let percent = failback.stages.get(usize::from(stage)).copied().unwrap_or(100);
                    Way::Stage { stage, percent, until: now.after(failback.stage_for) }
                }
                // What serves worse than it should proves nothing: the stage begins again.
                Way::Stage { stage, percent, .. } if serving != Serving::Healthy && failback.stage_for > Span::ZERO => {
                    let until = now.after(failback.stage_for);
                    return self.moved(Phase::Recovering { cause, way: Way::Stage { stage, percent, until } }, "", now);
                }
                Way::Stage { stage, percent, until } if now >= until && gate.verified => {
                    let next = stage.saturating_add(1);
                    if usize::from(next) >= failback.stages.len() {
                        let at_once = failback.observe_for == Span::ZERO && failback.stage_for == Span::ZERO;
                        let rule = if at_once { "hold_down_over" } else { "stages_over" };
                        return self.moved(serving.phase(), rule, now);
                    }
                    Way::Asks { stage: next, percent, since: now }
                }
                Way::Hold { .. } | Way::Observe { .. } | Way::Asks { .. } | Way::Stage { .. } => {
                    return self.moved(Phase::Recovering { cause, way }, "", now);
                }
            };
        }
    }
}
