//! TLS as all kinds speak it, and `tls`: a session is made, with a certificate that holds.
//!
//! | file | does |
//! |---|---|
//! | `trust` | whom checks trust and what they show, followed when files change |
//! | `lane` | sessions that are resumed, of one check with one server |
//! | `verify` | whether a certificate holds, and when it ends |
//! | `reason` | what an error of the library means |

mod lane;
mod reason;
mod trust;
mod verify;

pub(super) use reason::of_tls;
pub(super) use trust::Trust;

use super::{
    ProbeError, failure,
    kind::{Probe, Setting},
    socket::Sockets,
    trace::Trace,
};
use crate::config::TlsCheck;
use futures_util::future::{BoxFuture, FutureExt};
use health_core::{
    Span,
    model::{Layer, Outcome, Reason},
};
use lane::Lanes;
use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{HandshakeKind, pki_types::ServerName},
};
use trust::Source;

/// How long a server may take to refuse a client certificate after the handshake, which for the client has then succeeded
/// (RFC 8446 §4.4.2). It answers our end of the session in a round trip.
const REFUSAL_MAX: Duration = Duration::from_secs(1);
/// A day, in seconds.
const DAY: i64 = 86_400;

/// How one check makes sessions.
#[derive(Debug)]
pub(super) struct Client {
    source: Arc<Source>,
    lanes: Lanes,
    /// A certificate that ends sooner makes a pass a weak one; nothing is said where certificates aren't looked at.
    warn: Option<Span>,
    asks_protocol: bool,
    resumes: bool,
}

/// A session, and what was seen while it was made.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) stream: TlsStream<TcpStream>,
    /// The server asked for a certificate of ours. It may yet refuse what it got.
    pub(super) asked: bool,
    /// The certificate ends soon.
    pub(super) is_ending: bool,
}

impl Client {
    /// For protocols that servers may well speak without having agreed to it.
    pub(super) fn without_protocol(self) -> Self {
        Self { asks_protocol: false, ..self }
    }

    /// For checks that ask for what is behind the session: it is resumed for a while (see `lane`). A check that shows a
    /// certificate of its own asks whether that is taken, so it is shown each time.
    pub(super) fn resuming(self) -> Self {
        let resumes = !self.source.shows_certificate();
        Self { resumes, ..self }
    }

    /// Makes a session on a connection: the step `tls`.
    ///
    /// # Errors
    ///
    /// How the round ends, explained.
    pub(super) async fn connect(
        &self,
        name: ServerName<'static>,
        stream: TcpStream,
        trace: &mut Trace,
    ) -> Result<Session, Outcome> {
        trace.begin("tls", Layer::Tls);
        let port = stream.peer_addr().map_or(0, |peer| peer.port());
        let lane = self.lanes.of(&self.source.config(), &name, port);
        lane.begin(self.resumes, Instant::now());
        let shaken = TlsConnector::from(Arc::clone(&lane.config)).connect(name, stream).await;
        let asked = lane.was_asked();
        let stream = shaken.map_err(|error| {
            lane.forget();
            trace.explain(failure::handshake_words(&error));
            failure::of_handshake(&error, asked)
        })?;
        let (_, connection) = stream.get_ref();
        if self.asks_protocol && connection.alpn_protocol().is_none() {
            trace.explain("the server agreed to no application protocol");
            return Err(Outcome::Fail(Reason::Alpn));
        }
        let not_after = connection.peer_certificates().and_then(<[_]>::first).and_then(verify::not_after);
        let is_ending = not_after.is_some_and(|end| self.note_end(end, trace));
        if connection.handshake_kind() != Some(HandshakeKind::Resumed) {
            // Who has to show a certificate shows it each time; and one that ends in the meantime must not be overlooked.
            let holds = not_after.is_some_and(|end| left(end) > lane::RESUMED_MAX.as_secs().cast_signed());
            lane.proved((holds && !asked).then(Instant::now));
        }
        Ok(Session { stream, asked, is_ending })
    }

    /// Whether a certificate that ends then ends soon.
    fn note_end(&self, end: i64, trace: &mut Trace) -> bool {
        trace.set_cert_not_after(end);
        let left = left(end);
        let soon = self.warn.is_some_and(|warn| left < i64::try_from(warn.as_millis() / 1000).unwrap_or(i64::MAX));
        if soon {
            trace.explain(format!("the certificate ends in {} days", left / DAY));
        }
        soon
    }
}

/// Seconds from now until then; negative if that is past.
fn left(end: i64) -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    end.saturating_sub(i64::try_from(now).unwrap_or(i64::MAX))
}

/// A check of type `tls`, ready for one origin.
pub(super) struct TlsProbe {
    address: SocketAddr,
    sockets: Sockets,
    client: Client,
    name: ServerName<'static>,
}

impl TlsProbe {
    pub(super) fn new(check: &TlsCheck, setting: Setting<'_>) -> Result<Self, ProbeError> {
        Ok(Self {
            address: setting.address,
            sockets: setting.sockets.clone(),
            client: setting.trust.client(&check.tls, &check.alpn)?,
            name: check.tls.name_or(setting.address.ip()),
        })
    }

    async fn round(&self, trace: &mut Trace) -> Result<Outcome, Outcome> {
        let connection = self.sockets.open(self.address, trace).await?;
        let Session { mut stream, asked, is_ending } =
            self.client.connect(self.name.clone(), connection, trace).await?;
        // A closed session and not a cut one: servers log the other. What it says first is only of use if it refuses us.
        let ended = stream.shutdown().await;
        if asked {
            let mut rest = [0; 512];
            let refusal = match ended {
                Err(error) => Err(error),
                Ok(()) => match timeout(REFUSAL_MAX, stream.read(&mut rest)).await {
                    Ok(Err(error)) => Err(error),
                    // It went on, closed as well, or waits: it took us.
                    Ok(Ok(_)) | Err(_) => Ok(()),
                },
            };
            refusal.map_err(|error: io::Error| {
                trace.explain(failure::handshake_words(&error));
                failure::of_handshake(&error, asked)
            })?;
        }
        Ok(if is_ending { Outcome::Slow } else { Outcome::Pass })
    }
}

impl Probe for TlsProbe {
    fn run<'a>(&'a mut self, trace: &'a mut Trace) -> BoxFuture<'a, Outcome> {
        async { self.round(trace).await.unwrap_or_else(|ended| ended) }.boxed()
    }
}
