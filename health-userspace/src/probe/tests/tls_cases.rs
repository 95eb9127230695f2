//! Case P21, and what belongs to it: names, protocols, client certificates.

use super::*;
use std::time::SystemTime;
use tokio_rustls::rustls::{HandshakeKind, SupportedProtocolVersion, version};

/// How a server presents itself.
struct Manner {
    name: &'static str,
    /// First and last day, from today.
    days: (i64, i64),
    self_signed: bool,
    asks_client: bool,
    versions: &'static [&'static SupportedProtocolVersion],
    alpn: &'static [&'static str],
}

const NEW: &[&SupportedProtocolVersion] = &[&version::TLS13];
const OLD: &[&SupportedProtocolVersion] = &[&version::TLS12];

const USUAL: Manner = Manner {
    name: "shop.example",
    days: (-10, 90),
    self_signed: false,
    asks_client: false,
    versions: &[&version::TLS13, &version::TLS12],
    alpn: &[],
};

fn seconds_now() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    i64::try_from(now.as_secs()).expect("before the end of time")
}

/// How a server of this manner is configured.
fn configured(authority: &Authority, manner: &Manner) -> Arc<ServerConfig> {
    let mut params = CertificateParams::new(vec![manner.name.to_owned()]).expect("parameters");
    let day = |days: i64| {
        let seconds = u64::try_from(seconds_now() + days * 86_400).expect("after 1970");
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    (params.not_before, params.not_after) = (day(manner.days.0), day(manner.days.1));
    let key = KeyPair::generate().expect("a key");
    let certificate = if manner.self_signed {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.self_signed(&key)
    } else {
        params.signed_by(&key, &authority.certificate, &authority.key)
    };
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(manner.versions);
    let builder = builder.expect("protocol versions");
    let builder = if manner.asks_client {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authority.roots()), provider);
        builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
    } else {
        builder.with_no_client_auth()
    };
    let chain = vec![certificate.expect("a certificate").der().clone()];
    let mut config =
        builder.with_single_cert(chain, PrivatePkcs8KeyDer::from(key.serialize_der()).into()).expect("a server");
    config.alpn_protocols = manner.alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// A server that makes sessions, says nothing, and closes when the other side does.
async fn server(authority: &Authority, manner: &Manner) -> SocketAddr {
    let acceptor = TlsAcceptor::from(configured(authority, manner));
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut connection) = acceptor.accept(connection).await else { return };
                while connection.read_u8().await.is_ok() {}
                drop(connection.shutdown().await);
            });
        }
    });
    address
}

/// A server of pages that notes what kind of handshake each session began with.
async fn pages(authority: &Authority, manner: &Manner) -> (SocketAddr, Arc<Mutex<Vec<HandshakeKind>>>) {
    let acceptor = TlsAcceptor::from(configured(authority, manner));
    let (listener, address) = listen().await;
    let kinds = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&kinds);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let Ok(mut connection) = acceptor.accept(connection).await else { continue };
            noted.lock().expect("kinds").extend(connection.get_ref().1.handshake_kind());
            head(&mut connection).await;
            drop(connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await);
            drop(connection.shutdown().await);
        }
    });
    (address, kinds)
}

fn asks(lines: &str) -> CheckConfig {
    check(&format!("type = \"tls\"\n{lines}"))
}

