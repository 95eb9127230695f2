//! `[signing.NAME]`: keys with which checks are signed. The files themselves are read where checks are run, for a
//! configuration is checked without the right to read secrets.

use super::{
    model::{SigningConfig, SigningKey},
    read::{At, Section},
};
use hyper::header::HeaderName;
use std::path::PathBuf;

/// Longest id of a key: it is sent with each request.
const ID_CHARS_MAX: usize = 64;

/// Reads all.
pub(super) fn signing(root: &Section<'_>) -> Vec<SigningConfig> {
    let all = root.table("signing");
    all.entries().map(|(name, _)| one(&all.table(name.value), name.value)).collect()
}

fn one(section: &Section<'_>, name: &str) -> SigningConfig {
    let path = format!("signing.{name}");
    for (key, _) in section.entries().filter(|(key, _)| !["header", "use", "keys"].contains(&key.value)) {
        let message = format!("unknown key `{}` in `{path}`", key.value.escape_debug());
        section.sink().error(key.at, message, "remove it; keys here are header, use, keys");
    }
    let keys: Vec<_> = section.tables("keys").iter().filter_map(|key| self::key(key, &path)).collect();
    let mut chosen = section.text("use", "2026-11");
    if section.get("use").is_none() {
        let fix = "write the id of one of its keys, for example use = \"2026-11\"";
        section.sink().error(section.at(), format!("`{path}` does not say which key to use"), fix);
    }
    let key = chosen.as_ref().and_then(|chosen| keys.iter().find(|key| key.id == chosen.value));
    if let (None, Some(At { value, at })) = (key, chosen.take()) {
        let message = format!("`{path}` uses the key \"{}\", and has none of that id", value.escape_debug());
        section.sink().error(at, message, "add it to keys: { id = \"…\", file = \"…\" }");
    }
    SigningConfig { name: name.to_owned(), header: header(section), key: key.cloned().unwrap_or_default(), keys }
}

fn header(section: &Section<'_>) -> HeaderName {
    let usual = HeaderName::from_static("x-sluice-signature");
    let Some(At { value, at }) = section.text("header", "X-Sluice-Signature") else { return usual };
    HeaderName::from_bytes(value.as_bytes()).unwrap_or_else(|_invalid| {
        let message = format!("\"{}\" is no name of a header", value.escape_debug());
        section.sink().error(at, message, "use letters, digits and `-`, as in X-Sluice-Signature");
        usual
    })
}

fn key(section: &Section<'_>, path: &str) -> Option<SigningKey> {
    for (key, _) in section.entries().filter(|(key, _)| !["id", "file"].contains(&key.value)) {
        let message = format!("unknown key `{}` in `{path}.keys`", key.value.escape_debug());
        section.sink().error(key.at, message, "remove it; keys here are id, file");
    }
    let (id, file) = (section.text("id", "2026-11"), section.text("file", "/etc/sluice/keys/2026-11"));
    let (Some(id), Some(file)) = (id, file) else {
        let fix = "write { id = \"2026-11\", file = \"/etc/sluice/keys/2026-11\" }";
        section.sink().error(section.at(), format!("a key of `{path}` lacks id or file"), fix);
        return None;
    };
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if id.value.is_empty() || id.value.len() > ID_CHARS_MAX || !id.value.chars().all(good) {
        let message = format!("\"{}\" cannot be the id of a key", id.value.escape_debug());
        section.sink().error(id.at, message, "use letters, digits, `.`, `_` and `-`, at most 64");
    }
    if !file.value.starts_with('/') {
        let message = format!("the key file \"{}\" is no absolute path", file.value.escape_debug());
        section.sink().error(file.at, message, "write the whole path, beginning with /");
    }
    Some(SigningKey { id: id.value.to_owned(), file: PathBuf::from(file.value) })
}
