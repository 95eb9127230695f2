//! RTT by timestamps, windows, and resets that prove nothing.

use crate::support::packet::{ACK, PSH, RST};
use crate::support::{A, Conn, Hook, Kernel, Packet, Plan};

fn options(value: u32, echo: u32) -> Vec<u8> {
    [&[1, 1, 8, 10][..], &value.to_be_bytes(), &echo.to_be_bytes()].concat()
}

/// Data of the node's side with a timestamp.
fn sends(kernel: &Kernel, conn: &Conn, from: u32, len: usize, value: u32) {
    let packet = Packet { options: options(value, 1), ..conn.out(ACK | PSH, from, len, 0) };
    kernel.run(Hook::Egress, &packet.bytes());
}

/// An acknowledgement that echoes one.
fn echoes(kernel: &Kernel, conn: &Conn, ack: u32, echo: u32) {
    let packet = Packet { options: options(1, echo), ..conn.back(ACK, 0, 0, ack) };
    kernel.run(Hook::Ingress, &packet.bytes());
}

fn samples(kernel: &Kernel) -> u32 {
    kernel.counters(A).stamp_rtt.iter().sum()
}

fn connected(plan: &Plan, kernel: &Kernel) -> Conn {
    let conn = plan.conn(40_000);
    conn.handshake(kernel);
    conn
}

/// One packet.
#[derive(Clone, Copy)]
enum Step {
    /// Data from an offset, so long, with a timestamp.
    Sends(u32, usize, u32),
    /// An acknowledgement, and the timestamp that it echoes.
    Echoes(u32, u32),
}

/// P04 (b), and all that else could give more than one sample, or a wrong one.
#[test]
fn each_timestamp_gives_at_most_one_sample() {
    use Step::{Echoes, Sends};
    let table: [(&str, &[Step], u32); 9] = [
        ("sent and echoed", &[Sends(0, 100, 900), Echoes(100, 900)], 1),
        ("echoed again", &[Sends(0, 100, 900), Echoes(100, 900), Echoes(100, 900), Echoes(100, 900)], 1),
        (
            "two segments with one timestamp",
            &[Sends(0, 100, 900), Sends(100, 100, 900), Echoes(100, 900), Echoes(200, 900)],
            1,
        ),
        (
            "the second of them after the echo",
            &[Sends(0, 100, 900), Echoes(100, 900), Sends(100, 100, 900), Echoes(200, 900)],
            1,
        ),
        ("one after the other", &[Sends(0, 100, 900), Echoes(100, 900), Sends(100, 100, 901), Echoes(200, 901)], 2),
        (
            "an older one, reordered, is no sample",
            &[Sends(100, 100, 901), Sends(0, 100, 900), Echoes(0, 900), Echoes(200, 901)],
            1,
        ),
        (
            "an echo of a later one: which was lost?",
            &[Sends(0, 100, 900), Sends(100, 100, 950), Echoes(200, 950), Echoes(200, 900)],
            0,
        ),
        ("repeated data", &[Sends(0, 100, 900), Echoes(100, 900), Sends(0, 100, 950), Echoes(100, 950)], 1),
        ("a bare acknowledgement waits for no echo", &[Sends(0, 0, 900), Echoes(0, 900)], 0),
    ];
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        for (name, steps, want) in table {
            let kernel = plan.load();
            let conn = connected(&plan, &kernel);
            for &step in steps {
                match step {
                    Sends(from, len, value) => sends(&kernel, &conn, from, len, value),
                    Echoes(ack, echo) => echoes(&kernel, &conn, ack, echo),
                }
            }
            assert_eq!(samples(&kernel), want, "{name}");
        }
    }
}

#[test]
fn without_timestamps_there_is_no_sample() {
    let plan = Plan::new(false);
    let kernel = plan.load();
    let conn = connected(&plan, &kernel);
    conn.request(&kernel);
    conn.respond(&kernel);
    assert_eq!((samples(&kernel), kernel.signal(A, "response")), (0, 1));
}

#[test]
fn an_echo_that_no_receiver_takes_gives_no_sample() {
    let plan = Plan::new(false);
    let kernel = plan.load();
    let conn = connected(&plan, &kernel);
    sends(&kernel, &conn, 0, 100, 900);
    let forged = Packet { options: options(1, 900), ..conn.back(ACK, 0, 0, 1_000_000) };
    kernel.run(Hook::Ingress, &forged.bytes());
    assert_eq!(samples(&kernel), 0);
    echoes(&kernel, &conn, 100, 900);
    assert_eq!(samples(&kernel), 1, "the real one does");
}

