//! Resets of origins, by the phase of their flow (P02, P06).

use crate::support::kernel::until;
use crate::support::packet::{ACK, FIN, RST};
use crate::support::{A, Conn, Hook, Kernel, PASS, Plan};

const KINDS: [&str; 5] = ["reset_early", "reset_mid", "reset_idle", "rst_suspect", "rst_forged"];

fn resets(kernel: &Kernel) -> [u64; 5] {
    KINDS.map(|kind| kernel.signal(A, kind))
}

/// Until the last payload is old enough for a RST to break nothing.
fn idle(kernel: &Kernel) {
    let begun = std::time::Instant::now();
    until("the flow is idle", || {
        kernel.run(Hook::Trivial, &[0; 64]);
        begun.elapsed().as_millis() > 215
    });
}

#[test]
fn a_reset_is_counted_by_the_phase_of_its_flow() {
    type Step = fn(&Kernel, &Conn);
    // What goes before, the reset's number, what is counted.
    let table: [(&str, Step, u32, [u64; 5]); 9] = [
        ("before the first answer", |kernel, conn| drop(conn.request(kernel)), 0, [1, 0, 0, 0, 0]),
        ("without a request", |_, _| {}, 0, [1, 0, 0, 0, 0]),
        ("right after an answer", |kernel, conn| answered(kernel, conn), 200, [0, 1, 0, 0, 0]),
        (
            "in an answer that is not acknowledged",
            |kernel, conn| {
                answered(kernel, conn);
                conn.receive(kernel, ACK, 200, 300, 100);
                idle(kernel);
            },
            500,
            [0, 1, 0, 0, 0],
        ),
        (
            "on an idle flow",
            |kernel, conn| {
                answered(kernel, conn);
                idle(kernel);
            },
            200,
            [0, 0, 1, 0, 0],
        ),
        (
            "P02 (a): a request that crossed the origin's FIN",
            |kernel, conn| {
                answered(kernel, conn);
                conn.receive(kernel, ACK | FIN, 200, 0, 100);
                conn.send(kernel, ACK, 100, 50, 201);
            },
            201,
            [0, 0, 1, 0, 0],
        ),
        (
            "P02 (b): a request on a flow that the origin forgot",
            |kernel, conn| {
                answered(kernel, conn);
                idle(kernel);
                conn.send(kernel, ACK, 100, 50, 200);
            },
            200,
            [0, 0, 1, 0, 0],
        ),
        ("forged, in the window", |kernel, conn| answered(kernel, conn), 201, [0, 0, 0, 1, 0]),
        ("forged, 1 GiB off", |kernel, conn| answered(kernel, conn), 200 + (1 << 30), [0, 0, 0, 0, 1]),
    ];
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        for (name, before, seq, want) in table {
            let mut kernel = plan.load();
            let conn = plan.conn(40_000);
            conn.handshake(&kernel);
            before(&kernel, &conn);
            assert_eq!(conn.receive(&kernel, RST, seq, 0, 0).verdict, PASS, "{name}");
            assert_eq!(resets(&kernel), want, "{name}");
            let ends = want[3] + want[4] == 0;
            assert_eq!(kernel.entries()[1], usize::from(!ends), "{name}: ended or not");
            assert_eq!(kernel.signal(A, "closed"), u64::from(ends), "{name}");
            let open = kernel.signal(A, "request") - kernel.signal(A, "response") - kernel.signal(A, "request_void");
            assert_eq!(open, want[0] * kernel.signal(A, "request"), "{name}: only an early reset fails its request");
            conn.send(&kernel, ACK, 100, 0, 200);
            assert_eq!(kernel.signal(A, "opened"), 1, "{name}: a late ACK opens nothing");
        }
    }
}

fn answered(kernel: &Kernel, conn: &Conn) {
    conn.request(kernel);
    conn.respond(kernel);
}

/// P06 (b).
#[test]
fn a_flow_goes_on_after_forged_resets() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    let conn = plan.conn(40_000);
    conn.handshake(&kernel);
    answered(&kernel, &conn);
    for i in 0..20 {
        conn.receive(&kernel, RST, 201 + i, 0, 0);
    }
    for i in 0..100 {
        conn.send(&kernel, ACK, 100 + i * 10, 10, 200 + i * 10);
        conn.receive(&kernel, ACK, 200 + i * 10, 10, 110 + i * 10);
    }
    assert_eq!(resets(&kernel), [0, 0, 0, 20, 0]);
    assert_eq!((kernel.signal(A, "request"), kernel.signal(A, "response")), (101, 101));
    assert!(kernel.told().is_empty());
}

#[test]
fn no_number_of_idle_or_broken_responses_trips() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    for port in 40_000..40_030 {
        let conn = plan.conn(port);
        conn.handshake(&kernel);
        answered(&kernel, &conn);
        conn.receive(&kernel, RST, 200, 0, 0);
    }
    assert_eq!((resets(&kernel), kernel.signal(A, "trips"), kernel.told()), ([0, 30, 0, 0, 0], 0, vec![]));
}
