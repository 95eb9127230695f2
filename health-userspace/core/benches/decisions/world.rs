//! Flows, checks and time; and what they say of a judge.

use crate::{
    judge::{CHECK_TIMEOUT, Flow, Found, Judge},
    kernel::Answer,
    scenario::{Condition, Dice, FINE, LENGTH, Mishap, Ms, Right, SECOND, SETTLED, Scenario, mix},
};
use core::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The daemon's beat.
const TICK: Ms = 100;
/// What an origin usually takes.
const USUAL: Ms = 10;
/// A client is harmed by an answer that is later than this,
const PATIENCE: Ms = 500;
/// and gives up after this.
const GIVES_UP: Ms = 5 * SECOND;
/// Flows of the judged origin that are looked at, and how many of them elsewhere make a move: a fifth.
const LOOKED_AT: usize = 20;
const MOVED: usize = 4;

/// What became of one scenario.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// How long the fault went undecided; `None`: nothing had to be decided.
    pub(crate) decided: Option<Ms>,
    pub(crate) missed: bool,
    pub(crate) falsely: bool,
    pub(crate) harmed: u64,
    pub(crate) flows: u64,
}

/// In the order of time, then of making.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Change(usize),
    Mishap(usize),
    Checked(usize),
    Ended { origin: usize, well: bool },
    Repeat(usize),
    Tick,
    Arrival,
}

/// A connection attempt that waits for an answer to its SYN.
struct Attempt {
    flow: Flow,
    number: u64,
    began: Ms,
    sent: Ms,
    wait: Ms,
    tried: Vec<usize>,
}

pub(crate) struct World<'a> {
    scenario: &'a Scenario,
    judge: Box<dyn Judge>,
    events: BinaryHeap<Reverse<(Ms, u64, Event)>>,
    made: u64,
    now: Ms,
    dice: Dice,
    are: Vec<Condition>,
    /// Since when the judged origin is fine.
    fine_since: Ms,
    stopped_until: Ms,
    /// Attempts that wait, and rounds of checks that run.
    attempts: Vec<Attempt>,
    rounds: Vec<Found>,
    /// When each origin's next round is due, and by which interval.
    next: Vec<Option<(Ms, Ms)>>,
    /// New connections of each origin in this second.
    load: Vec<u32>,
    second: Ms,
    last: VecDeque<bool>,
    outcome: Outcome,
}

/// Plays one scenario to its end.
pub(crate) fn play(scenario: &Scenario, judge: Box<dyn Judge>) -> Outcome {
    let origins = scenario.origins.len();
    let mut world = World {
        scenario,
        judge,
        events: BinaryHeap::new(),
        made: 0,
        now: 0,
        dice: Dice(scenario.seed),
        are: vec![FINE; origins],
        fine_since: 0,
        stopped_until: 0,
        attempts: Vec::new(),
        rounds: Vec::new(),
        next: vec![None; origins],
        load: vec![0; origins],
        second: 0,
        last: VecDeque::new(),
        outcome: Outcome::default(),
    };
    for (place, change) in scenario.changes.iter().enumerate() {
        world.at(change.0, Event::Change(place));
    }
    for (place, mishap) in scenario.mishaps.iter().enumerate() {
        world.at(mishap.0, Event::Mishap(place));
    }
    for origin in 0..origins {
        // First rounds are spread.
        world.next[origin] = world.judge.interval(origin).map(|interval| (world.dice.below(interval), interval));
    }
    world.at(0, Event::Tick);
    world.at(1, Event::Arrival);
    while let Some(Reverse((at, _, event))) = world.events.pop().filter(|Reverse((at, ..))| *at < LENGTH) {
        world.now = at;
        world.happens(event);
    }
    world.finish()
}

