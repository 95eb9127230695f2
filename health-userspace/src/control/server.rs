//! The daemon's end of the socket.

use super::{
    command::{Command, OriginOrder},
    events::EventLog,
    protocol::{Answer, Ask, Outcome, REQUEST_BYTES_MAX, Reply, Request, VERSION},
};
use crate::report::StatusReport;
use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream, unix::OwnedWriteHalf},
    sync::{Semaphore, broadcast, mpsc, oneshot, watch},
    time::timeout,
};

/// Clients served at once; more wait in the socket's backlog.
const CLIENTS_MAX: usize = 64;
/// A client that neither asks nor follows is sent away after this.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// A follower hears at least this often that all is quiet, which also finds those that have gone.
const QUIET_MAX: Duration = Duration::from_secs(30);
/// A client that takes no bytes for this long is sent away.
const WRITE_MAX: Duration = Duration::from_secs(5);
/// The daemon loads and attaches before its first tick.
const FIRST_TICK_MAX: Duration = Duration::from_secs(3);
/// The loop answers within a tick; a reload of 10 000 origins takes about a second.
const COMMAND_MAX: Duration = Duration::from_secs(30);

/// What the loop publishes after each tick.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// As read back from the maps.
    pub status: StatusReport,
}

/// The daemon, as the socket sees it.
#[derive(Clone, Debug)]
pub struct Handle {
    /// The newest state. `None` until the first tick has ended.
    pub status: watch::Receiver<Option<Arc<Published>>>,
    /// Events.
    pub events: EventLog,
    /// Where commands go. The loop answers each; one that is dropped unanswered counts as failed.
    pub commands: mpsc::Sender<Command>,
}

/// Why the socket can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Another daemon answers there.
    #[error("another sluice daemon listens on {path}; stop it first, or give this one its own `control.socket`")]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something else is in the way.
    #[error("{path} is in the way and is no socket; remove it, or set `control.socket`")]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// A path that names no file.
    #[error("`control.socket` = {path} names no file in a folder")]
    BadPath {
        /// The path.
        path: PathBuf,
    },
    /// The folder can't be made.
    #[error("cannot make the folder of {path}")]
    Folder {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The socket can't be made.
    #[error("cannot listen on {path}")]
    Bind {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// An open socket. Dropping it removes the file, unless another daemon has taken the place.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    inode: u64,
}

/// Opens the socket and serves it for ever.
///
/// # Errors
///
/// As [`Listener::bind`]; once it is open, nothing that a client does ends it.
pub async fn serve(path: &Path, handle: Handle) -> Result<(), ControlError> {
    Listener::bind(path)?.serve(handle).await;
    Ok(())
}

impl Listener {
    /// Opens the socket (0660, its folder 0750 if it must be made). One that a dead daemon left is replaced.
    ///
    /// # Errors
    ///
    /// A live daemon, another kind of file, or the file system are in the way.
    pub fn bind(path: &Path) -> Result<Self, ControlError> {
        let at = || path.to_path_buf();
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(ControlError::BadPath { path: at() });
        };
        if !folder.as_os_str().is_empty() && !folder.is_dir() {
            let made = DirBuilder::new().recursive(true).mode(0o750).create(folder);
            made.map_err(|source| ControlError::Folder { path: at(), source })?;
        }
        refuse_living(path)?;
        // Bound under another name, so that it gets its mode before anyone can open it and takes the place at once.
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", std::process::id()));
        let hidden = folder.join(hidden);
        let bind = || {
            if hidden.exists() {
                fs::remove_file(&hidden)?;
            }
            let socket = UnixListener::bind(&hidden)?;
            fs::set_permissions(&hidden, Permissions::from_mode(0o660))?;
            fs::rename(&hidden, path)?;
            let inode = fs::symlink_metadata(path)?.ino();
            Ok((socket, inode))
        };
        let (socket, inode) = bind().map_err(|source| ControlError::Bind { path: at(), source })?;
        Ok(Self { socket, path: at(), inode })
    }

    /// Serves clients for ever.
    pub async fn serve(self, handle: Handle) {
        let places = Arc::new(Semaphore::new(CLIENTS_MAX));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            match self.socket.accept().await {
                Ok((stream, _)) => {
                    let handle = handle.clone();
                    tokio::spawn(async move {
                        if let Err(error) = attend(stream, &handle).await {
                            tracing::debug!(%error, "a control client went away");
                        }
                        drop(place);
                    });
                }
                // Out of descriptors, most likely: the socket stays, so wait instead of spinning.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a control client");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let own = fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode);
        if own && let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "the control socket stays behind");
        }
    }
}

fn refuse_living(path: &Path) -> Result<(), ControlError> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(ControlError::NoSocket { path: path.to_path_buf() });
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        // It was removed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A full backlog (`EAGAIN`) is a living daemon too.
        _ => Err(ControlError::InUse { path: path.to_path_buf() }),
    }
}

/// Serves one client until it goes, errs or idles.
async fn attend(stream: UnixStream, handle: &Handle) -> io::Result<()> {
    let by = peer_name(&stream).await;
    let (reader, writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let mut writer = writer;
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = u64::try_from(REQUEST_BYTES_MAX).unwrap_or(u64::MAX);
        let mut bounded = (&mut reader).take(limit);
        let Ok(read) = timeout(IDLE_MAX, bounded.read_until(b'\n', &mut line)).await else { return Ok(()) };
        if read? == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') && line.len() >= REQUEST_BYTES_MAX {
            // What follows is the rest of the same line; there is no way to find the next one.
            return send(&mut writer, complaint(format!("a request is at most {REQUEST_BYTES_MAX} bytes long"))).await;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        match parse(&line) {
            Ok(Ask::Events { since_ns, follow: true }) => return follow(&mut writer, &handle.events, since_ns).await,
            Ok(Ask::Events { since_ns, follow: false }) => {
                let kept = handle.events.since(since_ns);
                send_kept(&mut writer, kept).await?;
            }
            Ok(ask) => {
                let answer = answer(ask, handle, &by).await;
                send(&mut writer, answer).await?;
            }
            Err(message) => send(&mut writer, complaint(message)).await?,
        }
    }
}

