//! Raw TOML to a checked configuration.
//!
//! ```text
//! text ─► toml::de::DeTable (raw, every value with its place) ─► shape: is every key known and supported?
//!                                                             └► read: types, units, ranges ─► cross: rules between keys
//! ```
//!
//! The raw half is the parser's own table with spans, and not serde structures: serde stops at the first mistake and
//! knows no place for a rule that joins two keys, while an operator wants all mistakes of a file at once, each with line,
//! column and cure. Nothing leaves this module unless the whole file is right.

mod advice;
mod check;
mod cross;
mod diagnostic;
mod failback;
mod kind;
mod latency;
mod model;
mod names;
mod node;
mod pkcs11;
mod plan;
mod policy;
mod preset;
mod read;
mod resolved;
mod schema;
mod service;
mod shape;
mod signing;
mod spec;
#[cfg(test)]
mod tests;

pub use diagnostic::{ConfigErrors, Diagnostic};
pub use kind::{
    Authorities, Blocked, BodyRule, CheckKind, Digest, DnsCheck, GrpcCheck, HeaderRule, HttpCheck, HttpExpect,
    HttpRequest, HttpVersion, IcmpCheck, JsonFault, JsonRule, Pattern, RedirectRule, RequestBody, ScriptCheck,
    SmtpCheck, StatusSet, TcpCheck, TlsCheck, TlsConfig, Transport,
};
pub(crate) use kind::{holds as json_holds, server_name};
pub use model::{
    Bypass, CapacityScope, CgroupSetting, CheckConfig, CheckPlan, Config, ControlConfig, Detail, HostName,
    InterfacePattern, Limits, MetricsConfig, NodeConfig, OriginConfig, Prefix, ServiceConfig, SigningConfig,
    SigningKey, Source,
};
pub use names::{Found, Unplaced};
pub use pkcs11::{
    BusinessRule, ClockRule, Deadlines, Depth, ERROR_STATE, FLAGS, Flag, Pkcs11Check, Pkcs11Origin, Versions,
};
pub(crate) use shape::nearest;
pub use spec::{Ids, place};

use diagnostic::Sink;
use read::Section;
use std::path::Path;
use toml::de::DeTable;

/// Where the configuration is looked for when the command line names none.
pub const DEFAULT_FILE: &str = "/etc/sluice/sluice.toml";

/// Longest configuration that is read. Unit: bytes. 10 000 origins written out take less than 2 MiB.
const FILE_BYTES_MAX: usize = 16 << 20;

/// A configuration that may be applied.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it says, checked, every default filled in.
    pub config: Config,
    /// What is allowed and will hurt; for `sluice check` and the log.
    pub warnings: Vec<Diagnostic>,
    /// The file as it was read.
    pub text: String,
}

/// Reads and checks a file.
///
/// # Errors
///
/// The file can't be read, or anything in it is wrong; then nothing of it may be applied (exit code 78).
pub fn load(path: &Path) -> Result<Loaded, ConfigErrors> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|source| ConfigErrors::unreadable(&name, &source))?;
    parse_bytes(&bytes, &name)
}

/// Checks bytes that may not even be text.
///
/// # Errors
///
/// As [`load`].
pub fn parse_bytes(bytes: &[u8], file_name: &str) -> Result<Loaded, ConfigErrors> {
    match std::str::from_utf8(bytes) {
        Ok(text) => parse(text, file_name),
        Err(error) => Err(ConfigErrors::not_text(file_name, bytes, error.valid_up_to())),
    }
}

/// Checks a text; `file_name` is what messages call it.
///
/// # Errors
///
/// Anything in it is wrong. All mistakes are reported, those of syntax alone first, for nothing else can be judged then.
pub fn parse(text: &str, file_name: &str) -> Result<Loaded, ConfigErrors> {
    if text.len() > FILE_BYTES_MAX {
        return Err(ConfigErrors::too_long(file_name, FILE_BYTES_MAX));
    }
    let (table, syntax) = DeTable::parse_recoverable(text);
    let sink = Sink::default();
    if let Some(first) = syntax.first() {
        // The parser recovers by guessing, so what follows the first mistake may be an echo of it.
        let at = first.span().unwrap_or(text.len()..text.len());
        sink.error(at, first.message(), "write it as TOML; https://toml.io shows the syntax");
        return Err(sink.into_errors(file_name, text));
    }

    shape::check(table.get_ref(), &sink);
    let root = Section::root(table.get_ref(), &sink);
    let node = node::node(&root.table("node"));
    let control = node::control(&root.table("control"));
    let signing = signing::signing(&root);
    let services = service::services(&root, &node, &signing);
    let config = Config { node, control, signing, services: services.iter().map(|read| read.config.clone()).collect() };
    cross::check(&config, &services, &sink);

    let (errors, warnings) = sink.split(file_name, text);
    match errors {
        Some(errors) => Err(errors),
        None => Ok(Loaded { config, warnings, text: text.to_owned() }),
    }
}
