//! Timeouts learned from what an origin usually takes.

use crate::{
    engine::{Quantile, TrafficTotals},
    evidence::{Timed, Traffic},
    loss::Loss,
    policy::{Learned, Policy, ReturnPath},
    time::Span,
    window::Tally,
};

/// Samples below which a timeout stays at its initial value (design.md §4).
const SAMPLES_MIN: u64 = 20;

/// A timeout is this many times the p99 (design.md §4).
const P99_FACTOR: u64 = 4;

/// Share of requests that an origin must answer before silence means anything. Unit: percent (design.md §4).
const ANSWERS_PERCENT_MIN: u64 = 90;

/// Requests after which older ones count half, so that an origin which changes its protocol is noticed.
const REQUESTS_MAX: u64 = 10_000;

/// What was learned of one origin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Learner {
    answered_syn: bool,
    /// Requests sent, and of these the answered ones.
    requests: u64,
    responses: u64,
    syn: Option<Span>,
    response: Option<Span>,
    connect: Option<Span>,
    loss: Loss,
}

impl Learner {
    /// Reads the newest counters. While `steady` is false (tripped, in fault), what was learned stays as it is.
    pub(crate) fn read(&mut self, totals: &TrafficTotals, traffic: Option<&Traffic>, steady: bool, policy: &Policy) {
        if policy.return_path == ReturnPath::None {
            (self.syn, self.response, self.connect) = (None, None, None);
            return;
        }
        self.loss.read(totals, steady);
        self.answered_syn |= totals.synack > 0 || policy.return_path == ReturnPath::Symmetric;
        // Without an answer ever seen, the return path may not lead past us: silence is no evidence (design.md §5).
        if self.answered_syn && (steady || self.syn.is_none()) {
            let syn = timeout(policy.syn_timeout, totals.rtt);
            self.syn = Some(syn);
            let known = policy.sockets.set && totals.rtt.samples >= SAMPLES_MIN;
            self.connect = known.then(|| syn.max(policy.sockets.min));
        }
        let Some(limits) = policy.response_timeout else {
            self.response = None;
            return;
        };
        if !steady {
            return;
        }
        let seen = match traffic {
            Some(traffic) => (traffic.request, traffic.response),
            None if self.requests == 0 => (totals.request, totals.response),
            None => (0, 0),
        };
        self.requests = self.requests.saturating_add(seen.0);
        self.responses = self.responses.saturating_add(seen.1);
        while self.requests > REQUESTS_MAX {
            self.requests >>= 1_u32;
            self.responses >>= 1_u32;
        }
        let answers = Tally { good: self.responses, bad: self.requests.saturating_sub(self.responses) };
        let usual = answers.total() >= SAMPLES_MIN
            && answers.good.saturating_mul(100) >= answers.total().saturating_mul(ANSWERS_PERCENT_MIN);
        self.response = usual.then(|| timeout(limits, totals.ttfb));
    }

    /// When an unanswered SYN is a failure.
    pub(crate) const fn syn_timeout(&self) -> Option<Span> {
        self.syn
    }

    /// When an unanswered request is.
    pub(crate) const fn response_timeout(&self) -> Option<Span> {
        self.response
    }

    /// How long a socket of this host need wait for the answer to its first SYN, once that is known.
    pub(crate) const fn connect_timeout(&self) -> Option<Span> {
        self.connect
    }

    /// So many lost SYNs are silence.
    pub(crate) fn silent_from(&self) -> u8 {
        self.loss.silent_from()
    }

    /// Which of them there are.
    pub(crate) const fn timed(&self) -> Timed {
        Timed { syn: self.syn.is_some(), response: self.response.is_some() }
    }
}

