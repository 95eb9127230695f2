//! The world: what is true, what of it the kernel and the prober see, and what becomes of the plan.

use health_core::{
    Span, Timestamp,
    clients::CLIENTS,
    engine::{
        Engine, FrontendPlan, Input, KernelView, Lease, Order, OrderKind, OriginPlan, Plan, Quantile, Route, Step,
        Streak, TrafficTotals, TripView,
    },
    governor::{Limits, Site},
    model::{
        Balance, CheckResult, CheckSpec, Family, FrontendId, FrontendSpec, Layer, LocalReason, Mode, OriginId,
        OriginSpec, Outcome, Reason, ServiceId, ServiceSpec,
    },
    policy::{Failback, HoldDown, Moves, Policy},
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const TICK: Span = Span::from_millis(250);

/// `SplitMix64`.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// Whether anything happens at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    Calm,
    Stormy,
}

/// How an origin really is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truth {
    Fine,
    /// 5 % of SYNs are lost.
    Lossy,
    /// Connections are refused.
    Refuses,
    /// Nothing comes back.
    Silent,
    /// Handshakes succeed, requests hang.
    Hangs,
    /// Right, but late.
    Slow,
    /// Half of the connections are refused.
    Grey,
    /// Only the page is wrong.
    WrongPage,
    /// Every answer is a 503, in plain text.
    Errors,
    /// It is off the link: after a while its neighbour entry fails.
    Unplugged,
}

impl Truth {
    fn any(dice: &mut Dice) -> Self {
        match dice.below(12) {
            0 => Self::Lossy,
            1 => Self::Refuses,
            2 => Self::Silent,
            3 => Self::Hangs,
            4 => Self::Slow,
            5 => Self::Grey,
            6 => Self::WrongPage,
            7 => Self::Errors,
            8 => Self::Unplugged,
            _ => Self::Fine,
        }
    }
}

/// One origin's truth, and the kernel's memory of it.
pub(crate) struct Host {
    pub(crate) spec: OriginSpec,
    pub(crate) service: usize,
    pub(crate) truth: Truth,
    pub(crate) truth_since: Timestamp,
    /// Whether anything but `Fine` was ever true of it, or anybody ever touched it.
    pub(crate) tainted: bool,
    pub(crate) answered: bool,
    /// Whether a round that failed was handed in with this tick.
    pub(crate) failed_round: bool,
    pub(crate) ordered_until: Option<Timestamp>,
    totals: TrafficTotals,
    view: KernelView,
    plan: Option<OriginPlan>,
    streak: [u32; 2],
    half_open: Span,
    trial_at: Timestamp,
    /// SYNs and requests whose time runs out later.
    overdue: Vec<(Timestamp, Streak, bool)>,
    next_round: Vec<Timestamp>,
    neighbour_failed: Option<Timestamp>,
}

#[expect(clippy::struct_excessive_bools, reason = "facts of which each can be so or not, whatever the others are")]
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) now: Timestamp,
    pub(crate) specs: Vec<ServiceSpec>,
    pub(crate) hosts: BTreeMap<OriginId, Host>,
    pub(crate) step: Step,
    pub(crate) restarted: bool,
    /// The same input in another engine gave another step.
    pub(crate) twin_differs: bool,
    pub(crate) writes_fail: bool,
    pub(crate) writes_ok_since: Timestamp,
    /// Whether standbys say what they can take.
    pub(crate) declared: bool,
    dice: Dice,
    engine: Engine,
    limits: Limits,
    frontends: BTreeMap<FrontendId, FrontendPlan>,
    running: Vec<CheckResult>,
    path_dice: Dice,
    /// The gateway that is cut off, and until when.
    cut: Option<(u64, Timestamp)>,
    weather: Weather,
    busy: u64,
    ticks: u64,
}

/// Two gateways, and a prefix for each origin.
fn route(id: OriginId) -> Route {
    Route { hop: u64::from(id.0 % 2), prefix: u64::from(id.0), gateway: true }
}

