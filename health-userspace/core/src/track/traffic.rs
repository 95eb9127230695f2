//! Evidence of one layer of real traffic.

use crate::{
    clients::{ClientWindow, Clients},
    evidence::{Evidence, Polarity},
    model::{Layer, Location},
    policy::{FaultRule, Policy},
    time::Timestamp,
    verdict::{Finding, Grade},
    window::{Tally, Window},
};
use alloc::{format, string::String, vec::Vec};

/// Evidence of one layer of real traffic.
#[derive(Clone, Debug)]
pub struct TrafficTrack {
    layer: Layer,
    window: Window,
    /// Of the failures in the window: answered ones as `good`, silent ones as `bad`.
    kinds: Window,
    /// Whose they are.
    clients: ClientWindow,
    /// Successes at this layer itself (of requests: statuses that were read), and all failures.
    proof: Window,
    /// The failures since the last success.
    streak: Kinds,
    total: Tally,
    proof_total: Tally,
    first_bad: Timestamp,
    newest_good: Timestamp,
    newest: Timestamp,
    accused: bool,
}

/// Failures by kind.
#[derive(Clone, Copy, Debug, Default)]
struct Kinds {
    answered: u64,
    silent: u64,
    told: u64,
}

impl Kinds {
    /// Of all that happened, and the failures of the first two kinds.
    const fn of(all: Tally, kinds: Tally) -> Self {
        let told = all.bad.saturating_sub(kinds.good).saturating_sub(kinds.bad);
        Self { answered: kinds.good, silent: kinds.bad, told }
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            answered: self.answered.saturating_add(other.answered),
            silent: self.silent.saturating_add(other.silent),
            told: self.told.saturating_add(other.told),
        }
    }

    const fn total(self) -> u64 {
        self.answered.saturating_add(self.silent).saturating_add(self.told)
    }
}

/// What traffic had shown at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown {
    pub(super) connects: Tally,
    /// Answers whose status was read.
    pub(super) statuses: Tally,
}

impl Shown {
    /// All so far.
    #[must_use]
    pub const fn so_far(connect: &TrafficTrack, request: &TrafficTrack) -> Self {
        Self { connects: connect.total, statuses: request.proof_total }
    }
}

impl TrafficTrack {
    /// No traffic yet. Failures in it are failures of `layer`.
    #[must_use]
    pub fn new(layer: Layer, policy: &Policy) -> Self {
        Self {
            layer,
            window: Window::new(policy.window),
            kinds: Window::new(policy.window),
            clients: ClientWindow::new(policy.window),
            proof: Window::new(policy.window),
            streak: Kinds::default(),
            total: Tally::EMPTY,
            proof_total: Tally::EMPTY,
            first_bad: Timestamp::NEVER,
            newest_good: Timestamp::NEVER,
            newest: Timestamp::NEVER,
            accused: false,
        }
    }

    /// Adds evidence.
    pub fn record(&mut self, evidence: &Evidence) {
        if evidence.count == 0 {
            return;
        }
        let count = evidence.count;
        let (good, bad) = (Tally { good: count, bad: 0 }, Tally { good: 0, bad: count });
        let (tally, kind) = match evidence.polarity {
            Polarity::Good | Polarity::Slow => (good, Tally::EMPTY),
            Polarity::Answered => (bad, good),
            Polarity::Silent => (bad, bad),
            Polarity::Told => (bad, Tally::EMPTY),
        };
        let proof = if tally.good > 0 && evidence.layer < self.layer { Tally::EMPTY } else { tally };
        self.window.record(evidence.at, tally);
        self.kinds.record(evidence.at, kind);
        self.proof.record(evidence.at, proof);
        self.total = self.total.plus(tally);
        self.proof_total = self.proof_total.plus(proof);
        self.newest = self.newest.max(evidence.at);
        if tally.good > 0 {
            self.streak = Kinds::default();
            self.first_bad = Timestamp::NEVER;
            self.newest_good = self.newest_good.max(evidence.at);
        } else {
            if self.streak.total() == 0 {
                self.first_bad = evidence.at;
            }
            self.streak = self.streak.plus(Kinds::of(tally, kind));
        }
    }

    /// Adds whose failures they were.
    pub fn record_clients(&mut self, at: Timestamp, clients: &Clients) {
        if *clients != Clients::NONE {
            self.clients.record(at, clients);
        }
    }

    /// Forgets what is too old.
    pub fn advance(&mut self, now: Timestamp) {
        self.clients.advance(now);
        self.window.advance(now);
        self.kinds.advance(now);
        self.proof.advance(now);
    }

    /// Starts anew: what came before a clearing is no longer judged.
    pub fn clear(&mut self) {
        self.window.clear();
        self.clients.clear();
        self.kinds.clear();
        self.proof.clear();
        self.accused = false;
    }

    /// Takes another policy.
    pub fn reconfigure(&mut self, policy: &Policy) {
        self.window.resize(policy.window);
        self.clients.resize(policy.window);
        self.kinds.resize(policy.window);
        self.proof.resize(policy.window);
    }

