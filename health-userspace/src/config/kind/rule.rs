//! Rules about text: bodies, headers, what a connection says.

use super::Section;
use crate::config::read::Raw;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use std::fmt;
use toml::de::DeValue;

/// Memory of one compiled pattern. Unit: bytes.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// A rule about bytes as they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyRule {
    /// `contains:`
    Contains(String),
    /// `exact:`
    Exact(String),
    /// `regex:`
    Regex(Pattern),
    /// `not_regex:`
    NotRegex(Pattern),
}

/// A rule about a header of an answer. One of several values that keeps it is enough; `not_regex:` holds for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderRule {
    name: HeaderName,
    rule: ValueRule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ValueRule {
    Prefix(String),
    Text(BodyRule),
}

/// A compiled pattern, equal to those written alike.
#[derive(Clone, Debug)]
pub struct Pattern(regex::bytes::Regex);

impl BodyRule {
    /// Whether the bytes keep the rule.
    #[must_use]
    pub fn holds(&self, body: &[u8]) -> bool {
        match self {
            Self::Contains(text) => text.is_empty() || body.windows(text.len()).any(|window| window == text.as_bytes()),
            Self::Exact(text) => body == text.as_bytes(),
            Self::Regex(pattern) => pattern.0.is_match(body),
            Self::NotRegex(pattern) => !pattern.0.is_match(body),
        }
    }
}

impl fmt::Display for BodyRule {
    /// As written in a configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contains(text) => write!(f, "contains:{text}"),
            Self::Exact(text) => write!(f, "exact:{text}"),
            Self::Regex(pattern) => write!(f, "regex:{}", pattern.0.as_str()),
            Self::NotRegex(pattern) => write!(f, "not_regex:{}", pattern.0.as_str()),
        }
    }
}

impl HeaderRule {
    /// Whose values are looked at.
    #[must_use]
    pub const fn name(&self) -> &HeaderName {
        &self.name
    }

    /// Whether the headers of an answer keep the rule. A header that isn't there keeps only `not_regex:`.
    #[must_use]
    pub fn holds(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(&self.name).iter().map(HeaderValue::as_bytes);
        match &self.rule {
            ValueRule::Prefix(text) => values.any(|value| value.starts_with(text.as_bytes())),
            ValueRule::Text(rule @ BodyRule::NotRegex(_)) => values.all(|value| rule.holds(value)),
            ValueRule::Text(rule) => values.any(|value| rule.holds(value)),
        }
    }
}

impl fmt::Display for HeaderRule {
    /// The value, as written in a configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rule {
            ValueRule::Prefix(text) => write!(f, "prefix:{text}"),
            ValueRule::Text(rule) => rule.fmt(f),
        }
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

/// Reads one rule or a list of them. `example` shows the whole line.
pub(super) fn body_rules(section: &Section<'_>, key: &str, example: &str) -> Vec<BodyRule> {
    let Some(value) = section.get(key) else { return Vec::new() };
    let fix = format!("write one or more rules, for example {example}");
    let values: Vec<&Raw<'_>> = match value.get_ref() {
        DeValue::Array(list) => list.iter().collect(),
        _ => vec![value],
    };
    if values.is_empty() {
        section.error(key, format!("`{key}` holds no rule"), &fix);
    }
    let mut rules = Vec::new();
    for value in values {
        let Some(text) = value.get_ref().as_str() else {
            section.sink().error(value.span(), format!("`{key}` holds something that is no rule"), &fix);
            continue;
        };
        if text.split_once(':').is_some_and(|(word, text)| ["contains", "exact"].contains(&word) && text.is_empty()) {
            section.sink().error(value.span(), format!("the {key} rule \"{text}\" has no text"), &fix);
            continue;
        }
        match body_rule(section, value, text) {
            Some(Ok(rule)) => rules.push(rule),
            // The pattern is wrong, and was reported.
            Some(Err(())) => {}
            None => {
                let message = format!("the {key} rule \"{}\" begins with no known word", text.escape_debug());
                let fix = "begin it with contains:, exact:, regex: or not_regex:";
                section.sink().error(value.span(), message, fix);
            }
        }
    }
    rules
}

/// `None`: it begins with no word of a rule.
fn body_rule(section: &Section<'_>, value: &Raw<'_>, text: &str) -> Option<Result<BodyRule, ()>> {
    let (word, text) = text.split_once(':')?;
    Some(match word {
        "contains" => Ok(BodyRule::Contains(text.to_owned())),
        "exact" => Ok(BodyRule::Exact(text.to_owned())),
        "regex" => pattern(section, value, text).map(BodyRule::Regex).ok_or(()),
        "not_regex" => pattern(section, value, text).map(BodyRule::NotRegex).ok_or(()),
        _ => return None,
    })
}

fn pattern(section: &Section<'_>, value: &Raw<'_>, text: &str) -> Option<Pattern> {
    let built = regex::bytes::RegexBuilder::new(text).size_limit(REGEX_BYTES_MAX).build();
    if let Err(error) = &built {
        // The crate draws the pattern with a caret over several lines; its last line says what is wrong.
        let reason = error.to_string();
        let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        let message = format!("the pattern \"{}\" is wrong: {reason}", text.escape_debug());
        section.sink().error(value.span(), message, "see https://docs.rs/regex/#syntax");
    }
    built.ok().map(Pattern)
}

/// Reads a table of rules about headers. A value without a rule's word is compared as it is.
pub(super) fn header_rules(table: &Section<'_>) -> Vec<HeaderRule> {
    let mut rules: Vec<HeaderRule> = Vec::new();
    for (key, value) in table.entries() {
        let shown = key.value.escape_debug();
        let Ok(name) = HeaderName::from_bytes(key.value.as_bytes()) else {
            let fix = "use letters, digits and `-`, as in Content-Type";
            table.sink().error(key.at, format!("\"{shown}\" is no name of a header"), fix);
            continue;
        };
        if rules.iter().any(|rule| rule.name == name) {
            let message = format!("there are two rules for the header `{shown}`; capital letters make no difference");
            table.sink().error(key.at, message, "remove one of them");
            continue;
        }
        let Some(text) = value.get_ref().as_str() else {
            let message = format!("the rule for the header `{shown}` is not a string");
            table.sink().error(value.span(), message, "put it into quotes");
            continue;
        };
        let rule = match (text.strip_prefix("prefix:"), body_rule(table, value, text)) {
            (Some(text), _) => ValueRule::Prefix(text.to_owned()),
            (None, Some(Ok(rule))) => ValueRule::Text(rule),
            (None, Some(Err(()))) => continue,
            (None, None) => ValueRule::Text(BodyRule::Exact(text.to_owned())),
        };
        rules.push(HeaderRule { name, rule });
    }
    rules
}
