//! Checks against servers on the loopback that answer byte for byte what a test says.
#![allow(clippy::needless_raw_string_hashes, reason = "expect-test writes snapshots with hashes")]

use super::{
    kind::Setting,
    round::{Finished, Round},
    socket::Sockets,
    tls::Trust,
    *,
};
use crate::config::{CheckConfig, CheckKind, parse};
use clock::Stalls;
use expect_test::expect;
use health_core::{
    Span, Timestamp,
    model::{CheckResult, Layer, LocalReason, OriginId, Outcome, Reason},
};
use nix::sys::socket::{getsockopt, sockopt};
use proptest::prelude::*;
use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, KeyPair};
use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::{interval, timeout},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        pki_types::{CertificateDer, PrivatePkcs8KeyDer},
        server::WebPkiClientVerifier,
    },
};

mod schedule;

mod echo_cases;
mod http_cases;
mod limit_cases;
mod mail_cases;
mod script_cases;
mod talk_cases;
mod tls_cases;

const MARK: u32 = 0x5311;
/// A test that waits longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// A check as an operator writes it. `lines` come behind `type`.
fn check(lines: &str) -> CheckConfig {
    let text = format!(
        "[node]\ninterfaces = [\"lo\"]\n[[service]]\nname = \"s\"\norigin = [{{ name = \"a\", address = \"127.0.0.1:1\" }}]\n\
         [[service.check]]\n{lines}\n"
    );
    match parse(&text, "test") {
        Ok(loaded) => loaded.config.services[0].checks[0].clone(),
        Err(errors) => panic!("{errors}"),
    }
}

fn http(address: SocketAddr, lines: &str) -> CheckConfig {
    check(&format!("type = \"http\"\nurl = \"http://shop.example:{}/healthz\"\n{lines}", address.port()))
}

fn tcp(lines: &str) -> CheckConfig {
    check(&format!("type = \"tcp\"\n{lines}"))
}

fn prepared(check: &CheckConfig, address: SocketAddr, trust: Option<&Trust>) -> Round {
    let sockets = Sockets { mark: MARK, ..Sockets::default() };
    let untrusting = Trust::default();
    let trust = trust.unwrap_or(&untrusting);
    Round::new(Setting { check, address, sockets: &sockets, trust, names: ("s", "o"), hub: None })
        .expect("a check that can be run")
}

/// One round's outcome and how long it took.
async fn run(check: &CheckConfig, address: SocketAddr, trust: Option<&Trust>) -> (Outcome, Span) {
    let finished = finished(check, address, trust).await;
    (finished.outcome, finished.ended.since(finished.began))
}

/// One round; another one if this machine was too busy for it to say anything.
async fn finished(check: &CheckConfig, address: SocketAddr, trust: Option<&Trust>) -> Finished {
    let mut round = prepared(check, address, trust);
    let stalls = Stalls::new();
    let rounds = async {
        loop {
            let finished = round.run(&stalls).await;
            if finished.outcome != Outcome::Local(LocalReason::Late) {
                return finished;
            }
        }
    };
    let watched = async {
        tokio::select! {
            finished = rounds => finished,
            () = stalls.watch() => unreachable!("watches for ever"),
        }
    };
    timeout(PATIENCE, watched).await.expect("a round ends")
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

/// A listener for [`place`]: many addresses, so that the same check of each is a check of its own.
async fn listen_everywhere() -> (TcpListener, u16) {
    let listener = TcpListener::bind("0.0.0.0:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

/// One of 65,536 addresses of this host.
fn place(n: u16, port: u16) -> SocketAddr {
    let [high, low] = n.to_be_bytes();
    SocketAddr::from(([127, 1, high, low], port))
}

/// Accepts everything, and closes when the other side does.
fn accept_all(listener: TcpListener) {
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move { while connection.read_u8().await.is_ok() {} });
        }
    });
}

/// Reads a request's head.
async fn head<C: AsyncReadExt + Unpin>(connection: &mut C) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        match connection.read_u8().await {
            Ok(byte) => read.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&read).into_owned()
}

/// Answers each request with these bytes and keeps the connection open, so that nothing ends by its closing.
async fn holding(answer: impl Into<Vec<u8>>) -> SocketAddr {
    let (listener, address) = listen().await;
    let answer = answer.into();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut connection, _)) = listener.accept().await {
            head(&mut connection).await;
            if connection.write_all(&answer).await.is_ok() {
                held.push(connection);
            }
        }
    });
    address
}

