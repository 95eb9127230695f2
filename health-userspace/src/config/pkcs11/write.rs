//! The same keys, written out again.

use super::{
    BusinessRule, Depth, Pkcs11Check, Pkcs11Origin,
    read::{CIPHERS, SIGNINGS},
};
use crate::{
    config::resolved::{Out, text, texts, time, word},
    probe::pkcs11::{Operation, Token},
};

/// The value of an origin's `pkcs11`.
pub(in crate::config) fn partition(partition: &Pkcs11Origin) -> String {
    let Pkcs11Origin { module, token, env, user, memory_max } = partition;
    let (key, name) = match token {
        Token::Serial(serial) => ("serial", serial),
        Token::Label(label) => ("label", label),
    };
    let env: Vec<_> = env.iter().map(|(name, value)| format!("{} = {}", text(name), text(value))).collect();
    let env = if env.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", env.join(", ")) };
    let (module, name, user) = (text(&module.to_string_lossy()), text(name), text(user));
    let memory = text(&format!("{}MiB", memory_max >> 20));
    format!("{{ module = {module}, {key} = {name}, env = {env}, user = {user}, memory_max = {memory} }}")
}

impl Pkcs11Check {
    /// Writes its keys, every default filled in.
    pub(in crate::config) fn write(&self, out: &mut Out) {
        for (key, value) in lines(self) {
            out.key(key, value);
        }
    }
}

/// The keys of a check and their values.
fn lines(check: &Pkcs11Check) -> Vec<(&'static str, String)> {
    // Taken apart, so that a new key can't be forgotten here.
    let Pkcs11Check {
        partition: _,
        depth,
        firmware,
        hardware,
        flags_forbid,
        clock,
        sessions_max,
        orphan_ttl,
        removed_fall,
        deadlines,
        confirm,
        auth_is_fault,
    } = check;
    let mut lines = Vec::new();
    if let Depth::Business(rule) = depth {
        business(&mut lines, rule);
    }
    for (key, range) in [("firmware", firmware), ("hardware", hardware)] {
        lines.extend(range.as_ref().map(|range| (key, text(&range.to_string()))));
    }
    lines.push(("flags_forbid", texts(flags_forbid.iter().map(|flag| flag.name))));
    if let Some(rule) = clock {
        let (interval, drift) = (time(rule.interval), time(rule.drift_max));
        let value = format!("{{ interval = {interval}, drift_max = {drift}, require = {} }}", rule.require);
        lines.push(("clock", value));
    }
    lines.push(("sessions_max", sessions_max.to_string()));
    lines.push(("orphan_ttl", time(*orphan_ttl)));
    lines.push(("removed_fall", removed_fall.to_string()));
    let super::Deadlines { load, select, login, info, business, close } = *deadlines;
    let steps = [("load", load), ("select", select), ("login", login), ("info", info), ("business", business)];
    let steps: Vec<_> =
        steps.iter().chain(&[("close", close)]).map(|(key, span)| format!("{key} = {}", time(*span))).collect();
    lines.push(("deadlines", format!("{{ {} }}", steps.join(", "))));
    lines.push(("confirm", time(*confirm)));
    lines.push(("on_auth_failure", text(if *auth_is_fault { "fault" } else { "alarm" })));
    lines
}

fn business(lines: &mut Vec<(&'static str, String)>, rule: &BusinessRule) {
    let BusinessRule { operation, key, public_key, pin_file } = rule;
    let (name, mechanism) = match *operation {
        Operation::SignVerify(signing) => ("sign_verify", Some(word(SIGNINGS, signing))),
        Operation::EncryptDecrypt(cipher) => ("encrypt_decrypt", Some(word(CIPHERS, cipher))),
        Operation::Random => ("random", None),
    };
    lines.push(("operation", text(name)));
    lines.extend(mechanism.map(|mechanism| ("mechanism", text(mechanism))));
    if !key.is_empty() {
        lines.push(("key", text(key)));
    }
    for (name, path) in [("public_key", public_key), ("pin_file", pin_file)] {
        lines.extend(path.as_ref().map(|path| (name, text(&path.to_string_lossy()))));
    }
}
