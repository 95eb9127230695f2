//! The command line's end of the socket. Blocking, with a deadline on everything.

use super::protocol::{Answer, Ask, REPLY_BYTES_MAX, Reply, Request};
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

/// Longest wait for an answer that needs no work.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Added to the server's own limit on commands, so that its words arrive.
const COMMAND_MAX: Duration = Duration::from_secs(35);
/// The daemon says something every 30 s to those who follow.
const FOLLOW_MAX: Duration = Duration::from_secs(65);

/// Why the daemon gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("no sluice daemon listens on {path}")]
    NotReachable {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The caller may not open the socket.
    #[error("not allowed to open {path}; run as root, or join the group that owns it")]
    NotAllowed {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It listens, and says nothing.
    #[error("the daemon on {path} does not answer")]
    Silent {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It closed the connection instead of an answer.
    #[error("the daemon on {path} hung up")]
    HungUp {
        /// The socket.
        path: PathBuf,
    },
    /// It answered something that this version doesn't know.
    #[error("the daemon on {path} answers what this version doesn't understand; restart it after an upgrade")]
    Foreign {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// It could not make sense of the question, or knows nothing yet.
    #[error("{message}")]
    Complaint {
        /// In the daemon's words.
        message: String,
    },
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    path: PathBuf,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    ///
    /// Nobody listens, or the caller may not.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        match UnixStream::connect(path) {
            Ok(stream) => Ok(Self { stream: BufReader::new(stream), path: path.to_path_buf() }),
            Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                Err(ClientError::NotAllowed { path: path.to_path_buf(), source })
            }
            Err(source) => Err(ClientError::NotReachable { path: path.to_path_buf(), source }),
        }
    }

    /// Asks for one answer.
    ///
    /// # Errors
    ///
    /// The daemon is silent, gone, foreign, or complains.
    pub fn ask(&mut self, ask: Ask) -> Result<Answer, ClientError> {
        let wait = match &ask {
            Ask::Ping | Ask::Status | Ask::Events { .. } => ANSWER_MAX,
            Ask::Origin { .. } | Ask::Failback { .. } | Ask::Reload { .. } => COMMAND_MAX,
            Ask::Detach { drain_ms, .. } => COMMAND_MAX + Duration::from_millis(drain_ms.unwrap_or(0)),
        };
        self.send(ask)?;
        self.receive(wait)
    }

    /// Asks for events. `each` gets every answer, until it says `false`.
    ///
    /// # Errors
    ///
    /// As [`Self::ask`].
    pub fn events(
        &mut self,
        since_ns: u64,
        follow: bool,
        mut each: impl FnMut(Answer) -> bool,
    ) -> Result<(), ClientError> {
        self.send(Ask::Events { since_ns, follow })?;
        let mut wait = ANSWER_MAX;
        loop {
            let answer = self.receive(wait)?;
            let kept = matches!(answer, Answer::Kept { .. });
            if !each(answer) || (kept && !follow) {
                return Ok(());
            }
            if kept {
                wait = FOLLOW_MAX;
            }
        }
    }

    fn send(&mut self, ask: Ask) -> Result<(), ClientError> {
        let mut line = serde_json::to_vec(&Request::new(ask)).map_err(|source| self.foreign(source))?;
        line.push(b'\n');
        let stream = self.stream.get_mut();
        let sent = stream.set_write_timeout(Some(ANSWER_MAX)).and_then(|()| stream.write_all(&line));
        sent.map_err(|source| self.silent(source))
    }

    fn receive(&mut self, wait: Duration) -> Result<Answer, ClientError> {
        let mut line = Vec::new();
        let limit = u64::try_from(REPLY_BYTES_MAX).unwrap_or(u64::MAX);
        let wait = self.stream.get_ref().set_read_timeout(Some(wait));
        let read = wait.and_then(|()| (&mut self.stream).take(limit).read_until(b'\n', &mut line));
        match read {
            Ok(_) if line.last() == Some(&b'\n') => {}
            Ok(_) => return Err(ClientError::HungUp { path: self.path.clone() }),
            Err(source) => return Err(self.silent(source)),
        }
        let reply: Reply = serde_json::from_slice(&line).map_err(|source| self.foreign(source))?;
        match reply.answer {
            Answer::Error { message } => Err(ClientError::Complaint { message }),
            answer => Ok(answer),
        }
    }

    fn silent(&self, source: io::Error) -> ClientError {
        ClientError::Silent { path: self.path.clone(), source }
    }

    fn foreign(&self, source: serde_json::Error) -> ClientError {
        ClientError::Foreign { path: self.path.clone(), source }
    }
}

impl ClientError {
    /// Whether there is a daemon that could be asked again; otherwise the maps are all there is.
    #[must_use]
    pub const fn is_reachable(&self) -> bool {
        match self {
            Self::NotReachable { .. } | Self::Silent { .. } | Self::HungUp { .. } => false,
            Self::NotAllowed { .. } | Self::Foreign { .. } | Self::Complaint { .. } => true,
        }
    }
}
