//! `sluice probe` as people see it, against a real server of each kind.
//!
//! `cargo xtask shots` sets `PROBE_SHOTS` and so writes what was printed into `docs/probe/`, as text and as a picture of a
//! terminal. Without it, the words that must be there are only looked for.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use lab::run;

use super::servers::{self, Authority, Place};

/// A picture: its name, the services that it shows, and what must be in it.
const SHOTS: [(&str, &str, &[&str]); 6] = [
    ("nginx", "shop", &["shop/a  127.0.0.1:8080", "pass", "first_byte", "status 503", "redirect 301", "slow"]),
    ("expired", "old-shop", &["cert_expired (tls)", "fail"]),
    ("postfix", "mail", &["starttls", "ehlo", "quit", "pass"]),
    ("bind", "names", &["query", "pass", "rcode"]),
    ("grpc", "cart", &["call", "pass", "not_serving"]),
    ("script", "mq", &["run", "weight 50", "exit 3"]),
];

#[test]
fn what_probe_prints_about_real_servers() -> Result<()> {
    let (place, authority) = (Place::new("kinds-shots")?, Authority::new()?);
    let _nginx = servers::nginx(&place, &authority)?;
    let _named = servers::bind(&place)?;
    let _postfix = servers::postfix(&place, &authority)?;
    let _grpc = super::health_server(&place)?;
    let config = place.write("shots.toml", &configuration(&place.path("ca.pem")))?;
    let binary = lab::sluice_binary()?;
    let folder = std::env::var_os("PROBE_SHOTS").map(PathBuf::from);
    for (name, service, words) in SHOTS {
        let arguments = ["probe", service, "-c", config.to_str().context("a path")?];
        let probed = run(&place.ns, binary.to_str().context("a path")?, &arguments)?;
        // Where a check fails, probe says so by its exit code as well.
        ensure!(matches!(probed.code, Some(0 | 1)), "{name}: {probed:?}");
        let missing: Vec<_> = words.iter().filter(|word| !probed.stdout.contains(**word)).collect();
        assert!(missing.is_empty(), "{name} lacks {missing:?}:\n{}", probed.stdout);
        if let Some(folder) = &folder {
            fs::create_dir_all(folder)?;
            let text = format!("$ sluice probe {service}\n{}", probed.stdout);
            fs::write(folder.join(format!("{name}.txt")), &text)?;
            fs::write(folder.join(format!("{name}.svg")), picture(&text))?;
        }
    }
    Ok(())
}

