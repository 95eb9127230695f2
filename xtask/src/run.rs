//! `cargo xtask run`: the main job on real connections, or the daemon on a real configuration.
//!
//! [`plan`] says which episodes there are, [`stage`] plays them, each in a [`scene`] of the lab, [`figures`] judges what was recorded (pure),
//! and [`view`] shows it.

mod figures;
mod plan;
mod scene;
mod stage;
mod view;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use lab::{LabConfig, require_root, stop};

use crate::build::{self, target_dir};
use crate::setup;
use figures::Document;
use plan::{Choice, EpisodeName, Extent, FamilyName, MethodName, Route};
use stage::Stage;
use view::View;

/// As a shell reports an end by SIGINT.
const INTERRUPTED: u8 = 130;

/// Run the main job in a lab of network namespaces, or (`run -- -c FILE`) the daemon on a real configuration.
///
/// Exit status: 0 when every figure was met, 1 when not, 130 after Ctrl-C.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct Run {
    /// Refused, blackhole and hang once, for the path `local`, IPv4 and GET.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Every combination, which takes about an hour.
    #[arg(long)]
    full: bool,
    /// Print one JSON document on standard output.
    #[arg(long)]
    json: bool,
    /// Only these ways of the traffic.
    #[arg(long, value_enum, value_delimiter = ',')]
    path: Vec<Route>,
    /// Only these address families.
    #[arg(long, value_enum, value_delimiter = ',')]
    family: Vec<FamilyName>,
    /// Only these requests.
    #[arg(long, value_enum, value_delimiter = ',')]
    method: Vec<MethodName>,
    /// Only these faults.
    #[arg(long, value_enum, value_delimiter = ',')]
    episode: Vec<EpisodeName>,
    /// Without Sluice: what users see today. Nothing is judged, but that the fault was felt.
    #[arg(long)]
    baseline: bool,
    /// Arguments for `sluice run`: no lab, the daemon itself.
    #[arg(last = true, value_name = "SLUICE ARGUMENTS")]
    daemon: Vec<OsString>,
}

impl Run {
    /// Sets up, builds, runs. `root` is the workspace's directory.
    pub(crate) fn run(&self, root: &Path) -> Result<ExitCode> {
        setup::ensure_all(root)?;
        build::build(root, true)?;
        if !self.daemon.is_empty() {
            return self.become_daemon(root);
        }
        require_root()?;
        stop::catch_signals();
        let choice = Choice {
            extent: if self.quick {
                Extent::Quick
            } else if self.full {
                Extent::Full
            } else {
                Extent::Usual
            },
            routes: &self.path,
            families: &self.family,
            methods: &self.method,
            episodes: &self.episode,
        };
        let groups = choice.groups();
        let limit = choice.limit();
        let mut stage = Stage::new(View::new(), &groups, (!self.baseline).then(|| binary(root)), limit);
        stage.say(&LabConfig::differences());
        for group in &groups {
            // One broken group says nothing about the others, but nothing goes on after Ctrl-C.
            if let Err(error) = stage.play(group) {
                stage.fail(format!("{group}: {error:#}"));
            }
            if stop::requested() {
                break;
            }
        }
        let document = stage.finish();
        view::table(&document)?;
        if self.json {
            print(&document)?;
        }
        Ok(match (stop::requested(), document.ok || self.baseline) {
            (true, _) => ExitCode::from(INTERRUPTED),
            (false, true) => ExitCode::SUCCESS,
            (false, false) => ExitCode::FAILURE,
        })
    }

    /// Replaces this process, so that signals and the exit code are the daemon's own.
    fn become_daemon(&self, root: &Path) -> Result<ExitCode> {
        let binary = binary(root);
        let error = Command::new(&binary).arg("run").args(&self.daemon).exec();
        Err(error).with_context(|| format!("cannot start {}", binary.display()))
    }
}

/// `SLUICE_BIN`, or the release build.
fn binary(root: &Path) -> PathBuf {
    std::env::var_os("SLUICE_BIN").map_or_else(|| target_dir(root).join("release/sluice"), PathBuf::from)
}

fn print(document: &Document) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, document)?;
    writeln!(out)?;
    Ok(())
}
