//! Starting a worker.

use super::{
    protocol::{FD_PIN, FD_SLATE, FD_SOCKET},
    slate::Slate,
};
use command_fds::{CommandFdExt, FdMapping};
use nix::{
    fcntl::OFlag,
    sys::memfd::{MFdFlags, memfd_create},
    unistd::pipe2,
};
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream as StdStream, process::CommandExt},
    },
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Mutex, OnceLock, PoisonError,
        mpsc::{Sender, channel},
    },
};
use tokio::{
    net::UnixStream,
    process::{Child, ChildStderr},
    runtime::Handle,
    sync::oneshot,
};

/// This very program, also if the file was replaced since.
const OURSELVES: &str = "/proc/self/exe";

/// What a worker is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The program that has the worker's subcommand.
    pub path: PathBuf,
}

impl Default for Program {
    fn default() -> Self {
        Self { path: PathBuf::from(OURSELVES) }
    }
}

/// A worker that was just started, and the daemon's ends of what connects them.
pub(super) struct Started {
    pub(super) child: Child,
    pub(super) socket: UnixStream,
    pub(super) pin: OwnedFd,
    pub(super) slate: Slate,
    pub(super) log: Option<ChildStderr>,
}

/// Starts a worker for `slot`, with nothing in its environment but `env`.
pub(super) async fn start(program: &Program, slot: &str, env: &BTreeMap<String, String>) -> io::Result<Started> {
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    let (pin_out, pin_in) = pipe2(OFlag::O_CLOEXEC)?;
    let slate = memfd_create(c"sluice-slate", MFdFlags::MFD_CLOEXEC)?;
    let slate_here = File::from(slate.try_clone()?);
    slate_here.set_len(8)?;
    let mut command = Command::new(&program.path);
    command
        .arg0("sluice")
        .args(["pkcs11", "worker", slot])
        .env_clear()
        .envs(env)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0);
    let mappings = vec![
        FdMapping { parent_fd: OwnedFd::from(theirs), child_fd: FD_SOCKET },
        FdMapping { parent_fd: pin_out, child_fd: FD_PIN },
        FdMapping { parent_fd: slate, child_fd: FD_SLATE },
    ];
    command.fd_mappings(mappings).map_err(io::Error::other)?;
    let mut child = on_the_thread(command).await?;
    let log = child.stderr.take();
    Ok(Started { child, socket: UnixStream::from_std(ours)?, pin: pin_in, slate: Slate::new(slate_here), log })
}

type Work = Box<dyn FnOnce() + Send>;

/// Starts the process from a thread that lives as long as the daemon. A process that asked to be killed when its parent
/// dies (PR_SET_PDEATHSIG) is killed when the *thread* that started it ends, and threads of the runtime may end.
async fn on_the_thread(command: Command) -> io::Result<Child> {
    static THREAD: OnceLock<Mutex<Sender<Work>>> = OnceLock::new();
    let sender = THREAD.get_or_init(|| {
        let (sender, work) = channel::<Work>();
        let spawned = std::thread::Builder::new().name("pkcs11-spawn".to_owned()).spawn(move || {
            for work in work {
                work();
            }
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "cannot start the thread that starts PKCS#11 workers");
        }
        Mutex::new(sender)
    });
    let runtime = Handle::current();
    let (done_in, done) = oneshot::channel();
    let work: Work = Box::new(move || {
        // The runtime reaps the child.
        let _entered = runtime.enter();
        let mut command = tokio::process::Command::from(command);
        command.kill_on_drop(true);
        // Who no longer waits drops the child, and that kills it.
        drop(done_in.send(command.spawn()));
    });
    let sent = sender.lock().unwrap_or_else(PoisonError::into_inner).send(work);
    sent.map_err(|_gone| io::Error::other("the thread that starts workers has ended"))?;
    done.await.map_err(io::Error::other)?
}