fn service(place: usize, dice: &mut Dice, next: &mut u16, declared: bool) -> ServiceSpec {
    let mut origins = Vec::new();
    let mut frontends = Vec::new();
    for tier in 0..=u8::try_from(dice.below(3)).expect("small") {
        for _ in 0..=dice.below(3) {
            *next += 1;
            let weight = [0, 1, 10, 100, 100, 100, 65_535][usize::try_from(dice.below(7)).expect("small")];
            let family = if dice.percent(80) { Family::V4 } else { Family::V6 };
            let id = OriginId(*next);
            let name = format!("o{next}");
            let key = u64::from(*next) << 8;
            let capacity_cps = declared.then_some(10_000);
            origins.push(OriginSpec { id, name, key, family, tier, weight, capacity_cps, capacity_conns: None });
            if tier == 0 {
                frontends.push(FrontendSpec { id: FrontendId(*next), own: Some(id), family });
            }
        }
    }
    let families: BTreeSet<Family> = origins.iter().map(|origin| origin.family).collect();
    for family in families.into_iter().filter(|_| dice.percent(30)) {
        *next += 1;
        frontends.push(FrontendSpec { id: FrontendId(*next), own: None, family });
    }
    let port = CheckSpec {
        name: "port".into(),
        layer: Layer::Transport,
        interval: Span::from_secs(1),
        critical: true,
        verify: false,
        removed_fall: 0,
    };
    let page = CheckSpec {
        name: "page".into(),
        layer: Layer::Application,
        interval: Span::from_millis(1500),
        critical: true,
        verify: false,
        removed_fall: 0,
    };
    let checks = match dice.below(4) {
        0 => vec![port],
        1 => vec![page],
        2 => vec![page, port],
        _ => vec![port, page],
    };
    let hold_down = HoldDown { base: Span::from_secs(2), max: Span::from_secs(8) };
    let stages = Failback {
        observe_for: Span::from_secs(2),
        stages: vec![10, 50, 100],
        stage_for: Span::from_secs(3),
        ..Failback::default()
    };
    let failback = if dice.percent(50) { stages } else { Failback::at_once() };
    let policy = Policy { hold_down, failback, passive: dice.percent(85), ..Policy::default() };
    let mode = if dice.percent(90) { Mode::Enforce } else { Mode::Observe };
    let id = ServiceId(u16::try_from(place).expect("small"));
    let balance = if dice.percent(50) { Balance::Maglev } else { Balance::Weighted };
    ServiceSpec { id, name: format!("s{place}"), mode, policy, origins, checks, frontends, balance }
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let now = Timestamp(1_000_000_000_000 + dice.below(1_000_000_000));
        let mut next = 0;
        // Dice of their own: the worlds of the seeds that are named stay what they were.
        let mut more = Dice(seed ^ 0x5ca1_ab1e_0000_0001);
        let declared = more.percent(50);
        let mut specs: Vec<ServiceSpec> = (0..=usize::try_from(dice.below(2)).expect("small"))
            .map(|place| service(place, &mut dice, &mut next, declared))
            .collect();
        for spec in &mut specs {
            let whole = more.percent(15);
            spec.policy.moves = if whole { Moves::Service } else { Moves::Share };
            if whole {
                spec.policy.failback = Failback::at_once();
            }
            spec.policy.panic_percent = u8::from(!more.percent(15));
        }
        let mut hosts = BTreeMap::new();
        for (place, spec) in specs.iter().enumerate() {
            for origin in &spec.origins {
                let next_round = spec.checks.iter().map(|_| now.after(Span::from_millis(dice.below(1000)))).collect();
                hosts.insert(origin.id, Host::new(origin.clone(), place, now, next_round));
            }
        }
        let limits = if more.percent(50) {
            Limits::default()
        } else {
            Limits { causes_at_once: 1, moves_per_min: 2, per_standby_at_once: 1 }
        };
        let mut engine = Engine::new(specs.clone(), now);
        engine.set_governor(limits);
        let busy = [0, 1, 5, 30][usize::try_from(dice.below(4)).expect("small")];
        Self {
            seed,
            now,
            specs,
            hosts,
            step: Step::default(),
            restarted: false,
            twin_differs: false,
            writes_fail: false,
            writes_ok_since: now,
            dice,
            engine,
            limits,
            declared,
            frontends: BTreeMap::new(),
            running: Vec::new(),
            path_dice: Dice(seed ^ 0x70a7_4000),
            cut: None,
            weather: Weather::Stormy,
            busy,
            ticks: 0,
        }
    }

    pub(crate) fn calm(seed: u64) -> Self {
        Self { weather: Weather::Calm, ..Self::new(seed) }
    }

    pub(crate) fn advance(&mut self) {
        self.now = self.now.after(TICK);
        self.ticks += 1;
        let mut orders = Vec::new();
        if self.weather == Weather::Stormy {
            self.fate(&mut orders);
        }
        self.flows();
        let checks = self.rounds();
        let mut input = Input {
            traffic: self.hosts.iter().map(|(id, host)| (*id, host.totals)).collect(),
            times: Vec::new(),
            kernel: self.hosts.iter().map(|(id, host)| (*id, host.view)).collect(),
            checks,
            weights: Vec::new(),
            orders,
            neighbours: self.neighbours(),
            sites: self.sites(),
            closed: Vec::new(),
            routes: self.hosts.keys().map(|id| (*id, Some(route(*id)))).collect(),
            mitigated: Vec::new(),
            in_sync: !self.writes_fail,
        };
        if self.weather == Weather::Stormy && self.dice.percent(3) {
            // A tick without a reading.
            input.traffic.clear();
            input.kernel.clear();
        }
        let twin = self.ticks.is_multiple_of(16).then(|| self.engine.clone().tick(self.now, &input));
        self.step = self.engine.tick(self.now, &input);
        self.twin_differs = twin.is_some_and(|twin| {
            (twin.plan != self.step.plan) || (twin.decisions != self.step.decisions) || (twin.view != self.step.view)
        });
        if !self.writes_fail {
            let plan = self.step.plan.clone();
            self.write(&plan);
        }
    }

    /// What happens to the world.
    fn fate(&mut self, orders: &mut Vec<Order>) {
        self.path();
        self.restarted = false;
        let ids: Vec<OriginId> = self.hosts.keys().copied().collect();
        for id in &ids {
            let dice = &mut self.dice;
            let host = self.hosts.get_mut(id).expect("it is there");
            // Mostly long spells, so that liveness shows; sometimes flapping.
            if dice.below(1000) < 6 {
                host.truth = Truth::any(dice);
                host.truth_since = self.now;
                host.tainted |= host.truth != Truth::Fine;
            }
            if dice.below(1000) < 1 {
                host.totals = TrafficTotals::default();
            }
            if dice.below(2000) < 3 {
                let what = [OrderKind::Drain, OrderKind::Fail, OrderKind::Clear]
                    [usize::try_from(dice.below(3)).expect("small")];
                let until = self.now.after(Span::from_secs(dice.below(20)));
                host.tainted = true;
                host.ordered_until = Some(until);
                let (reason, by) = ("because".to_owned(), "op".to_owned());
                orders.push(Order { origin: *id, what, reason, by, until: Some(until) });
            }
        }
        let fails = self.writes_fail;
        self.writes_fail = self.dice.percent(if fails { 90 } else { 1 });
        if fails || self.writes_fail {
            self.writes_ok_since = self.now;
        }
        match self.dice.below(1000) {
            0..3 => self.restart(),
            3..6 => self.reload(),
            _ => {}
        }
    }

    /// Now and then everything behind one gateway is lost at once, and later comes back at once.
    fn path(&mut self) {
        match self.cut.as_mut() {
            None if self.path_dice.below(1000) < 2 => {
                let hop = self.path_dice.below(2);
                let seconds = 5 + self.path_dice.below(40);
                self.cut = Some((hop, self.now.after(Span::from_secs(seconds))));
                self.behind(hop, Truth::Silent);
            }
            Some((hop, until)) if *until <= self.now => {
                let hop = *hop;
                self.cut = None;
                self.behind(hop, Truth::Fine);
            }
            None | Some(_) => {}
        }
    }

    fn behind(&mut self, hop: u64, truth: Truth) {
        for host in self.hosts.values_mut().filter(|host| route(host.spec.id).hop == hop) {
            (host.truth, host.truth_since) = (truth, self.now);
            host.tainted |= truth != Truth::Fine;
        }
    }

    /// The daemon dies and comes back; the kernel goes on.
    fn restart(&mut self) {
        self.writes_ok_since = self.now;
        self.engine = Engine::new(self.specs.clone(), self.now);
        self.engine.set_governor(self.limits);
        self.running.clear();
        self.restarted = true;
        for host in self.hosts.values_mut() {
            host.answered = false;
            host.neighbour_failed = None;
            host.truth_since = self.now;
            // Orders live in the daemon's memory for now.
            host.tainted |= host.view.blocked || host.view.trip.is_some();
        }
    }

    fn reload(&mut self) {
        for spec in &mut self.specs {
            spec.origins.reverse();
            spec.checks.reverse();
        }
        for host in self.hosts.values_mut() {
            host.next_round.reverse();
        }
        self.running.clear();
        let times = 1 + self.dice.below(3);
        for _ in 0..times {
            self.engine.reconfigure(self.specs.clone(), self.now);
        }
    }

    fn flows(&mut self) {
        let now = self.now;
        for host in self.hosts.values_mut() {
            host.run_out(now);
        }
        let frontends: Vec<FrontendPlan> = self.frontends.values().cloned().collect();
        for frontend in &frontends {
            for _ in 0..self.dice.below(self.busy + 1) {
                let slot = frontend.slots[usize::try_from(self.dice.below(251)).expect("small")];
                if slot == OriginId::NONE {
                    continue;
                }
                let chosen = self.choose(slot, frontend);
                let guarded = self.is_last_usable(chosen);
                let (dice, host) = (&mut self.dice, self.hosts.get_mut(&chosen).expect("a slot names an origin"));
                host.connect(now, dice, guarded);
            }
        }
    }

    /// The kernel's choice: the slot, the one trial, the armed, and at last what the slot says.
    fn choose(&mut self, slot: OriginId, frontend: &FrontendPlan) -> OriginId {
        let own = self.specs.iter().flat_map(|spec| &spec.frontends).find(|spec| spec.id == frontend.id);
        let own = own.and_then(|spec| spec.own).unwrap_or(slot);
        for candidate in [slot, own] {
            if self.hosts.get_mut(&candidate).is_some_and(|host| host.take_trial(self.now)) {
                return candidate;
            }
        }
        if self.hosts[&slot].is_usable() {
            return slot;
        }
        frontend.armed.iter().copied().find(|id| self.hosts[id].is_usable()).unwrap_or(slot)
    }

    fn is_last_usable(&self, id: OriginId) -> bool {
        let (service, family) = (self.hosts[&id].service, self.hosts[&id].spec.family);
        !self
            .hosts
            .values()
            .any(|host| host.spec.id != id && host.service == service && host.spec.family == family && host.is_usable())
    }

    /// Two origins share a host, and all are behind one of two hops.
    fn sites(&self) -> Vec<(OriginId, Site)> {
        let site = |id: OriginId| Site { host: u64::from(id.0 / 2), hop: 1000 + u64::from(id.0 % 2) };
        self.hosts.keys().map(|id| (*id, site(*id))).collect()
    }

    /// What the neighbour table tells: three probes, a second apart, then it is known.
    fn neighbours(&mut self) -> Vec<(OriginId, Option<Timestamp>)> {
        let mut changes = Vec::new();
        for (id, host) in &mut self.hosts {
            let off = host.truth == Truth::Unplugged && self.now.since(host.truth_since) >= Span::from_secs(3);
            if off != host.neighbour_failed.is_some() {
                host.neighbour_failed = off.then_some(self.now);
                changes.push((*id, host.neighbour_failed));
            }
        }
        changes
    }

    fn rounds(&mut self) -> Vec<CheckResult> {
        let now = self.now;
        for host in self.hosts.values_mut() {
            for (place, spec) in self.specs[host.service].checks.iter().enumerate() {
                if host.next_round[place] > now {
                    continue;
                }
                host.next_round[place] = now.after(spec.interval);
                let (outcome, takes) = host.check(spec.layer, &mut self.dice, self.weather);
                let (check, began) = (u16::try_from(place).expect("small"), now);
                self.running.push(CheckResult {
                    origin: host.spec.id,
                    check,
                    began,
                    ended: began.after(takes),
                    outcome,
                });
            }
        }
        let (done, running) = core::mem::take(&mut self.running).into_iter().partition(|one| one.ended <= now);
        self.running = running;
        self.hosts.values_mut().for_each(|host| host.failed_round = false);
        for result in &done {
            let result: &CheckResult = result;
            let host = self.hosts.get_mut(&result.origin).expect("it is there");
            host.answered |= matches!(result.outcome, Outcome::Pass | Outcome::Slow);
            host.failed_round |= matches!(result.outcome, Outcome::Fail(_));
        }
        done
    }

    fn write(&mut self, plan: &Plan) {
        for plan in &plan.origins {
            let host = self.hosts.get_mut(&plan.id).expect("planned");
            host.plan = Some(*plan);
            if host.view.blocked && !plan.blocked {
                host.streak = [0, 0];
            }
            host.view.blocked = plan.blocked;
            host.view.leased = plan.blocked && matches!(plan.lease, Lease::Trips(_));
            if let (Some(at), Some(trip)) = (plan.clear_trip, host.view.trip)
                && trip.since <= at
            {
                host.view.trip = None;
                host.streak = [0, 0];
            }
        }
        self.frontends = plan.frontends.iter().map(|frontend| (frontend.id, frontend.clone())).collect();
    }
}

