//! Bad configuration and missing means: the exit code, the place, the mend, and nothing applied.
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own).

use std::os::unix::process::CommandExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::{Daemon, Family, Finished, Lab, LabConfig, LabOptions, http_get, wait_until};
use nix::sys::signal::Signal;

const ONE_LINK: LabOptions = LabOptions { two_links: false };
const SECOND: Duration = Duration::from_secs(1);
const BAD_CONFIGURATION: Option<i32> = Some(78);
const NO_PERMISSION: Option<i32> = Some(77);
const FAILED: Option<i32> = Some(1);
/// A user without any right.
const NOBODY: u32 = 65_534;

/// One mistake: `good` becomes `bad`, and the message names the line of `bad` (if it is one place) and `word`.
struct Mistake {
    name: &'static str,
    good: &'static str,
    bad: &'static str,
    one_line: bool,
    word: &'static str,
}

const MISTAKES: [Mistake; 8] = [
    Mistake { name: "unknown key", good: "cgroup = ", bad: "speling = 1\ncgroup = ", one_line: true, word: "speling" },
    Mistake { name: "duplicate origin", good: "name = \"b\"", bad: "name = \"a\"", one_line: false, word: "a" },
    Mistake { name: "duplicate service", good: "\"shop6\"", bad: "\"shop4\"", one_line: false, word: "shop4" },
    Mistake { name: "bad address", good: "10.78.0.10:80", bad: "10.78.0.300:80", one_line: true, word: "10.78.0.300" },
    Mistake { name: "port 0", good: "10.78.0.10:80", bad: "10.78.0.10:0", one_line: true, word: "port" },
    Mistake {
        name: "weight overflow",
        good: "priority = 1\n",
        bad: "weight = 65536\npriority = 1\n",
        one_line: true,
        word: "65535",
    },
    Mistake {
        name: "no origin",
        good: "[[service]]\nname = \"shop4\"",
        bad: "[[service]]\nname = \"empty\"\n[[service]]\nname = \"shop4\"",
        one_line: false,
        word: "empty",
    },
    Mistake {
        name: "not yet",
        good: "name = \"shop4\"",
        bad: "name = \"shop4\"\naffinity = \"source\"",
        one_line: false,
        word: "not yet",
    },
];

/// `text` with its first `good` made `bad`, and the number of the first line that differs.
fn with_mistake(text: &str, mistake: &Mistake) -> Result<(String, usize)> {
    let at = text.find(mistake.good).with_context(|| format!("`{}` is not in the file", mistake.good))?;
    let bad = text.replacen(mistake.good, mistake.bad, 1);
    Ok((bad, text[..at].matches('\n').count() + 1))
}

/// One sentence of standard error has all of `words`.
#[track_caller]
fn assert_says(finished: &Finished, code: Option<i32>, words: &[&str]) {
    assert_eq!(finished.code, code, "{finished:?}");
    let said = finished.stderr.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(said, "no sentence with {words:?} in {}", finished.stderr);
}

#[test]
fn each_mistake_in_the_file_is_named_with_its_place_and_nothing_is_applied() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let config = LabConfig::of(&lab);
    let daemon = Daemon::prepare(&lab, &config)?;
    let file = daemon.config().display().to_string();
    for mistake in &MISTAKES {
        let (bad, line) = with_mistake(&daemon.config_text(&config), mistake)?;
        daemon.write_config(&bad)?;
        for arguments in [["check", &file].as_slice(), &["run", "-c", &file]] {
            let finished = daemon.raw(arguments, |_| {})?;
            assert_eq!(finished.code, BAD_CONFIGURATION, "{}: {finished:?}", mistake.name);
            assert!(finished.stderr.contains(mistake.word), "{}: {}", mistake.name, finished.stderr);
            assert!(finished.stderr.contains("sluice.toml"), "{}: {}", mistake.name, finished.stderr);
            let mut numbers = finished.stderr.split(|letter: char| !letter.is_ascii_digit());
            let placed = !mistake.one_line || numbers.any(|number| number == line.to_string());
            assert!(placed, "{}: line {line} is not named: {}", mistake.name, finished.stderr);
        }
        assert!(!daemon.pin_dir().exists(), "{}: something was pinned", mistake.name);
    }
    Ok(())
}

