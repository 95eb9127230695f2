//! All maps, and the small reads and counts that every part needs. Sizes here are defaults; the loader sets them from the
//! configuration.

use core::arch::asm;

use aya_ebpf::{
    bindings::__sk_buff,
    helpers::bpf_ktime_get_ns,
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf},
};
use health_common::{
    flow::{Flow, HalfOpen, Moved},
    map::{
        BypassKey, CGROUP_LEVEL_MAX, Count, FILTER_LEFT, FILTER_REDIRECTED, Name, NameKey, Node, Selector, Service,
        Table,
    },
    net::{Endpoint, EndpointUse, FlowKey4, FlowKey6, PLACES},
    origin::{Counters, Origin, OriginState},
    trip::Usable,
};

use crate::{
    build::Build,
    deliver::{self, WORDS},
    icmp::Quote,
    moved,
    nat::Rewrite,
    open,
    parse::Packet,
    signals::Signal,
};

#[map(name = "node")]
static NODE: Array<Node> = Array::with_max_entries(1, 0);
#[map(name = "endpoints")]
static ENDPOINTS: HashMap<Endpoint, EndpointUse> = HashMap::with_max_entries(20_000, 0);
#[map(name = "filter")]
static FILTER: Array<u8> = Array::with_max_entries(PLACES, 0);
#[map(name = "origins")]
static ORIGINS: Array<Origin> = Array::with_max_entries(10_000, 0);
#[map(name = "states")]
static STATES: Array<OriginState> = Array::with_max_entries(10_000, 0);
#[map(name = "counters")]
static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(10_000, 0);
#[map(name = "services")]
pub static SERVICES: Array<Service> = Array::with_max_entries(10_000, 0);
#[map(name = "selectors")]
pub static SELECTORS: Array<Selector> = Array::with_max_entries(10_000, 0);
#[map(name = "tables")]
pub static TABLES: Array<Table> = Array::with_max_entries(20_000, 0);
#[map(name = "half_open_v4")]
static HALF_OPEN_V4: LruHashMap<FlowKey4, HalfOpen> = LruHashMap::with_max_entries(262_144, 0);
#[map(name = "half_open_v6")]
static HALF_OPEN_V6: LruHashMap<FlowKey6, HalfOpen> = LruHashMap::with_max_entries(262_144, 0);
#[map(name = "flows_v4")]
static FLOWS_V4: LruHashMap<FlowKey4, Flow> = LruHashMap::with_max_entries(1_048_576, 0);
#[map(name = "flows_v6")]
static FLOWS_V6: LruHashMap<FlowKey6, Flow> = LruHashMap::with_max_entries(1_048_576, 0);
#[map(name = "moved_out_v4")]
static MOVED_OUT_V4: HashMap<FlowKey4, Moved> = HashMap::with_max_entries(262_144, 0);
#[map(name = "moved_out_v6")]
static MOVED_OUT_V6: HashMap<FlowKey6, Moved> = HashMap::with_max_entries(262_144, 0);
#[map(name = "moved_back_v4")]
static MOVED_BACK_V4: HashMap<FlowKey4, Moved> = HashMap::with_max_entries(262_144, 0);
#[map(name = "moved_back_v6")]
static MOVED_BACK_V6: HashMap<FlowKey6, Moved> = HashMap::with_max_entries(262_144, 0);
#[map(name = "namespaces")]
static NAMESPACES: HashMap<u64, u32> = HashMap::with_max_entries(64, 0);
#[map(name = "bypass")]
static BYPASS: HashMap<BypassKey, u32> = HashMap::with_max_entries(256, 0);
#[map(name = "counts")]
static COUNTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Count::ALL.len() as u32, 0);
#[map(name = "events")]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);
#[map(name = "names")]
static NAMES: HashMap<NameKey, Name> = HashMap::with_max_entries(32_768, 0);

#[map(name = "scratch")]
static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(1, 0);

