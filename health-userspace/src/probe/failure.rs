//! What a system error says about the origin, or about this node.

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
    let tls = error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>);
    match error.kind() {
        _ if tls || layer == Layer::Tls => Reason::Tls,
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe => Reason::Reset,
        io::ErrorKind::TimedOut => Reason::Timeout(layer),
        _ => Reason::Protocol,
    }
}

/// The outcome of an exchange that ended in `error`.
pub(super) fn of_hyper(error: &hyper::Error) -> Outcome {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            return of_io(error, Layer::Application);
        }
        source = cause.source();
    }
    // Not HTTP, cut short, or closed without an answer.
    Outcome::Fail(Reason::Protocol)
}
