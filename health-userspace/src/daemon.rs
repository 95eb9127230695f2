//! The loop that joins kernel, checks, judgement and operators.
//!
//! One task owns everything that changes: it reads the kernel, ticks the engine, carries the plan out, and publishes what
//! is so. Nothing here decides. Cancel safety: all waiting is in one `select!` over channels, timers and readiness, none
//! of which loses anything when another branch wins.
//!
//! | file | does |
//! |---|---|
//! | `attack` | which services are under attack, by the files that scrubbers touch |
//! | `detach` | the way out: drain, then remove programs and pins |
//! | `endings` | established connections to origins in fault |
//! | `events` | kernel events and decisions as lines for `sluice events` |
//! | `house` | what happens by itself: interfaces, routes, neighbours, handovers |
//! | `memory` | what outlives the daemon |
//! | `orders` | what operators want of origins and of their way back |
//! | `learn` | percentiles of the recent past, from the kernel's histograms |
//! | `names` | origins by name |
//! | `publish` | what `status` and `/metrics` show |
//! | `reload` | another configuration, or why not |
//! | `routes` | ways to origins, and what is wrong with them |
//! | `start` | everything before the first tick |
//! | `trouble` | rounds of checks that say nothing about origins |
//! | `windows` | which services' time of the day it is |

mod attack;
mod counted;
mod detach;
mod endings;
mod events;
mod house;
mod learn;
mod memory;
mod names;
mod orders;
mod publish;
mod reload;
mod routes;
mod start;
mod trouble;
mod windows;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use detach::Draining;
use health_common::histogram;
use health_core::{
    Span, Timestamp,
    engine::{Engine, Input, OriginView, Step, Sum, TrafficTotals},
    model::{OriginId, Outcome, ServiceSpec},
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
    time::Instant,
};
use tracing::{error, info, warn};

use crate::{
    act::{
        self,
        ending::{Ended, Ender},
    },
    cli::RunOptions,
    config::Config,
    control::{self, Command, EventLog, Published},
    datapath::{Applied, Datapath, OriginReading, Ring, Routes, Sweeper},
    probe::{
        self, Report, Scheduler,
        pkcs11::{Alarm, Hub},
    },
    telemetry::{Heartbeat, Metrics},
};

/// Time between ticks without an occasion. The judgement's shortest limits are seconds.
const TICK: Duration = Duration::from_millis(100);

/// Longest such time. Ticks of very many origins take longer, and are then rarer: see [`TICK_FACTOR`].
const TICK_MAX: Duration = Duration::from_secs(1);

/// A tick is followed by a pause of so many times its length, so that judging costs a twentieth of a core at most.
const TICK_FACTOR: u32 = 19;

/// Origins read from the kernel in one tick; more take turns, so that ten thousand cost no more than a hundred.
const READS_MAX: usize = 200;

/// Time between looks at interfaces and routes.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

pub use start::{StartError, run};

/// Everything that the loop owns.
struct Daemon {
    options: RunOptions,
    config: Config,
    names: names::Names,
    specs: Vec<ServiceSpec>,
    datapath: Datapath,
    sweeper: Sweeper,
    routes: Routes,
    house: house::House,
    engine: Engine,
    checks: Scheduler,
    results: mpsc::Receiver<Report>,
    /// Workers of the HSMs.
    hub: Arc<Hub>,
    alarms: mpsc::Receiver<Alarm>,
    commands: mpsc::Receiver<Command>,
    log: EventLog,
    status: watch::Sender<Option<Arc<Published>>>,
    metrics: Metrics,
    heartbeat: Heartbeat,
    /// Results and orders since the last tick.
    input: Input,
    /// The newest reading of each origin.
    readings: BTreeMap<u16, OriginReading>,
    /// Where the next tick goes on reading.
    next_read: usize,
    learned: BTreeMap<u16, learn::Learner>,
    last: Option<Step>,
    applied: Applied,
    tallies: publish::Tallies,
    troubles: trouble::Troubles,
    /// A detach that waits for redirected flows to end.
    draining: Option<Draining>,
    attacks: attack::Files,
    keeper: memory::Keeper,
    /// Who ends established connections, and what became of that.
    ender: Ender,
    ended: mpsc::UnboundedReceiver<Ended>,
    ticks: u64,
    lag: Duration,
}

