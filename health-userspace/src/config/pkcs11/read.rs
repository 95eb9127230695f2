//! Values of single keys.

use super::{
    BusinessRule, ClockRule, Deadlines, Depth, ERROR_STATE, FLAGS, Flag, LIMITS_DEFAULT, Pkcs11Check, Pkcs11Origin,
    RECOVER_DEFAULT, Versions,
};
use crate::{
    config::{
        read::{At, Section},
        shape::nearest,
    },
    probe::pkcs11::{Cipher, Operation, Signing, Token},
};
use health_core::Span;
use std::{collections::BTreeMap, path::PathBuf};

const DAY: Span = Span::from_secs(86_400);
/// Longest name in an environment, and longest value.
const ENV_CHARS_MAX: usize = 4096;
/// Least address space in which a module can be loaded beside ourselves. Unit: MiB.
const MEMORY_MIN: u64 = 256;
/// Unit: MiB.
const MEMORY_MAX: u64 = 1 << 20;
/// Unit: MiB.
const MEMORY_DEFAULT: u64 = 1 << 10;
/// Who runs workers where the file names nobody.
const USER_DEFAULT: &str = "nobody";

#[derive(Clone, Copy)]
enum Word {
    None,
    SignVerify,
    EncryptDecrypt,
    Random,
}

const WORDS: &[(&str, Word)] = &[
    ("none", Word::None),
    ("sign_verify", Word::SignVerify),
    ("encrypt_decrypt", Word::EncryptDecrypt),
    ("random", Word::Random),
];

/// The words of `mechanism` for signatures.
pub(in crate::config) const SIGNINGS: &[(&str, Signing)] = &[
    ("ecdsa-sha256", Signing::EcdsaSha256),
    ("ecdsa-sha384", Signing::EcdsaSha384),
    ("rsa-pkcs-sha256", Signing::RsaPkcsSha256),
];

/// The words of `mechanism` for ciphers.
pub(in crate::config) const CIPHERS: &[(&str, Cipher)] =
    &[("aes-cbc-pad", Cipher::AesCbcPad), ("aes-gcm", Cipher::AesGcm)];

/// Reads an origin's partition.
pub(in crate::config) fn origin(section: &Section<'_>, name: &str) -> Option<Pkcs11Origin> {
    if !section.is_present() {
        return None;
    }
    let sink = section.sink();
    let module = section.text("module", "/opt/hsm/libcs_pkcs11.so");
    if section.get("module").is_none() {
        let fix = "add module = \"/path/of/the/vendor's/library.so\"";
        sink.error(section.at(), format!("origin `{name}`: pkcs11 has no module"), fix);
    }
    let module = absolute(section, "module", module.as_ref().map(|text| text.value));
    let serial = section.text("serial", "0A1B2C");
    let label = section.text("label", "edge-sign");
    let token = match (serial, label) {
        (Some(serial), None) => bounded(section, "serial", serial.value, 16).map(Token::Serial),
        (None, Some(label)) => bounded(section, "label", label.value, 32).map(Token::Label),
        (Some(_), Some(_)) => {
            section.error("label", "a token is named by its serial or by its label, not by both", "remove one");
            None
        }
        (None, None) => {
            let fix = "add serial = \"…\" or label = \"…\"; `sluice pkcs11 doctor MODULE` shows both";
            sink.error(section.at(), format!("origin `{name}`: pkcs11 does not say which token"), fix);
            None
        }
    };
    let user = section.text("user", USER_DEFAULT).map_or(USER_DEFAULT, |user| user.value);
    if user == "root" || user.is_empty() {
        section.error("user", "a module must not run as root", "name a user that has no rights but to use the HSM");
    }
    Some(Pkcs11Origin {
        module: module.unwrap_or_default(),
        token: token?,
        env: env(&section.table("env")),
        user: user.to_owned(),
        memory_max: memory(section) << 20,
    })
}

