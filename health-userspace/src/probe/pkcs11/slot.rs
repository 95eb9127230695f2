//! One slot: the task that owns its worker, and climbs the ladder for whoever asks.
//!
//! ```text
//! worker ── load ── select ── info ─┬─ rules, clock            depth 2
//!                                   └─ login ── operation      depth 3
//! ```
//!
//! A failed round retires its worker, so what follows a failure (its confirmation, each test of a recovery) happens in a
//! fresh process: a library's cached state turns a passing fault into a lasting one, and hides a lasting one. What is judged
//! from what the token says of itself (versions, flags, clock) is not cached by anybody, and keeps its worker.

use super::{
    Alarms,
    class::{self, Class},
    clock::{self, Reading},
    halt::{Halt, Known, Verdict, local_event},
    judge::{self, LeakWatch},
    ledger::Ledger,
    pin::Stamp,
    process::{Answer, Death, Process, Remains, Setup},
    protocol::{Business, Info, Reply, Request, Token, TokenInfo},
    respawn::Respawn,
    slate::Call,
    trouble::Trouble,
    verify::Pinned,
};
use crate::{
    config::{BusinessRule, ClockRule, Deadlines, Depth, Pkcs11Check},
    probe::{clock::duration, trace::Step},
};
use health_core::{
    Span,
    model::{Hsm, Layer, LocalReason},
};
use ring::rand::{SecureRandom, SystemRandom};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::{process::Child, time::Instant};

/// A worker is ended in good order after this: whatever a module piles up ends with it.
const WORKER_AGE_MAX: Duration = Duration::from_hours(24);
/// Without sessions to be had, a fresh worker is tried this often at most.
const SESSIONS_RETIRE_EVERY: Duration = Duration::from_mins(1);

/// A check, ready for a slot.
#[derive(Debug)]
pub(super) struct Plan {
    /// Its name: what once worked is remembered by it.
    pub(super) name: String,
    pub(super) rule: Pkcs11Check,
    pub(super) pinned: Option<Pinned>,
}

/// A round, and what it did.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) verdict: Verdict,
    pub(super) detail: Option<String>,
    pub(super) steps: Vec<Step>,
}

pub(super) struct Live {
    pub(super) process: Process,
    born: Instant,
    selected: bool,
    pub(super) logged_in: bool,
    /// It served a round before this one.
    used: bool,
}

pub(super) struct Slot {
    setup: Setup,
    token: Token,
    pub(super) state_dir: PathBuf,
    ledger: Arc<Ledger>,
    alarms: Alarms,
    pub(super) live: Option<Live>,
    generation: u64,
    respawn: Respawn,
    stuck: Option<Child>,
    /// Checks that once passed; the empty name stands for the token itself.
    known: Known,
    failing: bool,
    clock: Option<clock::Before>,
    leak: LeakWatch,
    sessions_retired: Option<Instant>,
    /// PIN file and latch as they were when a login was refused: while both are the same, nothing has changed.
    pub(super) refused: Option<(Option<Stamp>, Option<Stamp>, String)>,
    steps: Vec<Step>,
}

impl Slot {
    pub(super) fn new(setup: Setup, token: Token, state_dir: PathBuf, ledger: Arc<Ledger>, alarms: Alarms) -> Self {
        Self {
            respawn: Respawn::of(&setup.slot),
            setup,
            token,
            state_dir,
            ledger,
            alarms,
            live: None,
            generation: 0,
            stuck: None,
            known: Known::new(),
            failing: false,
            clock: None,
            leak: LeakWatch::default(),
            sessions_retired: None,
            refused: None,
            steps: Vec::new(),
        }
    }

    /// One round. What is stale is repeated once, in a fresh worker; only that counts.
    pub(super) async fn round(&mut self, plan: &Plan) -> Round {
        if self.live.as_ref().is_some_and(|live| live.born.elapsed() >= WORKER_AGE_MAX) {
            self.retire("it is a day old", plan.rule.deadlines.close).await;
        }
        self.steps.clear();
        let used = self.live.as_ref().is_some_and(|live| live.used);
        let mut ended = self.climb(plan).await;
        if used && matches!(&ended, Err(halt) if halt.is_stale()) {
            self.retire("what it holds is stale", plan.rule.deadlines.close).await;
            ended = self.climb(plan).await;
        }
        if let Some(live) = &mut self.live {
            live.used = true;
        }
        let (verdict, detail) = self.settle(plan, ended).await;
        Round { verdict, detail, steps: std::mem::take(&mut self.steps) }
    }

    /// How far the token's clock is off, for another slot that wants to know. `None` if it has none, or doesn't answer.
    pub(super) async fn clock(&mut self, deadlines: Deadlines) -> Option<i64> {
        let info = self.info(deadlines).await.ok()?;
        let token = info.token.as_ref()?;
        match clock::read(&info, token, &mut self.clock, Instant::now()) {
            Reading::Off { by_ns } => Some(by_ns),
            Reading::NotOffered | Reading::Broken(_) => None,
        }
    }

