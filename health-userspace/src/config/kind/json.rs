//! Conditions about JSON: a pointer (RFC 6901) and what must stand there.

use super::{
    Section,
    number::{Decimal, compare},
};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::{cmp::Ordering, fmt};
use toml::de::DeValue;

/// Most pointers of one check.
const RULES_MAX: usize = 64;

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonRule {
    pointer: String,
    wanted: Wanted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    Text(String),
    Flag(bool),
    Number(Comparison, Decimal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Longest first: `<=` begins with `<`.
const COMPARISONS: &[(&str, Comparison)] = &[
    ("<=", Comparison::LessOrEqual),
    (">=", Comparison::GreaterOrEqual),
    ("!=", Comparison::NotEqual),
    ("=", Comparison::Equal),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

/// Why a document breaks a condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonFault {
    /// The body is empty.
    #[error("the body is empty, not JSON")]
    Empty,
    /// No JSON, or deeper than 128 levels.
    #[error("not JSON: {0}")]
    Syntax(String),
    /// A member's name stands there twice: readers differ in which one counts.
    #[error("{0} stands there twice")]
    Twice(String),
    /// Nothing stands there, or null.
    #[error("{0} is missing")]
    Missing(String),
    /// What stands there is of another type.
    #[error("{pointer} is {found}, expected {wanted}")]
    Type {
        /// Where.
        pointer: String,
        /// What is there.
        found: String,
        /// What should be.
        wanted: String,
    },
    /// What stands there is another.
    #[error("{pointer} is {found}, expected {wanted}")]
    Value {
        /// Where.
        pointer: String,
        /// What is there.
        found: String,
        /// What should be.
        wanted: String,
    },
}

/// Whether a document keeps all rules. `cast`: numbers in strings count as numbers.
///
/// # Errors
///
/// The first rule that it breaks; or it is no JSON at all, in which case it breaks all of them.
pub(crate) fn holds(rules: &[JsonRule], cast: bool, body: &[u8]) -> Result<(), JsonFault> {
    // RFC 8259 §8.1 lets a reader pass over a byte order mark.
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(JsonFault::Empty);
    }
    // Once as a whole: only this reader bounds the depth.
    let whole = serde_json::from_slice::<Whole>(body);
    whole.map_err(|error| JsonFault::Syntax(error.to_string()))?;
    let root = serde_json::from_slice::<&RawValue>(body).map_err(|error| JsonFault::Syntax(error.to_string()))?;
    rules.iter().try_for_each(|rule| rule.holds(cast, root))
}

impl JsonRule {
    fn holds(&self, cast: bool, root: &RawValue) -> Result<(), JsonFault> {
        let pointer = || self.pointer.clone();
        let mut at = root;
        for token in self.pointer.split('/').skip(1) {
            let name = token.replace("~1", "/").replace("~0", "~");
            at = match step(at, &name) {
                Ok(Some(next)) => next,
                Ok(None) => return Err(JsonFault::Missing(pointer())),
                Err(_) => return Err(JsonFault::Twice(pointer())),
            };
        }
        let found = at.get();
        if found == "null" {
            return Err(JsonFault::Missing(pointer()));
        }
        let shown = || found.chars().take(60).collect::<String>();
        let wrong = |same_type: bool| {
            let (pointer, found, wanted) = (pointer(), shown(), self.to_string());
            if same_type {
                JsonFault::Value { pointer, found, wanted }
            } else {
                JsonFault::Type { pointer, found, wanted }
            }
        };
        let string = serde_json::from_str::<String>(found).ok();
        let (kept, same_type) = match &self.wanted {
            Wanted::Text(wanted) => (string.as_ref() == Some(wanted), string.is_some()),
            Wanted::Flag(wanted) => (found == wanted.to_string(), matches!(found, "true" | "false")),
            Wanted::Number(comparison, wanted) => {
                let text = string.as_deref().filter(|_| cast).unwrap_or(found);
                let number = Decimal::read(text);
                let kept = number.as_ref().is_some_and(|number| comparison.holds(compare(number, wanted)));
                (kept, number.is_some())
            }
        };
        if kept { Ok(()) } else { Err(wrong(same_type)) }
    }

    /// As written in a configuration: `"/db" = "ok"`.
    pub(super) fn words(&self) -> (String, String) {
        let value = match &self.wanted {
            Wanted::Flag(flag) => flag.to_string(),
            _ => crate::config::resolved::text(&self.to_string()),
        };
        (crate::config::resolved::text(&self.pointer), value)
    }
}

impl fmt::Display for JsonRule {
    /// What must stand there, as written in a configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.wanted {
            Wanted::Text(text) if reads_as_other(text) => write!(f, "{EXACT}{text}"),
            Wanted::Text(text) => f.write_str(text),
            Wanted::Flag(flag) => write!(f, "{flag}"),
            Wanted::Number(comparison, number) => {
                let sign = COMPARISONS.iter().find(|(_, other)| other == comparison).map_or("", |(sign, _)| sign);
                write!(f, "{sign}{number}")
            }
        }
    }
}

/// Begins a text that would else be read as a comparison.
const EXACT: &str = "exact:";

fn reads_as_other(text: &str) -> bool {
    text.starts_with(EXACT) || comparison(text).is_some()
}

fn comparison(text: &str) -> Option<Wanted> {
    let (sign, comparison) = COMPARISONS.iter().find(|(sign, _)| text.starts_with(sign))?;
    Some(Wanted::Number(*comparison, Decimal::read(text.strip_prefix(sign)?.trim_start())?))
}