impl Host {
    fn new(spec: OriginSpec, service: usize, now: Timestamp, next_round: Vec<Timestamp>) -> Self {
        Self {
            spec,
            service,
            truth: Truth::Fine,
            truth_since: now,
            tainted: false,
            answered: false,
            failed_round: false,
            ordered_until: None,
            totals: TrafficTotals::default(),
            view: KernelView::default(),
            plan: None,
            streak: [0, 0],
            half_open: Span::from_secs(1),
            trial_at: now,
            overdue: Vec::new(),
            next_round,
            neighbour_failed: None,
        }
    }

    /// Since when the kernel keeps new flows away.
    pub(crate) fn tripped_since(&self) -> Option<Timestamp> {
        self.view.trip.map(|trip| trip.since)
    }

    fn is_usable(&self) -> bool {
        !self.view.blocked && self.view.trip.is_none() && self.spec.weight > 0
    }

    /// Whether this flow is the one that tries it.
    fn take_trial(&mut self, now: Timestamp) -> bool {
        let tries = !self.view.blocked || self.plan.is_some_and(|plan| plan.trials);
        if self.view.trip.is_none() || !tries || now < self.trial_at {
            return false;
        }
        self.half_open = self.half_open.times(2).min(Span::from_secs(30));
        self.trial_at = now.after(self.half_open);
        true
    }

