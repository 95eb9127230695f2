use super::*;
use crate::engine::Waits;
use crate::model::State as S;
use crate::policy::{Approval, Failback};
use alloc::vec::Vec;

const NOW: Timestamp = Timestamp(1_000_000_000_000);
const SINCE: Timestamp = Timestamp(900_000_000_000);
const OLD: Cause = Cause { layer: Layer::Transport, by: CauseBy::Checks };
const NEW: Cause = Cause { layer: Layer::Application, by: CauseBy::Trip };
const SOON: Timestamp = Timestamp(1_000_000_000_001);

fn life(phase: Phase) -> Lifecycle {
    Lifecycle { phase, since: SINCE, faults: Faults { count: 1, quiet_since: SINCE } }
}

fn at_once() -> Policy {
    Policy { failback: Failback::at_once(), ..Policy::default() }
}

fn phases() -> [Phase; 11] {
    [
        Phase::Unknown,
        Phase::Healthy,
        Phase::Degraded,
        Phase::HighRisk,
        Phase::Fault { cause: OLD },
        Phase::Recovering { cause: OLD, way: Way::Hold { until: SOON } },
        Phase::Recovering { cause: OLD, way: Way::Hold { until: NOW } },
        Phase::Maintenance { then: Then::Judge },
        Phase::Maintenance { then: Then::Fault(OLD) },
        Phase::Failed { then: Then::Judge },
        Phase::Failed { then: Then::Fault(OLD) },
    ]
}

fn inputs() -> [Input; 12] {
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
        Input::Abort,
    ]
}

/// Every phase with every input: one row a phase, one word an input, in the order of [`inputs`]. `-` stays as it is.
#[test]
fn every_transition() {
    // Recovering stands for itself without end here; its `until` is checked below.
    let table: [(usize, [&str; 12]); 11] = [
        // silence, healthy, degraded, high_risk, failing, relapse, risen, drain, fail, end, clear, abort
        (0, ["-", "healthy", "degraded", "high_risk", "fault", "-", "-", "drained", "failed", "-", "-", "-"]),
        (1, ["-", "-", "degraded", "high_risk", "fault", "-", "-", "drained", "failed", "-", "unknown", "-"]),
        (2, ["-", "healthy", "-", "high_risk", "fault", "-", "-", "drained", "failed", "-", "unknown", "-"]),
        (3, ["-", "healthy", "degraded", "-", "fault", "-", "-", "drained", "failed", "-", "unknown", "-"]),
        (4, ["-", "-", "-", "-", "-", "-", "recovering", "drained+", "failed+", "-", "unknown", "-"]),
        (5, ["-", "-", "-", "-", "fault", "fault", "-", "drained+", "failed+", "-", "unknown", "old"]),
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
                "old",
            ],
        ),
        (7, ["-", "-", "-", "-", "-", "-", "-", "-", "failed", "unknown", "unknown", "-"]),
        (8, ["-", "-", "-", "-", "-", "-", "-", "-", "failed+", "old", "unknown", "-"]),
        (9, ["-", "-", "-", "-", "-", "-", "-", "drained", "-", "unknown", "unknown", "-"]),
        (10, ["-", "-", "-", "-", "-", "-", "-", "drained+", "-", "old", "unknown", "-"]),
    ];
    let policy = at_once();
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
                "recovering" => {
                    Phase::Recovering { cause: OLD, way: Way::Hold { until: NOW.after(Span::from_secs(30)) } }
                }
                "drained" => Phase::Maintenance { then: Then::Judge },
                "drained+" => Phase::Maintenance { then: Then::Fault(OLD) },
                "failed" => Phase::Failed { then: Then::Judge },
                "failed+" => Phase::Failed { then: Then::Fault(OLD) },
                other => panic!("no such word: {other}"),
            };
            let (after, decision) = step(before, input, Gate::OPEN, NOW, &policy);
            assert_eq!(after.phase, want, "{:?} with {input:?}", before.phase);
            let (from, to) = (before.phase.state(), want.state());
            assert_eq!(decision.map(|d| (d.from, d.to)), (from != to).then_some((from, to)), "{from:?} {input:?}");
            assert_eq!(after.since, if from == to { SINCE } else { NOW }, "{from:?} {input:?}");
        }
    }
}

