use super::*;
use crate::{
    clients::Clients,
    evidence::{Evidence, Polarity, Source, Traffic},
    model::Hsm,
    time::Span,
    track::{Round, Shown, check_window},
};
use alloc::{borrow::ToOwned, string::ToString};

const START: Timestamp = Timestamp(1_000_000_000_000);

struct Bench {
    policy: Policy,
    specs: Vec<CheckSpec>,
    checks: Vec<CheckTrack>,
    connect: TrafficTrack,
    request: TrafficTrack,
    now: Timestamp,
    ttfb: Latency,
    last_seen: Timestamp,
    traffic_judges: bool,
    neighbour: Neighbour,
}

impl Bench {
    fn new(checks: &[(&str, Layer)]) -> Self {
        let policy = Policy::default();
        let spec = |(name, layer): &(&str, Layer)| CheckSpec {
            name: (*name).to_owned(),
            layer: *layer,
            interval: Span::from_millis(1),
            critical: true,
            verify: false,
            removed_fall: 0,
        };
        let specs: Vec<CheckSpec> = checks.iter().map(spec).collect();
        Self {
            checks: specs.iter().map(|spec| CheckTrack::new(spec, &policy)).collect(),
            connect: TrafficTrack::new(Layer::Transport, &policy),
            request: TrafficTrack::new(Layer::Application, &policy),
            specs,
            policy,
            now: START,
            ttfb: Latency::new(20),
            last_seen: Timestamp::NEVER,
            traffic_judges: true,
            neighbour: Neighbour::Fine,
        }
    }

    /// Failures are of as many clients as there can be.
    fn traffic(&mut self, traffic: Traffic) -> &mut Self {
        let (refused, silent) = (traffic.refused + traffic.unreachable, traffic.syn_timeout);
        let requests = traffic.reset_early + traffic.no_response + traffic.http_5xx;
        let (connect_by, request_by) = (Clients::evenly(refused + silent), Clients::evenly(requests));
        self.traffic_by(Traffic { connect_by, request_by, ..traffic })
    }

    fn traffic_by(&mut self, traffic: Traffic) -> &mut Self {
        self.connect.record_clients(self.now, &traffic.connect_by);
        self.request.record_clients(self.now, &traffic.request_by);
        for evidence in traffic.evidence(self.now, true) {
            match evidence.source {
                Source::Connect => self.connect.record(&evidence),
                Source::Request => self.request.record(&evidence),
                Source::Check(_) => panic!("not traffic"),
            }
        }
        self
    }

    /// One round of the check at `place`: `P`ass, `S`low, `F`ail, HSM `R`emoved, wrong signature (`I`).
    fn rounds(&mut self, place: usize, letters: &str) -> &mut Self {
        for letter in letters.chars() {
            self.now = self.now.after(Span::from_millis(10));
            let (polarity, reason) = match letter {
                'P' => (Polarity::Good, None),
                'S' => (Polarity::Slow, None),
                'F' => (Polarity::Answered, Some(Reason::Refused)),
                'R' => (Polarity::Answered, Some(Reason::Hsm(Hsm::Removed))),
                'I' => (Polarity::Answered, Some(Reason::Hsm(Hsm::Integrity))),
                other => panic!("{other}"),
            };
            let layer = self.specs[place].layer;
            let source = Source::Check(u16::try_from(place).expect("few"));
            let evidence = Evidence { layer, polarity, count: 1, at: self.now, source };
            let round = Round { began: self.now, reason, took: Span::ZERO, limit: None, steady: true };
            self.checks[place].record(&evidence, &round, Shown::so_far(&self.connect, &self.request));
        }
        self
    }

    fn verdict(&mut self) -> Verdict {
        let mut facts = Facts {
            connect: &mut self.connect,
            request: &mut self.request,
            ttfb: &self.ttfb,
            timeout: None,
            checks: &self.checks,
            specs: &self.specs,
            traffic_judges: self.traffic_judges,
            last_seen: self.last_seen,
            neighbour: self.neighbour,
        };
        judge(&mut facts, &self.policy)
    }