#[tokio::test]
async fn p21_bad_certificates() {
    let (ours, other) = (Authority::new(), Authority::new());
    let trust = trust(&[&ours]);
    let table = [
        ("valid", USUAL, &ours, Outcome::Pass),
        ("expired yesterday", Manner { days: (-90, -1), ..USUAL }, &ours, fail(Reason::CertExpired)),
        ("valid from tomorrow", Manner { days: (2, 90), ..USUAL }, &ours, fail(Reason::CertNotYetValid)),
        ("self-signed", Manner { self_signed: true, ..USUAL }, &ours, fail(Reason::CertSelfSigned)),
        ("wrong name", Manner { name: "news.example", ..USUAL }, &ours, fail(Reason::CertName)),
        ("unknown authority", USUAL, &other, fail(Reason::CertUntrusted)),
        ("ends in 5 days", Manner { days: (-90, 5), ..USUAL }, &ours, Outcome::Slow),
    ];
    for (name, manner, authority, expected) in table {
        let address = server(authority, &manner).await;
        let verified = finished(&asks("tls = { server_name = \"shop.example\" }"), address, Some(&trust)).await;
        assert_eq!(verified.outcome, expected, "{name}: {:?}", verified.notes);
        assert_eq!(verified.notes.detail.is_none(), expected == Outcome::Pass, "{name}: {:?}", verified.notes);
        let any =
            finished(&asks("tls = { server_name = \"shop.example\", verify = false }"), address, Some(&trust)).await;
        assert_eq!(any.outcome, Outcome::Pass, "{name}, not verified: {:?}", any.notes);
        let end = any.notes.cert_not_after.expect("its end is told");
        let off = (end - seconds_now()) / 86_400 - manner.days.1;
        assert!((-1..=1).contains(&off), "{name}: ends {off} days from what was said");
        // The layer and step that failed are the handshake's.
        let last = verified.steps.last().map(|step| (step.name, step.layer));
        assert_eq!(last, Some(("tls", Layer::Tls)), "{name}");
    }
    let soon = server(&ours, &Manner { days: (-90, 5), ..USUAL }).await;
    let later = asks("tls = { server_name = \"shop.example\", expiry_warn = \"2d\" }");
    assert_eq!(run(&later, soon, Some(&trust)).await.0, Outcome::Pass, "the warning is the operator's");
}

#[tokio::test]
async fn p21_client_certificates_are_told_by_either_version() {
    let (ours, other) = (Authority::new(), Authority::new());
    let trust = trust(&[&ours]);
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let client = |authority: &Authority, name: &str| {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["probe.example".to_owned()]).expect("parameters");
        let certificate = params.signed_by(&key, &authority.certificate, &authority.key).expect("a certificate");
        let (chain, key) =
            (write(&format!("{name}.pem"), &certificate.pem()), write(&format!("{name}.key"), &key.serialize_pem()));
        format!("tls = {{ server_name = \"shop.example\", cert = \"{chain}\", key = \"{key}\" }}")
    };
    let (good, foreign) = (client(&ours, "good"), client(&other, "foreign"));
    let none = "tls = { server_name = \"shop.example\" }".to_owned();
    for versions in [NEW, OLD] {
        let wanted = server(&ours, &Manner { asks_client: true, versions, ..USUAL }).await;
        let indifferent = server(&ours, &Manner { versions, ..USUAL }).await;
        for (lines, expected) in
            [(&none, fail(Reason::ClientCert)), (&good, Outcome::Pass), (&foreign, fail(Reason::ClientCert))]
        {
            let finished = finished(&asks(lines), wanted, Some(&trust)).await;
            assert_eq!(finished.outcome, expected, "{versions:?} {lines}: {:?}", finished.notes);
            assert_eq!(run(&asks(lines), indifferent, Some(&trust)).await.0, Outcome::Pass, "{versions:?} {lines}");
        }
    }
    // A file that is no use is a mistake of the configuration, told when it is applied.
    let broken = asks(&none.replace(" }", &format!(", ca = \"{}\" }}", write("empty.pem", ""))));
    let sockets = Sockets { mark: MARK, ..Sockets::default() };
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let refused =
        Round::new(Setting { check: &broken, address, sockets: &sockets, trust: &trust, names: ("s", "o"), hub: None })
            .err()
            .map(|e| e.to_string());
    assert!(refused.is_some_and(|error| error.contains("empty.pem of a check holds no certificate")));
    let own = format!(", ca = \"{}\" }}", write("ca.pem", &ours.certificate.pem()));
    let own = asks(&none.replace(" }", &own));
    let valid = server(&ours, &USUAL).await;
    assert_eq!(run(&own, valid, Some(&super::trust(&[&other]))).await.0, Outcome::Pass, "its own authority");
}

