//! `smtp`: how Sluice greets, and whether it asks for TLS.

use super::{
    Out, Section,
    tls::{self, TlsConfig},
};
use crate::config::{read::At, resolved::text};

/// Longest name. RFC 5321 §4.5.3.1.2.
const HELO_BYTES_MAX: usize = 255;

/// An SMTP check, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmtpCheck {
    /// What EHLO says. Default: the address that the connection comes from, in brackets (RFC 5321 §4.1.3).
    pub helo: Option<String>,
    /// Whether the session goes on in TLS, and whom it trusts then.
    pub starttls: Option<TlsConfig>,
}

pub(super) fn read(section: &Section<'_>, check: &str) -> SmtpCheck {
    let helo = section.text("helo", "probe.example").and_then(|At { value, at }| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-[]:".contains(&byte);
        let good = !value.is_empty() && value.len() <= HELO_BYTES_MAX && value.bytes().all(fits);
        if !good {
            let message = format!("`helo` cannot be \"{}\"", value.escape_debug());
            section.sink().error(
                at,
                message,
                "write a host name, such as \"probe.example\", or an address in brackets",
            );
        }
        good.then(|| value.to_owned())
    });
    let starttls = section.flag("starttls").unwrap_or(false);
    let tls = tls::table(section);
    if !starttls && section.get("tls").is_some() {
        let message = format!("check `{check}`: `tls` means nothing without TLS");
        section.error("tls", message, "remove it, or add starttls = true");
    }
    SmtpCheck { helo, starttls: starttls.then_some(tls) }
}

impl SmtpCheck {
    pub(super) fn write(&self, out: &mut Out) {
        if let Some(helo) = &self.helo {
            out.key("helo", text(helo));
        }
        out.key("starttls", self.starttls.is_some());
        if let Some(tls) = &self.starttls {
            tls.write(out);
        }
    }
}
