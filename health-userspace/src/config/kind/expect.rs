//! `expect` of an HTTP check: what an answer must be like.

use super::{
    Out, Section,
    json::{self, JsonRule},
    rule::{self, BodyRule, HeaderRule},
};
use crate::config::{
    read::{At, Raw},
    resolved::{text, texts},
};
use hyper::{Method, header::HeaderMap};
use md5::{Digest as _, Md5};
use sha2::Sha256;
use std::fmt;
use toml::de::DeValue;

/// Bytes of a body that a rule sees where the file says nothing. Contract: 256 KiB.
const BODY_MAX_DEFAULT: usize = 256 << 10;
/// Most bytes that one round may hold in memory.
const BODY_MAX_MAX: usize = 16 << 20;

/// What an answer must be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpExpect {
    /// What is a pass. Default 200-299.
    pub status: StatusSet,
    /// What is a pass, but a weak one: alive, and pressed. Default 429, unless `status` has it: who limits requests serves others
    /// (P17).
    pub status_slow: StatusSet,
    /// What a redirection that is not in `status` means. Default fail.
    pub redirect: RedirectRule,
    /// What its headers must be like.
    pub headers: Vec<HeaderRule>,
    /// What the body must be like.
    pub body: Vec<BodyRule>,
    /// What must stand in it.
    pub json: Vec<JsonRule>,
    /// Numbers in strings count as numbers.
    pub json_cast: bool,
    /// What its digest must be.
    pub digest: Option<Digest>,
    /// How much of the body is read, then judged. Unit: bytes.
    pub body_max: usize,
    /// `exact:` compares after trimming white space.
    pub trim: bool,
    /// What says that somebody else answered.
    pub blocked: Option<Blocked>,
}

/// Ranges of status codes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusSet(Vec<(u16, u16)>);

/// What a redirection means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectRule {
    /// A failure.
    Fail,
    /// A pass.
    Pass,
    /// A pass if it leads to https at the same host.
    HttpsOnly,
    /// It is followed, as long as it stays at the same host; the last answer is judged.
    Follow,
}

/// A digest of the whole body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Digest {
    /// `md5:`, as in Keepalived.
    Md5([u8; 16]),
    /// `sha256:`
    Sha256([u8; 32]),
}

/// Answers that something before the origin gives. All that is named must be so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    status: StatusSet,
    headers: Vec<HeaderRule>,
}

const REDIRECTS: &[(&str, RedirectRule)] = &[
    ("fail", RedirectRule::Fail),
    ("pass", RedirectRule::Pass),
    ("https_only", RedirectRule::HttpsOnly),
    ("follow", RedirectRule::Follow),
];

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

impl Digest {
    /// Whether it is that of `body`.
    #[must_use]
    pub fn holds(&self, body: &[u8]) -> bool {
        match self {
            Self::Md5(wanted) => Md5::digest(body).as_slice() == wanted,
            Self::Sha256(wanted) => Sha256::digest(body).as_slice() == wanted,
        }
    }

    fn read(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("md5", hex) => Some(Self::Md5(bytes(hex)?)),
            ("sha256", hex) => Some(Self::Sha256(bytes(hex)?)),
            _ => None,
        }
    }
}

/// `N` bytes from twice as many hexadecimal digits.
fn bytes<const N: usize>(hex: &str) -> Option<[u8; N]> {
    if hex.len() != 2 * N || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, bytes): (_, &[u8]) = match self {
            Self::Md5(bytes) => ("md5", bytes),
            Self::Sha256(bytes) => ("sha256", bytes),
        };
        write!(f, "{word}:")?;
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Blocked {
    /// Whether such an answer came from something before the origin.
    #[must_use]
    pub fn holds(&self, status: u16, headers: &HeaderMap) -> bool {
        (self.status.0.is_empty() || self.status.contains(status))
            && self.headers.iter().all(|rule| rule.holds(headers))
    }
}

impl Default for HttpExpect {
    fn default() -> Self {
        Self {
            status: StatusSet::success(),
            status_slow: StatusSet(vec![(429, 429)]),
            redirect: RedirectRule::Fail,
            headers: Vec::new(),
            body: Vec::new(),
            json: Vec::new(),
            json_cast: false,
            digest: None,
            body_max: BODY_MAX_DEFAULT,
            trim: false,
            blocked: None,
        }
    }
}

impl HttpExpect {
    /// Whether anything is asked of the body.
    #[must_use]
    pub fn asks_body(&self) -> bool {
        !self.body.is_empty() || !self.json.is_empty() || self.digest.is_some()
    }

    /// Whether a body that goes on behind `body_max` can't be judged.
    #[must_use]
    pub fn asks_whole_body(&self) -> bool {
        !self.json.is_empty()
            || self.digest.is_some()
            || self.body.iter().any(|rule| matches!(rule, BodyRule::Exact(_)))
    }
}

