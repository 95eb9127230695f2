//! Effects: what a step asks for is done here, and what became of it goes back into the next tick.

pub mod ending;
pub mod reset;

use health_core::{Timestamp, engine::Step};

use crate::{
    datapath::{Applied, Datapath},
    probe::Scheduler,
};

/// Carries a step out. Failed writes are not repeated here: the plan is the whole wish, so the next tick repeats them.
pub fn carry_out(step: &Step, datapath: &mut Datapath, checks: &mut Scheduler, now: Timestamp) -> Applied {
    // Steering first: who asks for the status afterwards sees what already holds.
    let applied = datapath.apply(&step.plan, now);
    step.paces.iter().for_each(|&(origin, pace)| checks.pace(origin, pace));
    step.suspects.iter().for_each(|&origin| checks.hurry(origin));
    applied
}