impl Comparison {
    const fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }
}

/// The member or element of that name, if `at` is an object or array that has it.
///
/// # Errors
///
/// An object has it twice. Nothing else can be wrong: the document was read before.
fn step<'a>(at: &'a RawValue, name: &str) -> Result<Option<&'a RawValue>, serde_json::Error> {
    Step { name }.deserialize(&mut serde_json::Deserializer::from_str(at.get()))
}

struct Step<'n> {
    name: &'n str,
}

impl<'de> DeserializeSeed<'de> for Step<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Step<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            if key != self.name {
                map.next_value::<IgnoredAny>()?;
            } else if found.replace(map.next_value::<&RawValue>()?).is_some() {
                return Err(A::Error::custom("twice"));
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        // RFC 6901 §4: no leading zeros; "-" names the element after the last one, which never is there.
        let plain = self.name == "0" || (!self.name.starts_with('0') && self.name.bytes().all(|b| b.is_ascii_digit()));
        let wanted: Option<usize> = if plain { self.name.parse().ok() } else { None };
        let (mut found, mut at) = (None, 0_usize);
        while let Some(element) = list.next_element::<&RawValue>()? {
            if wanted == Some(at) {
                found = Some(element);
            }
            at = at.saturating_add(1);
        }
        Ok(found)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// A whole document, of which nothing is kept.
struct Whole;

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // The library bounds the depth of what it visits (128), and not of what it skips.
        from.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Whole {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<std::borrow::Cow<'de, str>, Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }
}

/// Reads a table of pointers and what must stand there.
pub(super) fn rules(table: &Section<'_>) -> Vec<JsonRule> {
    let fix = "write, for example, json = { \"/db\" = \"ok\", \"/queue/depth\" = \"<1000\" }";
    let mut rules = Vec::new();
    for (key, value) in table.entries() {
        let pointer = key.value;
        let escapes_hold = pointer.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
        if !(pointer.is_empty() || pointer.starts_with('/')) || !escapes_hold {
            let message = format!("\"{}\" is no JSON pointer", pointer.escape_debug());
            table.sink().error(key.at, message, "begin it with `/`, as in \"/queue/depth\"; write ~ as ~0");
            continue;
        }
        let number = |text: &str| Decimal::read(&text.replace('_', "")).map(|n| Wanted::Number(Comparison::Equal, n));
        let wanted = match value.get_ref() {
            DeValue::String(text) => match text.strip_prefix(EXACT) {
                Some(text) => Some(Wanted::Text(text.to_owned())),
                None => Some(comparison(text).unwrap_or_else(|| Wanted::Text(text.to_string()))),
            },
            DeValue::Boolean(flag) => Some(Wanted::Flag(*flag)),
            DeValue::Integer(written) if written.radix() == 10 => number(written.as_str().trim_start_matches('+')),
            DeValue::Float(written) => number(written.as_str().trim_start_matches('+')),
            _ => None,
        };
        let Some(wanted) = wanted else {
            let message = format!("the condition for \"{}\" is neither text, number nor flag", pointer.escape_debug());
            table.sink().error(value.span(), message, fix);
            continue;
        };
        rules.push(JsonRule { pointer: pointer.to_owned(), wanted });
    }
    if rules.len() > RULES_MAX {
        let message = format!("there are {} conditions; {RULES_MAX} is the most", rules.len());
        table.sink().error(table.at(), message, "keep those that say whether the origin serves");
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(pointer: &str) -> JsonRule {
        JsonRule { pointer: pointer.to_owned(), wanted: Wanted::Flag(true) }
    }

    /// JSON, nearly JSON, and anything.
    fn bodies() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof!["true", "null", "-?[0-9]{1,3}(\\.[0-9]{1,3})?", "\"[a-c~/\\\\]{0,3}\""];
        let json = leaf.prop_recursive(4, 24, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(|list| format!("[{}]", list.join(","))),
                prop::collection::vec(("[a-c]", inner), 0..3).prop_map(|map| {
                    let pairs: Vec<_> = map.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
                    format!("{{{}}}", pairs.join(","))
                }),
            ]
        });
        prop_oneof![
            4 => json.prop_map(String::into_bytes),
            1 => prop::collection::vec(any::<u8>(), 0..60),
            1 => "[\\[\\]{}:,\"a-c0-9.e -]{0,40}".prop_map(String::into_bytes),
        ]
    }

    proptest! {
        /// It finds what the library's own pointers find, and refuses what the library can't read.
        #[test]
        fn any_bytes_are_read_as_the_library_reads_them(body in bodies(), pointer in "(/([a-c]|[0-9]{1,2}|-)){0,4}") {
            let found = holds(&[rule(&pointer)], false, &body);
            match serde_json::from_slice::<serde_json::Value>(&body) {
                Err(_) => prop_assert!(matches!(found, Err(JsonFault::Empty | JsonFault::Syntax(_))), "{:?}", found),
                // The library takes the last of two members of one name, and we take neither.
                Ok(_) if matches!(found, Err(JsonFault::Twice(_))) => {}
                Ok(document) => match document.pointer(&pointer) {
                    Some(serde_json::Value::Bool(true)) => prop_assert_eq!(found, Ok(())),
                    None | Some(serde_json::Value::Null) => {
                        prop_assert!(matches!(found, Err(JsonFault::Missing(_))), "{:?}", found);
                    }
                    Some(_) => prop_assert!(matches!(found, Err(JsonFault::Type { .. })), "{:?}", found),
                },
            }
        }
    }
}
