//! Cases P17 to P20, P22 and P23, and what goes beyond one request.

use super::*;
use hyper::{HeaderMap, Response};

/// One answer, checked with these lines.
async fn judged(answer: &str, lines: &str) -> Finished {
    let address = holding(answer).await;
    finished(&http(address, lines), address, None).await
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn p17_status_codes_and_redirects() {
    let body = "expect = { body = \"contains:OK\" }";
    let two = "expect = { status = [200, 302] }";
    let login = "expect = { status = [\"200-299\", 401] }";
    let (pressed, unpressed) = ("expect = { status_slow = [429, 503] }", "expect = { status_slow = [] }");
    let limited = "expect = { status = [200, 429] }";
    let status = |code| fail(Reason::Status(code));
    let redirect = |code| fail(Reason::Redirect(code));
    let table = [
        ("200 OK", "", "", Outcome::Pass),
        ("204 No Content", "", "", Outcome::Pass),
        ("206 Partial Content", "", "", Outcome::Pass),
        ("301 Moved", "Location: https://other.example\r\n", "", redirect(301)),
        ("302 Found", "Location: login\r\n", "", redirect(302)),
        ("302 Found", "Location: login\r\n", two, Outcome::Pass),
        ("303 See Other", "Location: login\r\n", two, redirect(303)),
        ("304 Not Modified", "", "", status(304)),
        ("401 Unauthorized", "", "", status(401)),
        ("401 Unauthorized", "", login, Outcome::Pass),
        ("404 Not Found", "", body, status(404)),
        ("429 Too Many Requests", "Retry-After: 5\r\n", "", Outcome::Slow),
        ("429 Too Many Requests", "Retry-After: 5\r\n", pressed, Outcome::Slow),
        ("429 Too Many Requests", "Retry-After: 5\r\n", limited, Outcome::Pass),
        ("429 Too Many Requests", "Retry-After: 5\r\n", unpressed, status(429)),
        ("500 Oops", "", pressed, status(500)),
        ("503 Busy", "", pressed, Outcome::Slow),
        ("503 Busy", "", "", status(503)),
    ];
    for (line, headers, lines, expected) in table {
        let finished = judged(&answer(line, headers, "OK"), lines).await;
        assert_eq!(finished.outcome, expected, "{line} {lines}");
        assert!(finished.notes.detail.is_some() || expected == Outcome::Pass, "{line} {lines}: unexplained");
    }
}

#[tokio::test]
async fn p17_redirections_by_rule() {
    let moved = |to: &str| answer("301 Moved", &format!("Location: {to}\r\n"), "");
    let redirect = fail(Reason::Redirect(301));
    let table = [
        ("https://shop.example/", "pass", Outcome::Pass),
        ("https://shop.example/", "https_only", Outcome::Pass),
        ("https://other.example/", "https_only", redirect),
        ("http://shop.example/x", "https_only", redirect),
        ("//shop.example/x", "https_only", redirect),
        ("https://other.example", "follow", redirect),
        ("ftp://shop.example/", "follow", redirect),
        ("http://[bad", "follow", redirect),
    ];
    for (to, rule, expected) in table {
        let finished = judged(&moved(to), &format!("expect = {{ redirect = \"{rule}\" }}")).await;
        assert_eq!(finished.outcome, expected, "{to} {rule}");
    }
    let nowhere = judged(&answer("301 Moved", "", ""), "expect = { redirect = \"follow\" }").await;
    assert_eq!(nowhere.outcome, redirect, "no Location");
}

/// Answers by what is asked, and remembers the heads of requests.
async fn by_path(answers: &'static [(&'static str, &'static str)]) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let (listener, address) = listen().await;
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heads);
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let head = head(&mut connection).await;
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse::<usize>().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            drop(connection.read_exact(&mut body).await);
            kept.lock().expect("heads").push(head + &String::from_utf8_lossy(&body));
            let answer = answers.iter().find(|(known, _)| *known == path).map_or("HTTP/1.1 404 No\r\n\r\n", |(_, a)| a);
            drop(connection.write_all(answer.replace("PORT", &address.port().to_string()).as_bytes()).await);
        }
    });
    (address, heads)
}

