//! All slots of the node.

use super::{
    ledger::Ledger,
    process::{QUIT_MAX, Setup},
    slot::{Plan, Round, Slot},
    spawn::Program,
    verify::PinnedError,
};
use crate::config::{Deadlines, Pkcs11Check, Pkcs11Origin};
use health_core::Span;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, timeout},
};

/// Rounds that may wait for one slot; a service has at most 64 checks.
const JOBS_MAX: usize = 64;
/// Alarms that may wait for the daemon's loop.
const ALARMS_MAX: usize = 1024;
/// An alarm that goes on is raised again after this.
const RAISE_EVERY: Duration = Duration::from_mins(10);
/// All workers are gone within this when the daemon ends.
const SHUTDOWN_MAX: Duration = Duration::from_millis(2500);

/// Why an origin's token can't be checked.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Workers must not run as root.
    #[error("there is no user `{user}` for PKCS#11 workers; make one (`useradd --system {user}`) or name another")]
    User {
        /// `origin.pkcs11.user`.
        user: String,
    },
    /// It is root.
    #[error("`{user}` is root; a PKCS#11 module must not run as root")]
    Root {
        /// `origin.pkcs11.user`.
        user: String,
    },
    /// Nothing says which, or nobody is there to run a worker.
    #[error("it does not say which token, or no worker can be run here")]
    Nowhere,
    /// A pinned public key.
    #[error("`{}`", path.display())]
    Pinned {
        /// `check.public_key`.
        path: PathBuf,
        /// What is wrong with it.
        source: PinnedError,
    },
}

/// Something that an operator should know, and that is no verdict about an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// `pkcs11_worker`, `pkcs11_auth`, `pkcs11_config`, `pkcs11_budget`, `pkcs11_sessions`, `pkcs11_leak`,
    /// `pkcs11_host_clock`, `pkcs11_stuck`.
    pub what: &'static str,
    /// `service/origin`.
    pub object: String,
    /// In words.
    pub detail: String,
}

/// One slot's way to say things.
#[derive(Clone, Debug)]
pub struct Alarms {
    object: String,
    out: mpsc::Sender<Alarm>,
    raised: BTreeMap<(&'static str, String), Instant>,
}

impl Alarms {
    fn new(object: &str, out: mpsc::Sender<Alarm>) -> Self {
        Self { object: object.to_owned(), out, raised: BTreeMap::new() }
    }

    /// Says it each time.
    pub(super) fn tell(&self, what: &'static str, detail: impl Into<String>) {
        let alarm = Alarm { what, object: self.object.clone(), detail: detail.into() };
        tracing::info!(what, object = alarm.object, detail = alarm.detail, "pkcs11");
        // A loop that is that far behind has lost worse things.
        drop(self.out.try_send(alarm));
    }

    /// Says it, and not again for a while.
    pub(super) fn raise(&mut self, what: &'static str, detail: impl Into<String>) {
        self.raise_for(what, "", detail);
    }

    /// The same for one check, until [`Self::cleared`].
    pub(super) fn raise_for(&mut self, what: &'static str, check: &str, detail: impl Into<String>) {
        let now = Instant::now();
        let key = (what, check.to_owned());
        if self.raised.get(&key).is_some_and(|last| now.duration_since(*last) < RAISE_EVERY) {
            return;
        }
        self.raised.insert(key, now);
        let of = if check.is_empty() { String::new() } else { format!("{check}: ") };
        self.tell(what, format!("{of}{}", detail.into()));
    }

    /// That check passes: what comes next is new.
    pub(super) fn cleared(&mut self, check: &str) {
        self.raised.retain(|(_, of), _| of != check);
    }
}

/// Makes slots and ends them.
#[derive(Debug)]
pub struct Hub {
    state_dir: PathBuf,
    program: Program,
    alarms: mpsc::Sender<Alarm>,
    book: Mutex<Book>,
    stop: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Book {
    slots: BTreeMap<String, (Setup, super::Token, Weak<Handle>)>,
    ledgers: BTreeMap<String, Arc<Ledger>>,
    /// Ends with the last task of a slot.
    running: Vec<oneshot::Receiver<()>>,
}

/// Asks a slot's task.
#[derive(Debug)]
pub(super) struct Handle {
    name: String,
    jobs: mpsc::Sender<Job>,
}

enum Job {
    Round(Arc<Plan>, oneshot::Sender<Round>),
    Clock(Deadlines, oneshot::Sender<Option<i64>>),
}

impl Handle {
    /// Runs a round, after those that were asked for before. Once begun it is finished, whoever still waits for it.
    pub(super) async fn round(&self, plan: Arc<Plan>) -> Option<Round> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job::Round(plan, reply)).await.ok()?;
        answer.await.ok()
    }

    async fn clock(&self, deadlines: Deadlines) -> Option<i64> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job::Clock(deadlines, reply)).await.ok()?;
        answer.await.ok()?
    }
}

impl Hub {
    /// No slot yet. Alarms come out of the receiver.
    #[must_use]
    pub fn new(state_dir: PathBuf, program: Program) -> (Arc<Self>, mpsc::Receiver<Alarm>) {
        let (alarms, receiver) = mpsc::channel(ALARMS_MAX);
        let (stop, _) = watch::channel(false);
        (Arc::new(Self { state_dir, program, alarms, book: Mutex::default(), stop }), receiver)
    }