/// The same, and closes.
async fn closing(answer: impl Into<Vec<u8>>) -> SocketAddr {
    let (listener, address) = listen().await;
    let answer = answer.into();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            head(&mut connection).await;
            drop(connection.write_all(&answer).await);
        }
    });
    address
}

/// Says this to everyone at once, asked or not, and closes when the other side does.
async fn greeting(words: &'static str) -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                drop(connection.write_all(words.as_bytes()).await);
                while connection.read_u8().await.is_ok() {}
            });
        }
    });
    address
}

fn fail(reason: Reason) -> Outcome {
    Outcome::Fail(reason)
}

/// Ends once the clock that judges rounds has passed `at`: a server is late by that clock, however a timer runs.
async fn passed(at: Timestamp) {
    let mut look = interval(Duration::from_millis(5));
    while now() <= at {
        look.tick().await;
    }
}

/// Keeps this thread, and so the runtime on it, from doing anything for that long by the clock. From inside, this is what
/// SIGSTOP looks like.
fn stop_for(lost: Span) {
    let end = now().after(lost);
    while now() < end {
        std::thread::park_timeout(clock::duration(end.since(now())));
    }
}

#[tokio::test]
async fn answers_are_judged_byte_for_byte() {
    let status = |code| fail(Reason::Status(code));
    let (body, protocol) = (fail(Reason::Body), fail(Reason::Protocol));
    let ready = "expect = { body = \"contains:ready\" }";
    let exact = "expect = { body = \"exact:ready\" }";
    let long_head = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(300_000));
    let word_inside =
        format!("HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n{}ready{}", "x".repeat(1019), "y".repeat(976));
    let word_across =
        format!("HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n{}ready{}", "x".repeat(1021), "y".repeat(974));
    let window = "expect = { body = \"contains:ready\", body_max = \"1KiB\" }";
    let table: &[(&str, &str, &str, Outcome)] = &[
        ("200", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "", Outcome::Pass),
        ("204 with a length", "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", "", Outcome::Pass),
        ("206", "HTTP/1.1 206 Partial Content\r\nContent-Length: 0\r\n\r\n", "", Outcome::Pass),
        (
            "301 is not followed",
            "HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\n\r\n",
            "",
            fail(Reason::Redirect(301)),
        ),
        (
            "302 if listed",
            "HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n",
            "expect = { status = [200, 302] }",
            Outcome::Pass,
        ),
        ("304", "HTTP/1.1 304 Not Modified\r\n\r\n", "expect = { status = [\"300-399\"] }", Outcome::Pass),
        ("401", "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", "", status(401)),
        ("404 fails despite its body", "HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nready", ready, status(404)),
        ("503, body never sent", "HTTP/1.1 503 Busy\r\nContent-Length: 500\r\n\r\n", "", status(503)),
        ("HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", "", Outcome::Pass),
        ("HEAD has no body", "HTTP/1.1 200 OK\r\nContent-Length: 1192\r\n\r\n", "method = \"HEAD\"", Outcome::Pass),
        (
            "103 before 200",
            "HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            "",
            Outcome::Pass,
        ),
        ("100 unasked", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", "", status(503)),
        ("101 is final", "HTTP/1.1 101 Switch\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "", status(101)),
        ("a word", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<p>ready.", ready, Outcome::Pass),
        ("no such word", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nreadx", ready, body),
        (
            "a word across chunks",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nrea\r\n2\r\ndy\r\n0\r\n\r\n",
            ready,
            Outcome::Pass,
        ),
        ("exact", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nready", exact, Outcome::Pass),
        ("exact, not trimmed", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nready\n", exact, body),
        (
            "compressed unasked",
            "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nready",
            ready,
            fail(Reason::Encoding),
        ),
        (
            "compressed, no rule",
            "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nready",
            "",
            Outcome::Pass,
        ),
        ("word ends inside the limit", &word_inside, window, Outcome::Pass),
        ("word ends behind the limit", &word_across, window, body),
        ("garbage", "220 mail.example ESMTP\r\n", "", protocol),
        ("binary", "\u{1}\u{2}\u{3}\u{4}\u{5}\u{6}\u{7}\u{8}\r\n\r\n", "", protocol),
        ("status without a number", "HTTP/1.1 abc OK\r\n\r\n", "", protocol),
        (
            "two different lengths",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
            "",
            protocol,
        ),
        ("bad chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "", protocol),
        ("head without end", &long_head, "", protocol),
    ];
    for (name, answer, lines, expected) in table {
        let address = holding(*answer).await;
        let (outcome, took) = run(&http(address, lines), address, None).await;
        assert_eq!(outcome, *expected, "{name}");
        // None of them may wait for the server to close.
        assert!(took < Span::from_secs(1), "{name} took {took}");
    }
}

#[tokio::test]
async fn a_connection_that_ends_early_is_told_from_one_that_ends_well() {
    let table = [
        ("nothing", "", Reason::Protocol),
        ("half a head", "HTTP/1.1 200 O", Reason::Protocol),
        ("half a body", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", Reason::Protocol),
        ("half a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", Reason::Protocol),
    ];
    for (name, answer, reason) in table {
        let address = closing(answer).await;
        assert_eq!(run(&http(address, ""), address, None).await.0, fail(reason), "{name}");
    }
    let whole = closing("HTTP/1.1 200 OK\r\n\r\nready until the end").await;
    assert_eq!(
        run(&http(whole, "expect = { body = \"exact:ready until the end\" }"), whole, None).await.0,
        Outcome::Pass
    );
}

#[tokio::test]
async fn a_reset_is_a_reset_before_and_inside_an_answer() {
    for answer in ["", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"] {
        let (listener, address) = listen().await;
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                head(&mut connection).await;
                connection.write_all(answer.as_bytes()).await.expect("an open connection");
                // Closing without lingering is what sends the RST.
                connection.set_zero_linger().expect("a socket option");
            }
        });
        assert_eq!(run(&http(address, ""), address, None).await.0, fail(Reason::Reset), "{answer:?}");
    }
}

#[tokio::test]
async fn a_refused_connection_is_refused_for_every_kind() {
    // Taken and not listened on: no other test can have it meanwhile.
    let taken = tokio::net::TcpSocket::new_v4().expect("a socket");
    taken.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let address = taken.local_addr().expect("an address");
    assert_eq!(run(&tcp(""), address, None).await.0, fail(Reason::Refused));
    assert_eq!(run(&http(address, ""), address, None).await.0, fail(Reason::Refused));
}

#[tokio::test]
async fn an_open_port_passes_and_a_slow_answer_is_slow() {
    let (_listener, address) = listen().await;
    assert_eq!(run(&tcp(""), address, None).await.0, Outcome::Pass);

    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            head(&mut connection).await;
            passed(now().after(Span::from_millis(100))).await;
            drop(connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await);
        }
    });
    assert_eq!(run(&http(address, "slow = \"100ms\""), address, None).await.0, Outcome::Slow);
    assert_eq!(run(&http(address, "slow = \"1500ms\""), address, None).await.0, Outcome::Pass);
}

/// Answers one byte in 50 ms for ever: each byte is in time, the whole is not.
async fn dripping() -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                head(&mut connection).await;
                let mut bytes =
                    b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n".iter().chain(std::iter::repeat(&b'x'));
                let mut pace = interval(Duration::from_millis(50));
                while connection.write_all(&[*bytes.next().unwrap_or(&b'x')]).await.is_ok() {
                    pace.tick().await;
                }
            });
        }
    });
    address
}

