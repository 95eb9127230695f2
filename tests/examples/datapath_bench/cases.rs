//! What is measured.

use anyhow::{Result, ensure};
use health_common::origin::Origin;

use crate::Row;
use crate::filter::Filter;
use crate::support::packet::{ACK, PSH, RST};
use crate::support::{A, B, Conn, Hook, Kernel, NODE, Packet, Plan, addr};
use crate::wrapper::{Stream, Wrapper};

/// Powers of two of the flows in the table: one, 64k, 1M.
pub(crate) const FLOWS_LOG2: [u32; 3] = [0, 16, 20];

/// A case measures its rows and leaves the tables empty.
type Case = fn(&mut Bench, &'static str) -> Result<()>;

/// Names of design.md §11, and `ack_first`: what a SYN-ACK no longer pays for is paid there.
pub(crate) const CASES: [(&str, Case); 11] = [
    ("not_ours", Bench::not_ours),
    ("data", Bench::data),
    ("ack", Bench::ack),
    ("sample", Bench::sample),
    ("data_nat", Bench::data_nat),
    ("syn_new", Bench::syn_new),
    ("syn_steered", Bench::syn_steered),
    ("syn_ack", Bench::syn_ack),
    ("ack_first", Bench::ack_first),
    ("rst", Bench::rst),
    ("turn_around", Bench::turn_around),
];

/// Tuples of a batch that stays in the cache.
const BATCH_LOG2: u32 = 6;
const BATCH_ROUNDS: u32 = 101;
/// Packets of a round where flows last; at least one of each flow.
const STEADY_LOG2: u32 = 18;
const STEADY_ROUNDS: u32 = 15;
/// Rounds with 64k and with 1M flows. All flows of a round must be made and forgotten, which takes longer than it.
const FULL_ROUNDS: u32 = 5;
const HUGE_ROUNDS: u32 = 3;
/// Payload of data packets.
const LEN: usize = 1000;
/// Of those, new in each packet: few, so that no window ends before the measurement does.
const NEW_BYTES: u32 = 1;
const REQUEST: u32 = 100;
const RESPONSE: u32 = 200;
/// The primary refuses nothing here and trips never; the standby has the same family and another port.
const PORT: u16 = 8443;

pub(crate) struct Bench {
    family: &'static str,
    flows_log2: u32,
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
    Accepted,
    Answered,
}

/// All wanted figures of a family, with so many flows.
pub(crate) fn measure(family: &'static str, flows_log2: u32, filter: &Filter) -> Result<Vec<Row>> {
    let mut plan = Plan { ports: vec![443, PORT], ..Plan::new(family == "ipv6") };
    plan.origin.flags = Origin::PRESENT | Origin::RESCUE;
    // Room to spare: the maps hand free entries out to the CPUs in lots, and nothing may be evicted.
    let flows = 1 << flows_log2.max(BATCH_LOG2);
    let mut kernel = Kernel::new(64, flows + flows / 16 + 4096);
    plan.write(&mut kernel);
    let wrapper = Wrapper::load(&kernel)?;
    // The wrapper puts each flow's port over this one, so all flows share their first numbers.
    let conn = plan.conn(1);
    let mut bench = Bench { family, flows_log2, kernel, wrapper, plan, conn, rows: Vec::new() };
    for (name, case) in CASES {
        if filter.case(name) {
            case(&mut bench, name)?;
        }
    }
    Ok(bench.rows)
}

// === The cases ===

impl Bench {
    fn not_ours(&mut self, case: &'static str) -> Result<()> {
        let (node, other) = (addr(self.plan.v6, NODE, 1), addr(self.plan.v6, 99, 443));
        self.steady(case, Hook::Egress, &Conn::new(node, other).out(ACK, 0, LEN, 0), 0)?;
        self.steady(case, Hook::Ingress, &Conn::new(node, other).back(ACK, 0, LEN, 0), 0)
    }

    fn data(&mut self, case: &'static str) -> Result<()> {
        let conn = self.conn;
        self.establish(&conn)?;
        self.steady(case, Hook::Ingress, &conn.back(ACK, 0, LEN, 0), NEW_BYTES)?;
        self.steady(case, Hook::Egress, &conn.out(ACK, 0, LEN, 0), NEW_BYTES)?;
        self.kernel.forget_flows();
        Ok(())
    }

    fn ack(&mut self, case: &'static str) -> Result<()> {
        let conn = self.conn;
        self.establish(&conn)?;
        self.steady(case, Hook::Egress, &conn.out(ACK, 0, 0, 0), 0)?;
        self.steady(case, Hook::Ingress, &conn.back(ACK, 0, 0, 0), 0)?;
        self.kernel.forget_flows();
        Ok(())
    }

    /// A response for each request: the packets of a round are the first bytes of as many responses.
    fn sample(&mut self, case: &'static str) -> Result<()> {
        let conn = self.conn;
        let (flows_log2, count) = self.batch();
        self.establish_some(&conn, flows_log2)?;
        let before = self.kernel.signal(A, "response");
        let mut rounds = Vec::new();
        for turn in 0..count {
            let (sent, received) = (turn * REQUEST, turn * RESPONSE);
            self.play(Hook::Egress, &conn.out(ACK | PSH, sent, 100, received), flows_log2)?;
            let response = conn.back(ACK | PSH, received, 200, sent + REQUEST);
            let stream = Self::stream(Hook::Ingress, &response, 0, flows_log2);
            rounds.push(self.round(&stream, 1 << flows_log2)?);
        }
        self.proves("response", A, before, u64::from(count) << flows_log2)?;
        self.record(Hook::Ingress, case, &rounds);
        self.kernel.forget_flows();
        Ok(())
    }

    /// What is redirected, in both directions.
    fn data_nat(&mut self, case: &'static str) -> Result<()> {
        let (conn, there) = (self.conn, self.conn.at(self.plan.address(B)));
        self.while_blocked(|bench| {
            let before = bench.kernel.signal(B, "steered");
            bench.establish(&there)?;
            bench.proves("steered", B, before, 1 << bench.flows_log2)?;
            bench.steady(case, Hook::Ingress, &there.back(ACK, 0, LEN, 0), NEW_BYTES)?;
            bench.steady(case, Hook::Egress, &conn.out(ACK, 0, LEN, 0), NEW_BYTES)
        })?;
        self.kernel.forget_flows();
        Ok(())
    }

    fn syn_new(&mut self, case: &'static str) -> Result<()> {
        self.ending(case, Before::Nothing, Hook::Egress, &self.conn.syn_packet(), (A, "syn"))
    }

    fn syn_steered(&mut self, case: &'static str) -> Result<()> {
        self.while_blocked(|bench| {
            bench.ending(case, Before::Nothing, Hook::Egress, &bench.conn.syn_packet(), (B, "steered"))
        })
    }

    fn syn_ack(&mut self, case: &'static str) -> Result<()> {
        self.ending(case, Before::Syn, Hook::Ingress, &self.conn.syn_ack_packet(), (A, "synack"))
    }

    /// The first packet of the node's side after the answer, which makes the flow.
    fn ack_first(&mut self, case: &'static str) -> Result<()> {
        self.ending(case, Before::Accepted, Hook::Egress, &self.conn.out(ACK, 0, 0, 0), (A, "opened"))
    }

    fn rst(&mut self, case: &'static str) -> Result<()> {
        let reset = self.conn.back(RST, RESPONSE, 0, REQUEST);
        self.ending(case, Before::Answered, Hook::Ingress, &reset, (A, "closed"))
    }

    /// A refusal that becomes a SYN to the standby.
    fn turn_around(&mut self, case: &'static str) -> Result<()> {
        self.ending(case, Before::Syn, Hook::Ingress, &self.conn.refusal_packet(), (B, "turned_around"))
    }
}

// === How they are measured ===

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

    fn record(&mut self, hook: Hook, case: &'static str, rounds: &[[u64; 3]]) {
        let [with, without, trivial] = [0, 1, 2].map(|i| median(rounds.iter().map(|round| round[i]).collect()));
        let name = if hook == Hook::Egress { "egress" } else { "ingress" };
        let ns = (with + trivial).saturating_sub(without);
        self.rows.push(Row { name, case, family: self.family, flows: 1 << self.flows_log2, ns, trivial_ns: trivial });
    }

    /// Measures packets on flows that last.
    fn steady(&mut self, case: &'static str, hook: Hook, packet: &Packet, step: u32) -> Result<()> {
        let mut stream = Self::stream(hook, packet, step, self.flows_log2);
        let packets_log2 = STEADY_LOG2.max(self.flows_log2);
        let mut rounds = Vec::new();
        for _ in 0..STEADY_ROUNDS {
            rounds.push(self.round(&stream, 1 << packets_log2)?);
            stream.turns += 1 << (packets_log2 - stream.flows_log2);
        }
        self.record(hook, case, &rounds);
        Ok(())
    }

    /// Untimed packets, one on each of the flows.
    fn play(&mut self, hook: Hook, packet: &Packet, flows_log2: u32) -> Result<()> {
        let stream = Self::stream(hook, packet, 0, flows_log2);
        self.wrapper.run(&stream, hook, 1 << flows_log2)?;
        Ok(())
    }

    /// As many flows as the row names, established.
    fn establish(&mut self, there: &Conn) -> Result<()> {
        self.establish_some(there, self.flows_log2)
    }

    fn establish_some(&mut self, there: &Conn, flows_log2: u32) -> Result<()> {
        self.play(Hook::Egress, &self.conn.syn_packet(), flows_log2)?;
        self.play(Hook::Ingress, &there.syn_ack_packet(), flows_log2)?;
        self.play(Hook::Egress, &self.conn.out(ACK, 0, 0, 0), flows_log2)?;
        let flows = self.kernel.entries()[1];
        ensure!(flows == 1 << flows_log2, "{flows} flows of {} were established", 1 << flows_log2);
        Ok(())
    }

    /// Does something while the primary may not be chosen, so that new flows go to the standby.
    fn while_blocked(&mut self, what: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let primary = self.plan.record(A);
        self.kernel.set_origin(A, Origin { flags: primary.flags | Origin::BLOCKED, ..primary });
        what(self)?;
        self.kernel.set_origin(A, primary);
        Ok(())
    }

    /// Measures packets each of which is the first or the last of something, on fresh tuples. `counted` must grow by one
    /// a packet.
    fn ending(
        &mut self,
        case: &'static str,
        before: Before,
        hook: Hook,
        packet: &Packet,
        (origin, counted): (u16, &str),
    ) -> Result<()> {
        let conn = self.conn;
        let (flows_log2, count) = self.batch();
        let stream = Self::stream(hook, packet, 0, flows_log2);
        let start = self.kernel.signal(origin, counted);
        let mut rounds = Vec::new();
        for _ in 0..count {
            if before != Before::Nothing {
                self.play(Hook::Egress, &conn.syn_packet(), flows_log2)?;
            }
            if matches!(before, Before::Accepted | Before::Answered) {
                self.play(Hook::Ingress, &conn.syn_ack_packet(), flows_log2)?;
            }
            if before == Before::Answered {
                self.play(Hook::Egress, &conn.out(ACK | PSH, 0, 100, 0), flows_log2)?;
                self.play(Hook::Ingress, &conn.back(ACK | PSH, 0, 200, REQUEST), flows_log2)?;
            }
            rounds.push(self.round(&stream, 1 << flows_log2)?);
            self.kernel.forget_flows();
        }
        self.proves(counted, origin, start, u64::from(count) << flows_log2)?;
        self.record(hook, case, &rounds);
        Ok(())
    }

    /// That each packet did what it was measured for.
    fn proves(&self, counted: &str, origin: u16, start: u64, packets: u64) -> Result<()> {
        let did = self.kernel.signal(origin, counted) - start;
        ensure!(did == packets, "{packets} packets, but `{counted}` grew by {did}");
        Ok(())
    }

    /// Power of two of a batch's tuples, and how many batches.
    const fn batch(&self) -> (u32, u32) {
        match self.flows_log2 {
            0 => (BATCH_LOG2, BATCH_ROUNDS),
            1..=16 => (self.flows_log2, FULL_ROUNDS),
            _ => (self.flows_log2, HUGE_ROUNDS),
        }
    }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}
