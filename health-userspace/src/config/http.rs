//! What an HTTP check sends and expects.

use super::read::{At, Raw, Section};
use hyper::{
    Method, Uri,
    header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE},
};
use std::{fmt, net::IpAddr};
use tokio_rustls::rustls::pki_types::ServerName;
use toml::de::DeValue;
use url::{Host, Url};

/// Bytes of a body that a rule sees where the file says nothing. Contract: 256 KiB.
const BODY_MAX_DEFAULT: usize = 256 << 10;
/// Most bytes that one round may hold in memory.
const BODY_MAX_MAX: usize = 16 << 20;
/// Memory of one compiled pattern. Unit: bytes.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// An HTTP check, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpCheck {
    /// Scheme, host, SNI, port and path; the address is the origin's.
    pub url: Url,
    /// Default GET.
    pub method: Method,
    /// Sent besides `Host`, `User-Agent` and `Accept`, which they replace.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// What is a pass. Default 200-299.
    pub status: StatusSet,
    /// What the body must be like.
    pub body: Option<BodyRule>,
    /// How much of the body is read, then judged. Unit: bytes.
    pub body_max: usize,
}

/// Ranges of status codes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusSet(Vec<(u16, u16)>);

/// A rule about the body's bytes as sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyRule {
    /// `contains:`
    Contains(String),
    /// `exact:`
    Exact(String),
    /// `regex:`
    Regex(Pattern),
    /// `not_regex:`
    NotRegex(Pattern),
}

/// A compiled pattern, equal to those written alike.
#[derive(Clone, Debug)]
pub struct Pattern(regex::bytes::Regex);

impl HttpCheck {
    /// Name that is sent as SNI and checked. An address is checked too, and never sent (RFC 6066 §3).
    #[must_use]
    pub fn server_name(&self) -> Option<ServerName<'static>> {
        server_name(&self.url)
    }
}

fn server_name(url: &Url) -> Option<ServerName<'static>> {
    match url.host()? {
        Host::Domain(name) => ServerName::try_from(name.to_owned()).ok(),
        Host::Ipv4(address) => Some(ServerName::from(IpAddr::V4(address))),
        Host::Ipv6(address) => Some(ServerName::from(IpAddr::V6(address))),
    }
}

impl StatusSet {
    /// 2xx.
    #[must_use]
    pub fn success() -> Self {
        Self(vec![(200, 299)])
    }

    /// Whether `status` is in it.
    #[must_use]
    pub fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|&(first, last)| (first..=last).contains(&status))
    }

    /// As written in a configuration: `200-299`, `401`.
    pub(crate) fn words(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|&(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
    }
}

impl BodyRule {
    /// Whether the body keeps the rule.
    #[must_use]
    pub fn holds(&self, body: &[u8]) -> bool {
        match self {
            Self::Contains(text) => text.is_empty() || body.windows(text.len()).any(|window| window == text.as_bytes()),
            Self::Exact(text) => body == text.as_bytes(),
            Self::Regex(pattern) => pattern.0.is_match(body),
            Self::NotRegex(pattern) => !pattern.0.is_match(body),
        }
    }
}

impl fmt::Display for BodyRule {
    /// As written in a configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contains(text) => write!(f, "contains:{text}"),
            Self::Exact(text) => write!(f, "exact:{text}"),
            Self::Regex(pattern) => write!(f, "regex:{}", pattern.0.as_str()),
            Self::NotRegex(pattern) => write!(f, "not_regex:{}", pattern.0.as_str()),
        }
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

/// Reads the keys of an HTTP check.
pub(super) fn http(section: &Section<'_>, check: &str) -> HttpCheck {
    let expect = section.table("expect");
    let method = method(section);
    let body = body_rule(&expect);
    if body.is_some() && method == Method::HEAD {
        let message = format!("check `{check}`: an answer to HEAD has no body that a rule could hold for");
        expect.error("body", message, "remove the rule, or use method = \"GET\"");
    }
    HttpCheck {
        url: url(section, check),
        method,
        headers: headers(&section.table("headers")),
        status: status(&expect),
        body,
        body_max: body_max(&expect),
    }
}