/// P26: drips, silence and dropped SYNs alike end when the time of the whole round is over.
#[tokio::test]
async fn p26_one_deadline_covers_every_step_and_names_the_layer() {
    let late = "timeout = \"400ms\"";
    let secure = |address: SocketAddr| {
        check(&format!("type = \"http\"\nurl = \"https://shop.example:{}/\"\n{late}", address.port()))
    };
    let trust = trust(&[&Authority::new()]);
    // The queue of this listener is full, so further SYNs are dropped.
    let full = tokio::net::TcpSocket::new_v4().expect("a socket");
    full.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let full = full.listen(0).expect("a listener");
    let full_at = full.local_addr().expect("an address");
    let _queued = TcpStream::connect(full_at).await.expect("the one place");

    let silent = holding("").await;
    let half = holding("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").await;
    let drip = dripping().await;
    let cases = [
        ("SYN dropped, tcp", tcp(late), full_at, Layer::Transport),
        ("SYN dropped, http", http(full_at, late), full_at, Layer::Transport),
        ("no ServerHello", secure(silent), silent, Layer::Tls),
        ("accepts, then silence", http(silent, late), silent, Layer::Application),
        ("half a body", http(half, late), half, Layer::Application),
        ("drips", http(drip, late), drip, Layer::Application),
    ];
    for (name, check, address, layer) in cases {
        let (outcome, took) = run(&check, address, Some(&trust)).await;
        assert_eq!(outcome, fail(Reason::Timeout(layer)), "{name}");
        assert!(took >= Span::from_millis(399) && took < Span::from_millis(900), "{name} took {took}");
    }
}

