//! Who runs when.

use super::{
    ProbeError,
    clock::{Stalls, duration},
    kind::Setting,
    round::{Finished, Round},
    socket::{self, Sockets},
    tls,
    trace::{Notes, Step},
};
use crate::config::{CheckConfig, CheckKind, Config, Ids, OriginConfig, ServiceConfig};
use health_core::{
    Span,
    model::{CheckResult, OriginId},
};
use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, mpsc::Sender},
    task::JoinHandle,
    time::{Instant, sleep_until},
};
use tokio_rustls::rustls::ClientConfig;

/// First rounds are spread over this or the interval, whichever is less: a start should know soon what works.
const SPREAD_MAX: Span = Span::from_secs(1);
/// A round that begins later than this, or than half its interval, is dropped as late.
const LATE_MIN: Span = Span::from_secs(1);
/// Least time between two hurried rounds of an origin: suspicion comes in bursts, and must not become a load.
const HURRY_MIN: Duration = Duration::from_millis(250);
/// Share of a second's budget that may be spent at once.
const BURST_PART: u32 = 10;

/// What all checks share.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// `SO_MARK` of checks: `node.bypass.mark`.
    pub mark: u32,
    /// Budget of the node: `node.limits.checks_per_s`.
    pub checks_per_s: u32,
}

/// A finished round.
#[derive(Clone, Debug)]
pub struct Report {
    /// What the judgement needs to know.
    pub result: CheckResult,
    /// Its steps, in order; the last one is where it ended.
    pub steps: Vec<Step>,
    /// What else it found.
    pub notes: Notes,
}

/// One origin and what is asked of it.
#[derive(Clone, Debug)]
pub struct Target {
    /// Named in results.
    pub origin: OriginId,
    /// Where it is.
    pub address: SocketAddr,
    /// Its service's name, for logs.
    pub service: String,
    /// Checks, each with its place in the service's list.
    pub checks: Vec<(u16, CheckConfig)>,
}

impl Target {
    /// All origins of a configuration. Those of weight 0 and the standbys are checked like any other.
    #[must_use]
    pub fn all(config: &Config, ids: &dyn Ids) -> Vec<Self> {
        let targets_of = |service: &ServiceConfig| {
            let checks: Vec<_> = (0..).zip(service.checks.iter().cloned()).collect();
            let target = |origin: &OriginConfig| Self {
                origin: ids.origin(origin.address),
                address: origin.address,
                service: service.name.clone(),
                checks: checks.clone(),
            };
            service.origins.iter().map(target).collect::<Vec<_>>()
        };
        config.services.iter().flat_map(targets_of).collect()
    }
}

/// Runs checks until it is dropped.
#[derive(Debug)]
pub struct Scheduler {
    shared: Arc<Shared>,
    tls: Option<Arc<ClientConfig>>,
    origins: HashMap<OriginId, Origin>,
    _heart: Task,
}

#[derive(Debug)]
struct Shared {
    mark: u32,
    budget: Budget,
    stalls: Stalls,
    results: Sender<Report>,
}

/// An origin that is checked.
#[derive(Debug, Default)]
struct Origin {
    checks: Vec<Running>,
    hurried: Option<Instant>,
}

/// A check that has its task; `check.name` is unique among an origin's.
#[derive(Debug)]
struct Running {
    address: SocketAddr,
    check: CheckConfig,
    index: Arc<AtomicU16>,
    hurry: Arc<Notify>,
    _task: Task,
}