#[tokio::test]
async fn p17_redirections_are_followed_as_rfc_3986_says_and_not_for_ever() {
    const ANSWERS: &[(&str, &str)] = &[
        ("/a/b", "HTTP/1.1 302 F\r\nLocation: ../c?d\r\nContent-Length: 0\r\n\r\n"),
        ("/c?d", "HTTP/1.1 307 F\r\nLocation: http://shop.example:PORT/e\r\nContent-Length: 0\r\n\r\n"),
        ("/e", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nready"),
        ("/loop", "HTTP/1.1 308 F\r\nLocation: /loop\r\nContent-Length: 0\r\n\r\n"),
        ("/gone", "HTTP/1.1 302 F\r\nLocation: /nowhere\r\nContent-Length: 0\r\n\r\n"),
    ];
    let (address, heads) = by_path(ANSWERS).await;
    let asked = |path: &str| {
        let expect = "expect = { redirect = \"follow\", body = \"exact:ready\" }";
        check(&format!("type = \"http\"\nurl = \"http://shop.example:{}{path}\"\n{expect}", address.port()))
    };
    assert_eq!(run(&asked("/a/b"), address, None).await.0, Outcome::Pass);
    let paths: Vec<_> =
        heads.lock().expect("heads").iter().map(|head| head.split(' ').nth(1).unwrap_or_default().to_owned()).collect();
    assert_eq!(paths, ["/a/b", "/c?d", "/e"]);
    assert_eq!(run(&asked("/loop"), address, None).await.0, fail(Reason::Redirect(308)));
    assert_eq!(heads.lock().expect("heads").len(), 3 + 6, "five redirections are followed");
    assert_eq!(run(&asked("/gone"), address, None).await.0, fail(Reason::Status(404)));
}

/// The same for bytes that are no text.
async fn judged_bytes(headers: &str, body: &[u8], lines: &str) -> Finished {
    let head = format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    let address = holding([head.as_bytes(), body].concat()).await;
    finished(&http(address, lines), address, None).await
}

#[tokio::test]
async fn p18_stray_whitespace() {
    let (exact, trim) = ("expect = { body = \"exact:ready\" }", "expect = { body = \"exact:ready\", trim = true }");
    let body = fail(Reason::Body);
    let table = [
        ("ready", exact, Outcome::Pass),
        ("ready\n", exact, body),
        ("ready\r\n", exact, body),
        (" ready", exact, body),
        ("ready\r\n", trim, Outcome::Pass),
        (" ready ", trim, Outcome::Pass),
        ("re ady", trim, body),
    ];
    for (content, lines, expected) in table {
        let finished = judged(&answer("200 OK", "", content), lines).await;
        assert_eq!(finished.outcome, expected, "{content:?} {lines}");
    }
    let detail = judged(&answer("200 OK", "", "ready\r\n"), exact).await.notes.detail;
    assert_eq!(detail.as_deref(), Some("body \"ready\\r\\n\", expected exact:ready"));
}

/// Compressed bytes are never held against a rule: they are decoded, asked for or not, or the coding is named.
#[tokio::test]
async fn p18_compressed_bodies() {
    use flate2::{Compression, write};
    use std::io::Write as _;
    let gzip = |plain: &[u8]| {
        let mut encoder = write::GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(plain).expect("memory");
        encoder.finish().expect("memory")
    };
    let deflate = |plain: &[u8]| {
        let mut encoder = write::ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(plain).expect("memory");
        encoder.finish().expect("memory")
    };
    let exact = "expect = { body = \"exact:ready\" }";
    let asks = "headers = { Accept-Encoding = \"gzip, br\" }\nexpect = { body = \"exact:ready\" }";
    let md5 = "expect = { digest = \"md5:b2fdab230a2c39f3595a947861863cb7\" }";
    let json = "expect = { json = { \"/db\" = \"ok\" } }";
    let (named, broken) = (fail(Reason::Encoding), fail(Reason::Body));
    let of = |coding: &str| format!("Content-Encoding: {coding}\r\n");
    let mut truncated = gzip(b"ready");
    truncated.truncate(12);
    let table = [
        (of("gzip"), gzip(b"ready"), exact, Outcome::Pass),
        (of("gzip"), gzip(b"ready"), asks, Outcome::Pass),
        (of("gzip"), gzip(b"ready"), md5, Outcome::Pass),
        (of("gzip"), gzip(b"{\"db\":\"ok\"}"), json, Outcome::Pass),
        (of("X-GZIP"), gzip(b"ready"), exact, Outcome::Pass),
        (of("deflate"), deflate(b"ready"), exact, Outcome::Pass),
        (of("gzip"), gzip(b"ready\n"), exact, broken),
        (of("identity"), b"ready".to_vec(), exact, Outcome::Pass),
        (of("gzip"), b"ready".to_vec(), exact, named),
        (of("gzip"), truncated, exact, named),
        (of("br"), b"\x0b\x02\x80ready\x03".to_vec(), asks, named),
        (of("gzip, gzip"), gzip(&gzip(b"ready")), exact, named),
        // No rule about the body, no need to read it.
        (of("br"), b"ready".to_vec(), "", Outcome::Pass),
        (of("gzip"), b"ready".to_vec(), "", Outcome::Pass),
        // 10 GB would take days here; the limit is what ends it.
        (of("gzip"), gzip(&vec![b'r'; 16 << 20]), "expect = { body = \"regex:^r+$\" }", Outcome::Pass),
        (of("gzip"), gzip(&vec![b'r'; 16 << 20]), "expect = { body = \"contains:x\" }", broken),
    ];
    for (headers, bytes, lines, expected) in table {
        let finished = judged_bytes(&headers, &bytes, lines).await;
        assert_eq!(finished.outcome, expected, "{headers} {lines}: {:?}", finished.notes);
    }
    let named = judged_bytes(&of("br"), b"?", exact).await.notes.detail;
    assert_eq!(named.as_deref(), Some("the body is encoded as br, which can't be undone here"));
    let empty = answer("200 OK", "Content-Encoding: gzip\r\n", "");
    let empty = judged(&empty, "expect = { body = \"not_regex:x\" }");
    assert_eq!(empty.await.outcome, Outcome::Pass, "no body, no coding");
}

#[tokio::test]
async fn p19_replies_without_a_body_and_1xx() {
    let soon = Span::from_millis(500);
    let interim = |count: usize| {
        format!("{}HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 102 Processing\r\n\r\n".repeat(count))
    };
    let table = [
        (
            "HEAD with a length",
            "HTTP/1.1 200 OK\r\nContent-Length: 1192\r\n\r\n".to_owned(),
            "method = \"HEAD\"",
            Outcome::Pass,
        ),
        ("204 with a length", "HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n".to_owned(), "", Outcome::Pass),
        ("304 without a length", "HTTP/1.1 304 No\r\n\r\n".to_owned(), "expect = { status = [304] }", Outcome::Pass),
        ("twenty 102", interim(20), "", Outcome::Pass),
        ("forty 102", interim(40), "", fail(Reason::Protocol)),
        (
            "101",
            "HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n".to_owned(),
            "",
            fail(Reason::Status(101)),
        ),
    ];
    for (name, answer, lines, expected) in table {
        let finished = judged(&answer, lines).await;
        assert_eq!(finished.outcome, expected, "{name}: {:?}", finished.notes);
        assert!(finished.ended.since(finished.began) < soon, "{name} waited");
    }
}

#[tokio::test]
async fn p20_names_on_the_wire() {
    let listener = TcpListener::bind("[::1]:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let seen = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.expect("a connection");
        let head = head(&mut connection).await;
        drop(connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await);
        head
    });
    let port = address.port();
    let asked = check(&format!("type = \"http\"\nurl = \"http://[2001:db8:1::11]:{port}/h\""));
    assert_eq!(run(&asked, address, None).await.0, Outcome::Pass);
    let head = seen.await.expect("a head");
    assert!(head.starts_with(&format!("GET /h HTTP/1.1\r\nHost: [2001:db8:1::11]:{port}\r\n")), "{head}");
    assert_eq!(head.matches("Host:").count(), 1, "{head}");
    // An address with a zone is one of this node, and nothing that a server knows.
    let zone = "[node]\ninterfaces = [\"lo\"]\n[[service]]\nname = \"s\"\norigin = [{ name = \"a\", address = \"127.0.0.1:1\" }]\n\
                [[service.check]]\ntype = \"http\"\nurl = \"http://[fe80::1%25eth0]/h\"\n";
    assert!(parse(zone, "test").is_err(), "a zone is refused");
}

