//! A worker as the daemon sees it: one question at a time, each with a deadline, and an end that always comes.

use super::{
    protocol::{Answered, Asked, Confine, PROTOCOL, Reply, Request, encode, frame_length},
    slate::{At, Call, Slate},
    spawn::{Program, Started, start},
    trouble::Trouble,
};
use nix::{
    errno::Errno,
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use std::{
    collections::BTreeMap, fs::File, io, io::Write, os::fd::OwnedFd, os::unix::process::ExitStatusExt, path::PathBuf,
    process::ExitStatus, time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    process::{Child, ChildStderr},
    time::{Instant, timeout, timeout_at},
};

/// For the new process to begin, and to give up its rights.
const HELLO_MAX: Duration = Duration::from_secs(2);
/// A killed process is gone within a millisecond; one that is not within this is stuck in the kernel.
const REAP_MAX: Duration = Duration::from_secs(2);
/// Time that a module has to finalise.
pub(super) const QUIT_MAX: Duration = Duration::from_secs(2);
/// What a module may print in its life before its words are thrown away.
const LOG_BYTES_MAX: usize = 64 << 10;

/// Everything about a slot that its worker needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) program: Program,
    /// `service/origin`: for logs and the process list.
    pub(super) slot: String,
    pub(super) module: PathBuf,
    pub(super) env: BTreeMap<String, String>,
    pub(super) user: Option<(u32, u32)>,
    pub(super) memory_max: u64,
}

/// Why a worker is no more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Death {
    /// It could not be started: our own trouble.
    #[error("a worker cannot be started")]
    Unborn(#[source] io::Error),
    /// A call did not return.
    #[error("{} did not return within {after:?}", at.map_or("the worker", Call::name))]
    Hung { at: Option<Call>, after: Duration },
    /// It ended by itself, or something ended it.
    #[error("the worker ended ({how}) in {}", at.map_or("no call", Call::name))]
    Died { at: Option<Call>, how: How },
    /// It does not keep to the protocol.
    #[error("the worker broke the protocol: {0}")]
    Breach(&'static str),
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Signal(i32),
    Status(i32),
    /// It was not seen.
    Unknown,
}

impl std::fmt::Display for How {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Signal(number) => {
                let name = Signal::try_from(*number).map_or("a signal", Signal::as_str);
                f.write_str(name)
            }
            Self::Status(status) => write!(f, "status {status}"),
            Self::Unknown => f.write_str("unseen"),
        }
    }
}

impl From<ExitStatus> for How {
    fn from(status: ExitStatus) -> Self {
        match (status.signal(), status.code()) {
            (Some(signal), _) => Self::Signal(signal),
            (None, Some(code)) => Self::Status(code),
            (None, None) => Self::Unknown,
        }
    }
}

/// A reply, and what each vendor call behind it took.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) reply: Result<Reply, Trouble>,
    pub(super) calls: Vec<(Call, u64)>,
    pub(super) leaked: Option<u64>,
}

/// What a worker left behind.
#[derive(Debug, Default)]
pub(super) struct Remains {
    /// Sessions that it may have had open.
    pub(super) sessions: u32,
    /// A process that does not even die when it is killed. Keep it, and start no other for this slot until it ends.
    pub(super) stuck: Option<Child>,
}

/// A living worker. Dropped without [`Self::end`] or [`Self::kill`], it is killed.
pub(super) struct Process {
    child: Child,
    pid: u32,
    socket: UnixStream,
    pin: Option<OwnedFd>,
    slate: Slate,
    generation: u64,
    next: u64,
    /// A question is open: the process can't be asked another.
    pub(super) busy: bool,
}

impl Process {
    /// Starts a worker and takes its rights away. The module is not loaded yet.
    pub(super) async fn begin(setup: &Setup, generation: u64) -> Result<Self, (Death, Remains)> {
        let started = start(&setup.program, &setup.slot, &setup.env).await;
        let Started { child, socket, pin, slate, log } =
            started.map_err(|error| (Death::Unborn(error), Remains::default()))?;
        let pid = child.id().unwrap_or_default();
        if let Some(log) = log {
            tokio::spawn(keep_log(log, setup.slot.clone(), pid));
        }
        let mut process = Self { child, pid, socket, pin: Some(pin), slate, generation, next: 0, busy: false };
        let parent = i32::try_from(std::process::id()).unwrap_or_default();
        let confine = Confine { user: setup.user, memory_max: setup.memory_max, parent };
        match process.ask(Request::Confine(confine), HELLO_MAX).await {
            Ok(Answer { reply: Ok(Reply::Hello { protocol: PROTOCOL, .. }), .. }) => Ok(process),
            Ok(Answer { reply: Err(trouble), .. }) => {
                let remains = process.kill().await;
                Err((Death::Unborn(io::Error::other(trouble)), remains))
            }
            Ok(_) => {
                let remains = process.kill().await;
                Err((Death::Breach("another version answers"), remains))
            }
            Err(death) => {
                let remains = process.kill().await;
                Err((death, remains))
            }
        }
    }

