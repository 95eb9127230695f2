//! `tls` tables: whom a check trusts, and what it shows of itself.

use super::{Out, Section};
use crate::config::{
    read::At,
    resolved::{text, texts, time},
};
use health_core::Span;
use std::{net::IpAddr, path::PathBuf};
use tokio_rustls::rustls::pki_types::ServerName;

/// A certificate that ends sooner makes a pass a weak one. Contract: 14 days, twice what a renewal that failed on Friday
/// needs to be seen to.
const EXPIRY_WARN_DEFAULT: Span = Span::from_secs(14 * 86_400);
/// Longest warning. Ten years: certificates don't last longer.
const EXPIRY_WARN_MAX: Span = Span::from_secs(3650 * 86_400);
/// Longest name of an application protocol. RFC 7301 §3.1.
const ALPN_BYTES_MAX: usize = 255;

/// Whom to trust.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Authorities {
    /// The certificate authorities of the operating system.
    System,
    /// Those in this PEM file, and no others.
    File(PathBuf),
}

/// A `tls` table, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// `ca`. Default `system`.
    pub ca: Authorities,
    /// Whether a certificate that doesn't hold is a failure. Default true. Its end is read in either case, and warned of
    /// if it is true.
    pub verify: bool,
    /// Client certificate chain and its key, both PEM.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Name that is sent as SNI and checked. Default: the URL's host, else the origin's address (which is never sent).
    pub server_name: Option<ServerName<'static>>,
    /// A certificate that ends sooner makes a pass a weak one. Default 14 days.
    pub expiry_warn: Span,
}

/// A TLS check, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsCheck {
    /// Whom to trust.
    pub tls: TlsConfig,
    /// Application protocols that are offered; the server must agree to one. Empty: none is asked for.
    pub alpn: Vec<String>,
}

impl Default for TlsConfig {
    fn default() -> Self {
        let expiry_warn = EXPIRY_WARN_DEFAULT;
        Self { ca: Authorities::System, verify: true, client: None, server_name: None, expiry_warn }
    }
}

impl TlsConfig {
    /// Name that is sent and checked at an origin, where no URL names one.
    #[must_use]
    pub fn name_or(&self, origin: IpAddr) -> ServerName<'static> {
        self.server_name.clone().unwrap_or_else(|| ServerName::from(origin))
    }

    pub(super) fn write(&self, out: &mut Out) {
        let ca = match &self.ca {
            Authorities::System => "system".into(),
            Authorities::File(path) => path.to_string_lossy(),
        };
        let path = |path: Option<&PathBuf>| text(&path.map_or("".into(), |path| path.to_string_lossy()));
        let (cert, key) = (self.client.as_ref().map(|client| &client.0), self.client.as_ref().map(|client| &client.1));
        let name = self.server_name.as_ref().map_or(String::new(), |name| name.to_str().into_owned());
        out.key(
            "tls",
            format_args!(
                "{{ ca = {}, verify = {}, cert = {}, key = {}, server_name = {}, expiry_warn = {} }}",
                text(&ca),
                self.verify,
                path(cert),
                path(key),
                text(&name),
                time(self.expiry_warn)
            ),
        );
    }
}

/// Reads `[service.check.tls]`.
pub(super) fn table(section: &Section<'_>) -> TlsConfig {
    let table = section.table("tls");
    let default = TlsConfig::default();
    let path = |key| table.text(key, "/etc/sluice/probe.pem").filter(|path| !path.value.is_empty());
    let ca = match path("ca").map(|ca| ca.value) {
        None | Some("system") => Authorities::System,
        Some(path) => Authorities::File(path.into()),
    };
    let client = match (path("cert"), path("key")) {
        (Some(cert), Some(key)) => Some((cert.value.into(), key.value.into())),
        (None, None) => None,
        (Some(_), None) => {
            table.error("cert", "`tls.cert` has no `key`", "add key = \"…\", the file with its private key");
            None
        }
        (None, Some(_)) => {
            table.error("key", "`tls.key` has no `cert`", "add cert = \"…\", the file with its certificates");
            None
        }
    };
    TlsConfig {
        ca,
        verify: table.flag("verify").unwrap_or(default.verify),
        client,
        server_name: server_name(&table),
        expiry_warn: table.time("expiry_warn", Span::ZERO, EXPIRY_WARN_MAX).unwrap_or(default.expiry_warn),
    }
}

fn server_name(table: &Section<'_>) -> Option<ServerName<'static>> {
    let At { value, at } = table.text("server_name", "shop.example")?;
    if value.is_empty() {
        return None;
    }
    let name = ServerName::try_from(value.to_owned()).ok();
    if name.is_none() {
        let message = format!("`server_name` cannot be \"{}\"", value.escape_debug());
        table.sink().error(at, message, "write a host name, such as \"shop.example\", or an address");
    }
    name
}

pub(super) fn read(section: &Section<'_>) -> TlsCheck {
    let mut alpn = Vec::new();
    for At { value, at } in section.texts("alpn", "h2").unwrap_or_default() {
        if value.is_empty() || value.len() > ALPN_BYTES_MAX {
            let message = format!("`alpn` cannot hold \"{}\"", value.escape_debug());
            section.sink().error(at, message, "write a protocol's name, such as \"h2\" or \"http/1.1\"");
        } else {
            alpn.push(value.to_owned());
        }
    }
    TlsCheck { tls: table(section), alpn }
}

impl TlsCheck {
    pub(super) fn write(&self, out: &mut Out) {
        self.tls.write(out);
        out.key("alpn", texts(&self.alpn));
    }
}