    fn told(&mut self) -> (Grade, &'static str, Option<Location>, String) {
        let verdict = self.verdict();
        match verdict.findings.into_iter().next() {
            Some(first) => (verdict.grade, first.rule, Some(first.location), first.text),
            None => (verdict.grade, "", None, String::new()),
        }
    }
}

fn connects(synack: u64, refused: u64) -> Traffic {
    Traffic { synack, refused, ..Traffic::default() }
}

#[test]
fn without_evidence_nothing_is_known() {
    assert_eq!(Bench::new(&[("port", Layer::Transport)]).told().0, Grade::Unknown);
}

/// An origin that never answered is never shown healthy.
#[test]
fn failures_below_the_floor_are_no_proof_of_health() {
    assert_eq!(Bench::new(&[]).traffic(connects(0, 19)).told().0, Grade::Unknown);
    assert_eq!(Bench::new(&[("port", Layer::Transport)]).rounds(0, "FF").told().0, Grade::Unknown);
    assert_eq!(Bench::new(&[("port", Layer::Transport)]).rounds(0, "FFF").told().0, Grade::Fault);
}

/// One client is refused 1,000 times, or has its own broken requests, while others succeed.
#[test]
fn fewer_clients_than_it_takes_speak_for_nobody() {
    let by = |shares: &[u32]| {
        let mut clients = Clients::NONE;
        clients.0[..shares.len()].copy_from_slice(shares);
        clients
    };
    for (name, good, shares, grade) in [
        ("one client among others", 2000, &[1000][..], Grade::Healthy),
        ("two clients", 2000, &[500, 500], Grade::Healthy),
        ("one client, and strays of others", 2000, &[1000, 1, 1], Grade::Healthy),
        ("three clients", 2000, &[400, 400, 400], Grade::Degraded),
        ("nobody knows whose", 2000, &[], Grade::Healthy),
        ("one client alone", 0, &[1000], Grade::Unknown),
        ("three clients alone", 0, &[800, 100, 100], Grade::Fault),
    ] {
        let bad = if shares.is_empty() { 1000 } else { shares.iter().copied().map(u64::from).sum() };
        let refused = Traffic { connect_by: by(shares), ..connects(good, bad) };
        let broken = Traffic { response: good + bad, http_5xx: bad, request_by: by(shares), ..Traffic::default() };
        for traffic in [refused, broken] {
            let mut bench = Bench::new(&[]);
            let verdict = bench.traffic_by(traffic).verdict();
            assert_eq!((verdict.grade, verdict.findings.is_empty()), (grade, grade <= Grade::Healthy), "{name}");
            assert!(grade != Grade::Healthy || verdict.score == 100 || shares.len() == 3, "{name}: {}", verdict.score);
            bench.policy.trip.spread_min = 1;
            assert!(bench.verdict().grade > Grade::Healthy, "{name}: where one client is enough");
        }
    }
}

#[test]
fn grades_by_success_rate() {
    for (good, bad, grade) in [
        (100, 0, Grade::Healthy),
        (80, 20, Grade::Healthy),
        (79, 21, Grade::Degraded),
        (50, 50, Grade::Degraded),
        (49, 51, Grade::HighRisk),
        (20, 80, Grade::HighRisk),
        (19, 81, Grade::Fault),
        (5, 14, Grade::Unknown),
    ] {
        let mut bench = Bench::new(&[]);
        let verdict = bench.traffic(connects(good, bad)).verdict();
        assert_eq!(verdict.grade, grade, "{good}/{bad}");
        assert!(verdict.score <= 100);
    }
}

/// The worst critical one rules: a passing TCP check never hides a failing check beside it.
#[test]
fn the_worst_check_rules() {
    let mut bench = Bench::new(&[("port", Layer::Transport), ("page", Layer::Application)]);
    bench.rounds(0, "PPPPPPPP").rounds(1, "FFF");
    let want = (Grade::Fault, "fall_in_a_row", Some(Location::OriginProcess), "page 0/3".to_string());
    assert_eq!(bench.told(), want);
}

