use super::*;
use health_core::{
    engine::{Order, OrderKind},
    latency::Baseline,
    lifecycle::{Cause, CauseBy, Faults, Lifecycle, Phase, Then, Way},
    model::{Layer, Location, OriginId},
};

const A: OriginId = OriginId(3);

fn clock(seconds: u64) -> Clock {
    let wall = "2026-11-30T02:00:00Z".parse::<jiff::Timestamp>().expect("a time");
    let later = i64::try_from(seconds).expect("small");
    Clock {
        wall: jiff::Timestamp::from_second(wall.as_second() + later).expect("a time"),
        mono: Timestamp::NEVER.after(Span::from_secs(10_000 + seconds)),
    }
}

fn names() -> Names {
    vec![(A, "shop".to_owned(), "10.0.1.10:443".parse().expect("an address"))]
}

fn memory(phase: Phase, clock: Clock) -> Memory {
    let faults = Faults::remembered(2, clock.mono);
    Memory {
        origin: A,
        life: Lifecycle { phase, since: clock.mono, faults },
        order: None,
        word: None,
        why: vec!["port 0/3".to_owned()],
        location: Some(Location::OriginHost),
        usual: Vec::new(),
    }
}

/// What is read back `later` seconds after it was written.
fn through(memories: &[Memory], later: u64) -> Left {
    let dir = tempfile::tempdir().expect("a directory");
    let keeper = Keeper::new(dir.path());
    write(&keeper.path, &render(&save(memories, &names(), clock(0)), clock(0))).expect("written");
    keeper.read(&names(), clock(later))
}

const CAUSE: Cause = Cause { layer: Layer::Tls, by: CauseBy::Trip };

#[test]
fn every_state_comes_back_as_it_was() {
    let end = clock(0).mono.after(Span::from_secs(90));
    let since = clock(0).mono;
    let then = [Then::Judge, Then::Fault(CAUSE)];
    let ways = [
        Way::Hold { until: end },
        Way::Observe { until: end },
        Way::Asks { stage: 1, percent: 10, since },
        Way::Stage { stage: 1, percent: 50, until: end },
    ];
    let mut phases = vec![Phase::Unknown, Phase::Fault { cause: CAUSE }];
    phases.extend(then.map(|then| Phase::Maintenance { then }));
    phases.extend(then.map(|then| Phase::Failed { then }));
    phases.extend(ways.map(|way| Phase::Recovering { cause: CAUSE, way }));
    for phase in phases {
        let memory = memory(phase, clock(0));
        let left = through(std::slice::from_ref(&memory), 0);
        assert_eq!((left.memories, left.note), (vec![memory], None));
    }
}

#[test]
fn a_step_stands_still_while_nobody_watches_and_an_order_goes_on() {
    let way = Way::Stage { stage: 1, percent: 50, until: clock(0).mono.after(Span::from_secs(90)) };
    let order = |what, seconds| Order {
        origin: A,
        what,
        reason: "disk swap".to_owned(),
        by: "li.wei(uid 1007)".to_owned(),
        until: Some(clock(0).mono.after(Span::from_secs(seconds))),
    };
    let mut memory = memory(Phase::Recovering { cause: CAUSE, way }, clock(0));
    memory.word = Some(order(OrderKind::Approve, 700));
    memory.order = Some(order(OrderKind::Drain, 500));
    let back = through(&[memory], 600).memories.remove(0);
    let Phase::Recovering { way: Way::Stage { until, .. }, .. } = back.life.phase else { panic!("{back:?}") };
    assert_eq!(until.since(clock(600).mono), Span::from_secs(90));
    assert_eq!(back.order, None, "it ran out meanwhile");
    assert_eq!(back.word, Some(order(OrderKind::Approve, 700)));
}

#[test]
fn a_verdict_gets_stale_and_an_order_does_not() {
    let fault = memory(Phase::Fault { cause: CAUSE }, clock(0));
    let drained = memory(Phase::Maintenance { then: Then::Judge }, clock(0));
    let left = through(&[fault], 3601);
    assert!(left.memories.is_empty());
    assert!(left.note.expect("it is said").contains("judged anew"));
    assert_eq!(through(&[drained], 86_400).memories.len(), 1);
}