#[tokio::test]
async fn protocols_are_agreed_or_not() {
    let ours = Authority::new();
    let trust = trust(&[&ours]);
    let named = "tls = { server_name = \"shop.example\" }";
    let (two, none) = (server(&ours, &Manner { alpn: &["h2"], ..USUAL }).await, server(&ours, &USUAL).await);
    let table = [
        (two, "alpn = [\"h2\"]", Outcome::Pass),
        (two, "alpn = [\"http/1.1\", \"h2\"]", Outcome::Pass),
        (two, "alpn = [\"http/1.1\"]", fail(Reason::Alpn)),
        (two, "", Outcome::Pass),
        (none, "alpn = [\"h2\"]", fail(Reason::Alpn)),
        (none, "", Outcome::Pass),
    ];
    for (address, lines, expected) in table {
        let finished = finished(&asks(&format!("{named}\n{lines}")), address, Some(&trust)).await;
        assert_eq!(finished.outcome, expected, "{lines}: {:?}", finished.notes);
    }
    // What speaks no TLS at all.
    let plain = greeting("220 mail.example ESMTP\r\n").await;
    assert_eq!(run(&asks(named), plain, Some(&trust)).await.0, fail(Reason::Tls));
}

#[tokio::test]
async fn p20_sni_is_the_name_that_is_given() {
    let ours = Authority::new();
    let (a, b) = (secure(&ours, "a.example", false, false).await, secure(&ours, "b.example", false, false).await);
    let trust = trust(&[&ours]);
    let asks = |host: &str, at: SocketAddr, tls: &str, seen: &str| {
        check(&format!(
            "type = \"http\"\nurl = \"https://{host}:{}/\"\n{tls}\nexpect = {{ body = \"exact:{seen}\" }}",
            at.port()
        ))
    };
    // One configuration for both names, and neither is said to the other's server.
    for round in 0..2 {
        for (host, at) in [("a.example", a), ("b.example", b)] {
            assert_eq!(run(&asks(host, at, "", host), at, Some(&trust)).await.0, Outcome::Pass, "{host} {round}");
        }
    }
    let set = asks("news.example", a, "tls = { server_name = \"a.example\" }", "a.example");
    assert_eq!(run(&set, a, Some(&trust)).await.0, Outcome::Pass, "set apart from the host");
    let literal = asks("127.0.0.1", a, "tls = { verify = false }", "none");
    assert_eq!(run(&literal, a, Some(&trust)).await.0, Outcome::Pass, "an address is never sent");
}

fn page(at: SocketAddr, tls: &str) -> CheckConfig {
    check(&format!("type = \"http\"\nurl = \"https://shop.example:{}/\"\ntimeout = \"30s\"\n{tls}", at.port()))
}

/// What asks for a page resumes its session; what asks for the session, or shows a certificate, never does.
#[tokio::test]
async fn sessions_are_resumed_where_that_is_sound() {
    use HandshakeKind::{Full, Resumed};
    let ours = Authority::new();
    let trust = trust(&[&ours]);
    let folder = tempfile::tempdir().expect("a folder");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["probe.example".to_owned()]).expect("parameters");
    let certificate = params.signed_by(&key, &ours.certificate, &ours.key).expect("a certificate");
    let (chain, at) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
    std::fs::write(&chain, certificate.pem()).expect("written");
    std::fs::write(&at, key.serialize_pem()).expect("written");
    let shows = format!("tls = {{ cert = \"{}\", key = \"{}\" }}", chain.display(), at.display());
    let session = asks("timeout = \"30s\"\ntls = { server_name = \"shop.example\" }");
    for versions in [NEW, OLD] {
        let manner = Manner { versions, ..USUAL };
        for (lines, expected) in [("", [Full, Resumed, Resumed]), (&shows, [Full, Full, Full])] {
            let (address, kinds) = pages(&ours, &manner).await;
            // Two checks of one server share no session.
            for _ in 0..2 {
                kinds.lock().expect("kinds").clear();
                let mut round = prepared(&page(address, lines), address, Some(&trust));
                for _ in 0..3 {
                    assert_eq!(round.run(&Stalls::new()).await.outcome, Outcome::Pass, "{versions:?} {lines}");
                }
                assert_eq!(*kinds.lock().expect("kinds"), expected, "{versions:?} {lines}");
            }
        }
        let (address, kinds) = pages(&ours, &manner).await;
        let mut round = prepared(&session, address, Some(&trust));
        for _ in 0..3 {
            assert_eq!(round.run(&Stalls::new()).await.outcome, Outcome::Pass);
        }
        // The server may still be about to note the last one.
        let all = async {
            while kinds.lock().expect("kinds").len() < 3 {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, all).await.expect("three sessions");
        assert_eq!(*kinds.lock().expect("kinds"), [Full, Full, Full], "{versions:?}");
    }
}

