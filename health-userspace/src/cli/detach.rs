//! `sluice detach`.

use super::{Context, Exit, Failure, conclude};
use crate::{
    control::{Answer, Ask},
    report::DetachOutcome,
};
use std::time::{Duration, Instant};

/// Time between two looks at the redirected flows.
const DRAIN_EVERY: Duration = Duration::from_secs(1);

/// Remove programs and pins, and end the daemon if there is one.
///
/// Exit codes: 0 removed, 3 redirected flows live: they would break, so nothing was removed.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Detach {
    /// Steer nothing new, and wait this long for redirected flows to end.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "force")]
    drain: Option<Duration>,
    /// Cut redirected flows.
    #[arg(long)]
    force: bool,
}

impl Detach {
    /// The daemon does it where there is one; otherwise it is done here.
    ///
    /// # Errors
    ///
    /// Redirected flows live, or the kernel refuses.
    pub fn run(self, context: &mut Context<'_>) -> Result<Exit, Failure> {
        let drain_ms = self.drain.map(|drain| u64::try_from(drain.as_millis()).unwrap_or(u64::MAX));
        match context.daemon().and_then(|mut daemon| daemon.ask(Ask::Detach { drain_ms, force: self.force })) {
            Ok(Answer::Outcome { outcome }) => conclude(context, &outcome),
            Ok(_) => Err(Failure::new(Exit::Failed, "the daemon answered something else than an outcome")),
            // One that listens and is silent still holds the programs, and would attach them again.
            Err(error @ crate::control::ClientError::NotReachable { .. }) => {
                tracing::debug!(%error, "detaching without a daemon");
                self.alone(context)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn alone(self, context: &mut Context<'_>) -> Result<Exit, Failure> {
        let pin_dir = context.settings.pin_dir.clone();
        let deadline = self.drain.map(|drain| Instant::now() + drain);
        if deadline.is_some() {
            context.outside.stop_steering(&pin_dir)?;
        }
        loop {
            match context.outside.detach(&pin_dir, self.force)? {
                DetachOutcome::Removed { programs, maps, flows_cut } => {
                    let cut = if flows_cut > 0 { format!(", {flows_cut} redirected flows cut") } else { String::new() };
                    writeln!(context.out, "removed {programs} programs and {maps} maps{cut}")?;
                    return Ok(Exit::Done);
                }
                DetachOutcome::Nothing => {
                    writeln!(context.out, "nothing is pinned under {}", pin_dir.display())?;
                    return Ok(Exit::Done);
                }
                DetachOutcome::FlowsLive { flows } => match deadline {
                    Some(deadline) if Instant::now() < deadline => {
                        std::thread::sleep(DRAIN_EVERY.min(deadline.saturating_duration_since(Instant::now())));
                    }
                    Some(_) => {
                        let message = format!(
                            "{flows} redirected flows still live, so nothing was removed; nothing new is steered. \
                             Wait longer with --drain, cut them with --force, or go on with `sluice run`"
                        );
                        return Err(Failure::new(Exit::Refused, message));
                    }
                    None => {
                        let message = format!(
                            "{flows} redirected flows live and would break; wait for them with --drain 10m, or cut \
                             them with --force"
                        );
                        return Err(Failure::new(Exit::Refused, message));
                    }
                },
            }
        }
    }
}
