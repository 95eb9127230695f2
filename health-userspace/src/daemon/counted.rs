//! What this process counts by service and a word.

use std::collections::BTreeMap;

/// Counts by service and word. Words are few.
#[derive(Debug, Default)]
pub(super) struct Counted(BTreeMap<(String, &'static str), u64>);

impl Counted {
    pub(super) fn add(&mut self, service: &str, word: &'static str, count: u64) {
        *self.0.entry((service.to_owned(), word)).or_default() += count;
    }

    pub(super) fn of(&self, service: &str) -> Vec<(&'static str, u64)> {
        self.0.iter().filter(|((name, _), _)| name == service).map(|((_, word), count)| (*word, *count)).collect()
    }
}
