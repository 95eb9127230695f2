//! The programs in the kernel, on maps that nobody else sees.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aya::maps::{Array, HashMap, MapData, PerCpuArray, PerCpuValues, RingBuf};
use aya::programs::{CgroupSock, CgroupSockAddr, Program, SchedClassifier, SockOps, Xdp};
use aya::{Ebpf, EbpfLoader, Pod, TestRun as _, TestRunOptions};
use health_common::NONE;
use health_common::event::{Event, Kind};
use health_common::flow::{Choice, Flow, HalfOpen, Moved};
use health_common::map::{self, Count, Node, Selector, Service, Table};
use health_common::net::{Endpoint, EndpointUse, FlowKey4, FlowKey6};
use health_common::origin::{Counters, Origin, OriginState};

use super::Plan;

/// `TCX_NEXT`, clsact's `TC_ACT_UNSPEC`.
pub(crate) const PASS: i32 = -1;
/// `TC_ACT_SHOT`.
pub(crate) const SHOT: i32 = 2;
/// `TC_ACT_REDIRECT`.
pub(crate) const REDIRECT: i32 = 7;

/// Room for the longest packet that a table makes, and what a rewrite could add.
const PACKET_MAX: usize = 2048;
/// Far over any timeout that a table sets.
const DEADLINE: Duration = Duration::from_secs(5);
// Offsets in `struct __sk_buff`.
const MARK_OFFSET: usize = 8;
const TSTAMP_OFFSET: usize = 152;
const GSO_SEGS_OFFSET: usize = 164;
const GSO_SIZE_OFFSET: usize = 176;
const CONTEXT_LEN: usize = 192;

fn put(context: &mut [u8; CONTEXT_LEN], at: usize, value: u32) {
    context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

fn get(context: &[u8; CONTEXT_LEN], at: usize) -> u32 {
    u32::from_ne_bytes(context[at..at + 4].try_into().expect("4 bytes"))
}

/// Whether packets from origins go through XDP first. The tables are built thrice: as `prog`, `prog_xdp` and `prog_l3`.
pub(crate) const THROUGH_XDP: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"prog_xdp");
/// Whether packets come without their Ethernet header, as from a tunnel.
///
/// A test run always takes an Ethernet header off, reads what the packet is from it, and puts it on again for these programs
/// (`bpf_prog_test_run_skb`, `net/bpf/test_run.c`). So what it takes for one here is the beginning of IP, and the sender's
/// address, which [`super::addr`] makes, has the EtherType where it looks for that.
pub(crate) const BARE: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"prog_l3");
/// Length of the Ethernet header that the tables' packets have.
const ETH_LEN: usize = 14;
/// `XDP_PASS`.
const XDP_PASS: u32 = 2;

/// Where a packet is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// On its way to the origins.
    Egress,
    /// From the origins. In `prog_xdp`: at XDP, and then in the TC program behind it.
    Ingress,
    /// From a client, before it is routed.
    Client,
    Trivial,
}

impl Hook {
    const fn name(self) -> &'static str {
        match self {
            Self::Egress if BARE => "egress_l3",
            Self::Ingress if BARE => "ingress_l3",
            Self::Client if BARE => "client_l3",
            Self::Egress => "egress",
            Self::Ingress if THROUGH_XDP => "ingress_behind",
            Self::Ingress => "ingress",
            Self::Client => "client",
            Self::Trivial => "trivial",
        }
    }
}

/// What came of a packet without Ethernet header, as the tables know packets. Where it is sent on to a link, an empty header
/// must have been put before it; what is answered at egress goes to this host's own stack instead.
#[track_caller]
fn framed(hook: Hook, (head, before): (&[u8], &[u8]), verdict: i32, packet: &[u8]) -> Vec<u8> {
    let found = packet.strip_prefix(&[0; ETH_LEN]);
    let ip = found.unwrap_or(packet);
    let (sender, receiver) = if ip[0] >> 4 == 6 { (8..24, 24..40) } else { (12..16, 16..20) };
    let is_answer = hook == Hook::Egress && ip[sender] == before[receiver];
    assert_eq!(found.is_some(), verdict == REDIRECT && !is_answer, "an empty header: {packet:?}");
    [head, ip].concat()
}

/// Whether a test run takes a packet: there must be room for an IP header behind what it takes for the one of Ethernet.
pub(crate) fn is_taken(packet: &[u8]) -> bool {
    let ip_len = if packet[ETH_LEN] >> 4 == 6 { 40 } else { 20 };
    !BARE || packet.len() >= 2 * ETH_LEN + ip_len
}