#[tokio::test]
async fn p22_big_and_endless_bodies() {
    // (a) A large error page, then nobody, then all is well: each round stands for itself.
    let (listener, address) = listen().await;
    let large = answer("404 Not Found", "", &"x".repeat(20_000));
    let server = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.expect("a connection");
        head(&mut connection).await;
        drop(connection.write_all(large.as_bytes()).await);
    });
    assert_eq!(run(&http(address, ""), address, None).await.0, fail(Reason::Status(404)));
    server.await.expect("served");
    assert_eq!(run(&http(address, ""), address, None).await.0, fail(Reason::Refused));
    // (b) A word that ends at the limit, and one that goes beyond.
    let window = "expect = { body = \"contains:ready\", body_max = \"5120B\" }";
    let at = |first: usize| format!("{}ready{}", "x".repeat(first), "y".repeat(100));
    assert_eq!(judged(&answer("200 OK", "", &at(5115)), window).await.outcome, Outcome::Pass);
    assert_eq!(judged(&answer("200 OK", "", &at(5116)), window).await.outcome, fail(Reason::Body));
    // Rules about the whole need the whole.
    let digest = "expect = { digest = \"md5:d41d8cd98f00b204e9800998ecf8427e\", body_max = \"1KiB\" }";
    assert_eq!(judged(&answer("200 OK", "", &"x".repeat(2000)), digest).await.outcome, fail(Reason::Digest));
    let json = "expect = { json = { \"/a\" = 1 }, body_max = \"1KiB\" }";
    let long = format!("{{\"a\":1,\"b\":\"{}\"}}", "x".repeat(2000));
    assert_eq!(judged(&answer("200 OK", "", &long), json).await.outcome, fail(Reason::Json));
}