#[tokio::test]
async fn p22_c_an_endless_body_ends_at_the_limit_with_a_verdict() {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            head(&mut connection).await;
            drop(connection.write_all(b"HTTP/1.1 200 OK\r\n\r\nready").await);
            while connection.write_all(&[b'x'; 4096]).await.is_ok() {}
        }
    });
    let lines = |rule: &str| format!("expect = {{ body = \"{rule}\", body_max = \"64KiB\" }}");
    assert_eq!(run(&http(address, ""), address, None).await.0, Outcome::Pass);
    assert_eq!(run(&http(address, &lines("contains:ready")), address, None).await.0, Outcome::Pass);
    assert_eq!(run(&http(address, &lines("not_regex:error")), address, None).await.0, Outcome::Pass);
    assert_eq!(run(&http(address, &lines("exact:ready")), address, None).await.0, fail(Reason::Body));
}

#[tokio::test]
async fn requests_look_like_this() {
    let (listener, address) = listen().await;
    let seen = tokio::spawn(async move {
        let mut seen = String::new();
        for _ in 0..4 {
            let (mut connection, _) = listener.accept().await.expect("a connection");
            seen += &head(&mut connection).await;
            drop(connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await);
        }
        seen
    });
    let port = address.port();
    let asked = [
        (format!("http://shop.example:{port}"), ""),
        (
            format!("http://shop.example:{port}/a/../b%20c?q=%E7%99%BB&r"),
            "headers = { X-Probe = \"1\", User-Agent = \"ops\" }",
        ),
        (format!("http://[2001:db8::1]:{port}/healthz"), "method = \"HEAD\""),
        (format!("http://Shop.Example:{port}/登录"), "method = \"POST\"\nheaders = { host = \"other.example\" }"),
    ];
    for (url, lines) in asked {
        let check = check(&format!("type = \"http\"\nurl = \"{url}\"\n{lines}"));
        assert_eq!(run(&check, address, None).await.0, Outcome::Pass, "{url}");
    }
    let seen = seen.await.expect("four requests").replace(&format!(":{port}"), ":PORT").replace('\r', "");
    expect![[r#"
        GET / HTTP/1.1
        Host: shop.example:PORT
        Connection: close
        User-Agent: sluice
        Accept: */*
        Accept-Encoding: identity

        GET /b%20c?q=%E7%99%BB&r HTTP/1.1
        Host: shop.example:PORT
        Connection: close
        User-Agent: ops
        Accept: */*
        Accept-Encoding: identity
        X-Probe: 1

        HEAD /healthz HTTP/1.1
        Host: [2001:db8::1]:PORT
        Connection: close
        User-Agent: sluice
        Accept: */*
        Accept-Encoding: identity

        POST /%E7%99%BB%E5%BD%95 HTTP/1.1
        Host: other.example
        Connection: close
        User-Agent: sluice
        Accept: */*
        Accept-Encoding: identity
        Content-Length: 0

    "#]]
    .assert_eq(&seen);
}

/// A private authority, and what it signs.
struct Authority {
    certificate: Certificate,
    key: KeyPair,
    root: CertificateDer<'static>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let root = certificate.der().clone();
        Self { certificate, key, root }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).expect("a root");
        roots
    }
}

fn trust(authorities: &[&Authority]) -> Trust {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.root.clone()).expect("a root");
    }
    Trust::trusting(roots)
}

