//! The `sluice` binary under test: the daemon in the node namespace, and its commands beside it.

use std::env;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::clock::{WallClock, wait_until};
use crate::config::LabConfig;
use crate::control;
use crate::http::http_get;
use crate::ns::Namespace;
use crate::process::{Finished, Process, run_command, spawn};
use crate::reading::{Event, MapsView, MetricsText, Status};
use crate::sweep::pin_dir_name;
use crate::topology::Lab;

/// `control.listen` on the node's loopback, which no other lab shares.
pub(crate) const CONTROL_PORT: u16 = 9911;

/// Loading programs and preallocating maps takes time on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(20);
/// A clean stop saves state and leaves.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// For commands that only ask.
const COMMAND_LIMIT: Duration = Duration::from_secs(20);
const SCRAPE_LIMIT: Duration = Duration::from_secs(2);

/// A daemon with its own configuration, pins, state and socket. On drop it is stopped and its pins are removed.
#[derive(Debug)]
pub struct Daemon {
    binary: PathBuf,
    node: Arc<Namespace>,
    config: PathBuf,
    pin_dir: PathBuf,
    state_dir: PathBuf,
    socket: PathBuf,
    log: PathBuf,
    process: Option<Process>,
    environment: Vec<(&'static str, &'static str)>,
}

/// `SLUICE_BIN`, or the newest of the workspace's release and debug builds.
///
/// # Errors
///
/// When there is none.
pub fn sluice_binary() -> Result<PathBuf> {
    if let Some(path) = env::var_os("SLUICE_BIN") {
        return Ok(path.into());
    }
    let target = env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target"), PathBuf::from);
    ["release", "debug"]
        .iter()
        .map(|profile| target.join(profile).join("sluice"))
        .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
        .max()
        .map(|(_, path)| path)
        .with_context(|| format!("no `sluice` below {}: build it first (`cargo xtask build`)", target.display()))
}

impl Daemon {
    /// Prepares a daemon for `lab`, with `config` written but nothing started.
    ///
    /// # Errors
    ///
    /// When there is no binary, or files cannot be written.
    pub fn prepare(lab: &Lab, config: &LabConfig) -> Result<Self> {
        Self::with_binary(lab, config, sluice_binary()?)
    }

    /// [`Self::prepare`] with a certain binary.
    ///
    /// # Errors
    ///
    /// When files cannot be written.
    pub fn with_binary(lab: &Lab, config: &LabConfig, binary: PathBuf) -> Result<Self> {
        let dir = lab.dir().join("sluice");
        fs::create_dir_all(&dir)?;
        let daemon = Self {
            binary,
            node: Arc::clone(&lab.node),
            config: dir.join("sluice.toml"),
            pin_dir: pin_dir_name(lab.unique()),
            state_dir: dir.join("state"),
            socket: dir.join("control.sock"),
            log: dir.join("log"),
            process: None,
            environment: Vec::new(),
        };
        daemon.write_config(&daemon.config_text(config))?;
        Ok(daemon)
    }

    /// Prepares a daemon, starts it and waits until it answers.
    ///
    /// # Errors
    ///
    /// As [`Self::prepare`] and [`Self::start`].
    pub fn start_in(lab: &Lab, config: &LabConfig) -> Result<Self> {
        let mut daemon = Self::prepare(lab, config)?;
        daemon.start()?;
        Ok(daemon)
    }

    /// `config` as a file for this daemon.
    #[must_use]
    pub fn config_text(&self, config: &LabConfig) -> String {
        config.text(&self.state_dir, &self.pin_dir, &self.socket)
    }

    /// Overwrites the configuration file.
    ///
    /// # Errors
    ///
    /// As [`fs::write`].
    pub fn write_config(&self, text: &str) -> Result<()> {
        Ok(fs::write(&self.config, text)?)
    }

    /// The configuration file.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Where it pins.
    #[must_use]
    pub fn pin_dir(&self) -> &Path {
        &self.pin_dir
    }

    /// Process id while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Everything that it logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The last lines of its log, for messages.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// Starts it and waits until it answers `status`.
    ///
    /// # Errors
    ///
    /// When it ends before, or is not ready within 20 s; with the end of its log.
    pub fn start(&mut self) -> Result<()> {
        self.launch()?;
        let mut ended = None;
        wait_until("sluice is ready", READY_LIMIT, || {
            ended = self.ended();
            ended.is_some() || control::status(&self.socket).is_ok()
        })
        .with_context(|| self.log_tail())?;
        if let Some(status) = ended {
            bail!("sluice ended at its start ({status}):\n{}", self.log_tail());
        }
        Ok(())
    }

    /// Sets a variable for the daemon and for commands of [`Self::cli`].
    pub fn set_variable(&mut self, name: &'static str, value: &'static str) {
        self.environment.push((name, value));
    }

