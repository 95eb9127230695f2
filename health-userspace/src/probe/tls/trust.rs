//! Whom checks trust, and what they show of themselves.
//!
//! A configuration is made once for each way of trusting, and shared by all checks that trust so. Certificates are renewed
//! where they lie, by tools that know nothing of us: so files are looked at again, and what changed is read. What can't be used
//! (half written, a key without its certificate) changes nothing until it can.

use super::{Client, lane::Lanes, verify};
use crate::{
    config::{Authorities, TlsConfig},
    probe::ProbeError,
};
use health_core::Span;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use tokio_rustls::rustls::{
    ClientConfig, Error, RootCertStore,
    client::{Resumption, WebPkiServerVerifier},
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

/// Least time between two looks at the same files: two rounds of a check are rarely closer, and thousands share one look.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What checks trust.
#[derive(Debug, Default)]
pub(in crate::probe) struct Trust {
    /// In the place of the system's, for tests.
    given: Option<Arc<RootCertStore>>,
    sources: Mutex<Vec<Arc<Source>>>,
}

/// One way of trusting.
#[derive(Debug)]
pub(super) struct Source {
    /// Without names and warnings, which make no other configuration.
    tls: TlsConfig,
    alpn: Vec<String>,
    given: Option<Arc<RootCertStore>>,
    made: Mutex<Made>,
}

#[derive(Debug)]
struct Made {
    config: Arc<ClientConfig>,
    /// What its files looked like.
    stamps: Vec<Stamp>,
    looked: Instant,
}

/// What tells a file from what will lie there next: inode, size, and both times in nanoseconds; none if there is no file.
type Stamp = Option<(u64, u64, (i64, i64), (i64, i64))>;

impl Trust {
    /// Trusts these in the place of the system's.
    #[cfg(test)]
    pub(in crate::probe) fn trusting(roots: RootCertStore) -> Self {
        Self { given: Some(Arc::new(roots)), sources: Mutex::default() }
    }

    /// A client that trusts as `tls` says, and makes a full handshake each time. Files are read now; what was made before is
    /// used again.
    ///
    /// # Errors
    ///
    /// Nothing can be trusted, or a file can't be read.
    pub(in crate::probe) fn client(&self, tls: &TlsConfig, alpn: &[String]) -> Result<Client, ProbeError> {
        let warn = tls.verify.then_some(tls.expiry_warn);
        let key = TlsConfig { server_name: None, expiry_warn: Span::ZERO, ..tls.clone() };
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        // Of checks that are gone nothing is kept.
        sources.retain(|source| Arc::strong_count(source) > 1);
        let found = sources.iter().find(|source| source.tls == key && source.alpn == alpn).map(Arc::clone);
        let source = if let Some(source) = found {
            source
        } else {
            let source = Arc::new(Source::new(key, alpn.to_vec(), self.given.clone())?);
            sources.push(Arc::clone(&source));
            source
        };
        Ok(Client { source, lanes: Lanes::default(), warn, asks_protocol: !alpn.is_empty(), resumes: false })
    }
}

impl Source {
    fn new(tls: TlsConfig, alpn: Vec<String>, given: Option<Arc<RootCertStore>>) -> Result<Self, ProbeError> {
        // Looked at first: what is written in between is then seen the next time.
        let stamps = files(&tls).iter().map(|path| stamp(path)).collect();
        let config = Arc::new(make(&tls, &alpn, given.as_ref())?);
        Ok(Self { tls, alpn, given, made: Mutex::new(Made { config, stamps, looked: Instant::now() }) })
    }

    /// Whether the client has a certificate of its own.
    pub(super) const fn shows_certificate(&self) -> bool {
        self.tls.client.is_some()
    }

    /// The configuration as its files are now, give or take a second.
    pub(super) fn config(&self) -> Arc<ClientConfig> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.looked.elapsed() >= LOOK_EVERY {
            made.looked = Instant::now();
            let stamps: Vec<Stamp> = files(&self.tls).iter().map(|path| stamp(path)).collect();
            if stamps != made.stamps {
                // Noted in either case, so that what is of no use is said once.
                made.stamps = stamps;
                match make(&self.tls, &self.alpn, self.given.as_ref()) {
                    Ok(config) => {
                        made.config = Arc::new(config);
                        tracing::info!(files = ?files(&self.tls), "certificates of checks have changed, and were read");
                    }
                    Err(error) => tracing::warn!(%error, "certificates of checks have changed; the former ones stay"),
                }
            }
        }
        Arc::clone(&made.config)
    }
}

/// Where a configuration comes from.
fn files(tls: &TlsConfig) -> Vec<PathBuf> {
    let mut files = Vec::new();
    match (&tls.ca, tls.verify) {
        (_, false) => {}
        (Authorities::File(path), true) => files.push(path.clone()),
        (Authorities::System, true) => {
            let found = openssl_probe::probe();
            files.extend(found.cert_file);
            files.extend(found.cert_dir);
        }
    }
    files.extend(tls.client.iter().flat_map(|(chain, key)| [chain.clone(), key.clone()]));
    files
}

fn stamp(path: &Path) -> Stamp {
    let meta = fs::metadata(path).ok()?;
    Some((meta.ino(), meta.size(), (meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())))
}

fn make(tls: &TlsConfig, alpn: &[String], given: Option<&Arc<RootCertStore>>) -> Result<ClientConfig, ProbeError> {
    let refused = |source| ProbeError::Tls { source };
    let provider = Arc::new(ring::default_provider());
    let schemes = provider.signature_verification_algorithms.supported_schemes();
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(refused)?
        .dangerous();
    let builder = if tls.verify {
        let roots = match (&tls.ca, given) {
            (Authorities::File(path), _) => Arc::new(of_file(path)?),
            (Authorities::System, Some(given)) => Arc::clone(given),
            (Authorities::System, None) => Arc::new(of_system()?),
        };
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        let verifier = verifier.map_err(|error| refused(Error::General(error.to_string())))?;
        builder.with_custom_certificate_verifier(Arc::new(verify::Telling(verifier)))
    } else {
        builder.with_custom_certificate_verifier(Arc::new(verify::Any(schemes)))
    };
    let mut config = match &tls.client {
        None => builder.with_no_client_auth(),
        Some((chain, at)) => {
            let chain = certificates(chain)?;
            let key = PrivateKeyDer::from_pem_file(at).map_err(|error| unreadable(at, &error))?;
            builder.with_client_auth_cert(chain, key).map_err(refused)?
        }
    };
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.clone().into_bytes()).collect();
    // Each lane has sessions of its own.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn of_file(path: &Path) -> Result<RootCertStore, ProbeError> {
    let mut roots = RootCertStore::empty();
    let (added, _unusable) = roots.add_parsable_certificates(certificates(path)?);
    if added == 0 {
        return Err(ProbeError::File { path: path.to_owned(), problem: "holds no certificate".to_owned() });
    }
    Ok(roots)
}

/// The certificate authorities that the operating system trusts.
fn of_system() -> Result<RootCertStore, ProbeError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "cannot read some of the system's certificate authorities");
    }
    let (added, _unusable) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err(ProbeError::NoAuthorities);
    }
    Ok(roots)
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