fn url(section: &Section<'_>, check: &str) -> Url {
    let example = "http://shop.example/healthz";
    let Some(At { value, at }) = section.text("url", example) else {
        if section.get("url").is_none() {
            let fix = format!("add, for example, url = \"{example}\"");
            section.sink().error(section.at(), format!("check `{check}` has no url"), fix);
        }
        return nowhere();
    };
    match read_url(value) {
        Ok(url) => url,
        Err((problem, fix)) => {
            section.sink().error(at, format!("check `{check}`: {problem}"), fix);
            nowhere()
        }
    }
}

/// Stands in for a refused URL; the refusal is an error, so it is never asked.
fn nowhere() -> Url {
    Url::parse("http://invalid/").expect("a URL")
}

fn read_url(text: &str) -> Result<Url, (String, &'static str)> {
    const EXAMPLE: &str = "write, for example, \"https://shop.example/healthz\"";
    let shown = text.escape_debug();
    // The URL standard repairs silently what a browser's user may mistype. A check must ask what is written.
    if text.contains(|c: char| c.is_control() || c.is_whitespace() || c == '\\') {
        return Err((format!("the url \"{shown}\" holds white space or a backslash"), "encode it, as in %20"));
    }
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    match rest {
        None => return Err((format!("the url \"{shown}\" begins with neither http:// nor https://"), EXAMPLE)),
        Some(rest) if rest.starts_with('/') => return Err((format!("the url \"{shown}\" names no host"), EXAMPLE)),
        Some(_) => {}
    }
    let url = Url::parse(text).map_err(|error| (format!("the url \"{shown}\" is wrong: {error}"), EXAMPLE))?;
    if !url.username().is_empty() || url.password().is_some() {
        let fix = "remove it; secrets do not belong into this file";
        return Err(("the url holds a user name or password".to_owned(), fix));
    }
    if url.fragment().is_some() {
        return Err((
            format!("the url \"{shown}\" has a fragment, which is never sent"),
            "remove `#` and what follows",
        ));
    }
    if url.port() == Some(0) {
        return Err((format!("the url \"{shown}\" has port 0"), "write a port from 1 to 65535, or none"));
    }
    if url.scheme() == "https" && server_name(&url).is_none() {
        return Err((format!("the host of \"{shown}\" cannot be in a certificate"), EXAMPLE));
    }
    if url[url::Position::BeforePath..].parse::<Uri>().is_err() {
        return Err((format!("the path of \"{shown}\" cannot be sent"), "encode special characters, as in %7B"));
    }
    Ok(url)
}

fn method(section: &Section<'_>) -> Method {
    let Some(At { value, at }) = section.text("method", "GET") else { return Method::GET };
    let read = Method::from_bytes(value.as_bytes()).ok().filter(|method| method != Method::CONNECT);
    match read {
        Some(method) if method.as_str().bytes().all(|byte| !byte.is_ascii_lowercase()) => method,
        _ => {
            let message = format!("`method` cannot be \"{}\"", value.escape_debug());
            section.sink().error(at, message, "write GET, HEAD, OPTIONS or POST, in capital letters");
            Method::GET
        }
    }
}

fn headers(section: &Section<'_>) -> Vec<(HeaderName, HeaderValue)> {
    let ours = [CONNECTION, CONTENT_LENGTH, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];
    let mut headers: Vec<(HeaderName, HeaderValue)> = Vec::new();
    for (key, value) in section.entries() {
        let shown = key.value.escape_debug();
        let Ok(name) = HeaderName::from_bytes(key.value.as_bytes()) else {
            let fix = "use letters, digits and `-`, as in X-Probe";
            section.sink().error(key.at, format!("\"{shown}\" is no name of a header"), fix);
            continue;
        };
        if ours.contains(&name) {
            let message = format!("the header `{shown}` is set by Sluice itself");
            section.sink().error(key.at, message, "remove it");
            continue;
        }
        if headers.iter().any(|(given, _)| *given == name) {
            let message = format!("the header `{shown}` is given twice; capital letters make no difference");
            section.sink().error(key.at, message, "remove one of them");
            continue;
        }
        let text = value.get_ref().as_str();
        match text.map(HeaderValue::from_str) {
            Some(Ok(value)) => headers.push((name, value)),
            Some(Err(_)) => {
                let message = format!("the value of the header `{shown}` has characters that a header cannot carry");
                section.sink().error(value.span(), message, "remove line breaks and control characters");
            }
            None => {
                let message = format!("the value of the header `{shown}` is not a string");
                section.sink().error(value.span(), message, "put it into quotes");
            }
        }
    }
    headers
}

