//! Blocks that run out, and what the node's mode withholds.

use health_common::event::{Kind, Why};
use health_common::map::{Count, Node};
use health_common::origin::Origin;

use crate::steer::goes_to_b;
use crate::support::packet::ACK;
use crate::support::{A, B, Hook, Kernel, PASS, Plan, REDIRECT};
use crate::trial::tried;

/// The primary, blocked until `lease_ns`.
fn leased(plan: &Plan, kernel: &mut Kernel, lease_ns: u64, flags: u32) {
    let record = plan.record(A);
    kernel.set_origin(A, Origin { flags: record.flags | Origin::BLOCKED | flags, lease_ns, ..record });
}

#[test]
fn a_lease_that_runs_out_unblocks() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        leased(&plan, &mut kernel, 0, 0);
        assert_eq!(plan.conn(40_000).syn(&kernel).verdict, REDIRECT, "without a lease it is for good");
        leased(&plan, &mut kernel, u64::MAX, 0);
        assert_eq!(plan.conn(40_001).syn(&kernel).verdict, REDIRECT, "it runs");
        leased(&plan, &mut kernel, 1, 0);
        assert_eq!(plan.conn(40_002).syn(&kernel).verdict, PASS, "it has run out");
        assert!(!kernel.told().contains(&(Kind::LeaseOver, A)));
        assert_eq!(kernel.state(A).trip, 0);
    }
}

#[test]
fn where_traffic_was_the_judge_a_lease_that_runs_out_leaves_it_to_trials() {
    for (name, response_timeout_ns, by_handshake) in [("it answers requests", 1 << 50, false), ("it does not", 0, true)]
    {
        let mut plan = Plan::new(false);
        plan.origin.response_timeout_ns = response_timeout_ns;
        let mut kernel = plan.load();
        leased(&plan, &mut kernel, 1, Origin::LEASE_TRIPS);
        let trials = tried(&plan, &kernel, 40_000..40_010);
        let [trial] = trials[..] else { panic!("{name}: one trial expected: {trials:?}") };
        let told = kernel.told();
        assert_eq!(told[0], (Kind::LeaseOver, A), "{name}");
        assert_eq!(told.iter().filter(|&&(kind, _)| kind == Kind::LeaseOver).count(), 1, "{name}: told once");
        assert!(told.contains(&(Kind::Trial, A)), "{name}: {told:?}");
        trial.syn_ack(&kernel);
        assert_eq!(kernel.told().contains(&(Kind::Clear, A)), by_handshake, "{name}");
        trial.send(&kernel, ACK, 0, 0, 0);
        trial.request(&kernel);
        trial.respond(&kernel);
        assert_eq!(kernel.told().contains(&(Kind::Clear, A)), !by_handshake, "{name}");
        assert_eq!(plan.conn(40_011).syn(&kernel).verdict, PASS, "{name}: it serves again");
        assert_eq!(kernel.told(), [], "{name}: the same lease does not run out twice");
    }
}

#[test]
fn a_renewed_lease_runs_out_anew() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    leased(&plan, &mut kernel, 1, Origin::LEASE_TRIPS);
    plan.conn(40_000).syn(&kernel);
    kernel.told();
    leased(&plan, &mut kernel, u64::MAX, Origin::LEASE_TRIPS);
    assert_eq!(plan.conn(40_001).syn(&kernel).verdict, REDIRECT);
    leased(&plan, &mut kernel, 2, Origin::LEASE_TRIPS);
    plan.conn(40_002).syn(&kernel);
    assert!(kernel.told().contains(&(Kind::LeaseOver, A)));
}

// === The node's mode ===

fn mode(kernel: &mut Kernel, mode: u32) {
    kernel.set_node(Node { mode, ..Node::default() });
}

/// Five refusals of five clients.
fn refusals(plan: &Plan, kernel: &Kernel) {
    for port in 50_001..=50_005 {
        let conn = plan.conn(port).again();
        conn.syn(kernel);
        conn.refuse(kernel);
    }
}