/// A TLS server with a certificate for `name`; it sends back the SNI that it saw.
async fn secure(authority: &Authority, name: &str, expired: bool, asks_client: bool) -> SocketAddr {
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
    if expired {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    }
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, &authority.certificate, &authority.key).expect("a certificate");
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.expect("protocol versions");
    let builder = if asks_client {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authority.roots()), provider);
        builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
    } else {
        builder.with_no_client_auth()
    };
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let config = builder.with_single_cert(vec![certificate.der().clone()], key).expect("a server");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let Ok(mut connection) = acceptor.accept(connection).await else { continue };
            let sni = connection.get_ref().1.server_name().unwrap_or("none").to_owned();
            head(&mut connection).await;
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{sni}", sni.len());
            drop(connection.write_all(answer.as_bytes()).await);
            drop(connection.shutdown().await);
        }
    });
    address
}

#[tokio::test]
async fn certificates_are_verified_against_the_urls_name() {
    let (ours, other) = (Authority::new(), Authority::new());
    let good = secure(&ours, "shop.example", false, false).await;
    let by_address = secure(&ours, "127.0.0.1", false, false).await;
    let expired = secure(&ours, "shop.example", true, false).await;
    let client_wanted = secure(&ours, "shop.example", false, true).await;
    let plain = greeting("220 mail.example ESMTP\r\n").await;
    let asked = |host: &str, address: SocketAddr, sni: &str| {
        let port = address.port();
        check(&format!("type = \"http\"\nurl = \"https://{host}:{port}/h\"\nexpect = {{ body = \"exact:{sni}\" }}"))
    };
    let cases = [
        ("good", good, "shop.example", &ours, "shop.example", Outcome::Pass),
        ("an address, without SNI", by_address, "127.0.0.1", &ours, "none", Outcome::Pass),
        ("wrong name", good, "news.example", &ours, "", fail(Reason::CertName)),
        ("unknown authority", good, "shop.example", &other, "", fail(Reason::CertUntrusted)),
        ("expired", expired, "shop.example", &ours, "", fail(Reason::CertExpired)),
        ("asks for a client certificate", client_wanted, "shop.example", &ours, "", fail(Reason::ClientCert)),
        ("no TLS at all", plain, "shop.example", &ours, "", fail(Reason::Tls)),
    ];
    for (name, address, host, authority, sni, expected) in cases {
        let sni = if sni.is_empty() { "-" } else { sni };
        let (outcome, _) = run(&asked(host, address, sni), address, Some(&trust(&[authority]))).await;
        assert_eq!(outcome, expected, "{name}");
    }
}

#[tokio::test]
async fn connections_carry_the_mark() {
    let (_listener, address) = listen().await;
    let sockets = Sockets { mark: MARK, ..Sockets::default() };
    let connection = sockets.connect(address).await.expect("a connection");
    assert_eq!(getsockopt(&connection, sockopt::Mark).expect("a mark"), MARK);
    assert!(connection.nodelay().expect("an option"));
}

#[test]
fn system_errors_tell_the_origin_from_the_node() {
    let local = Outcome::Local;
    let table = [
        (libc::EMFILE, local(LocalReason::Descriptors)),
        (libc::ENFILE, local(LocalReason::Descriptors)),
        (libc::EADDRNOTAVAIL, local(LocalReason::Ports)),
        (libc::ENOBUFS, local(LocalReason::Memory)),
        (libc::ENOMEM, local(LocalReason::Memory)),
        (libc::ECONNREFUSED, fail(Reason::Refused)),
        (libc::ECONNRESET, fail(Reason::Reset)),
        (libc::EPIPE, fail(Reason::Reset)),
        (libc::ETIMEDOUT, fail(Reason::Timeout(Layer::Transport))),
        (libc::EHOSTUNREACH, fail(Reason::Unreachable)),
        (libc::ENETUNREACH, fail(Reason::Unreachable)),
        (libc::EPERM, fail(Reason::Unreachable)),
    ];
    for (code, expected) in table {
        assert_eq!(failure::of_io(&io::Error::from_raw_os_error(code), Layer::Transport), expected, "{code}");
    }
}

