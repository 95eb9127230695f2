//! What the operator decided: thresholds and times, checked.
//!
//! Every value is one that the configuration accepted. Defaults are those of `[defaults.policy]`.

use crate::time::Span;
use alloc::{string::String, vec, vec::Vec};

mod amount;
mod latency;
mod mitigation;

pub use latency::{FaultRule, Latency, LatencyOver};
pub use mitigation::Mitigation;

/// All thresholds of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Failures of one check in a row that make `fault`. Range: 1 to 100. Default 3, as HAProxy's `fall`.
    pub fall: u8,
    /// Passes in a row that end `fault`. Range: 1 to 100. Default 2, as HAProxy's `rise`.
    pub rise: u8,
    /// Whether traffic is evidence. Default true.
    pub passive: bool,
    /// Whether a connection attempt that fails goes to a standby at once. Default true.
    pub rescue: bool,
    /// Shortest sliding window of success rates; a check's is at least (`fall` + 1) × its interval. Default 30 s.
    pub window: Span,
    /// Volume floors below which a success rate says nothing.
    pub samples_min: SamplesMin,
    /// What a fault takes. Default `either`.
    pub fault_rule: FaultRule,
    /// Success rates below which an origin is worse than `healthy`. Unit: percent.
    pub success_below_percent: SuccessBelow,
    /// What a state leaves of an origin's weight. Unit: percent.
    pub state_weight_percent: StateWeights,
    /// How long a repaired origin waits before it is used again.
    pub hold_down: HoldDown,
    /// When an unanswered request is a failure, at most 17 s, the kernel's memory of them. `None` (`off`): never.
    pub response_timeout: Option<Learned>,
    /// When an unanswered SYN is a failure, at most 4 s, the kernel's memory of them.
    pub syn_timeout: Learned,
    /// When answers are late, against what is usual.
    pub latency: Latency,
    /// Whether sockets of this host wait no longer than that for the answer to their first SYN.
    pub sockets: SocketTimeout,
    /// Whether the origins' answers pass this node. Default `auto`.
    pub return_path: ReturnPath,
    /// How a repaired origin is given its flows back.
    pub failback: Failback,
    /// Usable share of a tier's weight with which it keeps all flows. Unit: percent, 1 to 100. Default 70, as Envoy's
    /// overprovisioning factor of 1.4.
    pub min_usable_percent: u8,
    /// Share of usable origins, of all tiers together, below which all are used again; `maintenance` never. Unit: percent. Default
    /// 1: only when none is usable. 0: never, new connections are refused then.
    pub panic_percent: u8,
    /// What becomes of new connections that no usable standby has capacity for. Default `refuse`.
    pub overflow: Overflow,
    /// Whether a part of a service may be elsewhere. Default `share`.
    pub moves: Moves,
    /// What becomes of established connections to an origin in fault. Default `reset_stalled`.
    pub on_fault: OnFault,
    /// Time without progress after which `reset_stalled` ends a connection that is not idle. Default 3 s.
    pub stalled_for: Span,
    /// Time in fault after which `reset_after` ends all. Default 30 s.
    pub reset_after: Span,
    /// Connections that this ends at most. Unit: per second, at least 1. Default 1000.
    pub resets_per_s: u32,
    /// The kernel's own, provisional decision.
    pub trip: Trip,
    /// What holds under attack.
    pub mitigation: Mitigation,
    /// Resets count only with at least so many clients behind the failures of requests: 1 unless under attack.
    pub reset_spread_min: u8,
}

/// Volume floors. Unit: samples in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplesMin {
    /// Of traffic. Default 20.
    pub passive: u32,
    /// Of one check. Default 3.
    pub active: u32,
}

/// Success rates, strictly below which the state is reached. Unit: percent, `fault` ≤ `high_risk` ≤ `degraded`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuccessBelow {
    /// Default 80.
    pub degraded: u8,
    /// Default 50.
    pub high_risk: u8,
    /// Default 20.
    pub fault: u8,
}