fn timeout(limits: Learned, measured: Quantile) -> Span {
    if limits.learn && measured.samples >= SAMPLES_MIN {
        measured.p99.times(P99_FACTOR).within(limits.min, limits.max)
    } else {
        limits.initial
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::SocketTimeout;

    fn totals(synack: u64, samples: u64, p99_ms: u64) -> TrafficTotals {
        let rtt = Quantile { samples, p99: Span::from_millis(p99_ms) };
        TrafficTotals { synack, rtt, ttfb: rtt, ..TrafficTotals::default() }
    }

    #[test]
    fn a_syn_timeout_needs_an_answer_and_twenty_samples() {
        let policy = Policy::default();
        for (synack, samples, p99, want) in [
            (0, 0, 0, None),
            (0, 50, 40, None),
            (1, 1, 40, Some(1000)),
            (19, 19, 40, Some(1000)),
            (20, 20, 40, Some(160)),
            (20, 20, 1, Some(100)),
            (20, 20, 2000, Some(3000)),
        ] {
            let mut learner = Learner::default();
            learner.read(&totals(synack, samples, p99), None, true, &policy);
            assert_eq!(learner.syn_timeout(), want.map(Span::from_millis), "{synack} {samples} {p99}");
        }
    }

    #[test]
    fn the_return_path_decides_what_silence_means() {
        let mut learner = Learner::default();
        let policy = |return_path| Policy { return_path, ..Policy::default() };
        learner.read(&totals(0, 0, 0), None, true, &policy(ReturnPath::Symmetric));
        assert_eq!(learner.syn_timeout(), Some(Span::from_secs(1)), "by the operator's word");
        let answered = TrafficTotals { request: 30, response: 30, ..totals(30, 30, 10) };
        learner.read(&answered, None, true, &policy(ReturnPath::Auto));
        assert!(learner.syn_timeout().is_some() && learner.response_timeout().is_some());
        assert!(learner.connect_timeout().is_some());
        learner.read(&answered, None, true, &policy(ReturnPath::None));
        let all = (learner.syn_timeout(), learner.response_timeout(), learner.connect_timeout());
        assert_eq!(all, (None, None, None), "its answers go elsewhere");
    }

    #[test]
    fn sockets_wait_no_less_than_the_policy_says_and_as_usual_below_twenty_samples() {
        let off = SocketTimeout { set: false, ..Policy::default().sockets };
        for (samples, p99, sockets, want) in [
            (19, 10, Policy::default().sockets, None),
            (20, 10, Policy::default().sockets, Some(200)),
            (20, 80, Policy::default().sockets, Some(320)),
            (20, 80, off, None),
        ] {
            let (mut learner, policy) = (Learner::default(), Policy { sockets, ..Policy::default() });
            learner.read(&totals(samples, samples, p99), None, true, &policy);
            assert_eq!(learner.connect_timeout(), want.map(Span::from_millis), "{samples} {p99}");
        }
    }

    #[test]
    fn learning_stops_while_it_is_not_steady() {
        let (mut learner, policy) = (Learner::default(), Policy::default());
        learner.read(&totals(20, 20, 40), None, true, &policy);
        learner.read(&totals(30, 30, 400), None, false, &policy);
        assert_eq!(learner.syn_timeout(), Some(Span::from_millis(160)));
        learner.read(&totals(30, 30, 400), None, true, &policy);
        assert_eq!(learner.syn_timeout(), Some(Span::from_millis(1600)));
    }

    #[test]
    fn a_response_timeout_needs_an_origin_that_usually_answers() {
        let policy = Policy::default();
        for (request, response, want) in
            [(19, 19, None), (20, 18, Some(200)), (20, 17, None), (1_000_000, 20, None), (40, 40, Some(200))]
        {
            let mut learner = Learner::default();
            let totals = TrafficTotals { request, response, ..totals(request, 20, 10) };
            learner.read(&totals, None, true, &policy);
            assert_eq!(learner.response_timeout(), want.map(Span::from_millis), "{response} of {request}");
            let off = Policy { response_timeout: None, ..Policy::default() };
            learner.read(&totals, None, true, &off);
            assert_eq!(learner.response_timeout(), None);
        }
    }
}
