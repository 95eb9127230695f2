//! One daemon that is stopped, killed and started again, and services that must see the same before and after: pk07, pk22,
//! pk23, pk24.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::patience::{wait_for, wait_until};
use anyhow::{Context, Result, ensure};
use lab::hsm::{KeyKind, PIN};
use lab::{Daemon, Lab, LabConfig, LabOptions};

use crate::notes::{Notes, broken};
use crate::slot::{Checks, KEY, Slot, paced, seconds, write_pin};
use crate::solo::{is_alive, place};
use crate::together::{self, Turn};

const EC: &[(KeyKind, &str)] = &[(KeyKind::Ec, KEY)];
const LIMIT: Duration = Duration::from_secs(40);
/// `CKF_USER_PIN_COUNT_LOW`, `CKF_USER_PIN_FINAL_TRY`, `CKF_USER_PIN_LOCKED`.
const FLAGS: [(&str, &str); 3] = [("low", "0x10000"), ("last", "0x20000"), ("locked", "0x40000")];

const PK07: &str = "pk07";
const PK22: &str = "pk22";
const PK22_FLAGS: &str = "pk22-flags";
const PK23: &str = "pk23";
const PK23_FILES: &str = "pk23-files";
const PK24_KILL: &str = "pk24-kill";
const PK24_TERM: &str = "pk24-term";
const ALL: [&str; 7] = [PK07, PK22, PK22_FLAGS, PK23, PK23_FILES, PK24_KILL, PK24_TERM];

/// Services of one slot each, and two tokens with a clock. Fields are dropped in their order.
struct Saga {
    daemon: Daemon,
    slots: Vec<(&'static str, Slot)>,
    clocks: [Slot; 2],
    lab: Lab,
}

impl Saga {
    fn prepare() -> Result<Self> {
        let lab = Lab::new(LabOptions::default())?;
        let dir = lab.dir().join("slots");
        let names = [
            "wrong",
            "low",
            "last",
            "locked",
            "proved-low",
            "proved-last",
            "lf",
            "crlf",
            "open",
            "empty",
            "long",
            "orderly",
            "clinging",
            "stuck",
        ];
        let mut text = String::new();
        let mut slots = Vec::new();
        for (port, name) in (7000..).zip(names) {
            let slot = Slot::create(&dir, name, EC)?;
            let origin = slot.origin_toml("a", place(&lab, port));
            write!(text, "\n[[service]]\nname = \"{name}\"\n{origin}{}", Checks::signing(&slot).toml())?;
            slots.push((name, slot));
        }
        let clocks = [Slot::create(&dir, "clock-a", &[])?, Slot::create(&dir, "clock-b", &[])?];
        let [a, b] = [("a", 7100), ("b", 7101)].map(|(name, port)| (name, place(&lab, port)));
        let origins = [clocks[0].origin_toml(a.0, a.1), clocks[1].origin_toml(b.0, b.1)].concat();
        write!(text, "\n[[service]]\nname = \"clocks\"\n{origins}{}", Checks::depth2().toml())?;
        let bare = LabConfig::of(&lab).bare();
        let mut daemon = Daemon::prepare(&lab, &bare)?;
        daemon.write_config(&format!("{}{text}", daemon.config_text(&bare)))?;
        daemon.set_variable("RUST_LOG", "debug");
        Ok(Self { daemon, slots, clocks, lab })
    }

    fn slot(&self, name: &str) -> Result<&Slot> {
        let found = self.slots.iter().find(|(known, _)| *known == name);
        Ok(&found.with_context(|| format!("no slot is called {name}"))?.1)
    }

    fn state(&self, service: &str, origin: &str) -> Option<String> {
        self.daemon.status().ok()?.state(service, origin).map(str::to_owned)
    }

    fn logins(&self, name: &str) -> Result<usize> {
        self.slot(name)?.fault.count("C_Login")
    }

    /// Waits until the slot's module has had `count` more calls of `function`.
    fn wait_calls(&self, name: &str, function: &str, count: usize) -> Result<()> {
        let fault = &self.slot(name)?.fault;
        let before = fault.count(function)?;
        wait_until(&format!("{name}: {count} more calls of {function}"), LIMIT, || {
            fault.count(function).is_ok_and(|calls| calls >= before + count)
        })
        .with_context(|| format!("it is {:?}", self.daemon.status().map(|status| status.origin(name, "a").cloned())))
    }

