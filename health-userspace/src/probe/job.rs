//! One check of one address, for as long as it is configured: when it runs, and whom its rounds are about.

use super::{
    chance::{Chance, part_of},
    clock::duration,
    rhythm::{self, Run},
    round::{Finished, Round},
    schedule::{Node, Report},
    standing::{Last, Standing},
};
use crate::config::CheckConfig;
use health_core::{
    Span,
    model::{CheckResult, Pace},
};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// A round that begins later than this, or than half its interval, is dropped as late.
const LATE_MIN: Span = Span::from_secs(1);
/// A wait that another wish of the judgement cut short ends within this part of the new interval: many origins may be
/// suspected at the same moment.
const CUT_PART: u64 = 10;

/// Whose check it is: several services may ask the same of the same address, and it is asked once.
#[derive(Clone, Debug)]
pub(super) struct Subscriber {
    pub(super) origin: Arc<Standing>,
    /// In its service's list.
    pub(super) place: u16,
    /// Places of the checks that must pass.
    pub(super) needs: Vec<u16>,
    pub(super) verify: bool,
}

impl Subscriber {
    /// Whether it wants a round; if not, that is noted, for those who need it in turn.
    fn wants(&self) -> bool {
        let wants = self.is_awake();
        if !wants {
            self.origin.set_last(self.place, Last::Skipped);
        }
        wants
    }

    /// Whether it wants rounds now.
    fn is_awake(&self) -> bool {
        let needed = self.needs.iter().all(|&need| self.origin.last(need) == Last::Passed);
        needed && (!self.verify || self.origin.want().pace == Pace::Returning)
    }
}

/// What the schedule and the task share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    subscribers: Mutex<Arc<[Subscriber]>>,
    wake: Notify,
    hurry: AtomicBool,
}

impl Shared {
    pub(super) fn subscribe(&self, subscribers: Vec<Subscriber>) {
        *self.subscribers.lock().unwrap_or_else(PoisonError::into_inner) = subscribers.into();
    }

    fn subscribers(&self) -> Arc<[Subscriber]> {
        Arc::clone(&self.subscribers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs once, now; the schedule stays.
    pub(super) fn hurry(&self) {
        self.hurry.store(true, Ordering::Relaxed);
        self.wake.notify_one();
    }

    /// Looks again when the next round is due.
    pub(super) fn reconsider(&self) {
        self.wake.notify_one();
    }
}

/// The task's own.
pub(super) struct Worker {
    pub(super) node: Arc<Node>,
    pub(super) shared: Arc<Shared>,
    pub(super) check: CheckConfig,
    pub(super) chance: Chance,
    pub(super) round: Round,
    /// When the last round was due.
    pub(super) base: Instant,
    /// Part of the interval until the next one. Unit: ppm.
    pub(super) part: u64,
    pub(super) run: Run,
}

/// Why a wait ended.
enum Woken {
    Due(Instant),
    Hurried,
}

impl Worker {
    /// `first`: when its first round is due, from now. `spread`: over how much of the interval all first rounds are.
    pub(super) async fn work(mut self, first: Span, spread: Span) {
        let late = Span(self.check.interval.0 / 2).max(LATE_MIN);
        let mut due = Instant::now() + duration(first);
        // First rounds come close together; the second ones then go to their places all over the interval.
        self.part = if spread.times(2) < self.check.interval { self.chance.share(25, 125) } else { self.share() };
        loop {
            let woken = self.wait(&mut due).await;
            let awake: Vec<Subscriber> =
                self.shared.subscribers().iter().filter(|subscriber| subscriber.wants()).cloned().collect();
            let Some(first) = awake.first() else {
                if let Woken::Due(at) = woken {
                    (self.base, self.part) = (at, self.share());
                    due = self.next(at);
                }
                continue;
            };
            let woke = Instant::now();
            let wait = self.node.budget.reserve(woke).max(first.origin.budget.reserve(woke));
            if !wait.is_zero() {
                sleep_until(woke + wait).await;
            }
            // Waiting for the budget is no lateness: the node is told to check more slowly.
            let behind = (woke + wait).elapsed()
                + match woken {
                    Woken::Due(at) => woke.duration_since(at),
                    Woken::Hurried => std::time::Duration::ZERO,
                };
            let is_late = behind > duration(late);
            let began = Instant::now();
            let finished = if is_late { Finished::late() } else { self.round.run(&self.node.stalls).await };
            self.run.add(finished.outcome);
            let late =
                matches!(woken, Woken::Due(_)).then(|| Span(u64::try_from(behind.as_nanos()).unwrap_or(u64::MAX)));
            if !self.tell(finished, late, &awake).await {
                return;
            }
            if let Woken::Due(at) = woken {
                // Missed rounds collapse into one, and a node that was stopped does not run them all at once.
                let spread = if is_late { self.chance.below(spread) } else { Span::ZERO };
                (self.base, self.part) =
                    if is_late { (Instant::now() + duration(spread), 0) } else { (at, self.share()) };
            }
            due = self.next(began);
        }
    }

    /// Waits for the next round, and shifts it if the judgement wants it otherwise meanwhile.
    async fn wait(&mut self, due: &mut Instant) -> Woken {
        loop {
            tokio::select! {
                () = sleep_until(*due) => return Woken::Due(*due),
                () = self.shared.wake.notified() => {
                    if self.shared.hurry.swap(false, Ordering::Relaxed) {
                        return Woken::Hurried;
                    }
                    let next = self.base + duration(part_of(self.interval(), self.part));
                    let soon = Instant::now() + duration(self.chance.below(self.interval().part(CUT_PART)));
                    *due = next.max(soon);
                }
            }
        }
    }

    /// A tenth more or less.
    fn share(&mut self) -> u64 {
        self.chance.share(90, 110)
    }

    /// When the next round is due; `began`: the last one, on schedule or hurried.
    fn next(&mut self, began: Instant) -> Instant {
        let interval = self.interval();
        let on_schedule = self.base + duration(part_of(interval, self.part));
        // Not sooner after a hurried round, nor after one that lasted longer than its interval, than would be fast.
        let fast = interval.min(self.check.plan.fast);
        let now = Instant::now();
        let due = on_schedule.max(began + duration(part_of(fast, 900_000)));
        if due > now { due } else { now + duration(self.chance.below(fast.part(CUT_PART))) }
    }

    /// The shortest that one of the subscribers wants.
    fn interval(&self) -> Span {
        let subscribers = self.shared.subscribers();
        let awake = subscribers.iter().filter(|subscriber| subscriber.is_awake());
        let wanted = awake.map(|subscriber| rhythm::interval(&self.check, subscriber.origin.want(), self.run));
        wanted.min().unwrap_or(self.check.interval)
    }

    /// False once nobody listens any more.
    async fn tell(&mut self, finished: Finished, mut late: Option<Span>, awake: &[Subscriber]) -> bool {
        let Finished { began, ended, outcome, steps, notes } = finished;
        for Subscriber { origin, place, .. } in awake {
            let (service, check) = (origin.service.as_str(), *place);
            tracing::trace!(service, check, origin = origin.id.0, ?outcome, took = %ended.since(began), "round");
            origin.ended(*place, outcome);
            let result = CheckResult { origin: origin.id, check, began, ended, outcome };
            let report = Report { result, late: late.take(), steps: steps.clone(), notes: notes.clone() };
            if self.node.results.send(report).await.is_err() {
                return false;
            }
        }
        true
    }
}