/// A task that ends with its owner.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Scheduler {
    /// Ready, with nothing to do yet. Must be called inside a tokio runtime; results go to `results`, and a full channel
    /// makes checks wait.
    ///
    /// # Errors
    ///
    /// Sockets can't be marked (no CAP_NET_ADMIN). Checks would then be steered, and so prove nothing.
    pub fn new(settings: Settings, results: Sender<Report>) -> Result<Self, ProbeError> {
        socket::try_mark(settings.mark)?;
        let budget = Budget::new(settings.checks_per_s);
        let shared = Arc::new(Shared { mark: settings.mark, budget, stalls: Stalls::new(), results });
        let heart = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move { shared.stalls.watch().await }
        });
        Ok(Self { shared, tls: None, origins: HashMap::new(), _heart: Task(heart) })
    }

    /// Checks these targets from now on, and no others. What did not change keeps its phase, and a round in flight.
    ///
    /// # Errors
    ///
    /// A check can't be run at all; then everything stays as it was.
    pub fn apply(&mut self, targets: &[Target]) -> Result<(), ProbeError> {
        let https = |check: &CheckConfig| matches!(&check.kind, CheckKind::Http(http) if http.url.scheme() == "https");
        let mut checks = targets.iter().flat_map(|target| &target.checks);
        if self.tls.is_none() && checks.any(|(_, check)| https(check)) {
            self.tls = Some(tls::system()?);
        }
        // First all that may fail, then the change.
        let mut fresh = Vec::new();
        for target in targets {
            for (index, check) in &target.checks {
                if self.find(target, check).is_none() {
                    let sockets = Sockets { mark: self.shared.mark, ..Sockets::default() };
                    let setting = Setting { check, address: target.address, sockets: &sockets, tls: self.tls.as_ref() };
                    let round = Round::new(setting)?;
                    fresh.push((target, *index, check, round));
                }
            }
        }
        let mut origins: HashMap<OriginId, Origin> = HashMap::new();
        for target in targets {
            let next = origins.entry(target.origin).or_default();
            let Some(old) = self.origins.get_mut(&target.origin) else { continue };
            next.hurried = old.hurried;
            for (index, check) in &target.checks {
                let same = |old: &Running| old.address == target.address && old.check == *check;
                let Some(at) = old.checks.iter().position(same) else { continue };
                let kept = old.checks.swap_remove(at);
                kept.index.store(*index, Ordering::Relaxed);
                next.checks.push(kept);
            }
        }
        for (target, index, check, round) in fresh {
            let running = self.start(target, index, check, round);
            origins.entry(target.origin).or_default().checks.push(running);
        }
        // What is left in the old map ends here.
        self.origins = origins;
        Ok(())
    }

    /// Runs an origin's checks once, now; their schedule stays. At most once in 250 ms; further calls are dropped.
    pub fn hurry(&mut self, origin: OriginId) {
        let Some(origin) = self.origins.get_mut(&origin) else { return };
        let now = Instant::now();
        if origin.hurried.is_some_and(|last| now.duration_since(last) < HURRY_MIN) {
            return;
        }
        origin.hurried = Some(now);
        for running in &origin.checks {
            running.hurry.notify_one();
        }
    }

    fn find(&self, target: &Target, check: &CheckConfig) -> Option<&Running> {
        let checks = &self.origins.get(&target.origin)?.checks;
        checks.iter().find(|old| old.address == target.address && old.check == *check)
    }

    fn start(&self, target: &Target, index: u16, check: &CheckConfig, round: Round) -> Running {
        let Target { origin, address, ref service, .. } = *target;
        let index = Arc::new(AtomicU16::new(index));
        let hurry = Arc::new(Notify::new());
        let worker = Worker {
            shared: Arc::clone(&self.shared),
            origin,
            service: service.clone(),
            name: check.name.clone(),
            index: Arc::clone(&index),
            hurry: Arc::clone(&hurry),
            interval: check.interval,
            chance: Chance::of(origin, address, &check.name),
            round,
        };
        Running { address, check: check.clone(), index, hurry, _task: Task(tokio::spawn(worker.work())) }
    }
}

/// One check of one origin, for as long as it is configured.
struct Worker {
    shared: Arc<Shared>,
    origin: OriginId,
    service: String,
    name: String,
    index: Arc<AtomicU16>,
    hurry: Arc<Notify>,
    interval: Span,
    chance: Chance,
    round: Round,
}

impl Worker {
    async fn work(mut self) {
        let spread = self.interval.min(SPREAD_MAX);
        let late = Span(self.interval.0 / 2).max(LATE_MIN);
        let mut due = Instant::now() + duration(self.chance.below(spread));
        // The first rounds come close together; the second ones go to their places all over the interval.
        let mut step = self.chance.between(self.interval, 25, 125);
        loop {
            let hurried = tokio::select! {
                () = sleep_until(due) => false,
                () = self.hurry.notified() => true,
            };
            let woke = Instant::now();
            let wait = self.shared.budget.reserve(woke);
            if !wait.is_zero() {
                sleep_until(woke + wait).await;
            }
            // Waiting for the budget is no lateness: the node is told to check more slowly.
            let behind = if hurried { Duration::ZERO } else { woke.duration_since(due) } + (woke + wait).elapsed();
            let is_late = behind > duration(late);
            let finished = if is_late { Finished::late() } else { self.round.run(&self.shared.stalls).await };
            if !self.tell(finished).await {
                return;
            }
            if hurried {
                continue;
            }
            due += duration(step);
            let now = Instant::now();
            if is_late {
                // Missed rounds collapse into one, and a node that was stopped does not run them all at once.
                due = now + duration(self.chance.below(spread));
            } else if due < now {
                due = now + duration(self.chance.below(Span(spread.0 / 10)));
            }
            step = self.chance.between(self.interval, 90, 110);
        }
    }