/// In MiB.
fn memory(section: &Section<'_>) -> u64 {
    let Some(At { value, at }) = section.text("memory_max", "1GiB") else { return MEMORY_DEFAULT };
    let units = [("GiB", 1 << 10), ("MiB", 1)];
    let read = units.iter().find_map(|&(unit, factor): &(&str, u64)| {
        value.strip_suffix(unit)?.trim_end().parse::<u64>().ok()?.checked_mul(factor)
    });
    let read = read.filter(|mib| (MEMORY_MIN..=MEMORY_MAX).contains(mib));
    if read.is_none() {
        let message = format!("`memory_max` cannot be \"{}\"", value.escape_debug());
        section.sink().error(at, message, "write a size from 256MiB to 1024GiB, for example \"1GiB\"");
    }
    read.unwrap_or(MEMORY_DEFAULT)
}

fn bounded(section: &Section<'_>, key: &str, text: &str, bytes_max: usize) -> Option<String> {
    if text.is_empty() || text.len() > bytes_max {
        let message = format!("`{key}` cannot be \"{}\"", text.escape_debug());
        section.error(key, message, format!("write 1 to {bytes_max} bytes, without the padding"));
        return None;
    }
    Some(text.to_owned())
}

fn absolute(section: &Section<'_>, key: &str, text: Option<&str>) -> Option<PathBuf> {
    let path = PathBuf::from(text?);
    if !path.is_absolute() {
        let message = format!("`{key}` is no absolute path");
        section.error(key, message, "write the whole path; the daemon has no folder of its own");
        return None;
    }
    Some(path)
}

/// Names and values that a worker gets, and nothing else: a vendor's library takes its configuration from there.
fn env(section: &Section<'_>) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    for (At { value: key, .. }, _) in section.entries() {
        let Some(value) = section.text(key, "/etc/hsm/h1.cfg") else { continue };
        let bad = key.is_empty() || key.contains(['=', '\0']) || value.value.contains('\0');
        if bad || key.len().max(value.value.len()) > ENV_CHARS_MAX {
            section.sink().error(value.at, format!("`env.{}` cannot be set", key.escape_debug()), "remove it");
            continue;
        }
        env.insert(key.to_owned(), value.value.to_owned());
    }
    env
}

/// Reads a check; `interval`, `timeout` and what every kind has are the caller's, with what is usual for HSMs put in here.
pub(in crate::config) fn check(section: &Section<'_>, name: &str) -> Pkcs11Check {
    let clock = section.table("clock");
    let auth = section.choice("on_auth_failure", &[("alarm", false), ("fault", true)]);
    Pkcs11Check {
        partition: None,
        depth: depth(section, name),
        firmware: versions(section, "firmware"),
        hardware: versions(section, "hardware"),
        flags_forbid: flags(section),
        clock: clock.is_present().then(|| clock_rule(&clock)),
        sessions_max: section.number("sessions_max", 1, 1000).unwrap_or(LIMITS_DEFAULT.0),
        orphan_ttl: section.time("orphan_ttl", Span::ZERO, DAY).unwrap_or(LIMITS_DEFAULT.1),
        removed_fall: section.number("removed_fall", 1, 100).unwrap_or(2),
        deadlines: deadlines(&section.table("deadlines")),
        confirm: section.time("confirm", Span::from_millis(100), Span::from_secs(60)).unwrap_or(Span::from_secs(2)),
        auth_is_fault: auth.unwrap_or(false),
    }
}

fn flags(section: &Section<'_>) -> Vec<Flag> {
    let Some(words) = section.texts("flags_forbid", ERROR_STATE) else {
        return FLAGS.iter().filter(|flag| flag.name == ERROR_STATE).copied().collect();
    };
    let mut flags = Vec::new();
    for At { value, at } in words {
        if let Some(flag) = FLAGS.iter().find(|flag| flag.name == value) {
            flags.push(*flag);
            continue;
        }
        let fix = nearest(value, FLAGS.iter().map(|flag| flag.name)).map_or_else(
            || "write a flag of PKCS#11 without CKF_, in small letters".to_owned(),
            |near| format!("did you mean \"{near}\"?"),
        );
        section.sink().error(at, format!("there is no flag `{}`", value.escape_debug()), fix);
    }
    flags
}