    async fn climb(&mut self, plan: &Plan) -> Result<(), Halt> {
        let rule = &plan.rule;
        let info = self.info(rule.deadlines).await?;
        let Some(token) = &info.token else { return Err(removed(Call::GetSlotInfo)) };
        if !judge::is_meant(token, &self.token) {
            return Err(Halt::Swapped);
        }
        self.known.insert(String::new());
        match &rule.depth {
            Depth::Info => judge::rules(&info, token, rule).map_err(|(reason, why)| Halt::Judged(reason, why)),
            Depth::Clock => self.judge_clock(&info, token, rule.clock),
            Depth::Business(business) => {
                if self.leak.grew(token) {
                    self.alarms
                        .raise("pkcs11_leak", "the token counts ever more sessions of ours; the worker is replaced");
                    self.retire("it leaks sessions", rule.deadlines.close).await;
                    self.info(rule.deadlines).await?;
                }
                self.business(plan, business, token).await
            }
        }
    }

    fn judge_clock(&mut self, info: &Info, token: &TokenInfo, rule: Option<ClockRule>) -> Result<(), Halt> {
        let Some(rule) = rule else { return Ok(()) };
        match clock::read(info, token, &mut self.clock, Instant::now()) {
            Reading::NotOffered if rule.require => Err(Halt::Judged(
                Hsm::ClockMissing,
                "the token has no clock (CKF_CLOCK_ON_TOKEN is not set)".to_owned(),
            )),
            Reading::Broken(reason) => {
                let text = String::from_utf8_lossy(&token.utc_time).into_owned();
                Err(Halt::Judged(reason, format!("utcTime is \"{text}\"")))
            }
            Reading::Off { by_ns } if clock::is_skewed(by_ns, rule.drift_max) => Err(Halt::Skewed(by_ns)),
            Reading::NotOffered | Reading::Off { .. } => Ok(()),
        }
    }

    /// Slot and token, by a worker that has found them.
    async fn info(&mut self, deadlines: Deadlines) -> Result<Info, Halt> {
        self.ensure(deadlines).await?;
        match self.ask(Request::Info, deadlines.info).await?.reply? {
            Reply::Info(info) => Ok(*info),
            _ => Err(Halt::Death(Death::Breach("another answer"))),
        }
    }

    /// A worker that has loaded the module and found the token.
    async fn ensure(&mut self, deadlines: Deadlines) -> Result<(), Halt> {
        if let Some(child) = &mut self.stuck {
            if !matches!(child.try_wait(), Ok(Some(_))) {
                return Err(Halt::Stuck);
            }
            self.stuck = None;
        }
        if self.live.is_none() {
            self.start(deadlines).await?;
        }
        if self.live.as_ref().is_some_and(|live| !live.selected) {
            let token = self.token.clone();
            self.ask(Request::Select(token), deadlines.select).await?.reply?;
            if let Some(live) = &mut self.live {
                live.selected = true;
            }
        }
        Ok(())
    }

    async fn start(&mut self, deadlines: Deadlines) -> Result<(), Halt> {
        self.respawn.wait().await;
        self.generation += 1;
        let began = Instant::now();
        let process = Process::begin(&self.setup, self.generation).await;
        self.step("worker", began.elapsed());
        let process = match process {
            Ok(process) => process,
            Err((death, remains)) => {
                self.bury(remains);
                return Err(Halt::Death(death));
            }
        };
        self.alarms.tell("pkcs11_worker", format!("worker {} begins (pid {})", self.generation, process.pid()));
        self.live = Some(Live { process, born: Instant::now(), selected: false, logged_in: false, used: false });
        self.leak.begin();
        let module = self.setup.module.clone();
        let loaded = self.ask(Request::Load { module }, deadlines.load).await?;
        loaded.reply?;
        Ok(())
    }

    /// Asks the worker; after an error it is killed and buried.
    pub(super) async fn ask(&mut self, request: Request, within: Span) -> Result<Answer, Halt> {
        let Some(live) = &mut self.live else { return Err(Halt::Death(Death::Breach("there is no worker"))) };
        let (name, asked) = (request.name(), Instant::now());
        match live.process.ask(request, duration(within)).await {
            Ok(answer) => {
                self.steps.push(step(name, Span(answer.calls.iter().map(|(_, ns)| ns).sum())));
                if let Some(rv) = answer.leaked {
                    let rv = class::rv_name(rv);
                    self.alarms.raise("pkcs11_leak", format!("C_CloseSession returned {rv}; the worker is replaced"));
                    self.retire("a session could not be closed", within).await;
                }
                Ok(answer)
            }
            Err(death) => {
                if let Death::Hung { at, .. } | Death::Died { at, .. } = &death {
                    self.step(at.map_or("worker", Call::name), asked.elapsed());
                }
                self.alarms.tell("pkcs11_worker", format!("worker {} ends: {death}", self.generation));
                if let Some(live) = self.live.take() {
                    let remains = live.process.kill().await;
                    self.bury(remains);
                }
                Err(Halt::Death(death))
            }
        }
    }

