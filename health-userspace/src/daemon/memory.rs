//! What the judgement knows that evidence of the present can't tell, in a file that outlives the daemon.
//!
//! `state_dir/judgement.json`, version 1. It is written whole beside itself, flushed and renamed, so that a crash leaves the
//! old one or the new one. Times are those of the wall clock; ends of steps count from `saved_at`, for a step does not
//! go on while nobody watches. A file that can't be read is set aside as `judgement.json.bad`, and said.

use std::{
    fs,
    io::{self, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use health_core::{
    Span, Timestamp,
    engine::{Memory, Order, OrderKind},
    lifecycle::{Cause, CauseBy, Faults, Lifecycle, Phase, Then, Way},
    model::{Layer, Location, OriginId},
};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tracing::{error, info, warn};

use super::Daemon;
use crate::{
    config::{Ids, ServiceConfig},
    probe,
};

/// Version of the file.
const VERSION: u16 = 1;

/// A verdict older than this is stale: the origin is judged anew. Orders have ends of their own.
const VERDICT_AGE_MAX: Span = Span::from_secs(3600);

/// Time between two writes while there is something to remember, so that a step loses no more than this.
const REFRESH: Span = Span::from_secs(10);

/// Time between two writes in any case.
const PAUSE: Span = Span::from_secs(1);

/// Time between lines about a memory that can't be written.
const SAY_AGAIN: Span = Span::from_secs(60);

/// Where the file is, and what it holds.
#[derive(Debug)]
pub(super) struct Keeper {
    path: PathBuf,
    last: Option<Vec<Saved>>,
    /// When it was last written.
    at: Timestamp,
    /// When it was last looked whether it should be.
    looked: Timestamp,
    writing: Option<JoinHandle<io::Result<()>>>,
}

/// What an earlier daemon left.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) memories: Vec<Memory>,
    /// What the operator should know about the file.
    pub(super) note: Option<String>,
}

/// The two clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) wall: jiff::Timestamp,
    pub(super) mono: Timestamp,
}

/// Who an origin is: numbers are the kernel's, and may be others after a detach.
pub(super) type Names = Vec<(OriginId, String, SocketAddr)>;

#[derive(Debug, Serialize, Deserialize)]
struct File {
    version: u16,
    saved_at: jiff::Timestamp,
    origins: Vec<Saved>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Saved {
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

impl Keeper {
    /// Of the file in this directory.
    pub(super) fn new(state_dir: &Path) -> Self {
        Self {
            path: state_dir.join("judgement.json"),
            last: None,
            at: Timestamp::NEVER,
            looked: Timestamp::NEVER,
            writing: None,
        }
    }

    /// What an earlier daemon left. A file that can't be read is set aside, and nothing is remembered.
    pub(super) fn read(&self, names: &Names, clock: Clock) -> Left {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Left::default(),
            Err(error) => return self.lost(&error.to_string()),
        };
        match serde_json::from_slice::<File>(&text) {
            Ok(file) if file.version == VERSION => file.recall(names, clock),
            Ok(file) => self.lost(&format!("it is of version {}, and this daemon reads {VERSION}", file.version)),
            Err(error) => self.lost(&error.to_string()),
        }
    }

    fn lost(&self, why: &str) -> Left {
        let aside = self.path.with_extension("json.bad");
        let kept = match fs::rename(&self.path, &aside) {
            Ok(()) => format!("kept as {}", aside.display()),
            Err(error) => format!("and can't be set aside: {error}"),
        };
        let note = format!("{} can't be read ({why}), {kept}: origins are judged anew", self.path.display());
        Left { memories: Vec::new(), note: Some(note) }
    }

    /// Whether [`keep`](Self::keep) would do anything.
    fn is_due(&self, now: Timestamp) -> bool {
        self.looked == Timestamp::NEVER || now.since(self.looked) >= PAUSE
    }

    /// Writes what is to be remembered, if it changed or the file is old. Never waits; what came of an earlier write is said
    /// by the next call.
    ///
    /// # Errors
    ///
    /// An earlier write failed. It is tried again.
    pub(super) fn keep(&mut self, memories: &[Memory], names: &Names, clock: Clock) -> io::Result<()> {
        let mut before = Ok(());
        if let Some(writing) = self.writing.take_if(|writing| writing.is_finished()) {
            before = futures_util::FutureExt::now_or_never(writing)
                .unwrap_or(Ok(Ok(())))
                .map_err(io::Error::other)
                .flatten();
            if before.is_err() {
                self.last = None;
            }
        }
        if self.writing.is_some() || !self.is_due(clock.mono) {
            return before;
        }
        self.looked = clock.mono;
        let saved = save(memories, names, clock);
        let old = clock.mono.since(self.at) >= REFRESH && !saved.is_empty();
        if self.last.as_ref() != Some(&saved) || old {
            let (path, text) = (self.path.clone(), render(&saved, clock));
            self.writing = Some(tokio::task::spawn_blocking(move || write(&path, &text)));
            (self.last, self.at) = (Some(saved), clock.mono);
        }
        before
    }

    /// Writes it now: the daemon ends.
    ///
    /// # Errors
    ///
    /// The file can't be written.
    pub(super) async fn finish(&mut self, memories: &[Memory], names: &Names, clock: Clock) -> io::Result<()> {
        if let Some(writing) = self.writing.take() {
            // Two writers would share the file beside it.
            drop(writing.await);
        }
        write(&self.path, &render(&save(memories, names, clock), clock))
    }
}

fn render(saved: &[Saved], clock: Clock) -> Vec<u8> {
    let file = File { version: VERSION, saved_at: clock.wall, origins: saved.to_vec() };
    // Plain structs of texts and numbers: there is nothing in them that could not be written.
    serde_json::to_vec_pretty(&file).unwrap_or_default()
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("json.new");
    let mut file = fs::File::create(&beside)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    // The name must last as well as what it names.
    path.parent().map_or(Ok(()), |dir| fs::File::open(dir)?.sync_all())
}

fn save(memories: &[Memory], names: &Names, clock: Clock) -> Vec<Saved> {
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
        })
    };
    memories.iter().filter_map(one).collect()
}

