//! Public failure cases (groups C and E) and traps of others' code, as far as the judgement is concerned.

use super::*;
use alloc::string::String;

/// P15 (b, d): a failure in a stage takes everything back; the next hold-down is longer, and the stages begin anew.
#[test]
fn p15_a_failing_round_in_a_stage_goes_back_to_nothing_each_time_longer() {
    let mut scene = coming_back(&[5, 25, 100], 20, Approval::Auto);
    let mut waits = Vec::new();
    for _ in 0..3 {
        until_stage(&mut scene, 25);
        scene.rounds(A, 0, "F");
        assert_eq!((scene.state(A), scene.slots(A)), (State::Fault, 0));
        scene.rounds(A, 0, "PP");
        let until = scene.view(A).hold_down_until().expect("it waits");
        waits.push(until.since(scene.now).as_millis() / 1000);
        until_stage(&mut scene, 5);
    }
    assert!(waits.windows(2).all(|pair| pair[1] > pair[0]), "{waits:?}");
}

/// P15 (e): one that a reload added serves at once, unproven, each time alike; docs say so.
#[test]
fn p15_a_new_origin_serves_at_once_and_always_alike() {
    for _ in 0..2 {
        let mut scene = port();
        let mut spec = shop(&[check("port", Layer::Transport)]);
        spec.origins.push(origin(OriginId(3), "c", 0));
        scene.engine.reconfigure(vec![spec], scene.now);
        scene.kernel.insert(OriginId(3), KernelView::default());
        scene.tick();
        assert_eq!(scene.state(OriginId(3)), State::Unknown);
        assert!(!scene.plan(OriginId(3)).blocked);
    }
}

/// P27 (b, c): the machine slept for ten minutes. Nothing happened in them: windows are empty, no state changes, no age is
/// negative, and the next rounds are judged as ever.
#[test]
fn p27_a_suspended_machine_changes_no_state() {
    let mut scene = port();
    scene.traffic(A, |totals| totals.synack = 1);
    scene.tick();
    // Fifteen failures of a window of 30 s: not yet enough to say something.
    scene.traffic(A, |totals| totals.refused = 15);
    scene.rounds(A, 0, "FF");
    let before = (scene.state(A), scene.state(B));
    scene.told();
    scene.now = scene.now.after(Span::from_secs(600));
    scene.tick();
    assert_eq!((scene.state(A), scene.state(B)), before);
    assert_eq!(scene.told(), Vec::<String>::new());
    scene.traffic(A, |totals| totals.refused = 25);
    scene.tick();
    assert_eq!(scene.state(A), before.0, "ten failures are not twenty-five: the old window is gone");
    assert!(scene.view(A).evidence_at <= scene.now && scene.view(A).since <= scene.now);
}

/// P27: a clock that seems to step back (it can't: it is monotonic) moves nothing either.
#[test]
fn p27_a_clock_that_steps_back_moves_nothing() {
    let mut scene = port();
    let before = scene.now;
    scene.now = Timestamp(before.0 - Span::from_secs(500).0);
    scene.tick();
    scene.rounds(A, 0, "PF");
    assert_eq!((scene.state(A), scene.state(B)), (State::Healthy, State::Healthy));
    scene.now = before.after(Span::from_secs(1));
    scene.rounds(A, 0, "P");
    assert_eq!(scene.told(), Vec::<String>::new());
}

/// Trap (HAProxy, F5): rounds that were late count as failed there. Here they say nothing, however many.
#[test]
fn trap_late_rounds_are_no_failures() {
    let mut scene = port();
    for _ in 0..100 {
        let late = |origin| CheckResult {
            origin,
            check: 0,
            began: scene.now,
            ended: scene.now.after(Span::from_secs(3)),
            outcome: Outcome::Local(LocalReason::Late),
        };
        let rounds = vec![late(A), late(B)];
        scene.tick_with(rounds, Vec::new());
    }
    assert_eq!((scene.state(A), scene.state(B)), (State::Healthy, State::Healthy));
    assert_eq!(scene.told(), Vec::<String>::new());
}

