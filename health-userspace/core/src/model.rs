//! What is judged and steered: services, origins, checks, frontends, and the words for their condition.

use crate::{
    policy::Policy,
    time::{Span, Timestamp},
};
use alloc::{string::String, vec::Vec};

pub use crate::{
    hsm::Hsm,
    reason::{LocalReason, Reason},
};

/// Number that the kernel knows an origin by. Given once per address and port, kept in the pinned maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OriginId(pub u16);

impl OriginId {
    /// No origin: a slot of an address that leads nowhere. The kernel leaves its flows alone.
    pub const NONE: Self = Self(u16::MAX);
}

/// Number that the kernel knows a frontend by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendId(pub u16);

/// Number that the kernel knows a service by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u16);

/// Whether decisions are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// They are.
    Enforce,
    /// They are computed, counted as withheld, and not done.
    Observe,
}

impl Mode {
    /// As in configuration and output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
        }
    }
}

/// A named pool of origins with checks and policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSpec {
    /// The kernel's number.
    pub id: ServiceId,
    /// Unique name.
    pub name: String,
    /// A service may only be stricter than its node.
    pub mode: Mode,
    /// Thresholds.
    pub policy: Policy,
    /// In the configuration's order; at most 64.
    pub origins: Vec<OriginSpec>,
    /// Run against every origin.
    pub checks: Vec<CheckSpec>,
    /// What the node's traffic is sent to.
    pub frontends: Vec<FrontendSpec>,
    /// How the flows of virtual addresses are divided.
    pub balance: Balance,
}

/// How the new flows of a virtual address are divided among origins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Consistently: the same table on every node, and few places change hands when an origin comes or goes.
    #[default]
    Maglev,
    /// By weight, exact to a slot.
    Weighted,
}

/// One address:port that serves a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginSpec {
    /// The kernel's number.
    pub id: OriginId,
    /// Unique in its service.
    pub name: String,
    /// The same on every node: made of address and port. Consistent tables are keyed by it.
    pub key: u64,
    /// Family of its address: only frontends of the same family are ever sent there.
    pub family: Family,
    /// Priority; 0 is preferred.
    pub tier: u8,
    /// Share inside its tier. 0 takes nothing.
    pub weight: u16,
    /// New connections per second that it can take.
    pub capacity_cps: Option<u32>,
    /// Connections that it can hold.
    pub capacity_conns: Option<u32>,
}

/// An active check, as far as the judgement needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckSpec {
    /// Unique in its service.
    pub name: String,
    /// What a pass proves.
    pub layer: Layer,
    /// Time between two rounds.
    pub interval: Span,
    /// Whether a failure may take the origin out; else it only degrades.
    pub critical: bool,
    /// Whether it runs only while its origin comes back.
    pub verify: bool,
    /// So many rounds in a row that find an HSM removed make `fault`, whatever `fall` says. 0: `fall` decides.
    pub removed_fall: u8,
}

/// An address that the node's traffic is sent to and that Sluice steers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontendSpec {
    /// The kernel's number.
    pub id: FrontendId,
    /// Whose own address it is; `None` for a virtual address.
    pub own: Option<OriginId>,
    /// Address family. Families never mix in a frontend.
    pub family: Family,
}

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// How far up a piece of evidence reaches. A pass proves its own layer and those below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// Packets arrive.
    Network,
    /// Connections are accepted.
    Transport,
    /// TLS sessions are made.
    Tls,
    /// Requests are answered, and rightly.
    Application,
}

/// Condition of one origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Neither traffic nor checks have said anything yet.
    Unknown,
    /// Works.
    Healthy,
    /// Works, but some of it fails or is slow.
    Degraded,
    /// Much of it fails.
    HighRisk,
    /// Does not serve.
    Fault,
    /// Passes again, and waits out its hold-down or serves a stage's share.
    Recovering,
    /// Taken out by an operator.
    Maintenance,
}

/// Where a failure sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The process that serves: refused, hung, wrong answers, while its host answers.
    OriginProcess,
    /// The whole host: silence.
    OriginHost,
    /// What lies between.
    Path,
    /// This node.
    Node,
    /// A certificate.
    Certificate,
    /// The check itself.
    Check,
}

/// How an origin wants to be checked, as far as its condition says. The schedule turns it into intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// Nothing special.
    #[default]
    Usual,
    /// Real traffic proves up to this layer, amply and well: checks of no more than that learn little.
    Ample(Layer),
    /// Something looks wrong and is not yet judged: look closely.
    Suspect,
    /// It ails and serves all the same: no more load than it takes.
    Gentle,
    /// It is out.
    Out,
    /// It is in a stage of its way back: `verify` checks run too.
    Returning,
}

impl Pace {
    /// Of a standby whose turn may be near: what is seldom asked is asked often.
    #[must_use]
    pub const fn watched(self) -> Self {
        match self {
            Self::Usual | Self::Ample(_) => Self::Suspect,
            Self::Suspect | Self::Gentle | Self::Out | Self::Returning => self,
        }
    }
}

/// Result of one round of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As expected.
    Pass,
    /// As expected, but later than the check's `slow` limit.
    Slow,
    /// Not as expected.
    Fail(Reason),
    /// A shortage here (descriptors, ports, memory, a late round): no evidence about the origin.
    Local(LocalReason),
}

/// One round of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// Of this origin.
    pub origin: OriginId,
    /// Place of the check in [`ServiceSpec::checks`].
    pub check: u16,
    /// When the round began. A result never proves anything about a time after this.
    pub began: Timestamp,
    /// When it ended.
    pub ended: Timestamp,
    /// How it ended.
    pub outcome: Outcome,
}

impl Outcome {
    /// Whether the origin did as expected, be it late.
    #[must_use]
    pub const fn is_pass(self) -> bool {
        matches!(self, Self::Pass | Self::Slow)
    }

    /// The word for it in output and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Slow => "slow",
            Self::Fail(_) => "fail",
            Self::Local(_) => "local",
        }
    }
}

impl State {
    /// All of them, best known first; the order of `origin_state` series.
    pub const ALL: [Self; 7] = [
        Self::Unknown,
        Self::Healthy,
        Self::Degraded,
        Self::HighRisk,
        Self::Fault,
        Self::Recovering,
        Self::Maintenance,
    ];

    /// The word for it in configuration, output and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::HighRisk => "high_risk",
            Self::Fault => "fault",
            Self::Recovering => "recovering",
            Self::Maintenance => "maintenance",
        }
    }
}

impl Layer {
    /// The word for it in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Transport => "transport",
            Self::Tls => "tls",
            Self::Application => "application",
        }
    }
}

impl Location {
    /// The word for it in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OriginProcess => "origin_process",
            Self::OriginHost => "origin_host",
            Self::Path => "path",
            Self::Node => "node",
            Self::Certificate => "certificate",
            Self::Check => "check",
        }
    }
}
