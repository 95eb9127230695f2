//! design.md §4 rule 6, over any table: an unusable origin is never chosen while another is usable.

use std::cell::RefCell;

use health_common::map::{Count, Selector};
use health_common::origin::Origin;
use health_common::trip::{CONNECT, Trip};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::{A, Kernel, PASS, Packet, Plan};

const ORIGINS: u16 = 8;
const CASES: u32 = 500;
const FLOWS: u16 = 8;

#[derive(Clone, Copy, Debug)]
struct Condition {
    present: bool,
    blocked: bool,
    tripped: bool,
}

impl Condition {
    fn usable(self) -> bool {
        self.present && !self.blocked && !self.tripped
    }
}

fn condition() -> impl Strategy<Value = Condition> {
    let often = prop::bool::weighted;
    (often(0.9), often(0.4), often(0.4)).prop_map(|(present, blocked, tripped)| Condition { present, blocked, tripped })
}

fn set(kernel: &mut Kernel, plan: &Plan, id: u16, condition: Condition) {
    let flags = if condition.present { Origin::PRESENT | Origin::KERNEL_TRIP } else { 0 };
    let flags = flags | if condition.blocked { Origin::BLOCKED } else { 0 };
    kernel.set_origin(id, Origin { flags, ..plan.record(id) });
    let mut state = kernel.state(id);
    state.trip = if condition.tripped { Trip::new(1_000, CONNECT).0 } else { 0 };
    // A trial is the exception that has its own tests.
    state.trial_next_ns = u64::MAX;
    kernel.array(health_common::map::STATES).set(id.into(), state, 0).expect("small");
}

#[test]
fn an_unusable_origin_is_never_chosen_while_another_is_usable() {
    for v6 in [false, true] {
        let plan = Plan::new(v6).with_tiers(&[0, 1, 1, 1, 2, 2, 2, 3]);
        let kernel = RefCell::new(Kernel::new(16, 16_384));
        plan.write(&mut kernel.borrow_mut());
        let port = RefCell::new(1_000);
        let conditions = prop::collection::vec(condition(), usize::from(ORIGINS));
        let armed = Just((0..ORIGINS).collect::<Vec<_>>()).prop_shuffle();
        let table = (conditions, 0..ORIGINS, armed, 0..=usize::from(ORIGINS), 1..=8u8);
        let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
        let result = runner.run(&table, |(conditions, slot, armed, len, best)| {
            let mut kernel = kernel.borrow_mut();
            let armed = &armed[..len];
            for (id, &condition) in (0..).zip(&conditions) {
                set(&mut kernel, &plan, id, condition);
            }
            let mut table = Plan::table(slot, armed, 5);
            table.armed_best = best.min(table.armed_len);
            kernel.set_frontend(0, &table, Selector::new(5, 1));
            for _ in 0..FLOWS {
                *port.borrow_mut() += 1;
                let panics = kernel.count(Count::Panic);
                let chosen = chosen(&plan, &kernel, *port.borrow());
                let is_usable = |id: u16| conditions[usize::from(id)].usable();
                let panicked = kernel.count(Count::Panic) > panics;
                if is_usable(slot) {
                    prop_assert_eq!(chosen, slot, "a usable slot is followed");
                } else if armed.iter().any(|&id| is_usable(id)) {
                    prop_assert!(is_usable(chosen) && armed.contains(&chosen) && !panicked, "{} was chosen", chosen);
                } else {
                    prop_assert_eq!((chosen, panicked), (slot, true), "none is usable: the slot's own, visibly");
                }
            }
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
    }
}

/// Where a new flow went.
fn chosen(plan: &Plan, kernel: &Kernel, port: u16) -> u16 {
    let run = plan.conn(port).syn(kernel);
    if run.verdict == PASS {
        return A;
    }
    let to = Packet::read(&run.packet).to;
    (0..ORIGINS).find(|&id| plan.address(id) == to).expect("an origin of ours")
}

/// The best standbys share the load; the others wait.
#[test]
fn flows_are_spread_over_the_best_standbys_only() {
    let plan = Plan::new(false).with_tiers(&[0, 1, 1, 1, 2]);
    let mut kernel = plan.load();
    let blocked = Condition { present: true, blocked: true, tripped: false };
    set(&mut kernel, &plan, A, blocked);
    let mut table = Plan::table(A, &[1, 2, 3, 4], 2);
    table.armed_best = 3;
    kernel.set_frontend(0, &table, Selector::new(2, 0));
    let mut shares = [0; 5];
    for port in 2_000..2_600 {
        shares[usize::from(chosen(&plan, &kernel, port))] += 1;
    }
    assert_eq!((shares[0], shares[4]), (0, 0));
    assert!(shares[1..4].iter().all(|&share| (150..250).contains(&share)), "a third each: {shares:?}");
}