/// Runs rounds of one check until one ends so.
async fn until(round: &mut Round, expected: Outcome) {
    let ends = async {
        let mut pace = interval(Duration::from_millis(100));
        while round.run(&Stalls::new()).await.outcome != expected {
            pace.tick().await;
        }
    };
    timeout(PATIENCE, ends).await.unwrap_or_else(|_| panic!("never {expected:?}"));
}

/// What renews certificates knows nothing of checks: files are read again where they lie.
#[tokio::test]
async fn certificates_that_are_renewed_in_place_are_used_without_a_restart() {
    let (ours, other) = (Authority::new(), Authority::new());
    let trust = Trust::default();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let write = |name: &str, text: &str| std::fs::write(path(name), text).expect("written");
    let client = |authority: &Authority| {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["probe.example".to_owned()]).expect("parameters");
        let certificate = params.signed_by(&key, &authority.certificate, &authority.key).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    };
    let wanted = server(&ours, &Manner { asks_client: true, ..USUAL }).await;
    write("ca.pem", &other.certificate.pem());
    let (chain, key) = client(&other);
    write("chain.pem", &chain);
    write("key.pem", &key);
    let lines = format!(
        "timeout = \"30s\"\ntls = {{ server_name = \"shop.example\", ca = \"{}\", cert = \"{}\", key = \"{}\" }}",
        path("ca.pem").display(),
        path("chain.pem").display(),
        path("key.pem").display()
    );
    let mut round = prepared(&asks(&lines), wanted, Some(&trust));
    assert_eq!(round.run(&Stalls::new()).await.outcome, fail(Reason::CertUntrusted));
    write("ca.pem", &ours.certificate.pem());
    until(&mut round, fail(Reason::ClientCert)).await;
    // A chain whose key has not come yet changes nothing, and then does.
    let (chain, key) = client(&ours);
    write("chain.pem", &chain);
    assert_eq!(round.run(&Stalls::new()).await.outcome, fail(Reason::ClientCert));
    write("key.pem", &key);
    until(&mut round, Outcome::Pass).await;
    // So does a file that is being written: the former ones stay.
    write("ca.pem", "");
    let (written, mut pace) = (now(), interval(Duration::from_millis(200)));
    while now().since(written) < Span::from_millis(1500) {
        pace.tick().await;
        assert_eq!(round.run(&Stalls::new()).await.outcome, Outcome::Pass);
    }
    write("ca.pem", &other.certificate.pem());
    until(&mut round, fail(Reason::CertUntrusted)).await;
}

/// P26 (b): the session is made, and then nothing comes any more.
#[tokio::test]
async fn p26_b_a_session_that_falls_silent_ends_at_the_deadline() {
    let ours = Authority::new();
    let address = server(&ours, &USUAL).await;
    let asked =
        check(&format!("type = \"http\"\nurl = \"https://shop.example:{}/\"\ntimeout = \"400ms\"", address.port()));
    let finished = finished(&asked, address, Some(&trust(&[&ours]))).await;
    let took = finished.ended.since(finished.began);
    assert_eq!(finished.outcome, fail(Reason::Timeout(Layer::Application)), "{:?}", finished.notes);
    assert!((Span::from_millis(399)..Span::from_millis(900)).contains(&took), "{took}");
    assert_eq!(finished.steps.last().map(|step| step.name), Some("first_byte"));
}