    /// False once nobody listens any more.
    async fn tell(&mut self, finished: Finished) -> bool {
        let Finished { began, ended, outcome, steps, notes } = finished;
        let (service, check) = (self.service.as_str(), self.name.as_str());
        tracing::trace!(service, check, origin = self.origin.0, ?outcome, took = %ended.since(began), "round");
        let check = self.index.load(Ordering::Relaxed);
        let result = CheckResult { origin: self.origin, check, began, ended, outcome };
        self.shared.results.send(Report { result, steps, notes }).await.is_ok()
    }
}

/// The node's budget: a token bucket, kept as the time at which it is full again.
#[derive(Debug)]
struct Budget {
    period: Duration,
    burst: Duration,
    full_at: Mutex<Option<Instant>>,
}

impl Budget {
    fn new(per_s: u32) -> Self {
        let per_s = per_s.max(1);
        let period = Duration::from_secs(1) / per_s;
        Self { period, burst: period * (per_s / BURST_PART).max(1), full_at: Mutex::new(None) }
    }

    /// Takes one round out of the budget, and says how long it has to wait for it.
    fn reserve(&self, now: Instant) -> Duration {
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = full_at.map_or(now, |full_at| full_at.max(now));
        let after = begin + self.period;
        *full_at = Some(after);
        after.duration_since(now).saturating_sub(self.burst)
    }
}

/// Marsaglia's xorshift64: spreads schedules, alike in every run, and needs no entropy.
#[derive(Clone, Copy, Debug)]
struct Chance(u64);

impl Chance {
    /// FNV-1a over what names the schedule.
    fn of(origin: OriginId, address: SocketAddr, check: &str) -> Self {
        let text = format!("{}/{address}/{check}", origin.0);
        let hash = text
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        Self(hash | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Something below `span`; nothing if there is nothing below.
    fn below(&mut self, span: Span) -> Span {
        Span(self.next().checked_rem(span.0).unwrap_or(0))
    }

    /// Between two percentages of `span`.
    fn between(&mut self, span: Span, least: u64, most: u64) -> Span {
        let hundredth = Span(span.0 / 100);
        let width = self.below(hundredth.times(most - least));
        Span(hundredth.times(least).0.saturating_add(width.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_lets_a_burst_pass_and_then_spreads() {
        let budget = Budget::new(100);
        let now = Instant::now();
        let waits: Vec<u128> = (0..14).map(|_| budget.reserve(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 20, 30, 40]);
        // A second later it has recovered, and holds no more than its burst.
        let later = now + Duration::from_mins(1);
        let waits: Vec<u128> = (0..12).map(|_| budget.reserve(later).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 20]);
        assert_eq!(Budget::new(0).reserve(now), Duration::ZERO);
    }

    #[test]
    fn first_rounds_are_spread_and_alike_in_every_run() {
        let address = SocketAddr::from(([10, 0, 0, 1], 80));
        let mut tenths = [0_u32; 10];
        for origin in 0..10_000 {
            let first = Chance::of(OriginId(origin), address, "tcp").below(SPREAD_MAX);
            assert_eq!(first, Chance::of(OriginId(origin), address, "tcp").below(SPREAD_MAX));
            tenths[usize::try_from(first.as_millis() / 100).expect("a small number")] += 1;
        }
        assert!(tenths.iter().all(|count| (800..1200).contains(count)), "{tenths:?}");
    }

    #[test]
    fn jitter_stays_within_a_tenth() {
        let mut chance = Chance(1);
        for _ in 0..10_000 {
            let step = chance.between(Span::from_secs(5), 90, 110);
            assert!((Span::from_millis(4500)..=Span::from_millis(5500)).contains(&step), "{step}");
        }
        assert_eq!(Chance(1).below(Span::ZERO), Span::ZERO);
    }
}
