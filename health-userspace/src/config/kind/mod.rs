//! Kinds of check: their words, their keys, and what is read of them. One file each.
//!
//! A new kind is a row of [`KINDS`], an arm in [`read`] and [`CheckKind::write`], its keys in `schema`, and a file here and
//! in `probe`.

mod dns;
mod expect;
mod grpc;
mod http;
mod icmp;
mod json;
mod number;
mod rule;
mod script;
mod smtp;
mod tcp;
mod tls;

pub use dns::{DnsCheck, Transport};
pub use expect::{Blocked, Digest, HttpExpect, RedirectRule, StatusSet};
pub use grpc::GrpcCheck;
pub(crate) use http::server_name;
pub use http::{HttpCheck, HttpRequest, HttpVersion, RequestBody};
pub use icmp::IcmpCheck;
pub(crate) use json::holds;
pub use json::{JsonFault, JsonRule};
pub use rule::{BodyRule, HeaderRule, Pattern};
pub use script::ScriptCheck;
pub use smtp::SmtpCheck;
pub use tcp::TcpCheck;
pub use tls::{Authorities, TlsCheck, TlsConfig};

use super::{
    pkcs11::{self, Pkcs11Check},
    read::{At, Section},
    resolved::Out,
    shape,
};
use health_core::{Span, model::Layer};

/// What is done, of which kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// An echo request is answered.
    Icmp(IcmpCheck),
    /// A connection is made, and says what is expected.
    Tcp(TcpCheck),
    /// A TLS session is made with a certificate that holds.
    Tls(Box<TlsCheck>),
    /// Requests are answered as expected.
    Http(Box<HttpCheck>),
    /// A mail server greets.
    Smtp(Box<SmtpCheck>),
    /// A name server answers a question.
    Dns(Box<DnsCheck>),
    /// The gRPC health service says that it serves.
    Grpc(Box<GrpcCheck>),
    /// A program says so.
    Script(Box<ScriptCheck>),
    /// An HSM shows itself, or does something.
    Pkcs11(Box<Pkcs11Check>),
}

/// A row of [`KINDS`].
pub(super) struct Kind {
    /// The word for it in `type`.
    pub(super) word: &'static str,
    /// Deadline of a round where the file says nothing.
    pub(super) timeout: Span,
    /// Keys that only some kinds have, this one among them.
    keys: &'static [&'static str],
}