fn status(expect: &Section<'_>) -> StatusSet {
    let Some(value) = expect.get("status") else { return StatusSet::success() };
    let fix = "write codes and ranges from 100 to 599, for example status = [\"200-299\", 401]";
    let Some(list) = value.get_ref().as_array().filter(|list| list.iter().len() > 0) else {
        expect.error("status", "`status` is not a list of codes", fix);
        return StatusSet::success();
    };
    let mut ranges = Vec::new();
    for item in list {
        if let Some(range) = status_range(item) {
            ranges.push(range);
            continue;
        }
        let shown: String = match item.get_ref() {
            DeValue::String(text) => format!("\"{}\"", text.escape_debug()),
            DeValue::Integer(number) => number.to_string(),
            other => other.type_str().to_owned(),
        };
        let shown: String = shown.chars().take(60).collect();
        expect.sink().error(item.span(), format!("`status` cannot be {shown}"), fix);
    }
    StatusSet(ranges)
}

fn status_range(item: &Raw<'_>) -> Option<(u16, u16)> {
    let code = |text: &str| -> Option<u16> {
        let code = (text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?;
        code.filter(|code| (100..=599).contains(code))
    };
    let (first, last) = match item.get_ref() {
        DeValue::Integer(number) if number.radix() == 10 => (code(number.as_str())?, code(number.as_str())?),
        DeValue::String(text) => match text.split_once('-') {
            Some((first, last)) => (code(first)?, code(last)?),
            None => (code(text)?, code(text)?),
        },
        _ => return None,
    };
    (first <= last).then_some((first, last))
}

fn body_rule(expect: &Section<'_>) -> Option<BodyRule> {
    let value = expect.get("body")?;
    let fix = "write one rule, for example body = [\"contains:ready\"]";
    let rules: Vec<&Raw<'_>> = match value.get_ref() {
        DeValue::Array(list) => list.iter().collect(),
        _ => vec![value],
    };
    if let Some(second) = rules.get(1) {
        expect.sink().error(second.span(), "more than one body rule is not yet supported", "keep one of them");
    }
    let Some((rule, text)) = rules.first().and_then(|rule| Some((*rule, rule.get_ref().as_str()?))) else {
        expect.error("body", "`body` is no rule", fix);
        return None;
    };
    let compile = |pattern: &str| {
        let built = regex::bytes::RegexBuilder::new(pattern).size_limit(REGEX_BYTES_MAX).build();
        if let Err(error) = &built {
            // The crate draws the pattern with a caret over several lines; its last line says what is wrong.
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            let message = format!("the pattern \"{}\" is wrong: {reason}", pattern.escape_debug());
            expect.sink().error(rule.span(), message, "see https://docs.rs/regex/#syntax");
        }
        built.ok().map(Pattern)
    };
    match text.split_once(':') {
        Some(("contains" | "exact", "")) => {
            expect.sink().error(rule.span(), format!("the body rule \"{text}\" has no text"), fix);
            None
        }
        Some(("contains", text)) => Some(BodyRule::Contains(text.to_owned())),
        Some(("exact", text)) => Some(BodyRule::Exact(text.to_owned())),
        Some(("regex", pattern)) => compile(pattern).map(BodyRule::Regex),
        Some(("not_regex", pattern)) => compile(pattern).map(BodyRule::NotRegex),
        _ => {
            let message = format!("the body rule \"{}\" begins with no known word", text.escape_debug());
            let fix = "begin it with contains:, exact:, regex: or not_regex:";
            expect.sink().error(rule.span(), message, fix);
            None
        }
    }
}

fn body_max(expect: &Section<'_>) -> usize {
    let Some(At { value, at }) = expect.text("body_max", "256KiB") else { return BODY_MAX_DEFAULT };
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("kB", 1000), ("MB", 1_000_000), ("B", 1)];
    let read = units.iter().find_map(|&(unit, factor): &(&str, usize)| {
        let number = value.strip_suffix(unit)?.trim_end();
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        number.parse::<usize>().ok()?.checked_mul(factor)
    });
    let read = read.filter(|bytes| (1..=BODY_MAX_MAX).contains(bytes));
    if read.is_none() {
        let message = format!("`body_max` cannot be \"{}\"", value.escape_debug());
        expect.sink().error(at, message, "write a size from 1B to 16MiB, for example \"256KiB\"");
    }
    read.unwrap_or(BODY_MAX_DEFAULT)
}
