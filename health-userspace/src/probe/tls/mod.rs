//! TLS as all kinds speak it, and `tls`: a session is made, with a certificate that holds.

mod reason;
mod verify;

pub(super) use reason::of_tls;

use super::{
    ProbeError, failure,
    kind::{Probe, Setting},
    socket::Sockets,
    trace::Trace,
};
use crate::config::{Authorities, TlsCheck, TlsConfig};
use futures_util::future::{BoxFuture, FutureExt};
use health_core::{
    Span,
    model::{Layer, Outcome, Reason},
};
use std::{
    io,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, Error, RootCertStore, SignatureScheme,
        client::{ResolvesClientCert, Resumption, WebPkiServerVerifier},
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
        sign::CertifiedKey,
    },
};

/// How long a server may take to refuse a client certificate after the handshake, which for the client has then succeeded
/// (RFC 8446 §4.4.2). It answers our end of the session in a round trip.
const REFUSAL_MAX: Duration = Duration::from_secs(1);
/// A day, in seconds.
const DAY: i64 = 86_400;

/// What checks trust. Configurations are made once for each way of trusting, and shared.
#[derive(Debug, Default)]
pub(super) struct Trust {
    system: Mutex<Option<Arc<RootCertStore>>>,
    made: Mutex<Vec<Made>>,
}

/// A configuration, and what it was made for.
#[derive(Debug)]
struct Made {
    tls: TlsConfig,
    alpn: Vec<String>,
    config: Arc<ClientConfig>,
}

/// How one check makes sessions.
#[derive(Clone, Debug)]
pub(super) struct Client {
    config: Arc<ClientConfig>,
    /// A certificate that ends sooner makes a pass a weak one; nothing is said where certificates aren't looked at.
    warn: Option<Span>,
    asks_protocol: bool,
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

impl Trust {
    /// Trusts these in the place of the system's.
    #[cfg(test)]
    pub(super) fn trusting(roots: RootCertStore) -> Self {
        Self { system: Mutex::new(Some(Arc::new(roots))), made: Mutex::default() }
    }

    /// A client that trusts as `tls` says. Files are read now; what was made before is used again.
    ///
    /// # Errors
    ///
    /// Nothing can be trusted, or a file can't be read.
    pub(super) fn client(&self, tls: &TlsConfig, alpn: &[String]) -> Result<Client, ProbeError> {
        let warn = tls.verify.then_some(tls.expiry_warn);
        // Neither names nor warnings make another configuration.
        let key = TlsConfig { server_name: None, expiry_warn: Span::ZERO, ..tls.clone() };
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let found = made.iter().find(|made| made.tls == key && made.alpn == alpn).map(|made| Arc::clone(&made.config));
        let config = if let Some(config) = found {
            config
        } else {
            let config = Arc::new(self.make(&key, alpn)?);
            made.push(Made { tls: key, alpn: alpn.to_vec(), config: Arc::clone(&config) });
            config
        };
        Ok(Client { config, warn, asks_protocol: !alpn.is_empty() })
    }

    /// A client that makes a full handshake each time: a resumed session proves neither key nor certificate, and two
    /// origins of one name would share it.
    fn make(&self, tls: &TlsConfig, alpn: &[String]) -> Result<ClientConfig, ProbeError> {
        let refused = |source| ProbeError::Tls { source };
        let provider = Arc::new(ring::default_provider());
        let schemes = provider.signature_verification_algorithms.supported_schemes();
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(refused)?
            .dangerous();
        let builder = if tls.verify {
            let roots = self.roots(&tls.ca)?;
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
            let verifier = verifier.map_err(|error| refused(Error::General(error.to_string())))?;
            builder.with_custom_certificate_verifier(Arc::new(verify::Telling(verifier)))
        } else {
            builder.with_custom_certificate_verifier(Arc::new(verify::Any(schemes)))
        };
        let mut config = match &tls.client {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates(chain)?;
                let at = key;
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(at, &error))?;
                builder.with_client_auth_cert(chain, key).map_err(refused)?
            }
        };
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.clone().into_bytes()).collect();
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    fn roots(&self, authorities: &Authorities) -> Result<Arc<RootCertStore>, ProbeError> {
        let Authorities::File(path) = authorities else { return self.system() };
        let mut roots = RootCertStore::empty();
        let (added, _unusable) = roots.add_parsable_certificates(certificates(path)?);
        if added == 0 {
            return Err(ProbeError::File { path: path.clone(), problem: "holds no certificate".to_owned() });
        }
        Ok(Arc::new(roots))
    }

    /// The certificate authorities that the operating system trusts, read once.
    fn system(&self) -> Result<Arc<RootCertStore>, ProbeError> {
        let mut system = self.system.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(roots) = &*system {
            return Ok(Arc::clone(roots));
        }
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "cannot read some of the system's certificate authorities");
        }
        let (added, _unusable) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            return Err(ProbeError::NoAuthorities);
        }
        Ok(Arc::clone(system.insert(Arc::new(roots))))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ProbeError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = read.map_err(|error| unreadable(path, &error))?;
    if read.is_empty() {
        return Err(ProbeError::File { path: path.to_owned(), problem: "holds no certificate".to_owned() });
    }
    Ok(read)
}

fn unreadable(path: &Path, error: &dyn std::error::Error) -> ProbeError {
    ProbeError::File { path: path.to_owned(), problem: error.to_string() }
}

impl Client {
    /// For protocols that servers may well speak without having agreed to it.
    pub(super) fn without_protocol(self) -> Self {
        Self { asks_protocol: false, ..self }
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
        let asked = Arc::new(Asked {
            inner: Arc::clone(&self.config.client_auth_cert_resolver),
            asked: AtomicBool::new(false),
        });
        let mut config = ClientConfig::clone(&self.config);
        config.client_auth_cert_resolver = Arc::clone(&asked) as Arc<dyn ResolvesClientCert>;
        let shaken = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        let asked = asked.asked.load(Ordering::Relaxed);
        let stream = shaken.map_err(|error| {
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
        Ok(Session { stream, asked, is_ending })
    }

    /// Whether a certificate that ends then ends soon.
    fn note_end(&self, end: i64, trace: &mut Trace) -> bool {
        trace.set_cert_not_after(end);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let left = end.saturating_sub(i64::try_from(now).unwrap_or(i64::MAX));
        let soon = self.warn.is_some_and(|warn| left < i64::try_from(warn.as_millis() / 1000).unwrap_or(i64::MAX));
        if soon {
            trace.explain(format!("the certificate ends in {} days", left / DAY));
        }
        soon
    }
}

/// Notices that the server asks for a certificate.
#[derive(Debug)]
struct Asked {
    inner: Arc<dyn ResolvesClientCert>,
    asked: AtomicBool,
}

impl ResolvesClientCert for Asked {
    fn resolve(&self, issuers: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.asked.store(true, Ordering::Relaxed);
        self.inner.resolve(issuers, schemes)
    }

    fn has_certs(&self) -> bool {
        self.inner.has_certs()
    }
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
