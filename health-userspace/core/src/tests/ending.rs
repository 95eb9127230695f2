use super::*;
use crate::{
    governor::Held,
    lifecycle::{Cause, CauseBy, Then},
    model::{Family, Layer, OriginId, OriginSpec},
};
use alloc::{borrow::ToOwned, vec, vec::Vec};

fn at(secs: u64) -> Timestamp {
    Timestamp(1_000_000_000_000).after(Span::from_secs(secs))
}

fn origin(phase: Phase) -> Origin {
    let spec = OriginSpec {
        id: OriginId(1),
        name: "a".to_owned(),
        key: 1,
        family: Family::V4,
        tier: 0,
        weight: 1,
        capacity_cps: None,
        capacity_conns: None,
    };
    let mut origin = Origin::new(spec, &[], &Policy::default(), at(0));
    origin.life.phase = phase;
    origin
}

const CAUSE: Cause = Cause { layer: Layer::Transport, by: CauseBy::Trip };

/// Seconds of a fault of a minute in which something is to end, and what.
fn endings(origin: &mut Origin, on_fault: OnFault) -> Vec<(u64, bool, Span)> {
    let policy = Policy { on_fault, ..Policy::default() };
    (0..60).filter_map(|second| origin.ending(at(second), &policy).map(|one| (second, one.all, one.stalled))).collect()
}

#[test]
fn what_ends_and_when() {
    let fault = || origin(Phase::Fault { cause: CAUSE });
    assert_eq!(endings(&mut fault(), OnFault::Keep), []);
    let stalled = endings(&mut fault(), OnFault::ResetStalled);
    assert_eq!(stalled.first(), Some(&(0, false, Span::from_secs(3))), "idle ones at once");
    assert!(stalled.len() > 15 && stalled.len() < 30, "often at first, then rarer: {stalled:?}");
    assert_eq!(endings(&mut fault(), OnFault::Reset).first(), Some(&(0, true, Span::ZERO)));
    let after = endings(&mut fault(), OnFault::ResetAfter);
    assert_eq!(after.first(), Some(&(30, true, Span::ZERO)));
    // The next fault is looked at at once.
    let mut again = fault();
    endings(&mut again, OnFault::Reset);
    again.life.since = at(60);
    assert!(again.ending(at(60), &Policy { on_fault: OnFault::Reset, ..Policy::default() }).is_some());
}

#[test]
fn only_a_fault_that_was_carried_out_ends_connections() {
    let all = OnFault::Reset;
    for phase in
        [Phase::Unknown, Phase::Healthy, Phase::Degraded, Phase::HighRisk, Phase::Maintenance { then: Then::Judge }]
    {
        assert_eq!(endings(&mut origin(phase), all), [], "{phase:?}");
    }
    assert!(!endings(&mut origin(Phase::Failed { then: Then::Judge }), all).is_empty(), "an order to fail is a fault");
    let mut held = origin(Phase::Fault { cause: CAUSE });
    held.held = Some(Held::CausesAtOnce);
    assert_eq!(endings(&mut held, all), vec![], "its flows stay, and so do its connections");
}
