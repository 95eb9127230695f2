//! What an error of the TLS library says about the server.

use super::verify::SelfSigned;
use health_core::model::Reason;
use tokio_rustls::rustls::{AlertDescription, CertificateError, Error};

/// The reason for a session that ended in `error`. `asked`: the server has asked for a certificate of ours.
pub(in super::super) fn of_tls(error: &Error, asked: bool) -> Reason {
    match error {
        Error::InvalidCertificate(problem) => of_certificate(problem),
        Error::NoApplicationProtocol | Error::AlertReceived(AlertDescription::NoApplicationProtocol) => Reason::Alpn,
        Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied,
        ) => Reason::ClientCert,
        // TLS 1.2 has no alert of its own for a missing certificate (RFC 5246 §7.4.6), nor either version for one that is
        // signed by another key of the same name.
        Error::AlertReceived(AlertDescription::HandshakeFailure | AlertDescription::DecryptError) if asked => {
            Reason::ClientCert
        }
        _ => Reason::Tls,
    }
}

fn of_certificate(problem: &CertificateError) -> Reason {
    match problem {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => Reason::CertExpired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Reason::CertNotYetValid,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Reason::CertName,
        CertificateError::UnknownIssuer | CertificateError::BadSignature => Reason::CertUntrusted,
        CertificateError::Other(other) if other.0.is::<SelfSigned>() => Reason::CertSelfSigned,
        _ => Reason::Tls,
    }
}
