//! `service.policy.preset`: ordinary keys under one name, between `[defaults.policy]` and the service's own.

use super::read::Section;
use health_core::{
    Span,
    policy::{Approval, Moves, Policy},
};

/// Silence that an HSM pool sits out: a fibre that flaps for half a second must not move a million transactions.
const HSM_SILENCE: Span = Span::from_millis(700);

/// How long the one stage of the way back is held.
const HSM_STAGE: Span = Span::from_secs(30);

#[derive(Clone, Copy)]
enum Preset {
    Stateless,
    Exclusive,
    Hsm,
}

const PRESETS: &[(&str, Preset)] =
    &[("stateless", Preset::Stateless), ("exclusive", Preset::Exclusive), ("hsm", Preset::Hsm)];

/// What a service begins with: `defaults`, and the preset that it names over them.
pub(super) fn base(policy: &Section<'_>, defaults: &Policy) -> Policy {
    let mut base = defaults.clone();
    match policy.choice("preset", PRESETS) {
        None | Some(Preset::Stateless) => {}
        Some(Preset::Exclusive) => {
            // One RST must not send a write to the replica: only the judgement moves, and all of it.
            base.rescue = false;
            base.trip.kernel = false;
            base.moves = Moves::Service;
            base.failback.stages = vec![100];
            base.failback.approval = Approval::FirstStage;
        }
        Some(Preset::Hsm) => {
            // What no HSM can sign is refused, and not tried at one that is known to fail.
            base.panic_percent = 0;
            base.fall = 2;
            // A session belongs to the HSM that opened it.
            base.rescue = false;
            base.trip.silence_min = HSM_SILENCE;
            // All sessions come back at once or not at all.
            base.failback.observe_for = Span::ZERO;
            base.failback.stages = vec![100];
            base.failback.stage_for = HSM_STAGE;
        }
    }
    base
}

/// A preset is a service's, not everybody's: it would stand below the keys beside it, and above them in the next service.
pub(super) fn refuse(defaults: &Section<'_>) {
    if defaults.get("preset").is_some() {
        defaults.error("preset", "a preset belongs to a service", "write it in [service.policy]");
    }
}
