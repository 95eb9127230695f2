//! The benchmark's wrapper: writes the next packet over the last one, and goes on in the program under test by tail call.
//!
//! A repeated `BPF_PROG_TEST_RUN` runs on one skb. Programs that create, end or redirect flows need a fresh tuple, or an
//! unredirected packet, each time; this makes it inside the kernel, where a system call per packet would hide what is
//! measured. Its own cost is measured with `trivial` as the program under test, and subtracted.
#![no_std]
#![no_main]

use aya_ebpf::{
    EbpfContext,
    bindings::{__sk_buff, TC_ACT_SHOT},
    helpers::generated::{bpf_ktime_get_coarse_ns, bpf_skb_change_tail},
    macros::{classifier, map},
    maps::{Array, ProgramArray},
    programs::TcContext,
};

/// Bytes that are written over: Ethernet, IPv6 and TCP, up to a multiple of 8.
const TEMPLATE: usize = 80;

/// What to write. Changed between runs by the benchmark, which has the same layout.
#[repr(C)]
pub struct Script {
    /// Packets so far.
    next: u64,
    /// Flows that take turns, less one; a power of two, less one.
    flows_mask: u64,
    /// Packet, but for the node's port and network and the sequence number.
    template: [u64; TEMPLATE / 8],
    /// Offset of the node's port.
    port_at: u32,
    /// Offset of the byte of the node's address that takes the flow's number beyond 16 bits.
    net_at: u32,
    /// Offset of the sequence number.
    seq_at: u32,
    /// Sequence number of the first turn.
    seq: u32,
    /// Added to it each turn.
    step: u32,
    /// Power of two of the flows.
    flows_log2: u32,
    /// Place of the program under test in `programs`.
    target: u32,
    /// Length of the packet, which a program may have changed. Unit: bytes.
    len: u32,
}

#[map(name = "script")]
static SCRIPT: Array<Script> = Array::with_max_entries(1, 0);
#[map(name = "programs")]
static PROGRAMS: ProgramArray = ProgramArray::with_max_entries(3, 0);

/// Makes the next packet, and runs the program under test on it.
#[classifier]
pub fn wrapper(ctx: TcContext) -> i32 {
    let Some(script) = SCRIPT.get_ptr_mut(0) else { return TC_ACT_SHOT };
    // SAFETY: one CPU runs the benchmark, and userspace writes between runs only.
    let script = unsafe { &mut *script };
    let number = script.next;
    script.next += 1;
    // An odd factor visits every flow, neighbours far apart.
    let flow = number.wrapping_mul(40_503) & script.flows_mask;
    let port = flow as u16;
    let turn = (number >> (script.flows_log2 & 63)) as u32;
    let seq = script.seq.wrapping_add(turn.wrapping_mul(script.step)).to_be_bytes();
    let bytes = script.template.as_mut_ptr().cast::<u8>();
    let (port_at, seq_at) = ((script.port_at & 63) as usize, (script.seq_at & 63) as usize);
    let net_at = (script.net_at & 63) as usize;
    // SAFETY: 63 + 4 lies within the template's 80 bytes.
    unsafe {
        bytes.add(port_at).write((port >> 8) as u8);
        bytes.add(port_at + 1).write(port as u8);
        bytes.add(net_at).write((flow >> 16) as u8);
        bytes.add(seq_at).write(seq[0]);
        bytes.add(seq_at + 1).write(seq[1]);
        bytes.add(seq_at + 2).write(seq[2]);
        bytes.add(seq_at + 3).write(seq[3]);
    }
    // That it has to be done is the last packet's doing, whose program bears its cost.
    // SAFETY: the context is a live `__sk_buff`.
    if ctx.len() != script.len && unsafe { bpf_skb_change_tail(ctx.as_ptr().cast(), script.len, 0) } != 0 {
        return TC_ACT_SHOT;
    }
    let data = ctx.data();
    if data + TEMPLATE > ctx.data_end() {
        return TC_ACT_SHOT;
    }
    for (i, word) in script.template.iter().enumerate() {
        // SAFETY: within the 80 bytes that the line above proves.
        unsafe { ((data + i * 8) as *mut u64).write_unaligned(*word) };
    }
    ctx.skb.set_mark(0);
    // As the stack does with its own segments on their way out.
    // SAFETY: the context is a live `__sk_buff`, the helper takes no argument.
    unsafe { (*ctx.as_ptr().cast::<__sk_buff>()).tstamp = bpf_ktime_get_coarse_ns() };
    // SAFETY: the array holds programs of this type only.
    unsafe { PROGRAMS.tail_call(&ctx, script.target) };
    TC_ACT_SHOT
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