/// Factors on the weight. Unit: percent, 0 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateWeights {
    /// Default 100.
    pub unknown: u8,
    /// Default 100.
    pub healthy: u8,
    /// Default 50.
    pub degraded: u8,
    /// Default 10.
    pub high_risk: u8,
    /// Default 0.
    pub fault: u8,
}

/// Waiting time of a repaired origin: `base` × the number of recent faults, at most `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldDown {
    /// Default 30 s, as Envoy's base ejection time.
    pub base: Span,
    /// Default 300 s, as Envoy's maximum.
    pub max: Span,
}

/// The way back of an origin that was in fault: hold-down, a clean time, then stages. A return from a mere trip has none of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failback {
    /// How long it must stay clean behind its hold-down before it is given anything. Default 5 min.
    pub observe_for: Span,
    /// Parts of its weight that it is given, one after the other. Unit: percent, rising, the last one 100; at most 16.
    /// Default 10, 50, 100.
    pub stages: Vec<u8>,
    /// How long each part is held, without one failure. Default 5 min.
    pub stage_for: Span,
    /// Who lets a stage begin. Default `Auto`.
    pub approval: Approval,
    /// How long an approval lasts. Default 12 h.
    pub approval_expires: Span,
    /// When stages may begin: not while [`Input::closed`](crate::engine::Input::closed) names the service.
    pub window: Option<DayWindow>,
    /// How its flows are compared with those of the origins that stood in for it.
    pub canary: Canary,
}

/// Who lets a stage begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approval {
    /// Nobody has to.
    Auto,
    /// An operator, once for the whole way back.
    FirstStage,
    /// An operator, for each stage anew.
    EachStage,
}

/// A time of the day, for the shell's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DayWindow {
    /// First minute, 0 to 1439.
    pub from: u16,
    /// The minute after the last. Before `from`: it reaches over midnight.
    pub to: u16,
    /// Name of the time zone in the IANA database. Empty: the node's own.
    pub zone: String,
}

impl DayWindow {
    /// Whether it is open at `minute` of the day, in its own zone.
    #[must_use]
    pub const fn is_open(&self, minute: u16) -> bool {
        if self.from <= self.to {
            self.from <= minute && minute < self.to
        } else {
            self.from <= minute || minute < self.to
        }
    }
}

/// When the flows of a stage are worse than those of the origins that stood in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Canary {
    /// By so much more of them fail. Unit: percentage points. Default 1.
    pub fail_over_standby_percent: u8,
    /// Their mean time to first byte is so much of the others'. Unit: percent, at least 100. Default 130.
    pub ttfb_factor_percent: u16,
    /// Flows (connections or requests, whichever are more) on both sides below which nothing is compared. Default 200.
    pub flows_min: u32,
}

/// A timeout learned as 4 × p99 of what was measured, within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// Whether it is learned at all; otherwise it stays `initial`.
    pub learn: bool,
    /// Least value.
    pub min: Span,
    /// Value below 20 samples.
    pub initial: Span,
    /// Greatest value.
    pub max: Span,
}

/// The first wait of this host's sockets for an answer to their SYN, in place of the stack's 1 s, while a standby is usable.
/// It shortens the whole time of a connect too: its repeats follow sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketTimeout {
    /// Whether it is set. Default true.
    pub set: bool,
    /// Least value: not below TCP's own least retransmission timeout. Default 200 ms, as Linux's `TCP_RTO_MIN`.
    pub min: Span,
}

/// Where origins' answers go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnPath {
    /// Past this node as soon as one was seen here; until then unanswered SYNs are no evidence.
    Auto,
    /// Past this node, by the operator's word: unanswered SYNs are evidence from the first on.
    Symmetric,
    /// Never past this node (direct server return): silence is never evidence, and nothing is rewritten.
    None,
}

/// What becomes of new connections that no usable standby has capacity for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// Refused at once.
    Refuse,
    /// They stay with the origin that they would have left.
    LeastBad,
    /// They go to the best standby all the same.
    Exceed,
}