fn parse(line: &[u8]) -> Result<Ask, String> {
    /// Read first, because another version may ask for what this one doesn't know.
    #[derive(serde::Deserialize)]
    struct Versioned {
        v: u16,
    }
    let versioned: Versioned =
        serde_json::from_slice(line).map_err(|error| format!("not a request of `sluice`: {error}"))?;
    if versioned.v != VERSION {
        return Err(format!("this daemon speaks version {VERSION}, the request is of version {}", versioned.v));
    }
    let request: Request = serde_json::from_slice(line).map_err(|error| format!("not understood: {error}"))?;
    Ok(request.ask)
}

async fn answer(ask: Ask, handle: &Handle, by: &str) -> Answer {
    let by = by.to_owned();
    match ask {
        Ask::Ping => Answer::Pong { pid: std::process::id(), version: env!("CARGO_PKG_VERSION").to_owned() },
        Ask::Status => {
            let mut status = handle.status.clone();
            // The first tick is at most a moment away.
            let published = timeout(FIRST_TICK_MAX, status.wait_for(Option::is_some)).await;
            match published.ok().and_then(Result::ok).and_then(|published| published.clone()) {
                Some(published) => Answer::Status { status: Box::new(published.status.clone()) },
                None => complaint("the daemon knows nothing yet; ask again in a second".to_owned()),
            }
        }
        Ask::Origin { service, origin, order: kind, reason, for_ms } => {
            let lasts = for_ms.map(Duration::from_millis);
            let order = OriginOrder { service, origin, kind, reason, by, lasts };
            command(handle, COMMAND_MAX, |reply| Command::Origin { order, reply }).await
        }
        Ask::Failback { service, what, reason } => {
            command(handle, COMMAND_MAX, |reply| Command::Failback { service, what, reason, by, reply }).await
        }
        Ask::Reload { dry_run } => command(handle, COMMAND_MAX, |reply| Command::Reload { dry_run, by, reply }).await,
        Ask::Detach { drain_ms, force } => {
            let drain = drain_ms.map(Duration::from_millis);
            let wait = COMMAND_MAX.saturating_add(drain.unwrap_or_default());
            command(handle, wait, |reply| Command::Detach { drain, force, by, reply }).await
        }
        // Answered by `attend`, because they are many lines.
        Ask::Events { .. } => complaint("events are answered line by line".to_owned()),
    }
}

async fn command(handle: &Handle, wait: Duration, make: impl FnOnce(oneshot::Sender<Outcome>) -> Command) -> Answer {
    let (reply, outcome) = oneshot::channel();
    let run = async {
        handle.commands.send(make(reply)).await.ok()?;
        outcome.await.ok()
    };
    let outcome = match timeout(wait, run).await {
        Ok(Some(outcome)) => outcome,
        Ok(None) => Outcome::failed("the daemon ended before it was done"),
        Err(_) => Outcome::failed(format!("the daemon did not answer within {}s; it may still do it", wait.as_secs())),
    };
    Answer::Outcome { outcome }
}

async fn follow(writer: &mut OwnedWriteHalf, events: &EventLog, since_ns: u64) -> io::Result<()> {
    let (kept, mut rest) = events.follow(since_ns);
    send_kept(writer, kept).await?;
    loop {
        let answer = match timeout(QUIET_MAX, rest.recv()).await {
            Ok(Ok(event)) => Answer::Event { event: event.as_ref().clone() },
            Ok(Err(broadcast::error::RecvError::Lagged(missed))) => Answer::Missed { missed },
            Ok(Err(broadcast::error::RecvError::Closed)) => return Ok(()),
            Err(_) => Answer::Quiet,
        };
        send(writer, answer).await?;
    }
}

async fn send_kept(writer: &mut OwnedWriteHalf, kept: super::events::Kept) -> io::Result<()> {
    for event in kept.events {
        send(writer, Answer::Event { event: event.as_ref().clone() }).await?;
    }
    send(writer, Answer::Kept { lost: kept.lost, forgotten: kept.forgotten }).await
}

async fn send(writer: &mut OwnedWriteHalf, answer: Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Reply::new(answer))?;
    line.push(b'\n');
    match timeout(WRITE_MAX, writer.write_all(&line)).await {
        Ok(written) => written,
        Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut)),
    }
}

const fn complaint(message: String) -> Answer {
    Answer::Error { message }
}

/// `li.wei(uid 1007)`, or `uid 1007` where the name can't be found.
async fn peer_name(stream: &UnixStream) -> String {
    let Ok(credentials) = stream.peer_cred() else { return "unknown".to_owned() };
    let uid = credentials.uid();
    // The name service may ask the network.
    let lookup = tokio::task::spawn_blocking(move || nix::unistd::User::from_uid(uid.into()));
    match timeout(Duration::from_secs(2), lookup).await {
        Ok(Ok(Ok(Some(user)))) => format!("{}(uid {uid})", user.name),
        _ => format!("uid {uid}"),
    }
}

#[cfg(test)]
mod tests;
