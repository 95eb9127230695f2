//! Sessions that are resumed: what one check remembers of one server.
//!
//! A resumed session proves neither key nor certificate, and costs a server a tenth of a full handshake. So checks whose purpose
//! is the session itself (`tls`), or that show a certificate of their own, never resume; the others do, for a minute after a full
//! handshake that went well. What one check learned of one server stays there: another origin of the same name, or another
//! port of it, would take a ticket for its own and prove nothing.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;
use tokio_rustls::rustls::{
    ClientConfig, NamedGroup, SignatureScheme,
    client::{ClientSessionStore, ResolvesClientCert, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue},
    pki_types::ServerName,
    sign::CertifiedKey,
};

/// After so long a full handshake proves key and certificate again. A wrong certificate is found that much later, at most, and
/// only if the server takes tickets that it gave with another one (nginx, HAProxy and OpenSSL don't).
pub(super) const RESUMED_MAX: Duration = Duration::from_mins(1);

/// All servers of a check: as many as its requests have names and ports.
#[derive(Debug, Default)]
pub(super) struct Lanes(Mutex<Vec<Arc<Lane>>>);

/// One server.
#[derive(Debug)]
pub(super) struct Lane {
    name: ServerName<'static>,
    port: u16,
    /// What `config` was made of.
    base: Arc<ClientConfig>,
    /// The same, with what is this server's own.
    pub(super) config: Arc<ClientConfig>,
    asked: Arc<Asked>,
    kept: Arc<Kept>,
    proved: Mutex<Option<Instant>>,
}

impl Lanes {
    /// The lane to a server, new if there is none or trust has changed.
    pub(super) fn of(&self, base: &Arc<ClientConfig>, name: &ServerName<'static>, port: u16) -> Arc<Lane> {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Of what was trusted before nothing is kept.
        lanes.retain(|lane| Arc::ptr_eq(&lane.base, base));
        if let Some(found) = lanes.iter().find(|lane| lane.port == port && lane.name == *name) {
            return Arc::clone(found);
        }
        let lane = Arc::new(Lane::new(base, name.clone(), port));
        lanes.push(Arc::clone(&lane));
        lane
    }
}

impl Lane {
    fn new(base: &Arc<ClientConfig>, name: ServerName<'static>, port: u16) -> Self {
        let inner = Arc::clone(&base.client_auth_cert_resolver);
        let asked = Arc::new(Asked { inner, asked: AtomicBool::new(false) });
        let kept = Arc::new(Kept::default());
        let mut config = ClientConfig::clone(base);
        config.client_auth_cert_resolver = Arc::clone(&asked) as Arc<dyn ResolvesClientCert>;
        config.resumption = Resumption::store(Arc::clone(&kept) as Arc<dyn ClientSessionStore>);
        let (base, config) = (Arc::clone(base), Arc::new(config));
        Self { name, port, base, config, asked, kept, proved: Mutex::new(None) }
    }

    /// A session is about to be made: resumed if it may be.
    pub(super) fn begin(&self, resumes: bool, now: Instant) {
        self.asked.asked.store(false, Ordering::Relaxed);
        let proved = *self.proved.lock().unwrap_or_else(PoisonError::into_inner);
        if !(resumes && is_fresh(proved, now)) {
            self.forget();
        }
    }

    /// A full handshake went well at that moment; none if what it showed must be shown again next time.
    pub(super) fn proved(&self, at: Option<Instant>) {
        *self.proved.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    /// The next handshake is a full one.
    pub(super) fn forget(&self) {
        self.kept.lock().sessions = Sessions::default();
    }

    /// Whether the server asked for a certificate of ours since the beginning.
    pub(super) fn was_asked(&self) -> bool {
        self.asked.asked.load(Ordering::Relaxed)
    }
}

/// Whether what was proved then still counts.
fn is_fresh(proved: Option<Instant>, now: Instant) -> bool {
    proved.is_some_and(|at| now.duration_since(at) < RESUMED_MAX)
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

/// The newest session with a server, and the group that it chose: 10,000 checks must not keep eight tickets each.
#[derive(Debug, Default)]
struct Kept(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    group: Option<NamedGroup>,
    sessions: Sessions,
}

#[derive(Debug, Default)]
struct Sessions {
    tls12: Option<Tls12ClientSessionValue>,
    tls13: Option<Tls13ClientSessionValue>,
}

impl Kept {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// There is one name only, so none is looked at.
impl ClientSessionStore for Kept {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.lock().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.lock().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, session: Tls12ClientSessionValue) {
        self.lock().sessions.tls12 = Some(session);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.lock().sessions.tls12.clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.lock().sessions.tls12 = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        self.lock().sessions.tls13 = Some(ticket);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.lock().sessions.tls13.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_after_a_full_handshake_comes_another() {
        let at = Instant::now();
        let table = [(0, true), (59, true), (60, false), (3600, false)];
        for (seconds, expected) in table {
            assert_eq!(is_fresh(Some(at), at + Duration::from_secs(seconds)), expected, "{seconds} s");
        }
        assert!(!is_fresh(None, at), "nothing was proved");
    }
}
