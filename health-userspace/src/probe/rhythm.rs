//! How long until the next round: a pure function of what the judgement says of the origin and of the check's last rounds.
//!
//! ```text
//! state            last rounds         interval
//! serves           1..fall failures    interval_fast: is it so?
//! suspect          any                 interval_fast
//! out              1..rise passes      interval_fast: is it back?
//! out              else                interval_recover, growing to a tenth of the time out, up to interval_max
//! returning        any                 interval_recover
//! degraded         settled             twice the interval: no load that an ailing origin can be spared
//! ample traffic    settled             interval_max, if the traffic proves as much as the check
//! else                                 interval
//! ```

use crate::config::{CheckConfig, CheckKind};
use health_core::{
    Span,
    model::{Layer, Outcome, Pace},
};

/// An origin that is out is asked again after this part of the time that it has been out: so its return is seen after an
/// outage longer by a tenth at most, and a long outage costs few rounds.
const OUT_PART: u64 = 10;
/// A degraded origin gets rounds so many times rarer.
const GENTLE_TIMES: u64 = 2;

/// Failures or passes in a row; rounds that say nothing leave them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) failures: u32,
    pub(super) passes: u32,
}

impl Run {
    pub(super) const fn add(&mut self, outcome: Outcome) {
        *self = match outcome {
            Outcome::Pass | Outcome::Slow => Self { failures: 0, passes: self.passes.saturating_add(1) },
            Outcome::Fail(_) => Self { failures: self.failures.saturating_add(1), passes: 0 },
            Outcome::Local(_) => return,
        };
    }
}

/// What an origin that is checked wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) pace: Pace,
    /// How long it has been so.
    pub(super) lasted: Span,
    /// Its service's `fall` and `rise`.
    pub(super) fall: u32,
    pub(super) rise: u32,
}

/// Time from one round to the next.
pub(super) fn interval(check: &CheckConfig, want: Want, run: Run) -> Span {
    let plan = &check.plan;
    let fast = plan.fast.min(check.interval);
    match want.pace {
        Pace::Out if (1..want.rise).contains(&run.passes) => fast,
        Pace::Out => plan.recover.max(want.lasted.part(OUT_PART)).min(plan.max.max(plan.recover)),
        Pace::Returning => plan.recover,
        Pace::Suspect => fast,
        _ if (1..want.fall).contains(&run.failures) => fast,
        Pace::Gentle => check.interval.times(GENTLE_TIMES).min(plan.max.max(check.interval)),
        Pace::Ample(layer) if run.passes > 0 && is_proved_by_traffic(check, layer) => plan.max.max(check.interval),
        Pace::Ample(_) | Pace::Usual => check.interval,
    }
}

/// Whether good traffic at `layer` says all that a pass would. It says nothing about bodies and certificates.
fn is_proved_by_traffic(check: &CheckConfig, layer: Layer) -> bool {
    let plain = match &check.kind {
        CheckKind::Icmp(_) => true,
        CheckKind::Tcp(tcp) => tcp.expect.is_empty(),
        CheckKind::Http(http) => http.requests.iter().all(|request| {
            request.url.scheme() == "http" && request.expect.headers.is_empty() && !request.expect.asks_body()
        }),
        CheckKind::Tls(_)
        | CheckKind::Smtp(_)
        | CheckKind::Dns(_)
        | CheckKind::Grpc(_)
        | CheckKind::Script(_)
        | CheckKind::Pkcs11(_) => false,
    };
    plain && check.layer <= layer
}

#[cfg(test)]
mod tests {
    use super::*;
    use health_core::model::{LocalReason, Reason};

    fn check(lines: &str) -> CheckConfig {
        let text = format!(
            "[node]\ninterfaces = [\"lo\"]\n[[service]]\nname = \"s\"\norigin = [{{ name = \"a\", address = \
             \"127.0.0.1:1\" }}]\n[[service.check]]\n{lines}\n"
        );
        crate::config::parse(&text, "f").expect("valid").config.services[0].checks[0].clone()
    }

    #[test]
    fn the_table_of_intervals() {
        let tcp = check("type = \"tcp\"\ninterval_recover = \"8s\"");
        let page = check("type = \"http\"\nurl = \"http://a/h\"");
        let word = check("type = \"http\"\nurl = \"http://a/h\"\nexpect = { body = \"contains:ok\" }");
        let secure = check("type = \"http\"\nurl = \"https://a/h\"");
        let failed = |failures| Run { failures, passes: 0 };
        let passed = |passes| Run { failures: 0, passes };
        let (web, port) = (Pace::Ample(Layer::Application), Pace::Ample(Layer::Transport));
        let table = [
            ("nothing yet", &tcp, Pace::Usual, 0, Run::default(), 5),
            ("settled", &tcp, Pace::Usual, 0, passed(9), 5),
            ("a first failure", &tcp, Pace::Usual, 0, failed(1), 1),
            ("a second one, and it is degraded by now", &tcp, Pace::Gentle, 0, failed(2), 1),
            ("failing for long", &tcp, Pace::Usual, 0, failed(3), 5),
            ("suspect", &tcp, Pace::Suspect, 0, passed(9), 1),
            ("degraded", &tcp, Pace::Gentle, 0, passed(9), 10),
            ("just out", &tcp, Pace::Out, 0, failed(3), 8),
            ("out for 2 minutes", &tcp, Pace::Out, 120, failed(9), 12),
            ("out for a day", &tcp, Pace::Out, 86_400, failed(999), 30),
            ("out, and a first pass", &tcp, Pace::Out, 86_400, passed(1), 1),
            ("out, passes, but another check fails", &tcp, Pace::Out, 100, passed(2), 10),
            ("returning", &tcp, Pace::Returning, 0, passed(2), 8),
            ("connections prove a port", &tcp, port, 0, passed(9), 30),
            ("connections prove no page", &page, port, 0, passed(9), 5),
            ("statuses prove a page", &page, web, 0, passed(9), 30),
            ("no status proves a body", &word, web, 0, passed(9), 5),
            ("nor a certificate", &secure, web, 0, passed(9), 5),
            ("ample traffic, and the check fails", &page, web, 0, failed(4), 5),
        ];
        for (name, check, pace, lasted, run, expected) in table {
            let want = Want { pace, lasted: Span::from_secs(lasted), fall: 3, rise: 2 };
            assert_eq!(interval(check, want, run), Span::from_secs(expected), "{name}");
        }
    }

    #[test]
    fn rounds_that_say_nothing_leave_the_run() {
        let mut run = Run::default();
        for outcome in [Outcome::Pass, Outcome::Slow, Outcome::Local(LocalReason::Late)] {
            run.add(outcome);
        }
        assert_eq!(run, Run { failures: 0, passes: 2 });
        run.add(Outcome::Fail(Reason::Refused));
        run.add(Outcome::Local(LocalReason::Ports));
        assert_eq!(run, Run { failures: 1, passes: 0 });
    }
}