/// What a program did with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) verdict: i32,
    pub(crate) packet: Vec<u8>,
    pub(crate) mark: u32,
}

/// Loaded programs and their maps.
pub(crate) struct Loaded {
    ebpf: Ebpf,
    events: RingBuf<MapData>,
    /// Room for origins, and for flows of each family.
    room: (u32, u32),
}

/// What tests have given back. The verifier takes seconds for each load, and a test a millisecond.
static IDLE: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());

/// [`Loaded`], on loan.
pub(crate) struct Kernel(ManuallyDrop<Loaded>);

impl Deref for Kernel {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.0
    }
}

impl DerefMut for Kernel {
    fn deref_mut(&mut self) -> &mut Loaded {
        &mut self.0
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: taken once, for nobody uses it after it was dropped.
        let loaded = unsafe { ManuallyDrop::take(&mut self.0) };
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(loaded);
    }
}

impl Kernel {
    /// With maps for the tables.
    pub(crate) fn small() -> Self {
        Self::new(64, 1024)
    }

    /// With room for that many origins, and flows of each family. All maps are empty.
    pub(crate) fn new(origins: u32, flows: u32) -> Self {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        let found = idle.iter().position(|loaded| loaded.room == (origins, flows));
        let found = found.map(|at| idle.swap_remove(at));
        drop(idle);
        let mut loaded = found.unwrap_or_else(|| Loaded::new(origins, flows));
        loaded.empty();
        Self(ManuallyDrop::new(loaded))
    }
}

impl Loaded {
    fn new(origins: u32, flows: u32) -> Self {
        let mut loader = EbpfLoader::new();
        let per_origin = [map::ORIGINS, map::STATES, map::COUNTERS, map::SERVICES, map::SELECTORS];
        for name in per_origin {
            loader.map_max_entries(name, origins);
        }
        loader.map_max_entries(map::TABLES, origins * 2).map_max_entries(map::ENDPOINTS, origins * 2);
        let per_flow = [
            map::HALF_OPEN_V4,
            map::HALF_OPEN_V6,
            map::FLOWS_V4,
            map::FLOWS_V6,
            map::MOVED_OUT_V4,
            map::MOVED_OUT_V6,
            map::MOVED_BACK_V4,
            map::MOVED_BACK_V6,
            map::SOCKETS,
        ];
        for name in per_flow {
            loader.map_max_entries(name, flows);
        }
        let mut ebpf = loader.load(sluice::datapath::OBJECT).expect("the kernel takes the object: needs root");
        for (name, program) in ebpf.programs_mut() {
            let result = match program {
                Program::SchedClassifier(program) => program.load(),
                Program::CgroupSockAddr(program) => program.load(),
                Program::CgroupSock(program) => program.load(),
                Program::SockOps(program) => program.load(),
                Program::Xdp(program) => program.load(),
                _ => panic!("{name} is of an unknown type"),
            };
            if let Err(error) = result {
                panic!("{name}: {error:?}");
            }
        }
        let events = RingBuf::try_from(ebpf.take_map(map::EVENTS).expect("the map is there")).expect("a ring buffer");
        Self { ebpf, events, room: (origins, flows) }
    }

    /// As after loading.
    fn empty(&mut self) {
        let origins = self.room.0;
        self.zero(map::NODE, 1, Node::default());
        self.zero(map::ORIGINS, origins, Origin::default());
        self.zero(map::STATES, origins, OriginState::NEW);
        self.zero(map::SERVICES, origins, Service::default());
        self.zero(map::SELECTORS, origins, Selector::default());
        self.zero(map::TABLES, origins * 2, Plan::table(NONE, &[], 0));
        self.zero_per_cpu(map::COUNTERS, origins, Counters::ZERO);
        self.zero_per_cpu(map::COUNTS, u32::try_from(Count::ALL.len()).expect("few"), 0_u64);
        self.clear::<Endpoint, EndpointUse>(map::ENDPOINTS);
        self.clear::<u64, Choice>(map::SOCKETS);
        self.zero(map::NOTES, 2, 0_u64);
        self.forget_flows();
        self.events();
    }

    fn zero<T: Pod>(&mut self, name: &str, len: u32, zero: T) {
        let mut values = self.array(name);
        for index in 0..len {
            values.set(index, zero, 0).expect("the index is small enough");
        }
    }