/// The real thing, in a child of its own: the limit holds for a whole process.
#[test]
fn p39_a_lack_of_descriptors_is_no_failure_of_the_origin() {
    const CHILD: &str = "SLUICE_TEST_DESCRIPTORS";
    if std::env::var_os(CHILD).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (_listener, address) = listen().await;
            let (_, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).expect("limits");
            nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, 0, hard).expect("a limit");
            let shortage = Outcome::Local(LocalReason::Descriptors);
            assert_eq!(run(&tcp(""), address, None).await.0, shortage);
            assert_eq!(run(&http(address, ""), address, None).await.0, shortage);
        });
        return;
    }
    let name = "probe::tests::p39_a_lack_of_descriptors_is_no_failure_of_the_origin";
    let child = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", name])
        .env(CHILD, "1")
        .output()
        .expect("a child");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

#[tokio::test]
async fn time_that_the_process_lost_is_not_held_against_the_origin() {
    for lost in [Span::from_millis(600), Span::from_millis(1800)] {
        let (listener, silent) = listen().await;
        let asked = tokio::spawn(async move {
            let (mut connection, _) = listener.accept().await.expect("a connection");
            head(&mut connection).await;
            // Nobody answers, and nobody closes before the end.
            (listener, connection)
        });
        let mut round = prepared(&http(silent, "timeout = \"500ms\""), silent, None);
        let stalls = Arc::new(Stalls::new());
        let watch = tokio::spawn({
            let stalls = Arc::clone(&stalls);
            async move { stalls.watch().await }
        });
        let running = tokio::spawn(async move { round.run(&stalls).await });
        let held = timeout(PATIENCE, asked).await.expect("a request").expect("no panic");
        stop_for(lost);
        let finished = timeout(PATIENCE, running).await.expect("an end").expect("no panic");
        watch.abort();
        drop(held);
        assert_eq!(finished.outcome, Outcome::Local(LocalReason::Late), "{lost}");
    }
}

#[test]
fn the_clock_is_the_kernels_and_goes_on() {
    let first = now();
    assert!(first > Timestamp::NEVER);
    assert!(now() >= first);
}

fn target(origin: u16, address: SocketAddr, checks: &[CheckConfig]) -> Target {
    let checks = checks.iter().zip(0..).map(|(check, index)| (index, check.clone())).collect();
    Target { origin: OriginId(origin), address, service: "s".to_owned(), name: "o".to_owned(), runs: (3, 2), checks }
}

fn scheduler() -> (Scheduler, mpsc::Receiver<Report>) {
    let (sender, receiver) = mpsc::channel(1024);
    let settings = Settings { mark: MARK, checks_per_s: 4000 };
    (Scheduler::new(settings, sender).expect("the right to mark sockets: run as root"), receiver)
}

async fn next(results: &mut mpsc::Receiver<Report>) -> CheckResult {
    timeout(PATIENCE, results.recv()).await.expect("a result in time").expect("a scheduler").result
}

/// Nothing comes for longer than anything pending could take.
async fn silence(results: &mut mpsc::Receiver<Report>) {
    if let Ok(Some(result)) = timeout(Duration::from_millis(300), results.recv()).await {
        panic!("unexpected: {result:?}");
    }
}

#[tokio::test]
async fn the_first_result_comes_soon_and_hurry_brings_one_more() {
    let (_listener, address) = listen().await;
    let (mut scheduler, mut results) = scheduler();
    scheduler.apply(&[target(7, address, &[tcp("interval = \"1h\"")])]).expect("targets");
    let first = next(&mut results).await;
    assert_eq!((first.origin, first.check, first.outcome), (OriginId(7), 0, Outcome::Pass));
    silence(&mut results).await;
    // A burst of suspicion is one round.
    for _ in 0..5 {
        scheduler.hurry(OriginId(7));
        scheduler.hurry(OriginId(8));
    }
    let hurried = next(&mut results).await;
    assert!(hurried.began > first.ended);
    silence(&mut results).await;
    scheduler.hurry(OriginId(7));
    next(&mut results).await;
}

