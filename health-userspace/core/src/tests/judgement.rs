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
