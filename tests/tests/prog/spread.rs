//! `failure_spread`: whose failures they were, so that one client cannot speak for everyone in the daemon either.

use health_common::flow::mix;
use health_common::origin::{Clients, Origin};
use health_common::streak::SPREAD_BITS;

use crate::support::kernel::wait_ms;
use crate::support::packet::{ACK, FIN, PSH, RST};
use crate::support::{A, B, Conn, Hook, Kernel, Plan, addr};

const TIMEOUT_MS: u64 = 3;

/// The place of a socket of this host.
fn place(conn: &Conn) -> usize {
    usize::try_from(mix(u64::from(conn.node.port().to_be())) % SPREAD_BITS).expect("small")
}

/// So many failures of one client.
fn of(conn: &Conn, count: u32) -> Clients {
    let mut clients = [0; SPREAD_BITS as usize];
    clients[place(conn)] = count;
    clients
}

const NOBODY: Clients = [0; SPREAD_BITS as usize];

/// Whose connections and whose requests failed.
#[track_caller]
fn blamed(kernel: &Kernel, id: u16, connect: Clients, request: Clients) {
    let counters = kernel.counters(id);
    assert_eq!((counters.connect_by, counters.request_by), (connect, request));
}

/// Until it is overdue, by the coarse clock too.
fn waits(kernel: &Kernel) {
    wait_ms(kernel, 5 * u128::from(TIMEOUT_MS));
}

fn both(test: impl Fn(&Plan, &Kernel, &Conn)) {
    for v6 in [false, true] {
        let mut plan = Plan::new(v6).syn_timeout_ms(TIMEOUT_MS).response_timeout_ms(TIMEOUT_MS);
        plan.origin.flags = Origin::PRESENT;
        let kernel = plan.load();
        test(&plan, &kernel, &plan.conn(40_000));
    }
}

#[test]
fn a_refused_client_is_behind_its_refusal() {
    both(|plan, kernel, conn| {
        conn.syn(kernel);
        conn.refuse(kernel);
        blamed(kernel, A, of(conn, 1), NOBODY);
        blamed(kernel, B, NOBODY, NOBODY);
        let mut all = of(conn, 1);
        for port in 41_000..41_100 {
            let other = plan.conn(port);
            other.syn(kernel);
            other.refuse(kernel);
            all[place(&other)] += 1;
        }
        blamed(kernel, A, all, NOBODY);
        assert_eq!(all.iter().sum::<u32>(), 101);
    });
}

/// Of forwarded flows it is the address.
#[test]
fn a_forwarded_client_is_one_whatever_its_port() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let kernel = plan.load();
        for port in 40_000..41_000 {
            let conn = Conn { node: addr(v6, 77, port), ..plan.conn(port) };
            kernel.run(Hook::Client, &conn.syn_packet().bytes());
            conn.refuse(&kernel);
        }
        let by = kernel.counters(A).connect_by;
        assert_eq!((by.iter().sum::<u32>(), by.iter().filter(|share| **share > 0).count()), (1000, 1));
    }
}

#[test]
fn a_syn_that_is_repeated_unanswered_is_its_clients() {
    both(|_, kernel, conn| {
        conn.syn(kernel);
        blamed(kernel, A, NOBODY, NOBODY);
        conn.syn(kernel);
        conn.syn(kernel);
        blamed(kernel, A, of(conn, 2), NOBODY);
        conn.syn_ack(kernel);
        let late = kernel.signal(A, "synack_late");
        conn.syn(kernel);
        blamed(kernel, A, of(conn, 2 + u32::try_from(late).expect("one")), NOBODY);
    });
}

#[test]
fn a_late_answer_is_its_clients() {
    both(|_, kernel, conn| {
        conn.syn(kernel);
        waits(kernel);
        conn.syn_ack(kernel);
        blamed(kernel, A, of(conn, 1), NOBODY);
        conn.request(kernel);
        waits(kernel);
        conn.respond(kernel);
        blamed(kernel, A, of(conn, 1), of(conn, 1));
    });
}

#[test]
fn a_reset_or_an_error_is_its_clients() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let kernel = plan.load();
        let (reset, broken) = (plan.conn(40_000), plan.conn(40_001));
        reset.handshake(&kernel);
        reset.receive(&kernel, RST, 0, 0, 0);
        let mut want = of(&reset, 1);
        blamed(&kernel, A, NOBODY, want);
        broken.handshake(&kernel);
        broken.request(&kernel);
        let mut answer = broken.back(ACK | PSH, 0, 0, 100);
        answer.payload = b"HTTP/1.1 503 Service Unavailable\r\n\r\n".to_vec();
        kernel.run(Hook::Ingress, &answer.bytes());
        want[place(&broken)] += 1;
        blamed(&kernel, A, NOBODY, want);
    }
}

/// Silence has no packet. Who stops waiting for it, one way or another, and not before its time, was behind it.
#[test]
fn who_gives_up_an_overdue_request_is_behind_it() {
    for (name, flags, by_node, overdue) in [
        ("closes", ACK | FIN, true, true),
        ("resets", RST, true, true),
        ("is closed", ACK | FIN, false, true),
        ("closes at once", ACK | FIN, true, false),
        ("resets at once", RST, true, false),
    ] {
        for v6 in [false, true] {
            let plan = Plan::new(v6);
            let plan = if overdue { plan.response_timeout_ms(TIMEOUT_MS) } else { plan };
            let (kernel, conn) = (plan.load(), plan.conn(40_000));
            conn.handshake(&kernel);
            conn.request(&kernel);
            if overdue {
                waits(&kernel);
            }
            if by_node {
                conn.send(&kernel, flags, 100, 0, 0);
            } else {
                conn.receive(&kernel, flags, 0, 0, 100);
            }
            let want = if overdue { of(&conn, 1) } else { NOBODY };
            assert_eq!(kernel.counters(A).request_by, want, "{name}");
            assert_eq!(kernel.counters(A).connect_by, NOBODY, "{name}");
        }
    }
}

#[test]
fn what_goes_well_is_nobodys() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let kernel = plan.load();
        let conn = plan.conn(40_000);
        conn.handshake(&kernel);
        conn.request(&kernel);
        conn.respond(&kernel);
        conn.send(&kernel, ACK | FIN, 100, 0, 200);
        conn.receive(&kernel, ACK | FIN, 200, 0, 101);
        blamed(&kernel, A, NOBODY, NOBODY);
    }
}