    fn wait_event(&self, object: &str, word: &str) -> Result<()> {
        wait_until(&format!("an event of {object} says {word}"), LIMIT, || {
            let events = self.daemon.events().unwrap_or_default();
            events
                .iter()
                .any(|event| event.object == object && format!("{} {}", event.what, event.detail).contains(word))
        })
    }

    fn ensure_logins(&self, name: &str, want: usize, when: &str) -> Result<()> {
        let logins = self.logins(name)?;
        ensure!(logins == want, "{name}: {logins} logins {when}, not {want}");
        Ok(())
    }

    /// The worker of a slot that signed last, if it lives.
    fn worker(&self, name: &str) -> Result<u32> {
        let calls = self.slot(name)?.fault.calls()?;
        let last = calls.last().with_context(|| format!("{name} was asked"))?.pid;
        ensure!(is_alive(last), "the worker of {name} is gone");
        Ok(last)
    }

    /// Another worker of `name`, because the present one was told that it is worth nothing.
    fn respawn(&self, name: &str) -> Result<()> {
        let former = self.worker(name)?;
        self.slot(name)?.fault.set(&["pin tries=3", "C_GetTokenInfo rv=0x190 times=1"])?;
        wait_until(&format!("another worker of {name}"), LIMIT, || self.worker(name).is_ok_and(|pid| pid != former))
    }
}

fn play() -> Notes {
    let mut notes = Notes::default();
    let played = Saga::prepare().and_then(|mut saga| try_play(&mut saga, &mut notes));
    match played {
        Ok(()) => notes,
        Err(error) => broken(notes, &ALL, &error),
    }
}

fn try_play(saga: &mut Saga, notes: &mut Notes) -> Result<()> {
    // Before the first start.
    saga.slot("wrong")?.fault.set(&["pin tries=3"])?;
    write_pin(&saga.slot("wrong")?.pin_file, "not-this-one\n")?;
    for (name, flag) in FLAGS {
        saga.slot(name)?.fault.set(&[&format!("token setflags={flag}")])?;
    }
    write_pin(&saga.slot("crlf")?.pin_file, &format!("{PIN}\r\n"))?;
    let open = &saga.slot("open")?.pin_file;
    fs::set_permissions(open, fs::Permissions::from_mode(0o644))?;
    write_pin(&saga.slot("empty")?.pin_file, "\n")?;
    write_pin(&saga.slot("long")?.pin_file, &"7".repeat(257))?;
    for clock in &saga.clocks {
        clock.fault.set(&["token clock=on"])?;
    }

    saga.daemon.start()?;
    for name in ["lf", "crlf", "orderly", "clinging", "stuck", "proved-low", "proved-last"] {
        let part = if name.ends_with("lf") { PK23_FILES } else { PK24_TERM };
        notes.part(part, || {
            wait_until(&format!("{name} signs"), LIMIT, || {
                saga.slot(name).is_ok_and(|slot| slot.fault.count("C_Verify").is_ok_and(|count| count > 0))
            })
        });
    }
    notes.part(PK23_FILES, || bad_files(saga));
    notes.part(PK22, || {
        saga.wait_event("wrong/a", "pkcs11_auth")?;
        saga.wait_calls("wrong", "C_GetTokenInfo", 3)?;
        saga.ensure_logins("wrong", 1, "at first")?;
        for _time in 0..2 {
            saga.respawn("wrong")?;
        }
        saga.wait_calls("wrong", "C_GetTokenInfo", 3)?;
        saga.ensure_logins("wrong", 1, "after respawns")
    });
    notes.part(PK22_FLAGS, || {
        for (name, flag) in FLAGS {
            saga.wait_calls(name, "C_GetTokenInfo", 2)?;
            saga.ensure_logins(name, 0, &format!("in spite of {flag}"))?;
        }
        Ok(())
    });
    notes.part(PK23, || nowhere(saga));
    notes.part(PK07, || host_clock(saga));

    notes.part(PK24_TERM, || terminate(saga));
    saga.slot("proved-low")?.fault.set(&["token setflags=0x10000"])?;
    saga.slot("proved-last")?.fault.set(&["token setflags=0x20000"])?;
    saga.daemon.start()?;
    notes.part(PK22_FLAGS, || {
        saga.wait_calls("proved-low", "C_Verify", 1)?;
        saga.ensure_logins("proved-low", 2, "with a PIN that was right")?;
        saga.wait_calls("proved-last", "C_GetTokenInfo", 2)?;
        saga.ensure_logins("proved-last", 1, "before the last try")
    });
    notes.part(PK24_KILL, || kill(saga));

    saga.daemon.start()?;
    notes.part(PK22, || {
        saga.wait_calls("wrong", "C_GetTokenInfo", 3)?;
        saga.ensure_logins("wrong", 1, "after two restarts")?;
        let state = saga.state("wrong", "a");
        ensure!(state.as_deref() != Some("fault"), "our credential is not the HSM's fault: {state:?}");
        write_pin(&saga.slot("wrong")?.pin_file, &format!("{PIN}\n"))?;
        saga.wait_calls("wrong", "C_Verify", 2).context("with the right PIN")?;
        saga.ensure_logins("wrong", 2, "with the right PIN")
    });
    saga.daemon.stop()
}

fn bad_files(saga: &Saga) -> Result<()> {
    for name in ["open", "empty", "long"] {
        saga.wait_event(&format!("{name}/a"), "pkcs11_config")?;
        saga.wait_calls(name, "C_GetTokenInfo", 2)?;
        saga.ensure_logins(name, 0, "with a PIN file that is no secret")?;
    }
    Ok(())
}

fn nowhere(saga: &Saga) -> Result<()> {
    let (daemon, worker) = (saga.daemon.pid().context("it runs")?, saga.worker("lf")?);
    for pid in [daemon, worker] {
        for file in ["cmdline", "environ"] {
            let bytes = fs::read(format!("/proc/{pid}/{file}"))?;
            ensure!(!holds(&bytes), "the PIN is in {file} of {pid}");
        }
    }
    for said in [
        saga.daemon.cli(&["status", "--json"])?.stdout,
        saga.daemon.cli(&["events", "--json"])?.stdout,
        saga.daemon.cli(&["check"])?.stdout,
        saga.daemon.metrics()?.as_str().to_owned(),
        saga.daemon.log(),
    ] {
        ensure!(!said.is_empty() && !said.contains(PIN), "the PIN is in {said}");
    }
    let log = fs::read(saga.slot("lf")?.fault.dir().join("log"))?;
    ensure!(!log.is_empty() && !holds(&log), "the PIN is in the module's log");
    let state = saga.lab.dir().join("sluice");
    let files = files_below(&state)?;
    ensure!(files.len() > 1, "no state below {}", state.display());
    for file in files {
        ensure!(!holds(&fs::read(&file)?), "the PIN is in {}", file.display());
    }
    Ok(())
}

fn holds(bytes: &[u8]) -> bool {
    bytes.windows(PIN.len()).any(|window| window == PIN.as_bytes())
}

fn files_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            found.extend(files_below(&entry.path())?);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Both tokens with a clock are off alike; then only one is.
fn host_clock(saga: &Saga) -> Result<()> {
    for origin in ["a", "b"] {
        wait_until("the clocks are right", LIMIT, || saga.state("clocks", origin).as_deref() == Some("healthy"))?;
    }
    for clock in &saga.clocks {
        clock.fault.set(&["token clock=on skew=120"])?;
    }
    // One may be asked in the moment between the two.
    wait_until("the host is suspected", LIMIT, || {
        let events = saga.daemon.events().unwrap_or_default();
        events.iter().any(|event| event.object.starts_with("clocks/") && event.what == "pkcs11_host_clock")
    })?;
    let asked = saga.clocks[0].fault.count("C_GetTokenInfo")?;
    wait_until("both are asked again", LIMIT, || {
        saga.clocks[0].fault.count("C_GetTokenInfo").is_ok_and(|calls| calls >= asked + 6)
    })?;
    for origin in ["a", "b"] {
        let state = saga.state("clocks", origin);
        ensure!(state.as_deref() != Some("fault"), "{origin} is {state:?} though the host's clock is suspected");
    }
    saga.clocks[1].fault.set(&["token clock=on"])?;
    wait_until("the one that is off is out", LIMIT, || saga.state("clocks", "a").as_deref() == Some("fault"))?;
    let state = saga.state("clocks", "b");
    ensure!(state.as_deref() != Some("fault"), "b is {state:?}");
    saga.clocks[0].fault.set(&["token clock=on"])
}

/// SIGTERM: all is given back within 3 s, also where a module doesn't let its worker go.
fn terminate(saga: &mut Saga) -> Result<()> {
    saga.slot("clinging")?.fault.set(&["C_Finalize hang"])?;
    let (orderly, clinging) = (saga.worker("orderly")?, saga.worker("clinging")?);
    let begun = Instant::now();
    saga.daemon.stop()?;
    ensure!(begun.elapsed() < seconds(3) + Duration::from_millis(300), "the stop took {:?}", begun.elapsed());
    for pid in [orderly, clinging] {
        ensure!(!is_alive(pid), "worker {pid} outlived its daemon");
    }
    let calls = saga.slot("orderly")?.fault.calls()?;
    let of = |function: &str| calls.iter().filter(|call| call.pid == orderly && call.function == function).count();
    ensure!(of("C_Finalize") == 1, "{} times C_Finalize", of("C_Finalize"));
    ensure!(
        of("C_OpenSession") == of("C_CloseSession"),
        "{} opened, {} closed",
        of("C_OpenSession"),
        of("C_CloseSession")
    );
    let last = calls.last().context("calls")?;
    ensure!(last.function == "C_Finalize" && last.sessions == 0, "{last:?}");
    saga.slot("clinging")?.fault.set(&[])
}

/// kill -9 while a worker can't be spoken to.
fn kill(saga: &mut Saga) -> Result<()> {
    let fault = &saga.slot("stuck")?.fault;
    fault.set(&["C_Sign hardhang"])?;
    let caught = wait_for("a worker is stuck", LIMIT, || {
        let calls = fault.calls().ok()?;
        calls.into_iter().rev().find(|call| call.outcome == "hardhang").filter(|call| is_alive(call.pid))
    })?;
    saga.daemon.kill()?;
    let gone = wait_until("the worker is gone with its daemon", seconds(1), || !is_alive(caught.pid));
    saga.slot("stuck")?.fault.set(&[])?;
    gone
}

fn played() -> &'static Notes {
    static PLAYED: OnceLock<Notes> = OnceLock::new();
    PLAYED.get_or_init(|| {
        let _turn = Turn::take();
        play()
    })
}