/// Trap (nginx, Traefik): how long is looked back and how long is waited are one number there.
#[test]
fn trap_window_and_hold_down_are_two_options() {
    for (window, hold) in [(10, 60), (120, 5)] {
        let mut spec = shop(&[check("port", Layer::Transport)]);
        spec.policy.window = Span::from_secs(window);
        spec.policy.hold_down.base = Span::from_secs(hold);
        let mut scene = Scene::new(spec);
        scene.rounds(B, 0, "PP");
        scene.rounds(A, 0, "PPFFFPP");
        let until = scene.view(A).hold_down_until().expect("it waits");
        assert_eq!(until.since(scene.now), Span::from_secs(hold), "window {window}");
    }
}

/// Trap (HAProxy #1176, Envoy #28303): who wins. Every order with every word of traffic and of the check.
#[test]
fn trap_the_lattice_of_operator_traffic_and_check() {
    use OrderKind::{Clear, Drain, Fail};
    // Rows: the order. Columns: traffic nothing/good/bad, each with the check silent/passing/failing.
    let table = [
        (None, ["unknown", "healthy", "fault", "healthy", "healthy", "degraded", "fault", "fault", "fault"]),
        (Some(Drain), ["maintenance"; 9]),
        (Some(Fail), ["fault"; 9]),
        // What was there before is forgotten; the state comes from what follows, and nothing does.
        (Some(Clear), ["unknown"; 9]),
    ];
    for (order, row) in table {
        for (place, want) in row.into_iter().enumerate() {
            let mut scene = Scene::new(shop(&[check("port", Layer::Transport)]));
            scene.traffic(A, |totals| totals.synack = 1);
            scene.tick();
            match place / 3 {
                0 => {}
                1 => scene.traffic(A, |totals| totals.synack = 60),
                _ => scene.traffic(A, |totals| totals.refused = 60),
            }
            scene.tick();
            for _ in 0..3 {
                // Traffic goes on beside the rounds.
                match place / 3 {
                    0 => {}
                    1 => scene.traffic(A, |totals| totals.synack += 20),
                    _ => scene.traffic(A, |totals| totals.refused += 20),
                }
                match place % 3 {
                    0 => scene.tick(),
                    1 => scene.rounds(A, 0, "P"),
                    _ => scene.rounds(A, 0, "F"),
                }
            }
            if let Some(order) = order {
                scene.order(A, order, None);
            }
            assert_eq!(scene.state(A).name(), want, "{order:?} traffic {} check {}", place / 3, place % 3);
        }
    }
}

/// Trap (Traefik): with active checks there, passive recovery is skipped. Here whatever took an origin out, and whatever
/// looks at it, it comes back once all is well.
#[test]
fn trap_every_fault_ends_with_every_set_of_checks() {
    let sets: [&[(&str, Layer)]; 3] =
        [&[], &[("port", Layer::Transport)], &[("port", Layer::Transport), ("page", Layer::Application)]];
    for set in sets {
        for streak in [Streak::Connect, Streak::Request] {
            let specs: Vec<CheckSpec> = set.iter().map(|(name, layer)| check(name, *layer)).collect();
            let mut scene = Scene::new(shop(&specs));
            scene.traffic(B, |totals| totals.synack = 1);
            scene.tick();
            scene.trip(A, streak);
            scene.wait(Span::from_secs(4));
            assert_eq!(scene.state(A), State::Fault, "{set:?} {streak:?}");
            for _ in 0..3 {
                for place in 0..set.len() {
                    scene.rounds(A, u16::try_from(place).expect("few"), "P");
                }
                if scene.plan(A).trials {
                    scene.trial(A, true);
                }
                scene.tick();
            }
            scene.wait(Span::from_secs(40));
            let serves = matches!(scene.state(A), State::Healthy | State::Unknown);
            assert!(serves, "{set:?} {streak:?}: {:?}", scene.view(A));
        }
    }
}
