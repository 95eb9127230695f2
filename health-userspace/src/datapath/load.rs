//! The pin directory and its lock; maps made or adopted, programs loaded.

use std::{
    fs::{self, File},
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, EbpfLoader, VerifierLogLevel,
    programs::{Program, ProgramError},
};
use health_common::map;
use nix::{
    fcntl::{Flock, FlockArg},
    sys::statfs::{BPF_FS_MAGIC, statfs},
};

use super::{
    DatapathError,
    maps::{self, Maps},
};

/// Lines of a verifier's log that are shown.
const WORDS_LINES: usize = 8;

/// The kernel half, as built beside this crate.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/sluice.bpf.o"));

/// Names of the programs in the object, and the kernel that each needs.
pub(super) const PROGRAMS: [(&str, &str); 15] = [
    ("ingress", "6.1"),
    ("ingress_behind", "6.1"),
    ("egress", "6.1"),
    ("client", "6.1"),
    ("ingress_l3", "6.1"),
    ("egress_l3", "6.1"),
    ("client_l3", "6.1"),
    ("xdp_ingress", "6.1"),
    ("connect4", "6.1"),
    ("connect6", "6.1"),
    ("peer4", "6.1"),
    ("peer6", "6.1"),
    ("release", "6.1"),
    ("timeout", "6.1"),
    ("inject", "6.1"),
];

/// Sizes of the maps. Only maps that are made follow them; adopted ones stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Origins.
    pub origins: u32,
    /// Frontends.
    pub frontends: u32,
    /// Connection attempts, of each family.
    pub half_open: u32,
    /// Flows, of each family.
    pub flows: u32,
    /// Redirected flows, of each family.
    pub moved: u32,
}

impl Sizes {
    /// Entries of each map whose size is configured.
    fn entries(&self) -> [(&'static str, u32); 16] {
        [
            (map::ENDPOINTS, self.origins + self.frontends),
            (map::ORIGINS, self.origins),
            (map::STATES, self.origins),
            (map::COUNTERS, self.origins),
            (map::SERVICES, self.origins),
            (map::SELECTORS, self.frontends),
            (map::TABLES, self.frontends * 2),
            (map::HALF_OPEN_V4, self.half_open),
            (map::HALF_OPEN_V6, self.half_open),
            (map::FLOWS_V4, self.flows),
            (map::FLOWS_V6, self.flows),
            (map::MOVED_OUT_V4, self.moved),
            (map::MOVED_OUT_V6, self.moved),
            (map::MOVED_BACK_V4, self.moved),
            (map::MOVED_BACK_V6, self.moved),
            (map::NAMES, 2 * self.origins + self.frontends),
        ]
    }
}

/// The pin directory, held by this daemon alone.
pub(super) struct Pins {
    pub(super) dir: PathBuf,
    /// Kept for its lock.
    _lock: Flock<File>,
}

impl Pins {
    /// Makes the directory if it is not there, and takes its lock.
    pub(super) fn take(dir: &Path) -> Result<Self, DatapathError> {
        let home = maps::home(dir);
        in_bpffs(dir)?;
        let pins = |source| DatapathError::Pins { path: home.clone(), source };
        for part in ["", "links"] {
            fs::create_dir_all(home.join(part)).map_err(|source| match source.kind() {
                std::io::ErrorKind::PermissionDenied => DatapathError::Permission,
                _ => pins(source),
            })?;
        }
        let folder = File::open(&home).map_err(pins)?;
        let lock = Flock::lock(folder, FlockArg::LockExclusiveNonblock).map_err(|_held| DatapathError::Locked {
            path: dir.to_owned(),
            pid: Maps::open(dir).ok().and_then(|maps| maps.node.get(&0, 0).ok()).map(|node| node.daemon_pid),
        })?;
        Ok(Self { dir: dir.to_owned(), _lock: lock })
    }

