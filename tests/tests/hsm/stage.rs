//! One daemon for many scenes that go on at the same time: each has a service of its own with two slots, breaks the first
//! and leaves the second alone. What takes half a minute of waiting each takes half a minute in all.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::patience::wait_until;
use anyhow::{Context, Result, anyhow, ensure};
use lab::hsm::KeyKind;
use lab::{Daemon, Event, Lab, LabConfig, LabOptions, Status};

use crate::slot::{Checks, Slot};
use crate::solo::place;

/// Beyond what the acceptance checks allow: forty scenes and their workers share two cores, and what happens is seen with a
/// delay. With `--long`, times are ten times as long and this is little of them.
pub(crate) const SLACK: Duration = Duration::from_secs(8);
/// Until everything is up at the start.
pub(crate) const READY: Duration = Duration::from_secs(20);
/// How often the daemon is asked.
const LOOK: Duration = Duration::from_millis(500);
/// States of an origin that takes no traffic because of what is known of it.
pub(crate) const OUT: [&str; 1] = ["fault"];
/// And those of one that does.
pub(crate) const IN: [&str; 1] = ["healthy"];

/// What a scene needs, and what it does.
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) keys: &'static [(KeyKind, &'static str)],
    pub(crate) checks: fn(&Slot) -> Checks,
    /// Whether there is a second slot, which stays as it is.
    pub(crate) has_bystander: bool,
    /// Rules from the start.
    pub(crate) rules: &'static [&'static str],
    pub(crate) play: fn(&Play<'_>) -> Result<()>,
}

/// The rest of a scene whose service is not two slots.
pub(crate) type Story = Box<dyn FnOnce(&Service<'_>) -> Result<()> + Send>;

/// A scene with a service of its own kind: the text of its origins and checks, and what is done with it. It may use ten
/// ports of a, from the one that it is given.
pub(crate) struct Custom {
    pub(crate) name: &'static str,
    pub(crate) begin: fn(&Lab, u16) -> Result<(String, Story)>,
}

/// The service of a scene that goes on.
pub(crate) struct Service<'a> {
    name: &'static str,
    stage: &'a Stage,
}

/// The same with two slots.
pub(crate) struct Play<'a> {
    service: &'a Service<'a>,
    /// The slot that is broken.
    pub(crate) a: Slot,
}

impl<'a> Deref for Play<'a> {
    type Target = Service<'a>;

    fn deref(&self) -> &Service<'a> {
        self.service
    }
}

/// What all scenes share.
pub(crate) struct Stage {
    pub(crate) daemon: Daemon,
    status: Mutex<Option<Status>>,
    events: Arc<Mutex<Vec<Event>>>,
    over: AtomicBool,
}

/// What came of each scene, by its name.
pub(crate) type Results = BTreeMap<&'static str, Result<(), String>>;

/// Plays all scenes.
pub(crate) fn play(scenes: &'static [Scene], customs: &'static [Custom]) -> Results {
    try_play(scenes, customs).unwrap_or_else(|error| {
        let names = scenes.iter().map(|scene| scene.name).chain(customs.iter().map(|custom| custom.name));
        names.map(|name| (name, Err(format!("no stage: {error:#}")))).collect()
    })
}

fn try_play(scenes: &'static [Scene], customs: &'static [Custom]) -> Result<Results> {
    let lab = Lab::new(LabOptions::default())?;
    let mut config = String::new();
    let mut cast: Vec<(&'static str, Story)> = Vec::new();
    let ports = (7000_u16..).step_by(10);
    let prepared = scenes.iter().map(Err).chain(customs.iter().map(Ok));
    // For whoever works on one of them: the others then fail, as not played.
    let wanted = std::env::var("LAB_SCENES").ok();
    let is_wanted = |name: &str| wanted.as_ref().is_none_or(|wanted| wanted.split(',').any(|one| one == name));
    for (port, scene) in ports.zip(prepared) {
        let name = scene.map_or_else(|scene| scene.name, |custom| custom.name);
        if !is_wanted(name) || (wanted.is_none() && !lab::is_long() && crate::scenes::LONG.contains(&name)) {
            continue;
        }
        let (text, story) = match scene {
            Err(scene) => slots(scene, &lab, port)?,
            Ok(custom) => (custom.begin)(&lab, port).context(name)?,
        };
        write!(config, "\n[[service]]\nname = \"{name}\"\n{text}")?;
        cast.push((name, story));
    }
    let bare = LabConfig::of(&lab).bare();
    let mut daemon = Daemon::prepare(&lab, &bare)?;
    daemon.write_config(&format!("{}{config}", daemon.config_text(&bare)))?;
    daemon.start()?;
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&events);
    daemon.follow_events(move |event| seen.lock().unwrap_or_else(PoisonError::into_inner).push(event));
    let stage = Stage { daemon, status: Mutex::new(None), events, over: AtomicBool::new(false) };
    Ok(thread::scope(|scope| {
        scope.spawn(|| stage.keep_asking());
        let stage = &stage;
        let playing: Vec<_> = cast
            .into_iter()
            .map(|(name, story)| (name, scope.spawn(move || story(&Service { name, stage }))))
            .collect();
        let results = playing.into_iter().map(|(name, playing)| {
            let result = playing.join().unwrap_or_else(|_panic| Err(anyhow!("the scene panicked; see above")));
            (name, result.map_err(|error| format!("{error:#}")))
        });
        let results = results.collect();
        stage.over.store(true, Ordering::Relaxed);
        results
    }))
}