#[tokio::test]
async fn p23_json_rules() {
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let less = "expect = { json = { \"/difference\" = \"<5\" } }";
    let cast = "expect = { json = { \"/difference\" = \"<5\" }, json_cast = true }";
    let table = [
        ("{\"difference\":3}", less, true),
        ("{\"difference\":\"3\"}", less, false),
        ("{\"difference\":\"3\"}", cast, true),
        ("{\"difference\":\"three\"}", cast, false),
        ("{\"error\":\"x\"}", less, false),
        ("{\"difference\":null}", less, false),
        ("{\"difference\":[3]}", less, false),
        ("{\"difference\":4.9999999999999999}", less, true),
        ("{\"difference\":9007199254740993}", "expect = { json = { \"/difference\" = 9007199254740993 } }", true),
        ("{\"difference\":9007199254740992}", "expect = { json = { \"/difference\" = 9007199254740993 } }", false),
        ("{\"difference\":217.20000000000002}", "expect = { json = { \"/difference\" = 217.2 } }", false),
        ("{\"difference\":217.20}", "expect = { json = { \"/difference\" = 217.2 } }", true),
        ("{\"difference\":3,\"difference\":9}", less, false),
        ("difference: 3", less, false),
        ("", less, false),
        ("\u{feff}{\"difference\":3}", less, true),
        ("{\"difference\":3} x", less, false),
        (deep.as_str(), less, false),
    ];
    for (body, lines, good) in table {
        let finished = judged(&answer("200 OK", "", body), lines).await;
        let expected = if good { Outcome::Pass } else { fail(Reason::Json) };
        let shown: String = body.chars().take(60).collect();
        assert_eq!(finished.outcome, expected, "{shown} {lines}: {:?}", finished.notes.detail);
    }
}