/// Room that the stack of 512 bytes doesn't have.
#[repr(C)]
pub struct Scratch {
    /// The guard's tally. The verifier knows nothing of what lies in a map: were it on the stack, every way to count up to
    /// 64 origins would be a state of its own.
    pub tally: Usable,
    pub attempt: HalfOpen,
    pub flow: Flow,
    pub moved: Moved,
    /// The packet in hand, for the global functions.
    pub v4: Noted<FlowKey4>,
    pub v6: Noted<FlowKey6>,
    pub signal: Signal,
    pub quote: Quote,
    /// The node's side of a connection that an event is about.
    pub told: Endpoint,
    /// Bytes that are summed.
    pub words: [u32; WORDS],
    /// A segment that is built, and the one that it takes the place of.
    pub build: Build,
}

/// A packet, and the flow that it belongs to.
#[repr(C)]
pub struct Noted<K> {
    pub packet: Packet<K>,
    /// The four-tuple that the node's side knows: another than the packet's, if it is a redirected flow's.
    pub primary: K,
    /// A tuple that is tried. Here, for the stack has no room for it.
    pub there: K,
}

/// The maps of one address family.
pub trait Family {
    /// Its four-tuple.
    type Key: Rewrite + 'static;
    /// Its place in the scratch room.
    fn noted(scratch: &mut Scratch) -> &mut Noted<Self::Key>;
    /// [`moved::relocate_noted`], a function of its own to the verifier.
    fn relocate_noted(to: u16, flags: u16) -> bool;
    /// Whether the noted SYN can reach an origin, likewise.
    fn reaches(ctx: *mut __sk_buff) -> bool;
    /// What an origin's packet says to an attempt that was accepted: a function of its own likewise.
    fn early(segments: u32) -> i32;
    fn half_open() -> &'static LruHashMap<Self::Key, HalfOpen>;
    fn flows() -> &'static LruHashMap<Self::Key, Flow>;
    fn moved_out() -> &'static HashMap<Self::Key, Moved>;
    fn moved_back() -> &'static HashMap<Self::Key, Moved>;
}

pub struct V4;
pub struct V6;

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn relocate_v4(to: u16, flags: u16) -> u32 {
    u32::from(moved::relocate_noted::<V4>(to, flags))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn relocate_v6(to: u16, flags: u16) -> u32 {
    u32::from(moved::relocate_noted::<V6>(to, flags))
}

impl Family for V4 {
    type Key = FlowKey4;
    #[inline(always)]
    fn noted(scratch: &mut Scratch) -> &mut Noted<FlowKey4> {
        &mut scratch.v4
    }
    #[inline(always)]
    fn relocate_noted(to: u16, flags: u16) -> bool {
        relocate_v4(to, flags) != 0
    }
    #[inline(always)]
    fn reaches(ctx: *mut __sk_buff) -> bool {
        deliver::reaches_v4(ctx) != 0
    }
    #[inline(always)]
    fn early(segments: u32) -> i32 {
        open::early_v4(segments)
    }
    #[inline(always)]
    fn half_open() -> &'static LruHashMap<FlowKey4, HalfOpen> {
        &HALF_OPEN_V4
    }
    #[inline(always)]
    fn flows() -> &'static LruHashMap<FlowKey4, Flow> {
        &FLOWS_V4
    }
    #[inline(always)]
    fn moved_out() -> &'static HashMap<FlowKey4, Moved> {
        &MOVED_OUT_V4
    }
    #[inline(always)]
    fn moved_back() -> &'static HashMap<FlowKey4, Moved> {
        &MOVED_BACK_V4
    }
}