#[tokio::test]
async fn unchanged_targets_keep_their_phase_and_changed_ones_begin_anew() {
    let (_one, first) = listen().await;
    let (_two, second) = listen().await;
    let (mut scheduler, mut results) = scheduler();
    let (a, b) = (tcp("name = \"a\"\ninterval = \"1h\""), tcp("name = \"b\"\ninterval = \"1h\"\ntimeout = \"900ms\""));
    scheduler.apply(&[target(1, first, std::slice::from_ref(&a))]).expect("targets");
    next(&mut results).await;
    // `b` is new, `a` goes to another place: only `b` has a first round.
    scheduler.apply(&[target(1, first, &[b.clone(), a.clone()])]).expect("targets");
    assert_eq!(next(&mut results).await.check, 0);
    silence(&mut results).await;
    scheduler.hurry(OriginId(1));
    let mut both = [next(&mut results).await.check, next(&mut results).await.check];
    both.sort_unstable();
    assert_eq!(both, [0, 1]);
    // Another address is another target; what is gone is silent.
    scheduler.apply(&[target(1, second, &[a])]).expect("targets");
    assert_eq!(next(&mut results).await.check, 0);
    scheduler.apply(&[]).expect("no targets");
    scheduler.hurry(OriginId(1));
    silence(&mut results).await;
    drop(scheduler);
    assert!(timeout(PATIENCE, results.recv()).await.expect("an end").is_none(), "tasks outlive their scheduler");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p26_hung_targets_never_delay_others() {
    let (good, silent) = (listen_everywhere().await, listen_everywhere().await);
    let (port, silent_port) = (good.1, silent.1);
    accept_all(good.0);
    accept_all(silent.0);
    let (mut scheduler, mut results) = scheduler();
    // A deadline that even a kernel without CPU time meets on the loopback.
    let quick = tcp("interval = \"200ms\"\ntimeout = \"10s\"");
    let hung = http(place(0, silent_port), "interval = \"200ms\"\ntimeout = \"3s\"");
    let targets: Vec<_> = (0..200)
        .map(|n| {
            if n % 20 == 0 {
                target(n, place(n, silent_port), std::slice::from_ref(&hung))
            } else {
                target(n, place(n, port), std::slice::from_ref(&quick))
            }
        })
        .collect();
    scheduler.apply(&targets).expect("targets");
    let mut began: HashMap<u16, Vec<Timestamp>> = HashMap::new();
    while began.len() < 190 || began.values().any(|times| times.len() < 6) {
        let result = next(&mut results).await;
        // The hung ones say nothing before their deadline, and a starved test machine blames no origin.
        let fine = matches!(result.outcome, Outcome::Pass | Outcome::Local(LocalReason::Late));
        assert!(fine && result.origin.0 % 20 != 0, "{result:?}");
        began.entry(result.origin.0).or_default().push(result.began);
    }
    for (origin, times) in began {
        // From the third round on the schedule is settled: 180 to 220 ms. The median forgives the machine its pauses,
        // while a delay that comes from hung targets would be in every gap.
        let mut gaps: Vec<_> = times[1..6].windows(2).map(|pair| pair[1].since(pair[0])).collect();
        gaps.sort_unstable();
        assert!(gaps[1] < Span::from_millis(320), "origin {origin}: {gaps:?} between rounds");
    }
}

/// P27: a machine that was stopped for a while asks each target once, soon, and holds nothing against it.
#[tokio::test]
async fn p27_b_missed_rounds_collapse_into_one_after_a_stop() {
    let (listener, port) = listen_everywhere().await;
    accept_all(listener);
    let (mut scheduler, mut results) = scheduler();
    let check = tcp("interval = \"1s\"");
    let targets: Vec<_> = (0..20).map(|n| target(n, place(n, port), std::slice::from_ref(&check))).collect();
    scheduler.apply(&targets).expect("targets");
    let mut first = std::collections::HashSet::new();
    while first.len() < 20 {
        first.insert(next(&mut results).await.origin);
    }
    stop_for(Span::from_millis(3500));
    let resumed = now();
    let mut after: HashMap<u16, Vec<CheckResult>> = HashMap::new();
    while after.len() < 20 || after.values().any(|results| results.len() < 2) {
        let result = next(&mut results).await;
        if result.ended >= resumed {
            after.entry(result.origin.0).or_default().push(result);
        }
    }
    for (origin, results) in after {
        assert_eq!(results[0].outcome, Outcome::Local(LocalReason::Late), "origin {origin}");
        assert_eq!(results[1].outcome, Outcome::Pass, "origin {origin}");
        assert!(results[1].began.since(resumed) < Span::from_millis(1500), "origin {origin}: {results:?}");
    }
}

/// IPv6 is another kind of socket.
#[tokio::test]
async fn ipv6_origins_are_checked_alike() {
    let listener = TcpListener::bind("[::1]:0").await.expect("IPv6 on the loopback");
    let address = listener.local_addr().expect("an address");
    assert_eq!(run(&tcp(""), address, None).await.0, Outcome::Pass);
    drop(listener);
    assert_eq!(run(&tcp(""), address, None).await.0, fail(Reason::Refused));
}

#[tokio::test]
async fn a_silent_target_is_asked_again_after_its_deadline_and_never_twice_at_once() {
    let (listener, address) = listen().await;
    let (most, open) = (Arc::new(Mutex::new((0, 0))), Arc::new(Mutex::new(0)));
    tokio::spawn({
        let most = Arc::clone(&most);
        async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let (most, open) = (Arc::clone(&most), Arc::clone(&open));
                tokio::spawn(async move {
                    let now = {
                        let mut open = open.lock().expect("a lock");
                        *open += 1;
                        *open
                    };
                    {
                        let mut most = most.lock().expect("a lock");
                        *most = (most.0.max(now), most.1 + 1);
                    }
                    // Until the check gives up and closes.
                    while connection.read_u8().await.is_ok() {}
                    *open.lock().expect("a lock") -= 1;
                });
            }
        }
    });
    let (mut scheduler, mut results) = scheduler();
    scheduler
        .apply(&[target(1, address, &[http(address, "interval = \"100ms\"\ntimeout = \"250ms\"")])])
        .expect("targets");
    for _ in 0..4 {
        let outcome = next(&mut results).await.outcome;
        let late = Outcome::Local(LocalReason::Late);
        assert!([fail(Reason::Timeout(Layer::Application)), late].contains(&outcome), "{outcome:?}");
    }
    assert_eq!(most.lock().expect("a lock").0, 1);
}

