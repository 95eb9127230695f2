//! How much the verifier has to walk through, and how much stack the programs take.

use std::collections::{BTreeMap, BTreeSet};

use aya_obj::Object;
use aya_obj::generated::{
    BPF_ADD, BPF_ALU64, BPF_CALL, BPF_JMP, BPF_JMP32, BPF_LDX, BPF_MOV, BPF_PSEUDO_CALL, BPF_ST, BPF_STX, BPF_X,
    bpf_insn,
};

use crate::support::Kernel;

/// Compilers differ between machines, so this is a bound, about 1.2 times what the verifier of Linux 6.1 walked when it was
/// set. That of 6.18 walks a third less (`cargo xtask test-kernels`). They give up at a million.
const INSTRUCTIONS_MAX: [(&str, u32); 16] = [
    ("client", 350_000),
    ("client_l3", 350_000),
    ("connect4", 8_000),
    ("connect6", 8_000),
    ("egress", 350_000),
    ("egress_l3", 350_000),
    ("ingress", 330_000),
    ("ingress_behind", 270_000),
    ("ingress_l3", 330_000),
    ("inject", 6),
    ("peer4", 60),
    ("peer6", 70),
    ("release", 200),
    ("timeout", 1_800),
    ("trivial", 4),
    ("xdp_ingress", 145_000),
];

#[test]
fn the_verifier_walks_no_further_than_before() {
    let found = Kernel::small().instructions();
    let within =
        |(name, count): &(String, u32)| INSTRUCTIONS_MAX.iter().any(|(known, max)| known == name && count <= max);
    assert!(
        found.len() == INSTRUCTIONS_MAX.len() && found.iter().all(within),
        "{found:?} against {INSTRUCTIONS_MAX:?}"
    );
}

/// All frames that are open at one moment, as Linux before 6.8 counts them: each is rounded up to 32 bytes.
const STACK_MAX: usize = 512;
const FRAME_STEP: usize = 32;

/// The gate runs on newer kernels, which round to 16 bytes and would not notice.
#[test]
fn the_frames_of_each_chain_of_calls_fit_the_stack_of_old_kernels() {
    let mut object = Object::parse(sluice::datapath::OBJECT).expect("it is an object");
    let sections = object.functions.keys().map(|&(section, _)| section).collect();
    object.relocate_calls(&sections).expect("the functions are all there");
    for (name, program) in &object.programs {
        let linked = &object.functions[&program.function_key()].instructions;
        let frames = frames(linked);
        let (depth, chain) = deepest(&frames, 0);
        assert!(depth <= STACK_MAX, "{name} takes {depth} bytes of stack, by frames of {chain:?}");
    }
    assert!(!object.programs.is_empty());
}

/// A function of a linked program: the bytes of its frame, and the functions that it calls, by their first instructions.
#[derive(Default)]
struct Frame {
    bytes: usize,
    calls: BTreeSet<usize>,
}

fn frames(program: &[bpf_insn]) -> BTreeMap<usize, Frame> {
    let callee = |(at, insn): (usize, &bpf_insn)| {
        let is_call = u32::from(insn.code) == BPF_JMP | BPF_CALL && u32::from(insn.src_reg()) == BPF_PSEUDO_CALL;
        is_call.then(|| (at, at.checked_add_signed(insn.imm as isize + 1).expect("it lies in the program")))
    };
    let calls: Vec<_> = program.iter().enumerate().filter_map(callee).collect();
    let mut frames: BTreeMap<usize, Frame> = calls.iter().map(|&(_, to)| (to, Frame::default())).collect();
    frames.insert(0, Frame::default());
    let starts: Vec<_> = frames.keys().copied().chain([program.len()]).collect();
    for part in starts.windows(2) {
        let frame = frames.get_mut(&part[0]).expect("it begins there");
        frame.bytes = frame_of(&program[part[0]..part[1]]);
        frame.calls = calls.iter().filter(|(at, _)| (part[0]..part[1]).contains(at)).map(|&(_, to)| to).collect();
    }
    frames
}

/// The lowest byte below the frame pointer that is accessed, or of which a pointer is made.
fn frame_of(function: &[bpf_insn]) -> usize {
    // What each register lies from the frame pointer, if it was made of it.
    let mut from_top = [None; 11];
    from_top[10] = Some(0_i32);
    let mut lowest = 0;
    for insn in function {
        let (code, to, from) = (u32::from(insn.code), usize::from(insn.dst_reg()), usize::from(insn.src_reg()));
        let accessed = match code & 7 {
            BPF_LDX => from_top[from],
            BPF_ST | BPF_STX => from_top[to],
            _ => None,
        };
        lowest = lowest.min(accessed.map_or(0, |top| top + i32::from(insn.off)));
        match code & 7 {
            BPF_ST | BPF_STX | BPF_JMP | BPF_JMP32 => {}
            BPF_ALU64 if code == BPF_ALU64 | BPF_MOV | BPF_X => from_top[to] = from_top[from],
            BPF_ALU64 if code == BPF_ALU64 | BPF_ADD => {
                from_top[to] = from_top[to].map(|top| top + insn.imm);
                lowest = lowest.min(from_top[to].unwrap_or(0));
            }
            _ => from_top[to] = None,
        }
    }
    usize::try_from(-lowest).expect("frames lie below their pointer")
}

fn deepest(frames: &BTreeMap<usize, Frame>, at: usize) -> (usize, Vec<usize>) {
    let Frame { bytes, calls } = &frames[&at];
    let (below, mut chain) = calls.iter().map(|&to| deepest(frames, to)).max().unwrap_or_default();
    chain.insert(0, *bytes);
    (below + (*bytes).max(1).next_multiple_of(FRAME_STEP), chain)
}