    /// Where a link is pinned.
    pub(super) fn link(&self, name: &str) -> PathBuf {
        maps::home(&self.dir).join("links").join(name)
    }
}

/// The nearest folder that exists must lie in a BPF filesystem.
fn in_bpffs(dir: &Path) -> Result<(), DatapathError> {
    let existing = dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let is_bpffs = statfs(existing).is_ok_and(|stat| stat.filesystem_type() == BPF_FS_MAGIC);
    // A pin directory of its own mount, not yet made, is told by its parent.
    let empty_root = fs::metadata(existing).is_ok_and(|meta| meta.ino() == 0);
    if is_bpffs || empty_root { Ok(()) } else { Err(DatapathError::NoBpffs { path: dir.to_owned() }) }
}

/// Makes or adopts the maps and loads the programs. Whether the maps were there before.
pub(super) fn load(pins: &Pins, sizes: &Sizes) -> Result<(Ebpf, bool), DatapathError> {
    let home = maps::home(&pins.dir);
    let adopted = home.join(map::NODE).exists();
    let mut loader = EbpfLoader::new();
    for name in maps::ALL {
        loader.map_pin_path(name, home.join(name));
    }
    for (name, entries) in sizes.entries() {
        loader.map_max_entries(name, entries);
    }
    // Quick when all is well; a refused program is loaded again by hand with a full log.
    loader.verifier_log_level(VerifierLogLevel::STATS);
    // The kernel half's log lines cost nothing unless somebody debugs: the verifier removes what a frozen level rules out.
    let level = if tracing::enabled!(tracing::Level::DEBUG) { aya_log::Level::Debug as u8 } else { 0 };
    loader.override_global(aya_log::LEVEL, &level, false);
    let mut ebpf = loader.load(OBJECT).map_err(|source| DatapathError::Object(Box::new(source)))?;
    for (program, needs) in PROGRAMS {
        let found = ebpf.program_mut(program).ok_or(DatapathError::Missing { name: program })?;
        load_program(found).map_err(|source| refused(program, needs, source))?;
    }
    Ok((ebpf, adopted))
}

/// Why a program was not loaded. What the verifier says has its log; whatever number comes with it (mostly EACCES), no right
/// is missing then.
fn refused(program: &'static str, needs: &'static str, source: ProgramError) -> DatapathError {
    let log = match &source {
        ProgramError::LoadError { verifier_log, .. } => verifier_log.to_string(),
        _ => String::new(),
    };
    match last_words(&log) {
        Some(words) => DatapathError::Verifier { program, needs, words },
        None => DatapathError::Program { program, needs, source: Box::new(source) },
    }
}

/// The end of a verifier's log, where it says what it takes exception to. `None` if it has not looked at the program.
fn last_words(log: &str) -> Option<String> {
    let lines: Vec<&str> = log.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(WORDS_LINES)..)?;
    (!last.is_empty()).then(|| last.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n"))
}

fn load_program(program: &mut Program) -> Result<(), ProgramError> {
    match program {
        Program::SchedClassifier(program) => program.load(),
        Program::Xdp(program) => program.load(),
        Program::SockOps(program) => program.load(),
        Program::CgroupSockAddr(program) => program.load(),
        Program::CgroupSock(program) => program.load(),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

/// A program's descriptor, for links.
pub(super) fn program_fd(ebpf: &Ebpf, name: &'static str) -> Result<OwnedFd, DatapathError> {
    use std::os::fd::AsFd;
    let program = ebpf.program(name).ok_or(DatapathError::Missing { name })?;
    let fd = match program {
        Program::SchedClassifier(program) => program.fd(),
        Program::Xdp(program) => program.fd(),
        Program::SockOps(program) => program.fd(),
        Program::CgroupSockAddr(program) => program.fd(),
        Program::CgroupSock(program) => program.fd(),
        _ => Err(ProgramError::UnexpectedProgramType),
    };
    let link = |source| DatapathError::Link { link: name.to_owned(), source };
    let fd = fd.map_err(|error| link(std::io::Error::other(error)))?;
    fd.as_fd().try_clone_to_owned().map_err(link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Exit, Failure};
    use aya_obj::VerifierLog;
    use std::io;

    /// EACCES is what the verifier answers, and root gets it like everybody else.
    fn failure(log: &str) -> Failure {
        let io_error = io::Error::from(io::ErrorKind::PermissionDenied);
        let source = ProgramError::LoadError { io_error, verifier_log: VerifierLog::new(log.to_owned()) };
        Failure::of(refused("egress", "6.1", source))
    }

    #[test]
    fn what_the_verifier_does_not_like_is_no_want_of_permission() {
        let log = ["func#0 @0", "0: R1=ctx() R10=fp0", "", "combined stack size of 4 calls is 544. Too large", ""];
        let shown = failure(&log.join("\n"));
        assert_eq!(shown.exit, Exit::Failed);
        assert!(shown.message.contains("`egress`"), "{shown}");
        assert!(shown.message.ends_with("\n  combined stack size of 4 calls is 544. Too large"), "{shown}");
        let cut = failure(&["a line"; 1000].join("\n"));
        assert_eq!(cut.message.matches("\n  a line").count(), WORDS_LINES);
    }

    #[test]
    fn what_never_came_to_the_verifier_is_what_the_kernel_says() {
        assert_eq!([failure("").exit, failure("\n \n").exit], [Exit::NoPermission; 2]);
    }
}