#[test]
fn a_missing_file_is_bad_configuration() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let daemon = Daemon::prepare(&lab, &LabConfig::of(&lab))?;
    for arguments in [["check", "/nowhere/sluice.toml"].as_slice(), &["run", "-c", "/nowhere/sluice.toml"]] {
        assert_says(&daemon.raw(arguments, |_| {})?, BAD_CONFIGURATION, &["/nowhere/sluice.toml"]);
    }
    Ok(())
}

#[test]
fn a_bad_file_leaves_the_running_configuration_untouched() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let config = LabConfig::of(&lab);
    let daemon = Daemon::start_in(&lab, &config)?;
    let before = daemon.maps()?;
    for mistake in &MISTAKES {
        daemon.write_config(&with_mistake(&daemon.config_text(&config), mistake)?.0)?;
        let finished = daemon.cli(&["reload"])?;
        assert_eq!(finished.code, BAD_CONFIGURATION, "{}: {finished:?}", mistake.name);
    }
    daemon.signal(Signal::SIGHUP)?;
    let refused = || daemon.metrics().ok()?.value("sluice_config_reload_success", &[]);
    wait_until("the reload by SIGHUP is refused", 10 * SECOND, || refused() == Some(0.0))?;
    let after = daemon.maps()?;
    assert_eq!((after.frontends, after.daemon_pid), (before.frontends, before.daemon_pid));
    daemon.write_config(&daemon.config_text(&config))?;
    daemon.signal(Signal::SIGHUP)?;
    wait_until("the good file is taken", 10 * SECOND, || refused() == Some(1.0))
}

#[test]
fn without_root_it_may_check_but_not_run() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let daemon = Daemon::prepare(&lab, &LabConfig::of(&lab))?;
    let file = daemon.config().display().to_string();
    let as_nobody = |arguments: &[&str]| {
        daemon.raw(arguments, |command| {
            command.uid(NOBODY).gid(NOBODY);
        })
    };
    assert_says(&as_nobody(&["run", "-c", &file])?, NO_PERMISSION, &["root"]);
    assert_eq!(as_nobody(&["check", &file])?.code, Some(0));
    assert!(!daemon.pin_dir().exists());
    Ok(())
}

#[test]
fn pins_outside_a_bpffs_are_refused_with_the_mount_command() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let config = LabConfig::of(&lab);
    let daemon = Daemon::prepare(&lab, &config)?;
    let elsewhere = lab.dir().join("pins").display().to_string();
    let text = daemon.config_text(&config).replace(&daemon.pin_dir().display().to_string(), &elsewhere);
    daemon.write_config(&text)?;
    let file = daemon.config().display().to_string();
    assert_says(&daemon.raw(&["run", "-c", &file], |_| {})?, FAILED, &["mount", "bpf"]);
    Ok(())
}

#[test]
fn an_origin_behind_an_unlisted_interface_is_refused_with_its_name() -> Result<()> {
    let lab = Lab::new(LabOptions { two_links: true })?;
    let mut config = LabConfig::of(&lab);
    config.interfaces.retain(|name| name != "orig1");
    let daemon = Daemon::prepare(&lab, &config)?;
    let file = daemon.config().display().to_string();
    let finished = daemon.raw(&["run", "-c", &file], |_| {})?;
    assert_says(&finished, FAILED, &["orig1", "interfaces"]);
    Ok(())
}

/// P12 (d).
#[test]
fn a_second_daemon_is_refused_and_the_first_goes_on() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let daemon = Daemon::start_in(&lab, &LabConfig::of(&lab))?;
    let file = daemon.config().display().to_string();
    let first = daemon.pid().context("the first runs")?.to_string();
    assert_says(&daemon.raw(&["run", "-c", &file], |_| {})?, FAILED, &[&first]);
    assert_eq!(daemon.cli(&["status", "--json"])?.code, Some(0));
    let a = lab.origin_a(Family::Ipv4);
    assert!(lab.node.enter(|| http_get(a, "/", SECOND))?.is_ok());
    Ok(())
}
