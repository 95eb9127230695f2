//! What `sluice pkcs11 doctor` prints.

use crate::{
    config::FLAGS,
    probe::pkcs11::doctor::{Call, Seen, SlotEntry, SlotInfo, TokenInfo, Trouble},
};
use serde::Serialize;
use std::fmt::Write;

/// `CK_UNAVAILABLE_INFORMATION`.
const UNAVAILABLE: u64 = u64::MAX;
/// `CK_EFFECTIVELY_INFINITE`.
const INFINITE: u64 = 0;

/// `sluice pkcs11 doctor --json`.
#[derive(Debug, Serialize)]
pub struct DoctorReport<'a> {
    /// Nothing kept the module from being seen whole.
    ok: bool,
    trouble: Option<&'a str>,
    library: Option<Library<'a>>,
    slots: Vec<Slot<'a>>,
    calls: Vec<Timed>,
    finalized: bool,
    advice: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Library<'a> {
    manufacturer: &'a str,
    description: &'a str,
    version: String,
    cryptoki: String,
}

#[derive(Debug, Serialize)]
struct Slot<'a> {
    id: u64,
    trouble: Option<String>,
    description: Option<&'a str>,
    flags: Option<Flags>,
    hardware: Option<String>,
    firmware: Option<String>,
    token: Option<Token<'a>>,
}

#[derive(Debug, Serialize)]
struct Token<'a> {
    trouble: Option<String>,
    label: Option<&'a str>,
    serial: Option<&'a str>,
    manufacturer: Option<&'a str>,
    model: Option<&'a str>,
    flags: Option<Flags>,
    hardware: Option<String>,
    firmware: Option<String>,
    utc_time: Option<String>,
    /// `[max, now]`; `null`: the token does not say.
    sessions: Option<(Option<u64>, Option<u64>)>,
    pin_len: Option<(u64, u64)>,
    mechanisms: usize,
}

#[derive(Debug, Serialize)]
struct Flags {
    raw: String,
    names: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct Timed {
    call: &'static str,
    us: u64,
}

/// As JSON.
#[must_use]
pub fn report(seen: &Seen) -> DoctorReport<'_> {
    DoctorReport {
        ok: seen.trouble.is_none(),
        trouble: seen.trouble.as_deref(),
        library: seen.library.as_ref().map(|library| Library {
            manufacturer: &library.manufacturer,
            description: &library.description,
            version: version(library.version),
            cryptoki: version(library.cryptoki),
        }),
        slots: seen.slots.iter().map(slot).collect(),
        calls: seen.calls.iter().map(|&(call, ns)| Timed { call: call.name(), us: ns / 1000 }).collect(),
        finalized: seen.finalized,
        advice: advice(seen),
    }
}

fn slot(entry: &SlotEntry) -> Slot<'_> {
    let info = entry.slot.as_ref().ok();
    Slot {
        id: entry.id,
        trouble: entry.slot.as_ref().err().map(ToString::to_string),
        description: info.map(|info| info.description.as_str()),
        flags: info.map(|info| flags(info.flags, true)),
        hardware: info.map(|info| version(info.hardware)),
        firmware: info.map(|info| version(info.firmware)),
        token: entry.token.as_ref().map(|token| self::token(token, entry.mechanisms.len())),
    }
}

fn token(token: &Result<TokenInfo, Trouble>, mechanisms: usize) -> Token<'_> {
    let info = token.as_ref().ok();
    let count = |count: u64| Some(count).filter(|count| *count != UNAVAILABLE);
    Token {
        trouble: token.as_ref().err().map(ToString::to_string),
        label: info.map(|info| info.label.as_str()),
        serial: info.map(|info| info.serial.as_str()),
        manufacturer: info.map(|info| info.manufacturer.as_str()),
        model: info.map(|info| info.model.as_str()),
        flags: info.map(|info| flags(info.flags, false)),
        hardware: info.map(|info| version(info.hardware)),
        firmware: info.map(|info| version(info.firmware)),
        utc_time: info.map(|info| info.utc_time.escape_ascii().to_string()),
        sessions: info.map(|info| (count(info.sessions.0), count(info.sessions.1))),
        pin_len: info.map(|info| info.pin_len),
        mechanisms,
    }
}

fn version((major, minor): (u8, u8)) -> String {
    format!("{major}.{minor}")
}

fn flags(raw: u64, of_slot: bool) -> Flags {
    let known = FLAGS.iter().filter(|flag| flag.of_slot == of_slot && raw & flag.bit != 0);
    Flags { raw: format!("{raw:#x}"), names: known.map(|flag| flag.name).collect() }
}

/// For people.
#[must_use]
pub fn text(seen: &Seen) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    write(&mut out, seen).unwrap_or_default();
    out
}