    fn zero_per_cpu<T: Pod>(&mut self, name: &str, len: u32, zero: T) {
        let map = self.ebpf.map_mut(name).expect("the map is there");
        let mut values: PerCpuArray<_, T> = map.try_into().expect("a per-CPU array of this type");
        let cpus = aya::util::nr_cpus().expect("the kernel says how many");
        for index in 0..len {
            let zeros = PerCpuValues::try_from(vec![zero; cpus]).expect("one for each");
            values.set(index, zeros, 0).expect("the index is small enough");
        }
    }

    /// Name and `verified_instruction_count` of each program.
    pub(crate) fn instructions(&self) -> Vec<(String, u32)> {
        let info = |program: &Program| match program {
            Program::SchedClassifier(program) => program.info(),
            Program::CgroupSockAddr(program) => CgroupSockAddr::info(program),
            Program::CgroupSock(program) => CgroupSock::info(program),
            Program::SockOps(program) => SockOps::info(program),
            Program::Xdp(program) => Xdp::info(program),
            _ => panic!("unknown type"),
        };
        let count = |program| info(program).ok()?.verified_instruction_count();
        let mut all: Vec<_> = self
            .ebpf
            .programs()
            .map(|(name, program)| (name.to_owned(), count(program).expect("Linux 5.16")))
            .collect();
        all.sort();
        all
    }

    // === Running ===

    pub(crate) fn program(&self, hook: Hook) -> &SchedClassifier {
        self.ebpf.program(hook.name()).expect("in the object").try_into().expect("a TC program")
    }

    /// Runs a packet once.
    pub(crate) fn run(&self, hook: Hook, packet: &[u8]) -> Run {
        self.run_marked(hook, packet, 0)
    }

    /// Runs a packet whose `skb->mark` is set.
    pub(crate) fn run_marked(&self, hook: Hook, packet: &[u8], mark: u32) -> Run {
        let mut context = [0; CONTEXT_LEN];
        put(&mut context, MARK_OFFSET, mark);
        self.run_in(hook, packet, &mut context)
    }

    /// Runs a packet that the stack has stamped (`skb->tstamp`).
    pub(crate) fn run_stamped(&self, hook: Hook, packet: &[u8], stamp_ns: u64) -> Run {
        let mut context = [0; CONTEXT_LEN];
        context[TSTAMP_OFFSET..TSTAMP_OFFSET + 8].copy_from_slice(&stamp_ns.to_ne_bytes());
        self.run_in(hook, packet, &mut context)
    }

    /// Runs a packet that the device is to cut into segments (GSO). Their number and size afterwards.
    pub(crate) fn run_segments(&self, hook: Hook, packet: &[u8], number: u32, size: u32) -> (Run, u32, u32) {
        let mut context = [0; CONTEXT_LEN];
        put(&mut context, GSO_SEGS_OFFSET, number);
        put(&mut context, GSO_SIZE_OFFSET, size);
        let run = self.run_in(hook, packet, &mut context);
        (run, get(&context, GSO_SEGS_OFFSET), get(&context, GSO_SIZE_OFFSET))
    }

    fn run_in(&self, hook: Hook, packet: &[u8], context: &mut [u8; CONTEXT_LEN]) -> Run {
        if THROUGH_XDP && hook == Hook::Ingress {
            self.observe(packet);
        }
        let is_bare = BARE && hook != Hook::Trivial;
        let (head, packet) = packet.split_at(if is_bare { ETH_LEN } else { 0 });
        let mut data = [0; PACKET_MAX];
        let context_in = *context;
        let result = self
            .program(hook)
            .test_run(TestRunOptions {
                data_in: Some(packet),
                data_out: Some(&mut data),
                ctx_in: Some(&context_in),
                ctx_out: Some(&mut context[..]),
                ..TestRunOptions::new()
            })
            .expect("BPF_PROG_TEST_RUN");
        let verdict = result.return_value.cast_signed();
        let out = &data[..result.data_size_out as usize];
        Run {
            verdict,
            packet: if is_bare { framed(hook, (head, packet), verdict, out) } else { out.to_vec() },
            mark: get(context, MARK_OFFSET),
        }
    }