    /// One new connection with one request.
    fn connect(&mut self, now: Timestamp, dice: &mut Dice, guarded: bool) {
        self.totals.syn += 1;
        let refused = self.truth == Truth::Refuses || (self.truth == Truth::Grey && dice.percent(50));
        let lost =
            matches!(self.truth, Truth::Silent | Truth::Unplugged) || (self.truth == Truth::Lossy && dice.percent(5));
        if lost {
            let timeout = self.plan.and_then(|plan| plan.syn_timeout);
            self.overdue.extend(timeout.map(|timeout| (now.after(timeout), Streak::Connect, guarded)));
            return;
        }
        self.totals.last_seen = now;
        if refused {
            self.totals.refused += 1;
            self.fails(Streak::Connect, now, guarded);
            return;
        }
        self.totals.synack += 1;
        self.answered = true;
        self.totals.rtt = Quantile { samples: self.totals.synack, p99: Span::from_millis(2) };
        self.succeeds(Streak::Connect);
        self.totals.request += 1;
        if self.truth == Truth::Hangs {
            let timeout = self.plan.and_then(|plan| plan.response_timeout);
            self.overdue.extend(timeout.map(|timeout| (now.after(timeout), Streak::Request, guarded)));
            return;
        }
        self.totals.response += 1;
        self.totals.ttfb = Quantile { samples: self.totals.response, p99: Span::from_millis(9) };
        if self.truth == Truth::Errors {
            self.totals.http_5xx += 1;
            self.fails(Streak::Request, now, guarded);
            return;
        }
        // Half of them speak in plain text.
        self.totals.http_good += u64::from(self.spec.id.0.is_multiple_of(2));
        self.succeeds(Streak::Request);
    }

