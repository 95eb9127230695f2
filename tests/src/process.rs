//! Processes inside namespaces. None outlives this process, whatever ends it.
//!
//! The kernel sends the signal of `PR_SET_PDEATHSIG` when the *thread* that forked ends, so all children are forked by one
//! thread that lives as long as the process. A server with workers gets a PID namespace of its own, of which it is the
//! init: when it dies, the kernel kills the rest.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::ns::Namespace;
use crate::stop;

/// Longest that a command which should end by itself may take.
const RUN_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(2);

/// Whether a process is the init of a PID namespace of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pids {
    /// For a single process.
    Shared,
    /// For a server with workers: they die with it.
    Own,
}

struct Job {
    command: Command,
    network: OwnedFd,
    resolver: Option<PathBuf>,
    pids: Pids,
    reply: Sender<Result<Child>>,
}

/// A running process and its process group. Killed and reaped on drop.
#[derive(Debug)]
pub struct Process {
    what: String,
    child: Child,
}

/// How a command ended, and what it printed.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The command line, for messages.
    pub what: String,
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

impl Finished {
    /// The standard output of a command that succeeded.
    ///
    /// # Errors
    ///
    /// With the exit code and standard error of one that did not.
    pub fn success(self) -> Result<String> {
        if self.code == Some(0) {
            return Ok(self.stdout);
        }
        let Self { what, code, stderr, .. } = self;
        Err(anyhow!("`{what}` ended with {code:?}: {}", stderr.trim()))
    }
}

/// Starts `command` inside `ns`, in a process group of its own, to be killed when this process ends.
///
/// # Errors
///
/// When the program is not there or the namespace cannot be entered.
pub fn spawn(ns: &Namespace, command: Command) -> Result<Process> {
    spawn_as(ns, command, Pids::Shared)
}

pub(crate) fn spawn_as(ns: &Namespace, mut command: Command, pids: Pids) -> Result<Process> {
    let what = format!("{} in {}", command.get_program().display(), ns.name());
    command.process_group(0);
    // SAFETY: the closure makes one `prctl` system call, which is async-signal-safe, and allocates nothing.
    unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
    let (reply, answer) = channel();
    let (network, resolver) = (ns.fd().try_clone_to_owned()?, ns.resolver().map(Path::to_owned));
    let job = Job { command, network, resolver, pids, reply };
    forker().send(job).map_err(|_unsent| anyhow!("the forking thread is gone"))?;
    let child = answer.recv()?.with_context(|| format!("cannot start {what}"))?;
    Ok(Process { what, child })
}

fn forker() -> &'static Sender<Job> {
    static FORKER: OnceLock<Sender<Job>> = OnceLock::new();
    FORKER.get_or_init(|| {
        let (sender, jobs) = channel::<Job>();
        thread::spawn(move || {
            for Job { mut command, network, resolver, pids, reply } in jobs {
                // The asker may be gone; its child is then reaped by nobody but still dies with us.
                let forked = match resolver {
                    None => fork(&mut command, &network, pids),
                    Some(file) => resolving(&file, || fork(&mut command, &network, pids)),
                };
                reply.send(forked).ok();
            }
        });
        sender
    })
}

/// Forks in a mount namespace of its own, where that file is `/etc/resolv.conf`.
fn resolving(file: &Path, fork: impl FnOnce() -> Result<Child>) -> Result<Child> {
    let none = None::<&Path>;
    let home = File::open("/proc/thread-self/ns/mnt")?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Private first: the mount must not be seen outside.
    let child = mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .and_then(|()| mount(Some(file), "/etc/resolv.conf", none, MsFlags::MS_BIND, none))
        .map_err(anyhow::Error::from)
        .and_then(|()| fork());
    setns(home, CloneFlags::CLONE_NEWNS)?;
    child
}

