//! Typed reading of one table, with the place of everything.
//!
//! A reader that finds something wrong reports it and answers `None`; its caller goes on with the default, so that one
//! run finds all mistakes. Nothing of it is used in the end.

use super::diagnostic::Sink;
use health_core::Span;
use std::{fmt::Display, ops::Range};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// A value as it stands in the file.
pub(super) type Raw<'a> = Spanned<DeValue<'a>>;

/// One table of the file, or the idea of one that isn't there.
pub(super) struct Section<'a> {
    table: Option<&'a DeTable<'a>>,
    at: Range<usize>,
    sink: &'a Sink,
}

/// A value of a key and where it stands.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) at: Range<usize>,
}

impl<'a> Section<'a> {
    /// The file itself.
    pub(super) fn root(table: &'a DeTable<'a>, sink: &'a Sink) -> Self {
        Self { table: Some(table), at: 0..0, sink }
    }

    /// Where this table stands: its header, or its text if it is written inline.
    pub(super) fn at(&self) -> Range<usize> {
        self.at.clone()
    }

    /// Whether the file has it.
    pub(super) const fn is_present(&self) -> bool {
        self.table.is_some()
    }

    /// Where to report.
    pub(super) const fn sink(&self) -> &'a Sink {
        self.sink
    }

    /// A key's value, unread.
    pub(super) fn get(&self, key: &str) -> Option<&'a Raw<'a>> {
        self.table.and_then(|table| table.get(key))
    }

    /// All keys, where they are the operator's own words.
    pub(super) fn entries(&self) -> impl Iterator<Item = (At<&'a str>, &'a Raw<'a>)> {
        let table = self.table.into_iter().flatten();
        table.map(|(key, value)| (At { value: key.get_ref().as_ref(), at: key.span() }, value))
    }

    /// Where a key's value stands, or the table if the key isn't there.
    pub(super) fn at_key(&self, key: &str) -> Range<usize> {
        self.get(key).map_or_else(|| self.at(), Spanned::span)
    }

    /// Reports a mistake at a key's value.
    pub(super) fn error(&self, key: &str, message: impl Into<String>, fix: impl Into<String>) {
        self.sink.error(self.at_key(key), message, fix);
    }

    /// Reports a value of the wrong type.
    fn mistyped(&self, key: &str, value: &Raw<'_>, wanted: &str, example: &str) {
        let found = value.get_ref().type_str();
        self.sink.error(
            value.span(),
            format!("`{key}` is {} {found}, not {wanted}", article(found)),
            format!("write, for example, {key} = {example}"),
        );
    }

    /// The table behind a key.
    pub(super) fn table(&self, key: &str) -> Self {
        let absent = Self { table: None, at: self.at(), sink: self.sink };
        match self.get(key).map(|value| (value, value.get_ref())) {
            None => absent,
            Some((value, DeValue::Table(table))) => Self { table: Some(table), at: value.span(), sink: self.sink },
            Some((value, _)) => {
                self.mistyped(key, value, "a table", "{ … }");
                absent
            }
        }
    }

    /// The tables behind a key that is written as `[[key]]`.
    pub(super) fn tables(&self, key: &str) -> Vec<Self> {
        let wanted = |value: &Raw<'_>| {
            let found = value.get_ref().type_str();
            self.sink.error(
                value.span(),
                format!("`{key}` is {} {found}, not a list of tables", article(found)),
                format!("write each one under a header of its own with double brackets, as in [[{key}]]"),
            );
        };
        let Some(value) = self.get(key) else { return Vec::new() };
        let DeValue::Array(list) = value.get_ref() else {
            wanted(value);
            return Vec::new();
        };
        let mut tables = Vec::with_capacity(list.len());
        for item in list {
            match item.get_ref() {
                DeValue::Table(table) => tables.push(Self { table: Some(table), at: item.span(), sink: self.sink }),
                _ => wanted(item),
            }
        }
        tables
    }

    /// A string.
    pub(super) fn text(&self, key: &str, example: &str) -> Option<At<&'a str>> {
        let value = self.get(key)?;
        let DeValue::String(text) = value.get_ref() else {
            self.mistyped(key, value, "a string", &format!("\"{example}\""));
            return None;
        };
        Some(At { value: text.as_ref(), at: value.span() })
    }

    /// A list of strings.
    pub(super) fn texts(&self, key: &str, example: &str) -> Option<Vec<At<&'a str>>> {
        let value = self.get(key)?;
        let DeValue::Array(list) = value.get_ref() else {
            self.mistyped(key, value, "a list of strings", &format!("[\"{example}\"]"));
            return None;
        };
        let mut texts = Vec::with_capacity(list.len());
        for item in list {
            match item.get_ref() {
                DeValue::String(text) => texts.push(At { value: text.as_ref(), at: item.span() }),
                _ => self.mistyped(key, item, "a string", &format!("[\"{example}\"]")),
            }
        }
        Some(texts)
    }

    /// `true` or `false`.
    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        let value = self.get(key)?;
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            self.mistyped(key, value, "true or false", "true");
        }
        flag
    }

    /// A whole number in `min..=max`.
    pub(super) fn number<T>(&self, key: &str, min: T, max: T) -> Option<T>
    where
        T: TryFrom<i128> + PartialOrd + Display + Copy,
    {
        self.number_of(key, self.get(key)?, min, max)
    }

    /// A list of whole numbers in `min..=max`.
    pub(super) fn numbers<T>(&self, key: &str, example: &str, min: T, max: T) -> Option<Vec<T>>
    where
        T: TryFrom<i128> + PartialOrd + Display + Copy,
    {
        let value = self.get(key)?;
        let DeValue::Array(list) = value.get_ref() else {
            self.mistyped(key, value, "a list of numbers", example);
            return None;
        };
        let numbers: Vec<Option<T>> = list.iter().map(|item| self.number_of(key, item, min, max)).collect();
        numbers.into_iter().collect()
    }

    /// The same for a value that stands in a list.
    pub(super) fn number_of<T>(&self, key: &str, value: &Raw<'_>, min: T, max: T) -> Option<T>
    where
        T: TryFrom<i128> + PartialOrd + Display + Copy,
    {
        let DeValue::Integer(number) = value.get_ref() else {
            self.mistyped(key, value, "a whole number", &min.to_string());
            return None;
        };
        let read =
            i128::from_str_radix(number.as_str(), number.radix()).ok().and_then(|number| T::try_from(number).ok());
        let inside = read.filter(|read| (min..=max).contains(read));
        if inside.is_none() {
            let shown: String = number.to_string().chars().take(40).collect();
            let message = format!("`{key}` is {shown}, which is out of range");
            self.sink.error(value.span(), message, format!("write a number from {min} to {max}"));
        }
        inside
    }

    /// A length of time in `min..=max`.
    pub(super) fn time(&self, key: &str, min: Span, max: Span) -> Option<Span> {
        let value = self.get(key)?;
        let example = if max < Span::from_secs(1) { "500ms" } else { "5s" };
        let text = match value.get_ref() {
            DeValue::String(text) => text,
            DeValue::Integer(number) => {
                let fix = format!("write, for example, {key} = \"{}s\" or \"{}ms\"", number.as_str(), number.as_str());
                self.sink.error(value.span(), format!("`{key}` has no unit"), fix);
                return None;
            }
            _ => {
                self.mistyped(key, value, "a length of time", &format!("\"{example}\""));
                return None;
            }
        };
        match duration(text) {
            Err(reason) => {
                let fix = format!("write a number and its unit (ms, s, m, h), for example {key} = \"{example}\"");
                self.sink.error(value.span(), format!("`{key}` is no length of time: {reason}"), fix);
                None
            }
            Ok(span) if span < min || span > max => {
                let fix = format!("write a time from {} to {}", time_text(min), time_text(max));
                self.sink.error(value.span(), format!("`{key}` is {}, which is out of range", time_text(span)), fix);
                None
            }
            Ok(span) => Some(span),
        }
    }

    /// One word of several.
    pub(super) fn choice<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let listed = || words.iter().map(|(word, _)| format!("\"{word}\"")).collect::<Vec<_>>().join(" or ");
        let text = self.text(key, words.first().map_or("", |(word, _)| word))?;
        let found = words.iter().find(|(word, _)| *word == text.value).map(|&(_, meaning)| meaning);
        if found.is_none() {
            let message = format!("`{key}` cannot be \"{}\"", text.value.escape_debug());
            self.sink.error(text.at, message, format!("write {}", listed()));
        }
        found
    }
}

fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}

/// Reads "30s", "500ms", "5m", "1h 30m".
pub(super) fn duration(text: &str) -> Result<Span, String> {
    let read = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    u64::try_from(read.as_nanos()).map(Span).map_err(|_too_long| "longer than 584 years".to_owned())
}

/// Writes a length of time so that [`duration`] reads the same.
pub(super) fn time_text(span: Span) -> String {
    humantime::format_duration(std::time::Duration::from_nanos(span.0)).to_string()
}