    /// At XDP, where nothing is ever changed or dropped.
    fn observe(&self, packet: &[u8]) {
        let program: &Xdp = self.ebpf.program("xdp_ingress").expect("in the object").try_into().expect("for XDP");
        let mut data = [0; PACKET_MAX];
        let options = TestRunOptions { data_in: Some(packet), data_out: Some(&mut data), ..TestRunOptions::new() };
        let result = program.test_run(options).expect("BPF_PROG_TEST_RUN");
        assert_eq!(result.return_value, XDP_PASS, "XDP drops nothing");
        assert_eq!(&data[..result.data_size_out as usize], packet, "XDP changes nothing");
    }

    /// Runs a packet `repeat` times in the kernel, on one skb. Time of each.
    pub(crate) fn time(&self, hook: Hook, packet: &[u8], repeat: u32) -> Duration {
        let options = TestRunOptions { data_in: Some(packet), repeat, ..TestRunOptions::new() };
        self.program(hook).test_run(options).expect("BPF_PROG_TEST_RUN").duration
    }

    // === What userspace writes ===

    pub(crate) fn array<T: Pod>(&mut self, name: &str) -> Array<&mut MapData, T> {
        self.ebpf.map_mut(name).expect("the map is there").try_into().expect("an array of this type")
    }

    pub(crate) fn hash<K: Pod, V: Pod>(&mut self, name: &str) -> HashMap<&mut MapData, K, V> {
        self.ebpf.map_mut(name).expect("the map is there").try_into().expect("a hash map of these types")
    }

    fn set<T: Pod>(&mut self, name: &str, index: u32, value: T) {
        self.array(name).set(index, value, 0).expect("the index is small enough");
    }

    pub(crate) fn set_node(&mut self, node: Node) {
        self.set(map::NODE, 0, node);
    }

    pub(crate) fn set_origin(&mut self, id: u16, origin: Origin) {
        self.set(map::ORIGINS, id.into(), origin);
    }

    /// Only where no packet is on its way: the words are the kernel's.
    pub(crate) fn set_state(&mut self, id: u16, state: &OriginState) {
        self.array(map::STATES).set(id.into(), *state, 0).expect("the index is small enough");
    }

    pub(crate) fn set_service(&mut self, id: u16, service: Service) {
        self.set(map::SERVICES, id.into(), service);
    }

    pub(crate) fn set_endpoint(&mut self, endpoint: Endpoint, meaning: EndpointUse) {
        self.set(map::FILTER, endpoint.place(), map::FILTER_OURS);
        self.hash(map::ENDPOINTS).insert(endpoint, meaning, 0).expect("room for it");
    }

    /// Writes both tables of a frontend, and its selector last.
    pub(crate) fn set_frontend(&mut self, id: u16, table: &Table, selector: Selector) {
        for buffer in 0..2 {
            self.set(map::TABLES, u32::from(id) * 2 + buffer, *table);
        }
        self.set(map::SELECTORS, id.into(), selector);
    }

    // === What it reads ===

    pub(crate) fn origin(&mut self, id: u16) -> Origin {
        self.array(map::ORIGINS).get(&id.into(), 0).expect("the index is small enough")
    }

    pub(crate) fn state(&mut self, id: u16) -> OriginState {
        self.array(map::STATES).get(&id.into(), 0).expect("the index is small enough")
    }

    fn per_cpu<T: Pod>(&self, name: &str, index: u32) -> PerCpuValues<T> {
        let map: PerCpuArray<&MapData, T> =
            self.ebpf.map(name).expect("the map is there").try_into().expect("a per-CPU array of this type");
        map.get(&index, 0).expect("the index is small enough")
    }

    /// An origin's counters, over all CPUs.
    pub(crate) fn counters(&self, id: u16) -> Counters {
        let mut sum = Counters::ZERO;
        for cpu in self.per_cpu::<Counters>(map::COUNTERS, id.into()).iter() {
            sum.add_signals(cpu);
            let mine = sum.rtt.iter_mut().chain(&mut sum.ttfb).chain(&mut sum.stamp_rtt);
            let mine = mine.chain(&mut sum.connect_by).chain(&mut sum.request_by);
            let its =
                cpu.rtt.iter().chain(&cpu.ttfb).chain(&cpu.stamp_rtt).chain(&cpu.connect_by).chain(&cpu.request_by);
            for (sum, count) in mine.zip(its) {
                *sum += count;
            }
        }
        sum
    }

    /// Signals of an origin that aren't 0, by name.
    pub(crate) fn signals(&self, id: u16) -> Vec<(&'static str, u64)> {
        let values = Counters::NAMES.iter().copied().zip(self.counters(id).signals());
        values.filter(|&(_, value)| value != 0).collect()
    }

