//! Plays episodes: a lab, a daemon, a steady load, a fault, its end, and what was seen.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use lab::{Daemon, Event, Fault, Lab, LabConfig, LabOptions, Load, LoadOptions, Nginx, PROXY_PORT, ProxyKind};
use lab::{now_ns, stop};

use super::figures::{BEFORE_NS, Document, Evidence, Report, Steered, back_ns};
use super::plan::{Group, Route};
use super::view::{self, Frame, Second, View};

/// How long a fault lasts.
const FAULT: Duration = Duration::from_secs(12);
/// Load before a fault: far more than the 20 RTT and TTFB samples that learning needs.
const STEADY: Duration = Duration::from_secs(3);
/// Until a new or returned origin is `healthy` again.
const HEALTHY_LIMIT: Duration = Duration::from_secs(25);
/// Until traffic is back on a restored origin: two passes, and a hold-down that has grown with each fault.
const BACK_LIMIT: Duration = Duration::from_secs(20);
/// After the client timeout, every connection of the window has ended. Unit: ns.
const ENDED_NS: u64 = 5_200_000_000;
/// Of the whole run.
const RUN_LIMIT: Duration = Duration::from_mins(12);
/// An episode is not begun with less time left than it may take.
const EPISODE_LIMIT: Duration = Duration::from_secs(45);
const POLL: Duration = Duration::from_millis(20);
/// Between two looks at the daemon. Each look is a process.
const LOOK: Duration = Duration::from_millis(500);
/// Connections of the last second, a little ago so that they have ended. Unit: ns.
const JUST_NOW_NS: std::ops::Range<u64> = 200_000_000..1_200_000_000;

/// Everything that one group of episodes needs. Field order is drop order.
struct Scene<'a> {
    load: Load,
    daemon: Option<Daemon>,
    _proxy: Option<Nginx>,
    lab: Lab,
    group: &'a Group,
    title: String,
    phase: &'static str,
    /// Zero of the shown seconds: the fault, once it is there.
    zero_ns: u64,
    states: String,
    events: Vec<String>,
    looked: Instant,
}

/// The run as a whole.
pub(super) struct Stage {
    view: View,
    /// Sluice; none to see what users have without it.
    binary: Option<PathBuf>,
    begun: Instant,
    total: usize,
    reports: Vec<Report>,
    errors: Vec<String>,
}

impl Stage {
    pub(super) fn new(view: View, groups: &[Group], binary: Option<PathBuf>) -> Self {
        let total = groups.iter().map(|group| group.faults.len()).sum();
        Self { view, binary, begun: Instant::now(), total, reports: Vec::new(), errors: Vec::new() }
    }

    /// A line that stays.
    pub(super) fn say(&mut self, line: &str) {
        self.view.say(line);
    }

    pub(super) fn fail(&mut self, why: String) {
        self.view.say(&why);
        self.errors.push(why);
    }

    /// What is there, even if episodes are missing.
    pub(super) fn finish(mut self) -> Document {
        self.view.clear();
        let complete = self.errors.is_empty() && self.reports.len() == self.total;
        let met = self.reports.iter().all(|report| report.missed.is_empty());
        let judged = self.binary.is_some();
        Document { ok: complete && met && judged, episodes: self.reports, judged, errors: self.errors }
    }

    /// Plays all episodes of `group`.
    pub(super) fn play(&mut self, group: &Group) -> Result<()> {
        self.view.say(&format!("building a lab: {group}"));
        let mut scene = Scene::set(group, self.binary.as_deref())?;
        for &fault in &group.faults {
            ensure!(self.begun.elapsed() + EPISODE_LIMIT < RUN_LIMIT, "no time left for {}", fault.name());
            let played = self.episode(&mut scene, fault);
            let mut report = played.map_err(|error| anyhow!("{}: {error:#}{}", fault.name(), scene.log_tail()))?;
            if self.binary.is_none() {
                report.missed.clear();
            }
            self.view.say(&view::summary(&report, self.binary.is_some()));
            self.reports.push(report);
        }
        Ok(())
    }