fn fork(command: &mut Command, network: &OwnedFd, pids: Pids) -> Result<Child> {
    let home_network = File::open("/proc/thread-self/ns/net")?;
    let home_pids = File::open("/proc/thread-self/ns/pid")?;
    setns(network, CloneFlags::CLONE_NEWNET)?;
    let child = match pids {
        Pids::Shared => command.spawn().map_err(Into::into),
        Pids::Own => unshare(CloneFlags::CLONE_NEWPID)
            .map_err(anyhow::Error::from)
            .and_then(|()| command.spawn().map_err(Into::into)),
    };
    if pids == Pids::Own {
        setns(home_pids.as_fd(), CloneFlags::CLONE_NEWPID)?;
    }
    setns(home_network.as_fd(), CloneFlags::CLONE_NEWNET)?;
    child
}

impl Process {
    /// Process id, as this process sees it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends `signal` to the process and all of its group.
    ///
    /// # Errors
    ///
    /// When the group is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let group = Pid::from_raw(i32::try_from(self.child.id())?);
        killpg(group, signal).with_context(|| format!("cannot send {signal} to {}", self.what))
    }

    /// The exit status, if it has ended.
    ///
    /// # Errors
    ///
    /// When the kernel does not tell.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for the end.
    ///
    /// # Errors
    ///
    /// After `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() >= limit {
                bail!("{} did not end within {limit:?}", self.what);
            }
            thread::sleep(POLL);
        }
    }

    /// Kills the group and reaps the process.
    ///
    /// # Errors
    ///
    /// When it was gone already.
    pub fn kill(&mut self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks the process to end with SIGTERM; kills it after `limit`.
    ///
    /// # Errors
    ///
    /// When it had to be killed.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        let ended = self.wait(limit);
        if ended.is_err() {
            self.kill()?;
        }
        ended
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill().ok();
        }
    }
}

/// Runs `program` inside `ns` to its end, without input.
///
/// # Errors
///
/// When it cannot be started, does not end within 30 s, or the run is interrupted.
pub fn run(ns: &Namespace, program: &str, arguments: &[&str]) -> Result<Finished> {
    run_with_input(ns, program, arguments, "")
}

/// Runs `program` inside `ns` to its end, feeding it `input`.
///
/// # Errors
///
/// As [`run`].
pub fn run_with_input(ns: &Namespace, program: &str, arguments: &[&str], input: &str) -> Result<Finished> {
    let mut command = Command::new(program);
    command.args(arguments);
    run_command(ns, command, input, RUN_LIMIT)
}

pub(crate) fn run_command(ns: &Namespace, mut command: Command, input: &str, limit: Duration) -> Result<Finished> {
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    let what = format!("{} {}", command.get_program().display(), arguments.join(" "));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = spawn(ns, command)?;
    let (stdin, stdout, stderr) =
        (process.child.stdin.take(), process.child.stdout.take(), process.child.stderr.take());
    thread::scope(|scope| {
        let stdout = scope.spawn(|| read_all(stdout));
        let stderr = scope.spawn(|| read_all(stderr));
        // A command that does not read its input ends the pipe early; its exit code tells the story.
        stdin.map(|mut pipe| pipe.write_all(input.as_bytes()).ok());
        let start = Instant::now();
        let status = loop {
            match process.ended()? {
                Some(status) => break Ok(status),
                None if start.elapsed() >= limit => break Err(anyhow!("`{what}` did not end within {limit:?}")),
                None => thread::sleep(POLL),
            }
            // Cleaning up runs commands too, so only long ones give way to Ctrl-C.
            if stop::requested() && start.elapsed() > Duration::from_secs(5) {
                break Err(anyhow!("interrupted"));
            }
        };
        if status.is_err() {
            process.kill()?;
        }
        let joined = |reader: thread::ScopedJoinHandle<'_, String>| reader.join().unwrap_or_default();
        let (stdout, stderr) = (joined(stdout), joined(stderr));
        Ok(Finished { what: what.clone(), code: status?.code(), stdout, stderr })
    })
}

fn read_all(pipe: Option<impl std::io::Read>) -> String {
    let mut bytes = Vec::new();
    pipe.map(|mut pipe| pipe.read_to_end(&mut bytes).ok());
    String::from_utf8_lossy(&bytes).into_owned()
}
