//! `sluice probe`.

use super::{Context, Exit, Failure, render::probe::render};
use crate::probe::Selection;

/// Run every check once, now, from here, and show each step with its time.
///
/// Asks the origins itself, daemon or not, with the sockets that the daemon would use (so it is neither steered nor counted),
/// and changes nothing. Checks for the way back only (`verify`) run too. Exit codes: 0 all passed, 1 something failed or could
/// not be run, 77 no permission, 78 bad configuration.
#[derive(Clone, Debug, clap::Args)]
pub struct Probe {
    /// SERVICE or SERVICE/ORIGIN; default: all.
    of: Option<String>,
    /// Only the check of this name; what it needs is not asked.
    #[arg(long, value_name = "NAME")]
    check: Option<String>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

impl Probe {
    /// Asks, and prints.
    ///
    /// # Errors
    ///
    /// The configuration is bad, sockets can't be marked, or there is no such service, origin or check.
    pub fn run(self, context: &mut Context<'_>) -> Result<Exit, Failure> {
        let (service, origin) = match self
            .of
            .as_deref()
            .map(|of| of.split_once('/').map_or((of, None), |(service, origin)| (service, Some(origin))))
        {
            None => (None, None),
            Some((service, origin)) => (Some(service.to_owned()), origin.map(str::to_owned)),
        };
        let selection = Selection { service, origin, check: self.check.clone() };
        let report = context.outside.probe(&context.settings.config, &selection)?;
        if report.unplaced.is_empty() && report.origins.iter().all(|origin| origin.checks.is_empty()) {
            let of = self.of.unwrap_or_else(|| "this configuration".to_owned());
            let check = self.check.map(|check| format!(" named `{check}`")).unwrap_or_default();
            let message = format!("`{of}` has no check{check}: see `sluice check`");
            return Err(Failure::new(Exit::Failed, message));
        }
        if self.json {
            context.json(&report)?;
        } else {
            let text = render(&report, &context.look);
            write!(context.out, "{text}")?;
        }
        Ok(if report.ok { Exit::Done } else { Exit::Failed })
    }
}