fn depth(section: &Section<'_>, name: &str) -> Depth {
    let word = section.choice("operation", WORDS).unwrap_or(Word::None);
    let operation = match word {
        Word::None => {
            for key in ["key", "mechanism", "public_key", "pin_file"] {
                if section.get(key).is_some() {
                    let message = format!("check `{name}`: `{key}` means nothing without an operation");
                    section.error(key, message, "add operation = \"sign_verify\", or remove it");
                }
            }
            return Depth::Info;
        }
        Word::SignVerify => {
            Operation::SignVerify(section.choice("mechanism", SIGNINGS).unwrap_or(Signing::EcdsaSha256))
        }
        Word::EncryptDecrypt => {
            Operation::EncryptDecrypt(section.choice("mechanism", CIPHERS).unwrap_or(Cipher::AesCbcPad))
        }
        Word::Random => Operation::Random,
    };
    let key = section.text("key", "sluice-probe");
    if operation != Operation::Random && section.get("key").is_none() {
        let fix = "add key = \"LABEL\", a key that nothing else uses";
        section.error("operation", format!("check `{name}`: this operation needs a key"), fix);
    }
    let public_key = section.text("public_key", "/etc/sluice/hsm-probe.pem");
    if public_key.is_some() && !matches!(operation, Operation::SignVerify(_)) {
        let message = format!("check `{name}`: only signatures are held against a public key");
        section.error("public_key", message, "remove it");
    }
    let pin_file = section.text("pin_file", "/run/credentials/sluice.service/hsm-pin");
    if pin_file.is_none() && operation != Operation::Random {
        section.sink().warning(
            section.at_key("operation"),
            format!("check `{name}` logs in nowhere, and most tokens show no private key without"),
            "add pin_file = \"…\", or know that the key is public",
        );
    }
    let path = |key, text: Option<At<&str>>| absolute(section, key, text.as_ref().map(|text| text.value));
    Depth::Business(BusinessRule {
        operation,
        key: key.map(|key| key.value.to_owned()).unwrap_or_default(),
        public_key: path("public_key", public_key),
        pin_file: path("pin_file", pin_file),
    })
}

fn clock_rule(section: &Section<'_>) -> ClockRule {
    ClockRule {
        interval: section.time("interval", Span::from_millis(100), DAY).unwrap_or(RECOVER_DEFAULT),
        drift_max: section.time("drift_max", Span::from_secs(1), DAY).unwrap_or(Span::from_secs(5)),
        require: section.flag("require").unwrap_or(false),
    }
}

fn deadlines(section: &Section<'_>) -> Deadlines {
    let usual = Deadlines::DEFAULT;
    let time = |key, usual| section.time(key, Span::from_millis(10), Span::from_secs(600)).unwrap_or(usual);
    Deadlines {
        load: time("load", usual.load),
        select: time("select", usual.select),
        login: time("login", usual.login),
        info: time("info", usual.info),
        business: time("business", usual.business),
        close: time("close", usual.close),
    }
}

fn versions(section: &Section<'_>, key: &str) -> Option<Versions> {
    let text = section.text(key, "2.5-2.10")?;
    let pair = |text: &str| {
        let (major, minor) = text.trim().split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    let read = match text.value.split_once('-') {
        Some((first, last)) => pair(first).zip(pair(last)),
        None => pair(text.value).map(|only| (only, only)),
    };
    let read = read.filter(|(first, last)| first <= last);
    if read.is_none() {
        let message = format!("`{key}` is no range of versions: \"{}\"", text.value.escape_debug());
        let fix = format!("write, for example, {key} = \"2.5-2.10\"; both parts go to 255, and 2.10 is above 2.9");
        section.sink().error(text.at, message, fix);
    }
    read.map(|(first, last)| Versions { first, last })
}