#[tokio::test]
async fn json_pointers_and_types() {
    let body = r#"{"db":"ok","up":true,"list":[{"n":1},{"n":-0.5}],"a/b":{"m~n":"<5"},"":"empty"}"#;
    let table = [
        ("\"/db\" = \"ok\"", true),
        ("\"/db\" = \"OK\"", false),
        ("\"/up\" = true", true),
        ("\"/up\" = \"true\"", false),
        ("\"/up\" = false", false),
        ("\"/list/1/n\" = -0.5", true),
        ("\"/list/1/n\" = \">=-1\"", true),
        ("\"/list/0/n\" = \"!=1\"", false),
        ("\"/list/01/n\" = -0.5", false),
        ("\"/list/2/n\" = 1", false),
        ("\"/list/-\" = 1", false),
        ("\"/a~1b/m~0n\" = \"exact:<5\"", true),
        ("\"/a~1b/m~0n\" = \"<5\"", false),
        ("\"/\" = \"empty\"", true),
        ("\"/db/x\" = \"ok\"", false),
        ("\"/db\" = \"ok\", \"/up\" = false", false),
    ];
    for (rule, good) in table {
        let finished = judged(&answer("200 OK", "", body), &format!("expect = {{ json = {{ {rule} }} }}")).await;
        let expected = if good { Outcome::Pass } else { fail(Reason::Json) };
        assert_eq!(finished.outcome, expected, "{rule}: {:?}", finished.notes.detail);
    }
}

#[tokio::test]
async fn headers_digests_and_who_answered() {
    let page = "<html>首页</html>";
    let headers = "Content-Type: text/html; charset=utf-8\r\nServer: waf\r\nX-Two: a\r\nX-Two: b\r\n";
    let table = [
        ("headers = { Content-Type = \"prefix:text/html\" }", Outcome::Pass),
        ("headers = { Content-Type = \"prefix:text/plain\" }", fail(Reason::Header)),
        ("headers = { X-Two = \"b\" }", Outcome::Pass),
        ("headers = { X-Two = \"not_regex:b\" }", fail(Reason::Header)),
        ("headers = { X-None = \"not_regex:b\" }", Outcome::Pass),
        ("headers = { X-None = \"regex:.*\" }", fail(Reason::Header)),
        ("digest = \"md5:8f9b8a6c3a1f0a3b7b5c1f8d2e4a6c0d\"", fail(Reason::Digest)),
        ("body = [\"regex:登录|首页\", \"not_regex:error|maintenance\"]", Outcome::Pass),
        ("body = [\"regex:登录|首页\", \"not_regex:html\"]", fail(Reason::Body)),
        ("blocked = { status = [401, 403], headers = { Server = \"waf\" } }", Outcome::Pass),
        ("blocked = { headers = { Server = \"waf\" } }", Outcome::Local(LocalReason::Blocked)),
        ("blocked = { status = [200] }", Outcome::Local(LocalReason::Blocked)),
    ];
    for (rule, expected) in table {
        let finished = judged(&answer("200 OK", headers, page), &format!("expect = {{ {rule} }}")).await;
        assert_eq!(finished.outcome, expected, "{rule}: {:?}", finished.notes.detail);
    }
    // Digests as md5sum and sha256sum print them.
    for digest in [
        "md5:5d41402abc4b2a76b9719d911017c592",
        "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
    ] {
        let expect = format!("expect = {{ digest = \"{digest}\" }}");
        assert_eq!(judged(&answer("200 OK", "", "hello"), &expect).await.outcome, Outcome::Pass, "{digest}");
        assert_eq!(judged(&answer("200 OK", "", "hello\n"), &expect).await.outcome, fail(Reason::Digest), "{digest}");
    }
    let blocked = "expect = { blocked = { status = [401, 403], headers = { Server = \"waf\" } } }";
    let challenged = judged(&answer("403 Forbidden", "Server: waf\r\n", ""), blocked).await;
    assert_eq!(challenged.outcome, Outcome::Local(LocalReason::Blocked), "no failure of the origin");
    let own = judged(&answer("403 Forbidden", "Server: shop\r\n", ""), blocked).await;
    assert_eq!(own.outcome, fail(Reason::Status(403)), "the origin itself says so");
}

