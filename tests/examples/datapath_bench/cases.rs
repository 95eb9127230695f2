//! What is measured.

use anyhow::{Result, ensure};
use health_common::origin::Origin;

use crate::Row;
use crate::support::packet::{ACK, PSH, RST};
use crate::support::{A, B, Conn, Hook, Kernel, NODE, Packet, Plan, addr};
use crate::wrapper::{Stream, Wrapper};

/// Flows of the full table, and room for as many again, so that nothing is evicted.
const FULL_LOG2: u32 = 16;
const CAPACITY: u32 = 1 << 17;
/// Tuples of a batch that stays in the cache.
const BATCH_LOG2: u32 = 8;
/// Packets of a round where flows last.
const STEADY_PACKETS: u32 = 1 << 18;
const STEADY_ROUNDS: u32 = 15;
const BATCH_ROUNDS: u32 = 101;
const FULL_ROUNDS: u32 = 5;
/// Payload of data packets.
const LEN: usize = 1000;
/// Of those, new in each packet: few, so that no window ends before the measurement does.
const NEW_BYTES: u32 = 1;
const REQUEST: u32 = 100;
const RESPONSE: u32 = 200;
/// The primary refuses nothing here and trips never; the standby has the same family and another port.
const PORT: u16 = 8443;

struct Bench {
    v6: bool,
    kernel: Kernel,
    wrapper: Wrapper,
    plan: Plan,
    conn: Conn,
    rows: Vec<Row>,
}

/// What comes before the packet that is timed, in each round, on the same tuples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    Syn,
    Answered,
}

/// All figures of a family.
pub(crate) fn measure(v6: bool) -> Result<Vec<Row>> {
    let mut plan = Plan { ports: vec![443, PORT], ..Plan::new(v6) };
    plan.origin.flags = Origin::PRESENT;
    let mut kernel = Kernel::new(64, CAPACITY);
    plan.write(&mut kernel);
    let wrapper = Wrapper::load(&kernel)?;
    // The wrapper puts each flow's port over this one, so all flows share their first numbers.
    let conn = plan.conn(1);
    let mut bench = Bench { v6, kernel, wrapper, plan, conn, rows: Vec::new() };
    for full in [false, true] {
        bench.not_ours(full)?;
        bench.tracked(full)?;
        bench.sample(full)?;
        bench.moved(full)?;
        bench.ends(full)?;
    }
    Ok(bench.rows)
}

impl Bench {
    /// A packet, long enough for the wrapper.
    fn stream(hook: Hook, packet: &Packet, step: u32, flows_log2: u32) -> Stream {
        let mut packet = packet.bytes();
        packet.resize(packet.len().max(80), 0);
        Stream { hook, packet, step, turns: 0, flows_log2 }
    }