#[test]
fn an_observing_node_steers_nothing_and_says_what_it_would() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        plan.trip(&mut kernel);
        mode(&mut kernel, Node::OBSERVE);
        let conn = plan.conn(40_000);
        let run = conn.syn(&kernel);
        assert_eq!((run.verdict, run.packet), (PASS, conn.syn_packet().bytes()));
        assert_eq!((kernel.counts(), kernel.entries()), (vec![("withheld_steer", 1)], [1, 0, 0, 0]));
        assert_eq!((kernel.signal(A, "syn"), kernel.told()), (6, vec![]), "it is still observed");
        mode(&mut kernel, 0);
        assert_eq!(plan.conn(40_001).syn(&kernel).verdict, REDIRECT, "the trip is still there");
    }
}

/// What is only computed takes no turn of anything: no trial, no room at a standby, no first flow.
#[test]
fn an_observing_node_leaves_no_trace_in_what_it_computes() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    leased(&plan, &mut kernel, 0, Origin::TRIALS);
    kernel.set_origin(B, Origin { capacity_ns: 100_000_000, ..plan.record(B) });
    mode(&mut kernel, Node::OBSERVE);
    let before = (kernel.state(A), kernel.state(B));
    for port in 40_000..40_010 {
        assert_eq!(plan.conn(port).syn(&kernel).verdict, PASS);
    }
    let (a, b) = (kernel.state(A), kernel.state(B));
    assert_eq!((a.trial_next_ns, a.trial_open_ns, a.trials_failed), (before.0.trial_next_ns, 0, 0));
    assert_eq!((b.admitted_ns, kernel.signal(A, "trials"), kernel.told()), (before.1.admitted_ns, 0, vec![]));
    assert_eq!(kernel.count(Count::WithheldSteer), 10);
}

#[test]
fn a_bypassed_node_steers_nothing() {
    for v6 in [false, true] {
        let plan = Plan::new(v6).rescuing();
        let mut kernel = plan.load();
        plan.trip(&mut kernel);
        let before = plan.conn(40_000);
        let there = before.at(plan.address(B));
        before.syn(&kernel);
        there.syn_ack(&kernel);
        mode(&mut kernel, Node::BYPASS);
        let conn = plan.conn(40_001);
        let run = conn.syn(&kernel);
        assert_eq!((run.verdict, run.packet), (PASS, conn.syn_packet().bytes()));
        let run = conn.refuse(&kernel);
        assert_eq!((run.verdict, run.packet), (PASS, conn.refusal_packet().bytes()), "nor is it rescued");
        let out = before.out(ACK, 0, 10, 0);
        goes_to_b(&plan, &out, &kernel.run(Hook::Egress, &out.bytes()));
        assert_eq!((kernel.signal(A, "refused"), kernel.count(Count::WithheldSteer)), (6, 0), "observed all the same");
    }
}

#[test]
fn a_frozen_node_keeps_what_is_and_trips_nothing() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        mode(&mut kernel, Node::FREEZE);
        refusals(&plan, &kernel);
        let events = kernel.events();
        let [event] = events[..] else { panic!("one event expected: {events:?}") };
        assert_eq!((Kind::from_number(event.kind), Why::from_number(event.why)), (Some(Kind::Withheld), Why::Refused));
        assert_eq!((kernel.signal(A, "withheld_trips"), kernel.state(A).trip), (1, 0));
        assert_eq!(plan.conn(40_000).syn(&kernel).verdict, PASS);
        mode(&mut kernel, 0);
        let mut tripped = plan.load();
        plan.trip(&mut tripped);
        mode(&mut tripped, Node::FREEZE);
        assert_eq!(plan.conn(40_001).syn(&tripped).verdict, REDIRECT, "a trip that was is kept");
    }
}
