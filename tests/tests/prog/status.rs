//! The status of plain-text HTTP answers.

use health_common::event::{Kind, Why};
use health_common::origin::Origin;

use crate::support::packet::{ACK, PSH};
use crate::support::{A, Conn, Hook, Kernel, PASS, Packet, Plan, REDIRECT};
use crate::trial::{AFTER_MS, due, tried};

const CLASSES: [&str; 5] = ["http_1xx", "http_2xx", "http_3xx", "http_4xx", "http_5xx"];

fn classes(kernel: &Kernel) -> [u64; 5] {
    CLASSES.map(|class| kernel.signal(A, class))
}

/// The origin's answer begins so.
fn answers(kernel: &Kernel, conn: &Conn, payload: &[u8]) {
    let packet = Packet { payload: payload.to_vec(), ..conn.back(ACK | PSH, 0, 0, 100) };
    assert_eq!(kernel.run(Hook::Ingress, &packet.bytes()).packet, packet.bytes());
}

/// A connection of its own for each request, answered with a status.
fn answered(plan: &Plan, kernel: &Kernel, port: u16, status: u16) {
    let conn = plan.conn(port);
    conn.handshake(kernel);
    conn.request(kernel);
    answers(kernel, &conn, format!("HTTP/1.1 {status} Whatever\r\n\r\n").as_bytes());
}

fn errors(plan: &Plan, kernel: &Kernel, ports: std::ops::RangeInclusive<u16>) {
    for port in ports {
        answered(plan, kernel, port, 503);
    }
}

#[test]
fn answers_are_counted_by_their_class() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        for (status, want) in [
            (100, [1, 0, 0, 0, 0]),
            (200, [0, 1, 0, 0, 0]),
            (304, [0, 0, 1, 0, 0]),
            (404, [0, 0, 0, 1, 0]),
            (503, [0, 0, 0, 0, 1]),
            (599, [0, 0, 0, 0, 1]),
            (600, [0; 5]),
        ] {
            let kernel = plan.load();
            answered(&plan, &kernel, 40_000, status);
            assert_eq!((classes(&kernel), kernel.signal(A, "response")), (want, 1), "{status}");
        }
    }
}

#[test]
fn only_the_beginning_of_an_answer_has_a_status() {
    let table: [(&str, &[u8], u64); 6] = [
        ("just the status", b"HTTP/1.0 503", 1),
        ("cut before its last digit", b"HTTP/1.1 50", 0),
        ("TLS", b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03\x00", 0),
        ("HTTP/2", b"HTTP/2.0 503 no", 0),
        ("another protocol", b"503 HTTP/1.1", 0),
        ("lower case", b"http/1.1 503", 0),
    ];
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        for (name, payload, want) in table {
            for options in [vec![], vec![1; 12], vec![1; 40]] {
                let kernel = plan.load();
                let conn = plan.conn(40_000);
                conn.handshake(&kernel);
                conn.request(&kernel);
                let packet = Packet { payload: payload.to_vec(), options, ..conn.back(ACK | PSH, 0, 0, 100) };
                kernel.run(Hook::Ingress, &packet.bytes());
                assert_eq!(kernel.signal(A, "http_5xx"), want, "{name}");
                let later = Packet { payload: b"HTTP/1.1 500 in the body".to_vec(), ..conn.back(ACK, 200, 0, 100) };
                kernel.run(Hook::Ingress, &later.bytes());
                assert_eq!(kernel.signal(A, "http_5xx"), want, "{name}: later bytes are no status");
            }
        }
    }
}

#[test]
fn five_errors_of_several_clients_trip() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let mut kernel = plan.load();
        errors(&plan, &kernel, 50_001..=50_004);
        assert_eq!(kernel.told(), [], "four don't");
        answered(&plan, &kernel, 50_005, 500);
        let events = kernel.events();
        let [event] = events[..] else { panic!("one event expected: {events:?}") };
        assert_eq!((Kind::from_number(event.kind), Why::from_number(event.why)), (Some(Kind::Trip), Why::Status));
        assert_eq!((event.origin, event.count, kernel.signal(A, "trips_http_5xx")), (A, 5, 1));
        assert_eq!(plan.conn(40_000).syn(&kernel).verdict, REDIRECT);
    }
}

#[test]
fn what_is_no_error_of_the_origin_trips_nothing() {
    let table: [(&str, u32, [u16; 6]); 3] = [
        ("errors of the client", Origin::ON_5XX, [404, 400, 429, 401, 403, 499]),
        ("redirections", Origin::ON_5XX, [301; 6]),
        ("where errors don't count", 0, [503; 6]),
    ];
    for (name, flag, statuses) in table {
        let mut plan = Plan::new(false);
        plan.origin.flags = plan.origin.flags & !Origin::ON_5XX | flag;
        let mut kernel = plan.load();
        for (port, status) in (50_001..).zip(statuses) {
            answered(&plan, &kernel, port, status);
        }
        assert_eq!((kernel.told(), kernel.signal(A, "trips")), (vec![], 0), "{name}");
    }
}

#[test]
fn a_good_answer_in_between_begins_the_streak_anew() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    errors(&plan, &kernel, 50_001..=50_004);
    answered(&plan, &kernel, 40_000, 200);
    errors(&plan, &kernel, 50_005..=50_008);
    assert_eq!(kernel.told(), []);
    answered(&plan, &kernel, 50_009, 503);
    assert_eq!(kernel.told(), [(Kind::Trip, A)]);
}

#[test]
fn errors_to_one_client_trip_nothing() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    let mut conn = plan.conn(50_001);
    for _ in 0..50 {
        conn = conn.again();
        conn.handshake(&kernel);
        conn.request(&kernel);
        answers(&kernel, &conn, b"HTTP/1.1 503 No\r\n\r\n");
    }
    assert_eq!((kernel.signal(A, "http_5xx"), kernel.told()), (50, vec![]));
}

#[test]
fn a_trial_that_is_answered_with_an_error_failed() {
    let plan = Plan::new(false).trials_after_ms(AFTER_MS);
    let mut kernel = plan.load();
    errors(&plan, &kernel, 50_001..=50_005);
    assert_eq!(kernel.told(), [(Kind::Trip, A)]);
    for (round, status, want) in [(0, "503", Kind::TrialFailed), (1, "200", Kind::Clear)] {
        due(&mut kernel);
        let trials = tried(&plan, &kernel, 40_000 + round * 10..40_010 + round * 10);
        let [trial] = trials[..] else { panic!("one trial expected: {trials:?}") };
        trial.syn_ack(&kernel);
        trial.send(&kernel, ACK, 0, 0, 0);
        trial.request(&kernel);
        kernel.told();
        answers(&kernel, &trial, format!("HTTP/1.1 {status} So\r\n\r\n").as_bytes());
        assert_eq!(kernel.told(), [(want, A)], "{status}");
    }
    assert_eq!((kernel.state(A).trials_failed, plan.conn(41_000).syn(&kernel).verdict), (1, PASS));
}
