//! Each program by itself: what the verifier says, and whether it goes onto its hook.

use std::error::Error;
use std::fs::File;

use anyhow::{Context as _, Result};
use aya::programs::tc::{NlOptions, TcAttachOptions, qdisc_add_clsact};
use aya::programs::{CgroupAttachMode, LinkOrder, Program, ProgramError, SchedClassifier, TcAttachType, XdpMode};
use aya::util::KernelVersion;
use aya::{Ebpf, EbpfLoader};
use health_common::map;
use lab::guest::GuestLine;

use crate::{lacks, tell};

const CGROUP: &str = "/sys/fs/cgroup";
const INTERFACE: &str = "orig0";

/// Tables are not what is tested here.
const ENTRIES: u32 = 256;

const TABLES: [&str; 17] = [
    map::ORIGINS,
    map::STATES,
    map::COUNTERS,
    map::SERVICES,
    map::SELECTORS,
    map::TABLES,
    map::ENDPOINTS,
    map::NAMES,
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

/// Loads all programs, even after one was refused, and attaches each that was not. Whether none was.
pub(crate) fn test() -> Result<bool> {
    let tcx = KernelVersion::current()? >= KernelVersion::new(6, 6, 0);
    if !tcx {
        lacks("TCX (Linux 6.6)", "TC programs are filters under clsact, which outlive their owner")?;
    }
    let mut loader = EbpfLoader::new();
    for name in TABLES {
        loader.map_max_entries(name, ENTRIES);
    }
    let mut ebpf = loader.load(sluice::datapath::OBJECT).context("the kernel takes none of the object's maps")?;
    let mut names: Vec<_> = ebpf.programs().map(|(name, _)| name.to_owned()).collect();
    names.sort();
    let mut all = true;
    for program in &names {
        let (walked, error) = match load(&mut ebpf, program) {
            Ok(walked) => (walked, None),
            Err(error) => (None, Some(chain(&error))),
        };
        let refused = error.is_some();
        tell(&GuestLine::Loaded { program: program.clone(), walked, error })?;
        if refused {
            all = false;
        } else {
            attach(&mut ebpf, program, tcx)?;
        }
    }
    Ok(all)
}

/// The error with all its causes; the verifier's words are the last one.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

/// How many instructions the verifier walked through.
fn load(ebpf: &mut Ebpf, name: &str) -> Result<Option<u32>, ProgramError> {
    let info = match ebpf.program_mut(name).ok_or(ProgramError::UnexpectedProgramType)? {
        Program::SchedClassifier(program) => program.load().and_then(|()| program.info()),
        Program::Xdp(program) => program.load().and_then(|()| program.info()),
        Program::CgroupSockAddr(program) => program.load().and_then(|()| program.info()),
        Program::CgroupSock(program) => program.load().and_then(|()| program.info()),
        Program::SockOps(program) => program.load().and_then(|()| program.info()),
        _ => Err(ProgramError::UnexpectedProgramType),
    };
    info.map(|info| info.verified_instruction_count())
}

/// Onto each hook that its type may have, and off again.
fn attach(ebpf: &mut Ebpf, name: &str, tcx: bool) -> Result<()> {
    let cgroup = File::open(CGROUP)?;
    let mode = CgroupAttachMode::Single;
    let attached = match ebpf.program_mut(name).context("it was loaded")? {
        Program::SchedClassifier(program) => {
            let way = if tcx { "TCX" } else { "clsact" };
            [("tc_ingress", TcAttachType::Ingress), ("tc_egress", TcAttachType::Egress)]
                .map(|(hook, direction)| (format!("{hook} by {way}"), attach_tc(program, direction, tcx)))
                .into()
        }
        Program::Xdp(program) => {
            let done = program.attach(INTERFACE, XdpMode::Driver).and_then(|id| program.detach(id));
            vec![("xdp in the driver".to_owned(), done)]
        }
        Program::CgroupSockAddr(program) => {
            let done = program.attach(cgroup, mode).and_then(|id| program.detach(id));
            vec![("cgroup".to_owned(), done)]
        }
        Program::CgroupSock(program) => {
            let done = program.attach(cgroup, mode).and_then(|id| program.detach(id));
            vec![("cgroup".to_owned(), done)]
        }
        Program::SockOps(program) => {
            let done = program.attach(cgroup, mode).and_then(|id| program.detach(id));
            vec![("cgroup".to_owned(), done)]
        }
        _ => Vec::new(),
    };
    for (hook, done) in attached {
        let error = done.err().map(|error| chain(&error));
        tell(&GuestLine::Attached { program: name.to_owned(), hook, error })?;
    }
    Ok(())
}

fn attach_tc(program: &mut SchedClassifier, direction: TcAttachType, tcx: bool) -> Result<(), ProgramError> {
    let options = if tcx {
        TcAttachOptions::TcxOrder(LinkOrder::default())
    } else {
        // It fails when the qdisc is there already; if it fails otherwise, so does attaching.
        drop(qdisc_add_clsact(INTERFACE));
        TcAttachOptions::Netlink(NlOptions::default())
    };
    program.attach_with_options(INTERFACE, direction, options).and_then(|id| program.detach(id))
}
