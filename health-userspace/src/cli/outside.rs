//! What commands need from outside, behind traits, so that each can be tested without a kernel or a daemon.

use super::{exit::Failure, run::RunOptions};
use crate::{
    control::{Answer, Ask, Client, ClientError},
    probe::Selection,
    report::{DetachOutcome, FlowsReport, MapEntry, MapsReport, OriginName, ProbeReport},
};
use jiff::{Timestamp, tz::TimeZone};
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Where the configuration is looked for when the command line names none.
pub const CONFIG_DEFAULT: &str = "/etc/sluice/sluice.toml";
const SOCKET_DEFAULT: &str = "/run/sluice/control.sock";
const STATE_DIR_DEFAULT: &str = "/var/lib/sluice";
const PIN_DIR_DEFAULT: &str = "/sys/fs/bpf/sluice";
const BYPASS_CGROUP_DEFAULT: &str = "/sluice-direct";

/// The world around a command.
pub trait Outside {
    /// Wall clock.
    fn now(&self) -> Timestamp;

    /// ABI of the maps that this binary reads and writes.
    fn abi(&self) -> u32;

    /// Capabilities that the daemon needs and the caller lacks.
    fn capabilities_missing(&self) -> Vec<&'static str>;

    /// Connects to the daemon.
    ///
    /// # Errors
    ///
    /// As [`Client::connect`].
    fn daemon(&self, socket: &Path) -> Result<Box<dyn Daemon>, ClientError>;

    /// Reads the pinned maps.
    ///
    /// # Errors
    ///
    /// Nothing is pinned there, or it may not be read.
    fn maps(&self, pin_dir: &Path) -> Result<MapsReport, Failure>;

    /// Reads the entries of one pinned map, decoded.
    ///
    /// # Errors
    ///
    /// There is no such map, or it may not be read.
    fn entries(&self, pin_dir: &Path, map: &str) -> Result<Vec<MapEntry>, Failure>;

    /// The origins that the pinned maps have names for.
    ///
    /// # Errors
    ///
    /// As [`Self::maps`].
    fn origin_names(&self, pin_dir: &Path) -> Result<Vec<OriginName>, Failure>;

    /// Reads the flow table, of the origins `of` or of all.
    ///
    /// # Errors
    ///
    /// As [`Self::maps`].
    fn flows(&self, pin_dir: &Path, of: Option<&[u16]>, limit: usize) -> Result<FlowsReport, Failure>;

    /// Removes programs and pins, unless redirected flows live and `force` is not given.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    fn detach(&self, pin_dir: &Path, force: bool) -> Result<DetachOutcome, Failure>;

    /// Tells the pinned programs to steer nothing new; redirected flows go on.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    fn stop_steering(&self, pin_dir: &Path) -> Result<(), Failure>;

    /// Checks a configuration file.
    ///
    /// # Errors
    ///
    /// What is wrong with it, each with line, column and fix.
    fn check(&self, file: &Path) -> Result<Checked, Vec<Finding>>;

    /// Runs the selected checks of a configuration once, now.
    ///
    /// # Errors
    ///
    /// The configuration is bad, or checks can't be run here.
    fn probe(&self, file: &Path, selection: &Selection) -> Result<ProbeReport, Failure>;

    /// Runs the daemon until it is told to end.
    ///
    /// # Errors
    ///
    /// It could not begin, or had to end.
    fn run(&self, options: RunOptions) -> Result<(), Failure>;
}

/// A connection to the daemon.
pub trait Daemon {
    /// Asks for one answer.
    ///
    /// # Errors
    ///
    /// As [`Client::ask`].
    fn ask(&mut self, ask: Ask) -> Result<Answer, ClientError>;

    /// Asks for events; `each` gets every answer until it says `false`.
    ///
    /// # Errors
    ///
    /// As [`Client::events`].
    fn events(&mut self, since_ns: u64, follow: bool, each: &mut dyn FnMut(Answer) -> bool) -> Result<(), ClientError>;
}

impl Daemon for Client {
    fn ask(&mut self, ask: Ask) -> Result<Answer, ClientError> {
        Self::ask(self, ask)
    }

    fn events(&mut self, since_ns: u64, follow: bool, each: &mut dyn FnMut(Answer) -> bool) -> Result<(), ClientError> {
        Self::events(self, since_ns, follow, each)
    }
}

/// A configuration that may be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// What is allowed and will hurt.
    pub warnings: Vec<Finding>,
    /// The whole configuration as TOML, every default filled in.
    pub resolved: String,
}

/// A mistake or a warning in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// The file, as it was called.
    pub file: String,
    /// From 1; 0 where the whole file is meant.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub fix: String,
    /// All of it, with the source line, for people.
    #[serde(skip)]
    pub text: String,
}

