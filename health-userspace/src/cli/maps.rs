//! `sluice maps`.

use super::{
    Context, Exit, Failure,
    render::{maps as text, status::Gone},
};
use crate::control::{Answer, Ask, ClientError};

/// Show the pinned BPF maps and their entries, decoded. Works with the daemon down; needs CAP_BPF.
///
/// Exit codes: 0 shown, 4 shown and no daemon answers, 77 the maps may not be read.
#[derive(Clone, Debug, clap::Args)]
pub struct Maps {
    /// Only this map's entries, such as frontends or origins.
    name: Option<String>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

impl Maps {
    /// Reads the maps, and asks the daemon only whether it is there.
    ///
    /// # Errors
    ///
    /// Nothing is pinned, or it may not be read.
    pub fn run(self, context: &mut Context<'_>) -> Result<Exit, Failure> {
        let (pid, error) = presence(context);
        let exit = if error.is_some() { Exit::Unreachable } else { Exit::Done };
        let pin_dir = context.settings.pin_dir.clone();
        let read = context.outside.maps(&pin_dir);
        let mut report = read.map_err(|failure| match &error {
            Some(error) => failure.after(error),
            None => failure,
        })?;
        report.daemon_pid = pid;
        let gone = error.map(|_| Gone { for_ms: report.daemon_gone_ms, pid: report.last_daemon_pid });
        match (self.name.as_deref(), self.json) {
            (None, true) => context.json(&report)?,
            (Some("frontends"), true) => context.json(&report.frontends)?,
            (Some("origins"), true) => context.json(&report.origins)?,
            (None, false) => {
                let shown = text::overview(&report, context.outside.abi(), gone, &context.look);
                write!(context.out, "{shown}")?;
            }
            (Some("frontends"), false) => write!(context.out, "{}", text::frontends(&report))?,
            (Some("origins"), false) => write!(context.out, "{}", text::origins(&report))?,
            (Some(name), json) => {
                if !report.maps.iter().any(|map| map.name == name) {
                    let names: Vec<&str> = report.maps.iter().map(|map| map.name.as_str()).collect();
                    let message = format!("there is no map `{name}`; there are: {}", names.join(", "));
                    return Err(Failure::new(Exit::Failed, message));
                }
                let entries = context.outside.entries(&pin_dir, name)?;
                if json {
                    context.json(&entries)?;
                } else {
                    write!(context.out, "{}", text::entries(&entries))?;
                }
            }
        }
        Ok(exit)
    }
}

/// The daemon's pid, as far as it tells; or why none answers, which makes the exit code of a reading command
/// [`Exit::Unreachable`].
pub(super) fn presence(context: &Context<'_>) -> (Option<u32>, Option<ClientError>) {
    match context.daemon().and_then(|mut daemon| daemon.ask(Ask::Ping)) {
        Ok(Answer::Pong { pid, .. }) => (Some(pid), None),
        // There is one, even if it won't talk to this caller.
        Ok(_) => (None, None),
        Err(error) if error.is_reachable() => (None, None),
        Err(error) => (None, Some(error)),
    }
}
