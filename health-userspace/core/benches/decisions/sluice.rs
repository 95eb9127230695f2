//! The real core, with what the kernel half does by itself.

use crate::{
    judge::{CHECK_TIMEOUT, Choice, Flow, Found, Judge},
    kernel::{Answer, Kernel},
    scenario::{Ms, SECOND, Shape},
};
use health_core::{
    Span, Timestamp,
    engine::{Engine, FrontendPlan, Input, OriginPlan},
    model::{
        Balance, CheckResult, CheckSpec, Family, FrontendId, FrontendSpec, Layer, Mode, OriginId, OriginSpec, Outcome,
        Pace, Reason, ServiceId, ServiceSpec,
    },
    policy::Policy,
};

/// The check's intervals: the defaults of `interval`, `interval_fast`, `interval_max`.
const INTERVAL: Ms = 5 * SECOND;
const INTERVAL_FAST: Ms = SECOND;
const INTERVAL_MAX: Ms = 30 * SECOND;

pub(crate) struct Sluice {
    spec: ServiceSpec,
    engine: Engine,
    kernels: Vec<Kernel>,
    frontends: Vec<FrontendPlan>,
    paces: Vec<Pace>,
    suspects: Vec<OriginId>,
    /// Failures, and passes, of each origin's check in a row.
    runs: Vec<(u32, u32)>,
    checks: Vec<CheckResult>,
    /// New connections of each origin in this second.
    taken: Vec<u32>,
    second: Ms,
    /// Whether each decision is printed: `TOLD` in the environment.
    told: bool,
}

pub(crate) fn at(ms: Ms) -> Timestamp {
    Timestamp(1_000_000_000_000).after(Span::from_millis(ms))
}

fn id(origin: usize) -> OriginId {
    OriginId(u16::try_from(origin).expect("few"))
}

fn place(id: OriginId) -> usize {
    usize::from(id.0)
}

impl Sluice {
    pub(crate) fn new(shapes: &[Shape]) -> Self {
        let origin = |(place, shape): (usize, &Shape)| OriginSpec {
            id: id(place),
            name: format!("o{place}"),
            key: u64::try_from(place).expect("few"),
            family: Family::V4,
            tier: shape.tier,
            weight: shape.weight,
            capacity_cps: shape.capacity,
            capacity_conns: None,
        };
        let origins: Vec<OriginSpec> = shapes.iter().enumerate().map(origin).collect();
        let own = origins.iter().filter(|origin| origin.tier == 0);
        let frontend =
            |own: &OriginSpec| FrontendSpec { id: FrontendId(own.id.0), own: Some(own.id), family: own.family };
        let spec = ServiceSpec {
            id: ServiceId(1),
            name: "s".into(),
            mode: Mode::Enforce,
            policy: Policy::default(),
            checks: vec![CheckSpec {
                name: "page".into(),
                layer: Layer::Application,
                interval: Span::from_millis(INTERVAL),
                critical: true,
                verify: false,
                removed_fall: 0,
            }],
            frontends: own.map(frontend).collect(),
            origins,
            balance: Balance::Maglev,
        };
        Self {
            engine: Engine::new(vec![spec.clone()], at(0)),
            spec,
            kernels: vec![Kernel::new(at(0)); shapes.len()],
            frontends: Vec::new(),
            paces: vec![Pace::Usual; shapes.len()],
            suspects: Vec::new(),
            runs: vec![(0, 0); shapes.len()],
            checks: Vec::new(),
            taken: vec![0; shapes.len()],
            second: 0,
            told: std::env::var_os("TOLD").is_some(),
        }
    }

    fn frontend(&self, own: usize) -> Option<&FrontendPlan> {
        self.frontends.iter().find(|frontend| place(OriginId(frontend.id.0)) == own)
    }

    fn is_open(&self, origin: usize) -> bool {
        self.kernels[origin].is_open() && self.spec.origins[origin].weight > 0
    }

    fn has_room(&self, origin: usize) -> bool {
        self.spec.origins[origin].capacity_cps.is_none_or(|most| self.taken[origin] < most)
    }

    /// The best of the armed who may be asked still.
    fn armed(&self, own: usize, tried: &[usize]) -> Option<usize> {
        let armed = &self.frontend(own)?.armed;
        armed
            .iter()
            .map(|id| place(*id))
            .find(|origin| !tried.contains(origin) && self.is_open(*origin) && self.has_room(*origin))
    }

    fn take(&mut self, origin: usize, now: Ms) {
        if now / SECOND != self.second {
            self.second = now / SECOND;
            self.taken.fill(0);
        }
        self.taken[origin] += 1;
    }
}