const fn kind(word: &'static str, timeout_s: u64, keys: &'static [&'static str]) -> Kind {
    Kind { word, timeout: Span::from_secs(timeout_s), keys }
}

/// All kinds, cheapest first. The deadlines are the contract's.
pub(super) const KINDS: &[Kind] = &[
    kind("icmp", 2, &["size"]),
    kind("tcp", 1, &["send", "expect"]),
    kind("tls", 2, &["tls", "alpn"]),
    kind("http", 2, &["url", "method", "headers", "expect", "http", "tls", "request"]),
    kind("smtp", 2, &["helo", "starttls", "tls"]),
    kind("dns", 2, &["query", "record", "transport", "answer"]),
    kind("grpc", 2, &["service", "tls"]),
    kind("script", 2, &["exec", "user", "dynamic_weight"]),
    kind("pkcs11", 2, pkcs11::KEYS),
];

/// Finds a check's kind by its `type`.
pub(super) fn of(section: &Section<'_>) -> Option<&'static Kind> {
    let words = || KINDS.iter().map(|kind| kind.word);
    let listed = || format!("write one of {}", words().collect::<Vec<_>>().join(", "));
    let Some(At { value, at }) = section.text("type", "tcp") else {
        if section.get("type").is_none() {
            let fix = "add type = \"tcp\" or type = \"http\"";
            section.sink().error(section.at(), "this check has no type", fix);
        }
        return None;
    };
    let found = KINDS.iter().find(|kind| kind.word == value);
    if found.is_none() {
        let shown: String = value.chars().take(64).collect();
        let (message, fix) = if value == "https" {
            ("unknown type of check `https`".to_owned(), "write \"http\"; the url says https://".to_owned())
        } else {
            let near = shape::nearest(value, words());
            let fix = near.map_or_else(listed, |near| format!("did you mean \"{near}\"?"));
            (format!("unknown type of check `{}`", shown.escape_debug()), fix)
        };
        section.sink().error(at, message, fix);
    }
    found
}

/// Reads the keys of this kind, and refuses those of others.
pub(super) fn read(section: &Section<'_>, kind: &Kind, check: &str) -> CheckKind {
    let of_others = KINDS.iter().flat_map(|other| other.keys.iter().map(move |key| (other.word, *key)));
    let mut refused: Vec<&str> = Vec::new();
    for (word, key) in of_others {
        if kind.keys.contains(&key) || refused.contains(&key) || section.get(key).is_none() {
            continue;
        }
        refused.push(key);
        let message = format!("check `{check}`: `{key}` means nothing to a check of type {}", kind.word);
        section.error(key, message, format!("remove it, or write type = \"{word}\""));
    }
    match kind.word {
        "icmp" => CheckKind::Icmp(icmp::read(section)),
        "tls" => CheckKind::Tls(Box::new(tls::read(section))),
        "http" => CheckKind::Http(Box::new(http::read(section, check))),
        "smtp" => CheckKind::Smtp(Box::new(smtp::read(section, check))),
        "dns" => CheckKind::Dns(Box::new(dns::read(section, check))),
        "grpc" => CheckKind::Grpc(Box::new(grpc::read(section))),
        "script" => CheckKind::Script(Box::new(script::read(section, check))),
        "pkcs11" => CheckKind::Pkcs11(Box::new(pkcs11::check(section, check))),
        _ => CheckKind::Tcp(tcp::read(section, check)),
    }
}

impl CheckKind {
    /// A connection, and nothing said.
    #[must_use]
    pub fn connect() -> Self {
        Self::Tcp(TcpCheck::default())
    }

    /// The word for it in `type`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Icmp(_) => "icmp",
            Self::Tcp(_) => "tcp",
            Self::Tls(_) => "tls",
            Self::Http(_) => "http",
            Self::Smtp(_) => "smtp",
            Self::Dns(_) => "dns",
            Self::Grpc(_) => "grpc",
            Self::Script(_) => "script",
            Self::Pkcs11(_) => "pkcs11",
        }
    }

    /// What a pass proves.
    #[must_use]
    pub fn layer(&self) -> Layer {
        match self {
            Self::Icmp(_) => Layer::Network,
            Self::Tcp(check) if check.expect.is_empty() => Layer::Transport,
            Self::Tls(_) => Layer::Tls,
            // Something was answered, and rightly.
            Self::Tcp(_)
            | Self::Http(_)
            | Self::Smtp(_)
            | Self::Dns(_)
            | Self::Grpc(_)
            | Self::Script(_)
            | Self::Pkcs11(_) => Layer::Application,
        }
    }

    /// How it trusts, if it speaks TLS.
    #[must_use]
    pub fn tls(&self) -> Option<&TlsConfig> {
        match self {
            Self::Tls(check) => Some(&check.tls),
            Self::Http(check) => check.tls.as_ref(),
            Self::Smtp(check) => check.starttls.as_ref(),
            Self::Grpc(check) => check.tls.as_ref(),
            Self::Icmp(_) | Self::Tcp(_) | Self::Dns(_) | Self::Script(_) | Self::Pkcs11(_) => None,
        }
    }

    /// Writes its keys, every default filled in.
    pub(super) fn write(&self, out: &mut Out) {
        match self {
            Self::Icmp(check) => check.write(out),
            Self::Tcp(check) => check.write(out),
            Self::Tls(check) => check.write(out),
            Self::Http(check) => check.write(out),
            Self::Smtp(check) => check.write(out),
            Self::Dns(check) => check.write(out),
            Self::Grpc(check) => check.write(out),
            Self::Script(check) => check.write(out),
            Self::Pkcs11(check) => check.write(out),
        }
    }
}
