//! Rounds of checks that say nothing about origins: trouble of this node, and whoever keeps checks out.

use super::Daemon;
use crate::probe;
use health_core::{
    Span, Timestamp,
    model::{CheckResult, LocalReason},
};
use std::collections::BTreeMap;
use tracing::warn;

/// Time between two words about the same trouble. With thousands of checks, a line for each would be a second trouble.
const SAY_EVERY: Span = Span::from_secs(10);

/// By reason: when it was last said, and how many rounds it has kept from running since.
#[derive(Debug, Default)]
pub(super) struct Troubles(BTreeMap<&'static str, (Timestamp, u64)>);

impl Troubles {
    /// One more round. If it is time to say so: how many there were since the last time.
    fn add(&mut self, reason: LocalReason, now: Timestamp) -> Option<u64> {
        let (said, rounds) = self.0.entry(reason.name()).or_insert((Timestamp::NEVER, 0));
        *rounds += 1;
        if *said != Timestamp::NEVER && now.since(*said) < SAY_EVERY {
            return None;
        }
        *said = now;
        Some(std::mem::take(rounds))
    }
}

impl Daemon {
    /// Raises the alarm about a round that could not be run. The state of its origin stays what it was.
    pub(super) fn trouble(&mut self, result: CheckResult, reason: LocalReason) {
        let now = probe::now();
        let Some(rounds) = self.troubles.add(reason, now) else { return };
        let origin = self.object(result.origin.0);
        let word = reason.name();
        match reason {
            LocalReason::Descriptors
            | LocalReason::Ports
            | LocalReason::Memory
            | LocalReason::Late
            | LocalReason::Start => {
                warn!(origin, reason = word, rounds, "checks could not be run: local trouble, no evidence");
                let detail = format!("{word}: {rounds} rounds of checks, such as one of {origin}; states stay");
                self.push("local_trouble", self.config.node.name.clone(), detail, "daemon", now.0);
            }
            LocalReason::Blocked => {
                warn!(origin, rounds, "checks are blocked by something before the origin, no evidence");
                let detail = format!("{rounds} rounds of checks; the state stays");
                self.push("check_blocked", origin, detail, "daemon", now.0);
            }
            // Slots raise alarms of their own, which say more.
            LocalReason::Budget | LocalReason::Auth | LocalReason::Config | LocalReason::HostClock => {
                warn!(origin, reason = word, rounds, "checks of HSMs could not be run, no evidence");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trouble_is_said_at_once_and_then_summed_up() {
        let mut troubles = Troubles::default();
        let at = |seconds: u64| Timestamp(seconds * 1_000_000_000);
        let (ports, memory) = (LocalReason::Ports, LocalReason::Memory);
        assert_eq!(troubles.add(ports, at(1)), Some(1));
        assert_eq!(troubles.add(ports, at(2)), None);
        assert_eq!(troubles.add(memory, at(3)), Some(1), "another one does not wait");
        assert_eq!(troubles.add(ports, at(10)), None);
        assert_eq!(troubles.add(ports, at(11)), Some(3));
    }
}
