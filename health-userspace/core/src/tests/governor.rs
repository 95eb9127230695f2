use super::*;
use alloc::{vec, vec::Vec};

const LIMITS: Limits = Limits { causes_at_once: 2, moves_per_min: 3, per_standby_at_once: 1 };
const OWN: Room = Room::Unknown { rate: 0, peak: 0 };

fn at(secs: u64) -> Timestamp {
    Timestamp(1_000_000_000_000).after(Span::from_secs(secs))
}

/// The flows of `origin` (on the host of the same number) to the host `standby`.
fn want(origin: u16, left: Left, standby: u64, room: Room) -> Want {
    let id = OriginId(u16::try_from(standby).expect("small"));
    Want { origin: OriginId(origin), cause: u64::from(origin), left, to: vec![Target { id, host: standby, room }] }
}

fn governor() -> Governor {
    let mut governor = Governor { limits: LIMITS, ..Governor::default() };
    assert!(governor.decide(Vec::new(), at(0)).is_empty(), "the first look");
    governor
}

/// What is held of all these wishes, in their order.
fn held(governor: &mut Governor, wants: &[Want], now: Timestamp) -> Vec<Option<Held>> {
    governor.decide(wants.to_vec(), now);
    wants.iter().map(|want| governor.held().get(&want.origin).copied()).collect()
}

/// Place × room × what is on the move already: the whole table of the module's head.
#[test]
fn every_place_and_room() {
    use Held::{CausesAtOnce, NoHeadroom, PerStandby, StandbyLoad};
    let busy = Room::Unknown { rate: 101, peak: 0 };
    let usual = Room::Unknown { rate: 300, peak: 150 };
    // What is on the move: nothing; one cause to the same standby; two causes to others.
    for (left, room, want_none, want_same, want_node) in [
        (Left::Dead, Room::Some, None, None, None),
        (Left::Dead, Room::None, None, None, None),
        (Left::Dead, Room::Unbounded, None, None, None),
        (Left::Dead, OWN, None, Some(PerStandby), None),
        (Left::Dead, busy, None, Some(PerStandby), None),
        (Left::Doubted, Room::Some, None, None, Some(CausesAtOnce)),
        (Left::Doubted, Room::None, Some(NoHeadroom), Some(NoHeadroom), Some(NoHeadroom)),
        (Left::Doubted, Room::Unbounded, None, None, Some(CausesAtOnce)),
        (Left::Doubted, OWN, None, Some(PerStandby), Some(CausesAtOnce)),
        (Left::Serves, Room::Some, None, None, Some(CausesAtOnce)),
        (Left::Serves, Room::None, Some(NoHeadroom), Some(NoHeadroom), Some(NoHeadroom)),
        (Left::Serves, usual, None, Some(PerStandby), Some(CausesAtOnce)),
    ] {
        let last = || want(9, left, 100, room);
        let case = alloc::format!("{left:?} {room:?}");
        assert_eq!(held(&mut governor(), &[last()], at(1)), [want_none], "{case}");
        let same = want(1, Left::Dead, 100, OWN);
        let mut one = governor();
        one.decide(vec![same.clone()], at(1));
        assert_eq!(held(&mut one, &[same, last()], at(2))[1], want_same, "{case}");
        let others = [want(1, Left::Dead, 101, OWN), want(2, Left::Dead, 102, OWN)];
        let mut two = governor();
        two.decide(others.to_vec(), at(1));
        let [a, b] = others;
        assert_eq!(held(&mut two, &[a, b, last()], at(2))[2], want_node, "{case}");
    }
    // Above twice its peak, and not below the floor, a standby takes no further cause, however many it may have.
    let limits = Limits { per_standby_at_once: 9, ..LIMITS };
    for (room, expected) in [
        (OWN, None),
        (usual, None),
        (busy, Some(StandbyLoad)),
        (Room::Unknown { rate: 301, peak: 150 }, Some(StandbyLoad)),
    ] {
        let mut governor = Governor { limits, ..governor() };
        let first = want(1, Left::Dead, 100, room);
        assert_eq!(held(&mut governor, core::slice::from_ref(&first), at(1)), [None], "no limit until it stands in");
        assert_eq!(held(&mut governor, &[first, want(2, Left::Dead, 100, room)], at(2))[1], expected, "{room:?}");
    }
}