    fn episode(&mut self, scene: &mut Scene<'_>, fault: Fault) -> Result<Report> {
        scene.title = format!("{}/{}  {}: {}", self.reports.len() + 1, self.total, scene.group, fault.name());
        let begin_ns = self.steady(scene)?;
        let before = scene.steered();
        let fault_ns = scene.lab.a.fail(fault)?;
        scene.zero_ns = fault_ns;
        scene.phase = "a fails";
        // Nothing is awaited here: the fault lasts its time.
        self.watch(scene, FAULT, |_| false)?;
        let steered = scene.steered().zip(before).map(|(now, before)| Steered {
            connect: now.connect.saturating_sub(before.connect),
            tc_egress: now.tc_egress.saturating_sub(before.tc_egress),
        });
        let restore_ns = scene.lab.a.restore()?;
        scene.phase = "a is restored";
        let is_back = |scene: &mut Scene<'_>| {
            let records = scene.records(restore_ns);
            now_ns() > restore_ns + ENDED_NS && back_ns(&records, restore_ns).is_some()
        };
        self.watch(scene, BACK_LIMIT, is_back)?;
        let window_ns = begin_ns.max(fault_ns.saturating_sub(BEFORE_NS));
        let object = format!("{}/a", scene.group.family.service());
        let evidence = Evidence {
            route: scene.group.route,
            family: scene.group.family.name(),
            links: scene.group.links(),
            fault,
            object: &object,
            window_ns,
            fault_ns,
            restore_ns,
            records: &scene.records(window_ns),
            events: &scene.all_events()?,
            steered,
        };
        Ok(evidence.judge())
    }

    /// Waits for three seconds of load, the last of which all on a, and for both origins to be healthy. Returns when the
    /// load of this episode began.
    fn steady(&mut self, scene: &mut Scene<'_>) -> Result<u64> {
        scene.phase = "steady load";
        let begin_ns = now_ns();
        let begun = Instant::now();
        scene.zero_ns = begin_ns;
        let ready = |scene: &mut Scene<'_>| begun.elapsed() >= STEADY && scene.all_on_a() && scene.both_healthy();
        if !self.watch(scene, HEALTHY_LIMIT, ready)? {
            bail!("not ready for the fault within {HEALTHY_LIMIT:?}: {}", scene.states);
        }
        Ok(begin_ns)
    }

    /// Shows the scene until `done` (true) or for `limit` (false).
    fn watch(
        &mut self,
        scene: &mut Scene<'_>,
        limit: Duration,
        mut done: impl FnMut(&mut Scene<'_>) -> bool,
    ) -> Result<bool> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            if done(scene) {
                return Ok(true);
            }
            stop::check()?;
            ensure!(scene.load.runs(), "the load has ended by itself");
            if self.view.is_live() {
                scene.look();
                self.view.draw(&scene.frame(self.begun.elapsed()));
            }
            thread::sleep(POLL.min(limit.saturating_sub(begun.elapsed())));
        }
        Ok(false)
    }
}

impl<'a> Scene<'a> {
    fn set(group: &'a Group, binary: Option<&Path>) -> Result<Self> {
        let family = group.family;
        let lab = Lab::new(LabOptions { two_links: group.two_links })?;
        let config = match group.route {
            Route::Packet => LabConfig::of(&lab).without_socket_steering(),
            Route::Local | Route::Nginx => LabConfig::of(&lab),
        };
        let daemon = match binary {
            None => None,
            Some(binary) => {
                let mut daemon = Daemon::with_binary(&lab, &config, binary.to_owned())?;
                daemon.start()?;
                Some(daemon)
            }
        };
        let (proxy, from, target) = match group.route {
            Route::Local | Route::Packet => (None, &lab.node, lab.origin_a(family)),
            Route::Nginx => {
                let upstream = lab.origin_a(family);
                let proxy = Nginx::proxy(&lab.node, lab.dir(), PROXY_PORT, upstream, ProxyKind::Defaults)?;
                (Some(proxy), &lab.client, lab.node_for_client(family, PROXY_PORT))
            }
        };
        let load = Load::start(from, LoadOptions::figures(target))?;
        Ok(Self {
            load,
            daemon,
            _proxy: proxy,
            lab,
            group,
            title: String::new(),
            phase: "",
            zero_ns: now_ns(),
            states: String::new(),
            events: Vec::new(),
            looked: Instant::now(),
        })
    }

