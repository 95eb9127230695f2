//! What befalls a service: families of scenarios, each with a seed. Half of them are faults, half are what a judge must not mind.
//!
//! Written before any threshold was tuned to it. Groups C and E are those of the public failure cases that the tests are named after.

/// Milliseconds since a scenario's beginning.
pub(crate) type Ms = u64;

pub(crate) const SECOND: Ms = 1000;
/// Faults begin when everything has been learned.
const BEGIN: Ms = 40 * SECOND;
pub(crate) const LENGTH: Ms = 120 * SECOND;

/// `SplitMix64`.
#[derive(Clone, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) const fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % if limit == 0 { 1 } else { limit }
    }

    const fn from(&mut self, least: u64, limit: u64) -> u64 {
        least + self.below(limit - least)
    }

    fn percent(&mut self, least: u64, limit: u64) -> u16 {
        u16::try_from(10 * self.from(least, limit)).expect("per mille")
    }
}

pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// How an origin treats connections. Parts in a thousand, each of what the former ones leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Condition {
    /// SYNs that vanish.
    pub(crate) lose: u16,
    pub(crate) refuse: u16,
    /// Requests without an answer.
    pub(crate) hang: u16,
    /// Answers of status 503.
    pub(crate) error: u16,
    /// Answers that take `slow_ms`.
    pub(crate) slow: u16,
    pub(crate) slow_ms: Ms,
    /// Whether clients expect slow answers.
    pub(crate) patient: bool,
    /// Only what the checks ask for is wrong.
    pub(crate) page_wrong: bool,
    /// Only this client of a thousand is treated so.
    pub(crate) only: Option<u64>,
}

pub(crate) const FINE: Condition = Condition {
    lose: 0,
    refuse: 0,
    hang: 0,
    error: 0,
    slow: 0,
    slow_ms: 0,
    patient: false,
    page_wrong: false,
    only: None,
};
const REFUSES: Condition = Condition { refuse: 1000, ..FINE };
const SILENT: Condition = Condition { lose: 1000, ..FINE };
const HANGS: Condition = Condition { hang: 1000, ..FINE };
const ERRORS: Condition = Condition { error: 1000, ..FINE };

/// What befalls the node's own judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// It dies and comes back with what it wrote down.
    Restart,
    /// The same configuration once more.
    Reload,
    /// It stands still so long; traffic goes on.
    Stops(Ms),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) tier: u8,
    pub(crate) weight: u16,
    /// New connections per second.
    pub(crate) capacity: Option<u32>,
}

/// What a judge should make of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Right {
    /// This origin must lose flows in this time.
    Moves { origin: usize, from: Ms, until: Ms },
    /// This origin must keep its flows, once it has been fine for [`SETTLED`].
    Stays { origin: usize },
}

/// How long after a blip flows may be elsewhere.
pub(crate) const SETTLED: Ms = 5 * SECOND;

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) origins: Vec<Shape>,
    /// New connections per second.
    pub(crate) rate: u64,
    /// Whether statuses can be read on the wire.
    pub(crate) plain: bool,
    /// In the order of time: when, which origin, how it is from then on.
    pub(crate) changes: Vec<(Ms, usize, Condition)>,
    pub(crate) mishaps: Vec<(Ms, Mishap)>,
    pub(crate) right: Right,
}

type Build = fn(&mut Scenario, &mut Dice);

pub(crate) struct Family {
    pub(crate) name: &'static str,
    build: Build,
}

impl Family {
    pub(crate) fn scenario(&self, seed: u64) -> Scenario {
        let mut dice = Dice(mix(seed ^ self.name.bytes().fold(7, |sum, byte| mix(sum ^ u64::from(byte)))));
        let primary = Shape { tier: 0, weight: 100, capacity: None };
        let mut scenario = Scenario {
            seed: dice.below(u64::MAX),
            origins: vec![primary, Shape { tier: 1, ..primary }],
            rate: dice.from(20, 200),
            plain: dice.below(2) == 0,
            changes: Vec::new(),
            mishaps: Vec::new(),
            right: Right::Stays { origin: 0 },
        };
        (self.build)(&mut scenario, &mut dice);
        scenario.changes.sort_by_key(|change| change.0);
        scenario
    }
}