fn configuration(ca: &Path) -> String {
    let ca = ca.display();
    let page = |name: &str, path: &str, rest: &str| {
        format!(
            "[[service.check]]\nname = \"{name}\"\ntype = \"http\"\nurl = \"http://shop.example:8080{path}\"\n{rest}\n"
        )
    };
    let service = |name: &str, address: &str, checks: &str| {
        format!(
            "[[service]]\nname = \"{name}\"\nguard = false\norigin = [{{ name = \"a\", address = \"{address}\" }}]\n{checks}"
        )
    };
    let json = "expect = { json = { \"/db\" = \"ok\", \"/queue/depth\" = \"<1000\" } }";
    let shop = [
        "[[service.check]]\ntype = \"icmp\"\n[[service.check]]\nname = \"port\"\ntype = \"tcp\"\n".to_owned(),
        page("web", "/healthz", &format!("needs = [\"port\"]\n{json}")),
        page("login", "/busy", ""),
        page("search", "/down", "critical = false"),
        page("start", "/old", ""),
        format!(
            "[[service.check]]\nname = \"secure\"\ntype = \"http\"\nurl = \"https://shop.example:8443/healthz\"\nhttp = \
             \"2\"\ntls = {{ ca = \"{ca}\" }}\n"
        ),
    ];
    let session = |name: &str, more: &str| {
        format!(
            "[[service.check]]\nname = \"{name}\"\ntype = \"tls\"\ntls = {{ ca = \"{ca}\", server_name = \
             \"shop.example\"{more} }}\n"
        )
    };
    let mail = format!(
        "[[service.check]]\nname = \"plain\"\ntype = \"smtp\"\n[[service.check]]\nname = \"secure\"\ntype = \
         \"smtp\"\nstarttls = true\ntls = {{ ca = \"{ca}\", server_name = \"mail.example\" }}\n"
    );
    let name = |name: &str, query: &str, rest: &str| {
        format!("[[service.check]]\nname = \"{name}\"\ntype = \"dns\"\nquery = \"{query}\"\n{rest}\n")
    };
    let names = [
        name("www", "www.shop.example", "answer = [\"192.0.2.1\", \"192.0.2.2\"]"),
        name("mx", "shop.example", "record = \"MX\"\ntransport = \"tcp\"\nanswer = \"10 mail.shop.example.\""),
        name("gone", "gone.shop.example", ""),
    ];
    let health =
        |name: &str, of: &str| format!("[[service.check]]\nname = \"{name}\"\ntype = \"grpc\"\nservice = \"{of}\"\n");
    let script = |name: &str, text: &str, rest: &str| {
        format!(
            "[[service.check]]\nname = \"{name}\"\ntype = \"script\"\nexec = [\"/bin/sh\", \"-c\", \"{text}\"]\n{rest}\n"
        )
    };
    let queue = [
        script("depth", "echo depth 512 of 1000; exit 52", "dynamic_weight = true\ncritical = false"),
        script("lag", "echo lag 97 s, at most 30 s; exit 3", ""),
    ];
    [
        "[node]\ninterfaces = [\"lo\"]\n".to_owned(),
        service("shop", "127.0.0.1:8080", &shop.concat()),
        service("old-shop", "127.0.0.1:8444", &(session("session", "") + &session("unverified", ", verify = false"))),
        service("mail", "127.0.0.1:2525", &mail),
        service("names", "127.0.0.1:5300", &names.concat()),
        service("cart", "127.0.0.1:50051", &(health("cart", "shop.v1.Cart") + &health("pay", "shop.v1.Pay"))),
        service("mq", "127.0.0.1:5672", &queue.concat()),
    ]
    .concat()
}

/// Width of a character and height of a line. Unit: px.
const CELL: (usize, usize) = (8, 18);
const MARGIN: usize = 14;

/// A terminal with that text.
fn picture(text: &str) -> String {
    let columns = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let lines = text.lines().count();
    let (width, height) = (columns * CELL.0 + 2 * MARGIN, lines * CELL.1 + 2 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"13\" fill=\"#d8dee9\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#1b1f27\"/>\n"
    );
    for (nth, line) in text.lines().enumerate() {
        let y = MARGIN + nth * CELL.1 + 13;
        // The words are where they were printed, whatever font there is.
        for (column, word) in words(line) {
            let (x, wide) = (MARGIN + column * CELL.0, word.chars().count() * CELL.0);
            let fill = match word {
                "pass" => " fill=\"#a3be8c\"",
                "fail" => " fill=\"#e06c75\"",
                "slow" | "local" => " fill=\"#ebcb8b\"",
                "skipped" => " fill=\"#7b8494\"",
                _ if nth == 0 => " fill=\"#88c0d0\"",
                _ => "",
            };
            let word = word.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            // Writing to a string cannot fail.
            writeln!(svg, "<text x=\"{x}\" y=\"{y}\" textLength=\"{wide}\"{fill}>{word}</text>").ok();
        }
    }
    svg + "</svg>\n"
}

/// The words of a line, each with its column.
fn words(line: &str) -> Vec<(usize, &str)> {
    let mut words = Vec::new();
    let mut column = 0;
    for word in line.split(' ') {
        if !word.is_empty() {
            words.push((column, word));
        }
        column += word.chars().count() + 1;
    }
    words
}