/// Precedence, all pairs of traffic and check.
#[test]
fn traffic_and_checks_joined() {
    let cases = [
        // layer of the check, its rounds, connections, then what comes of it
        (Layer::Transport, "PPP", (0, 0), Grade::Healthy, ""),
        (Layer::Transport, "PPP", (0, 40), Grade::Fault, "success_rate"),
        (Layer::Transport, "PPP", (30, 70), Grade::HighRisk, "success_rate"),
        (Layer::Transport, "FFF", (0, 0), Grade::Fault, "fall_in_a_row"),
        (Layer::Transport, "FFF", (40, 0), Grade::Degraded, "contradicted"),
        (Layer::Transport, "FFF", (19, 0), Grade::Fault, "fall_in_a_row"),
        (Layer::Transport, "FFF", (50, 50), Grade::Fault, "fall_in_a_row"),
        (Layer::Transport, "FFF", (0, 40), Grade::Fault, "success_rate"),
        (Layer::Tls, "FFF", (40, 0), Grade::Fault, "fall_in_a_row"),
        (Layer::Application, "FFF", (400, 0), Grade::Fault, "fall_in_a_row"),
        (Layer::Application, "PPP", (0, 40), Grade::Fault, "success_rate"),
        (Layer::Network, "FFF", (40, 0), Grade::Degraded, "contradicted"),
    ];
    for (layer, rounds, (good, bad), grade, rule) in cases {
        let mut bench = Bench::new(&[("check", layer)]);
        bench.rounds(0, rounds).traffic(connects(good, bad));
        let got = bench.told();
        assert_eq!((got.0, got.1), (grade, rule), "{layer:?} {rounds} {good}/{bad}: {got:?}");
        assert_eq!(got.2 == Some(Location::Check), rule == "contradicted", "{got:?}");
    }
}

/// Regression: a window full of successes from before the origin died must not contradict the check that sees it dead.
#[test]
fn old_traffic_contradicts_nothing() {
    let mut bench = Bench::new(&[("port", Layer::Transport)]);
    bench.traffic(connects(10_000, 0)).rounds(0, "FFF");
    assert_eq!(bench.told().0, Grade::Fault, "silence since the check began to fail");
    bench.traffic(connects(0, 15));
    assert_eq!(bench.told().0, Grade::Fault, "failures since");
    bench.traffic(connects(100, 0));
    assert_eq!(bench.told().0, Grade::Degraded, "successes since");
}

#[test]
fn what_nobody_can_read_contradicts_no_application_check() {
    let mut bench = Bench::new(&[("page", Layer::Application)]);
    bench.rounds(0, "FFF").traffic(Traffic { synack: 500, response: 500, ..Traffic::default() });
    assert_eq!(bench.told().0, Grade::Fault);
}

#[test]
fn connections_and_requests_are_judged_apart() {
    let mut bench = Bench::new(&[]);
    bench.last_seen = START;
    bench.traffic(Traffic { synack: 1000, response: 0, no_response: 30, ..Traffic::default() });
    let want = (Grade::Fault, "success_rate", Some(Location::OriginProcess), "no response 30/30".to_string());
    assert_eq!(bench.told(), want);
}

#[test]
fn silence_of_everything_is_the_hosts_and_a_refusal_the_processs() {
    let mut bench = Bench::new(&[]);
    bench.traffic(Traffic { syn_timeout: 30, ..Traffic::default() });
    assert_eq!(bench.told().2, Some(Location::OriginHost));
    bench.last_seen = START;
    assert_eq!(bench.told().2, Some(Location::OriginProcess), "it sends, but no SYN-ACK");
    let mut refused = Bench::new(&[]);
    refused.traffic(connects(0, 412));
    assert_eq!(refused.told().2, Some(Location::OriginProcess));
    assert_eq!(refused.told().3, "refused 412/412");
}

