//! Trust, from the system's certificates.

use super::ProbeError;
use std::sync::Arc;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, client::Resumption, crypto::ring};

/// What https checks trust: the certificate authorities that the operating system trusts.
pub(super) fn system() -> Result<Arc<ClientConfig>, ProbeError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "cannot read some of the system's certificate authorities");
    }
    let (added, _unusable) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err(ProbeError::NoAuthorities);
    }
    trusting(roots)
}

/// A client that trusts `roots`, speaks HTTP/1.1, and makes a full handshake each time.
///
/// A resumed session proves neither key nor certificate, and two origins of one name would share it.
pub(super) fn trusting(roots: RootCertStore) -> Result<Arc<ClientConfig>, ProbeError> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|source| ProbeError::Tls { source })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}
