//! `http`: what is sent. What must come back is in `expect`.

use super::{
    Out, Section,
    expect::{self, HttpExpect, inline},
    tls::{self, TlsConfig},
};
use crate::config::{read::At, resolved::text};
use hyper::{
    Method, Uri,
    header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE},
};
use std::{net::IpAddr, path::PathBuf};
use tokio_rustls::rustls::pki_types::ServerName;
use url::{Host, Url};

/// Most requests of one check: a longer story is a test, not a check.
const REQUESTS_MAX: usize = 16;
/// Most bytes of a request's body.
const BODY_MAX: usize = 1 << 20;

/// An HTTP check, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpCheck {
    /// In order, each on a connection of its own; at least one.
    pub requests: Vec<HttpRequest>,
    /// Default 1.1.
    pub version: HttpVersion,
    /// Whom it trusts, if any of its URLs is https.
    pub tls: Option<TlsConfig>,
}

/// One request, and what must come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// Scheme, host, SNI, port and path; the address is the origin's.
    pub url: Url,
    /// Default GET.
    pub method: Method,
    /// Sent besides `Host`, `User-Agent` and `Accept`, which they replace.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Default: none.
    pub body: Option<RequestBody>,
    /// What must come back.
    pub expect: HttpExpect,
}

/// What a request carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestBody {
    /// This text.
    Text(String),
    /// What the file holds when the configuration is applied: secrets stay out of the configuration.
    File(PathBuf),
}

/// How requests are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 over TLS.
    Http2,
    /// HTTP/2 in clear text, with prior knowledge (RFC 9113 §3.3).
    H2c,
}

const VERSIONS: &[(&str, HttpVersion)] =
    &[("1.1", HttpVersion::Http1), ("2", HttpVersion::Http2), ("h2c", HttpVersion::H2c)];

/// Name that is sent as SNI and checked. An address is checked too, and never sent (RFC 6066 §3).
pub(crate) fn server_name(url: &Url) -> Option<ServerName<'static>> {
    match url.host()? {
        Host::Domain(name) => ServerName::try_from(name.to_owned()).ok(),
        Host::Ipv4(address) => Some(ServerName::from(IpAddr::V4(address))),
        Host::Ipv6(address) => Some(ServerName::from(IpAddr::V6(address))),
    }
}

/// Reads the keys of an HTTP check.
pub(super) fn read(section: &Section<'_>, check: &str) -> HttpCheck {
    let listed = section.tables("request");
    if let Some(beyond) = listed.get(REQUESTS_MAX) {
        let message = format!("check `{check}` has {} requests; {REQUESTS_MAX} is the most", listed.len());
        section.sink().error(beyond.at(), message, "remove some");
    }
    let shared = headers(&section.table("headers"));
    let requests = if listed.is_empty() {
        vec![request(section, check, shared, None)]
    } else {
        for key in ["url", "method", "expect"].into_iter().filter(|key| section.get(key).is_some()) {
            let message = format!("check `{check}` has both `{key}` and [[service.check.request]]");
            section.error(key, message, "move it into a request of its own");
        }
        let with_own = |table: &Section<'_>| {
            let mut own = headers(&table.table("headers"));
            own.extend(
                shared
                    .iter()
                    .filter(|(name, _)| own.iter().all(|(given, _)| given != name))
                    .cloned()
                    .collect::<Vec<_>>(),
            );
            let body = body(table, check);
            request(table, check, own, body)
        };
        listed.iter().map(with_own).collect()
    };
    let version = version(section, check, &requests);
    let encrypted = requests.iter().any(|request| request.url.scheme() == "https");
    if !encrypted && section.get("tls").is_some() {
        section.error(
            "tls",
            format!("check `{check}`: `tls` means nothing to http://"),
            "remove it, or write https://",
        );
    }
    HttpCheck { requests, version, tls: encrypted.then(|| tls::table(section)) }
}

fn version(section: &Section<'_>, check: &str, requests: &[HttpRequest]) -> HttpVersion {
    let version = section.choice("http", VERSIONS).unwrap_or(HttpVersion::Http1);
    let (wrong, fix) = match version {
        HttpVersion::Http1 => return version,
        HttpVersion::Http2 => ("http", "write https://, or http = \"h2c\" for HTTP/2 in clear text"),
        HttpVersion::H2c => ("https", "write http = \"2\", which is HTTP/2 over TLS"),
    };
    if requests.iter().any(|request| request.url.scheme() == wrong) {
        section.error("http", format!("check `{check}`: this version of HTTP is not spoken over {wrong}://"), fix);
    }
    version
}

fn request(
    section: &Section<'_>,
    check: &str,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Option<RequestBody>,
) -> HttpRequest {
    let method = method(section);
    let expect = expect::expect(&section.table("expect"), check, &method);
    HttpRequest { url: url(section, check), method, headers, body, expect }
}

/// Only requests of a list have one: what the check itself asks must not change anything at the origin.
fn body(section: &Section<'_>, check: &str) -> Option<RequestBody> {
    let text = section.text("body", "{}");
    let file = section.text("body_file", "/etc/sluice/login.json");
    if let (Some(_), Some(file)) = (&text, &file) {
        let message = format!("check `{check}`: a request has both `body` and `body_file`");
        section.sink().error(file.at.clone(), message, "keep one of them");
    }
    if let Some(text) = text.as_ref().filter(|text| text.value.len() > BODY_MAX) {
        section.sink().error(text.at.clone(), "this body is longer than 1 MiB", "ask with less");
    }
    let method = method(section);
    if let Some(given) = text.as_ref().or(file.as_ref()).filter(|_| [Method::GET, Method::HEAD].contains(&method)) {
        let message = format!("check `{check}`: {method} carries no body");
        section.sink().error(given.at.clone(), message, "write method = \"POST\", or remove the body");
    }
    let of_file = file.map(|file| RequestBody::File(file.value.into()));
    text.map(|text| RequestBody::Text(text.value.to_owned())).or(of_file)
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

impl HttpCheck {
    pub(super) fn write(&self, out: &mut Out) {
        let word = VERSIONS.iter().find(|(_, version)| *version == self.version).map_or("", |(word, _)| word);
        out.key("http", text(word));
        if let Some(tls) = &self.tls {
            tls.write(out);
        }
        match self.requests.as_slice() {
            [one] if one.body.is_none() => one.write(out, "[service.check.expect]"),
            requests => {
                for request in requests {
                    out.header("[[service.check.request]]");
                    request.write(out, "[service.check.request.expect]");
                }
            }
        }
    }
}

impl HttpRequest {
    fn write(&self, out: &mut Out, expect: &str) {
        out.key("url", text(self.url.as_str()));
        out.key("method", text(self.method.as_str()));
        let pair = |(name, value): &(HeaderName, HeaderValue)| {
            format!("{} = {}", text(name.as_str()), text(value.to_str().unwrap_or_default()))
        };
        out.key("headers", inline(&self.headers.iter().map(pair).collect::<Vec<_>>()));
        match &self.body {
            None => {}
            Some(RequestBody::Text(body)) => out.key("body", text(body)),
            Some(RequestBody::File(file)) => out.key("body_file", text(&file.to_string_lossy())),
        }
        self.expect.write(out, expect);
    }
}
