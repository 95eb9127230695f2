//! Plays episodes: a lab, a daemon, a steady load, a fault, its end, and what was seen.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use lab::{Fault, now_ns, stop};

use super::figures::{BEFORE_NS, Document, ENDED_NS, Evidence, Report, back_ns};
use super::plan::Group;
use super::scene::Scene;
use super::view::{self, View};

/// How long a fault lasts.
const FAULT: Duration = Duration::from_secs(12);
/// How long a flap lasts.
const FLAP: Duration = Duration::from_millis(500);
/// Load before a fault: far more than the 20 RTT and TTFB samples that learning needs.
const STEADY: Duration = Duration::from_secs(3);
/// Until a new or returned origin is `healthy` again.
const HEALTHY_LIMIT: Duration = Duration::from_secs(25);
/// Until traffic is back on a restored origin: two passes, and a hold-down that has grown with each fault.
const BACK_LIMIT: Duration = Duration::from_secs(20);
/// An episode is not begun with less time left than it may take.
const EPISODE_LIMIT: Duration = Duration::from_secs(45);
const POLL: Duration = Duration::from_millis(20);

/// The run as a whole.
pub(super) struct Stage {
    view: View,
    /// Sluice; none to see what users have without it.
    binary: Option<PathBuf>,
    begun: Instant,
    /// For all episodes.
    limit: Option<Duration>,
    total: usize,
    reports: Vec<Report>,
    errors: Vec<String>,
}

impl Stage {
    pub(super) fn new(view: View, groups: &[Group], binary: Option<PathBuf>, limit: Option<Duration>) -> Self {
        let total = groups.iter().map(|group| group.faults.len()).sum();
        Self { view, binary, begun: Instant::now(), limit, total, reports: Vec::new(), errors: Vec::new() }
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
            let enough = self.limit.is_none_or(|limit| self.begun.elapsed() + EPISODE_LIMIT < limit);
            ensure!(enough, "no time left for {}", fault.name());
            let played = self.episode(&mut scene, fault);
            let report = played.map_err(|error| anyhow!("{}: {error:#}{}", fault.name(), scene.log_tail()))?;
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
        let mut neighbour_lost = false;
        let lasts = if fault == Fault::Flap { FLAP } else { FAULT };
        if fault == Fault::LinkDown {
            scene.watch_neighbour(true)?;
        }
        // Nothing is awaited here: the fault lasts its time.
        self.watch(scene, lasts, |scene| {
            // A tool that fails shows as an entry that was never lost.
            neighbour_lost |= fault == Fault::LinkDown && scene.watch_neighbour(false).unwrap_or(false);
            false
        })?;
        let steered = scene.steered().zip(before).map(|(now, before)| now.since(before));
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
            method: scene.group.method,
            links: scene.group.links(),
            fault,
            judged: self.binary.is_some(),
            neighbour_lost,
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