/// Why the loop ended.
enum End {
    /// A signal asked for it; the datapath goes on.
    Stopped,
    /// An operator had programs and pins removed.
    Detached,
}

impl Daemon {
    async fn run(mut self, mut ring: Ring) -> Result<End, StartError> {
        let mut signals = Signals::new().map_err(StartError::Signals)?;
        let mut due = Instant::now();
        let mut housekeeping = Instant::now();
        let mut asking = tokio::time::interval(names::EVERY);
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(due) => {
                    let began = Instant::now();
                    self.lag = began.saturating_duration_since(due);
                    self.tick();
                    due = began + TICK.max(began.elapsed() * TICK_FACTOR).min(TICK_MAX);
                    if let Some(end) = self.drained().await {
                        return Ok(end);
                    }
                    if began >= housekeeping {
                        housekeeping = began + HOUSEKEEPING;
                        self.keep_house().await;
                    }
                }
                events = ring.read() => {
                    match events {
                        Ok(events) => self.kernel_events(&events),
                        Err(error) => error!(%error, "cannot read the kernel's events"),
                    }
                }
                _ = asking.tick() => self.names.ask(),
                found = self.names.answer() => self.renamed(found).await,
                neighbours = self.house.neighbours() => self.saw_neighbours(&neighbours),
                Some(report) = self.results.recv() => self.check_result(&report),
                Some(Alarm { what, object, detail }) = self.alarms.recv() => {
                    self.push(what, object, detail, "daemon", probe::now().0);
                }
                Some(ended) = self.ended.recv() => self.ended(ended),
                Some(command) = self.commands.recv() => {
                    if let Some(end) = self.command(command).await {
                        return Ok(end);
                    }
                }
                asked = signals.next() => match asked {
                    Asked::Reload => {
                        let outcome = self.reload(false, "SIGHUP").await;
                        if outcome.code == control::OutcomeCode::Done {
                            info!(outcome = %outcome.message, "reload");
                        } else {
                            error!(outcome = %outcome.message, "reload refused");
                        }
                    }
                    Asked::Stop => {
                        self.stop_draining().await;
                        self.keep_last().await;
                        return Ok(End::Stopped);
                    }
                },
            }
        }
    }

    /// Reads, judges, acts, publishes.
    fn tick(&mut self) {
        let now = probe::now();
        self.ticks += 1;
        self.read(now);
        let mut input = std::mem::take(&mut self.input);
        input.in_sync = self.applied.in_sync();
        input.closed = windows::closed(&self.specs, jiff::Timestamp::now());
        input.mitigated = self.attacks.mitigated(&self.specs, now);
        for (&id, reading) in &self.readings {
            let origin = health_core::model::OriginId(id);
            input.kernel.push((origin, reading.kernel));
            input.traffic.push((origin, self.totals(id, reading)));
        }
        let step = self.engine.tick(now, &input);
        self.applied = act::carry_out(&step, &mut self.datapath, &mut self.checks, now);
        self.tallies.write_errors += u64::from(self.applied.failed);
        if self.applied.failed > 0 {
            warn!(failed = self.applied.failed, "writes to the kernel failed; they are tried again at the next tick");
        }
        for decision in &step.decisions {
            self.decided(decision);
        }
        self.end_connections(&step.endings);
        let moved = !step.decisions.is_empty();
        self.last = Some(step);
        self.keep(now);
        self.publish(now, moved);
        self.heartbeat.tick();
    }

    /// Reads origins from the kernel; all of them in the first tick, which must know what a former daemon had blocked.
    fn read(&mut self, now: Timestamp) {
        let live: Vec<u16> = self.datapath.registry().live().iter().copied().collect();
        let count = if self.ticks <= 1 { live.len() } else { live.len().min(READS_MAX) };
        for turn in 0..count {
            let id = live[(self.next_read + turn) % live.len()];
            match self.datapath.read(id, now) {
                Ok(reading) => {
                    let learns = self.may_learn(id, &reading);
                    let gained = self.learned.entry(id).or_default().take(&reading, learns, now);
                    if !gained.is_empty() {
                        self.input.times.push((OriginId(id), gained));
                    }
                    self.readings.insert(id, reading);
                }
                Err(error) => error!(origin = id, %error, "cannot read an origin from the kernel"),
            }
        }
        self.next_read = if live.is_empty() { 0 } else { (self.next_read + count) % live.len() };
        self.readings.retain(|id, _| self.datapath.registry().live().contains(id));
    }

    /// What an ailing origin shows must not become the measure of a sound one.
    fn may_learn(&self, id: u16, reading: &OriginReading) -> bool {
        use health_core::model::State;
        if reading.kernel.trip.is_some() || reading.kernel.blocked {
            return false;
        }
        self.view(OriginId(id))
            .is_none_or(|view| matches!(view.state, State::Unknown | State::Healthy | State::Degraded))
    }

    /// The newest opinion of an origin; `None` before the first.
    fn view(&self, id: OriginId) -> Option<&OriginView> {
        let mut views = self.last.iter().flat_map(|step| &step.view).flat_map(|service| &service.origins);
        views.find(|view| view.id == id)
    }

    fn totals(&self, id: u16, reading: &OriginReading) -> TrafficTotals {
        let signals = &reading.signals;
        let (total, samples) = histogram::sum(&reading.ttfb);
        let (rtt, ttfb) = self.learned.get(&id).map(learn::Learner::quantiles).unwrap_or_default();
        TrafficTotals {
            syn: signals.syn,
            syn_retrans: signals.syn_retrans,
            synack: signals.synack,
            synack_late: signals.synack_late,
            refused: signals.refused,
            syn_timeout: reading.syn_timeout,
            unreachable: signals.unreachable,
            request: signals.request,
            response: signals.response,
            response_late: signals.response_late,
            http_good: signals.http_2xx + signals.http_3xx + signals.http_4xx,
            http_5xx: signals.http_5xx,
            no_response: reading.no_response,
            reset_early: signals.reset_early,
            reset_mid: signals.reset_mid,
            connect_by: reading.connect_by,
            request_by: reading.request_by,
            syn_waits: reading.syn_waits,
            request_waits: reading.request_waits,
            open: reading.open(),
            last_seen: reading.last_seen,
            rtt,
            ttfb,
            ttfb_all: Sum { samples, total: Span(total) },
        }
    }

    fn check_result(&mut self, report: &Report) {
        let result = report.result;
        self.tallies.check(report);
        if let Outcome::Local(reason) = result.outcome {
            self.trouble(result, reason);
        }
        if let Some(weight) = report.notes.weight {
            self.input.weights.push((result.origin, result.check, weight));
        }
        self.input.checks.push(result);
    }

    async fn command(&mut self, command: Command) -> Option<End> {
        match command {
            Command::Origin { order, reply } => {
                let outcome = self.order(order);
                // A client that has gone needs no answer.
                drop(reply.send(outcome));
                self.tick();
            }
            Command::Failback { service, what, reason, by, reply } => {
                let outcome = self.failback(&service, what, &reason, &by);
                drop(reply.send(outcome));
                self.tick();
            }
            Command::Reload { dry_run, by, reply } => {
                let outcome = self.reload(dry_run, &by).await;
                drop(reply.send(outcome));
            }
            Command::Detach { drain, force, by, reply } => {
                info!(by, force, ?drain, "detach");
                return self
                    .detach(Draining { until: Instant::now() + drain.unwrap_or_default(), force, reply }, drain)
                    .await;
            }
        }
        None
    }
}

/// What the system asks for.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.hangup.recv() => Asked::Reload,
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.interrupt.recv() => Asked::Stop,
        }
    }
}

/// What a signal asks for.
enum Asked {
    Reload,
    Stop,
}