impl File {
    fn recall(self, names: &Names, clock: Clock) -> Left {
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
                stale += 1;
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
        }
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
    fn now() -> Self {
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

impl Daemon {
    /// Goes on where an earlier daemon was.
    pub(super) fn recall(&mut self) {
        let clock = Clock::now();
        let Left { memories, note } = self.keeper.read(&self.names(), clock);
        if let Some(note) = note {
            warn!("{note}");
            self.push("memory_lost", "node".to_owned(), note, "daemon", clock.mono.0);
        }
        if !memories.is_empty() {
            info!(origins = memories.len(), "goes on where the former daemon was");
        }
        self.engine.recall(memories, clock.mono);
    }

    /// Has the memory written, if there is an occasion.
    pub(super) fn keep(&mut self, now: Timestamp) {
        if !self.keeper.is_due(now) {
            return;
        }
        let (memories, clock) = (self.engine.remember(), Clock::now());
        // Ten thousand names are not looked up for nothing.
        let names = if memories.is_empty() { Names::new() } else { self.names() };
        if let Err(error) = self.keeper.keep(&memories, &names, clock)
            && (self.unkept == Timestamp::NEVER || now.since(self.unkept) >= SAY_AGAIN)
        {
            self.unkept = now;
            let detail = format!("cannot write the memory of the judgement, a restart would forget: {error}");
            error!("{detail}");
            self.push("memory_unwritten", "node".to_owned(), detail, "daemon", now.0);
        }
    }

    /// The last word of this daemon.
    pub(super) async fn keep_last(&mut self) {
        let (memories, names) = (self.engine.remember(), self.names());
        if let Err(error) = self.keeper.finish(&memories, &names, Clock::now()).await {
            error!(%error, "cannot write the memory of the judgement, the next daemon will know less");
        }
    }

    fn names(&self) -> Names {
        let ids = self.datapath.registry();
        let of = |service: &ServiceConfig| {
            let name = service.name.clone();
            let origins =
                service.origins.iter().map(move |origin| (ids.origin(origin.address), name.clone(), origin.address));
            origins.collect::<Vec<_>>()
        };
        self.config.services.iter().flat_map(of).collect()
    }
}

#[cfg(test)]
#[path = "memory/tests.rs"]
mod tests;