#[test]
fn what_cannot_be_read_is_set_aside_and_said() {
    for text in ["", "{\"version\":1", "{\"version\":2,\"saved_at\":\"2026-11-30T02:00:00Z\",\"origins\":[]}", "\u{0}"]
    {
        let dir = tempfile::tempdir().expect("a directory");
        let keeper = Keeper::new(dir.path());
        fs::write(&keeper.path, text).expect("written");
        let left = keeper.read(&names(), clock(0));
        assert!(left.memories.is_empty());
        let note = left.note.expect("it is said");
        assert!(note.contains("judgement.json.bad"), "{note}");
        assert_eq!(fs::read_to_string(dir.path().join("judgement.json.bad")).expect("is there"), text);
        assert!(keeper.read(&names(), clock(0)).note.is_none(), "and only once");
    }
}

#[test]
fn origins_that_are_gone_are_passed_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let keeper = Keeper::new(dir.path());
    let fault = memory(Phase::Fault { cause: CAUSE }, clock(0));
    write(&keeper.path, &render(&save(&[fault], &names(), clock(0)), clock(0))).expect("written");
    let other = vec![(A, "news".to_owned(), "10.0.1.10:443".parse().expect("an address"))];
    assert!(keeper.read(&other, clock(1)).memories.is_empty());
}

#[tokio::test]
async fn it_is_written_when_it_changes_and_a_failure_is_said_and_tried_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("state");
    let mut keeper = Keeper::new(&state);
    let fault = [memory(Phase::Fault { cause: CAUSE }, clock(0))];
    keeper.keep(&fault, &names(), clock(0)).expect("nothing was written before");
    settle(&mut keeper).await;
    // The directory is not there.
    keeper.keep(&fault, &names(), clock(0)).expect_err("the write failed");
    fs::create_dir(&state).expect("made");
    keeper.keep(&fault, &names(), clock(2)).expect("nothing new to say");
    settle(&mut keeper).await;
    keeper.keep(&fault, &names(), clock(3)).expect("written");
    assert!(keeper.writing.is_none(), "nothing changed");
    assert_eq!(keeper.read(&names(), clock(3)).memories.len(), 1);
    keeper.keep(&fault, &names(), clock(13)).expect("written");
    assert!(keeper.writing.is_some(), "its steps would get old");
    keeper.finish(&[], &names(), clock(14)).await.expect("written");
    assert!(keeper.read(&names(), clock(14)).memories.is_empty());
}

async fn settle(keeper: &mut Keeper) {
    while keeper.writing.as_ref().is_some_and(|writing| !writing.is_finished()) {
        tokio::task::yield_now().await;
    }
}

/// What is usual is remembered for a day, also of who serves, and longer than a verdict.
#[test]
fn what_is_usual_outlives_a_verdict_and_gets_old_after_a_day() {
    let usual = |check: Option<&str>, millis| {
        (check.map(str::to_owned), Baseline { p95: Span::from_millis(millis), samples: 700 })
    };
    let of = vec![usual(None, 61), usual(Some("web"), 120)];
    let serves = Memory { usual: of.clone(), ..memory(Phase::Healthy, clock(0)) };
    let fault = Memory { usual: of.clone(), ..memory(Phase::Fault { cause: CAUSE }, clock(0)) };
    for memory in [serves, fault] {
        for (hours, phase, want) in [(0, Some(memory.life.phase), 2), (2, Some(Phase::Unknown), 2), (25, None, 0)] {
            let left = through(std::slice::from_ref(&memory), hours * 3600).memories;
            assert_eq!(left.first().map_or(0, |back| back.usual.len()), want, "{hours} h");
            let Some(phase) = phase else { continue };
            let phase = if phase == Phase::Healthy { Phase::Unknown } else { phase };
            assert_eq!((left[0].life.phase, left[0].usual.clone()), (phase, of.clone()), "{hours} h");
        }
    }
}