/// Whether a part of a service's flows may be on another tier than the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// Each flow by itself: what a tier can't carry goes on to the next, and attempts that fail are rescued.
    Share,
    /// All or none: a tier has all flows of a family, or none of them, and no attempt goes to another.
    Service,
}

/// What becomes of established connections to an origin in fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFault {
    /// Nothing.
    Keep,
    /// All are reset after [`Policy::reset_after`].
    ResetAfter,
    /// All are reset at once.
    Reset,
    /// Idle ones of this host's sockets are reset at once, others after [`Policy::stalled_for`] without progress.
    ResetStalled,
}

/// When the kernel trips by itself, and how it tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trip {
    /// Whether it may. Default true.
    pub kernel: bool,
    /// Failures without a success between them. Range: 1 to 1000. Default 5.
    pub after: u16,
    /// Longest time that the failures may span. Default 10 s.
    pub within: Span,
    /// Clients (local sockets: connections) that must have failed. Range: 1 to 20, the bits that the kernel's word has for
    /// them. Default 3.
    pub spread_min: u8,
    /// Silence of the origin that timeouts wait for. Default 0.
    pub silence_min: Span,
    /// Whether an answer of HTTP status 5xx, seen in plain text, is a failed request. Default true.
    pub on_5xx: bool,
    /// First wait before one flow tries the origin. Default 1 s, doubling.
    pub half_open_after: Span,
    /// Longest such wait. Default 30 s.
    pub half_open_max: Span,
    /// Share of a tier that may be tripped while no lower tier can serve; at least one. Unit: percent. Default 50.
    pub max_percent: u8,
}

impl Default for Failback {
    fn default() -> Self {
        Self {
            observe_for: Span::from_secs(300),
            stages: vec![10, 50, 100],
            stage_for: Span::from_secs(300),
            approval: Approval::Auto,
            approval_expires: Span::from_secs(12 * 3600),
            window: None,
            canary: Canary { fail_over_standby_percent: 1, ttfb_factor_percent: 130, flows_min: 200 },
        }
    }
}

impl Failback {
    /// All of it back as soon as the hold-down is over.
    #[must_use]
    pub fn at_once() -> Self {
        Self { observe_for: Span::ZERO, stages: vec![100], stage_for: Span::ZERO, ..Self::default() }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            fall: 3,
            rise: 2,
            passive: true,
            rescue: true,
            window: Span::from_secs(30),
            samples_min: SamplesMin { passive: 20, active: 3 },
            fault_rule: FaultRule::Either,
            success_below_percent: SuccessBelow { degraded: 80, high_risk: 50, fault: 20 },
            state_weight_percent: StateWeights { unknown: 100, healthy: 100, degraded: 50, high_risk: 10, fault: 0 },
            hold_down: HoldDown { base: Span::from_secs(30), max: Span::from_secs(300) },
            response_timeout: Some(Learned {
                learn: true,
                min: Span::from_millis(200),
                initial: Span::from_secs(5),
                max: Span::from_secs(10),
            }),
            syn_timeout: Learned {
                learn: true,
                min: Span::from_millis(100),
                initial: Span::from_secs(1),
                max: Span::from_secs(3),
            },
            latency: Latency::default(),
            sockets: SocketTimeout { set: true, min: Span::from_millis(200) },
            return_path: ReturnPath::Auto,
            failback: Failback::default(),
            min_usable_percent: 70,
            panic_percent: 1,
            overflow: Overflow::Refuse,
            moves: Moves::Share,
            on_fault: OnFault::ResetStalled,
            stalled_for: Span::from_secs(3),
            reset_after: Span::from_secs(30),
            resets_per_s: 1000,
            trip: Trip {
                kernel: true,
                after: 5,
                within: Span::from_secs(10),
                spread_min: 3,
                silence_min: Span::ZERO,
                on_5xx: true,
                half_open_after: Span::from_secs(1),
                half_open_max: Span::from_secs(30),
                max_percent: 50,
            },
            mitigation: Mitigation::default(),
            reset_spread_min: 1,
        }
    }
}