fn write(out: &mut String, seen: &Seen) -> std::fmt::Result {
    if let Some(library) = &seen.library {
        let (own, cryptoki) = (version(library.version), version(library.cryptoki));
        writeln!(out, "{} {own} ({}), PKCS#11 {cryptoki}", library.description, library.manufacturer)?;
    }
    for entry in &seen.slots {
        match &entry.slot {
            Err(trouble) => writeln!(out, "slot {}  {trouble}", entry.id)?,
            Ok(info) => write_slot(out, entry, info)?,
        }
    }
    writeln!(out, "calls")?;
    for (call, total, times) in summed(&seen.calls) {
        writeln!(out, "  {:<20} {:>10.1} us  x{times}", call.name(), mean_us(total, times))?;
    }
    if let Some(trouble) = &seen.trouble {
        writeln!(out, "!! {trouble}")?;
    }
    for line in advice(seen) {
        writeln!(out, "-> {line}")?;
    }
    Ok(())
}

fn write_slot(out: &mut String, entry: &SlotEntry, info: &SlotInfo) -> std::fmt::Result {
    let Flags { raw, names } = flags(info.flags, true);
    let (hardware, firmware) = (version(info.hardware), version(info.firmware));
    writeln!(out, "slot {}  \"{}\"  hardware {hardware}  firmware {firmware}", entry.id, info.description)?;
    writeln!(out, "  flags {raw} {}", names.join(" "))?;
    match &entry.token {
        None => writeln!(out, "  no token"),
        Some(Err(trouble)) => writeln!(out, "  token: {trouble}"),
        Some(Ok(token)) => write_token(out, token, entry.mechanisms.len()),
    }
}

fn write_token(out: &mut String, token: &TokenInfo, mechanisms: usize) -> std::fmt::Result {
    let TokenInfo { label, manufacturer, model, serial, sessions, pin_len, hardware, firmware, utc_time, .. } = token;
    let Flags { raw, names } = flags(token.flags, false);
    writeln!(out, "  token serial \"{serial}\"  label \"{label}\"  {manufacturer} {model}")?;
    writeln!(out, "  hardware {}  firmware {}  {mechanisms} mechanisms", version(*hardware), version(*firmware))?;
    writeln!(out, "  flags {raw} {}", names.join(" "))?;
    let (max, now) = *sessions;
    let count = |count| if count == UNAVAILABLE { "not told".to_owned() } else { format!("{count}") };
    let max = if max == INFINITE { "no limit".to_owned() } else { count(max) };
    writeln!(out, "  sessions {} of {max}  PIN {} to {} bytes", count(now), pin_len.0, pin_len.1)?;
    writeln!(out, "  utcTime \"{}\"", utc_time.escape_ascii())
}

/// Calls of a name together, in order of the first.
fn summed(calls: &[(Call, u64)]) -> Vec<(Call, u64, u64)> {
    let mut sums: Vec<(Call, u64, u64)> = Vec::new();
    for &(call, ns) in calls {
        match sums.iter_mut().find(|(known, ..)| *known == call) {
            Some((_, total, times)) => {
                *total += ns;
                *times += 1;
            }
            None => sums.push((call, ns, 1)),
        }
    }
    sums
}

#[expect(clippy::cast_precision_loss, reason = "a time that is shown with one digit behind the point")]
fn mean_us(total_ns: u64, times: u64) -> f64 {
    total_ns as f64 / times as f64 / 1000.0
}

/// What an operator should know before a check is written.
fn advice(seen: &Seen) -> Vec<String> {
    let mut lines = Vec::new();
    let tokens = || seen.slots.iter().filter_map(|entry| Some((entry.id, entry.token.as_ref()?.as_ref().ok()?)));
    let set = |token: &TokenInfo, name: &str| FLAGS.iter().any(|flag| flag.name == name && token.flags & flag.bit != 0);
    for (id, token) in tokens() {
        if tokens().any(|(other, same)| other != id && same.label == token.label && !token.label.is_empty()) {
            lines.push(format!("slot {id}: another token has the label \"{}\"; name it by its serial", token.label));
        }
        if !set(token, "token_initialized") {
            lines.push(format!("slot {id}: the token is not initialised; no check can use it"));
        } else if !set(token, "clock_on_token") {
            lines.push(format!("slot {id}: the token offers no clock, so leave clock.require at false"));
        }
        for bad in ["user_pin_locked", "user_pin_final_try", "user_pin_count_low", "error_state"] {
            if set(token, bad) {
                lines.push(format!("slot {id}: {bad} is set"));
            }
        }
        if token.sessions.0 != UNAVAILABLE && (1..20).contains(&token.sessions.0) {
            let max = token.sessions.0;
            lines.push(format!("slot {id}: it has {max} sessions in all; let sessions_max be a small part of them"));
        }
    }
    if !seen.finalized && seen.trouble.is_none() {
        lines.push("C_Finalize did not return in time; the daemon will kill its worker at each end".to_owned());
    }
    lines
}