/// Each run is a connection: fewer than usual, unless somebody fuzzes.
fn over_the_wire() -> ProptestConfig {
    let usual = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { usual.cases } else { 48 };
    ProptestConfig { cases, ..usual }
}

proptest! {
    #![proptest_config(over_the_wire())]

    /// Whatever an origin sends, a round ends with a verdict about it.
    #[test]
    fn any_bytes_of_an_answer_end_in_a_verdict(bytes in prop::collection::vec(any::<u8>(), 0..400), head in any::<bool>()) {
        let mut answer = if head { b"HTTP/1.1 200 OK\r\n".to_vec() } else { Vec::new() };
        answer.extend(bytes);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let outcome = runtime.block_on(async {
            let address = closing(answer).await;
            run(&http(address, "expect = { body = \"not_regex:x\" }"), address, None).await.0
        });
        prop_assert!(matches!(outcome, Outcome::Pass | Outcome::Fail(_)), "{:?}", outcome);
    }
}

#[test]
fn every_origin_is_a_target_of_all_checks_of_its_service() {
    struct ByPort;
    impl crate::config::Ids for ByPort {
        fn service(&self, _: &str) -> health_core::model::ServiceId {
            health_core::model::ServiceId(1)
        }
        fn origin(&self, address: SocketAddr) -> OriginId {
            OriginId(address.port())
        }
        fn frontend(&self, address: SocketAddr) -> health_core::model::FrontendId {
            health_core::model::FrontendId(address.port())
        }
    }
    let config = parse(include_str!("../../../deploy/sluice.toml"), "f").expect("the example").config;
    let targets = Target::all(&config, &ByPort);
    let shown: Vec<_> = targets.iter().map(|one| (one.service.as_str(), one.origin.0, one.checks.len())).collect();
    assert_eq!(shown, [("shop", 443, 2), ("shop", 443, 2), ("shop", 443, 2), ("feed", 7000, 1), ("feed", 7000, 1)]);
    assert_eq!(targets[0].checks[1], (1, config.services[0].checks[1].clone()));
}

#[test]
fn kinds_have_their_layer() {
    assert_eq!(tcp("").layer, Layer::Transport);
    let check = check("type = \"http\"\nurl = \"http://a/\"");
    assert_eq!(check.layer, Layer::Application);
    assert!(matches!(check.kind, CheckKind::Http(_)));
}
