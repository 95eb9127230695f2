//! What was seen: a polarity at a layer, from a source, at a time.

use crate::{
    clients::Clients,
    engine::TrafficTotals,
    model::{CheckResult, Layer, Outcome},
    time::Timestamp,
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
    /// Against it, told in so many words: ICMP says that it can't be reached; of requests, a status 5xx.
    Told,
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
            Outcome::Fail(reason) if reason.is_silence() => Polarity::Silent,
            Outcome::Fail(_) => Polarity::Answered,
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
    /// Too late: these are among the unanswered.
    pub synack_late: u64,
    /// SYNs refused.
    pub refused: u64,
    /// SYNs unanswered.
    pub syn_timeout: u64,
    /// SYNs and flows whose origin can't be reached, as the network says.
    pub unreachable: u64,
    /// Requests sent; says nothing by itself.
    pub request: u64,
    /// Requests answered.
    pub response: u64,
    /// Too late: these are among the unanswered.
    pub response_late: u64,
    /// With an HTTP status from 200 to 499, as far as we can read.
    pub http_good: u64,
    /// With a status 5xx.
    pub http_5xx: u64,
    /// Requests unanswered.
    pub no_response: u64,
    /// Connections reset before the first response byte.
    pub reset_early: u64,
    /// Whose connections failed.
    pub connect_by: Clients,
    /// Whose requests failed.
    pub request_by: Clients,
}

