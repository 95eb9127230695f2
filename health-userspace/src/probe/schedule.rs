//! What is checked: origins and their checks, turned into jobs.

use super::{
    ProbeError,
    budget::Budget,
    chance::Chance,
    clock::Stalls,
    job::{Shared, Subscriber, Worker},
    kind::{self, Setting},
    pkcs11::Hub,
    rhythm::Run,
    round::Round,
    socket::{self, Sockets},
    standing::Standing,
    tls::Trust,
    trace::{Notes, Step},
};
use crate::config::{CheckConfig, Config, Ids, OriginConfig, ServiceConfig};
use health_core::{
    Span,
    model::{CheckResult, OriginId, Pace},
};
use nix::sys::resource::{Resource, getrlimit};
use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{sync::mpsc::Sender, task::JoinHandle, time::Instant};

/// Few first rounds are spread over this or the interval, whichever is less: a start should know soon what works.
const SPREAD_MIN: Span = Span::from_secs(1);
/// Many are spread so that about so many begin in a second, over at most their interval: the load is even from the start.
const FIRST_PER_S: u64 = 200;
/// Least time between two hurried rounds of an origin: suspicion comes in bursts, and must not become a load.
const HURRY_MIN: Duration = Duration::from_millis(250);
/// Descriptors that the daemon needs besides one for each check: maps, links, sockets of clients.
const DESCRIPTORS_OTHER: u64 = 256;

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
    /// How late it began by its schedule; none if it was hurried, or if somebody else's round is meant too.
    pub late: Option<Span>,
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
    /// Its own name.
    pub name: String,
    /// `fall` and `rise` of its service: what is not settled yet is asked faster.
    pub runs: (u32, u32),
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
                name: origin.name.clone(),
                runs: (service.policy.fall.into(), service.policy.rise.into()),
                checks: checks.iter().map(|(place, check)| (*place, check.of(origin))).collect(),
            };
            service.origins.iter().map(target).collect::<Vec<_>>()
        };
        config.services.iter().flat_map(targets_of).collect()
    }

    /// Places of the checks that the one of this name needs.
    fn needs(&self, check: &CheckConfig) -> Vec<u16> {
        let place = |name: &String| self.checks.iter().find(|(_, other)| other.name == *name).map(|(place, _)| *place);
        check.plan.needs.iter().filter_map(place).collect()
    }
}

/// Runs checks until it is dropped.
#[derive(Debug)]
pub struct Scheduler {
    node: Arc<Node>,
    mark: u32,
    trust: Trust,
    hub: Option<Arc<Hub>>,
    origins: HashMap<OriginId, Origin>,
    /// By the address that is asked.
    jobs: HashMap<SocketAddr, Vec<Job>>,
    _heart: Task,
}

/// What all jobs share.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) budget: Budget,
    pub(super) stalls: Stalls,
    pub(super) results: Sender<Report>,
}

/// An origin that is checked.
#[derive(Debug)]
struct Origin {
    standing: Arc<Standing>,
    checks: Vec<(u16, CheckConfig)>,
    jobs: Vec<Arc<Shared>>,
    hurried: Option<Instant>,
}

/// A check of an address, which has its task.
#[derive(Debug)]
struct Job {
    work: CheckConfig,
    shared: Arc<Shared>,
    _task: Task,
}

