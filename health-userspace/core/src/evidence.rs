//! What was seen: a polarity at a layer, from a source, at a time.

use crate::{
    engine::TrafficTotals,
    model::{CheckResult, Layer, Outcome, Reason},
    time::Timestamp,
    window::Tally,
};

/// Where evidence comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Connections of real traffic.
    Connect,
    /// Requests of real traffic.
    Request,
    /// The check at this place of the service's list.
    Check(u16),
}

/// Which way it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polarity {
    /// For the origin.
    Good,
    /// For the origin, but late.
    Slow,
    /// Against it, and something answered (a refusal, a reset, a wrong answer).
    Answered,
    /// Against it, by silence.
    Silent,
}

/// One kind of thing, seen `count` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Good: the highest layer it proves. Bad: the layer that failed.
    pub layer: Layer,
    /// Which way it speaks.
    pub polarity: Polarity,
    /// How often.
    pub count: u64,
    /// When it ended.
    pub at: Timestamp,
    /// Where it comes from.
    pub source: Source,
}

impl Evidence {
    /// What a round of a check at `layer` says. `None` for a local shortage, which says nothing about the origin.
    #[must_use]
    pub fn of_check(result: &CheckResult, layer: Layer) -> Option<Self> {
        let polarity = match result.outcome {
            Outcome::Pass => Polarity::Good,
            Outcome::Slow => Polarity::Slow,
            Outcome::Fail(reason) => match reason {
                Reason::Timeout(_) | Reason::Unreachable => Polarity::Silent,
                Reason::Refused | Reason::Reset | Reason::Tls | Reason::Status(_) | Reason::Body | Reason::Protocol => {
                    Polarity::Answered
                }
            },
            Outcome::Local(_) => return None,
        };
        Some(Self { layer, polarity, count: 1, at: result.ended, source: Source::Check(result.check) })
    }
}

/// What traffic showed between two readings of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Handshakes completed.
    pub synack: u64,
    /// SYNs refused.
    pub refused: u64,
    /// SYNs unanswered.
    pub syn_timeout: u64,
    /// Requests sent; says nothing by itself.
    pub request: u64,
    /// Requests answered.
    pub response: u64,
    /// Requests unanswered.
    pub no_response: u64,
    /// Connections reset before the first response byte.
    pub reset_early: u64,
}

impl Traffic {
    /// The same as evidence. Bytes that nobody here can read prove at most `transport`, whatever they were.
    #[must_use]
    pub fn evidence(&self, at: Timestamp) -> [Evidence; 6] {
        let one = |source, layer, polarity, count| Evidence { layer, polarity, count, at, source };
        [
            one(Source::Connect, Layer::Transport, Polarity::Good, self.synack),
            one(Source::Connect, Layer::Transport, Polarity::Answered, self.refused),
            one(Source::Connect, Layer::Transport, Polarity::Silent, self.syn_timeout),
            one(Source::Request, Layer::Transport, Polarity::Good, self.response),
            one(Source::Request, Layer::Application, Polarity::Answered, self.reset_early),
            one(Source::Request, Layer::Application, Polarity::Silent, self.no_response),
        ]
    }

    /// Connections, as successes and failures.
    #[must_use]
    pub const fn connects(&self) -> Tally {
        Tally { good: self.synack, bad: self.refused.saturating_add(self.syn_timeout) }
    }

    /// Requests, likewise.
    #[must_use]
    pub const fn requests(&self) -> Tally {
        Tally { good: self.response, bad: self.no_response.saturating_add(self.reset_early) }
    }
}

/// Turns cumulative counters into what happened since the last reading.
///
/// What was counted only grows, so a count that goes back means that the maps are new. What is *unanswered* is no count
/// but a subtraction, sent less answered among those older than the timeout: a late answer or a longer timeout takes some
/// of it back. The most that was ever seen is kept of it, so that no attempt is held against an origin twice.
///
/// And it proves something only if the kernel had a timeout at both readings. Without one it still counts attempts whose
/// place it needs as unanswered, and the first reading with one finds all that waited before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    last: Option<TrafficTotals>,
    timed: Timed,
}

/// Which timeouts the kernel had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timed {
    /// Of SYNs.
    pub syn: bool,
    /// Of requests.
    pub response: bool,
}

impl Meter {
    /// Reads. `None` at the first reading, and where the maps are new: then the newer reading is kept, and the next one is
    /// the first that means something.
    #[must_use]
    pub fn read(&mut self, totals: &TrafficTotals, timed: Timed) -> Option<Traffic> {
        let before = core::mem::replace(&mut self.timed, timed);
        let last = self.last.replace(*totals)?;
        let unanswered = |now: u64, last: u64, timed: bool| if timed { now.saturating_sub(last) } else { 0 };
        totals.syn.checked_sub(last.syn)?;
        let traffic = Traffic {
            synack: totals.synack.checked_sub(last.synack)?,
            refused: totals.refused.checked_sub(last.refused)?,
            syn_timeout: unanswered(totals.syn_timeout, last.syn_timeout, before.syn && timed.syn),
            request: totals.request.checked_sub(last.request)?,
            response: totals.response.checked_sub(last.response)?,
            no_response: unanswered(totals.no_response, last.no_response, before.response && timed.response),
            reset_early: totals.reset_early.checked_sub(last.reset_early)?,
        };
        self.last = Some(TrafficTotals {
            syn_timeout: totals.syn_timeout.max(last.syn_timeout),
            no_response: totals.no_response.max(last.no_response),
            ..*totals
        });
        Some(traffic)
    }