    /// Nobody renewed what was judged from traffic: trials decide.
    fn end_lease(&mut self, now: Timestamp) {
        let lease = self.plan.map_or(Lease::Stays, |plan| plan.lease);
        let over = matches!(lease, Lease::Trips(at) | Lease::Ends(at) if at <= now);
        if self.view.blocked && over {
            self.view = KernelView { blocked: false, leased: false, ..self.view };
            if matches!(lease, Lease::Trips(_)) && self.view.trip.is_none() {
                self.view.trip =
                    Some(TripView { streak: Streak::Connect, since: now, trials_failed: 0, trials_passed: 0 });
                self.trial_at = now;
            }
        }
    }

    fn run_out(&mut self, now: Timestamp) {
        self.end_lease(now);
        let (due, later) = core::mem::take(&mut self.overdue).into_iter().partition(|(at, ..)| *at <= now);
        self.overdue = later;
        for (_, streak, guarded) in due {
            let due: (Streak, bool) = (streak, guarded);
            match due.0 {
                Streak::Connect => self.totals.syn_timeout += 1,
                Streak::Request => self.totals.no_response += 1,
            }
            self.fails(due.0, now, due.1);
        }
    }

    fn fails(&mut self, streak: Streak, now: Timestamp, guarded: bool) {
        if let Some(trip) = &mut self.view.trip {
            trip.trials_failed += u32::from(trip.streak == streak);
            trip.trials_passed = 0;
            return;
        }
        // Everybody has another port.
        let client = usize::try_from(self.totals.syn).unwrap_or(0) % CLIENTS;
        let by = if streak == Streak::Request { &mut self.totals.request_by } else { &mut self.totals.connect_by };
        by.0[client] += 1;
        let count = &mut self.streak[usize::from(streak == Streak::Request)];
        *count += 1;
        if *count >= 5 && !guarded {
            self.view.trip = Some(TripView { streak, since: now, trials_failed: 0, trials_passed: 0 });
            self.half_open = Span::from_secs(1);
            self.trial_at = now.after(self.half_open);
        }
    }

