//! Every kind of check against a real server, through `sluice probe`.
//!
//! Needs root and a built `sluice` (`SLUICE_BIN`, or the workspace's own).

mod names;
mod servers;
mod shots;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use lab::run;
use servers::{Authority, Place};

/// A check: its name, its origin's address, its lines, and what must come out: `pass`, `slow`, or a reason.
type Case<'a> = (&'a str, &'a str, String, &'a str);

/// Asks all at once, and compares.
fn ask(place: &Place, cases: &[Case<'_>]) -> Result<BTreeMap<String, serde_json::Value>> {
    let mut text = "[node]\ninterfaces = [\"lo\"]\n".to_owned();
    let addresses: BTreeSet<&str> = cases.iter().map(|(_, address, ..)| *address).collect();
    for (nth, of) in addresses.iter().enumerate() {
        write!(
            text,
            "[[service]]\nname = \"s{nth}\"\nguard = false\norigin = [{{ name = \"a\", address = \"{of}\" }}]\n"
        )?;
        for (name, _, lines, _) in cases.iter().filter(|(_, address, ..)| address == of) {
            write!(text, "[[service.check]]\nname = \"{name}\"\ntimeout = \"5s\"\n{lines}\n")?;
        }
    }
    let config = place.write("sluice.toml", &text)?;
    let binary = lab::sluice_binary()?;
    let binary = binary.to_str().context("a path")?;
    let probed = run(&place.ns, binary, &["probe", "--json", "-c", config.to_str().context("a path")?])?;
    let report: serde_json::Value =
        serde_json::from_str(&probed.stdout).with_context(|| format!("{}{}", probed.stdout, probed.stderr))?;
    let origins = report["origins"].as_array().context("origins")?;
    let checks = origins.iter().flat_map(|origin| origin["checks"].as_array().into_iter().flatten());
    let found: BTreeMap<String, serde_json::Value> =
        checks.map(|check| (check["name"].as_str().unwrap_or_default().to_owned(), check.clone())).collect();
    let mut wrong = String::new();
    for (name, _, _, expected) in cases {
        let check = found.get(*name).with_context(|| format!("no answer about {name}: {}", probed.stderr))?;
        let word = check["reason"].as_str().or_else(|| check["result"].as_str()).unwrap_or_default();
        if word.split(' ').next() != Some(*expected) {
            writeln!(wrong, "{name}: {word}, expected {expected}: {check}")?;
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    Ok(found)
}

#[test]
fn nginx() -> Result<()> {
    let (place, authority) = (Place::new("kinds-nginx")?, Authority::new()?);
    let _nginx = servers::nginx(&place, &authority)?;
    let (certificate, key) = authority.sign("probe.example", 30)?;
    let (certificate, key) = (place.write("probe.pem", &certificate)?, place.write("probe.key", &key)?);
    let plain = |path: &str, rest: &str| format!("type = \"http\"\nurl = \"http://shop.example:8080{path}\"\n{rest}");
    let ca = place.path("ca.pem");
    let tls = |port: u16, more: &str, rest: &str| {
        format!(
            "type = \"http\"\nurl = \"https://shop.example:{port}/healthz\"\ntls = {{ ca = \"{}\"{more} }}\n{rest}",
            ca.display()
        )
    };
    let json = "expect = { json = { \"/db\" = \"ok\", \"/queue/depth\" = \"<1000\" } }";
    let client = format!(", cert = \"{}\", key = \"{}\"", certificate.display(), key.display());
    let login = "type = \"http\"\n[[service.check.request]]\nmethod = \"POST\"\nurl = \"http://shop.example:8080/login\"\nbody = \
                 \"{}\"\nexpect = { json = { \"/ok\" = true } }\n[[service.check.request]]\nurl = \
                 \"http://shop.example:8080/pay\"\nexpect = { status = [204] }";
    let (v4, v6) = ("127.0.0.1:8080", "[::1]:8080");
    let cases = [
        ("icmp", v4, "type = \"icmp\"".to_owned(), "pass"),
        ("icmp6", v6, "type = \"icmp\"\nsize = 1000".to_owned(), "pass"),
        ("port", v4, "type = \"tcp\"".to_owned(), "pass"),
        ("closed", "127.0.0.1:9", "type = \"tcp\"".to_owned(), "refused"),
        (
            "talk",
            v6,
            "type = \"tcp\"\nsend = \"GET /healthz HTTP/1.0\\r\\n\\r\\n\"\nexpect = [\"regex:^HTTP/1.1 200\"]"
                .to_owned(),
            "pass",
        ),
        ("json", v4, plain("/healthz", json), "pass"),
        ("json6", v6, plain("/healthz", json), "pass"),
        ("digest", v4, plain("/login", "expect = { digest = \"md5:4c48c9f4e1a1f8c0c2f4a2fd6ff5f0b4\" }"), "digest"),
        ("head", v4, plain("/large", "method = \"HEAD\""), "pass"),
        ("large", v4, plain("/large", "expect = { body = \"regex:^x+$\", body_max = \"4KiB\" }"), "pass"),
        ("missing", v4, plain("/nowhere", ""), "status"),
        ("down", v4, plain("/down", ""), "status"),
        ("busy", v4, plain("/busy", ""), "slow"),
        ("moved", v4, plain("/old", ""), "redirect"),
        ("followed", v4, plain("/old", &json.replace("{ json", "{ redirect = \"follow\", json")), "pass"),
        ("secure", v4, plain("/secure", "expect = { redirect = \"https_only\" }"), "pass"),
        (
            "guarded",
            v4,
            plain("/forbidden", "expect = { blocked = { status = [403], headers = { X-Guard = \"waf\" } } }"),
            "blocked",
        ),
        ("login", v4, login.to_owned(), "pass"),
        ("tls", v4, tls(8443, "", json), "pass"),
        ("two", v4, tls(8443, "", &format!("http = \"2\"\n{json}")), "pass"),
        ("old", v4, tls(8444, "", ""), "cert_expired"),
        ("old-any", v4, tls(8444, ", verify = false", ""), "pass"),
        ("name", v4, tls(8443, ", server_name = \"news.example\"", ""), "cert_name"),
        // nginx says so in HTTP, after the session is made.
        ("no-client", v4, tls(8445, "", ""), "status"),
        ("client", v4, tls(8445, &client, json), "pass"),
        (
            "old-session",
            "127.0.0.1:8444",
            format!("type = \"tls\"\ntls = {{ ca = \"{}\", server_name = \"shop.example\" }}", ca.display()),
            "cert_expired",
        ),
        (
            "alpn",
            "127.0.0.1:8443",
            format!(
                "type = \"tls\"\nalpn = [\"h2\"]\ntls = {{ ca = \"{}\", server_name = \"shop.example\" }}",
                ca.display()
            ),
            "pass",
        ),
    ];
    let found = ask(&place, &cases)?;
    let steps = |name: &str| -> Vec<String> {
        let steps = found[name]["steps"].as_array().into_iter().flatten();
        steps.map(|step| step["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(steps("tls"), ["connect", "tls", "first_byte", "body"]);
    assert_eq!(steps("old"), ["connect", "tls"]);
    assert!(found["old-any"]["cert_not_after"].as_i64().is_some(), "{}", found["old-any"]);
    Ok(())
}

#[test]
fn bind() -> Result<()> {
    let place = Place::new("kinds-bind")?;
    let _named = servers::bind(&place)?;
    let at = "127.0.0.1:5300";
    let asks = |query: &str, rest: &str| format!("type = \"dns\"\nquery = \"{query}\"\n{rest}");
    ask(
        &place,
        &[
            ("a", at, asks("www.shop.example", "answer = [\"192.0.2.2\", \"192.0.2.1\"]"), "pass"),
            ("tcp", at, asks("WWW.shop.example.", "transport = \"tcp\"\nanswer = \"192.0.2.1\""), "pass"),
            ("aaaa", at, asks("www.shop.example", "record = \"AAAA\"\nanswer = \"2001:DB8::1\""), "pass"),
            ("mx", at, asks("shop.example", "record = \"MX\"\nanswer = \"10 mail.shop.example.\""), "pass"),
            ("txt", at, asks("shop.example", "record = \"TXT\"\nanswer = \"v=spf1 -all\""), "pass"),
            ("soa", at, asks("shop.example", "record = \"SOA\""), "pass"),
            ("cut", at, asks("big.shop.example", "record = \"TXT\""), "pass"),
            ("other", at, asks("www.shop.example", "answer = \"192.0.2.9\""), "answer"),
            ("none", at, asks("www.shop.example", "record = \"MX\""), "answer"),
            ("nxdomain", at, asks("nowhere.shop.example", ""), "rcode"),
            ("refused", at, asks("other.example", ""), "rcode"),
        ],
    )?;
    Ok(())
}

#[test]
fn postfix() -> Result<()> {
    let (place, authority) = (Place::new("kinds-postfix")?, Authority::new()?);
    let _postfix = servers::postfix(&place, &authority)?;
    let at = "127.0.0.1:2525";
    let starttls = |more: &str| {
        format!("type = \"smtp\"\nstarttls = true\ntls = {{ ca = \"{}\"{more} }}", place.path("ca.pem").display())
    };
    let cases = [
        ("plain", at, "type = \"smtp\"".to_owned(), "pass"),
        ("named", at, "type = \"smtp\"\nhelo = \"probe.example\"".to_owned(), "pass"),
        ("tls", at, starttls(", server_name = \"mail.example\""), "pass"),
        ("name", at, starttls(", server_name = \"news.example\""), "cert_name"),
        ("busy", "127.0.0.1:2526", "type = \"smtp\"".to_owned(), "reply"),
    ];
    let found = ask(&place, &cases)?;
    let steps = found["tls"]["steps"].as_array().into_iter().flatten().filter_map(|step| step["name"].as_str());
    let steps: Vec<_> = steps.collect();
    assert_eq!(steps, ["connect", "banner", "ehlo", "starttls", "tls", "ehlo", "quit"]);
    Ok(())
}

#[test]
fn openssl() -> Result<()> {
    let (place, authority) = (Place::new("kinds-openssl")?, Authority::new()?);
    place.write("ca.pem", &authority.pem())?;
    for (name, days) in [("good", 90), ("old", -1), ("soon", 5)] {
        let (certificate, key) = authority.sign("shop.example", days)?;
        place.write(&format!("{name}.pem"), &certificate)?;
        place.write(&format!("{name}.key"), &key)?;
    }
    let of = |name| ["-cert".to_owned(), format!("{name}.pem"), "-key".to_owned(), format!("{name}.key")];
    let start = |port, name, more: &[&str]| {
        let own = of(name);
        let arguments: Vec<&str> = own.iter().map(String::as_str).chain(more.iter().copied()).collect();
        servers::openssl(&place, port, &arguments)
    };
    let wants = ["-CAfile", "ca.pem", "-Verify", "1", "-verify_return_error"];
    let _servers = [
        start(7001, "good", &["-tls1_2"])?,
        start(7002, "old", &[])?,
        start(7003, "soon", &[])?,
        start(7004, "good", &[&wants[..], &["-tls1_2"]].concat())?,
        start(7005, "good", &[&wants[..], &["-tls1_3"]].concat())?,
    ];
    let ca = place.path("ca.pem");
    let asks = |more: &str| {
        format!("type = \"tls\"\ntls = {{ ca = \"{}\", server_name = \"shop.example\"{more} }}", ca.display())
    };
    let system = "type = \"tls\"\ntls = { server_name = \"shop.example\" }".to_owned();
    ask(
        &place,
        &[
            ("good", "127.0.0.1:7001", asks(""), "pass"),
            ("stranger", "127.0.0.1:7001", system, "cert_untrusted"),
            ("old", "127.0.0.1:7002", asks(""), "cert_expired"),
            ("old-any", "127.0.0.1:7002", asks(", verify = false"), "pass"),
            ("soon", "127.0.0.1:7003", asks(""), "slow"),
            ("client-12", "127.0.0.1:7004", asks(""), "client_cert"),
            ("client-13", "127.0.0.1:7005", asks(""), "client_cert"),
        ],
    )?;
    Ok(())
}

/// Where [`health_server`] listens.
const GRPC: &str = "127.0.0.1:50051";

/// A gRPC server with the health service, for as long as its namespace.
fn health_server(place: &Place) -> Result<JoinHandle<Result<()>>> {
    let server = place.ns.thread("grpc", move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let (reporter, health) = tonic_health::server::health_reporter();
            reporter.set_service_status("shop.v1.Cart", tonic_health::ServingStatus::Serving).await;
            reporter.set_service_status("shop.v1.Pay", tonic_health::ServingStatus::NotServing).await;
            let server = tonic::transport::Server::builder().add_service(health);
            server.serve(GRPC.parse()?).await?;
            anyhow::Ok(())
        })
    })?;
    lab::wait_until("the gRPC server listens", std::time::Duration::from_secs(10), || {
        place.ns.enter(|| std::net::TcpStream::connect(GRPC).is_ok()).unwrap_or(false)
    })?;
    Ok(server)
}

#[test]
fn grpc() -> Result<()> {
    let place = Place::new("kinds-grpc")?;
    let (at, server) = (GRPC, health_server(&place)?);
    let asks = |service: &str| format!("type = \"grpc\"\nservice = \"{service}\"");
    ask(
        &place,
        &[
            ("server", at, asks(""), "pass"),
            ("cart", at, asks("shop.v1.Cart"), "pass"),
            ("pay", at, asks("shop.v1.Pay"), "not_serving"),
            ("nobody", at, asks("shop.v1.Nobody"), "grpc"),
            ("closed", "127.0.0.1:50052", asks(""), "refused"),
        ],
    )?;
    // It serves for ever, so it has not ended by itself.
    assert!(!server.is_finished(), "{:?}", server.join());
    Ok(())
}