    pub(super) const fn pid(&self) -> u32 {
        self.pid
    }

    /// The call that is being made and the sessions that are held.
    pub(super) fn at(&self) -> At {
        self.slate.read()
    }

    /// Asks, and waits for the answer until the deadline. After an error the process is worth nothing: kill it.
    pub(super) async fn ask(&mut self, request: Request, within: Duration) -> Result<Answer, Death> {
        self.busy = true;
        self.next += 1;
        let asked = Asked { id: self.next, generation: self.generation, request };
        let frame = encode(&asked).map_err(|_long| Death::Breach("a question is too long"))?;
        let deadline = Instant::now() + within;
        match timeout_at(deadline, self.exchange(&frame)).await {
            Err(_elapsed) => Err(Death::Hung { at: self.at().call, after: within }),
            Ok(Err(Gone::Breach(what))) => Err(Death::Breach(what)),
            Ok(Err(Gone::Closed)) => Err(self.died().await),
            Ok(Ok(bytes)) => {
                let answered: Answered =
                    serde_json::from_slice(&bytes).map_err(|_bad| Death::Breach("no JSON of ours"))?;
                if (answered.id, answered.generation) != (self.next, self.generation) {
                    return Err(Death::Breach("an answer to another question"));
                }
                self.busy = false;
                let Answered { answer, calls, leaked, .. } = answered;
                Ok(Answer { reply: answer, calls, leaked })
            }
        }
    }

    async fn exchange(&mut self, frame: &[u8]) -> Result<Vec<u8>, Gone> {
        self.socket.write_all(frame).await.map_err(|_broken| Gone::Closed)?;
        let mut length = [0; 4];
        self.socket.read_exact(&mut length).await.map_err(|_broken| Gone::Closed)?;
        let length = frame_length(length).ok_or(Gone::Breach("a frame is too long"))?;
        let mut bytes = vec![0; length];
        self.socket.read_exact(&mut bytes).await.map_err(|_broken| Gone::Closed)?;
        Ok(bytes)
    }

    /// It closed its end: a death, whatever its status says.
    async fn died(&mut self) -> Death {
        let status = timeout(REAP_MAX, self.child.wait()).await;
        let how = status.map_or(How::Unknown, |status| status.map_or(How::Unknown, How::from));
        Death::Died { at: self.at().call, how }
    }

    /// Hands over the PIN, through a pipe of its own that is closed behind it. Once in a worker's life.
    pub(super) fn give_pin(&mut self, pin: &[u8]) -> io::Result<()> {
        let pipe = self.pin.take().ok_or_else(|| io::Error::other("the PIN was given already"))?;
        // A pipe holds 64 KiB: this never waits.
        File::from(pipe).write_all(pin)
    }

    /// Asks it to close all and to end; kills it if it does not. True if it did, and so holds no session any more.
    pub(super) async fn end(mut self, within: Duration) -> (bool, Remains) {
        if self.busy {
            return (false, self.kill().await);
        }
        let clean = matches!(self.ask(Request::Quit, within).await, Ok(Answer { reply: Ok(Reply::Bye), .. }));
        let mut remains = self.kill().await;
        if clean {
            remains.sessions = 0;
        }
        (clean, remains)
    }

    /// Kills it and all that it started, and waits until it is gone.
    pub(super) async fn kill(mut self) -> Remains {
        // While it is not reaped, its number can't be anybody else's.
        if self.child.id().is_some() {
            let group = Pid::from_raw(i32::try_from(self.pid).unwrap_or_default());
            match killpg(group, Signal::SIGKILL) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => tracing::error!(pid = self.pid, %error, "cannot kill a PKCS#11 worker"),
            }
        }
        let reaped = timeout(REAP_MAX, self.child.wait()).await.is_ok();
        let sessions = self.at().sessions;
        Remains { sessions, stuck: (!reaped).then_some(self.child) }
    }
}

/// The other end is no partner any more.
enum Gone {
    Closed,
    Breach(&'static str),
}

/// Reads what the module prints, always, so that it never waits for us; and keeps little of it.
async fn keep_log(mut log: ChildStderr, slot: String, pid: u32) {
    let mut buffer = [0; 1024];
    let mut left = LOG_BYTES_MAX;
    while let Ok(read @ 1..) = log.read(&mut buffer).await {
        if left > 0 {
            left = left.saturating_sub(read);
            let text = String::from_utf8_lossy(&buffer[..read]);
            tracing::debug!(slot, pid, text = text.trim_end(), more = left > 0, "a PKCS#11 module says");
        }
    }
}