impl World<'_> {
    fn at(&mut self, at: Ms, event: Event) {
        self.made += 1;
        self.events.push(Reverse((at, self.made, event)));
    }

    fn is_stopped(&self) -> bool {
        self.now < self.stopped_until
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Change(place) => {
                let (_, origin, is) = self.scenario.changes[place];
                self.are[origin] = is;
                if origin == self.judged() {
                    self.fine_since = self.now;
                }
            }
            Event::Mishap(place) => match self.scenario.mishaps[place].1 {
                Mishap::Restart => self.judge.restart(self.now),
                Mishap::Reload => self.judge.reload(self.now),
                Mishap::Stops(long) => self.stopped_until = self.now + long,
            },
            Event::Checked(place) => {
                let found = self.rounds[place];
                // What was on its way while the judge stood still is thrown away, as the shell does.
                if found.began >= self.stopped_until {
                    self.judge.checked(found);
                }
            }
            Event::Ended { origin, well } => self.judge.ended(origin, well, self.now),
            Event::Repeat(place) => self.repeat(place),
            Event::Tick => {
                if !self.is_stopped() {
                    self.judge.tick(self.now);
                    self.checks();
                }
                self.at(self.now + TICK, Event::Tick);
            }
            Event::Arrival => self.arrival(),
        }
    }

    fn judged(&self) -> usize {
        match self.scenario.right {
            Right::Moves { origin, .. } | Right::Stays { origin } => origin,
        }
    }

    /// What an origin answers to the draw `luck`.
    fn answer(&self, origin: usize, client: Option<u64>, luck: u64) -> Answer {
        let is = self.are[origin];
        let part = |salt: u64| u16::try_from(mix(luck ^ salt) % 1000).expect("below 1000");
        // Checks ask for a page that answers at once.
        let concerned = is.only.is_none_or(|only| client == Some(only)) && !(is.patient && client.is_none());
        let overloaded = self.scenario.origins[origin].capacity.is_some_and(|most| self.load[origin] > most);
        if concerned && part(1) < is.lose {
            Answer::Lost
        } else if concerned && part(2) < is.refuse {
            Answer::Refused
        } else if overloaded || concerned && part(3) < is.hang {
            Answer::Hangs
        } else if concerned && part(4) < is.error {
            if self.scenario.plain { Answer::Error } else { Answer::Garbage }
        } else {
            let slow = concerned && part(5) < is.slow;
            let takes = if slow { is.slow_ms } else { USUAL + mix(luck) % USUAL };
            Answer::Served(health_core::Span::from_millis(takes), self.scenario.plain)
        }
    }

    /// Rounds that are due. Another interval moves the one that is waited for.
    fn checks(&mut self) {
        for origin in 0..self.next.len() {
            let Some((due, by)) = self.next[origin] else { continue };
            let interval = self.judge.interval(origin).expect("it was there");
            let due =
                if self.judge.looks_at_once(origin) { self.now } else { due.min((due + interval).saturating_sub(by)) };
            self.next[origin] = Some((due, interval));
            if due <= self.now {
                self.next[origin] = Some((self.now + interval, interval));
                self.check(origin);
            }
        }
    }

    fn check(&mut self, origin: usize) {
        let luck = self.dice.below(u64::MAX);
        let (answer, takes) = match self.answer(origin, None, luck) {
            // The stack repeats its SYN once within the deadline.
            Answer::Lost => match self.answer(origin, None, mix(luck)) {
                Answer::Served(takes, read) => (Answer::Served(takes, read), SECOND + takes.as_millis()),
                other => (other, CHECK_TIMEOUT),
            },
            Answer::Hangs => (Answer::Hangs, CHECK_TIMEOUT),
            Answer::Served(takes, read) => (Answer::Served(takes, read), takes.as_millis()),
            // A check reads what is encrypted for it.
            Answer::Garbage => (Answer::Error, USUAL),
            other @ (Answer::Refused | Answer::Error) => (other, USUAL),
        };
        let page_wrong = self.are[origin].page_wrong;
        let takes = takes.min(CHECK_TIMEOUT);
        self.rounds.push(Found { origin, began: self.now, takes, answer, page_wrong });
        self.at(self.now + takes, Event::Checked(self.rounds.len() - 1));
    }

    fn arrival(&mut self) {
        // One in ten seconds, where it is night.
        let mean = SECOND.checked_div(self.scenario.rate).unwrap_or(10 * SECOND);
        let wait = self.dice.below(2 * mean + 1).max(1);
        self.at(self.now + wait, Event::Arrival);
        let primaries = self.scenario.origins.iter().filter(|shape| shape.tier == 0 && shape.weight > 0).count();
        let hash = self.dice.below(u64::MAX);
        let own = usize::try_from(mix(hash) % u64::try_from(primaries).expect("few")).expect("few");
        let flow = Flow { own, hash, client: self.dice.below(1000) };
        let choice = self.judge.choose(flow, self.now);
        self.outcome.flows += 1;
        if own == self.judged() && !choice.trial {
            self.see(choice.origin != Some(own));
        }
        let Some(origin) = choice.origin else { return self.harm() };
        let number = self.outcome.flows;
        self.attempt(Attempt { flow, number, began: self.now, sent: self.now, wait: 0, tried: vec![origin] });
    }

    /// A flow of the judged origin went elsewhere, or did not.
    fn see(&mut self, elsewhere: bool) {
        self.last.push_back(elsewhere);
        if self.last.len() > LOOKED_AT {
            self.last.pop_front();
        }
        let moved = self.last.iter().filter(|elsewhere| **elsewhere).count() >= MOVED;
        match self.scenario.right {
            Right::Moves { from, until, .. } => {
                if moved && (from..until).contains(&self.now) {
                    self.outcome.decided.get_or_insert(self.now - from);
                }
            }
            Right::Stays { .. } => {
                if moved
                    && elsewhere
                    && self.now >= self.fine_since + SETTLED
                    && !self.outcome.falsely
                    && std::env::var_os("TOLD").is_some()
                {
                    eprintln!("{:6} ms  moved for nothing", self.now);
                }
                self.outcome.falsely |= moved && elsewhere && self.now >= self.fine_since + SETTLED;
            }
        }
    }

    fn harm(&mut self) {
        self.outcome.harmed += 1;
    }

    /// The SYN leaves, for the origin that was tried last.
    fn attempt(&mut self, mut attempt: Attempt) {
        let origin = *attempt.tried.last().expect("one at least");
        if self.now / SECOND != self.second {
            self.second = self.now / SECOND;
            self.load.fill(0);
        }
        self.load[origin] += 1;
        let answer = self.answer(origin, Some(attempt.flow.client), self.luck(&attempt));
        self.judge.attempt(attempt.flow, origin, answer, self.now);
        match answer {
            Answer::Lost => {
                attempt.wait = self.judge.patience(origin);
                self.wait(attempt);
            }
            Answer::Refused => match self.judge.turn(&attempt.tried, self.now) {
                Some(next) => {
                    attempt.tried.push(next);
                    self.attempt(attempt);
                }
                None => self.ends(origin, attempt.began, None),
            },
            Answer::Hangs => self.ends(origin, attempt.began, Some(GIVES_UP)),
            Answer::Error | Answer::Garbage => self.ends(origin, attempt.began, None),
            Answer::Served(takes, _) => self.ends(origin, attempt.began, Some(takes.as_millis())),
        }
    }

    fn luck(&self, attempt: &Attempt) -> u64 {
        let origin = u64::try_from(*attempt.tried.last().expect("one at least")).expect("few");
        mix(self.scenario.seed ^ mix(attempt.number) ^ mix(origin + 17) ^ (attempt.sent << 20))
    }

    fn wait(&mut self, attempt: Attempt) {
        let at = self.now + attempt.wait;
        if at >= attempt.began + GIVES_UP {
            let origin = *attempt.tried.last().expect("one at least");
            return self.ends(origin, attempt.began, Some(GIVES_UP));
        }
        self.attempts.push(attempt);
        self.at(at, Event::Repeat(self.attempts.len() - 1));
    }

    /// Nobody answered: the SYN again, to the same origin or to another.
    fn repeat(&mut self, place: usize) {
        let Attempt { flow, number, began, sent, wait, ref tried } = self.attempts[place];
        let mut attempt = Attempt { flow, number, began, sent: self.now, wait: 2 * wait, tried: tried.clone() };
        if let Some(next) = self.judge.resteer(&attempt.tried, sent, self.now) {
            attempt.tried.push(next);
            return self.attempt(attempt);
        }
        let origin = *attempt.tried.last().expect("one at least");
        let answer = self.answer(origin, Some(flow.client), self.luck(&attempt));
        self.judge.repeat(origin, answer, self.now);
        match answer {
            Answer::Lost => self.wait(attempt),
            Answer::Hangs => self.ends(origin, began, Some(GIVES_UP)),
            Answer::Refused | Answer::Error | Answer::Garbage => self.ends(origin, began, None),
            Answer::Served(takes, _) => self.ends(origin, began, Some(takes.as_millis())),
        }
    }

    /// What the client has of it. `takes`: from now on until the answer; `None`: it failed.
    fn ends(&mut self, origin: usize, began: Ms, takes: Option<Ms>) {
        let long = self.now - began + takes.unwrap_or(0);
        let patient = self.are[origin].patient;
        let well = takes.is_some() && (long < GIVES_UP || patient);
        if !well || (long > PATIENCE && !patient) {
            self.harm();
        }
        self.at(self.now + takes.unwrap_or(0).min(GIVES_UP), Event::Ended { origin, well });
    }

    fn finish(self) -> Outcome {
        let mut outcome = self.outcome;
        if let Right::Moves { from, until, .. } = self.scenario.right
            && outcome.decided.is_none()
        {
            outcome.missed = true;
            outcome.decided = Some(until - from);
        }
        outcome
    }
}
