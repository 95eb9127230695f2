use super::*;
use crate::{
    engine::{KernelView, Streak, TripView},
    lifecycle::{Cause, Lifecycle, Then, Way},
    model::{Family, OriginId, OriginSpec, State},
    time::Span,
};
use alloc::{borrow::ToOwned, vec::Vec};

const NOW: Timestamp = Timestamp(1_000_000_000_000);
const OLD: Cause = Cause { layer: Layer::Transport, by: CauseBy::Checks };
const NEW: Cause = Cause { layer: Layer::Application, by: CauseBy::Traffic };

fn origin(phase: Phase) -> Origin {
    let spec = OriginSpec {
        id: OriginId(1),
        name: "a".to_owned(),
        key: 1,
        family: Family::V4,
        tier: 0,
        weight: 100,
        capacity_cps: None,
        capacity_conns: None,
    };
    let mut origin = Origin::new(spec, &[], &Policy::default(), NOW);
    origin.life = Lifecycle { phase, ..Lifecycle::new(NOW) };
    origin
}

fn phases() -> [Phase; 9] {
    [
        Phase::Unknown,
        Phase::Healthy,
        Phase::Degraded,
        Phase::HighRisk,
        Phase::Fault { cause: OLD },
        Phase::Recovering { cause: OLD, way: Way::Hold { until: NOW.after(Span::from_secs(30)) } },
        Phase::Recovering {
            cause: OLD,
            way: Way::Stage { stage: 0, percent: 10, until: NOW.after(Span::from_secs(30)) },
        },
        Phase::Maintenance { then: Then::Judge },
        Phase::Failed { then: Then::Judge },
    ]
}

fn verdicts() -> [Input; 7] {
    [
        Input::Silence,
        Input::Judged { serving: Serving::Healthy, rule: "passes" },
        Input::Judged { serving: Serving::Degraded, rule: "slow" },
        Input::Judged { serving: Serving::HighRisk, rule: "success_rate" },
        Input::Failing { cause: NEW, rule: "success_rate" },
        Input::Relapse { cause: NEW, rule: "failed_in_stage" },
        Input::Risen { rule: "rise_in_a_row" },
    ]
}

/// What each state becomes by each verdict under each guard: free, held by a path that fails, held by a node that fails.
/// Letters: unknown `u`, healthy `h`, degraded `d`, high_risk `r`, fault `F`, recovering `c`, maintenance `m`.
#[test]
fn every_state_with_every_verdict_under_every_guard() {
    // Verdicts from left to right: silence, healthy, degraded, high_risk, failing, relapse, risen.
    let table = [
        ("uhdrFuu", "uhdrrru"),
        ("hhdrFhh", "hhdrrrh"),
        ("dhdrFdd", "dhdrrrd"),
        ("rhdrFrr", "rhdrrrr"),
        ("FFFFFFc", "FFFFFFc"),
        ("ccccFFc", "ccccFFc"),
        ("ccccFFc", "ccccFFc"),
        ("mmmmmmm", "mmmmmmm"),
        ("FFFFFFF", "FFFFFFF"),
    ];
    let letter = |state| match state {
        State::Unknown => 'u',
        State::Healthy => 'h',
        State::Degraded => 'd',
        State::HighRisk => 'r',
        State::Fault => 'F',
        State::Recovering => 'c',
        State::Maintenance => 'm',
    };
    let guards = [None, Some(Location::Path), Some(Location::Node)];
    for (phase, (free, held)) in phases().into_iter().zip(table) {
        for guard in guards {
            let want = if guard.is_some() { held } else { free };
            for (verdict, want) in verdicts().into_iter().zip(want.chars()) {
                let mut origin = origin(phase);
                origin.outage = guard;
                let input = origin.held_back(verdict);
                origin.step(input, crate::origin::Place { open: true, alone: false }, NOW, &Policy::default());
                assert_eq!(letter(origin.life.phase.state()), want, "{phase:?} {verdict:?} {guard:?}");
            }
        }
    }
}

/// Only who serves is held, and who is held keeps its share.
#[test]
fn only_who_serves_is_held() {
    let held: Vec<bool> = phases()
        .into_iter()
        .map(|phase| {
            let mut origin = origin(phase);
            origin.outage = Some(Location::Path);
            origin.is_held()
        })
        .collect();
    assert_eq!(held, [true, true, true, true, false, false, false, false, false]);
}

/// A trip that is confirmed is no fault either while the path fails; the kernel goes on trying.
#[test]
fn a_trip_on_a_path_that_fails_is_not_confirmed() {
    let mut origin = origin(Phase::Healthy);
    let policy = Policy::default();
    let since = NOW.after(Span::from_secs(1));
    let trip = TripView { streak: Streak::Connect, since, trials_failed: 3, trials_passed: 0 };
    let view = KernelView { trip: Some(trip), blocked: false, leased: false };
    assert_eq!(origin.see_kernel(&view, since, &policy), None);
    origin.outage = Some(Location::Path);
    let place = crate::origin::Place { open: true, alone: false };
    let mut events = Vec::new();
    let around = || crate::origin::Around { place, worse: None };
    origin.judge(around(), since, &policy, &mut events);
    assert_eq!(origin.life.phase, Phase::HighRisk);
    origin.outage = None;
    origin.judge(around(), since, &policy, &mut events);
    assert_eq!(origin.life.phase.state(), State::Fault);
}