#[test]
fn slow_degrades_and_no_more() {
    let mut bench = Bench::new(&[("page", Layer::Application)]);
    bench.rounds(0, "PPPPPPPPPPSS");
    assert_eq!(bench.told().0, Grade::Healthy, "10 of 12");
    bench.rounds(0, "S");
    assert_eq!((bench.told().0, bench.told().1), (Grade::Degraded, "slow"));
    bench.rounds(0, "SSSSSSSSSSSSS");
    assert_eq!(bench.told().0, Grade::Degraded);
}

/// Once its weight is cut, an origin has fewer samples; that must not acquit it.
#[test]
fn an_accused_origin_is_not_acquitted_by_the_lack_of_samples() {
    let mut bench = Bench::new(&[("port", Layer::Transport)]);
    bench.rounds(0, "PPPPP").traffic(connects(10, 30));
    assert_eq!(bench.told().0, Grade::HighRisk);
    bench.now = bench.now.after(Span::from_secs(20));
    bench.traffic(connects(1, 3));
    bench.now = bench.now.after(Span::from_secs(20));
    bench.connect.advance(bench.now);
    assert_eq!(bench.connect.tally().total(), 4);
    assert_eq!(bench.told().0, Grade::HighRisk, "4 samples, but they say the same");
    bench.traffic(connects(30, 0));
    assert_eq!(bench.told().0, Grade::Healthy);
}

#[test]
fn traffic_that_does_not_judge_neither_accuses_nor_contradicts() {
    let mut bench = Bench::new(&[("port", Layer::Transport)]);
    bench.traffic_judges = false;
    bench.rounds(0, "FFF").traffic(connects(100, 0));
    assert_eq!(bench.told().0, Grade::Fault);
    let mut bench = Bench::new(&[("port", Layer::Transport)]);
    bench.traffic_judges = false;
    bench.rounds(0, "PPP").traffic(connects(0, 100));
    assert_eq!(bench.told().0, Grade::Healthy);
}

#[test]
fn a_checks_window_holds_fall_failures_and_one_more() {
    let policy = Policy::default();
    assert_eq!(check_window(&policy, Span::from_secs(1)), Span::from_secs(30));
    assert_eq!(check_window(&policy, Span::from_secs(60)), Span::from_secs(240));
}

#[test]
fn findings_come_worst_first_with_their_reason() {
    let mut bench = Bench::new(&[("port", Layer::Transport), ("page", Layer::Application)]);
    bench.rounds(0, "PPPPPPPFF").rounds(1, "FFF");
    let verdict = bench.verdict();
    let told: Vec<String> = verdict.findings.iter().map(Finding::detail).collect();
    assert_eq!(told, ["page 0/3 (refused)", "port 7/9 (refused)"]);
    assert_eq!(verdict.score, 0);
}

#[test]
fn a_token_that_is_removed_twice_is_gone_whatever_fall_says() {
    let rule = |rounds: &str, removed_fall| {
        let mut bench = Bench::new(&[("token", Layer::Application)]);
        bench.policy.fall = 5;
        bench.specs[0].removed_fall = removed_fall;
        bench.checks[0] = CheckTrack::new(&bench.specs[0], &bench.policy);
        let (grade, rule, ..) = bench.rounds(0, rounds).told();
        (grade == Grade::Fault, rule)
    };
    assert_eq!(rule("PPPPPPRR", 2), (true, "removed_in_a_row"));
    assert!(!rule("PPPPPPRPR", 2).0, "not in a row");
    assert!(!rule("PPPPPPRFR", 2).0, "another failure between them");
    assert!(!rule("PPPPPPRR", 0).0, "fall decides");
    assert_eq!(rule("RRRRR", 2), (true, "fall_in_a_row"), "which says the same and is told first");
}

#[test]
fn traffic_does_not_contradict_a_wrong_signature() {
    let mut bench = Bench::new(&[("sign", Layer::Application)]);
    bench.rounds(0, "PPIII");
    for _ in 0..3 {
        bench.traffic(Traffic { http_good: 500, response: 500, ..Traffic::default() });
    }
    assert_eq!(bench.told().0, Grade::Fault);
}
