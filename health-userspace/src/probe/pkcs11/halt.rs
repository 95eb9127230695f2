//! What stops a climb, and what that means.

use super::{
    class::{self, Class},
    process::Death,
    slot::Plan,
    trouble::Trouble,
};
use health_core::model::{Hsm, Layer, LocalReason, Reason};
use std::collections::BTreeSet;

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    Fail(Reason),
    Local(LocalReason),
    /// The token's clock is off by this. Whose fault that is, other tokens must tell.
    Skewed {
        by_ns: i64,
    },
}

/// What stops a climb.
pub(super) enum Halt {
    /// The worker reports trouble.
    Trouble(Trouble),
    /// The worker is no more.
    Death(Death),
    /// The selected slot holds another token by now.
    Swapped,
    /// A judgement about what the token says.
    Judged(Hsm, String),
    /// No login is made, or it was refused.
    Auth(String),
    /// Our own trouble.
    Local(LocalReason, String),
    /// A killed worker is still there.
    Stuck,
    /// The clock is off.
    Skewed(i64),
}

impl From<Trouble> for Halt {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

/// What once worked: checks by name, and the token itself by the empty one.
pub(super) type Known = BTreeSet<String>;

/// Whose fault a refused credential is.
const fn auth(plan: &Plan) -> Verdict {
    if plan.rule.auth_is_fault { Verdict::Fail(Reason::Hsm(Hsm::Auth)) } else { Verdict::Local(LocalReason::Auth) }
}

impl Halt {
    pub(super) fn class(&self) -> Option<Class> {
        if let Self::Trouble(trouble) = self { Some(class::of(trouble)) } else { None }
    }

    pub(super) fn is_stale(&self) -> bool {
        // Who dies between two calls was killed by somebody, or by the system for want of memory: no call did it.
        let idle = matches!(self, Self::Death(Death::Died { at: None, .. }));
        idle || matches!(self, Self::Swapped) || self.class() == Some(Class::Stale)
    }

    /// Whether a fresh worker may do better.
    pub(super) fn retires(&self, worked: bool) -> bool {
        match self {
            Self::Swapped => true,
            Self::Trouble(trouble) => match class::of(trouble) {
                Class::Removed | Class::Device | Class::Stale | Class::Integrity => true,
                // What never worked is a mistake; but a key that is put in later must be seen.
                Class::Config => worked || matches!(trouble, Trouble::NoKey { .. } | Trouble::KeyAmbiguous { .. }),
                Class::Sessions | Class::Auth => false,
            },
            Self::Judged(reason, _) => *reason == Hsm::Integrity,
            Self::Death(_) | Self::Auth(_) | Self::Local(..) | Self::Stuck | Self::Skewed(_) => false,
        }
    }
}

impl Halt {
    /// What it says about the origin, given what once worked.
    pub(super) fn verdict(&self, plan: &Plan, known: &Known) -> Verdict {
        let fail = |reason| Verdict::Fail(Reason::Hsm(reason));
        let worked = known.contains(&plan.name);
        match self {
            Self::Skewed(by_ns) => Verdict::Skewed { by_ns: *by_ns },
            Self::Judged(reason, _) => fail(*reason),
            Self::Swapped => fail(Hsm::Removed),
            Self::Local(reason, _) => Verdict::Local(*reason),
            Self::Stuck | Self::Death(Death::Hung { .. }) => Verdict::Fail(Reason::Timeout(Layer::Application)),
            Self::Death(Death::Unborn(error)) => Verdict::Local(match error.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE) => LocalReason::Descriptors,
                Some(libc::ENOMEM | libc::EAGAIN) => LocalReason::Memory,
                _ => LocalReason::Start,
            }),
            Self::Death(Death::Died { .. } | Death::Breach(_)) => fail(Hsm::Worker),
            Self::Auth(_) => auth(plan),
            // At the start it is the configuration; of a token that was there, it is the token's end.
            Self::Trouble(Trouble::NoToken) if !known.contains("") => Verdict::Local(LocalReason::Config),
            Self::Trouble(trouble) => match class::of(trouble) {
                Class::Removed => fail(Hsm::Removed),
                Class::Device => fail(Hsm::Device),
                Class::Stale => fail(Hsm::Stale),
                Class::Sessions => fail(Hsm::Sessions),
                Class::Integrity => fail(Hsm::Integrity),
                Class::Auth => auth(plan),
                Class::Config if !worked => Verdict::Local(LocalReason::Config),
                Class::Config if matches!(trouble, Trouble::NoKey { .. } | Trouble::KeyAmbiguous { .. }) => {
                    fail(Hsm::Key)
                }
                Class::Config => fail(Hsm::Unsupported),
            },
        }
    }
}

impl std::fmt::Display for Halt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Trouble(trouble) => trouble.fmt(f),
            Self::Death(death) => f.write_str(&said(death)),
            Self::Swapped => f.write_str("the slot holds another token"),
            Self::Judged(_, why) | Self::Auth(why) | Self::Local(_, why) => f.write_str(why),
            Self::Stuck => f.write_str("a killed worker is still stuck in a call"),
            Self::Skewed(by_ns) => {
                let seconds = by_ns / 1_000_000_000;
                write!(f, "the token's clock is off by {seconds} s")
            }
        }
    }
}

/// The event that goes with a round that says nothing about the HSM.
pub(super) const fn local_event(reason: LocalReason) -> &'static str {
    match reason {
        LocalReason::Auth => "pkcs11_auth",
        LocalReason::Budget => "pkcs11_budget",
        LocalReason::Config => "pkcs11_config",
        LocalReason::HostClock => "pkcs11_host_clock",
        _ => "pkcs11_local",
    }
}

/// An error with its causes.
pub(super) fn said(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
