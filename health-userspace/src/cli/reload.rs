//! `sluice reload`.

use super::{Context, Exit, Failure, order};
use crate::control::Ask;

/// Apply the configuration file anew; what is unchanged keeps its evidence.
///
/// Exit codes: 0 applied, 4 no daemon answers, 78 the file is bad and what ran before goes on.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Reload {
    /// Only say what would change.
    #[arg(long)]
    dry_run: bool,
}

impl Reload {
    /// Hands it to the daemon, which reads the file that it was started with.
    ///
    /// # Errors
    ///
    /// No daemon answers, or the file is bad.
    pub fn run(self, context: &mut Context<'_>) -> Result<Exit, Failure> {
        order(context, Ask::Reload { dry_run: self.dry_run })
    }
}
