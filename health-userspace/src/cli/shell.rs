//! The world as it is: the kernel, the daemon's socket, the configuration, the clock.

use super::{
    exit::{Exit, Failure},
    outside::{Checked, Daemon, Finding, Outside},
    privilege,
    run::RunOptions,
};
use crate::{
    config::{self, ConfigErrors, Diagnostic},
    control::{Client, ClientError},
    daemon,
    datapath::{self, DatapathError},
    probe::{self, Selection},
    report::{DetachOutcome, FlowsReport, MapEntry, MapsReport, OriginName, ProbeReport},
};
use jiff::Timestamp;
use std::path::Path;

/// The only implementation of [`Outside`] beside the tests' own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shell;

impl Outside for Shell {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn abi(&self) -> u32 {
        health_common::ABI_VERSION
    }

    fn capabilities_missing(&self) -> Vec<&'static str> {
        privilege::missing()
    }

    fn daemon(&self, socket: &Path) -> Result<Box<dyn Daemon>, ClientError> {
        Ok(Box::new(Client::connect(socket)?))
    }

    fn maps(&self, pin_dir: &Path) -> Result<MapsReport, Failure> {
        datapath::report::maps_report(pin_dir).map_err(failure)
    }

    fn entries(&self, pin_dir: &Path, map: &str) -> Result<Vec<MapEntry>, Failure> {
        datapath::report::map_entries(pin_dir, map).map_err(failure)
    }

    fn origin_names(&self, pin_dir: &Path) -> Result<Vec<OriginName>, Failure> {
        datapath::flows::origin_names(pin_dir).map_err(failure)
    }

    fn flows(&self, pin_dir: &Path, of: Option<&[u16]>, limit: usize) -> Result<FlowsReport, Failure> {
        datapath::flows::flows_report(pin_dir, of, limit).map_err(failure)
    }

    fn detach(&self, pin_dir: &Path, force: bool) -> Result<DetachOutcome, Failure> {
        match datapath::detach(pin_dir, force) {
            // Removing what isn't there has been done.
            Err(DatapathError::NotLoaded { .. }) => Ok(DetachOutcome::Nothing),
            outcome => outcome.map_err(failure),
        }
    }

    fn stop_steering(&self, pin_dir: &Path) -> Result<(), Failure> {
        datapath::stop_steering(pin_dir).map_err(failure)
    }

    fn check(&self, file: &Path) -> Result<Checked, Vec<Finding>> {
        let findings = |list: Vec<Diagnostic>| list.into_iter().map(finding).collect();
        match config::load(file) {
            Ok(loaded) => Ok(Checked { resolved: loaded.config.resolved(), warnings: findings(loaded.warnings) }),
            Err(errors) => Err(findings(errors.errors)),
        }
    }

    fn probe(&self, file: &Path, selection: &Selection) -> Result<ProbeReport, Failure> {
        let loaded = config::load(file).map_err(failure)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::of)?;
        let asked = runtime.block_on(async {
            let (found, took) = probe::look_up_timed(&loaded.config).await;
            let (config, unplaced) = loaded.config.placed(&found, None);
            (probe::once(&config, &took, selection).await, unplaced)
        });
        let (probed, unplaced) = (asked.0.map_err(failure)?, asked.1);
        Ok(ProbeReport::new(&probed, unplaced.iter().map(ToString::to_string).collect()))
    }

    fn run(&self, options: RunOptions) -> Result<(), Failure> {
        daemon::run(options).map_err(failure)
    }
}

fn finding(found: Diagnostic) -> Finding {
    let text = found.to_string();
    let Diagnostic { file, line, column, message, fix, .. } = found;
    Finding { file, line, column, message, fix, text }
}

/// The code of an error is that of the first cause that has one of its own.
fn failure(error: impl Into<anyhow::Error>) -> Failure {
    let error = error.into();
    for cause in error.chain() {
        if cause.is::<ConfigErrors>() {
            return Failure::new(Exit::BadConfig, format!("{error:#}"));
        }
        if matches!(cause.downcast_ref(), Some(DatapathError::Permission)) {
            return Failure::new(Exit::NoPermission, format!("{error:#}"));
        }
    }
    Failure::of(error)
}
