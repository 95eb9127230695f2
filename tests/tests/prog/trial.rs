//! One flow tries a tripped origin.

use health_common::event::Kind;
use health_common::origin::{Origin, OriginState};

use crate::support::packet::{ACK, FIN, RST};
use crate::support::{A, Conn, Kernel, PASS, Plan, REDIRECT};

/// Longer than any test takes, on an emulator too: no second trial becomes due beside the one that is looked at.
pub(crate) const AFTER_MS: u64 = 3_600_000;

/// The next trial may go now. Its time is moved, not waited for.
pub(crate) fn due(kernel: &mut Kernel) {
    let state = kernel.state(A);
    assert!(state.trial_next_ns > 0, "no trial is to come");
    kernel.set_state(A, &OriginState { trial_next_ns: 1, ..state });
}

/// SYNs of new ports; the connections that were sent to the primary.
pub(crate) fn tried(plan: &Plan, kernel: &Kernel, ports: std::ops::Range<u16>) -> Vec<Conn> {
    let conns = ports.map(|port| plan.conn(port));
    conns.filter(|conn| conn.syn(kernel).verdict == PASS).collect()
}

fn tripped() -> (Plan, Kernel) {
    let plan = Plan::new(false).trials_after_ms(AFTER_MS);
    let mut kernel = plan.load();
    plan.trip(&mut kernel);
    (plan, kernel)
}

#[test]
fn exactly_one_flow_is_the_trial_and_its_success_ends_the_trip() {
    let (plan, mut kernel) = tripped();
    assert_eq!(tried(&plan, &kernel, 40_000..40_020), [], "not before its time");
    due(&mut kernel);
    let trials = tried(&plan, &kernel, 40_020..40_060);
    let [trial] = trials[..] else { panic!("one trial expected: {trials:?}") };
    assert_eq!(kernel.signal(A, "trials"), 1);
    trial.syn_ack(&kernel);
    assert_eq!(kernel.told(), [(Kind::FirstFlow, A), (Kind::Trial, A), (Kind::Clear, A)]);
    assert_eq!(tried(&plan, &kernel, 40_060..40_080).len(), 20, "all of them go there again");
}

#[test]
fn a_success_that_began_before_the_trip_does_not_end_it() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    let early = plan.conn(40_000);
    early.syn(&kernel);
    plan.trip(&mut kernel);
    early.syn_ack(&kernel);
    assert_eq!((kernel.signal(A, "synack"), kernel.told()), (1, vec![]));
    assert_eq!(plan.conn(40_001).syn(&kernel).verdict, REDIRECT);
}

#[test]
fn a_trial_that_is_refused_failed() {
    let (plan, mut kernel) = tripped();
    due(&mut kernel);
    let trials = tried(&plan, &kernel, 40_000..40_020);
    trials[0].refuse(&kernel);
    assert_eq!(kernel.told(), [(Kind::Trial, A), (Kind::FirstFlow, A), (Kind::TrialFailed, A)]);
    assert_eq!((kernel.state(A).trials_failed, kernel.state(A).trial_open_ns), (1, 0));
}

#[test]
fn a_trial_that_was_never_answered_failed_when_the_next_begins() {
    let (plan, mut kernel) = tripped();
    due(&mut kernel);
    assert_eq!(tried(&plan, &kernel, 40_000..40_020).len(), 1);
    assert_eq!(kernel.state(A).trials_failed, 0);
    due(&mut kernel);
    assert_eq!(tried(&plan, &kernel, 40_020..40_040).len(), 1);
    assert_eq!((kernel.state(A).trials_failed, kernel.signal(A, "trials")), (1, 2));
}

#[test]
fn the_wait_doubles_up_to_its_bound() {
    let mut plan = Plan::new(false).trials_after_ms(2);
    plan.origin.half_open_max_ns = 5_000_000;
    let mut kernel = plan.load();
    plan.trip(&mut kernel);
    let waits: Vec<u64> = (0..3)
        .map(|i| {
            due(&mut kernel);
            assert_eq!(tried(&plan, &kernel, 40_000 + i..40_001 + i).len(), 1);
            kernel.state(A).trial_wait_ns
        })
        .collect();
    assert_eq!(waits, [4_000_000, 5_000_000, 5_000_000]);
}

/// The trial's own SYN, repeated, is rescued like any other.
#[test]
fn a_trial_that_stays_unanswered_is_sent_on() {
    let plan = Plan::new(false).rescuing().trials_after_ms(AFTER_MS);
    let mut kernel = plan.load();
    plan.trip(&mut kernel);
    due(&mut kernel);
    let trials = tried(&plan, &kernel, 40_000..40_020);
    assert_eq!(trials[0].syn(&kernel).verdict, REDIRECT);
    assert_eq!((kernel.state(A).trials_failed, kernel.state(A).trial_open_ns), (1, 0));
}