    async fn business(&mut self, plan: &Plan, rule: &BusinessRule, token: &TokenInfo) -> Result<(), Halt> {
        let deadlines = plan.rule.deadlines;
        // One session keeps the login; a second is for the operation, unless all are needed to come back.
        let wanted = if self.failing || rule.pin_file.is_none() { 1 } else { 2 };
        if !self.ledger.reserve(&self.setup.slot, wanted, Instant::now()) {
            let (live, orphans) = self.ledger.counts(Instant::now());
            let why = format!("no session left for checks: {live} held, {orphans} of killed workers not yet forgotten");
            return Err(Halt::Local(LocalReason::Budget, why));
        }
        self.login(rule, token, deadlines).await?;
        let mut business = Business {
            operation: rule.operation,
            key: rule.key.clone(),
            challenge: [0; 32],
            vector: [0; 16],
            pinned: plan.pinned.is_some(),
            in_anchor: self.failing && self.live.as_ref().is_some_and(|live| live.logged_in),
        };
        let random = SystemRandom::new();
        let filled = random.fill(&mut business.challenge).and_then(|()| random.fill(&mut business.vector));
        filled.map_err(|_unspecified| Halt::Local(LocalReason::Start, "no random numbers here".to_owned()))?;
        let challenge = business.challenge;
        let Reply::Done(done) = self.ask(Request::Business(business), deadlines.business).await?.reply? else {
            return Err(Halt::Death(Death::Breach("another answer")));
        };
        match &plan.pinned {
            Some(pinned) if !pinned.verifies(&challenge, &done.signature) => {
                let said = if done.verified_by_token {
                    "though C_Verify accepts it"
                } else {
                    "and the token has no public key"
                };
                Err(Halt::Judged(Hsm::Integrity, format!("the signature is not the pinned key's, {said}")))
            }
            _ => Ok(()),
        }
    }

    /// What a climb means, and what becomes of the worker.
    async fn settle(&mut self, plan: &Plan, ended: Result<(), Halt>) -> (Verdict, Option<String>) {
        let Err(halt) = ended else {
            self.known.insert(plan.name.clone());
            self.failing = false;
            self.respawn.worked();
            self.alarms.cleared(&plan.name);
            return (Verdict::Pass, None);
        };
        if halt.retires(self.known.contains(&plan.name)) {
            self.retire("a round failed", plan.rule.deadlines.close).await;
        } else if halt.class() == Some(Class::Sessions)
            && self.sessions_retired.is_none_or(|last| last.elapsed() >= SESSIONS_RETIRE_EVERY)
        {
            self.sessions_retired = Some(Instant::now());
            self.retire("it gets no session", plan.rule.deadlines.close).await;
        }
        let why = halt.to_string();
        let verdict = halt.verdict(plan, &self.known);
        match verdict {
            Verdict::Fail(_) => {
                self.failing = true;
                if let Some(Class::Sessions) = halt.class() {
                    let (live, orphans) = self.ledger.counts(Instant::now());
                    let whose = format!("{why}; checks hold {live} sessions and may have left {orphans}");
                    self.alarms.raise_for("pkcs11_sessions", &plan.name, whose);
                }
            }
            Verdict::Local(reason) => self.alarms.raise_for(local_event(reason), &plan.name, why.clone()),
            Verdict::Pass | Verdict::Skewed { .. } => {}
        }
        (verdict, Some(why))
    }

    /// Ends the worker in good order, or kills it.
    pub(super) async fn retire(&mut self, why: &str, within: Span) {
        let Some(live) = self.live.take() else { return };
        let (clean, remains) = live.process.end(duration(within)).await;
        let how = if clean { "ended" } else { "killed" };
        self.alarms.tell("pkcs11_worker", format!("worker {} {how}: {why}", self.generation));
        self.bury(remains);
    }

    fn bury(&mut self, remains: Remains) {
        self.ledger.ended(&self.setup.slot, remains.sessions, Instant::now());
        if let Some(child) = remains.stuck {
            self.alarms.raise("pkcs11_stuck", "a killed worker does not end: a call of its module hangs in the kernel");
            self.stuck = Some(child);
        }
    }

    fn step(&mut self, name: &'static str, took: Duration) {
        self.steps.push(step(name, Span(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX))));
    }
}

fn removed(call: Call) -> Halt {
    Halt::Trouble(Trouble::Returned { call, rv: cryptoki_sys::CKR_TOKEN_NOT_PRESENT })
}

const fn step(name: &'static str, took: Span) -> Step {
    Step { name, layer: Layer::Application, took }
}