    fn succeeds(&mut self, streak: Streak) {
        self.streak[usize::from(streak == Streak::Request)] = 0;
        if let Some(trip) = self.view.trip.as_mut().filter(|trip| trip.streak == streak) {
            trip.trials_passed += 1;
            if !self.view.blocked {
                self.view.trip = None;
            }
        }
    }

    /// What a check sees. It is never steered.
    fn check(&self, layer: Layer, dice: &mut Dice, weather: Weather) -> (Outcome, Span) {
        let quick = Span::from_millis(3);
        if weather == Weather::Stormy && dice.below(100) < 2 {
            return (Outcome::Local(LocalReason::Descriptors), quick);
        }
        let page = layer == Layer::Application;
        match self.truth {
            Truth::Refuses => (Outcome::Fail(Reason::Refused), quick),
            Truth::Grey if dice.percent(50) => (Outcome::Fail(Reason::Refused), quick),
            Truth::Silent => (Outcome::Fail(Reason::Timeout(Layer::Transport)), Span::from_secs(1)),
            Truth::Hangs if page => (Outcome::Fail(Reason::Timeout(Layer::Application)), Span::from_secs(1)),
            Truth::WrongPage | Truth::Errors if page => (Outcome::Fail(Reason::Status(503)), quick),
            Truth::Unplugged => (Outcome::Fail(Reason::Unreachable), Span::from_secs(1)),
            Truth::Slow if page => (Outcome::Slow, Span::from_millis(700)),
            Truth::Fine
            | Truth::Lossy
            | Truth::Hangs
            | Truth::WrongPage
            | Truth::Errors
            | Truth::Slow
            | Truth::Grey => (Outcome::Pass, quick),
        }
    }
}