/// A clock of 32 bits comes around.
#[test]
fn timestamps_wrap() {
    let plan = Plan::new(true);
    let kernel = plan.load();
    let conn = connected(&plan, &kernel);
    // A clock of the other half would look older than the handshake's: it is led up to its end.
    let values = [0x4000_0000, 0x8000_0000, 0xc000_0000, u32::MAX, 3];
    for (i, value) in (0..).zip(values) {
        sends(&kernel, &conn, i * 100, 100, value);
        echoes(&kernel, &conn, i * 100 + 100, value);
    }
    assert_eq!(samples(&kernel), 5);
}

#[test]
fn a_window_that_closes_is_counted_once_each_time() {
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        let kernel = plan.load();
        let conn = connected(&plan, &kernel);
        conn.request(&kernel);
        let offers = |window| {
            kernel.run(Hook::Ingress, &Packet { window, ..conn.back(ACK, 0, 0, 100) }.bytes());
            kernel.signal(A, "zero_window")
        };
        assert_eq!([0, 0, 0, 1, 500, 0, 0].map(offers), [1, 1, 1, 1, 1, 2, 2]);
        let forged = Packet { window: 0, ..conn.back(ACK, 0, 0, 5_000_000) };
        offers(1);
        kernel.run(Hook::Ingress, &forged.bytes());
        assert_eq!(kernel.signal(A, "zero_window"), 2);
        conn.receive(&kernel, ACK | PSH, 0, 200, 100);
        kernel.run(Hook::Ingress, &Packet { window: 0, ..conn.back(RST, 200, 0, 0) }.bytes());
        assert_eq!(kernel.signal(A, "zero_window"), 2, "a RST offers none, and means nothing by it");
    }
}

/// RFC 5961 §3.2: in the window or not is decided by what the node's side offered.
#[test]
fn the_nodes_window_tells_suspects_from_forgeries() {
    // What the node's side offers, not scaled (its SYN asked for a shift of 7), the reset's distance, suspects, forgeries.
    let table: [(u16, u32, u64, u64); 8] = [
        (10, 1, 1, 0),
        (10, 1279, 1, 0),
        (10, 1280, 0, 1),
        (10, 0_u32.wrapping_sub(1), 0, 1),
        (10, 1 << 31, 0, 1),
        (0, 1, 0, 1),
        (u16::MAX, u32::from(u16::MAX) * 128 - 1, 1, 0),
        (u16::MAX, u32::from(u16::MAX) * 128, 0, 1),
    ];
    for v6 in [false, true] {
        let plan = Plan::new(v6);
        for (window, ahead, suspect, forged) in table {
            let mut kernel = plan.load();
            let conn = connected(&plan, &kernel);
            kernel.run(Hook::Egress, &Packet { window, ..conn.out(ACK, 0, 0, 0) }.bytes());
            conn.receive(&kernel, RST, ahead, 0, 0);
            let found = ["rst_suspect", "rst_forged", "reset_early", "closed"].map(|signal| kernel.signal(A, signal));
            assert_eq!(found, [suspect, forged, 0, 0], "a window of {window} << 7, a RST {ahead} ahead");
            assert_eq!((kernel.entries(), kernel.told()), ([0, 1, 0, 0], vec![]));
            conn.receive(&kernel, RST, 0, 0, 0);
            assert_eq!((kernel.signal(A, "reset_early"), kernel.entries()[1]), (1, 0), "an exact one still counts");
        }
    }
}

#[test]
fn a_flood_of_forged_resets_trips_nothing() {
    let plan = Plan::new(false);
    let mut kernel = plan.load();
    let conns: Vec<Conn> = (50_001..50_011).map(|port| plan.conn(port)).collect();
    for conn in &conns {
        conn.handshake(&kernel);
        conn.request(&kernel);
    }
    let mut seq = 1_u32;
    for i in 0..10_000 {
        seq = seq.wrapping_mul(1_664_525).wrapping_add(1_013_904_223).max(1);
        conns[i % conns.len()].receive(&kernel, RST, seq, 0, 0);
    }
    assert_eq!(kernel.signal(A, "rst_suspect") + kernel.signal(A, "rst_forged"), 10_000);
    assert_eq!((kernel.signal(A, "closed"), kernel.told(), kernel.entries()[1]), (0, vec![], 10));
}