impl Judge for Sluice {
    fn choose(&mut self, flow: Flow, now: Ms) -> Choice {
        // What is overdue is looked at when a packet passes.
        for kernel in &mut self.kernels {
            kernel.run_out(at(now));
        }
        let Some(frontend) = self.frontend(flow.own) else { return Choice::of(flow.own) };
        let slots = u64::try_from(frontend.slots.len()).expect("few");
        let slot = place(frontend.slots[usize::try_from(flow.hash % slots).expect("few")]);
        for candidate in [slot, flow.own] {
            if self.kernels[candidate].take_trial(at(now)) {
                return Choice { origin: Some(candidate), trial: true };
            }
        }
        let chosen = if slot == flow.own && self.is_open(slot) || self.is_open(slot) && self.has_room(slot) {
            Some(slot)
        } else {
            match self.armed(flow.own, &[]) {
                Some(standby) => Some(standby),
                // Somebody could stand in, but has no room.
                None if self
                    .frontend(flow.own)
                    .is_some_and(|frontend| frontend.armed.iter().any(|id| self.is_open(place(*id)))) =>
                {
                    None
                }
                None => Some(slot),
            }
        };
        if let Some(chosen) = chosen {
            self.take(chosen, now);
        }
        Choice { origin: chosen, trial: false }
    }

    fn attempt(&mut self, flow: Flow, origin: usize, answer: Answer, now: Ms) {
        let last = !(0..self.kernels.len()).any(|other| other != origin && self.is_open(other));
        let client = usize::try_from(flow.client).expect("small");
        self.kernels[origin].connect(answer, client, last, at(now));
    }

    fn repeat(&mut self, origin: usize, answer: Answer, now: Ms) {
        self.kernels[origin].repeat(answer, at(now));
    }

    fn turn(&mut self, tried: &[usize], now: Ms) -> Option<usize> {
        let next = self.armed(tried[0], tried)?;
        self.take(next, now);
        Some(next)
    }

    fn resteer(&mut self, tried: &[usize], sent: Ms, now: Ms) -> Option<usize> {
        let last = &self.kernels[*tried.last()?];
        if last.is_open() && !last.is_silent(at(sent)) {
            return None;
        }
        self.turn(tried, now)
    }

    fn patience(&self, origin: usize) -> Ms {
        let learned = self.kernels[origin].plan.and_then(|plan: OriginPlan| plan.connect_timeout);
        learned.map_or(SECOND, Span::as_millis).min(SECOND)
    }

    fn interval(&self, origin: usize) -> Option<Ms> {
        let (failures, passes) = self.runs[origin];
        // As in `probe/rhythm.rs`.
        Some(match self.paces[origin] {
            Pace::Out if passes == 1 => INTERVAL_FAST,
            Pace::Suspect => INTERVAL_FAST,
            Pace::Usual | Pace::Ample(_) | Pace::Gentle if (1..3).contains(&failures) => INTERVAL_FAST,
            Pace::Gentle => 2 * INTERVAL,
            Pace::Ample(Layer::Application) if passes > 0 => INTERVAL_MAX,
            Pace::Out | Pace::Returning | Pace::Usual | Pace::Ample(_) => INTERVAL,
        })
    }

    fn looks_at_once(&mut self, origin: usize) -> bool {
        let before = self.suspects.len();
        self.suspects.retain(|suspect| place(*suspect) != origin);
        self.suspects.len() < before
    }

    fn checked(&mut self, found: Found) {
        let outcome = match found.answer {
            Answer::Lost => Outcome::Fail(Reason::Timeout(Layer::Transport)),
            Answer::Refused => Outcome::Fail(Reason::Refused),
            Answer::Error | Answer::Garbage => Outcome::Fail(Reason::Status(503)),
            Answer::Hangs => Outcome::Fail(Reason::Timeout(Layer::Application)),
            Answer::Served(..) if found.takes >= CHECK_TIMEOUT => Outcome::Fail(Reason::Timeout(Layer::Application)),
            Answer::Served(..) if found.page_wrong => Outcome::Fail(Reason::Status(404)),
            Answer::Served(..) => Outcome::Pass,
        };
        let (failures, passes) = self.runs[found.origin];
        self.runs[found.origin] = if outcome.is_pass() { (0, passes + 1) } else { (failures + 1, 0) };
        let began = at(found.began);
        let ended = at(found.began + found.takes);
        self.checks.push(CheckResult { origin: id(found.origin), check: 0, began, ended, outcome });
    }

    fn tick(&mut self, now: Ms) {
        for kernel in &mut self.kernels {
            kernel.run_out(at(now));
        }
        let all = || self.kernels.iter().enumerate();
        let input = Input {
            traffic: all().map(|(origin, kernel)| (id(origin), kernel.totals)).collect(),
            kernel: all().map(|(origin, kernel)| (id(origin), kernel.view)).collect(),
            checks: core::mem::take(&mut self.checks),
            in_sync: true,
            ..Input::default()
        };
        let step = self.engine.tick(at(now), &input);
        if self.told {
            for decision in &step.decisions {
                eprintln!("{now:6} ms  {:?}  {}: {:?}", decision.what, decision.rule, decision.evidence);
            }
        }
        for plan in &step.plan.origins {
            self.kernels[place(plan.id)].write(*plan);
        }
        self.frontends = step.plan.frontends;
        self.suspects = step.suspects;
        for (origin, pace) in step.paces {
            self.paces[place(origin)] = pace;
        }
    }

    fn restart(&mut self, now: Ms) {
        let kept = self.engine.remember();
        self.engine = Engine::new(vec![self.spec.clone()], at(now));
        self.engine.recall(kept, at(now));
        self.checks.clear();
    }

    fn reload(&mut self, now: Ms) {
        self.checks.clear();
        self.engine.reconfigure(vec![self.spec.clone()], at(now));
    }
}
