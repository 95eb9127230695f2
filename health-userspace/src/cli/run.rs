//! `sluice run`.

use super::{Context, Exit, Failure};
use crate::telemetry::LogFormat;
use std::path::PathBuf;

/// Run the daemon in the foreground.
///
/// It keeps what a former one has pinned, and leaves the datapath running when it ends. SIGHUP reloads.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Run {
    /// How log lines look. What is logged: environment variable SLUICE_LOG, such as info,sluice::datapath=debug.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

/// What the daemon is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// The configuration file; read at the start and at each reload.
    pub config: PathBuf,
    /// How log lines look; [`crate::telemetry::logs::init`] takes it.
    pub log_format: LogFormat,
}

impl Run {
    /// Checks configuration, then permission, then runs.
    ///
    /// # Errors
    ///
    /// A bad configuration, missing capabilities, or whatever ends the daemon.
    pub fn run(self, context: &Context<'_>) -> Result<Exit, Failure> {
        let config = context.settings.config.clone();
        // First, because it needs no privilege to be told that a file is wrong.
        if let Err(errors) = context.outside.check(&config) {
            return Err(Failure::new(Exit::BadConfig, super::check::all(&errors)));
        }
        let missing = context.outside.capabilities_missing();
        if !missing.is_empty() {
            return Err(Failure::lacks(&missing));
        }
        context.outside.run(RunOptions { config, log_format: self.log_format })?;
        Ok(Exit::Done)
    }
}
