//! What decisions rest on, and the rules of judgement beyond the lifecycle.

use super::*;
use alloc::string::String;

/// The last change of state, as `explain` tells it: rule, evidence for, against, limits, what would have prevented it.
fn told_of(scene: &Scene, id: OriginId) -> String {
    let last = scene.engine.explain(id).expect("it is there").last.expect("it changed");
    let facts = |facts: &[Fact]| facts.iter().map(|fact| format!("{}: {}", fact.of, fact.text)).collect::<Vec<_>>();
    let limits: Vec<String> = last.why.limits.iter().map(|limit| format!("{} {}", limit.key, limit.amount)).collect();
    format!(
        "{}\nfor {:?}\nagainst {:?}\nignored {:?}\nlimits {limits:?}\notherwise {:?}\n",
        last.rule,
        facts(&last.why.because),
        facts(&last.why.against),
        facts(&last.why.ignored),
        last.why.otherwise,
    )
}

#[test]
fn a_run_of_failures_is_explained() {
    let mut scene = port();
    scene.traffic(A, |totals| totals.synack = 1);
    scene.tick();
    scene.rounds(A, 0, "FFF");
    expect_test::expect![[r#"
        fall_in_a_row
        for ["check port: port 0/3 (refused)"]
        against []
        ignored []
        limits ["fall 3"]
        otherwise ["not in fault if one of the last 3 rounds of port had passed"]
    "#]]
    .assert_eq(&told_of(&scene, A));
}

#[test]
fn a_rate_is_explained_by_what_would_have_been_better() {
    let mut scene = Scene::new(shop(&[]));
    scene.traffic(A, |totals| totals.synack = 1);
    scene.tick();
    scene.traffic(A, |totals| (totals.synack, totals.refused) = (11, 30));
    scene.tick();
    expect_test::expect![[r#"
        success_rate
        for ["traffic/transport: refused 30/40"]
        against ["traffic/transport: accepted 10/40"]
        ignored []
        limits ["success_below_percent.degraded 80%", "success_below_percent.high_risk 50%", "success_below_percent.fault 20%", "samples_min.passive 20", "samples_min.active 3", "window 30s", "trip.spread_min 3"]
        otherwise ["degraded if 10 more of 40 (connections) had succeeded: at least 50 %"]
    "#]].assert_eq(&told_of(&scene, A));
}

#[test]
fn one_clients_failures_are_told_as_ignored() {
    let mut scene = Scene::new(shop(&[]));
    scene.traffic(A, |totals| totals.synack = 1);
    scene.tick();
    scene.traffic_by(A, |totals| {
        (totals.synack, totals.refused) = (30, 100);
        totals.connect_by.0[3] = 100;
    });
    scene.tick();
    let now = scene.engine.explain(A).expect("it is there").now;
    let ignored: Vec<String> = now.ignored.iter().map(|fact| format!("{}: {}", fact.of, fact.text)).collect();
    assert_eq!(ignored, ["traffic/transport: 100 of 100 failures: too few clients are behind them (1)"]);
    assert_eq!(scene.state(A), State::Healthy);
}

#[test]
fn a_confirmed_trip_is_explained_though_its_windows_began_anew() {
    let mut scene = port();
    scene.traffic(A, |totals| totals.synack = 1);
    scene.tick();
    scene.traffic(A, |totals| totals.refused = 5);
    scene.tick();
    scene.trip(A, Streak::Connect);
    scene.wait(Span::from_secs(4));
    expect_test::expect![[r#"
        tripped_3s
        for ["kernel: refused 5/5"]
        against ["check port: 10 passed in a row"]
        ignored []
        limits ["trip.after 5", "trip.within 10s", "trip.spread_min 3"]
        otherwise ["the trip would not be confirmed after one success within three seconds"]
    "#]]
    .assert_eq(&told_of(&scene, A));
}

/// First bytes after so many ms, twenty of them each second.
fn first_bytes(scene: &mut Scene, id: OriginId, seconds: u64, millis: u64) {
    for _ in 0..seconds {
        let mut times = Times::default();
        (0..20).for_each(|_| times.add_time(Span::from_millis(millis)));
        scene.times.push((id, times));
        scene.wait(Span::from_secs(1));
    }
}

#[test]
fn an_origin_that_answers_late_is_degraded_and_sheds_flows_and_is_explained() {
    let mut scene = port();
    first_bytes(&mut scene, A, 120, 20);
    assert_eq!(scene.told(), Vec::<String>::new());
    first_bytes(&mut scene, A, 40, 200);
    assert_eq!(scene.told(), ["1 healthy>degraded slow_learned"]);
    // Nothing goes by choice to a standby that nobody has seen serve for minutes.
    assert_eq!(scene.slots(A), SLOTS);
    scene.rounds(B, 0, "P");
    assert!((1..SLOTS).contains(&scene.slots(A)), "its weight is cut, and it is not removed");
    let why = scene.engine.explain(A).expect("it is there").last.expect("it changed").why;
    assert!(why.because[0].text.starts_with("ttfb p95 "), "{why:?}");
    let learned = why.limits.iter().find(|limit| limit.from == LimitFrom::Learned).expect("what is usual");
    assert!(matches!(learned.amount, Amount::Time(usual) if usual < Span::from_millis(25)), "{learned:?}");
    assert!((50..80).contains(&scene.view(A).score), "in the band of `degraded`: {}", scene.view(A).score);
    // Ten minutes of it change nothing about what is usual.
    first_bytes(&mut scene, A, 600, 200);
    assert_eq!(scene.told(), Vec::<String>::new());
    first_bytes(&mut scene, A, 40, 20);
    assert_eq!(scene.told(), ["1 degraded>healthy passes"]);
}

#[test]
fn very_late_is_high_risk_and_moves_most_flows() {
    let mut scene = port();
    first_bytes(&mut scene, A, 120, 20);
    first_bytes(&mut scene, A, 40, 2000);
    assert_eq!(scene.told(), ["1 healthy>high_risk slow_learned"]);
    scene.rounds(B, 0, "P");
    assert!(scene.slots(B) > SLOTS / 2, "{}", scene.slots(B));
}

#[test]
fn what_is_usual_outlives_the_daemon_and_clear_forgets_it() {
    let mut scene = port();
    first_bytes(&mut scene, A, 120, 20);
    let memories = scene.engine.remember();
    let memory = memories.iter().find(|memory| memory.origin == A).expect("something is known");
    assert_eq!(memory.usual.len(), 1, "{memory:?}");
    let mut next = Scene::new(shop(&[check("port", Layer::Transport)]));
    next.engine.recall(memories, next.now);
    next.rounds(A, 0, "P");
    first_bytes(&mut next, A, 40, 200);
    assert_eq!(next.state(A), State::Degraded, "late from the first minute on");
    next.order(A, OrderKind::Clear, None);
    first_bytes(&mut next, A, 40, 200);
    assert_eq!(next.state(A), State::Unknown, "nothing is usual any more, nor seen");
}

#[test]
fn with_both_a_fault_takes_a_run_and_a_rate() {
    let by = |rule, letters: &str| {
        let mut spec = shop(&[check("port", Layer::Transport)]);
        spec.policy.fault_rule = rule;
        spec.policy.success_below_percent.fault = 40;
        let mut scene = Scene::new(spec);
        scene.rounds(A, 0, letters);
        (scene.state(A), scene.told().last().cloned().unwrap_or_default())
    };
    let (either, both) = (crate::policy::FaultRule::Either, crate::policy::FaultRule::Both);
    assert_eq!(by(both, "PPPPPPPPPPFFF").0, State::Degraded, "ten of thirteen passed");
    assert_eq!(by(either, "PPPPPPPPPPFFF").0, State::Fault);
    assert_eq!(by(both, "PFFPFFPFF").0, State::HighRisk, "a third passed, and no run");
    assert_eq!(by(either, "PFFPFFPFF").0, State::Fault);
    assert_eq!(by(both, "PFFPFFPFFF"), (State::Fault, "failover 0>1 judge".to_owned()));
    let mut spec = shop(&[]);
    spec.policy.fault_rule = crate::policy::FaultRule::Both;
    let mut scene = Scene::new(spec);
    scene.traffic(A, |totals| totals.synack = 1);
    scene.tick();
    // The reading has successes and failures: which came last nobody knows, so the failures did.
    scene.traffic(A, |totals| (totals.synack, totals.refused) = (3, 60));
    scene.tick();
    assert_eq!(scene.told()[0], "1 unknown>fault fall_and_rate");
}

fn attack(scene: &mut Scene, on: bool) {
    let word = Mitigated { service: ServiceId(1), by: "file".to_owned(), reason: String::new() };
    scene.mitigated = if on { vec![word] } else { Vec::new() };
    scene.tick();
}

#[test]
fn under_attack_more_evidence_is_asked_for_and_said() {
    let mut scene = port();
    attack(&mut scene, true);
    assert_eq!(scene.told(), ["mitigation true file"]);
    assert_eq!((scene.plan(A).trip_after, scene.plan(A).trip_spread_min), (10, 6), "the kernel's guards, too");
    scene.rounds(A, 0, "FFFFF");
    assert_eq!(scene.state(A), State::Degraded, "a third of the rounds failed, and five in a row are not six");
    scene.told();
    scene.rounds(A, 0, "F");
    assert_eq!(scene.told()[0], "1 degraded>fault fall_in_a_row");
    let why = scene.engine.explain(A).expect("it is there").last.expect("it changed").why;
    let limit = why.limits.iter().find(|limit| limit.key == "fall").expect("what it was held to");
    assert_eq!((limit.amount, limit.from), (Amount::Count(6), LimitFrom::Mitigation));
    attack(&mut scene, false);
    assert_eq!(scene.told(), ["mitigation false judge"]);
    assert_eq!((scene.plan(A).trip_after, scene.plan(A).trip_spread_min), (5, 3));
}

#[test]
fn under_attack_resets_of_few_clients_say_nothing() {
    let resets = |clients: usize, attacked: bool| {
        let mut scene = Scene::new(shop(&[]));
        scene.traffic(A, |totals| (totals.synack, totals.request, totals.response) = (1, 1, 1));
        attack(&mut scene, attacked);
        scene.traffic_by(A, |totals| {
            (totals.synack, totals.request, totals.response, totals.reset_early) = (200, 200, 20, 180);
            totals.request_by.0.iter_mut().take(clients).for_each(|share| *share = 20);
        });
        scene.tick();
        scene.state(A)
    };
    assert_eq!(resets(10, false), State::Fault);
    assert_eq!(resets(10, true), State::Healthy, "ten of twenty places");
    assert_eq!(resets(20, true), State::Fault, "whoever asks is reset");
}

#[test]
fn a_reload_keeps_the_attack_and_raises_the_new_thresholds() {
    let mut scene = port();
    attack(&mut scene, true);
    let mut spec = shop(&[check("port", Layer::Transport)]);
    spec.policy.trip.after = 7;
    scene.engine.reconfigure(vec![spec], scene.now);
    scene.told();
    scene.tick();
    assert_eq!(scene.told(), Vec::<String>::new());
    assert_eq!(scene.plan(A).trip_after, 14);
}
