//! `sluice status`.

use super::{
    Context, Exit, Failure,
    render::{
        status::{Gone, render, weigh},
        words::Weight,
    },
};
use crate::{
    control::{Answer, Ask},
    report::StatusReport,
};
use std::time::Duration;

/// Time between two looks of `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Show states, shares and reasons, worst first, as read back from the maps.
///
/// Exit codes: 0 shown, 4 no daemon answers and the maps were read instead, 1 with --exit-code if not all is well.
#[derive(Clone, Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "independent switches of a command line")]
pub struct Status {
    /// Only this service.
    service: Option<String>,
    /// Show it again every second, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// Exit with 1 unless every service shown is healthy on tier 0.
    #[arg(long)]
    exit_code: bool,
    /// Show healthy services too, however many.
    #[arg(long)]
    all: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

impl Status {
    /// Asks the daemon, or reads the maps.
    ///
    /// # Errors
    ///
    /// Neither can be asked, or there is no such service.
    pub fn run(self, context: &mut Context<'_>) -> Result<Exit, Failure> {
        loop {
            let (mut report, gone) = gather(context)?;
            self.narrow(&mut report)?;
            if self.json {
                context.json(&report)?;
            } else {
                let text = render(&report, gone, self.all || self.service.is_some(), &context.look);
                // Only a terminal has a screen to clear; a pipe gets one answer after the other.
                let clear = if self.watch && context.look.colour { "\u{1b}[H\u{1b}[2J" } else { "" };
                write!(context.out, "{clear}{text}")?;
            }
            context.out.flush()?;
            if !self.watch {
                return Ok(self.verdict(&report, gone));
            }
            std::thread::sleep(WATCH_EVERY);
        }
    }

    fn narrow(&self, report: &mut StatusReport) -> Result<(), Failure> {
        let Some(wanted) = &self.service else { return Ok(()) };
        if !report.services.iter().any(|service| service.name == *wanted) {
            let names: Vec<&str> = report.services.iter().map(|service| service.name.as_str()).collect();
            let message = format!("there is no service `{wanted}`; there are: {}", names.join(", "));
            return Err(Failure::new(Exit::Failed, message));
        }
        report.services.retain(|service| service.name == *wanted);
        Ok(())
    }

    fn verdict(&self, report: &StatusReport, gone: Option<Gone>) -> Exit {
        if gone.is_some() {
            return Exit::Unreachable;
        }
        let well = report.in_sync != Some(false)
            && report.hooks.iter().all(|hook| hook.attached)
            && report.services.iter().all(|service| weigh(service) == Weight::Calm);
        if self.exit_code && !well { Exit::Failed } else { Exit::Done }
    }
}

fn gather(context: &Context<'_>) -> Result<(StatusReport, Option<Gone>), Failure> {
    let answer = context.daemon().and_then(|mut daemon| daemon.ask(Ask::Status));
    let error = match answer {
        Ok(Answer::Status { status }) => return Ok((*status, None)),
        Ok(_) => return Err(Failure::new(Exit::Failed, "the daemon answered something else than its status")),
        Err(error) if error.is_reachable() => return Err(error.into()),
        Err(error) => error,
    };
    let maps = context.outside.maps(&context.settings.pin_dir);
    let maps = maps.map_err(|failure| failure.after(&error))?;
    let gone = Gone { for_ms: maps.daemon_gone_ms, pid: maps.last_daemon_pid };
    Ok((StatusReport::from_maps(&maps, context.outside.now()), Some(gone)))
}