/// The slots of a scene and their service in the configuration, on ports of a that nobody needs to listen at.
fn slots(scene: &'static Scene, lab: &Lab, port: u16) -> Result<(String, Story)> {
    let slot = |name: &str| -> Result<Slot> {
        let slot = Slot::create(&lab.dir().join("slots"), &format!("{}-{name}", scene.name), scene.keys)?;
        slot.fault.set(scene.rules)?;
        Ok(slot)
    };
    let a = slot("a")?;
    let b = if scene.has_bystander { Some(slot("b")?) } else { None };
    let bystander = b.as_ref().map_or(String::new(), |b| b.origin_toml("b", place(lab, port + 1)));
    let text = format!("{}{bystander}{}", a.origin_toml("a", place(lab, port)), (scene.checks)(&a).toml());
    let story = move |service: &Service<'_>| -> Result<()> {
        let names: &[&str] = if b.is_some() { &["a", "b"] } else { &["a"] };
        for origin in names {
            service.wait_for(origin, &IN, READY)?;
        }
        (scene.play)(&Play { service, a })?;
        let bystander = service.state("b");
        let untouched = b.is_none() || bystander.as_deref() == Some("healthy");
        ensure!(untouched, "b, which nothing happened to, is {bystander:?}: {}", service.reasons("b"));
        Ok(())
    };
    Ok((text, Box::new(story)))
}

impl Stage {
    fn keep_asking(&self) {
        while !self.over.load(Ordering::Relaxed) {
            if let Ok(status) = self.daemon.status() {
                *self.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
            }
            thread::park_timeout(LOOK);
        }
    }
}

impl Service<'_> {
    pub(crate) const fn daemon(&self) -> &Daemon {
        &self.stage.daemon
    }

    fn look<T>(&self, origin: &str, what: impl Fn(&lab::OriginStatus) -> T) -> Option<T> {
        let status = self.stage.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.as_ref()?.origin(self.name, origin).map(what)
    }

    /// The state of `a` or `b`.
    pub(crate) fn state(&self, origin: &str) -> Option<String> {
        self.look(origin, |seen| seen.state.clone())?
    }

    /// Why it is in the state that it is in, as the event of its last transition says.
    pub(crate) fn why(&self, origin: &str) -> String {
        self.last_event(origin, |event| event.what == "state").unwrap_or_default()
    }

    /// Waits until the last transition of `origin` was for `reason`.
    pub(crate) fn wait_why(&self, origin: &str, reason: &str) -> Result<()> {
        wait_until(&format!("{}/{origin} has the reason {reason}", self.name), READY, || {
            self.why(origin).contains(reason)
        })
        .with_context(|| format!("the last transition: {}", self.why(origin)))
    }

    /// What the last event about `origin` says that `is_meant`.
    fn last_event(&self, origin: &str, is_meant: impl Fn(&Event) -> bool) -> Option<String> {
        let object = format!("{}/{origin}", self.name);
        let events = self.stage.events.lock().unwrap_or_else(PoisonError::into_inner);
        let found = events.iter().rev().find(|event| event.object == object && is_meant(event));
        found.map(|event| event.detail.clone())
    }

    /// Its reasons as the text that `status --json` has.
    pub(crate) fn reasons(&self, origin: &str) -> String {
        let reasons = self.look(origin, |seen| serde_json::to_string(&seen.reasons).unwrap_or_default());
        reasons.unwrap_or_default()
    }

    /// Waits until `origin` is in one of `states`; how long that took.
    pub(crate) fn wait_for(&self, origin: &str, states: &[&str], limit: Duration) -> Result<Duration> {
        let begun = Instant::now();
        wait_until(&format!("{}/{origin} is {states:?}", self.name), limit, || {
            self.state(origin).is_some_and(|state| states.contains(&state.as_str()))
        })
        .with_context(|| {
            let last = self.last_event(origin, |_| true).unwrap_or_default();
            format!("it is {:?}, because {}; the last event: {last}", self.state(origin), self.reasons(origin))
        })?;
        Ok(begun.elapsed())
    }

    /// Waits for an event about `origin` whose text has `word` in it.
    pub(crate) fn wait_event(&self, origin: &str, word: &str) -> Result<()> {
        let object = format!("{}/{origin}", self.name);
        wait_until(&format!("an event of {object} says {word}"), READY * 2, || {
            let says = |event: &Event| event.what.contains(word) || event.detail.contains(word);
            self.last_event(origin, says).is_some()
        })
    }

    /// Children of the daemon that nobody has reaped, after the second that they may take.
    pub(crate) fn zombies(&self) -> Result<usize> {
        let daemon = self.daemon().pid().context("the daemon runs")?;
        let mut left = usize::MAX;
        wait_until("no zombie is left", Duration::from_secs(1), || {
            left = zombies_of(daemon);
            left == 0
        })
        .ok();
        Ok(left)
    }
}