impl Scenario {
    /// The first origin is so for a minute.
    fn fault(&mut self, is: Condition, dice: &mut Dice) {
        let from = BEGIN + dice.below(SECOND);
        self.blip(is, from, 60 * SECOND);
        self.right = Right::Moves { origin: 0, from, until: from + 60 * SECOND };
    }

    fn blip(&mut self, is: Condition, from: Ms, lasts: Ms) {
        self.changes.extend([(from, 0, is), (from + lasts, 0, FINE)]);
    }

    fn always(&mut self, is: Condition) {
        self.changes.push((0, 0, is));
    }

    /// So many primaries and standbys.
    fn pool(&mut self, primaries: usize, standbys: usize) {
        let shape = Shape { tier: 0, weight: 100, capacity: None };
        self.origins = vec![shape; primaries];
        self.origins.extend(vec![Shape { tier: 1, ..shape }; standbys]);
    }
}

pub(crate) const FAMILIES: [Family; 32] = [
    Family { name: "refused", build: |it, dice| it.fault(REFUSES, dice) },
    Family { name: "blackhole", build: |it, dice| it.fault(SILENT, dice) },
    Family { name: "hang", build: |it, dice| it.fault(HANGS, dice) },
    Family { name: "errors_plain", build: |it, dice| errors(it, dice, true) },
    Family { name: "errors_tls", build: |it, dice| errors(it, dice, false) },
    Family {
        name: "slow",
        build: |it, dice| it.fault(Condition { slow: 1000, slow_ms: dice.from(1000, 4000), ..FINE }, dice),
    },
    Family { name: "grey_errors", build: |it, dice| it.fault(Condition { error: dice.percent(20, 61), ..FINE }, dice) },
    Family {
        name: "grey_refused",
        build: |it, dice| it.fault(Condition { refuse: dice.percent(20, 61), ..FINE }, dice),
    },
    Family { name: "grey_hang", build: |it, dice| it.fault(Condition { hang: dice.percent(20, 61), ..FINE }, dice) },
    Family { name: "lossy", build: |it, dice| it.fault(Condition { lose: dice.percent(30, 61), ..FINE }, dice) },
    Family { name: "flapping", build: flapping },
    Family { name: "p13_two_of_four_die", build: p13 },
    Family { name: "p14_primaries_die_one_by_one", build: p14 },
    Family { name: "p15_fails_again_under_load", build: p15 },
    Family {
        name: "p26_answers_drip",
        build: |it, dice| it.fault(Condition { slow: 1000, slow_ms: 15 * SECOND, ..FINE }, dice),
    },
    Family { name: "correlated", build: correlated },
    Family { name: "calm", build: |_, _| {} },
    Family { name: "loss_2_percent", build: |it, _| it.always(Condition { lose: 20, ..FINE }) },
    Family {
        name: "slow_tail_2_percent",
        build: |it, dice| it.always(Condition { slow: 20, slow_ms: dice.from(500, 3000), ..FINE }),
    },
    Family { name: "errors_2_percent", build: |it, _| it.always(Condition { error: 20, ..FINE }) },
    Family {
        name: "deploy_restart",
        build: |it, dice| it.blip(REFUSES, BEGIN + dice.below(SECOND), dice.from(300, 2500)),
    },
    Family { name: "flap_half_second", build: |it, dice| it.blip(SILENT, BEGIN + dice.below(SECOND), 500) },
    Family {
        name: "one_client_is_refused",
        build: |it, dice| it.always(Condition { only: Some(dice.below(1000)), ..REFUSES }),
    },
    Family { name: "checked_page_is_wrong_everywhere", build: probe_broken },
    Family { name: "quiet_night", build: |it, _| it.rate = 0 },
    Family {
        name: "long_polls",
        build: |it, _| it.always(Condition { slow: 100, slow_ms: 30 * SECOND, patient: true, ..FINE }),
    },
    Family { name: "p14_restarts_of_the_daemon", build: |it, _| it.mishaps = every(5 * SECOND, Mishap::Restart) },
    Family { name: "p16_weight_0_beside", build: p16 },
    Family {
        name: "p27_suspended",
        build: |it, dice| it.mishaps = vec![(BEGIN, Mishap::Stops(dice.from(5, 60) * SECOND))],
    },
    Family { name: "reload_storm", build: |it, _| it.mishaps = every(SECOND, Mishap::Reload) },
    Family { name: "standby_is_dead", build: |it, _| it.changes.push((BEGIN, 1, SILENT)) },
    Family { name: "flap_and_a_small_standby", build: small_standby },
];