impl Family for V6 {
    type Key = FlowKey6;
    #[inline(always)]
    fn noted(scratch: &mut Scratch) -> &mut Noted<FlowKey6> {
        &mut scratch.v6
    }
    #[inline(always)]
    fn relocate_noted(to: u16, flags: u16) -> bool {
        relocate_v6(to, flags) != 0
    }
    #[inline(always)]
    fn reaches(ctx: *mut __sk_buff) -> bool {
        deliver::reaches_v6(ctx) != 0
    }
    #[inline(always)]
    fn early(segments: u32) -> i32 {
        open::early_v6(segments)
    }
    #[inline(always)]
    fn half_open() -> &'static LruHashMap<FlowKey6, HalfOpen> {
        &HALF_OPEN_V6
    }
    #[inline(always)]
    fn flows() -> &'static LruHashMap<FlowKey6, Flow> {
        &FLOWS_V6
    }
    #[inline(always)]
    fn moved_out() -> &'static HashMap<FlowKey6, Moved> {
        &MOVED_OUT_V6
    }
    #[inline(always)]
    fn moved_back() -> &'static HashMap<FlowKey6, Moved> {
        &MOVED_BACK_V6
    }
}

/// Puts the packet where the global functions find it.
#[inline(always)]
pub fn note<F: Family>(packet: &Packet<F::Key>, primary: &F::Key) -> bool {
    let Some(scratch) = scratch() else { return false };
    let noted = F::noted(scratch);
    noted.packet = *packet;
    noted.primary = *primary;
    true
}

/// A removal: that the entry was not there is as good.
#[inline(always)]
pub fn removed(_result: Result<(), i32>) {}

/// A removal that is counted, for what was neither removed nor is there was evicted.
#[inline(always)]
pub fn gone(result: Result<(), i32>, what: Count) {
    if result.is_ok() {
        count(what);
    }
}

/// The clock that all stamps are of.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: the helper takes no argument and cannot fail.
    unsafe { bpf_ktime_get_ns() }
}

/// The same clock in steps of a tick, at a tenth of the cost.
#[inline(always)]
pub fn coarse_now() -> u64 {
    // SAFETY: the helper takes no argument and cannot fail.
    unsafe { aya_ebpf::helpers::generated::bpf_ktime_get_coarse_ns() }
}

#[inline(always)]
pub fn node() -> Option<&'static Node> {
    NODE.get(0)
}

/// What an address and port mean to us.
#[inline(always)]
pub fn endpoint(key: &Endpoint) -> Option<EndpointUse> {
    // SAFETY: the value is one aligned word, so it can't be read torn.
    unsafe { ENDPOINTS.get(key) }.copied()
}

/// What may be known of an address and port: `FILTER_…` bits, 0 for most of what isn't ours.
#[inline(always)]
pub fn filter(key: &Endpoint) -> u8 {
    FILTER.get(key.place()).map_or(0, |&bits| bits)
}

/// Flows that ask for `asked` may be redirected to `to` from now on.
#[inline(always)]
pub fn redirects(asked: &Endpoint, to: &Endpoint) {
    learn(asked, FILTER_LEFT);
    learn(to, FILTER_REDIRECTED);
}

#[inline(always)]
fn learn(key: &Endpoint, bit: u8) {
    if let Some(bits) = FILTER.get_ptr_mut(key.place()) {
        // SAFETY: one byte, which userspace writes before anything can be redirected. Of two bits that two CPUs learn for the first
        // time, at the same moment, one may be lost, until the next redirection: each asks for both.
        unsafe {
            if *bits & bit == 0 {
                *bits |= bit;
            }
        }
    }
}

#[inline(always)]
pub fn origin(id: u16) -> Option<&'static Origin> {
    ORIGINS.get(u32::from(id))
}

#[inline(always)]
pub fn state(id: u16) -> Option<*mut OriginState> {
    STATES.get_ptr_mut(u32::from(id))
}

/// This CPU's counters of an origin.
#[inline(always)]
pub fn counters(id: u16) -> Option<&'static mut Counters> {
    // SAFETY: the value is this CPU's own, and softirqs do not nest on a CPU.
    COUNTERS.get_ptr_mut(u32::from(id)).map(|counters| unsafe { &mut *counters })
}