    /// The slot of an origin; its task runs until nobody holds the handle any more.
    pub(super) fn slot(
        &self,
        (service, origin): (&str, &str),
        partition: &Pkcs11Origin,
        rule: &Pkcs11Check,
    ) -> Result<Arc<Handle>, HubError> {
        let name = format!("{service}/{origin}");
        let setup = Setup {
            program: self.program.clone(),
            slot: name.clone(),
            module: partition.module.clone(),
            env: partition.env.clone(),
            user: user(&partition.user)?,
            memory_max: partition.memory_max,
        };
        let mut book = self.lock();
        let (max, ttl) = (rule.sessions_max, Duration::from_nanos(rule.orphan_ttl.0));
        let ledger = book.ledgers.entry(service.to_owned()).or_insert_with(|| Arc::new(Ledger::new(max, ttl)));
        ledger.limit(max, ttl);
        let ledger = Arc::clone(ledger);
        if let Some((known, token, handle)) = book.slots.get(&name)
            && *known == setup
            && *token == partition.token
            && let Some(handle) = handle.upgrade()
        {
            return Ok(handle);
        }
        let alarms = Alarms::new(&name, self.alarms.clone());
        let slot = Slot::new(setup.clone(), partition.token.clone(), self.state_dir.clone(), ledger, alarms);
        let (jobs, asked) = mpsc::channel(JOBS_MAX);
        let (done, running) = oneshot::channel();
        tokio::spawn(work(slot, asked, self.stop.subscribe(), done));
        let handle = Arc::new(Handle { name: name.clone(), jobs });
        book.running.retain_mut(|running| running.try_recv() == Err(oneshot::error::TryRecvError::Empty));
        book.running.push(running);
        book.slots.insert(name, (setup, partition.token.clone(), Arc::downgrade(&handle)));
        Ok(handle)
    }

    /// A way to say things about an origin.
    pub(super) fn alarms(&self, (service, origin): (&str, &str)) -> Alarms {
        Alarms::new(&format!("{service}/{origin}"), self.alarms.clone())
    }

    /// How far the clocks of all other tokens are off, by asking them now.
    pub(super) async fn other_clocks(&self, than: &Handle, deadlines: Deadlines) -> Vec<i64> {
        let others: Vec<Arc<Handle>> = {
            let book = self.lock();
            let handles = book.slots.values().filter_map(|(_, _, handle)| handle.upgrade());
            handles.filter(|handle| handle.name != than.name).collect()
        };
        // Who is busy or ill does not answer in time, and says nothing.
        let within = Duration::from_nanos(deadlines.info.0);
        let asked = others.iter().map(|handle| timeout(within, handle.clock(deadlines)));
        futures_util::future::join_all(asked).await.into_iter().filter_map(|clock| clock.ok().flatten()).collect()
    }

    /// Sessions that may be held now, by service: of living workers, and orphans.
    #[must_use]
    pub fn sessions(&self) -> Vec<(String, u32, u32)> {
        let now = Instant::now();
        let counts = |(service, ledger): (&String, &Arc<Ledger>)| {
            let (live, orphans) = ledger.counts(now);
            (service.clone(), live, orphans)
        };
        self.lock().ledgers.iter().map(counts).collect()
    }

    /// Ends all workers in good order: sessions closed, C_Finalize. One that hangs is killed. Returns within 2.5 s.
    pub async fn shutdown(&self) {
        self.stop.send_replace(true);
        let running = std::mem::take(&mut self.lock().running);
        if timeout(SHUTDOWN_MAX, futures_util::future::join_all(running)).await.is_err() {
            tracing::warn!("PKCS#11 workers did not end in time; they die with the daemon");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot's task: one job after the other. `done` ends with it.
async fn work(
    mut slot: Slot,
    mut jobs: mpsc::Receiver<Job>,
    mut stop: watch::Receiver<bool>,
    done: oneshot::Sender<()>,
) {
    loop {
        let job = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            job = jobs.recv() => job,
        };
        let Some(job) = job else { break };
        // A call that hangs must not hold up the end of the daemon; the worker is killed below.
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            () = serve(&mut slot, job) => {}
        }
    }
    slot.retire("nobody asks any more", Span(u64::try_from(QUIT_MAX.as_nanos()).unwrap_or(u64::MAX))).await;
    drop(done);
}

/// Who no longer waits for the answer gets none.
async fn serve(slot: &mut Slot, job: Job) {
    match job {
        Job::Round(plan, reply) => drop(reply.send(slot.round(&plan).await)),
        Job::Clock(deadlines, reply) => drop(reply.send(slot.clock(deadlines).await)),
    }
}

/// Whom a worker runs as: user and group, or `None`. A daemon that is not root cannot become anybody else, and has nothing to give up.
///
/// # Errors
///
/// There is no such user, or it is root.
pub fn user(name: &str) -> Result<Option<(u32, u32)>, HubError> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(None);
    }
    let found = nix::unistd::User::from_name(name).ok().flatten();
    let found = found.ok_or_else(|| HubError::User { user: name.to_owned() })?;
    if found.uid.is_root() {
        return Err(HubError::Root { user: name.to_owned() });
    }
    Ok(Some((found.uid.as_raw(), found.gid.as_raw())))
}