#[tokio::test]
async fn requests_in_order_keep_cookies_and_end_at_the_first_failure() {
    const ANSWERS: &[(&str, &str)] = &[
        (
            "/login",
            "HTTP/1.1 200 OK\r\nSet-Cookie: session=abc; Path=/\r\nSet-Cookie: other=1; Path=/admin\r\nSet-Cookie: s=2; \
             Secure\r\nContent-Length: 11\r\n\r\n{\"ok\":true}",
        ),
        ("/pay", "HTTP/1.1 204 No\r\n\r\n"),
    ];
    let (address, heads) = by_path(ANSWERS).await;
    let port = address.port();
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "{\"user\":\"probe\"}").expect("written");
    let sequence = |last: &str| {
        check(&format!(
            "type = \"http\"\nname = \"login\"\nheaders = {{ X-All = \"1\" }}\n[[service.check.request]]\nmethod = \"POST\"\n\
             url = \"http://shop.example:{port}/login\"\nbody_file = \"{}\"\nexpect = {{ json = {{ \"/ok\" = true }} }}\n\
             [[service.check.request]]\nurl = \"http://shop.example:{port}/{last}\"\nheaders = {{ X-Own = \"2\" }}\n\
             [[service.check.request]]\nmethod = \"PUT\"\nbody = \"end\"\nurl = \"http://shop.example:{port}/login\"\n",
            file.path().display()
        ))
    };
    let good = finished(&sequence("pay"), address, None).await;
    assert_eq!(good.outcome, Outcome::Pass, "{:?}", good.notes);
    let steps: Vec<_> = good.steps.iter().map(|step| step.name).collect();
    assert_eq!(steps, ["connect", "first_byte", "body"].repeat(3));
    let seen = std::mem::take(&mut *heads.lock().expect("heads"));
    assert!(seen[0].starts_with("POST /login") && seen[0].ends_with("\r\n\r\n{\"user\":\"probe\"}"), "{}", seen[0]);
    assert!(!seen[0].contains("Cookie:"), "{}", seen[0]);
    assert!(seen[1].starts_with("GET /pay") && seen[1].contains("\r\nCookie: session=abc\r\n"), "{}", seen[1]);
    assert!(seen[1].contains("X-All: 1\r\n") && seen[1].contains("X-Own: 2\r\n"), "{}", seen[1]);
    assert!(seen[2].starts_with("PUT /login") && seen[2].ends_with("\r\n\r\nend"), "{}", seen[2]);
    assert_eq!(run(&sequence("nowhere"), address, None).await.0, fail(Reason::Status(404)));
    assert_eq!(heads.lock().expect("heads").len(), 2, "the third is not asked");
    assert_eq!(run(&sequence("pay"), address, None).await.0, Outcome::Pass);
    let first = &heads.lock().expect("heads")[2];
    assert!(!first.contains("Cookie:"), "cookies end with the round: {first}");
}

