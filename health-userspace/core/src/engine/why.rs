//! What a decision rests on, for `explain` and for whoever has to answer for it.

use super::Decision;
use crate::{
    model::Layer,
    time::{Span, Timestamp},
};
use alloc::{string::String, vec::Vec};
use core::fmt;

/// What a decision rests on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Why {
    /// What speaks for it, worst first.
    pub because: Vec<Fact>,
    /// What speaks against it.
    pub against: Vec<Fact>,
    /// What was seen and not counted.
    pub ignored: Vec<Fact>,
    /// What it was compared with.
    pub limits: Vec<Limit>,
    /// What would have prevented it, in words; the most likely first.
    pub otherwise: Vec<String>,
}

/// One thing that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// By whom.
    pub of: Of,
    /// In words, such as `refused 412/412`.
    pub text: String,
    /// When it was last so.
    pub at: Timestamp,
}

/// Who saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Of {
    /// Real traffic, at this layer.
    Traffic(Layer),
    /// The check of this name.
    Check(String),
    /// The kernel, which tripped it or tries it.
    Trip,
    /// The neighbour table.
    NextHop,
    /// An operator.
    Order,
    /// The comparison with those that stood in.
    Canary,
    /// An origin of the service, by its name.
    Origin(String),
}

impl fmt::Display for Of {
    /// As `explain` names it: `traffic/transport`, `check port`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Traffic(layer) => write!(f, "traffic/{}", layer.name()),
            Self::Check(name) => write!(f, "check {name}"),
            Self::Trip => f.write_str("kernel"),
            Self::NextHop => f.write_str("next hop"),
            Self::Order => f.write_str("operator"),
            Self::Canary => f.write_str("canary"),
            Self::Origin(name) => f.write_str(name),
        }
    }
}

/// A value that something was compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The key of the policy, as in the configuration: `trip.after`.
    pub key: &'static str,
    /// Its value.
    pub amount: Amount,
    /// Who set it.
    pub from: LimitFrom,
}

/// Who set a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitFrom {
    /// The policy. Whether that is a default, a preset or the service's own key, the configuration knows.
    Policy,
    /// It was learned from what the origin usually does.
    Learned,
    /// The policy's value, raised while an attack is being mitigated.
    Mitigation,
}

/// A value with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many.
    Count(u64),
    /// Unit: percent.
    Percent(u64),
    /// So long.
    Time(Span),
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Time(span) => write!(f, "{span}"),
        }
    }
}

/// All that is to be said of one origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// Its last change of state since the daemon started.
    pub last: Option<Decision>,
    /// What is seen now, for and against its present state.
    pub now: Why,
}