    /// Records since `from_ns`, by start.
    fn records(&self, from_ns: u64) -> Vec<lab::Record> {
        let mut records = self.load.pick(|record| record.start_ns >= from_ns);
        records.sort_by_key(|record| record.start_ns);
        records
    }

    fn all_on_a(&self) -> bool {
        let now = now_ns();
        let just_now = self.load.pick(|record| JUST_NOW_NS.contains(&now.saturating_sub(record.start_ns)));
        !just_now.is_empty() && just_now.iter().all(|record| record.outcome.is_ok() && record.origin == Some('a'))
    }

    fn both_healthy(&mut self) -> bool {
        self.look();
        self.daemon.is_none() || self.states == "a healthy, b healthy"
    }

    /// Reads states and the last events, at most every [`LOOK`].
    fn look(&mut self) {
        let Some(daemon) = &self.daemon else { return };
        if self.looked.elapsed() < LOOK && !self.states.is_empty() {
            return;
        }
        self.looked = Instant::now();
        let service = self.group.family.service();
        self.states = match daemon.status() {
            Err(error) => format!("no status: {error:#}"),
            Ok(status) => {
                let state = |origin| status.state(service, origin).unwrap_or("?").to_owned();
                format!("a {}, b {}", state("a"), state("b"))
            }
        };
        if let Ok(mut events) = daemon.events() {
            events.sort_by_key(|event| event.at_ns);
            self.events =
                events.iter().rev().take(view::EVENTS_MAX).rev().map(|event| self.event_line(event)).collect();
        }
    }

    fn event_line(&self, event: &Event) -> String {
        let Event { at_ns, what, object, detail, by } = event;
        let since = Duration::from_nanos(at_ns.saturating_sub(self.zero_ns)).as_secs_f64();
        let before = if *at_ns < self.zero_ns { "before".to_owned() } else { format!("+{since:.3}s") };
        format!("{before:>9}  {what:<9} {object:<9} {detail}  {by}")
    }

    fn frame(&self, since_begin: Duration) -> Frame {
        let (zero_ns, now) = (self.zero_ns, now_ns());
        let current = now.saturating_sub(zero_ns) / 1_000_000_000;
        let mut seconds: Vec<Second> = (current.saturating_sub(view::SECONDS_MAX)..=current).map(Second::new).collect();
        self.load.look(|records| {
            for record in records.iter().filter(|record| record.start_ns >= zero_ns) {
                let second = (record.start_ns - zero_ns) / 1_000_000_000;
                if let Some(shown) = seconds.iter_mut().find(|shown| shown.number == second) {
                    shown.count(record);
                }
            }
        });
        Frame {
            title: self.title.clone(),
            phase: self.phase,
            phase_for: Duration::from_nanos(now.saturating_sub(zero_ns)),
            run_for: since_begin,
            states: self.states.clone(),
            seconds,
            events: self.events.clone(),
        }
    }

    fn all_events(&self) -> Result<Vec<Event>> {
        let mut events = self.daemon.as_ref().map_or_else(|| Ok(Vec::new()), Daemon::events)?;
        events.sort_by_key(|event| event.at_ns);
        Ok(events)
    }

    /// `sluice_steered_total` by hook. A series that is not there has not counted yet.
    fn steered(&self) -> Option<Steered> {
        let metrics = self.daemon.as_ref()?.metrics().ok()?;
        let count = |hook| {
            let value = metrics.value("sluice_steered_total", &[("hook", hook)]).unwrap_or_default();
            format!("{value:.0}").parse().unwrap_or_default()
        };
        Some(Steered { connect: count("connect"), tc_egress: count("tc_egress") })
    }

    fn log_tail(&self) -> String {
        match &self.daemon {
            // After Ctrl-C nobody asks why.
            Some(daemon) if !stop::requested() => format!("\nthe end of the daemon's log:\n{}", daemon.log_tail()),
            _ => String::new(),
        }
    }
}