/// A number of which the compiler knows nothing any more, so that it leaves no check out that the verifier wants to see. Nor
/// does the verifier up to Linux 6.17, which follows no negation: ways that differ only in this number meet again.
#[inline(always)]
pub fn opaque(mut number: usize) -> usize {
    // SAFETY: twice the negative is the number itself.
    unsafe {
        asm!("{number} = -{number}", "{number} = -{number}", number = inout(reg) number, options(nomem, nostack))
    };
    number
}

/// A length from 1 to `max`, in a way that the verifier follows: it sees the bounds of a number that is one less, and then
/// one added. That a number is not 0 tells it nothing before Linux 6.8.
#[inline(always)]
pub fn between_1_and(max: usize, len: usize) -> Option<u32> {
    let less = opaque(len.wrapping_sub(1));
    if less >= max { None } else { Some(less as u32 + 1) }
}

/// Zeroes `to`, word by word. The compiler makes a call of it otherwise, and a call takes 32 bytes of the stack before Linux
/// 6.8, even of a function that needs none; the verifier would also walk through its loop over bytes each time.
///
/// # Safety
///
/// `to` can be written, is aligned to 4 bytes and as long as so many words, and zeroes are a value of its type.
#[inline(always)]
pub unsafe fn zero<T>(to: *mut T) {
    const { assert!(size_of::<T>() % 4 == 0 && align_of::<T>() >= 4) };
    for word in 0..size_of::<T>() / 4 {
        // SAFETY: the caller's, for each word of it.
        unsafe { to.cast::<u32>().add(word).write_volatile(0) };
    }
}

/// Copies word by word, for the same reason.
///
/// # Safety
///
/// As [`zero`].
#[inline(always)]
pub unsafe fn copy<T: Copy>(from: &T, to: *mut T) {
    const { assert!(size_of::<T>() % 4 == 0 && align_of::<T>() >= 4) };
    for word in 0..size_of::<T>() / 4 {
        // SAFETY: the caller's, for each word of both.
        unsafe { to.cast::<u32>().add(word).write_volatile(core::ptr::from_ref(from).cast::<u32>().add(word).read()) };
    }
}

/// This CPU's scratch room, as the last one left it. Not for the connect hooks, which softirqs interrupt.
#[inline(always)]
pub fn scratch() -> Option<&'static mut Scratch> {
    // SAFETY: the value is this CPU's own; the TC hooks run with softirqs off and don't nest.
    SCRATCH.get_ptr_mut(0).map(|scratch| unsafe { &mut *scratch })
}

/// Counts an exit, or another thing of the node.
#[inline(always)]
pub fn count(what: Count) {
    if let Some(counter) = COUNTS.get_ptr_mut(what as u32) {
        // SAFETY: the value is this CPU's own, and softirqs do not nest on a CPU.
        unsafe { *counter += 1 };
    }
}

#[inline(always)]
pub fn steers_namespace(cookie: u64) -> bool {
    // SAFETY: only presence matters.
    unsafe { NAMESPACES.get(cookie) }.is_some()
}

#[inline(always)]
pub fn is_bypassed(kind: u64, id: u64) -> bool {
    // SAFETY: only presence matters.
    unsafe { BYPASS.get(BypassKey { id, kind }) }.is_some()
}

/// Whether one of the cgroups that `ancestor` gives, by level, is named by `bypass`.
#[inline(always)]
pub fn bypasses_cgroup(node: &Node, ancestor: impl Fn(i32) -> u64) -> bool {
    if node.bypass_levels == 0 {
        return false;
    }
    for level in 1..=CGROUP_LEVEL_MAX {
        if node.bypass_levels & 1 << level != 0 && is_bypassed(BypassKey::CGROUP, ancestor(level as i32)) {
            return true;
        }
    }
    false
}