/// Reads an `expect` table.
pub(super) fn expect(table: &Section<'_>, check: &str, method: &Method) -> HttpExpect {
    let default = HttpExpect::default();
    let status = statuses(table, "status").unwrap_or(default.status);
    let pressed = if status.contains(429) { StatusSet(Vec::new()) } else { default.status_slow };
    let read = HttpExpect {
        status,
        status_slow: statuses(table, "status_slow").unwrap_or(pressed),
        redirect: table.choice("redirect", REDIRECTS).unwrap_or(default.redirect),
        headers: rule::header_rules(&table.table("headers")),
        body: rule::body_rules(table, "body", "body = [\"contains:ready\"]"),
        json: json::rules(&table.table("json")),
        json_cast: table.flag("json_cast").unwrap_or(default.json_cast),
        digest: digest(table),
        body_max: body_max(table),
        trim: table.flag("trim").unwrap_or(default.trim),
        blocked: blocked(table),
    };
    for key in ["body", "json", "digest"].into_iter().filter(|key| table.get(key).is_some()) {
        if method == Method::HEAD && read.asks_body() {
            let message = format!("check `{check}`: an answer to HEAD has no body that a rule could hold for");
            table.error(key, message, "remove the rule, or use method = \"GET\"");
        }
    }
    read
}

fn statuses(table: &Section<'_>, key: &str) -> Option<StatusSet> {
    let value = table.get(key)?;
    let fix = format!("write codes and ranges from 100 to 599, for example {key} = [\"200-299\", 401]");
    // A check that expects nothing is a mistake; one for which nothing is pressed is not.
    let least = usize::from(key != "status_slow");
    let Some(list) = value.get_ref().as_array().filter(|list| list.iter().len() >= least) else {
        table.error(key, format!("`{key}` is not a list of codes"), fix);
        return None;
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
        table.sink().error(item.span(), format!("`{key}` cannot be {shown}"), &fix);
    }
    Some(StatusSet(ranges))
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

fn digest(table: &Section<'_>) -> Option<Digest> {
    let At { value, at } = table.text("digest", "sha256:…").filter(|digest| !digest.value.is_empty())?;
    let digest = Digest::read(value);
    if digest.is_none() {
        let message = format!("`digest` cannot be \"{}\"", value.escape_debug());
        let fix = "write md5: and 32 hexadecimal digits, or sha256: and 64; `sha256sum` prints them for a file";
        table.sink().error(at, message, fix);
    }
    digest
}

fn body_max(table: &Section<'_>) -> usize {
    let Some(At { value, at }) = table.text("body_max", "256KiB") else { return BODY_MAX_DEFAULT };
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
        table.sink().error(at, message, "write a size from 1B to 16MiB, for example \"256KiB\"");
    }
    read.unwrap_or(BODY_MAX_DEFAULT)
}

fn blocked(expect: &Section<'_>) -> Option<Blocked> {
    expect.get("blocked")?;
    let table = expect.table("blocked");
    let status = statuses(&table, "status").unwrap_or(StatusSet(Vec::new()));
    let headers = rule::header_rules(&table.table("headers"));
    if table.is_present() && status.0.is_empty() && headers.is_empty() {
        let fix = "write, for example, blocked = { status = [401, 403], headers = { Server = \"waf\" } }";
        expect.error("blocked", "`blocked` names neither a status nor a header, so every answer would be one", fix);
        return None;
    }
    Some(Blocked { status, headers })
}

impl HttpExpect {
    /// The whole table, under its header.
    pub(super) fn write(&self, out: &mut Out, header: &str) {
        // Taken apart, so that a new key can't be forgotten here.
        let Self { status, status_slow, redirect, headers, body, json, json_cast, digest, body_max, trim, blocked } =
            self;
        out.header(header);
        out.key("status", texts(status.words()));
        out.key("status_slow", texts(status_slow.words()));
        let word = REDIRECTS.iter().find(|(_, rule)| rule == redirect).map_or("", |(word, _)| word);
        out.key("redirect", text(word));
        out.key("headers", rules(headers));
        if !body.is_empty() {
            out.key("body", texts(body.iter().map(ToString::to_string)));
        }
        let json: Vec<_> = json.iter().map(JsonRule::words).map(|(at, value)| format!("{at} = {value}")).collect();
        out.key("json", inline(&json));
        out.key("json_cast", json_cast);
        out.key("digest", text(&digest.as_ref().map(ToString::to_string).unwrap_or_default()));
        out.key("body_max", text(&format!("{body_max}B")));
        out.key("trim", trim);
        if let Some(Blocked { status, headers }) = blocked {
            let status =
                if status.0.is_empty() { String::new() } else { format!("status = {}, ", texts(status.words())) };
            out.key("blocked", format_args!("{{ {status}headers = {} }}", rules(headers)));
        }
    }
}

fn rules(rules: &[HeaderRule]) -> String {
    let rules: Vec<_> =
        rules.iter().map(|rule| format!("{} = {}", text(rule.name().as_str()), text(&rule.to_string()))).collect();
    inline(&rules)
}

/// An inline table.
pub(super) fn inline(pairs: &[String]) -> String {
    if pairs.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", pairs.join(", ")) }
}