    /// One signal of an origin.
    pub(crate) fn signal(&self, id: u16, name: &str) -> u64 {
        self.signals(id).into_iter().find(|&(found, _)| found == name).map_or(0, |(_, value)| value)
    }

    /// A counter of the node, over all CPUs.
    pub(crate) fn count(&self, what: Count) -> u64 {
        self.per_cpu::<u64>(map::COUNTS, what as u32).iter().sum()
    }

    /// Counters of the node that aren't 0, by name.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        // Entries made and removed are in every flow; they have a test of their own.
        let entries = [Count::HalfOpenMade, Count::HalfOpenRemoved, Count::FlowMade, Count::FlowRemoved];
        let others = Count::ALL.iter().filter(|what| !entries.contains(what));
        others.map(|&what| (what.name(), self.count(what))).filter(|&(_, value)| value != 0).collect()
    }

    /// Events since the last call.
    pub(crate) fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(item) = self.events.next() {
            assert!(item.len() >= size_of::<Event>(), "an event has {} bytes", item.len());
            // SAFETY: long enough, as asserted; integers only, so any bytes are a value.
            events.push(unsafe { item.as_ptr().cast::<Event>().read_unaligned() });
        }
        events
    }

    /// Kinds of the events since the last call, and the origins that they are about.
    pub(crate) fn told(&mut self) -> Vec<(Kind, u16)> {
        let kind = |event: &Event| Kind::from_number(event.kind).expect("a kind that we know");
        self.events().iter().map(|event| (kind(event), event.origin)).collect()
    }

    /// Empties the tables of flows of both families.
    pub(crate) fn forget_flows(&mut self) {
        self.clear::<FlowKey4, HalfOpen>(map::HALF_OPEN_V4);
        self.clear::<FlowKey6, HalfOpen>(map::HALF_OPEN_V6);
        self.clear::<FlowKey4, Flow>(map::FLOWS_V4);
        self.clear::<FlowKey6, Flow>(map::FLOWS_V6);
        self.clear::<FlowKey4, Moved>(map::MOVED_OUT_V4);
        self.clear::<FlowKey6, Moved>(map::MOVED_OUT_V6);
        self.clear::<FlowKey4, Moved>(map::MOVED_BACK_V4);
        self.clear::<FlowKey6, Moved>(map::MOVED_BACK_V6);
    }

    fn clear<K: Pod, V: Pod>(&mut self, name: &str) {
        let mut entries = self.hash::<K, V>(name);
        let keys: Vec<K> = entries.keys().filter_map(Result::ok).collect();
        for key in keys {
            entries.remove(&key).ok();
        }
    }

    fn keys<K: Pod, V: Pod>(&mut self, name: &str) -> usize {
        self.hash::<K, V>(name).keys().count()
    }

    /// Entries of both families: connection attempts, flows, redirections out, redirections back.
    pub(crate) fn entries(&mut self) -> [usize; 4] {
        [
            self.keys::<FlowKey4, HalfOpen>(map::HALF_OPEN_V4) + self.keys::<FlowKey6, HalfOpen>(map::HALF_OPEN_V6),
            self.keys::<FlowKey4, Flow>(map::FLOWS_V4) + self.keys::<FlowKey6, Flow>(map::FLOWS_V6),
            self.keys::<FlowKey4, Moved>(map::MOVED_OUT_V4) + self.keys::<FlowKey6, Moved>(map::MOVED_OUT_V6),
            self.keys::<FlowKey4, Moved>(map::MOVED_BACK_V4) + self.keys::<FlowKey6, Moved>(map::MOVED_BACK_V6),
        ]
    }

    /// Choices noted for sockets.
    pub(crate) fn choices(&mut self) -> usize {
        self.keys::<u64, Choice>(map::SOCKETS)
    }
}

/// Until so much of the kernel's own clock has passed.
#[track_caller]
pub(crate) fn wait_ms(kernel: &Kernel, ms: u128) {
    let begun = Instant::now();
    until("time passes", || {
        kernel.run(Hook::Trivial, &[0; 64]);
        begun.elapsed().as_millis() > ms
    });
}

/// Does `again` until it says that it is done; time passes between the packets, not in a sleep.
#[track_caller]
pub(crate) fn until(what: &str, mut again: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !again() {
        assert!(begun.elapsed() < DEADLINE, "{what}: not within {DEADLINE:?}");
    }
}