impl Play<'_> {
    /// What `sluice pkcs11 doctor` says of a's module.
    pub(crate) fn doctor(&self) -> Result<String> {
        let module = self.a.fault.module();
        let library = module.library.display().to_string();
        let mut arguments = vec!["pkcs11".to_owned(), "doctor".to_owned(), library];
        for (name, value) in &module.environment {
            arguments.extend(["--env".to_owned(), format!("{name}={value}")]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.daemon().raw(&arguments, |_| {})?.success()
    }

    /// Waits until a is out, for `limit` and [`SLACK`]; `reason` must be among its reasons.
    pub(crate) fn wait_out(&self, reason: &str, limit: Duration) -> Result<Duration> {
        let took = self.wait_for("a", &OUT, limit + SLACK)?;
        self.wait_reason(reason)?;
        Ok(took)
    }

    /// Waits until a's last transition was for `reason`.
    pub(crate) fn wait_reason(&self, reason: &str) -> Result<()> {
        self.wait_why("a", reason)
    }

    /// Waits until a is back, for `limit` and [`SLACK`].
    pub(crate) fn wait_in(&self, limit: Duration) -> Result<Duration> {
        self.wait_for("a", &IN, limit + SLACK)
    }

    /// Waits until a's module has had `count` more calls of `function`; a is in all the time.
    pub(crate) fn stays_in_for(&self, function: &str, count: usize) -> Result<()> {
        let before = self.a.fault.count(function)?;
        let mut fallen = None;
        wait_until(&format!("{}: {count} calls of {function}", self.name), READY * 2, || {
            let state = self.state("a").unwrap_or_default();
            if OUT.contains(&state.as_str()) {
                fallen = Some(self.reasons("a"));
            }
            fallen.is_some() || self.a.fault.count(function).is_ok_and(|calls| calls >= before + count)
        })?;
        fallen.map_or(Ok(()), |reasons| Err(anyhow!("{}/a is out: {reasons}", self.name)))
    }

    /// Waits until a's module was loaded `count` more times, or called so often where it stays loaded.
    pub(crate) fn until_asked_again(&self, count: usize) -> Result<()> {
        let before = self.a.fault.count("C_GetTokenInfo")?;
        wait_until(&format!("{}: asked again", self.name), READY, || {
            self.a.fault.count("C_GetTokenInfo").is_ok_and(|calls| calls >= before + 2 * count)
        })
    }
}

fn zombies_of(parent: u32) -> usize {
    let Ok(processes) = std::fs::read_dir("/proc") else { return usize::MAX };
    let is_zombie = |path: &Path| -> Option<bool> {
        let stat = std::fs::read_to_string(path.join("stat")).ok()?;
        // The name in parentheses may hold anything.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        Some(fields.next()? == "Z" && fields.next()?.parse() == Ok(parent))
    };
    processes.flatten().filter(|entry| is_zombie(&entry.path()) == Some(true)).count()
}