/// A job that is wanted, by whom, and its preparation if there is none yet.
struct Wanted<'a> {
    address: SocketAddr,
    work: CheckConfig,
    of: Vec<(&'a Target, u16)>,
    round: Option<Round>,
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
        let node = Arc::new(Node { budget, stalls: Stalls::new(), results });
        let heart = tokio::spawn({
            let node = Arc::clone(&node);
            async move { node.stalls.watch().await }
        });
        let (origins, jobs) = (HashMap::new(), HashMap::new());
        Ok(Self { node, mark: settings.mark, trust: Trust::default(), hub: None, origins, jobs, _heart: Task(heart) })
    }

    /// Checks these targets from now on, and no others. What did not change keeps its phase, and a round in flight.
    ///
    /// # Errors
    ///
    /// A check can't be run at all, or there are more than this process may have descriptors; then everything stays as it
    /// was.
    pub fn apply(&mut self, targets: &[Target]) -> Result<(), ProbeError> {
        // First all that may fail, then the change.
        let mut wanted = wanted(targets);
        descriptors(wanted.len())?;
        for one in &mut wanted {
            if !self.jobs.get(&one.address).is_some_and(|jobs| jobs.iter().any(|job| job.work == one.work)) {
                one.round = Some(self.prepare(one)?);
            }
        }
        let mut origins: HashMap<OriginId, Origin> =
            targets.iter().map(|target| (target.origin, self.origin(target))).collect();
        let spread =
            Span::from_secs(u64::try_from(wanted.iter().filter(|one| one.round.is_some()).count()).unwrap_or(0))
                .part(FIRST_PER_S)
                .max(SPREAD_MIN);
        let mut jobs: HashMap<SocketAddr, Vec<Job>> = HashMap::new();
        for one in wanted {
            let shared = self.old(&one).map_or_else(Arc::default, |old| Arc::clone(&old.shared));
            subscribe(&one, &shared, &mut origins);
            let (address, work) = (one.address, one.work.clone());
            let kept = self.jobs.get_mut(&address).and_then(|old| {
                let at = old.iter().position(|job| job.work == work)?;
                Some(old.swap_remove(at))
            });
            let job = match (kept, one.round) {
                (Some(kept), _) => kept,
                (None, Some(round)) => self.start(address, work, shared, round, spread),
                // Both were looked for in the same list.
                (None, None) => continue,
            };
            jobs.entry(address).or_default().push(job);
        }
        // What is left in the old maps ends here.
        (self.origins, self.jobs) = (origins, jobs);
        Ok(())
    }

    /// Checks HSMs too, by the workers of this hub.
    #[must_use]
    pub fn with_hub(self, hub: Arc<Hub>) -> Self {
        Self { hub: Some(hub), ..self }
    }

    /// Runs an origin's checks once, now; their schedule stays. At most once in 250 ms; further calls are dropped.
    pub fn hurry(&mut self, origin: OriginId) {
        let Some(origin) = self.origins.get_mut(&origin) else { return };
        let now = Instant::now();
        if origin.hurried.is_some_and(|last| now.duration_since(last) < HURRY_MIN) {
            return;
        }
        origin.hurried = Some(now);
        origin.jobs.iter().for_each(|job| job.hurry());
    }

    /// Takes how the judgement wants an origin to be checked from now on.
    pub fn pace(&self, origin: OriginId, pace: Pace) {
        let Some(origin) = self.origins.get(&origin) else { return };
        if origin.standing.set_pace(pace) {
            origin.jobs.iter().for_each(|job| job.reconsider());
        }
    }

    fn old(&self, one: &Wanted<'_>) -> Option<&Job> {
        self.jobs.get(&one.address)?.iter().find(|job| job.work == one.work)
    }

    fn prepare(&self, one: &Wanted<'_>) -> Result<Round, ProbeError> {
        // Whoever asked first names it in errors, and is the one whose address a kind is told.
        let address = one.of.first().map_or(one.address, |(target, _)| target.address);
        let source = &one.work.plan.source;
        let sockets = Sockets { mark: self.mark, address: source.address, interface: source.interface.clone() };
        let names =
            one.of.first().map(|(target, _)| (target.service.as_str(), target.name.as_str())).unwrap_or_default();
        let (trust, hub) = (&self.trust, self.hub.as_ref());
        Round::new(Setting { check: &one.work, address, sockets: &sockets, trust, names, hub })
    }

    /// The origin of a target, which goes on where it was.
    fn origin(&self, target: &Target) -> Origin {
        let places = target.checks.iter().map(|(place, _)| usize::from(*place) + 1).max().unwrap_or(0);
        let standing = Standing::new(target.origin, &target.service, target.runs, places);
        let old = self.origins.get(&target.origin);
        if let Some(old) = old {
            standing.inherit(&old.standing);
            for (place, check) in &target.checks {
                if let Some((before, _)) = old.checks.iter().find(|(_, other)| other == check) {
                    standing.set_last(*place, old.standing.last(*before));
                }
            }
        }
        let hurried = old.and_then(|old| old.hurried);
        Origin { standing: Arc::new(standing), checks: target.checks.clone(), jobs: Vec::new(), hurried }
    }

    fn start(&self, address: SocketAddr, check: CheckConfig, shared: Arc<Shared>, round: Round, spread: Span) -> Job {
        let mut chance = Chance::of(address, check.kind.name());
        let spread = check.interval.min(spread);
        let first = chance.below(spread);
        let worker = Worker {
            node: Arc::clone(&self.node),
            shared: Arc::clone(&shared),
            check: check.clone(),
            chance,
            round,
            base: Instant::now(),
            part: 0,
            run: Run::default(),
        };
        Job { work: check, shared, _task: Task(tokio::spawn(worker.work(first, spread))) }
    }
}

/// What is to be asked, once for each address and question, whoever wants to know.
fn wanted(targets: &[Target]) -> Vec<Wanted<'_>> {
    let mut places: HashMap<SocketAddr, Vec<usize>> = HashMap::new();
    let mut wanted: Vec<Wanted<'_>> = Vec::new();
    for target in targets {
        for (place, check) in &target.checks {
            let (address, work) = (kind::asks(check, target.address), question(check));
            let same = places.entry(address).or_default();
            if let Some(&at) = same.iter().find(|at| wanted[**at].work == work) {
                wanted[at].of.push((target, *place));
                continue;
            }
            same.push(wanted.len());
            wanted.push(Wanted { address, work, of: vec![(target, *place)], round: None });
        }
    }
    wanted
}

/// The check without what only its service knows: two that are equal then ask the same, equally often.
fn question(check: &CheckConfig) -> CheckConfig {
    let mut work = check.clone();
    work.name.clear();
    work.plan.needs.clear();
    (work.plan.critical, work.plan.verify) = (true, false);
    work
}

fn subscribe(one: &Wanted<'_>, shared: &Arc<Shared>, origins: &mut HashMap<OriginId, Origin>) {
    let mut subscribers = Vec::with_capacity(one.of.len());
    for &(target, place) in &one.of {
        let Some(origin) = origins.get_mut(&target.origin) else { continue };
        let Some((_, check)) = target.checks.iter().find(|(other, _)| *other == place) else { continue };
        origin.jobs.push(Arc::clone(shared));
        let needs = target.needs(check);
        for &need in &needs {
            origin.standing.add_waiting(need, Arc::downgrade(shared));
        }
        let verify = check.plan.verify;
        subscribers.push(Subscriber { origin: Arc::clone(&origin.standing), place, needs, verify });
    }
    shared.subscribe(subscribers);
}

/// Refuses more checks than this process may have descriptors for, while it is known who asked for them.
fn descriptors(checks: usize) -> Result<(), ProbeError> {
    let needed = u64::try_from(checks).unwrap_or(u64::MAX).saturating_add(DESCRIPTORS_OTHER);
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((limit, _)) if limit < needed => Err(ProbeError::Descriptors { checks, needed, limit }),
        // A limit that can't be read is met when it is met, and then it is local trouble.
        Ok(_) | Err(_) => Ok(()),
    }
}