#[test]
fn causes_are_counted_and_not_services() {
    let mut governor = governor();
    let of_host =
        |origin: u16, cause| Want { cause, ..want(origin, Left::Doubted, u64::from(origin) + 100, Room::Some) };
    let all: Vec<Want> = vec![of_host(1, 7), of_host(2, 7), of_host(3, 8), of_host(4, 9)];
    assert_eq!(held(&mut governor, &all[..3], at(1)), [None; 3], "two causes");
    assert_eq!(held(&mut governor, &all, at(62))[3], Some(Held::CausesAtOnce));
    assert_eq!(governor.held().len(), 1, "what has left is not called back");
    // A cause that ended makes room, and so does time.
    let rest = [of_host(3, 8), of_host(4, 9)];
    assert_eq!(held(&mut governor, &rest, at(63)), [None; 2]);
    let fifth = of_host(5, 10);
    let [c, d] = rest;
    assert_eq!(held(&mut governor, &[c.clone(), d.clone(), fifth.clone()], at(64))[2], Some(Held::CausesAtOnce));
    assert_eq!(held(&mut governor, &[c, d, fifth], at(361))[2], None, "a move of five minutes ago is no news");
}

#[test]
fn moves_of_a_minute_are_bounded_and_the_dead_go_first() {
    let mut governor = governor();
    let same = |origin: u16, left| Want { cause: 1, ..want(origin, left, 100, Room::Some) };
    let wants = [
        same(1, Left::Serves),
        same(2, Left::Doubted),
        same(3, Left::Doubted),
        same(4, Left::Dead),
        same(5, Left::Dead),
    ];
    let late = Some(Held::MovesPerMin);
    assert_eq!(held(&mut governor, &wants, at(1)), [late, None, late, None, None]);
    assert_eq!(held(&mut governor, &wants, at(62)), [None; 5]);
}

/// Nothing goes back and forth: flows that came back to who serves stay for a minute. The dead are never kept.
#[test]
fn no_ping_pong() {
    let mut governor = governor();
    let spill = want(1, Left::Serves, 100, Room::Some);
    assert_eq!(held(&mut governor, core::slice::from_ref(&spill), at(1)), [None]);
    governor.decide(Vec::new(), at(2));
    assert_eq!(held(&mut governor, core::slice::from_ref(&spill), at(3)), [Some(Held::PingPong)]);
    assert_eq!(held(&mut governor, &[want(1, Left::Doubted, 100, Room::Some)], at(4)), [None]);
    governor.decide(Vec::new(), at(5));
    assert_eq!(held(&mut governor, &[spill], at(66)), [None]);
}

#[test]
fn what_returns_stays_where_it_is() {
    let mut governor = governor();
    let others = [want(1, Left::Dead, 101, OWN), want(2, Left::Dead, 102, OWN)];
    let moved = |left| want(3, left, 100, OWN);
    let mut all = others.to_vec();
    all.push(moved(Left::Doubted));
    assert_eq!(held(&mut governor, &all, at(1))[2], Some(Held::CausesAtOnce));
    // It passes again and the others are gone: it is not sent away now.
    assert_eq!(held(&mut governor, &[moved(Left::Returns)], at(2)), [Some(Held::CausesAtOnce)]);
    assert_eq!(held(&mut governor, &[moved(Left::Doubted)], at(3)), [None]);
    assert_eq!(held(&mut governor, &[moved(Left::Returns)], at(4)), [None], "that has left comes back by its stages");
}

/// What was out before the daemon is in force, and no news.
#[test]
fn a_restart_holds_nothing_that_had_left() {
    let mut governor = Governor { limits: LIMITS, ..Governor::default() };
    let old: Vec<Want> = (1..9).map(|origin| want(origin, Left::Doubted, 100, OWN)).collect();
    assert_eq!(held(&mut governor, &old, at(1)), vec![None; 8]);
    let mut all = old;
    all.push(want(20, Left::Doubted, 101, OWN));
    assert_eq!(held(&mut governor, &all, at(2))[8], None);
    assert!(governor.stands_in(100) && governor.hosts_in_use().contains(&101));
}
