//! Why a round of a check failed, or said nothing.
//!
//! The words are stable codes: people alert on them. What they mean for the judgement stands here beside them, so that a
//! new one can't be added without it.

use crate::{
    hsm::Hsm,
    model::{Layer, Location},
};
use alloc::{borrow::ToOwned as _, format, string::String};

/// Why a check failed. Stable codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The connection was refused.
    Refused,
    /// No answer before the deadline, at the layer given.
    Timeout(Layer),
    /// The connection was reset.
    Reset,
    /// ICMP said that the host or network can't be reached.
    Unreachable,
    /// The TLS handshake failed, for none of the reasons below.
    Tls,
    /// The certificate's time is over.
    CertExpired,
    /// The certificate's time has not come.
    CertNotYetValid,
    /// The certificate is for other names.
    CertName,
    /// The certificate comes from nobody whom the check trusts.
    CertUntrusted,
    /// The certificate was issued by itself, and isn't trusted.
    CertSelfSigned,
    /// The server wants a client certificate, and got none or refused the one that it got.
    ClientCert,
    /// The server agreed to no protocol that the check asks for (ALPN).
    Alpn,
    /// An HTTP status that the check doesn't accept.
    Status(u16),
    /// A redirection, of this status, that the check doesn't accept.
    Redirect(u16),
    /// A header of the answer broke the check's rule.
    Header,
    /// The body broke the check's rule.
    Body,
    /// The body is encoded in a way that can't be undone, or not as it says, so no rule can be held against it.
    Encoding,
    /// The body is no JSON, or broke a condition about it.
    Json,
    /// The body's digest is another.
    Digest,
    /// The answer of another protocol is not the expected one.
    Answer,
    /// An SMTP reply that says no.
    Reply(u16),
    /// A DNS response code other than NOERROR.
    Rcode(u16),
    /// A gRPC status other than OK.
    Grpc(u16),
    /// The gRPC health service says that it does not serve.
    NotServing,
    /// A script's exit code.
    Exit(u8),
    /// A script was ended by this signal.
    Signal(u8),
    /// An HSM is not as it should be.
    Hsm(Hsm),
    /// What came was not the protocol.
    Protocol,
}

/// Why a round says nothing about the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalReason {
    /// `EMFILE` or `ENFILE`.
    Descriptors,
    /// `EADDRNOTAVAIL`.
    Ports,
    /// `ENOBUFS` or `ENOMEM`.
    Memory,
    /// The round began or ended late.
    Late,
    /// Something before the origin (a web application firewall, a challenge page) kept the check out.
    Blocked,
    /// It could not even be started: a script, the worker of an HSM, a raw socket that is not allowed.
    Start,
    /// HSM: our checks hold, or have left behind, all the sessions that they may.
    Budget,
    /// HSM: our credential is refused, or not tried again.
    Auth,
    /// HSM: what is configured was never there, or is not possible.
    Config,
    /// HSM: all tokens disagree with this node's clock.
    HostClock,
}

impl Reason {
    /// The word for it in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Timeout(_) => "timeout",
            Self::Reset => "reset",
            Self::Unreachable => "unreachable",
            Self::Tls => "tls",
            Self::CertExpired => "cert_expired",
            Self::CertNotYetValid => "cert_not_yet_valid",
            Self::CertName => "cert_name",
            Self::CertUntrusted => "cert_untrusted",
            Self::CertSelfSigned => "cert_self_signed",
            Self::ClientCert => "client_cert",
            Self::Alpn => "alpn",
            Self::Status(_) => "status",
            Self::Redirect(_) => "redirect",
            Self::Header => "header",
            Self::Body => "body",
            Self::Encoding => "encoding",
            Self::Json => "json",
            Self::Digest => "digest",
            Self::Answer => "answer",
            Self::Reply(_) => "reply",
            Self::Rcode(_) => "rcode",
            Self::Grpc(_) => "grpc",
            Self::NotServing => "not_serving",
            Self::Exit(_) => "exit",
            Self::Signal(_) => "signal",
            Self::Hsm(hsm) => hsm.name(),
            Self::Protocol => "protocol",
        }
    }

    /// The word with its number or layer, if it has one: `status 503`, `timeout at tls`.
    #[must_use]
    pub fn words(self) -> String {
        let word = self.name();
        match self.number() {
            Some(number) => format!("{word} {number}"),
            None => match self.timeout_at() {
                Some(layer) => format!("{word} at {}", layer.name()),
                None => word.to_owned(),
            },
        }
    }

    /// The code that it carries: a status, a reply, an exit code, a signal.
    #[must_use]
    pub fn number(self) -> Option<u16> {
        if let Self::Status(code) | Self::Redirect(code) | Self::Reply(code) | Self::Rcode(code) | Self::Grpc(code) =
            self
        {
            return Some(code);
        }
        if let Self::Exit(code) | Self::Signal(code) = self { Some(u16::from(code)) } else { None }
    }

    const fn timeout_at(self) -> Option<Layer> {
        if let Self::Timeout(layer) = self { Some(layer) } else { None }
    }

    /// Whether the origin said nothing, rather than something wrong.
    pub(crate) const fn is_silence(self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Unreachable)
    }

    /// Whether what was served is wrong. It stays wrong however much traffic is answered.
    pub(crate) const fn is_integrity(self) -> bool {
        if let Self::Hsm(hsm) = self {
            return hsm.is_integrity();
        }
        self.is_certificate()
            || matches!(
                self,
                Self::Tls
                    | Self::ClientCert
                    | Self::Alpn
                    | Self::Header
                    | Self::Body
                    | Self::Encoding
                    | Self::Json
                    | Self::Digest
                    | Self::Answer
            )
    }

    const fn is_certificate(self) -> bool {
        matches!(
            self,
            Self::CertExpired | Self::CertNotYetValid | Self::CertName | Self::CertUntrusted | Self::CertSelfSigned
        )
    }

    /// Where such a failure sits.
    pub(crate) const fn location(self) -> Location {
        if matches!(self, Self::Timeout(Layer::Network | Layer::Transport) | Self::Unreachable) {
            Location::OriginHost
        } else if self.is_certificate() {
            Location::Certificate
        } else {
            Location::OriginProcess
        }
    }
}

impl LocalReason {
    /// The word for it in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Descriptors => "descriptors",
            Self::Ports => "ports",
            Self::Memory => "memory",
            Self::Late => "late",
            Self::Blocked => "blocked",
            Self::Start => "start",
            Self::Budget => "budget",
            Self::Auth => "auth_blocked",
            Self::Config => "config_error",
            Self::HostClock => "host_clock_suspect",
        }
    }
}
