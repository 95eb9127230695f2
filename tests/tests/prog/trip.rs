//! When the kernel sends an origin no more new flows, and when it does not.

use health_common::event::{Event, Kind, Why};
use health_common::map::Count;
use health_common::origin::Origin;

use crate::support::kernel::until;
use crate::support::packet::{ACK, RST};
use crate::support::{A, B, Kernel, PASS, Plan, REDIRECT};

const PORTS: std::ops::RangeInclusive<u16> = 50_001..=50_005;

fn refuse_at(plan: &Plan, kernel: &Kernel, ports: impl IntoIterator<Item = u16>) {
    for port in ports {
        let conn = plan.conn(port);
        conn.syn(kernel);
        conn.refuse(kernel);
    }
}

fn the_only(kernel: &mut Kernel) -> (Event, Kind, Why) {
    let events = kernel.events();
    let [event] = events[..] else { panic!("one event expected: {events:?}") };
    (event, Kind::from_number(event.kind).expect("known"), Why::from_number(event.why))
}

#[test]
fn five_refusals_of_several_clients_trip() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        refuse_at(&plan, &kernel, 50_001..=50_001);
        let first = kernel.state(A).first_bad_ns;
        refuse_at(&plan, &kernel, 50_002..=50_004);
        assert!(kernel.told().is_empty() && first != 0, "four don't");
        refuse_at(&plan, &kernel, 50_005..=50_005);

        let (event, kind, why) = the_only(&mut kernel);
        assert_eq!((kind, why, event.origin, event.count), (Kind::Trip, Why::Refused, A, 5));
        assert_eq!((event.first_bad_ns, event.time_ns > first), (first, true));
        assert_eq!((kernel.signal(A, "trips"), kernel.signal(A, "refused")), (1, 5));
        assert_eq!(plan.conn(40_000).syn(&kernel).verdict, REDIRECT, "and the next flow goes elsewhere");
    }
}

#[test]
fn one_client_cannot_speak_for_all() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    let mut conn = plan.conn(50_001);
    for _ in 0..50 {
        conn = conn.again();
        conn.syn(&kernel);
        conn.refuse(&kernel);
    }
    assert_eq!((kernel.signal(A, "refused"), kernel.signal(A, "trips"), kernel.told()), (50, 0, vec![]));
}

#[test]
fn forged_refusals_trip_nothing() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    for port in 50_001..50_030 {
        let conn = plan.conn(port);
        conn.syn(&kernel);
        conn.again().refuse(&kernel);
        conn.syn_ack(&kernel);
    }
    assert_eq!((kernel.signal(A, "refused"), kernel.signal(A, "synack"), kernel.told()), (0, 29, vec![]));
}

#[test]
fn a_success_in_between_begins_the_streak_anew() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    refuse_at(&plan, &kernel, 50_001..=50_004);
    plan.conn(40_000).handshake(&kernel);
    refuse_at(&plan, &kernel, 50_005..=50_008);
    assert!(kernel.told().is_empty());
    refuse_at(&plan, &kernel, 50_009..=50_009);
    assert_eq!(kernel.told(), [(Kind::Trip, A)]);
}

#[test]
fn five_resets_instead_of_answers_trip_though_handshakes_succeed() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    for port in PORTS {
        let conn = plan.conn(port);
        conn.handshake(&kernel);
        conn.request(&kernel);
        conn.receive(&kernel, RST, 0, 0, 100);
    }
    let (event, kind, why) = the_only(&mut kernel);
    assert_eq!((kind, why, event.count), (Kind::Trip, Why::ResetEarly, 5));
}

#[test]
fn a_silent_origin_trips_at_its_timeout() {
    for v6 in [false, true] {
        let plan = Plan::new(v6).syn_timeout_ms(3);
        let mut kernel = plan.load();
        for port in PORTS {
            plan.conn(port).syn(&kernel);
        }
        let sixth = plan.conn(50_006);
        until("the trip", || {
            sixth.syn(&kernel);
            kernel.signal(A, "trips") == 1
        });
        let (event, kind, why) = kernel
            .events()
            .into_iter()
            .map(|event| (event, Kind::from_number(event.kind), Why::from_number(event.why)))
            .next()
            .expect("told");
        assert_eq!((kind, why), (Some(Kind::Trip), Why::SynTimeout));
        let took = event.time_ns - event.first_bad_ns;
        assert!(took >= 3_000_000, "not before the timeout: {took} ns");
    }
}

#[test]
fn without_a_timeout_silence_is_no_evidence() {
    let plan = Plan::new(false).syn_timeout_ms(0);
    let mut kernel = plan.load();
    let begun = std::time::Instant::now();
    until("20 ms", || {
        for port in 50_001..50_010 {
            plan.conn(port).syn(&kernel);
        }
        begun.elapsed().as_millis() > 20
    });
    assert_eq!((kernel.signal(A, "trips"), kernel.told()), (0, vec![]));
}

#[test]
fn an_origin_that_hangs_trips_by_its_requests() {
    let plan = Plan::new(false).response_timeout_ms(40);
    let mut kernel = plan.load();
    for port in PORTS {
        let conn = plan.conn(port);
        conn.handshake(&kernel);
        conn.request(&kernel);
    }
    let mut conn = plan.conn(50_006);
    until("the trip", || {
        // Handshakes go on, and say nothing about requests.
        conn = conn.again();
        conn.handshake(&kernel);
        kernel.signal(A, "trips") == 1
    });
    let (event, kind, why) = the_only(&mut kernel);
    assert_eq!((kind, why, event.count), (Kind::Trip, Why::NoResponse, 5));
}