    /// The newest reading, with the most that was ever unanswered.
    #[must_use]
    pub const fn last(&self) -> Option<&TrafficTotals> {
        self.last.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{engine::Quantile, time::Span};

    const BOTH: Timed = Timed { syn: true, response: true };

    #[test]
    fn counters_that_go_back_say_nothing_once() {
        let mut meter = Meter::default();
        let at = |synack, refused| TrafficTotals { synack, refused, ..TrafficTotals::default() };
        assert_eq!(meter.read(&at(100, 5), BOTH), None, "first reading");
        assert_eq!(meter.read(&at(110, 5), BOTH).map(|t| t.connects()), Some(Tally { good: 10, bad: 0 }));
        assert_eq!(meter.read(&at(115, 0), BOTH), None, "one counter went back");
        assert_eq!(meter.read(&at(116, 3), BOTH).map(|t| t.connects()), Some(Tally { good: 1, bad: 3 }));
    }

    const FULL: TrafficTotals = TrafficTotals {
        syn: 9,
        synack: 9,
        refused: 9,
        syn_timeout: 9,
        request: 9,
        response: 9,
        no_response: 9,
        reset_early: 9,
        reset_mid: 9,
        last_seen: Timestamp::NEVER,
        rtt: Quantile { samples: 0, p99: Span::ZERO },
        ttfb: Quantile { samples: 0, p99: Span::ZERO },
    };

    #[test]
    fn a_count_that_goes_back_means_new_maps() {
        let back = [
            TrafficTotals { syn: 8, ..FULL },
            TrafficTotals { synack: 8, ..FULL },
            TrafficTotals { refused: 8, ..FULL },
            TrafficTotals { request: 8, ..FULL },
            TrafficTotals { response: 8, ..FULL },
            TrafficTotals { reset_early: 8, ..FULL },
            // All of it: what was unanswered before is forgotten too.
            TrafficTotals { syn: 1, syn_timeout: 0, request: 1, no_response: 0, ..FULL },
        ];
        for totals in back {
            let mut meter = Meter::default();
            assert_eq!(meter.read(&FULL, BOTH), None);
            assert_eq!(meter.read(&totals, BOTH), None, "{totals:?}");
            assert_eq!(meter.read(&totals, BOTH), Some(Traffic::default()));
            let one = totals.syn_timeout + 1;
            let more = meter.read(&TrafficTotals { syn_timeout: one, ..totals }, BOTH);
            assert_eq!(more, Some(Traffic { syn_timeout: 1, ..Traffic::default() }), "{totals:?}");
        }
    }

    /// A late answer takes back what was called unanswered, and so does a longer timeout.
    #[test]
    fn what_is_unanswered_may_go_back_and_nothing_else_is_lost() {
        let mut meter = Meter::default();
        assert_eq!(meter.read(&FULL, BOTH), None);
        let late =
            TrafficTotals { syn: 12, synack: 11, syn_timeout: 7, request: 12, response: 11, no_response: 7, ..FULL };
        let answered = Traffic { synack: 2, request: 3, response: 2, ..Traffic::default() };
        assert_eq!(meter.read(&late, BOTH), Some(answered));
        // Up to the most that was ever seen, nothing is counted a second time.
        let again = TrafficTotals { syn_timeout: 9, no_response: 8, ..late };
        assert_eq!(meter.read(&again, BOTH), Some(Traffic::default()));
        let more = TrafficTotals { syn_timeout: 10, no_response: 11, ..late };
        assert_eq!(meter.read(&more, BOTH), Some(Traffic { syn_timeout: 1, no_response: 2, ..Traffic::default() }));
    }

    #[test]
    fn a_local_shortage_is_no_evidence() {
        use crate::model::{LocalReason, OriginId};
        for reason in [LocalReason::Descriptors, LocalReason::Ports, LocalReason::Memory, LocalReason::Late] {
            let result = CheckResult {
                origin: OriginId(1),
                check: 0,
                began: Timestamp(1),
                ended: Timestamp(2),
                outcome: Outcome::Local(reason),
            };
            assert_eq!(Evidence::of_check(&result, Layer::Transport), None);
        }
    }

    #[test]
    fn traffic_proves_at_most_transport() {
        let traffic = Traffic { synack: 3, response: 3, ..Traffic::default() };
        for evidence in traffic.evidence(Timestamp(1)) {
            assert!(evidence.polarity != Polarity::Good || evidence.layer == Layer::Transport);
        }
    }
}