/// Where the parts of this node's Sluice are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The configuration file.
    pub config: PathBuf,
    /// `control.socket`.
    pub socket: PathBuf,
    /// `node.pin_dir`.
    pub pin_dir: PathBuf,
    /// `node.state_dir`.
    pub state_dir: PathBuf,
    /// The first of `node.bypass.cgroups`; `None` where that list is empty.
    pub bypass_cgroup: Option<PathBuf>,
}

impl Settings {
    /// Reads the few keys that commands need. Lenient, because at three in the morning `status` must work while the
    /// file is being mended: what can't be read has its default, and the note says so.
    #[must_use]
    pub fn find(config: &Path) -> (Self, Option<String>) {
        let mut settings = Self {
            config: config.to_path_buf(),
            socket: SOCKET_DEFAULT.into(),
            pin_dir: PIN_DIR_DEFAULT.into(),
            state_dir: STATE_DIR_DEFAULT.into(),
            bypass_cgroup: Some(BYPASS_CGROUP_DEFAULT.into()),
        };
        let text = match fs::read_to_string(config) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && config == Path::new(CONFIG_DEFAULT) => {
                return (settings, None);
            }
            Err(error) => {
                let note = format!("{}: {error}; the default socket and pins are used", config.display());
                return (settings, Some(note));
            }
        };
        let Ok(table) = text.parse::<toml::Table>() else {
            let note = format!(
                "{0} is not TOML, so the default socket and pins are used; see `sluice check {0}`",
                config.display()
            );
            return (settings, Some(note));
        };
        let word = |section: &str, key: &str| Some(PathBuf::from(table.get(section)?.get(key)?.as_str()?));
        settings.socket = word("control", "socket").unwrap_or(settings.socket);
        settings.pin_dir = word("node", "pin_dir").unwrap_or(settings.pin_dir);
        settings.state_dir = word("node", "state_dir").unwrap_or(settings.state_dir);
        let cgroups = || table.get("node")?.get("bypass")?.get("cgroups")?.as_array();
        if let Some(cgroups) = cgroups() {
            settings.bypass_cgroup = cgroups.first().and_then(toml::Value::as_str).map(PathBuf::from);
        }
        (settings, None)
    }
}

/// How text looks.
#[derive(Clone, Debug)]
pub struct Look {
    /// Whether standard output is a terminal that wants colour.
    pub colour: bool,
    /// The zone that times are shown in.
    pub zone: TimeZone,
}

/// All that a command gets beside its own arguments.
pub struct Context<'a> {
    /// The world.
    pub outside: &'a dyn Outside,
    /// Standard output.
    pub out: &'a mut dyn Write,
    /// Standard error.
    pub notes: &'a mut dyn Write,
    /// How text looks.
    pub look: Look,
    /// Where things are.
    pub settings: Settings,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("look", &self.look).field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Context<'_> {
    /// Connects to the daemon.
    ///
    /// # Errors
    ///
    /// As [`Client::connect`].
    pub fn daemon(&self) -> Result<Box<dyn Daemon>, ClientError> {
        self.outside.daemon(&self.settings.socket)
    }

    /// Prints a value as one JSON document.
    ///
    /// # Errors
    ///
    /// The output can't be written.
    pub fn json(&mut self, value: &impl serde::Serialize) -> Result<(), Failure> {
        serde_json::to_writer(&mut *self.out, value)?;
        writeln!(self.out)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> (Settings, Option<String>) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("sluice.toml");
        fs::write(&file, text).expect("writes");
        Settings::find(&file)
    }

    #[test]
    fn a_file_that_says_nothing_leaves_the_defaults() {
        let (settings, note) = found("[node]\ninterfaces = [\"eth1\"]\n");
        assert_eq!(settings.socket, Path::new("/run/sluice/control.sock"));
        assert_eq!(settings.pin_dir, Path::new("/sys/fs/bpf/sluice"));
        assert_eq!(settings.bypass_cgroup.as_deref(), Some(Path::new("/sluice-direct")));
        assert_eq!(note, None);
    }

    #[test]
    fn a_file_that_the_daemon_would_refuse_still_tells_where_things_are() {
        let text =
            "[node]\npin_dir = \"/p\"\nnonsense = 1\nbypass = { cgroups = [\"/own\"] }\n[control]\nsocket = \"/s\"\n";
        let (settings, note) = found(text);
        let places = [settings.socket, settings.pin_dir, settings.bypass_cgroup.expect("there is one")];
        assert_eq!(places, ["/s", "/p", "/own"].map(PathBuf::from));
        assert_eq!(note, None);
    }

    #[test]
    fn a_file_that_bypasses_no_cgroup_has_none_for_direct() {
        let (settings, _) = found("[node]\nbypass = { cgroups = [] }\n");
        assert_eq!(settings.bypass_cgroup, None);
    }

    #[test]
    fn a_broken_or_missing_file_is_said() {
        let (_, note) = found("[node\n");
        assert!(note.is_some_and(|note| note.contains("is not TOML")));
        let (_, note) = Settings::find(Path::new("/nonexistent/sluice.toml"));
        assert!(note.is_some_and(|note| note.contains("No such file")));
    }
}