    /// One round: the program, the wrapper alone, and `trivial`. Unit: ns.
    fn round(&mut self, stream: &Stream, repeat: u32) -> Result<[u64; 3]> {
        let empty = self.wrapper.run(stream, Hook::Trivial, repeat)?;
        let full = self.wrapper.run(stream, stream.hook, repeat)?;
        let trivial = self.kernel.time(Hook::Trivial, &stream.packet, repeat);
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos());
        Ok([ns(full)?, ns(empty)?, ns(trivial)?])
    }

    fn record(&mut self, stream: &Stream, case: &'static str, full: bool, rounds: &[[u64; 3]]) {
        let [with, without, trivial] = [0, 1, 2].map(|i| median(rounds.iter().map(|round| round[i]).collect()));
        let name = if stream.hook == Hook::Egress { "egress" } else { "ingress" };
        let family = if self.v6 { "ipv6" } else { "ipv4" };
        let flows = if full { 1 << FULL_LOG2 } else { 1 };
        let ns = (with + trivial).saturating_sub(without);
        self.rows.push(Row { name, case, family, flows, ns, trivial_ns: trivial });
    }

    /// Measures packets on flows that last.
    fn steady(&mut self, case: &'static str, full: bool, hook: Hook, packet: &Packet, step: u32) -> Result<()> {
        let mut stream = Self::stream(hook, packet, step, if full { FULL_LOG2 } else { 0 });
        let mut rounds = Vec::new();
        for _ in 0..STEADY_ROUNDS {
            rounds.push(self.round(&stream, STEADY_PACKETS)?);
            stream.turns += STEADY_PACKETS >> stream.flows_log2;
        }
        self.record(&stream, case, full, &rounds);
        Ok(())
    }

    /// Untimed packets, one on each of the flows.
    fn play(&mut self, hook: Hook, packet: &Packet, flows_log2: u32) -> Result<()> {
        let stream = Self::stream(hook, packet, 0, flows_log2);
        self.wrapper.run(&stream, hook, 1 << flows_log2)?;
        Ok(())
    }

    /// Flows, established.
    fn establish(&mut self, there: &Conn, flows_log2: u32) -> Result<()> {
        self.play(Hook::Egress, &self.conn.syn_packet(), flows_log2)?;
        self.play(Hook::Ingress, &there.syn_ack_packet(), flows_log2)?;
        let flows = self.kernel.entries()[1];
        ensure!(flows == 1 << flows_log2, "{flows} flows of {} were established", 1 << flows_log2);
        Ok(())
    }

    fn not_ours(&mut self, full: bool) -> Result<()> {
        let (node, other) = (addr(self.v6, NODE, 1), addr(self.v6, 99, 443));
        self.steady("not_ours", full, Hook::Egress, &Conn::new(node, other).out(ACK, 0, LEN, 0), 0)?;
        self.steady("not_ours", full, Hook::Ingress, &Conn::new(node, other).back(ACK, 0, LEN, 0), 0)
    }

    fn tracked(&mut self, full: bool) -> Result<()> {
        let conn = self.conn;
        self.establish(&conn, if full { FULL_LOG2 } else { 0 })?;
        // Before any data, else the acknowledgements would be old.
        self.steady("ack", full, Hook::Egress, &conn.out(ACK, 0, 0, 0), 0)?;
        self.steady("ack", full, Hook::Ingress, &conn.back(ACK, 0, 0, 0), 0)?;
        self.steady("data", full, Hook::Ingress, &conn.back(ACK, 0, LEN, 0), NEW_BYTES)?;
        self.steady("data", full, Hook::Egress, &conn.out(ACK, 0, LEN, 0), NEW_BYTES)?;
        self.kernel.forget_flows();
        Ok(())
    }

    /// A response for each request: the packets of a round are the first bytes of as many responses.
    fn sample(&mut self, full: bool) -> Result<()> {
        let conn = self.conn;
        let (flows_log2, count) = batch(full);
        self.establish(&conn, flows_log2)?;
        let before = self.kernel.signal(A, "response");
        let mut rounds = Vec::new();
        let mut stream = None;
        for turn in 0..count {
            let (sent, received) = (turn * REQUEST, turn * RESPONSE);
            self.play(Hook::Egress, &conn.out(ACK | PSH, sent, 100, received), flows_log2)?;
            let response = conn.back(ACK | PSH, received, 200, sent + REQUEST);
            let next = Self::stream(Hook::Ingress, &response, 0, flows_log2);
            rounds.push(self.round(&next, 1 << flows_log2)?);
            stream = Some(next);
        }
        self.proves("response", A, before, u64::from(count) << flows_log2)?;
        if let Some(stream) = stream {
            self.record(&stream, "sample", full, &rounds);
        }
        self.kernel.forget_flows();
        Ok(())
    }

    /// What is redirected, in both directions.
    fn moved(&mut self, full: bool) -> Result<()> {
        let (conn, there) = (self.conn, self.conn.at(self.plan.address(B)));
        let primary = self.plan.record(A);
        self.kernel.set_origin(A, Origin { flags: primary.flags | Origin::BLOCKED, ..primary });
        self.ending("syn_steered", full, Before::Nothing, Hook::Egress, &conn.syn_packet(), (B, "steered"))?;
        self.establish(&there, if full { FULL_LOG2 } else { 0 })?;
        self.steady("data_nat", full, Hook::Ingress, &there.back(ACK, 0, LEN, 0), NEW_BYTES)?;
        self.steady("data_nat", full, Hook::Egress, &conn.out(ACK, 0, LEN, 0), NEW_BYTES)?;
        self.kernel.forget_flows();
        self.kernel.set_origin(A, primary);
        Ok(())
    }

    /// What begins and ends flows.
    fn ends(&mut self, full: bool) -> Result<()> {
        let conn = self.conn;
        self.ending("syn_new", full, Before::Nothing, Hook::Egress, &conn.syn_packet(), (A, "syn"))?;
        self.ending("syn_ack", full, Before::Syn, Hook::Ingress, &conn.syn_ack_packet(), (A, "opened"))?;
        let reset = conn.back(RST, RESPONSE, 0, REQUEST);
        self.ending("rst", full, Before::Answered, Hook::Ingress, &reset, (A, "closed"))
    }

    /// Measures packets each of which is the first or the last of something, on fresh tuples. `counted` must grow by one
    /// a packet.
    fn ending(
        &mut self,
        case: &'static str,
        full: bool,
        before: Before,
        hook: Hook,
        packet: &Packet,
        (origin, counted): (u16, &str),
    ) -> Result<()> {
        let conn = self.conn;
        let (flows_log2, count) = batch(full);
        let stream = Self::stream(hook, packet, 0, flows_log2);
        let start = self.kernel.signal(origin, counted);
        let mut rounds = Vec::new();
        for _ in 0..count {
            if before != Before::Nothing {
                self.play(Hook::Egress, &conn.syn_packet(), flows_log2)?;
            }
            if before == Before::Answered {
                self.play(Hook::Ingress, &conn.syn_ack_packet(), flows_log2)?;
                self.play(Hook::Egress, &conn.out(ACK | PSH, 0, 100, 0), flows_log2)?;
                self.play(Hook::Ingress, &conn.back(ACK | PSH, 0, 200, REQUEST), flows_log2)?;
            }
            rounds.push(self.round(&stream, 1 << flows_log2)?);
            self.kernel.forget_flows();
        }
        self.proves(counted, origin, start, u64::from(count) << flows_log2)?;
        self.record(&stream, case, full, &rounds);
        Ok(())
    }

    /// That each packet did what it was measured for.
    fn proves(&self, counted: &str, origin: u16, start: u64, packets: u64) -> Result<()> {
        let did = self.kernel.signal(origin, counted) - start;
        ensure!(did == packets, "{packets} packets, but `{counted}` grew by {did}");
        Ok(())
    }
}

/// Power of two of a batch's tuples, and how many batches.
const fn batch(full: bool) -> (u32, u32) {
    if full { (FULL_LOG2, FULL_ROUNDS) } else { (BATCH_LOG2, BATCH_ROUNDS) }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}
