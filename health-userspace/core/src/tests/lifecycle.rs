use super::*;
use crate::model::State as S;

const NOW: Timestamp = Timestamp(1_000_000_000_000);
const SINCE: Timestamp = Timestamp(900_000_000_000);
const OLD: Cause = Cause { layer: Layer::Transport, by: CauseBy::Checks };
const NEW: Cause = Cause { layer: Layer::Application, by: CauseBy::Trip };
const SOON: Timestamp = Timestamp(1_000_000_000_001);

fn life(phase: Phase) -> Lifecycle {
    Lifecycle { phase, since: SINCE, faults: Faults { count: 1, quiet_since: SINCE } }
}

fn phases() -> [Phase; 11] {
    [
        Phase::Unknown,
        Phase::Healthy,
        Phase::Degraded,
        Phase::HighRisk,
        Phase::Fault { cause: OLD },
        Phase::Recovering { cause: OLD, until: SOON },
        Phase::Recovering { cause: OLD, until: NOW },
        Phase::Maintenance { then: Then::Judge },
        Phase::Maintenance { then: Then::Fault(OLD) },
        Phase::Failed { then: Then::Judge },
        Phase::Failed { then: Then::Fault(OLD) },
    ]
}

fn inputs() -> [Input; 11] {
    [
        Input::Silence,
        Input::Judged { serving: Serving::Healthy, rule: "j" },
        Input::Judged { serving: Serving::Degraded, rule: "j" },
        Input::Judged { serving: Serving::HighRisk, rule: "j" },
        Input::Failing { cause: NEW, rule: "f" },
        Input::Relapse { cause: NEW, rule: "r" },
        Input::Risen { rule: "u" },
        Input::Drain,
        Input::Fail,
        Input::End,
        Input::Clear,
    ]
}

/// Every phase with every input: one row a phase, one word an input, in the order of [`inputs`]. `-` stays as it is.
#[test]
fn every_transition() {
    // Recovering stands for itself without end here; its `until` is checked below.
    let table: [(usize, [&str; 11]); 11] = [
        // silence, healthy, degraded, high_risk, failing, relapse, risen, drain, fail, end, clear
        (0, ["-", "healthy", "degraded", "high_risk", "fault", "-", "-", "drained", "failed", "-", "-"]),
        (1, ["-", "-", "degraded", "high_risk", "fault", "-", "-", "drained", "failed", "-", "unknown"]),
        (2, ["-", "healthy", "-", "high_risk", "fault", "-", "-", "drained", "failed", "-", "unknown"]),
        (3, ["-", "healthy", "degraded", "-", "fault", "-", "-", "drained", "failed", "-", "unknown"]),
        (4, ["-", "-", "-", "-", "-", "-", "recovering", "drained+", "failed+", "-", "unknown"]),
        (5, ["-", "-", "-", "-", "fault", "fault", "-", "drained+", "failed+", "-", "unknown"]),
        (
            6,
            [
                "healthy",
                "healthy",
                "degraded",
                "high_risk",
                "fault",
                "fault",
                "healthy",
                "drained+",
                "failed+",
                "healthy",
                "unknown",
            ],
        ),
        (7, ["-", "-", "-", "-", "-", "-", "-", "-", "failed", "unknown", "unknown"]),
        (8, ["-", "-", "-", "-", "-", "-", "-", "-", "failed+", "old", "unknown"]),
        (9, ["-", "-", "-", "-", "-", "-", "-", "drained", "-", "unknown", "unknown"]),
        (10, ["-", "-", "-", "-", "-", "-", "-", "drained+", "-", "old", "unknown"]),
    ];
    let policy = Policy::default();
    for (row, words) in table {
        let before = life(phases()[row]);
        for (input, word) in inputs().into_iter().zip(words) {
            let want = match word {
                "-" => before.phase,
                "unknown" => Phase::Unknown,
                "healthy" => Phase::Healthy,
                "degraded" => Phase::Degraded,
                "high_risk" => Phase::HighRisk,
                "fault" => Phase::Fault { cause: NEW },
                "old" => Phase::Fault { cause: OLD },
                "recovering" => Phase::Recovering { cause: OLD, until: NOW.after(Span::from_secs(30)) },
                "drained" => Phase::Maintenance { then: Then::Judge },
                "drained+" => Phase::Maintenance { then: Then::Fault(OLD) },
                "failed" => Phase::Failed { then: Then::Judge },
                "failed+" => Phase::Failed { then: Then::Fault(OLD) },
                other => panic!("no such word: {other}"),
            };
            let (after, decision) = step(before, input, NOW, &policy);
            assert_eq!(after.phase, want, "{:?} with {input:?}", before.phase);
            let (from, to) = (before.phase.state(), want.state());
            assert_eq!(decision.map(|d| (d.from, d.to)), (from != to).then_some((from, to)), "{from:?} {input:?}");
            assert_eq!(after.since, if from == to { SINCE } else { NOW }, "{from:?} {input:?}");
        }
    }
}

#[test]
fn a_step_that_is_repeated_changes_nothing_more() {
    let policy = Policy::default();
    for phase in phases() {
        for input in inputs() {
            let (once, _) = step(life(phase), input, NOW, &policy);
            let (twice, decision) = step(once, input, NOW, &policy);
            // Out of a hold-down that is over, or an order, the next judgement may go on at once.
            if !matches!(input, Input::End) && !matches!(phase, Phase::Recovering { .. }) {
                assert_eq!((twice, decision), (once, None), "{phase:?} {input:?}");
            }
        }
    }
}

#[test]
fn hold_down_grows_with_faults_and_shrinks_with_quiet() {
    let policy = Policy::default();
    let mut life = Lifecycle::new(NOW);
    let mut now = NOW;
    for want in [30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 300] {
        (life, _) = step(life, Input::Failing { cause: OLD, rule: "f" }, now, &policy);
        (life, _) = step(life, Input::Risen { rule: "u" }, now.after(Span::from_secs(1)), &policy);
        let Phase::Recovering { until, .. } = life.phase else { panic!("{life:?}") };
        assert_eq!(until.since(now.after(Span::from_secs(1))), Span::from_secs(want));
        now = until;
        (life, _) = step(life, Input::Judged { serving: Serving::Healthy, rule: "j" }, now, &policy);
        assert_eq!(life.phase.state(), S::Healthy);
    }
    let recent = |quiet: u64| life.faults.recent(now.after(Span::from_secs(quiet)), policy.hold_down);
    assert!(recent(0) > recent(600) && recent(600) > recent(1200), "one fewer each 300 s");
    assert_eq!(recent(40 * 300), 0);
}

#[test]
fn a_long_fault_is_not_quiet_time() {
    let policy = Policy::default();
    let mut life = Lifecycle::new(NOW);
    for _ in 0..3 {
        (life, _) = step(life, Input::Failing { cause: OLD, rule: "f" }, NOW, &policy);
        (life, _) = step(life, Input::Risen { rule: "u" }, NOW, &policy);
    }
    (life, _) = step(life, Input::Failing { cause: OLD, rule: "f" }, NOW, &policy);
    let day = NOW.after(Span::from_secs(86_400));
    (life, _) = step(life, Input::Risen { rule: "u" }, day, &policy);
    assert_eq!(life.phase, Phase::Recovering { cause: OLD, until: day.after(Span::from_secs(120)) });
}
