//! Kernel events and decisions as lines for `sluice events`, and as structured logs.

use health_common::{
    NONE,
    event::{Event, Kind, Why},
};
use health_core::{
    Timestamp,
    engine::{Decision, DecisionKind, OrderKind, Waits},
    governor::Held,
    model::{OriginId, State},
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tracing::info;

use super::Daemon;
use crate::{probe, report::EventLine};

impl Daemon {
    /// Takes what the kernel told.
    pub(super) fn kernel_events(&mut self, events: &[Event]) {
        let mut occasion = false;
        for event in events {
            let Some(kind) = Kind::from_number(event.kind) else { continue };
            occasion |= matches!(kind, Kind::Trip | Kind::Clear);
            self.kernel_event(kind, event);
        }
        if occasion {
            // The judgement hears of a trip at once, and the checks look at once.
            self.tick();
        }
    }

    fn kernel_event(&mut self, kind: Kind, event: &Event) {
        let why = Why::from_number(event.why).name();
        let origin = self.object(event.origin);
        let port = event.node.port.get();
        let (object, detail) = match kind {
            Kind::Trip => {
                self.tallies.tripped(event);
                let took = Duration::from_nanos(event.time_ns.saturating_sub(event.first_bad_ns));
                self.push("first_bad", origin.clone(), why.to_owned(), "kernel", event.first_bad_ns);
                self.tallies.step(&self.service_of(event.origin), "trip", took);
                (origin, format!("{} {why} in {}", event.count, millis(took)))
            }
            Kind::Withheld => {
                (origin, format!("trip: {} {why}; it serves as nobody else can, or only observes", event.count))
            }
            Kind::Trial => (origin, format!("one flow tries it, port {port}")),
            Kind::TrialFailed => (origin, "the trial failed".to_owned()),
            Kind::Clear => (origin, "a success at the failing layer ended the trip".to_owned()),
            Kind::FirstFlow => {
                let after = self.tallies.first_bad(event.origin).map(|bad| event.time_ns.saturating_sub(bad));
                let detail = after.map_or_else(
                    || format!("instead of {origin}"),
                    |ns| format!("+{} after first_bad", millis(Duration::from_nanos(ns))),
                );
                if let Some(ns) = after {
                    self.tallies.step(&self.service_of(event.origin), "first_flow", Duration::from_nanos(ns));
                }
                (self.object(event.other), detail)
            }
            Kind::Resteer | Kind::Turn | Kind::Undone => {
                let other = if event.other == NONE { String::new() } else { self.name(event.other) };
                let how = match kind {
                    Kind::Turn => "turn-around",
                    Kind::Resteer => "re-steer",
                    _ => "the first origin answered first, so it keeps it",
                };
                (format!("{origin}>{other}"), format!("{how}, port {port}"))
            }
            Kind::LeaseOver => (origin, "not renewed in time: from now on it is tripped, and trials decide".to_owned()),
            Kind::Full => (origin, "no capacity for more new connections".to_owned()),
        };
        info!(what = kind.name(), object, detail, "kernel");
        self.push(kind.name(), object, detail, "kernel", event.time_ns);
    }

    /// Takes what the judgement decided.
    pub(super) fn decided(&mut self, decision: &Decision) {
        let service = self.specs.iter().find(|spec| spec.id == decision.service);
        let service = service.map_or_else(|| format!("#{}", decision.service.0), |spec| spec.name.clone());
        let withheld = if decision.enforced { "" } else { "withheld: " };
        let why = if decision.evidence.is_empty() { String::new() } else { format!(", {}", decision.evidence) };
        let rule = decision.rule;
        let (what, object, detail) = match &decision.what {
            DecisionKind::State { origin, from, to, location } => {
                let place = location.map_or_else(String::new, |location| format!(" ({})", location.name()));
                let detail = format!("{withheld}{} > {}{place}, {rule}{why}", from.name(), to.name());
                if *to == State::Fault {
                    self.tallies.judged(origin.0, decision.at, &service);
                }
                ("state", self.object(origin.0), detail)
            }
            DecisionKind::Failover { from, to } => {
                self.tallies.failover(&service);
                ("failover", service, format!("{withheld}tier {from} > {to}, {rule}{why}"))
            }
            DecisionKind::Failback { from, to } => {
                ("failback", service, format!("{withheld}tier {from} > {to}, {rule}{why}"))
            }
            DecisionKind::Mitigation { on } => (
                "mitigation",
                service,
                format!("{}, {rule}{why}", if *on { "on: more evidence is asked for" } else { "off" }),
            ),
            DecisionKind::Panic { on: true } => {
                let text = if rule == "refused" {
                    "nothing is usable, so new connections are refused"
                } else {
                    "too few are usable, so all are used"
                };
                ("panic", service, format!("{withheld}{text}, {rule}{why}"))
            }
            DecisionKind::Panic { on: false } => ("panic", service, format!("{withheld}over, {rule}{why}")),
            DecisionKind::Override { origin, order } => {
                ("override", self.object(origin.0), format!("{}{why}", order_word(*order)))
            }
            DecisionKind::Stage { origin, percent } => {
                ("stage", self.object(origin.0), format!("{withheld}{percent}% of its weight{why}"))
            }
            DecisionKind::Asks { origin, percent, waits } => {
                let what = if *waits == Waits::Approval { "approval_needed" } else { "stage_waits" };
                let service = self.service_of(origin.0);
                let how = match waits {
                    Waits::Approval => format!("sluice failback {service} approve"),
                    Waits::Window => "the window of the day is closed".to_owned(),
                    Waits::Hold => "held by an operator".to_owned(),
                };
                (what, self.object(origin.0), format!("{withheld}{percent}% of its weight waits: {how}"))
            }
            DecisionKind::Withheld { origin, held } => {
                self.tallies.held.add(&service, held.name(), 1);
                ("withheld", self.object(origin.0), format!("failover: {}{why}", held_text(*held)))
            }
            DecisionKind::CapacityUnset { standby, most } => {
                let detail = format!("no capacity is declared: above {most}/s further causes are held{why}");
                ("capacity_unset", self.object(standby.0), detail)
            }
            DecisionKind::TripJudged { origin, confirmed } => {
                let word = if *confirmed { "confirmed as fault" } else { "cleared" };
                ("trip_judged", self.object(origin.0), format!("{withheld}{word}, {rule}{why}"))
            }
        };
        info!(what, object, detail, rule, by = decision.by, enforced = decision.enforced, "decision");
        self.push(what, object, detail, &decision.by, decision.at.0);
    }

    pub(super) fn push(&self, what: &str, object: String, detail: String, by: &str, mono_ns: u64) {
        self.log.push(EventLine {
            time_ns: wall(Timestamp(mono_ns)),
            what: what.to_owned(),
            object,
            detail,
            by: by.to_owned(),
            mono_ns,
        });
    }

    /// `SERVICE/ORIGIN`.
    pub(super) fn object(&self, id: u16) -> String {
        let service = self.service_of(id);
        if service.is_empty() { format!("#{id}") } else { format!("{service}/{}", self.name(id)) }
    }

    fn name(&self, id: u16) -> String {
        let origins = self.specs.iter().flat_map(|spec| &spec.origins);
        origins
            .into_iter()
            .find(|origin| origin.id == OriginId(id))
            .map_or_else(|| format!("#{id}"), |origin| origin.name.clone())
    }

    pub(super) fn service_of(&self, id: u16) -> String {
        self.specs
            .iter()
            .find(|spec| spec.origins.iter().any(|origin| origin.id == OriginId(id)))
            .map_or_else(String::new, |spec| spec.name.clone())
    }
}

/// What was ordered, in a word.
const fn order_word(order: Option<OrderKind>) -> &'static str {
    match order {
        Some(OrderKind::Drain) => "drain",
        Some(OrderKind::Fail) => "fail",
        Some(OrderKind::Clear) => "clear",
        Some(OrderKind::Approve) => "failback approved",
        Some(OrderKind::Hold) => "failback held",
        Some(OrderKind::Abort) => "failback aborted",
        None => "ended",
    }
}

/// Why the governor holds a move, for people.
const fn held_text(held: Held) -> &'static str {
    match held {
        Held::CausesAtOnce => "as many causes as may be are on the move (node.governor.causes_at_once)",
        Held::MovesPerMin => "as many moves as may be began in the past minute (node.governor.moves_per_min)",
        Held::PerStandby => "as many causes as may be went to its standby (node.governor.per_standby_at_once)",
        Held::StandbyLoad => "its standby declares no capacity, and has more than twice its usual load",
        Held::NoHeadroom => "its standby has no headroom, and it may serve itself",
        Held::PingPong => "its flows have only just come back, and it serves",
    }
}

/// Milliseconds with a digit behind the point.
fn millis(span: Duration) -> String {
    format!("{:.1}ms", span.as_secs_f64() * 1000.0)
}

/// A monotonic time on the wall clock. Unit: ns since the epoch.
fn wall(at: Timestamp) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    now_ns.saturating_sub(probe::now().since(at).0)
}
