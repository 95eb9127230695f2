//! What the file says, and what it means.

use std::net::SocketAddr;

use health_core::{
    Span, Timestamp,
    engine::{Memory, Order, OrderKind},
    latency::Baseline,
    lifecycle::{Cause, CauseBy, Faults, Lifecycle, Phase, Then, Way},
    model::{Layer, Location, OriginId},
};
use serde::{Deserialize, Serialize};

use super::Left;
use crate::probe;

/// Version of the file.
pub(super) const VERSION: u16 = 1;

/// A verdict older than this is stale: the origin is judged anew. Orders have ends of their own.
const VERDICT_AGE_MAX: Span = Span::from_secs(3600);

/// What was usual longer ago than this is not any more: a day, in which every hour comes round once.
const USUAL_AGE_MAX: Span = Span::from_secs(24 * 3600);

/// The two clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(in crate::daemon) wall: jiff::Timestamp,
    pub(in crate::daemon) mono: Timestamp,
}

/// Who an origin is: numbers are the kernel's, and may be others after a detach.
pub(super) type Names = Vec<(OriginId, String, SocketAddr)>;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct File {
    pub(super) version: u16,
    saved_at: jiff::Timestamp,
    origins: Vec<Saved>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Saved {
    service: String,
    address: SocketAddr,
    #[serde(flatten)]
    state: State,
    since: jiff::Timestamp,
    faults: u64,
    quiet_since: jiff::Timestamp,
    order: Option<SavedOrder>,
    /// An operator's word on the way back.
    word: Option<SavedOrder>,
    why: Vec<String>,
    location: Option<String>,
    /// What was usual. Absent in the files of versions that did not learn it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    usual: Vec<SavedUsual>,
}

/// What answers usually take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedUsual {
    /// Name of the check; `None` for the first bytes of traffic.
    check: Option<String>,
    p95_us: u64,
    samples: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum State {
    Serves,
    Fault { cause: SavedCause },
    Recovering { cause: SavedCause, way: SavedWay },
    Maintenance { then: Option<SavedCause> },
    Failed { then: Option<SavedCause> },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedCause {
    layer: String,
    by: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
enum SavedWay {
    Hold { until: jiff::Timestamp },
    Observe { until: jiff::Timestamp },
    Waits { stage: u8, percent: u8, since: jiff::Timestamp },
    Stage { stage: u8, percent: u8, until: jiff::Timestamp },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedOrder {
    what: String,
    reason: String,
    by: String,
    until: Option<jiff::Timestamp>,
}

pub(super) fn render(saved: &[Saved], clock: Clock) -> Vec<u8> {
    let file = File { version: VERSION, saved_at: clock.wall, origins: saved.to_vec() };
    // Plain structs of texts and numbers: there is nothing in them that could not be written.
    serde_json::to_vec_pretty(&file).unwrap_or_default()
}

pub(super) fn save(memories: &[Memory], names: &Names, clock: Clock) -> Vec<Saved> {
    let one = |memory: &Memory| {
        let (_, service, address) = names.iter().find(|(id, ..)| *id == memory.origin)?;
        let (faults, quiet_since) = memory.life.faults.parts();
        Some(Saved {
            service: service.clone(),
            address: *address,
            state: State::of(memory.life.phase, clock),
            since: clock.wall_of(memory.life.since),
            faults,
            quiet_since: clock.wall_of(quiet_since),
            order: memory.order.as_ref().map(|order| SavedOrder::of(order, clock)),
            word: memory.word.as_ref().map(|order| SavedOrder::of(order, clock)),
            why: memory.why.clone(),
            location: memory.location.map(|location| location.name().to_owned()),
            usual: memory.usual.iter().map(SavedUsual::of).collect(),
        })
    };
    memories.iter().filter_map(one).collect()
}

impl File {
    pub(super) fn recall(self, names: &Names, clock: Clock) -> Left {
        let saved_at = clock.mono_of(self.saved_at);
        let age = clock.mono.since(saved_at);
        let is_stale = age > VERDICT_AGE_MAX;
        let mut stale = 0;
        let mut memories = Vec::new();
        for saved in self.origins {
            let known =
                names.iter().find(|(_, service, address)| *service == saved.service && *address == saved.address);
            let Some((id, ..)) = known else { continue };
            let is_order = matches!(saved.state, State::Maintenance { .. } | State::Failed { .. });
            if is_stale && !is_order {
                stale += u64::from(saved.is_urgent());
                memories.extend(saved.only_usual(age).map(|saved| saved.recall(*id, saved_at, clock)));
                continue;
            }
            memories.push(saved.recall(*id, saved_at, clock));
        }
        let note = (stale > 0).then(|| {
            format!(
                "what was remembered of {stale} origins is {age} old, more than {VERDICT_AGE_MAX}: they are judged anew"
            )
        });
        Left { memories, note }
    }
}

impl Saved {
    fn recall(self, origin: OriginId, saved_at: Timestamp, clock: Clock) -> Memory {
        let order = |order: Option<SavedOrder>| order.and_then(|order| order.recall(origin, clock));
        let faults = Faults::remembered(self.faults, clock.mono_of(self.quiet_since));
        let life = Lifecycle { phase: self.state.phase(saved_at, clock), since: clock.mono_of(self.since), faults };
        Memory {
            origin,
            life,
            order: order(self.order),
            word: order(self.word),
            why: self.why,
            location: self.location.as_deref().and_then(location),
            usual: self.usual.into_iter().map(SavedUsual::recall).collect(),
        }
    }
}

impl SavedUsual {
    fn of((check, usual): &(Option<String>, Baseline)) -> Self {
        Self { check: check.clone(), p95_us: usual.p95.0 / 1000, samples: usual.samples }
    }

    fn recall(self) -> (Option<String>, Baseline) {
        let Self { check, p95_us, samples } = self;
        (check, Baseline { p95: Span(p95_us.saturating_mul(1000)), samples })
    }
}

impl Saved {
    /// Whether there is more to it than what was usual, so that it is worth a write of its own.
    pub(super) fn is_urgent(&self) -> bool {
        self.state != State::Serves || self.faults > 0 || self.order.is_some() || self.word.is_some()
    }

    /// The same without what was usual, which changes by the minute.
    pub(super) fn without_usual(&self) -> Self {
        Self { usual: Vec::new(), ..self.clone() }
    }

    /// What a stale memory still tells: what was usual, for a day.
    fn only_usual(self, age: Span) -> Option<Self> {
        (age <= USUAL_AGE_MAX && !self.usual.is_empty()).then_some(Self {
            state: State::Serves,
            faults: 0,
            order: None,
            word: None,
            why: Vec::new(),
            location: None,
            ..self
        })
    }
}

impl State {
    fn of(phase: Phase, clock: Clock) -> Self {
        let then = |then| match then {
            Then::Judge => None,
            Then::Fault(cause) => Some(SavedCause::of(cause)),
        };
        match phase {
            Phase::Unknown | Phase::Healthy | Phase::Degraded | Phase::HighRisk => Self::Serves,
            Phase::Fault { cause } => Self::Fault { cause: SavedCause::of(cause) },
            Phase::Recovering { cause, way } => {
                Self::Recovering { cause: SavedCause::of(cause), way: SavedWay::of(way, clock) }
            }
            Phase::Maintenance { then: next } => Self::Maintenance { then: then(next) },
            Phase::Failed { then: next } => Self::Failed { then: then(next) },
        }
    }

    fn phase(self, saved_at: Timestamp, clock: Clock) -> Phase {
        let then = |cause: Option<SavedCause>| cause.map_or(Then::Judge, |cause| Then::Fault(cause.cause()));
        match self {
            Self::Serves => Phase::Unknown,
            Self::Fault { cause } => Phase::Fault { cause: cause.cause() },
            Self::Recovering { cause, way } => {
                Phase::Recovering { cause: cause.cause(), way: way.way(saved_at, clock) }
            }
            Self::Maintenance { then: next } => Phase::Maintenance { then: then(next) },
            Self::Failed { then: next } => Phase::Failed { then: then(next) },
        }
    }
}

impl SavedCause {
    fn of(cause: Cause) -> Self {
        let by = match cause.by {
            CauseBy::Checks => "checks",
            CauseBy::Traffic => "traffic",
            CauseBy::Trip => "trip",
            CauseBy::Adopted => "adopted",
        };
        Self { layer: cause.layer.name().to_owned(), by: by.to_owned() }
    }

    /// A word of a later version means the cautious thing: proof at the highest layer, by checks.
    fn cause(&self) -> Cause {
        let layers = [Layer::Network, Layer::Transport, Layer::Tls, Layer::Application];
        let layer = layers.into_iter().find(|layer| layer.name() == self.layer).unwrap_or(Layer::Application);
        let by = match self.by.as_str() {
            "traffic" => CauseBy::Traffic,
            "trip" => CauseBy::Trip,
            "adopted" => CauseBy::Adopted,
            _ => CauseBy::Checks,
        };
        Cause { layer, by }
    }
}

impl SavedWay {
    fn of(way: Way, clock: Clock) -> Self {
        match way {
            Way::Hold { until } => Self::Hold { until: clock.wall_of(until) },
            Way::Observe { until } => Self::Observe { until: clock.wall_of(until) },
            Way::Asks { stage, percent, since } => Self::Waits { stage, percent, since: clock.wall_of(since) },
            Way::Stage { stage, percent, until } => Self::Stage { stage, percent, until: clock.wall_of(until) },
        }
    }

    /// What was left of a step when it was saved is left of it now.
    fn way(self, saved_at: Timestamp, clock: Clock) -> Way {
        let end = |until: jiff::Timestamp| clock.mono.after(clock.mono_of(until).since(saved_at));
        match self {
            Self::Hold { until } => Way::Hold { until: end(until) },
            Self::Observe { until } => Way::Observe { until: end(until) },
            Self::Waits { stage, percent, since } => Way::Asks { stage, percent, since: clock.mono_of(since) },
            Self::Stage { stage, percent, until } => Way::Stage { stage, percent, until: end(until) },
        }
    }
}

impl SavedOrder {
    fn of(order: &Order, clock: Clock) -> Self {
        let what = match order.what {
            OrderKind::Drain => "drain",
            OrderKind::Fail => "fail",
            OrderKind::Clear => "clear",
            OrderKind::Approve => "approve",
            OrderKind::Hold => "hold",
            OrderKind::Abort => "abort",
        };
        let until = order.until.map(|until| clock.wall_of(until));
        Self { what: what.to_owned(), reason: order.reason.clone(), by: order.by.clone(), until }
    }

    /// `None` once it has run out.
    fn recall(self, origin: OriginId, clock: Clock) -> Option<Order> {
        let what = match self.what.as_str() {
            "drain" => OrderKind::Drain,
            "fail" => OrderKind::Fail,
            "approve" => OrderKind::Approve,
            "hold" => OrderKind::Hold,
            _ => return None,
        };
        let until = self.until.map(|until| clock.mono_of(until));
        let runs = until.is_none_or(|until| until > clock.mono);
        runs.then_some(Order { origin, what, reason: self.reason, by: self.by, until })
    }
}

fn location(word: &str) -> Option<Location> {
    use Location::{Certificate, Check, Node, OriginHost, OriginProcess, Path};
    [OriginProcess, OriginHost, Path, Node, Certificate, Check].into_iter().find(|location| location.name() == word)
}

impl Clock {
    pub(super) fn now() -> Self {
        Self { wall: jiff::Timestamp::now(), mono: probe::now() }
    }

    /// A time on the wall clock, exact to the millisecond, so that the same moment is always written alike.
    fn wall_of(self, at: Timestamp) -> jiff::Timestamp {
        let ahead = i128::from(at.0) - i128::from(self.mono.0);
        let millis = (self.wall.as_nanosecond() + ahead).div_euclid(1_000_000);
        i64::try_from(millis)
            .ok()
            .and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok())
            .unwrap_or(self.wall)
    }

    /// A time of the wall clock on the monotonic one; what was before the machine's start is its start.
    fn mono_of(self, at: jiff::Timestamp) -> Timestamp {
        let ahead = at.as_nanosecond() - self.wall.as_nanosecond();
        let mono = (i128::from(self.mono.0) + ahead).max(1);
        Timestamp(u64::try_from(mono).unwrap_or(u64::MAX))
    }
}