#[test]
fn a_step_that_is_repeated_changes_nothing_more() {
    let policy = at_once();
    for phase in phases() {
        for input in inputs() {
            let (once, _) = step(life(phase), input, Gate::OPEN, NOW, &policy);
            let (twice, decision) = step(once, input, Gate::OPEN, NOW, &policy);
            // Out of a hold-down that is over, or an order, the next judgement may go on at once.
            if !matches!(input, Input::End) && !matches!(phase, Phase::Recovering { .. }) {
                assert_eq!((twice, decision), (once, None), "{phase:?} {input:?}");
            }
        }
    }
}

#[test]
fn hold_down_grows_with_faults_and_shrinks_with_quiet() {
    let policy = at_once();
    let mut life = Lifecycle::new(NOW);
    let mut now = NOW;
    for want in [30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 300] {
        (life, _) = step(life, Input::Failing { cause: OLD, rule: "f" }, Gate::OPEN, now, &policy);
        (life, _) = step(life, Input::Risen { rule: "u" }, Gate::OPEN, now.after(Span::from_secs(1)), &policy);
        let Phase::Recovering { way: Way::Hold { until }, .. } = life.phase else { panic!("{life:?}") };
        assert_eq!(until.since(now.after(Span::from_secs(1))), Span::from_secs(want));
        now = until;
        (life, _) = step(life, Input::Judged { serving: Serving::Healthy, rule: "j" }, Gate::OPEN, now, &policy);
        assert_eq!(life.phase.state(), S::Healthy);
    }
    let recent = |quiet: u64| life.faults.recent(now.after(Span::from_secs(quiet)), policy.hold_down);
    assert!(recent(0) > recent(600) && recent(600) > recent(1200), "one fewer each 300 s");
    assert_eq!(recent(40 * 300), 0);
}

#[test]
fn a_long_fault_is_not_quiet_time() {
    let policy = at_once();
    let mut life = Lifecycle::new(NOW);
    for _ in 0..3 {
        (life, _) = step(life, Input::Failing { cause: OLD, rule: "f" }, Gate::OPEN, NOW, &policy);
        (life, _) = step(life, Input::Risen { rule: "u" }, Gate::OPEN, NOW, &policy);
    }
    (life, _) = step(life, Input::Failing { cause: OLD, rule: "f" }, Gate::OPEN, NOW, &policy);
    let day = NOW.after(Span::from_secs(86_400));
    (life, _) = step(life, Input::Risen { rule: "u" }, Gate::OPEN, day, &policy);
    let way = Way::Hold { until: day.after(Span::from_secs(120)) };
    assert_eq!(life.phase, Phase::Recovering { cause: OLD, way });
}

fn staged(approval: Approval) -> Policy {
    let stages = [10, 50, 100].to_vec();
    let failback = Failback {
        observe_for: Span::from_secs(60),
        stages,
        stage_for: Span::from_secs(20),
        approval,
        ..Failback::default()
    };
    Policy { failback, ..Policy::default() }
}

const CLEAN: Input = Input::Judged { serving: Serving::Healthy, rule: "j" };

/// A life that has risen, and the end of its hold-down.
fn risen(policy: &Policy) -> (Lifecycle, Timestamp) {
    let (life, _) = step(life(Phase::Fault { cause: OLD }), Input::Risen { rule: "u" }, Gate::OPEN, NOW, policy);
    let Phase::Recovering { way: Way::Hold { until }, .. } = life.phase else { panic!("{life:?}") };
    (life, until)
}

