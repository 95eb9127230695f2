//! Ends established connections as the judgement asks (`on_fault`), in a thread of its own: the kernel's table of sockets and
//! ours of flows take milliseconds to walk, and the loop must not wait for them.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::SocketAddr,
    path::PathBuf,
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    time::{Duration, Instant},
};

use health_core::{
    engine::Ending,
    model::{OriginId, ServiceId},
};
use tokio::sync::mpsc;

use super::reset::{DestroyOrder, FlowReset, Numbers, Resets, Tuple, Which, destroy};
use crate::datapath::live::{LiveFlow, live_flows};

/// The list of flows is older than the list of sockets. A connection that is younger than both would not be known as redirected, so
/// idle means: for longer than the list is old, and for this, which ticks of the kernel's clock are rounded by.
const NEW: Duration = Duration::from_millis(50);

/// Rounds that wait for the thread. The judgement asks again, so what finds no place is lost without harm.
const ROUNDS_MAX: usize = 2;

/// What became of a round of one origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Whose connections.
    pub origin: u16,
    /// Idle ones of this node's sockets.
    pub idle: usize,
    /// Other ones of this node's sockets.
    pub sockets: usize,
    /// Forwarded flows.
    pub forwarded: usize,
    /// What is over the limit of a second, and waits for the next round.
    pub left: usize,
    /// What went wrong.
    pub trouble: Option<String>,
}

/// One origin whose connections should end.
#[derive(Clone, Debug)]
pub struct Task {
    /// What the judgement asks.
    pub ending: Ending,
    /// Its service: the limit is the service's.
    pub service: ServiceId,
    /// Where it is.
    pub address: SocketAddr,
}

/// The way to the thread.
#[derive(Debug)]
pub struct Ender {
    rounds: SyncSender<(u32, Vec<Task>)>,
}

impl Ender {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// No thread.
    pub fn start(pin_dir: PathBuf) -> std::io::Result<(Self, mpsc::UnboundedReceiver<Ended>)> {
        let (rounds, asked) = sync_channel(ROUNDS_MAX);
        let (told, ended) = mpsc::unbounded_channel();
        std::thread::Builder::new()
            .name("endings".to_owned())
            .spawn(move || Hand { pin_dir, ..Hand::default() }.work(&asked, &told))?;
        Ok((Self { rounds }, ended))
    }

    /// Hands a round over. Sockets with the mark `mark` are spared.
    pub fn end(&self, round: Vec<Task>, mark: u32) {
        if round.is_empty() {
            return;
        }
        match self.rounds.try_send((mark, round)) {
            // Still at the last ones: the judgement asks again within seconds.
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }
}

/// What the thread owns.
#[derive(Default)]
struct Hand {
    pin_dir: PathBuf,
    mark: u32,
    /// When the flows of this round were listed.
    listed: Option<Instant>,
    /// What is left of each service's second.
    budgets: BTreeMap<ServiceId, (Option<Instant>, usize)>,
    /// Forwarded flows that were reset: they stay in our table, for nothing of them passes the programs any more.
    reset: HashSet<Tuple>,
    raw: Option<Resets>,
}

impl Hand {
    fn work(mut self, asked: &Receiver<(u32, Vec<Task>)>, told: &mpsc::UnboundedSender<Ended>) {
        while let Ok((mark, round)) = asked.recv() {
            self.mark = mark;
            for ended in self.round(&round) {
                if told.send(ended).is_err() {
                    return;
                }
            }
        }
    }

    fn round(&mut self, round: &[Task]) -> Vec<Ended> {
        let origins: BTreeSet<u16> = round.iter().map(|task| task.ending.origin.0).collect();
        let addresses: BTreeSet<SocketAddr> = round.iter().map(|task| task.address).collect();
        self.listed = Some(Instant::now());
        let flows = match live_flows(&self.pin_dir, &origins, &addresses) {
            Ok(flows) => flows,
            Err(error) => {
                let trouble = Some(error.to_string());
                return round.iter().map(|task| Ended { trouble: trouble.clone(), ..Ended::of(task) }).collect();
            }
        };
        let present: HashSet<Tuple> = flows.iter().map(asked).collect();
        self.reset.retain(|flow| present.contains(flow));
        round.iter().map(|task| self.one(task, &flows)).collect()
    }

