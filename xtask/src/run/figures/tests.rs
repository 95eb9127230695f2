//! Small histories with known figures.

use lab::{Event, Fault, Method, Outcome, Record};

use super::{Actor, Evidence, Report, Steered, back_ns};
use crate::run::plan::Route;

const MS: u64 = 1_000_000;
const FAULT: u64 = 10_000 * MS;
const RESTORE: u64 = FAULT + 12_000 * MS;

/// One that started `at_ms` after the fault.
fn record(at_ms: i64, total_ms: u64, origin: char) -> Record {
    let start_ns = FAULT.saturating_add_signed(at_ms * 1_000_000);
    Record {
        start_ns,
        late_ns: 0,
        local_port: u16::try_from(start_ns / MS % 60_000).unwrap_or_default(),
        connect_ns: Some(MS / 10),
        total_ns: total_ms * MS,
        origin: Some(origin),
        outcome: Outcome::Ok,
    }
}

fn failed(at_ms: i64, total_ms: u64, outcome: Outcome) -> Record {
    Record { origin: None, outcome, ..record(at_ms, total_ms, '-') }
}

fn unconnected(record: Record) -> Record {
    Record { connect_ns: None, ..record }
}

fn event(at_ms: u64, what: &str, detail: &str, by: &str) -> Event {
    let [what, detail, by] = [what, detail, by].map(str::to_owned);
    Event { at_ns: FAULT + at_ms * MS, what, object: "shop4/a".to_owned(), detail, by }
}

/// a until the fault, b from `from_ms` on, a again one second after the restore.
fn history(from_ms: i64) -> Vec<Record> {
    let before = (-6000..0).step_by(20).map(|at| record(at, 1, 'a'));
    let during = (from_ms..13_000).step_by(20).map(|at| record(at, 1, 'b'));
    let back = (13_000..14_000).step_by(20).map(|at| record(at, 1, 'a'));
    before.chain(during).chain(back).collect()
}

fn judge(fault: Fault, route: Route, extra: &[Record], from_ms: i64, events: &[Event]) -> Report {
    let mut records = history(from_ms);
    records.extend_from_slice(extra);
    records.sort_by_key(|record| record.start_ns);
    Evidence { records: &records, events, ..evidence(fault, route) }.judge()
}

fn evidence(fault: Fault, route: Route) -> Evidence<'static> {
    Evidence {
        route,
        family: "ipv4",
        method: Method::Get,
        links: 1,
        fault,
        judged: true,
        neighbour_lost: true,
        object: "shop4/a",
        window_ns: FAULT - super::BEFORE_NS,
        fault_ns: FAULT,
        restore_ns: RESTORE,
        records: &[],
        events: &[],
        steered: Some(Steered { connect: 0, tc_egress: 9, tc_client: 0, rescued: 0 }),
    }
}

#[test]
fn refused_counts_what_failed_and_what_was_in_flight() {
    let extra = [
        failed(-1, 3, Outcome::Reset),
        unconnected(failed(2, 0, Outcome::Refused)),
        unconnected(failed(14, 0, Outcome::Refused)),
    ];
    let events = [event(15, "trip", "5 refused", "kernel"), event(3000, "state", "healthy > fault", "judge")];
    let report = judge(Fault::Refused, Route::Local, &extra, 20, &events);
    assert_eq!((report.failed, report.inflight, report.slow, report.trials), (2, 1, 0, 0));
    assert_eq!((report.first_on_standby_ms, report.all_on_standby_ms), (Some(20.0), Some(14.0)));
    assert_eq!(report.back_ms, Some(1000.0));
    assert_eq!(report.acted, [Actor::Trip, Actor::Judge]);
    assert_eq!(report.missed, ["failed 2 > 0"]);
    // 250 in the 5 s before (not those at -6 s), the episode's own to the restore, and the three.
    assert_eq!(report.tried, 250 + 600 + 3);
}

#[test]
fn a_slow_rescue_is_not_yet_all_on_standby() {
    let rescued = Record { connect_ns: Some(1010 * MS), ..record(300, 1011, 'b') };
    let report = judge(Fault::Blackhole, Route::Packet, &[rescued], 320, &[event(301, "rescue", "", "kernel")]);
    assert_eq!((report.slow, report.failed, report.all_on_standby_ms), (1, 0, Some(300.0)));
    assert!(report.missed.is_empty(), "{:?}", report.missed);
    let late = Record { connect_ns: Some(1010 * MS), ..record(900, 1011, 'b') };
    assert_eq!(judge(Fault::Blackhole, Route::Local, &[late], 0, &[]).missed, ["all on b after 900.0 > 300 ms"]);
}

#[test]
fn trials_are_left_out_and_counted_once() {
    let trial = failed(4001, 5000, Outcome::Timeout);
    let detail = format!("half-open, port {}", trial.local_port);
    let events = [
        event(200, "trip", "", "kernel"),
        event(4002, "trial", &detail, "kernel"),
        event(9001, "trial", &detail, "kernel"),
    ];
    let report = judge(Fault::Hang, Route::Local, &[trial], 0, &events);
    assert_eq!((report.trials, report.failed, report.all_on_standby_ms), (1, 0, Some(0.0)));
    assert!(report.missed.is_empty(), "{:?}", report.missed);
}

