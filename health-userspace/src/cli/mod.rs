//! The command line, one file per subcommand.
//!
//! A command is a struct of arguments with a `run` that gets a [`Context`]; what it needs from outside is behind
//! [`Outside`], and what it prints is made by [`render`].

pub mod check;
pub mod detach;
pub mod direct;
pub mod events;
pub mod exit;
pub mod failback;
pub mod flows;
pub mod maps;
pub mod origin;
pub mod outside;
pub mod pkcs11;
pub mod privilege;
pub mod probe;
pub mod reload;
pub mod render;
pub mod run;
pub mod shell;
pub mod status;

pub use exit::{Exit, Failure};
pub use outside::{Context, Outside};
pub use run::RunOptions;

use crate::control::{Answer, Ask, Outcome, OutcomeCode};
use clap::{Parser, Subcommand};
use outside::{CONFIG_DEFAULT, Look, Settings};
use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    path::PathBuf,
};

/// Watches origins in the kernel, rescues connections that fail, and sends new ones where they can be served.
///
/// Exit codes: 0 done, 1 failed, 2 usage, 3 refused by policy, 4 daemon not reachable (answer taken from the maps), 77 no
/// permission, 78 bad configuration.
#[derive(Clone, Debug, Parser)]
#[command(name = "sluice", version)]
pub struct Cli {
    /// Configuration file; commands look there for the socket and the pins.
    #[arg(short, long, global = true, value_name = "FILE", default_value = CONFIG_DEFAULT)]
    config: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Check(check::Check),
    Status(status::Status),
    Maps(maps::Maps),
    Flows(flows::Flows),
    Events(events::Events),
    #[command(subcommand)]
    Origin(origin::Origin),
    Probe(probe::Probe),
    Failback(failback::Failback),
    Direct(direct::Direct),
    #[command(subcommand)]
    Pkcs11(pkcs11::Pkcs11),
    Reload(reload::Reload),
    Detach(detach::Detach),
}

/// Parses the command line and runs the command on the terminal. clap ends the process itself for `--help` and for
/// wrong usage, the latter with code 2.
pub fn main(outside: &dyn Outside) -> Exit {
    let cli = Cli::parse();
    if let Command::Pkcs11(pkcs11::Pkcs11::Worker { .. }) = cli.command {
        // It gets everything from the daemon, and reads no configuration.
        crate::probe::pkcs11::worker::run()
    }
    let stdout = io::stdout();
    let wants_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let look = Look { colour: stdout.is_terminal() && wants_colour, zone: jiff::tz::TimeZone::system() };
    dispatch(cli, outside, look, &mut stdout.lock(), &mut io::stderr())
}

/// Runs a command line given as words; for tests.
///
/// # Errors
///
/// It is wrong usage.
pub fn run_words<W: Into<OsString> + Clone>(
    words: impl IntoIterator<Item = W>,
    outside: &dyn Outside,
    look: Look,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<Exit, clap::Error> {
    Ok(dispatch(Cli::try_parse_from(words)?, outside, look, out, notes))
}

fn dispatch(cli: Cli, outside: &dyn Outside, look: Look, out: &mut dyn Write, notes: &mut dyn Write) -> Exit {
    // These read the whole file themselves, and are stricter.
    let lenient = !matches!(cli.command, Command::Run(_) | Command::Check(_) | Command::Probe(_));
    let (settings, note) = Settings::find(&cli.config);
    if let (true, Some(note)) = (lenient, note) {
        say(notes, &note);
    }
    let mut context = Context { outside, out, notes, look, settings };
    let ended = match cli.command {
        Command::Run(run) => run.run(&context),
        Command::Check(check) => check.run(&mut context),
        Command::Status(status) => status.run(&mut context),
        Command::Maps(maps) => maps.run(&mut context),
        Command::Flows(flows) => flows.run(&mut context),
        Command::Events(events) => events.run(&mut context),
        Command::Origin(origin) => origin.run(&mut context),
        Command::Probe(probe) => probe.run(&mut context),
        Command::Failback(failback) => failback.run(&mut context),
        Command::Direct(direct) => direct.run(&context),
        Command::Pkcs11(pkcs11) => pkcs11.run(&mut context),
        Command::Reload(reload) => reload.run(&mut context),
        Command::Detach(detach) => detach.run(&mut context),
    };
    let flushed = context.out.flush().map_err(Failure::from);
    match ended.and_then(|exit| flushed.map(|()| exit)) {
        Ok(exit) => exit,
        Err(failure) => {
            if !failure.message.is_empty() {
                say(context.notes, &failure.message);
            }
            failure.exit
        }
    }
}

/// A line on standard error. When that is gone too, the exit code still tells.
fn say(notes: &mut dyn Write, message: &str) {
    drop(writeln!(notes, "sluice: {}", message.trim_end()));
}

/// Asks the daemon for something that only it can do, and prints what came of it.
///
/// # Errors
///
/// No daemon, or it could not or would not.
fn order(context: &mut Context<'_>, ask: Ask) -> Result<Exit, Failure> {
    let answer = context.daemon().and_then(|mut daemon| daemon.ask(ask))?;
    let Answer::Outcome { outcome } = answer else {
        return Err(Failure::new(Exit::Failed, "the daemon answered something else; restart it after an upgrade"));
    };
    conclude(context, &outcome)
}

fn conclude(context: &mut Context<'_>, outcome: &Outcome) -> Result<Exit, Failure> {
    let exit = match outcome.code {
        OutcomeCode::Done => Exit::Done,
        OutcomeCode::Failed => Exit::Failed,
        OutcomeCode::Refused => Exit::Refused,
        OutcomeCode::BadConfig => Exit::BadConfig,
    };
    if exit != Exit::Done {
        return Err(Failure::new(exit, outcome.message.clone()));
    }
    writeln!(context.out, "{}", outcome.message.trim_end())?;
    Ok(exit)
}

#[cfg(test)]
mod tests;