    fn one(&mut self, task: &Task, flows: &[LiveFlow]) -> Ended {
        let mut ended = Ended::of(task);
        let mut left = self.budget(task);
        if let Err(trouble) = self.sockets(task, flows, &mut left, &mut ended) {
            ended.trouble = Some(trouble);
        }
        if let Err(trouble) = self.forwarded(task, flows, &mut left, &mut ended) {
            ended.trouble.get_or_insert(trouble);
        }
        if let Some(budget) = self.budgets.get_mut(&task.service) {
            budget.1 = left;
        }
        ended
    }

    /// What its service may still end in this second.
    fn budget(&mut self, task: &Task) -> usize {
        let now = Instant::now();
        let per_s = usize::try_from(task.ending.per_s).unwrap_or(usize::MAX);
        let budget = self.budgets.entry(task.service).or_insert((None, 0));
        if budget.0.is_none_or(|at| now.duration_since(at) >= Duration::from_secs(1)) {
            *budget = (Some(now), per_s);
        }
        budget.1
    }

    /// Sockets of this node: those that are connected to the origin, and those that asked for another address and are
    /// redirected to it, packet by packet.
    fn sockets(&self, task: &Task, flows: &[LiveFlow], left: &mut usize, ended: &mut Ended) -> Result<(), String> {
        let id = task.ending.origin.0;
        let away: HashSet<Tuple> = flows.iter().filter(|flow| flow.moved && flow.origin != id).map(asked).collect();
        let here: HashSet<Tuple> =
            flows.iter().filter(|flow| flow.moved && flow.origin == id && !flow.forwarded).map(asked).collect();
        let mut peers: BTreeSet<SocketAddr> = here.iter().map(|flow| flow.remote).collect();
        peers.insert(task.address);
        let stalled = Which::Stalled { quiet: Duration::from_nanos(task.ending.stalled.0) };
        let kinds: &[(Which, bool)] = if task.ending.all {
            &[(Which::All, false)]
        } else {
            let quiet = NEW + self.listed.map_or(Duration::ZERO, |listed| listed.elapsed());
            &[(Which::Idle { quiet }, true), (stalled, false)]
        };
        for &(which, idle) in kinds {
            for &peer in &peers {
                let order = DestroyOrder { peer, which, check_mark: self.mark, limit: *left };
                let spares = |flow: &Tuple| {
                    if peer == task.address { away.contains(flow) } else { !here.contains(flow) }
                };
                let done = destroy(&order, spares).map_err(|error| error.to_string())?;
                *left = left.saturating_sub(done.destroyed);
                ended.left += done.left;
                *(if idle { &mut ended.idle } else { &mut ended.sockets }) += done.destroyed;
            }
        }
        Ok(())
    }

    fn forwarded(
        &mut self,
        task: &Task,
        flows: &[LiveFlow],
        left: &mut usize,
        ended: &mut Ended,
    ) -> Result<(), String> {
        let due = |flow: &&LiveFlow| {
            let stalled = flow.waits.is_some_and(|waits| waits >= task.ending.stalled);
            flow.forwarded && flow.origin == task.ending.origin.0 && (task.ending.all || stalled)
        };
        for flow in flows.iter().filter(due) {
            let tuple = asked(flow);
            if self.reset.contains(&tuple) {
                continue;
            }
            if *left == 0 {
                ended.left += 1;
                continue;
            }
            let raw = match self.raw.take() {
                Some(raw) => raw,
                None => Resets::open().map_err(|error| error.to_string())?,
            };
            let served = Tuple { node: flow.served.0, remote: flow.served.1 };
            let sent = raw.send(&FlowReset { asked: tuple, served, numbers: Numbers::from(&flow.flow) });
            self.raw = Some(raw);
            sent.map_err(|error| error.to_string())?;
            self.reset.insert(tuple);
            *left -= 1;
            ended.forwarded += 1;
        }
        Ok(())
    }
}

impl Ended {
    fn of(task: &Task) -> Self {
        Self { origin: task.ending.origin.0, ..Self::default() }
    }

    /// Whether there is anything to tell.
    #[must_use]
    pub const fn is_news(&self) -> bool {
        self.idle + self.sockets + self.forwarded > 0 || self.trouble.is_some()
    }
}

/// A flow as its client knows it.
fn asked(flow: &LiveFlow) -> Tuple {
    Tuple { node: flow.asked.0, remote: flow.asked.1 }
}

/// The tasks of these endings. `of`: service and address of an origin; what is no longer configured ends by itself.
pub fn tasks(endings: &[Ending], of: impl Fn(OriginId) -> Option<(ServiceId, SocketAddr)>) -> Vec<Task> {
    let task = |ending: &Ending| {
        let (service, address) = of(ending.origin)?;
        Some(Task { ending: *ending, service, address })
    };
    endings.iter().filter_map(task).collect()
}