#[test]
fn the_way_back_has_a_clean_time_and_stages() {
    let policy = staged(Approval::Auto);
    let (mut life, held) = risen(&policy);
    let mut parts = Vec::new();
    for second in 0..200 {
        let now = held.after(Span::from_secs(second));
        (life, _) = step(life, CLEAN, Gate::OPEN, now, &policy);
        let part = if life.phase == Phase::Healthy { u8::MAX } else { life.phase.part() };
        if parts.last().is_none_or(|(last, _)| *last != part) {
            parts.push((part, second));
        }
    }
    assert_eq!(parts, [(0, 0), (10, 60), (50, 80), (100, 100), (u8::MAX, 120)]);
}

#[test]
fn a_failure_in_a_stage_takes_everything_back_and_waits_longer() {
    let policy = staged(Approval::Auto);
    let (mut life, held) = risen(&policy);
    for second in [0, 60, 80] {
        (life, _) = step(life, CLEAN, Gate::OPEN, held.after(Span::from_secs(second)), &policy);
    }
    assert_eq!(life.phase.part(), 50);
    let now = held.after(Span::from_secs(85));
    let (life, decision) = step(life, Input::Relapse { cause: NEW, rule: "r" }, Gate::OPEN, now, &policy);
    assert_eq!(decision.map(|decision| (decision.to, decision.rule)), Some((S::Fault, "r")));
    let (life, _) = step(life, Input::Risen { rule: "u" }, Gate::OPEN, now, &policy);
    let Phase::Recovering { way: Way::Hold { until }, .. } = life.phase else { panic!("{life:?}") };
    assert_eq!(until.since(now), Span::from_secs(60), "the second fault");
}

#[test]
fn a_stage_that_serves_badly_begins_again() {
    let policy = staged(Approval::Auto);
    let (mut life, held) = risen(&policy);
    for second in [0, 60] {
        (life, _) = step(life, CLEAN, Gate::OPEN, held.after(Span::from_secs(second)), &policy);
    }
    let bad = Input::Judged { serving: Serving::Degraded, rule: "j" };
    (life, _) = step(life, bad, Gate::OPEN, held.after(Span::from_secs(79)), &policy);
    (life, _) = step(life, CLEAN, Gate::OPEN, held.after(Span::from_secs(98)), &policy);
    assert_eq!(life.phase.part(), 10);
    (life, _) = step(life, CLEAN, Gate::OPEN, held.after(Span::from_secs(99)), &policy);
    assert_eq!(life.phase.part(), 50);
}

#[test]
fn approvals_and_the_window_hold_a_stage_and_take_nothing_away() {
    let (no, yes) = (Gate { bars: Some(Waits::Approval), ..Gate::OPEN }, Gate::OPEN);
    let closed = Gate { bars: Some(Waits::Window), ..Gate::OPEN };
    // Approvals asked for, gates met in turn from second 60 on, one each 20 s; the parts that follow.
    let table = [
        (Approval::FirstStage, [no, no, yes, no, no], [0, 0, 10, 50, 100]),
        (Approval::EachStage, [no, yes, no, yes, no], [0, 10, 10, 50, 50]),
        (Approval::Auto, [closed, no, closed, no, no], [0, 10, 10, 50, 100]),
        (Approval::FirstStage, [closed, yes, no, closed, no], [0, 10, 50, 50, 100]),
    ];
    for (approval, gates, want) in table {
        let policy = staged(approval);
        let (mut life, held) = risen(&policy);
        (life, _) = step(life, CLEAN, no, held, &policy);
        let parts = [60, 80, 100, 120, 140].into_iter().zip(gates).map(|(second, gate)| {
            (life, _) = step(life, CLEAN, gate, held.after(Span::from_secs(second)), &policy);
            life.phase.part()
        });
        assert_eq!(parts.collect::<Vec<_>>(), want, "{approval:?}");
    }
}