#[test]
fn a_proxied_trial_takes_one_hurt_request_just_before_it() {
    let hurt = [failed(3990, 5000, Outcome::Timeout), failed(3995, 5000, Outcome::Timeout)];
    let events = [event(200, "trip", "", "kernel"), event(4000, "trial", "port 7", "kernel")];
    let report = judge(Fault::Hang, Route::Nginx, &hurt, 0, &events);
    assert_eq!((report.trials, report.failed), (1, 1));
    assert_eq!(report.missed, ["1 failed that were sent after the trip", "all on b after 3995.0 > 400 ms"]);
}

#[test]
fn what_never_happened_is_null_and_missed() {
    let records: Vec<Record> = (0..600).map(|at| failed(at * 20, 5000, Outcome::Timeout)).collect();
    let evidence = Evidence {
        route: Route::Packet,
        family: "ipv6",
        method: Method::Post,
        links: 2,
        fault: Fault::Hang,
        judged: true,
        neighbour_lost: false,
        object: "shop6/a",
        window_ns: FAULT,
        fault_ns: FAULT,
        restore_ns: RESTORE,
        records: &records,
        events: &[],
        steered: None,
    };
    let report = evidence.judge();
    assert_eq!((report.first_on_standby_ms, report.all_on_standby_ms, report.back_ms), (None, None, None));
    assert_eq!(report.missed.len(), 4, "{:?}", report.missed);
}

#[test]
fn back_is_the_start_of_a_run() {
    let mut records = history(0);
    let lone = record(12_100, 1, 'a');
    records.push(lone);
    records.sort_by_key(|record| record.start_ns);
    assert_eq!(back_ns(&records, RESTORE), Some(FAULT + 13_000 * MS));
    assert_eq!(back_ns(&records[..records.len() - 40], RESTORE), None);
}

/// Turned round: every connect succeeds, some a little later.
#[test]
fn what_a_rescue_adds_to_a_connect_is_told_from_what_it_took_before() {
    let later = |at: i64| Record { connect_ns: Some(3 * MS), ..record(at, 4, 'b') };
    let few: Vec<Record> = (0..5).map(later).collect();
    let many: Vec<Record> = (0..20).map(later).collect();
    let report = judge(Fault::Refused, Route::Forwarded, &few, 20, &[]);
    assert_eq!(report.missed, Vec::<String>::new());
    let report = judge(Fault::Refused, Route::Local, &many, 20, &[]);
    assert_eq!((report.added_ms_p99, report.failed), (Some(2.9), 0));
    assert_eq!(report.missed, ["added to a connect 2.9 > 2 ms"]);
}

#[test]
fn a_flap_may_be_judged_by_nobody_and_is_over_soon() {
    let trial = event(1500, "trial", "won", "kernel");
    let report = judge(Fault::Flap, Route::Local, &[], 20, &[event(110, "trip", "", "kernel"), trial]);
    assert_eq!((report.missed, report.back_ms), (Vec::new(), Some(1000.0)));
    // Beyond the end of the fault, but within its aftermath.
    let late = event(12_900, "state", "high_risk > fault", "judge");
    let report = judge(Fault::Flap, Route::Local, &[failed(12_500, 1, Outcome::Reset)], 20, &[late]);
    assert_eq!(report.missed, ["failed 1 > 0", "state of shop4/a: high_risk > fault"]);
    let events = [event(100, "trip", "", "kernel")];
    let mut records = history(20);
    records.retain(|record| record.start_ns < RESTORE || record.origin == Some('b'));
    records.extend((16_000..17_000).step_by(20).map(|at| record(at, 1, 'a')));
    let report = Evidence { records: &records, events: &events, ..evidence(Fault::Flap, Route::Local) }.judge();
    assert_eq!(report.missed, ["back on a after 4000.0 > 3000 ms"]);
}

#[test]
fn a_link_that_is_down_must_have_cost_the_neighbours_entry() {
    let events = [event(100, "trip", "", "kernel")];
    let records = history(120);
    let kept = Evidence { records: &records, events: &events, ..evidence(Fault::LinkDown, Route::Local) };
    assert_eq!(kept.judge().missed, Vec::<String>::new());
    let lost = Evidence { neighbour_lost: false, ..kept };
    assert_eq!(lost.judge().missed, ["the node never lost a's address"]);
}

#[test]
fn a_fault_that_not_everybody_felt_is_seen_without_sluice() {
    let answered = |outcome| (0..12_000).step_by(20).map(move |at| Record { outcome, ..record(at, 1, 'a') });
    let mut records: Vec<Record> = history(13_000).into_iter().chain(answered(Outcome::Status(503))).collect();
    records.sort_by_key(|record| record.start_ns);
    let felt =
        |records: &[Record], fault| Evidence { records, judged: false, ..evidence(fault, Route::Nginx) }.judge().missed;
    assert_eq!(felt(&records, Fault::Errors), Vec::<String>::new());
    assert_eq!(felt(&records, Fault::Slow), ["the fault was not felt by everybody"]);
    records.push(record(11_999, 1, 'a'));
    assert_eq!(felt(&records, Fault::Errors), ["the fault was not felt by everybody"]);
    assert_eq!(felt(&[], Fault::Refused), ["the fault was not felt by everybody", "a did not come back"]);
}