/// A flow that has waited already is not made to wait again.
#[test]
fn a_repeated_syn_never_is_the_trial() {
    let plan = Plan::new(false).rescuing().trials_after_ms(AFTER_MS);
    let mut kernel = plan.load();
    let waiting = plan.conn(40_000);
    waiting.syn(&kernel);
    plan.trip(&mut kernel);
    due(&mut kernel);
    assert_eq!(waiting.syn(&kernel).verdict, REDIRECT);
    assert_eq!((kernel.signal(A, "trials"), kernel.state(A).trial_open_ns), (0, 0));
    assert_eq!(tried(&plan, &kernel, 40_001..40_020).len(), 1, "the trial is still to be won");
}

/// A plan in which requests were reset, so that a trial needs an answered request.
fn tripped_by_requests() -> (Plan, Kernel, Conn) {
    let plan = Plan::new(false).trials_after_ms(AFTER_MS);
    let mut kernel = plan.load();
    for port in 50_001..=50_005 {
        let conn = plan.conn(port);
        conn.handshake(&kernel);
        conn.request(&kernel);
        conn.receive(&kernel, RST, 0, 0, 100);
    }
    assert_eq!(kernel.told(), [(Kind::Trip, A)]);
    due(&mut kernel);
    let trials = tried(&plan, &kernel, 40_000..40_010);
    let [trial] = trials[..] else { panic!("one trial expected: {trials:?}") };
    trial.syn_ack(&kernel);
    trial.send(&kernel, ACK, 0, 0, 0);
    kernel.told();
    (plan, kernel, trial)
}

#[test]
fn success_at_a_lower_layer_does_not_end_a_trip() {
    let (plan, mut kernel, trial) = tripped_by_requests();
    assert_eq!((kernel.told(), plan.conn(40_020).syn(&kernel).verdict), (vec![], REDIRECT), "a handshake is none");
    trial.request(&kernel);
    trial.respond(&kernel);
    assert_eq!(kernel.told(), [(Kind::Clear, A)]);
    assert_eq!(plan.conn(40_021).syn(&kernel).verdict, PASS);
}

#[test]
fn a_trial_that_its_client_ended_is_void() {
    type End = fn(&Kernel, &Conn);
    let table: [(&str, End); 2] = [
        ("by RST", |kernel, trial| drop(trial.send(kernel, RST, 0, 0, 0))),
        ("by FIN, without a request", |kernel, trial| {
            trial.send(kernel, ACK | FIN, 0, 0, 0);
            trial.receive(kernel, ACK | FIN, 0, 0, 1);
            trial.send(kernel, ACK, 1, 0, 1);
        }),
    ];
    for (name, end) in table {
        let (plan, mut kernel, trial) = tripped_by_requests();
        end(&kernel, &trial);
        assert_eq!((kernel.state(A).trial_open_ns, kernel.state(A).trials_failed), (0, 0), "{name}");
        due(&mut kernel);
        assert_eq!(tried(&plan, &kernel, 40_020..40_030).len(), 1, "{name}: the next one tries");
        assert_eq!(kernel.state(A).trials_failed, 0, "{name}");
    }
}

#[test]
fn a_blocked_origin_is_tried_where_trials_go_on() {
    for (name, flags, tries) in [("with trials", Origin::TRIALS, 1), ("without", 0, 0)] {
        let plan = Plan::new(false).trials_after_ms(AFTER_MS);
        let mut kernel = plan.load();
        let record = plan.record(A);
        kernel.set_origin(A, Origin { flags: record.flags | Origin::BLOCKED | flags, ..record });
        // As planned for a fault: no slot names it, its own address is still its frontend's.
        kernel.set_frontend(0, &Plan::table(1, &[1], 2), health_common::map::Selector::new(2, 1));
        let trials = tried(&plan, &kernel, 40_000..40_020);
        assert_eq!(trials.len(), tries, "{name}");
        for trial in trials {
            trial.syn_ack(&kernel);
        }
        let passed = u64::try_from(tries).expect("small");
        assert_eq!((kernel.state(A).trials_passed, kernel.signal(A, "trials")), (passed, passed), "{name}");
        assert!(tried(&plan, &kernel, 40_020..40_040).is_empty(), "{name}: only userspace unblocks");
    }
}