#[test]
fn uploads_and_answered_requests_are_not_overdue() {
    let plan = Plan::new(false).response_timeout_ms(40);
    let mut kernel = plan.load();
    let conns: Vec<_> = (50_001..50_011).map(|port| plan.conn(port)).collect();
    for conn in &conns {
        conn.handshake(&kernel);
        conn.request(&kernel);
    }
    for conn in &conns[..5] {
        conn.respond(&kernel);
    }
    let begun = std::time::Instant::now();
    let mut sent = 100;
    until("three response timeouts", || {
        for conn in &conns[5..] {
            conn.send(&kernel, ACK, sent, 10, 0);
        }
        sent += 10;
        begun.elapsed().as_millis() > 130
    });
    assert_eq!((kernel.signal(A, "trips"), kernel.told()), (0, vec![]));
}

#[test]
fn the_last_usable_origin_is_never_tripped() {
    type Change = fn(&mut Plan, &mut Kernel);
    let table: [(&str, Change); 3] = [
        ("there is no other", |plan, kernel| {
            *plan = plan.clone().with_tiers(&[0]);
            plan.write(kernel);
        }),
        ("the standby is blocked", |plan, kernel| {
            let record = plan.record(B);
            kernel.set_origin(B, Origin { flags: record.flags | Origin::BLOCKED, ..record });
        }),
        ("the standby is gone", |_, kernel| kernel.set_origin(B, Origin::default())),
    ];
    for (name, change) in table {
        let mut plan = Plan::new(false);
        let mut kernel = plan.load();
        change(&mut plan, &mut kernel);
        refuse_at(&plan, &kernel, PORTS);
        let (event, kind, why) = the_only(&mut kernel);
        assert_eq!((kind, why, event.origin, event.count), (Kind::Withheld, Why::Refused, A, 5), "{name}");
        assert_eq!((kernel.signal(A, "trips"), kernel.count(Count::WithheldTrip)), (0, 1), "{name}");
        assert_eq!(plan.conn(40_000).syn(&kernel).verdict, PASS, "{name}");
    }
}

#[test]
fn a_trip_withheld_again_and_again_is_counted_each_time_and_told_now_and_then() {
    let plan = Plan::new(false).with_tiers(&[0]);
    let mut kernel = plan.load();
    kernel.set_origin(A, Origin { half_open_after_ns: 60_000_000_000, ..plan.record(A) });
    refuse_at(&plan, &kernel, 50_001..=50_100);
    assert_eq!((kernel.told(), kernel.count(Count::WithheldTrip)), (vec![(Kind::Withheld, A)], 20));
    kernel.set_origin(A, Origin { half_open_after_ns: 1, ..plan.record(A) });
    refuse_at(&plan, &kernel, PORTS);
    assert_eq!(kernel.told(), [(Kind::Withheld, A)], "what is far ahead is left of a former trip");
}

#[test]
fn of_a_lone_tier_only_its_share_trips() {
    let plan = Plan::new(false).with_tiers(&[0, 0, 0, 0]);
    let mut kernel = plan.load();
    for id in 0..4 {
        for port in PORTS {
            let conn = plan.conn(port).at(plan.address(id));
            conn.syn(&kernel);
            conn.refuse(&kernel);
        }
    }
    let withheld = |id| (Kind::Withheld, id);
    assert_eq!(kernel.told(), [(Kind::Trip, 0), (Kind::Trip, 1), withheld(2), withheld(3)], "half of four");
}

#[test]
fn observing_computes_the_trip_and_withholds_it() {
    let plan = Plan::new(false).with_flags(Origin::OBSERVE);
    let mut kernel = plan.load();
    refuse_at(&plan, &kernel, PORTS);
    assert_eq!(kernel.told(), [(Kind::Withheld, A)]);
    assert_eq!(plan.conn(40_000).syn(&kernel).verdict, PASS);
    assert_eq!(kernel.counts(), [("withheld_steer", 1)]);
    assert_eq!(kernel.entries(), [1, 0, 0, 0]);
}

#[test]
fn an_origin_that_the_kernel_may_not_trip_is_not() {
    let mut plan = Plan::new(false);
    plan.origin.flags = Origin::PRESENT;
    let mut kernel = plan.load();
    refuse_at(&plan, &kernel, PORTS);
    assert_eq!((kernel.told(), kernel.signal(A, "refused")), (vec![], 5));
}

#[test]
fn userspace_ends_a_trip_by_the_clock() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    plan.trip(&mut kernel);
    let since = kernel.state(A).trip;
    let clear = |kernel: &mut Kernel, at| {
        let record = kernel.origin(A);
        kernel.set_origin(A, Origin { clear_before_ns: at, ..record });
    };
    clear(&mut kernel, since - 2);
    assert_eq!(plan.conn(40_000).syn(&kernel).verdict, REDIRECT, "an older time ends nothing");
    clear(&mut kernel, since);
    assert_eq!(plan.conn(40_001).syn(&kernel).verdict, PASS);
    refuse_at(&plan, &kernel, 50_011..=50_015);
    let trips = kernel.told().into_iter().filter(|&told| told == (Kind::Trip, A)).count();
    assert_eq!(trips, 1, "the next streak trips again");
}