    /// Starts it without waiting.
    ///
    /// # Errors
    ///
    /// When it runs already, or cannot be started.
    pub fn launch(&mut self) -> Result<()> {
        ensure!(self.process.is_none(), "this daemon runs already");
        let log = fs::File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.binary);
        command.args(["run", "-c"]).arg(&self.config).stdout(log.try_clone()?).stderr(log);
        command.envs(self.environment.iter().copied());
        self.process = Some(spawn(&self.node, command)?);
        Ok(())
    }

    /// Its exit status, if it has ended by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.as_mut().and_then(|process| process.ended().ok().flatten())
    }

    /// Stops it in order. The datapath stays.
    ///
    /// # Errors
    ///
    /// When it does not run, or does not end with 0 within 10 s.
    pub fn stop(&mut self) -> Result<()> {
        let mut process = self.process.take().context("this daemon does not run")?;
        let status = process.terminate(STOP_LIMIT)?;
        ensure!(status.success(), "sluice ended with {status}:\n{}", self.log_tail());
        Ok(())
    }

    /// Kills it as the kernel's OOM killer would. The datapath stays.
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().context("this daemon does not run")?.kill()
    }

    /// Sends it a signal (SIGHUP reloads).
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.as_ref().context("this daemon does not run")?.signal(signal)
    }

    /// Runs a `sluice` command on the node, with `-c` and this configuration (before a `--`).
    ///
    /// # Errors
    ///
    /// When it cannot be run; its exit code is in the result.
    pub fn cli(&self, arguments: &[&str]) -> Result<Finished> {
        let at = arguments.iter().position(|&argument| argument == "--").unwrap_or(arguments.len());
        let (own, rest) = arguments.split_at(at);
        let mut command = Command::new(&self.binary);
        command.args(own).arg("-c").arg(&self.config).args(rest).envs(self.environment.iter().copied());
        run_command(&self.node, command, "", COMMAND_LIMIT)
    }

    /// Runs `sluice` on the node with exactly these arguments, as `prepare` changes the command (another user, say).
    ///
    /// # Errors
    ///
    /// As [`Self::cli`].
    pub fn raw(&self, arguments: &[&str], prepare: impl FnOnce(&mut Command)) -> Result<Finished> {
        let mut command = Command::new(&self.binary);
        command.args(arguments);
        prepare(&mut command);
        run_command(&self.node, command, "", COMMAND_LIMIT)
    }

    /// What `sluice status --json` prints, from the daemon or (exit code 4) from the maps.
    ///
    /// # Errors
    ///
    /// When it fails or prints something else.
    pub fn status(&self) -> Result<Status> {
        match control::status(&self.socket) {
            Ok(status) => serde_json::from_value(status).context("the daemon's status"),
            // It is gone, or too busy: the command says more, and reads the maps.
            Err(_error) => self.json(&["status", "--json"]),
        }
    }

    /// `sluice maps --json`, from the daemon or (exit code 4) from the maps.
    ///
    /// # Errors
    ///
    /// When it fails or prints something else.
    pub fn maps(&self) -> Result<MapsView> {
        self.json(&["maps", "--json"])
    }

    fn json<T: serde::de::DeserializeOwned>(&self, arguments: &[&str]) -> Result<T> {
        let mut finished = self.cli(arguments)?;
        // 4 says that the daemon is gone and the maps gave the answer.
        if finished.code == Some(4) {
            finished.code = Some(0);
        }
        let text = finished.success()?;
        serde_json::from_str(&text).with_context(|| format!("`sluice {}` printed {text}", arguments.join(" ")))
    }

    /// What `sluice events --json` prints, with stamps moved to the monotonic clock of the load's records.
    ///
    /// # Errors
    ///
    /// When it fails or prints something else.
    pub fn events(&self) -> Result<Vec<Event>> {
        let wall = WallClock::read();
        if let Ok(events) = control::events(&self.socket) {
            return events.iter().map(|event| Event::read(event, wall)).collect();
        }
        let text = self.cli(&["events", "--json"])?.success()?;
        let parsed = text.lines().filter(|line| !line.trim().is_empty()).map(|line| Event::parse(line, wall));
        parsed.collect::<Result<_>>().context("cannot read `sluice events --json`")
    }

    /// Hands over all events so far and then what comes, from a thread of its own, until the daemon ends. Where much
    /// happens, reading all of it again and again is most of what a daemon does.
    pub fn follow_events(&self, mut each: impl FnMut(Event) + Send + 'static) {
        let (socket, wall) = (self.socket.clone(), WallClock::read());
        thread::spawn(move || {
            let more = |event: Value| Event::read(&event, wall).map(&mut each).is_ok();
            // It ends by the daemon's end.
            control::follow(&socket, more).ok();
        });
    }

    /// One GET of the daemon's `control.listen`.
    ///
    /// # Errors
    ///
    /// When nobody answers with 200.
    pub fn get(&self, path: &str) -> Result<String> {
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), CONTROL_PORT);
        let answer = self.node.enter(|| http_get(address, path, SCRAPE_LIMIT))??;
        ensure!(answer.status == 200, "{path} answers {}", answer.status);
        Ok(answer.body)
    }

    /// The metrics.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn metrics(&self) -> Result<MetricsText> {
        self.get("/metrics").map(MetricsText::new)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.terminate(STOP_LIMIT).ok();
        }
        if self.pin_dir.exists() {
            let detached = self.cli(&["detach", "--force"]);
            // Whatever the command could not do: without pins nothing keeps the programs attached.
            if self.pin_dir.exists()
                && let Err(error) = fs::remove_dir_all(&self.pin_dir)
            {
                eprintln!("cannot remove {} ({error}); detach said {detached:?}", self.pin_dir.display());
            }
        }
    }
}
