//! Whether a certificate holds, and when it ends.

use std::sync::Arc;
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

/// The library's verifier, which also tells who issued itself.
#[derive(Debug)]
pub(super) struct Telling(pub(super) Arc<dyn ServerCertVerifier>);

/// Takes any certificate, for `verify = false`.
#[derive(Debug)]
pub(super) struct Any(pub(super) Vec<SignatureScheme>);

/// A certificate that was issued by itself, and that nobody else vouches for.
#[derive(Debug, thiserror::Error)]
#[error("the certificate was issued by itself")]
pub(super) struct SelfSigned;

impl ServerCertVerifier for Telling {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verdict = self.0.verify_server_cert(leaf, chain, name, ocsp, now);
        match verdict {
            // A self-signed certificate that also calls itself an authority gives an error of the lower library.
            Err(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::Other(_)))
                if is_self_signed(leaf) =>
            {
                Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(SelfSigned)))))
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, leaf, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _leaf: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _leaf: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

fn is_self_signed(leaf: &CertificateDer<'_>) -> bool {
    // Two certificates may share a name, as those of careless tools do.
    X509Certificate::from_der(leaf)
        .is_ok_and(|(_, parsed)| parsed.issuer() == parsed.subject() && parsed.verify_signature(None).is_ok())
}

/// When a certificate ends. Unit: seconds since 1970. `None` if it can't be read.
pub(super) fn not_after(leaf: &CertificateDer<'_>) -> Option<i64> {
    X509Certificate::from_der(leaf).ok().map(|(_, parsed)| parsed.validity().not_after.timestamp())
}