/// An HTTP/2 server in clear text that answers with what it was asked.
async fn two() -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                let Ok(mut connection) = h2::server::handshake(connection).await else { return };
                while let Some(Ok((request, mut reply))) = connection.accept().await {
                    let said = format!("{} {} {:?}", request.method(), request.uri(), names(request.headers()));
                    let status = if request.uri().path() == "/missing" { 404 } else { 200 };
                    let head = Response::builder().status(status).body(()).expect("a head");
                    let mut body = reply.send_response(head, false).expect("a reply");
                    body.send_data(said.into(), true).expect("a body");
                }
            });
        }
    });
    address
}

fn names(headers: &HeaderMap) -> Vec<&str> {
    headers.keys().map(hyper::header::HeaderName::as_str).collect()
}

#[tokio::test]
async fn http_2_in_clear_text() {
    let address = two().await;
    let port = address.port();
    let asked = |path: &str, expect: &str| {
        check(&format!(
            "type = \"http\"\nhttp = \"h2c\"\nurl = \"http://shop.example:{port}{path}\"\nexpect = {{ {expect} }}"
        ))
    };
    let body = format!(
        "exact:GET http://shop.example:{port}/h?q=1 [\\\"user-agent\\\", \\\"accept\\\", \\\"accept-encoding\\\"]"
    );
    let good = finished(&asked("/h?q=1", &format!("body = \"{body}\"")), address, None).await;
    assert_eq!(good.outcome, Outcome::Pass, "{:?}", good.notes);
    assert_eq!(run(&asked("/missing", ""), address, None).await.0, fail(Reason::Status(404)));
    // A server of the other version is none of this one.
    let old = holding(answer("200 OK", "", "")).await;
    let port = old.port();
    let old_asked =
        check(&format!("type = \"http\"\nhttp = \"h2c\"\nurl = \"http://shop.example:{port}/\"\ntimeout = \"500ms\""));
    let outcome = run(&old_asked, old, None).await.0;
    assert!(matches!(outcome, Outcome::Fail(Reason::Protocol | Reason::Timeout(Layer::Application))), "{outcome:?}");
}

/// A body as chunks of these sizes, with extensions and a trailer.
fn chunked(body: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut out = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    let (mut rest, mut sizes) = (body, sizes.iter().cycle());
    while !rest.is_empty() {
        let (chunk, next) = rest.split_at((*sizes.next().expect("a size")).min(rest.len()));
        out.extend(format!("{:x};ext=\"1\"\r\n", chunk.len()).into_bytes());
        out.extend([chunk, b"\r\n"].concat());
        rest = next;
    }
    out.extend(b"0\r\nX-Trailer: 1\r\n\r\n");
    out
}

proptest! {
    #![proptest_config(over_the_wire())]

    /// However a body is cut into chunks, its digest is that of its bytes; and one that breaks off never passes.
    #[test]
    fn any_bytes_of_a_framed_body_are_judged_whole_or_not_at_all(
        body in prop::collection::vec(any::<u8>(), 1..3000),
        sizes in prop::collection::vec(1_usize..900, 1..8),
        by_length in any::<bool>(),
        cut in any::<prop::sample::Index>(),
    ) {
        use sha2::{Digest as _, Sha256};
        let digest = Sha256::digest(&body).iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        let whole = if by_length {
            [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes(), body].concat()
        } else {
            chunked(&body, &sizes)
        };
        // What is missing at the end of a trailer is not missing of the body.
        let vital = if by_length { whole.len() } else { whole.len() - "X-Trailer: 1\r\n\r\n".len() };
        let broken = whole.get(..cut.index(vital)).unwrap_or_default().to_vec();
        let lines = format!("timeout = \"30s\"\nexpect = {{ digest = \"sha256:{digest}\" }}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            for (answer, is_whole) in [(whole, true), (broken, false)] {
                let address = closing(answer).await;
                let outcome = run(&http(address, &lines), address, None).await.0;
                prop_assert_eq!(outcome == Outcome::Pass, is_whole, "{:?}", outcome);
            }
            Ok(())
        })?;
    }
}