    /// Since the beginning.
    #[must_use]
    pub const fn total(&self) -> Tally {
        self.total
    }

    /// Successes at this layer itself since the beginning (of requests: statuses that were read), and all failures.
    #[must_use]
    pub const fn proof_total(&self) -> Tally {
        self.proof_total
    }

    /// The same in the window.
    #[must_use]
    pub fn proof(&self) -> Tally {
        self.proof.tally()
    }

    /// In the window.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.window.tally()
    }

    /// How many clients are behind the failures in the window.
    #[must_use]
    pub fn spread(&self) -> u8 {
        self.clients.all().spread()
    }

    /// The window as it is judged: no client stands for more than one part in `spread_min` of the failures, so that fewer
    /// than that many speak for nobody but themselves, however often they fail.
    #[must_use]
    pub fn judged(&self, policy: &Policy) -> Tally {
        let all = self.window.tally();
        // Nearly always: the rest costs more than all other looks at a window together.
        if all.bad == 0 {
            return all;
        }
        let clients = self.clients.all();
        // Whoever attacks provokes resets, and a scrubber sends some: a few clients' say nothing then.
        let discounted = self.layer > Layer::Transport && clients.spread() < policy.reset_spread_min;
        let bad = if discounted { all.bad.saturating_sub(self.kinds().answered) } else { all.bad };
        Tally { bad: clients.counted(policy.trip.spread_min, bad), ..all }
    }

    /// Newest evidence.
    #[must_use]
    pub const fn newest(&self) -> Timestamp {
        self.newest
    }

    /// Newest success.
    #[must_use]
    pub const fn newest_good(&self) -> Timestamp {
        self.newest_good
    }

    /// When the failures began that no success has ended.
    #[must_use]
    pub const fn first_bad(&self) -> Option<Timestamp> {
        if self.streak.total() > 0 { Some(self.first_bad) } else { None }
    }

    /// The failures since the last success, in words.
    #[must_use]
    pub fn streak_text(&self) -> Option<String> {
        (self.streak.total() > 0).then(|| self.text(self.streak, self.streak.total()))
    }

    /// Where those failures sit. Silence of everything since they began is the host's; anything else the process's.
    #[must_use]
    pub fn location(&self, last_seen: Timestamp) -> Location {
        let Kinds { answered, silent, told } = self.streak;
        let silence = silent > answered.saturating_add(told) && last_seen < self.first_bad;
        // That nobody can reach it is said of a host; that it answers with errors, of what runs there.
        let unreachable = self.layer <= Layer::Transport && told > answered.saturating_add(silent);
        if silence || unreachable { Location::OriginHost } else { Location::OriginProcess }
    }

    /// The failures in the window.
    fn kinds(&self) -> Kinds {
        Kinds::of(self.window.tally(), self.kinds.tally())
    }

    /// Grade of the window. The floor guards the accusation only: once accused, an origin whose weight was cut for it
    /// must not be cleared by the lack of samples which that very cut brings about.
    fn grade(&mut self, policy: &Policy) -> Grade {
        let tally = self.judged(policy);
        let rate = Grade::of_rate(tally, policy.success_below_percent);
        let grade = match rate {
            Grade::Unknown | Grade::Healthy => rate,
            Grade::Degraded | Grade::HighRisk | Grade::Fault => {
                if self.accused || tally.total() >= u64::from(policy.samples_min.passive) {
                    rate
                } else {
                    Grade::Unknown
                }
            }
        };
        // Where a fault takes both, a success among the newest ends the run.
        let runs = policy.fault_rule == FaultRule::Either || self.streak.total() >= u64::from(policy.fall);
        let grade = if runs { grade } else { grade.min(Grade::HighRisk) };
        self.accused = grade > Grade::Healthy;
        grade
    }

    pub(crate) fn finding(&mut self, policy: &Policy, last_seen: Timestamp) -> (Grade, Option<Finding>) {
        let grade = self.grade(policy);
        let finding = (grade > Grade::Healthy).then(|| Finding {
            grade,
            rule: match (grade, policy.fault_rule) {
                (Grade::Fault, FaultRule::Both) => "fall_and_rate",
                _ => "success_rate",
            },
            layer: self.layer,
            traffic: true,
            check: None,
            tally: self.judged(policy),
            location: self.location(last_seen),
            text: self.text(self.kinds(), self.window.tally().total()),
            reason: None,
        });
        (grade, finding)
    }

    fn text(&self, kinds: Kinds, total: u64) -> String {
        let (answered, silent, told) = match self.layer {
            Layer::Network | Layer::Transport => ("refused", "no answer", "unreachable"),
            Layer::Tls | Layer::Application => ("reset", "no response", "status 5xx"),
        };
        let kinds = [(answered, kinds.answered), (silent, kinds.silent), (told, kinds.told)];
        let words: Vec<String> = kinds
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(word, count)| format!("{word} {count}/{total}"))
            .collect();
        if words.is_empty() { format!("{answered} 0/{total}") } else { words.join(", ") }
    }
}
