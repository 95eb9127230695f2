//! Capacity of standbys, in new connections per second.

use std::time::Instant;

use health_common::SECOND_PASS_MARK;
use health_common::event::Kind;
use health_common::map::{Count, Selector, Table};
use health_common::origin::Origin;

use crate::steer::goes_to_b;
use crate::support::kernel::{BARE, until};
use crate::support::packet::{ACK, RST};
use crate::support::{A, B, Hook, Kernel, PASS, Packet, Plan, REDIRECT};

const MS: u64 = 1_000_000;
/// 10 connections a second.
const TENTH_NS: u64 = 100 * MS;
/// One connection while a table runs.
const HOUR_NS: u64 = 3_600_000 * MS;

/// The primary is tripped, and each connection takes so long of the standby's capacity; what doesn't fit is treated as `flags`
/// say.
fn bounded(v6: bool, capacity_ns: u64, flags: u16) -> (Plan, Kernel) {
    let plan = Plan::new(v6).rescuing();
    let mut kernel = plan.load();
    plan.trip(&mut kernel);
    kernel.set_origin(B, Origin { capacity_ns, ..plan.record(B) });
    kernel.set_frontend(0, &Table { flags, ..Plan::table(A, &[B], 1) }, Selector::new(1, 0));
    (plan, kernel)
}

#[test]
fn a_standby_gets_no_more_than_it_can_take() {
    for v6 in [false, true] {
        let (plan, kernel) = bounded(v6, TENTH_NS, 0);
        let begun = Instant::now();
        let (mut moved, mut stayed) = (0, 0);
        // At most one a millisecond: however fast the machine, there are ports enough.
        for (ms, port) in (0..350).zip(1_000..) {
            until("the next millisecond", || begun.elapsed().as_millis() >= ms);
            let run = plan.conn(port).syn(&kernel);
            if run.verdict == REDIRECT {
                moved += 1;
            } else {
                stayed += 1;
            }
        }
        // The first two come at once; then one each 100 ms.
        let most = 2 + begun.elapsed().as_millis() / 100;
        assert!((3..=most).contains(&moved), "{moved} moved, at most {most}");
        assert!(stayed > 10, "the others stay on the least bad one: {stayed}");
        assert_eq!(kernel.signal(B, "overflow"), stayed, "and are counted");
        assert_eq!(
            (kernel.signal(B, "syn"), kernel.count(Count::OverflowRefused)),
            (u64::try_from(moved).expect("few"), 0)
        );
        assert_eq!(kernel.count(Count::Panic), 0);
    }
}

#[test]
fn userspace_is_told_of_a_full_standby_now_and_then() {
    let (plan, mut kernel) = bounded(false, TENTH_NS, 0);
    for port in 1_000..1_100 {
        plan.conn(port).syn(&kernel);
    }
    let told: Vec<_> = kernel.told().into_iter().filter(|&(kind, _)| kind == Kind::Full).collect();
    assert!(!told.is_empty() && told.len() <= 2 && told.iter().all(|&(_, id)| id == B), "{told:?}");
}

/// What is refused gets the answer that a closed port would give.
#[test]
fn what_does_not_fit_is_refused_at_once_where_so_configured() {
    for v6 in [false, true] {
        for (hook, mark) in [(Hook::Egress, 0), (Hook::Client, SECOND_PASS_MARK)] {
            let (plan, mut kernel) = bounded(v6, HOUR_NS, Table::REFUSE);
            let conns: Vec<_> = (40_000..40_010).map(|port| plan.conn(port)).collect();
            let runs = conns.iter().map(|conn| kernel.run(hook, &conn.syn_packet().bytes()));
            let refused: Vec<_> =
                conns.iter().zip(runs).filter(|(_, run)| Packet::read(&run.packet).flags & RST != 0).collect();
            assert_eq!(refused.len(), 9, "one fits");
            for (conn, run) in &refused {
                let want = Packet {
                    ack: conn.isn.wrapping_add(1),
                    window: 0,
                    ..Packet::new(conn.remote, conn.node, RST | ACK)
                };
                assert_eq!((run.verdict, run.mark), (REDIRECT, mark), "{hook:?}");
                assert_eq!(Packet::read(&run.packet), want, "{hook:?}");
                if hook == Hook::Egress && !BARE {
                    let syn = conn.syn_packet().bytes();
                    assert_eq!(run.packet[..6], syn[6..12], "to whom it came from");
                }
            }
            assert_eq!(kernel.count(Count::OverflowRefused), 9);
            assert_eq!(kernel.entries()[0], 1, "nothing is kept of them");
            assert_eq!(kernel.signal(A, "syn"), 5, "the primary gets none");
        }
    }
}

#[test]
fn capacity_is_no_bound_where_so_configured() {
    let (plan, kernel) = bounded(false, HOUR_NS, Table::EXCEED);
    for port in 40_000..40_050 {
        let conn = plan.conn(port);
        goes_to_b(&plan, &conn.syn_packet(), &conn.syn(&kernel));
    }
    assert_eq!((kernel.signal(B, "syn"), kernel.signal(B, "overflow")), (50, 0));
}

#[test]
fn what_the_first_standby_cannot_take_goes_to_the_next() {
    let plan = Plan::new(false).with_tiers(&[0, 1, 1]);
    let mut kernel = plan.load();
    plan.trip(&mut kernel);
    kernel.set_origin(B, Origin { capacity_ns: HOUR_NS, ..plan.record(B) });
    for port in 40_000..40_020 {
        assert_eq!(plan.conn(port).syn(&kernel).verdict, REDIRECT);
    }
    assert_eq!((kernel.signal(B, "syn"), kernel.signal(2, "syn")), (1, 19));
}

/// A rescue takes of the same room.
#[test]
fn a_full_standby_takes_no_rescued_connection() {
    for v6 in [false, true] {
        let mut plan = Plan::new(v6).rescuing();
        plan.origin.flags &= !Origin::KERNEL_TRIP;
        let mut kernel = plan.load();
        kernel.set_origin(B, Origin { capacity_ns: HOUR_NS, ..plan.record(B) });
        let verdicts = (40_000..40_010).map(|port| {
            let conn = plan.conn(port);
            conn.syn(&kernel);
            conn.refuse(&kernel).verdict
        });
        let turned = verdicts.filter(|&verdict| verdict == REDIRECT).count();
        assert_eq!((turned, kernel.signal(B, "turned_around")), (1, 1));
        assert_eq!(kernel.entries()[0], 1, "the others' refusals went through");
    }
}

/// What an address gets of its own is not bounded, but counts.
#[test]
fn an_address_is_itself_whatever_its_capacity() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    kernel.set_origin(A, Origin { capacity_ns: HOUR_NS, ..plan.record(A) });
    for port in 40_000..40_030 {
        assert_eq!(plan.conn(port).syn(&kernel).verdict, PASS);
    }
    assert_eq!((kernel.signal(A, "syn"), kernel.counts()), (30, vec![]));
}