/// Plays all of it, if nobody has.
pub(crate) fn begin() {
    played();
}

fn came_of(name: &str) -> Result<()> {
    together::begin();
    played().came_of(name)
}

#[test]
fn pk05_settings_that_cannot_be_in_time_are_refused() -> Result<()> {
    let lab = Lab::new(LabOptions::default())?;
    let slot = Slot::create(&lab.dir().join("slots"), "late", &[])?;
    let bare = LabConfig::of(&lab).bare();
    let daemon = Daemon::prepare(&lab, &bare)?;
    let origin = slot.origin_toml("a", place(&lab, 7000));
    let text = |clock: Duration| {
        let checks = Checks { clock, ..Checks::depth2() }.toml();
        format!("{}\n[[service]]\nname = \"hsm\"\n{origin}{checks}", daemon.config_text(&bare))
    };
    daemon.write_config(&text(seconds(10)))?;
    ensure!(daemon.cli(&["check"])?.code == Some(0), "the defaults are in time");
    daemon.write_config(&text(seconds(10)).replace(
        &format!("interval = \"{}ms\", drift_max", paced(seconds(10)).as_millis()),
        "interval = \"30s\", drift_max",
    ))?;
    let refused = daemon.cli(&["check"])?;
    let said = format!("{}{}", refused.stdout, refused.stderr);
    ensure!(refused.code == Some(78), "{:?}: {said}", refused.code);
    ensure!(said.contains("clock.interval 30s") && said.contains("30s is the most"), "the sum is not named: {said}");
    Ok(())
}

#[test]
fn pk07_when_all_tokens_are_off_alike_the_host_is_suspected() -> Result<()> {
    came_of(PK07)
}

#[test]
fn pk22_one_wrong_pin_stops_all_logins() -> Result<()> {
    came_of(PK22)
}

#[test]
fn pk22_no_login_where_the_token_warns() -> Result<()> {
    came_of(PK22_FLAGS)
}

#[test]
fn pk23_the_pin_is_nowhere() -> Result<()> {
    came_of(PK23)
}

#[test]
fn pk23_a_pin_file_that_is_no_secret_is_refused() -> Result<()> {
    came_of(PK23_FILES)
}

#[test]
fn pk24_a_killed_daemon_takes_its_stuck_worker_along() -> Result<()> {
    came_of(PK24_KILL)
}

#[test]
fn pk24_a_daemon_that_ends_gives_everything_back() -> Result<()> {
    came_of(PK24_TERM)
}
