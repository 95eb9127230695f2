//! `sluice failback`.

use super::{Context, Exit, Failure, order};
use crate::control::{Ask, FailbackKind};

/// Let the origins of a service that are on their way back go on, stay, or go back.
///
/// Exit codes: 0 taken, 1 no such service, 3 nothing of it is on its way back, 4 no daemon answers.
#[derive(Clone, Debug, clap::Args)]
pub struct Failback {
    /// Which service.
    service: String,
    /// What is to become of the way back.
    #[arg(value_enum)]
    what: What,
    /// Why; shown wherever the order is.
    #[arg(long, default_value = "")]
    reason: String,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum What {
    /// The next stage may begin; with `approve = "first_stage"` all that follow.
    Approve,
    /// No further stage begins until it is approved; what an origin has it keeps.
    Hold,
    /// In fault again: nothing new goes there, and the hold-down is longer.
    Abort,
}

impl Failback {
    /// Hands the order to the daemon.
    ///
    /// # Errors
    ///
    /// No daemon answers, there is no such service, or nothing of it is on its way back.
    pub fn run(self, context: &mut Context<'_>) -> Result<Exit, Failure> {
        let what = match self.what {
            What::Approve => FailbackKind::Approve,
            What::Hold => FailbackKind::Hold,
            What::Abort => FailbackKind::Abort,
        };
        order(context, Ask::Failback { service: self.service, what, reason: self.reason })
    }
}
