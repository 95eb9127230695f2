//! `script`: a program says whether the origin serves, by its exit code, as Keepalived's MISC_CHECK has it.
//!
//! 0 passes, 1 fails. With `dynamic_weight`, 2 to 255 pass and set the base weight to the code less 2; without it they fail.
//! No shell reads the command, the environment is empty but for a few names, and it runs as a user that may do little, in
//! a process group of its own that is killed as a whole when the round is over, however it ends.

use super::{
    failure,
    kind::{Probe, Setting},
    trace::Trace,
};
use crate::config::ScriptCheck;
use futures_util::future::{BoxFuture, FutureExt};
use health_core::model::{Layer, LocalReason, Outcome, Reason};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use std::{
    io,
    net::SocketAddr,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{ExitStatus, Stdio},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
    time::timeout,
};

/// How much of what a script says is kept, to be shown. The rest is read, so that it never waits for us, and dropped.
const SAID_MAX: usize = 1024;
/// How long output is read after the script has ended. Only what has left its process group can still hold it open.
const LAST_WORDS_MAX: Duration = Duration::from_millis(100);
/// Where programs that a script calls are looked for.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A check made ready to be run against one origin.
pub(super) struct ScriptProbe {
    address: SocketAddr,
    check: ScriptCheck,
}

/// A process group that is killed when it is dropped: the deadline ends a round by dropping it.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(error) = killpg(self.0, Signal::SIGKILL) {
            // Gone already, which is as good.
            tracing::trace!(%error, group = self.0.as_raw(), "nothing left of a script");
        }
    }
}

impl ScriptProbe {
    pub(super) fn new(check: &ScriptCheck, setting: Setting<'_>) -> Self {
        Self { address: setting.address, check: check.clone() }
    }

    async fn round(&self, trace: &mut Trace) -> Outcome {
        trace.begin("run", Layer::Application);
        let mut child = match self.start() {
            Ok(child) => child,
            Err(error) => {
                trace.explain(format!("cannot run {}: {error}", self.check.exec.first().map_or("", String::as_str)));
                return match failure::of_io(&error, Layer::Application) {
                    // No such file, not executable, no such user: nothing that the origin did.
                    Outcome::Fail(_) => Outcome::Local(LocalReason::Start),
                    local => local,
                };
            }
        };
        // Leader of its group, so the group has its number; numbers are given in turn, so it is no one else's so soon.
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(|id| Group(Pid::from_raw(id)));
        let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
        let mut said = Vec::new();
        let mut errors = Vec::new();
        let ended = {
            let mut listening =
                std::pin::pin!(async { tokio::join!(listen(&mut out, &mut said), listen(&mut err, &mut errors)) });
            let (ended, all_heard) = tokio::select! {
                ended = child.wait() => (ended, false),
                _ = &mut listening => (child.wait().await, true),
            };
            // What it left behind ends with it, and with that whoever holds the other end of its output.
            drop(group);
            if !all_heard {
                drop(timeout(LAST_WORDS_MAX, listening).await);
            }
            ended
        };
        said.append(&mut errors);
        if !said.is_empty() {
            trace.explain(String::from_utf8_lossy(&said).trim());
        }
        match ended {
            Ok(status) => self.judge(status, trace),
            Err(error) => failure::of_io(&error, Layer::Application),
        }
    }

    fn start(&self) -> io::Result<Child> {
        let (uid, gid) = self.check.ids;
        let (program, arguments) = self.check.exec.split_first().ok_or(io::ErrorKind::NotFound)?;
        let mut command = std::process::Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", PATH)
            .env("SLUICE_ADDRESS", self.address.ip().to_string())
            .env("SLUICE_PORT", self.address.port().to_string())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        if nix::unistd::geteuid() != uid {
            // The standard library drops all other groups with that.
            command.gid(gid.as_raw()).uid(uid.as_raw());
        }
        Command::from(command).kill_on_drop(true).spawn()
    }

    fn judge(&self, status: ExitStatus, trace: &mut Trace) -> Outcome {
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        match (code, status.signal()) {
            (Some(0), _) => Outcome::Pass,
            (Some(code @ 2..), _) if self.check.dynamic_weight => {
                trace.set_weight(u16::from(code - 2));
                Outcome::Pass
            }
            (Some(code), _) => Outcome::Fail(Reason::Exit(code)),
            (None, signal) => {
                Outcome::Fail(Reason::Signal(signal.and_then(|signal| u8::try_from(signal).ok()).unwrap_or(0)))
            }
        }
    }
}

/// Reads to the end, and keeps the beginning.
async fn listen<R: AsyncRead + Unpin>(from: &mut Option<R>, kept: &mut Vec<u8>) {
    let Some(from) = from else { return };
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let room = SAID_MAX.saturating_sub(kept.len()).min(length);
        kept.extend_from_slice(buffer.get(..room).unwrap_or_default());
    }
}

impl Probe for ScriptProbe {
    fn run<'a>(&'a mut self, trace: &'a mut Trace) -> BoxFuture<'a, Outcome> {
        self.round(trace).boxed()
    }
}