fn every(step: Ms, what: Mishap) -> Vec<(Ms, Mishap)> {
    (10 * SECOND..LENGTH).step_by(usize::try_from(step).expect("small")).map(|at| (at, what)).collect()
}

/// Errors that can be read on the wire, or not.
fn errors(it: &mut Scenario, dice: &mut Dice, plain: bool) {
    it.plain = plain;
    it.fault(ERRORS, dice);
}

/// A few seconds down, a few up.
fn flapping(it: &mut Scenario, dice: &mut Dice) {
    let mut at = BEGIN;
    while at < LENGTH {
        let lasts = dice.from(2, 8) * SECOND;
        it.blip(if it.plain { REFUSES } else { SILENT }, at, lasts);
        at += lasts + dice.from(2, 8) * SECOND;
    }
    it.right = Right::Moves { origin: 0, from: BEGIN, until: LENGTH };
}

/// No standby; the other two are enough.
fn p13(it: &mut Scenario, dice: &mut Dice) {
    it.pool(4, 0);
    it.fault(REFUSES, dice);
    it.changes.push((BEGIN, 3, REFUSES));
}

fn p14(it: &mut Scenario, dice: &mut Dice) {
    it.pool(5, 2);
    it.fault(SILENT, dice);
    it.changes.extend([(BEGIN + 10 * SECOND, 1, REFUSES), (BEGIN + 20 * SECOND, 2, HANGS)]);
}

/// Down, up for a while, and down again whenever it has flows.
fn p15(it: &mut Scenario, dice: &mut Dice) {
    it.fault(ERRORS, dice);
    it.plain = true;
    it.changes.extend([(BEGIN + 15 * SECOND, 0, FINE), (BEGIN + 25 * SECOND, 0, HANGS)]);
}

fn p16(it: &mut Scenario, _: &mut Dice) {
    it.pool(2, 1);
    it.origins[1].weight = 0;
}

/// All primaries fall at once, standbys of another site stay.
fn correlated(it: &mut Scenario, dice: &mut Dice) {
    it.pool(3, 2);
    it.fault(SILENT, dice);
    it.changes.extend([(BEGIN, 1, SILENT), (BEGIN, 2, SILENT)]);
}

/// The seed's case: the domain that the checks ask for is gone, users' are not.
fn probe_broken(it: &mut Scenario, _: &mut Dice) {
    it.pool(2, 1);
    it.plain = true;
    it.changes = (0..3).map(|origin| (BEGIN, origin, Condition { page_wrong: true, ..FINE })).collect();
}

/// The HSM seed's outage: half a second, and a standby that can't carry everything.
fn small_standby(it: &mut Scenario, dice: &mut Dice) {
    it.rate = dice.from(100, 200);
    it.origins[1].capacity = Some(u32::try_from(it.rate / 2).expect("small"));
    it.blip(SILENT, BEGIN + dice.below(SECOND), 500);
}
