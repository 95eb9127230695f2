//! The wrapper program, and the script that it follows.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::maps::{Array, MapData, ProgramArray};
use aya::programs::SchedClassifier;
use aya::{Ebpf, Pod, TestRun as _, TestRunOptions};

use crate::support::{Hook, Kernel, SHOT};

/// Bytes of each packet that the wrapper writes.
const TEMPLATE: usize = 80;
const HOOKS: [Hook; 3] = [Hook::Trivial, Hook::Egress, Hook::Ingress];

/// The same layout as in `health-ebpf/src/bench.rs`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Script {
    next: u64,
    flows_mask: u64,
    template: [u8; TEMPLATE],
    port_at: u32,
    net_at: u32,
    seq_at: u32,
    seq: u32,
    step: u32,
    flows_log2: u32,
    target: u32,
    len: u32,
}

// SAFETY: `repr(C)`, integers and an array of them, no padding (asserted below).
unsafe impl Pod for Script {}

const _: () = assert!(size_of::<Script>() == 16 + TEMPLATE + 32);

/// A packet to repeat.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) hook: Hook,
    /// Its node's port, and a byte of its address where ports don't suffice, are replaced by each flow's.
    pub(crate) packet: Vec<u8>,
    /// Added to its sequence number each turn.
    pub(crate) step: u32,
    /// Turns that earlier runs took.
    pub(crate) turns: u32,
    /// Power of two of the flows that take turns.
    pub(crate) flows_log2: u32,
}

/// The loaded wrapper.
pub(crate) struct Wrapper(Ebpf);

impl Wrapper {
    /// Loads it, with the programs of `kernel` behind it.
    pub(crate) fn load(kernel: &Kernel) -> Result<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../health-ebpf/target/bpfel-unknown-none/release/bench");
        let object = std::fs::read(&path)
            .with_context(|| format!("no {}: build `sluice` first, which builds the kernel half", path.display()))?;
        let mut ebpf = Ebpf::load(&object)?;
        let program: &mut SchedClassifier = ebpf.program_mut("wrapper").context("no wrapper")?.try_into()?;
        program.load()?;
        let mut programs = ProgramArray::try_from(ebpf.map_mut("programs").context("no programs")?)?;
        for (place, hook) in (0..).zip(HOOKS) {
            programs.set(place, kernel.program(hook).fd()?, 0)?;
        }
        Ok(Self(ebpf))
    }

    /// Runs `stream` for `repeat` packets, with another program in its place where `hook` says so. Time of each.
    pub(crate) fn run(&mut self, stream: &Stream, hook: Hook, repeat: u32) -> Result<Duration> {
        let target = HOOKS.iter().position(|&known| known == hook).context("an unknown hook")?;
        let script = stream.script(u32::try_from(target)?)?;
        let mut map: Array<&mut MapData, Script> = self.0.map_mut("script").context("no script")?.try_into()?;
        map.set(0, script, 0)?;
        let program: &SchedClassifier = self.0.program("wrapper").context("no wrapper")?.try_into()?;
        let options = TestRunOptions { data_in: Some(&stream.packet), repeat, ..TestRunOptions::new() };
        let result = program.test_run(options)?;
        ensure!(result.return_value.cast_signed() != SHOT, "the wrapper gave up");
        Ok(result.duration)
    }
}

impl Stream {
    fn script(&self, target: u32) -> Result<Script> {
        let template = self.packet.get(..TEMPLATE).context("a packet of at least 80 bytes")?.try_into()?;
        let l4: u32 = if self.packet[12] == 8 { 34 } else { 54 };
        // The node is the source of what leaves.
        let egress = self.hook == Hook::Egress;
        let port_at = if egress { l4 } else { l4 + 2 };
        // The last byte but one of its address, for 65,536 flows each.
        let net_at = match (l4, egress) {
            (34, true) => 28,
            (34, false) => 32,
            (_, true) => 36,
            (_, false) => 52,
        };
        let seq_at = l4 + 4;
        let at = usize::try_from(seq_at)?;
        Ok(Script {
            next: 0,
            flows_mask: (1 << self.flows_log2) - 1,
            template,
            port_at,
            net_at,
            seq_at,
            seq: u32::from_be_bytes(self.packet[at..at + 4].try_into()?).wrapping_add(self.turns * self.step),
            step: self.step,
            flows_log2: self.flows_log2,
            target,
            len: u32::try_from(self.packet.len())?,
        })
    }
}