impl Traffic {
    /// The same as evidence. Bytes that nobody here can read prove at most `transport`, whatever they were; a status that was
    /// read proves `application`. `on_5xx`: whether errors of the origin are failures.
    #[must_use]
    pub fn evidence(&self, at: Timestamp, on_5xx: bool) -> [Evidence; 9] {
        let one = |source, layer, polarity, count| Evidence { layer, polarity, count, at, source };
        let errors = if on_5xx { self.http_5xx } else { 0 };
        let in_time = self.response.saturating_sub(self.response_late).saturating_sub(errors);
        let read = self.http_good.min(in_time);
        [
            one(Source::Connect, Layer::Transport, Polarity::Good, self.synack.saturating_sub(self.synack_late)),
            one(Source::Connect, Layer::Transport, Polarity::Answered, self.refused),
            one(Source::Connect, Layer::Transport, Polarity::Silent, self.syn_timeout),
            one(Source::Connect, Layer::Network, Polarity::Told, self.unreachable),
            one(Source::Request, Layer::Application, Polarity::Good, read),
            one(Source::Request, Layer::Transport, Polarity::Good, in_time.saturating_sub(read)),
            one(Source::Request, Layer::Application, Polarity::Answered, self.reset_early),
            one(Source::Request, Layer::Application, Polarity::Silent, self.no_response),
            one(Source::Request, Layer::Application, Polarity::Told, errors),
        ]
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
        let syn_timeout = unanswered(totals.syn_timeout, last.syn_timeout, before.syn && timed.syn);
        let no_response = unanswered(totals.no_response, last.no_response, before.response && timed.response);
        // No packet tells of silence. But while it is complete, whoever has asked since is behind it.
        let whose = |now: &Clients, last: &Clients, silent: u64, waits: u32| {
            now.minus(last).with(if silent > 0 { waits } else { 0 })
        };
        let traffic = Traffic {
            synack: totals.synack.checked_sub(last.synack)?,
            synack_late: totals.synack_late.checked_sub(last.synack_late)?,
            refused: totals.refused.checked_sub(last.refused)?,
            syn_timeout,
            unreachable: totals.unreachable.checked_sub(last.unreachable)?,
            request: totals.request.checked_sub(last.request)?,
            response: totals.response.checked_sub(last.response)?,
            response_late: totals.response_late.checked_sub(last.response_late)?,
            http_good: totals.http_good.checked_sub(last.http_good)?,
            http_5xx: totals.http_5xx.checked_sub(last.http_5xx)?,
            no_response,
            reset_early: totals.reset_early.checked_sub(last.reset_early)?,
            connect_by: whose(&totals.connect_by, &last.connect_by, syn_timeout, totals.syn_waits),
            request_by: whose(&totals.request_by, &last.request_by, no_response, totals.request_waits),
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
    use crate::{
        clients::CLIENTS,
        engine::{Quantile, Sum},
        time::Span,
    };

    const BOTH: Timed = Timed { syn: true, response: true };

    #[test]
    fn counters_that_go_back_say_nothing_once() {
        let mut meter = Meter::default();
        let at = |synack, refused| TrafficTotals { synack, refused, ..TrafficTotals::default() };
        assert_eq!(meter.read(&at(100, 5), BOTH), None, "first reading");
        assert_eq!(meter.read(&at(110, 5), BOTH).map(|t| (t.synack, t.refused)), Some((10, 0)));
        assert_eq!(meter.read(&at(115, 0), BOTH), None, "one counter went back");
        assert_eq!(meter.read(&at(116, 3), BOTH).map(|t| (t.synack, t.refused)), Some((1, 3)));
    }

    const FULL: TrafficTotals = TrafficTotals {
        syn: 9,
        syn_retrans: 0,
        synack: 9,
        synack_late: 9,
        refused: 9,
        syn_timeout: 9,
        unreachable: 9,
        request: 9,
        response: 9,
        response_late: 9,
        http_good: 9,
        http_5xx: 9,
        no_response: 9,
        reset_early: 9,
        reset_mid: 9,
        connect_by: Clients([9; CLIENTS]),
        request_by: Clients([9; CLIENTS]),
        syn_waits: 0,
        request_waits: 0,
        open: 0,
        last_seen: Timestamp::NEVER,
        rtt: Quantile { samples: 0, p99: Span::ZERO },
        ttfb: Quantile { samples: 0, p99: Span::ZERO },
        ttfb_all: Sum { samples: 0, total: Span::ZERO },
    };

    #[test]
    fn a_count_that_goes_back_means_new_maps() {
        let back = [
            TrafficTotals { syn: 8, ..FULL },
            TrafficTotals { synack: 8, ..FULL },
            TrafficTotals { refused: 8, ..FULL },
            TrafficTotals { synack_late: 8, ..FULL },
            TrafficTotals { unreachable: 8, ..FULL },
            TrafficTotals { request: 8, ..FULL },
            TrafficTotals { response_late: 8, ..FULL },
            TrafficTotals { http_good: 8, ..FULL },
            TrafficTotals { http_5xx: 8, ..FULL },
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

    /// Silence is nobody's packet: those who wait are behind it, while nobody is answered at all.
    #[test]
    fn who_waits_is_behind_silence_and_nothing_else() {
        let mut meter = Meter::default();
        assert_eq!(meter.read(&FULL, BOTH), None);
        let waits = TrafficTotals { syn_waits: 0b110, request_waits: 0b1, ..FULL };
        assert_eq!(meter.read(&waits, BOTH), Some(Traffic::default()), "nothing is overdue");
        let overdue = TrafficTotals { syn_timeout: 12, no_response: 10, ..waits };
        let read = meter.read(&overdue, BOTH).expect("a reading");
        assert_eq!((read.connect_by, read.request_by), (Clients::NONE.with(0b110), Clients::NONE.with(1)));
        let mut connect_by = overdue.connect_by;
        connect_by.0[3] += 5;
        let refused = TrafficTotals { refused: 14, connect_by, ..overdue };
        let read = meter.read(&refused, BOTH).expect("a reading");
        assert_eq!((read.connect_by.0[3], read.connect_by.spread(), read.request_by), (5, 1, Clients::NONE));
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
    fn only_a_status_that_was_read_proves_application() {
        let good = |traffic: Traffic, on_5xx| {
            let all = traffic.evidence(Timestamp(1), on_5xx);
            let of = |layer| {
                let of = all.iter().filter(|one| one.polarity == Polarity::Good && one.source == Source::Request);
                of.filter(|one| one.layer == layer).map(|one| one.count).sum::<u64>()
            };
            (of(Layer::Transport), of(Layer::Application))
        };
        let unread = Traffic { synack: 3, response: 3, ..Traffic::default() };
        assert_eq!(good(unread, true), (3, 0));
        let read = Traffic { response: 9, http_good: 5, http_5xx: 3, ..Traffic::default() };
        assert_eq!(good(read, true), (1, 5), "one answer could not be read");
        assert_eq!(good(read, false), (4, 5), "an error that is no failure is an answer");
        // What came late is among the unanswered, and is no success beside it.
        let late = Traffic { response: 9, response_late: 9, http_good: 9, ..Traffic::default() };
        assert_eq!(good(late, true), (0, 0));
    }

    #[test]
    fn errors_and_unreachable_hosts_are_told_failures_at_their_layers() {
        let traffic = Traffic { unreachable: 2, response: 7, http_5xx: 7, ..Traffic::default() };
        let told = |on_5xx| {
            let all = traffic.evidence(Timestamp(1), on_5xx);
            let told = all.into_iter().filter(|one| one.polarity == Polarity::Told);
            told.map(|one| (one.layer, one.count)).collect::<std::vec::Vec<_>>()
        };
        assert_eq!(told(true), [(Layer::Network, 2), (Layer::Application, 7)]);
        assert_eq!(told(false), [(Layer::Network, 2), (Layer::Application, 0)]);
    }
}
