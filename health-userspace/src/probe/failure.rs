//! What a system error says about the origin, or about this node.

use super::tls::of_tls;
use health_core::model::{Layer, LocalReason, Outcome, Reason};
use std::io;
use tokio_rustls::rustls;

/// The outcome of a step at `layer` that ended in `error`.
///
/// `EPERM` and `EACCES` (a local firewall or a `prohibit` route) count as unreachable: traffic meets the same wall.
pub(super) fn of_io(error: &io::Error, layer: Layer) -> Outcome {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => Outcome::Local(LocalReason::Descriptors),
        Some(libc::EADDRNOTAVAIL | libc::EADDRINUSE) => Outcome::Local(LocalReason::Ports),
        Some(libc::ENOBUFS | libc::ENOMEM) => Outcome::Local(LocalReason::Memory),
        Some(libc::ECONNREFUSED) => Outcome::Fail(Reason::Refused),
        Some(libc::ECONNRESET | libc::ECONNABORTED | libc::EPIPE) => Outcome::Fail(Reason::Reset),
        Some(libc::ETIMEDOUT) => Outcome::Fail(Reason::Timeout(layer)),
        Some(
            libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN | libc::ENETDOWN | libc::EPERM | libc::EACCES,
        ) => Outcome::Fail(Reason::Unreachable),
        _ => Outcome::Fail(of_kind(error, layer)),
    }
}

/// Errors that no system call gave.
fn of_kind(error: &io::Error, layer: Layer) -> Reason {
    match (tls_of(error), error.kind()) {
        // Behind the handshake, only our own certificate can still be wrong.
        (Some(error), _) => of_tls(error, true),
        (None, _) if layer == Layer::Tls => Reason::Tls,
        (None, io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe) => {
            Reason::Reset
        }
        (None, io::ErrorKind::TimedOut) => Reason::Timeout(layer),
        (None, _) => Reason::Protocol,
    }
}

fn tls_of(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref::<rustls::Error>()
}

/// The outcome of a TLS handshake that ended in `error`. `asked`: the server has asked for a certificate of ours.
pub(super) fn of_handshake(error: &io::Error, asked: bool) -> Outcome {
    match tls_of(error) {
        Some(error) => Outcome::Fail(of_tls(error, asked)),
        None => of_io(error, Layer::Tls),
    }
}

/// The words for such an error, without what only the library knows.
pub(super) fn handshake_words(error: &io::Error) -> String {
    match tls_of(error) {
        Some(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other))) => other.0.to_string(),
        Some(error) => error.to_string(),
        None => error.to_string(),
    }
}

/// The outcome of an exchange whose library ended in `error`: what the connection met below it, or no such protocol.
pub(super) fn of_exchange(error: &(dyn std::error::Error + 'static)) -> Outcome {
    let mut source = Some(error);
    while let Some(cause) = source {
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            return of_io(error, Layer::Application);
        }
        source = cause.source();
    }
    // Not that protocol, cut short, or closed without an answer.
    Outcome::Fail(Reason::Protocol)
}
