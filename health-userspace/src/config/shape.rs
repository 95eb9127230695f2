//! Whether every key of a file is known and supported.

use super::{
    diagnostic::Sink,
    schema::{self, Key, Shape},
};
use std::ops::Range;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// Reports each key that the contract doesn't know, and each that this version doesn't support.
pub(super) fn check(root: &DeTable<'_>, sink: &Sink) {
    table(root, schema::ROOT, "", true, sink);
}

/// `supported` is false inside a table that was refused as a whole: only unknown keys are news there.
fn table(table: &DeTable<'_>, keys: &'static [Key], path: &str, supported: bool, sink: &Sink) {
    for (name, value) in table {
        let Some(key) = keys.iter().find(|key| key.name == name.get_ref().as_ref()) else {
            unknown(name.get_ref(), name.span(), keys, path, sink);
            continue;
        };
        if supported && !key.supported {
            sink.error(
                name.span(),
                format!("`{}` is not yet supported", join(path, key.name)),
                "remove it; a later version of Sluice will read it",
            );
        }
        let Shape::Table(inner) = key.shape else { continue };
        let path = join(path, key.name);
        let supported = supported && key.supported;
        match value.get_ref() {
            DeValue::Table(value) => self::table(value, inner, &path, supported, sink),
            DeValue::Array(list) => {
                for value in list.iter().map(Spanned::get_ref).filter_map(DeValue::as_table) {
                    self::table(value, inner, &path, supported, sink);
                }
            }
            // The reader says what it wants instead.
            _ => {}
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn unknown(name: &str, at: Range<usize>, keys: &[Key], path: &str, sink: &Sink) {
    let place = if path.is_empty() { "at the top of the file".to_owned() } else { format!("in `{path}`") };
    let near = nearest(name, keys.iter().map(|key| key.name));
    // The nearest place is one below this table: `fall` of a service belongs in its policy, not in everybody's.
    let mut homes = schema::homes_of(name);
    homes.sort_by_key(|home| !home.starts_with(path));
    let fix = match (near, homes.as_slice()) {
        (Some(near), _) => format!("did you mean `{near}`?"),
        (None, [home]) if home.is_empty() => format!("`{name}` belongs at the top of the file"),
        (None, [home, ..]) => format!("`{name}` belongs in `{home}`"),
        (None, []) => {
            let known: Vec<_> = keys.iter().filter(|key| key.supported).map(|key| key.name).collect();
            format!("remove it; keys here are {}", known.join(", "))
        }
    };
    let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
    sink.error(at, format!("unknown key `{name}` {place}"), fix);
}

/// The candidate that a typing error of at most a third of the word's letters would turn into `word`.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Longer words are no slips; the bound also keeps the table below small whatever the file holds.
    if word.len() > 64 {
        return None;
    }
    let lower = word.to_ascii_lowercase();
    candidates
        .map(|candidate| (distance(&lower, candidate), candidate))
        .filter(|&(distance, candidate)| distance <= (candidate.len().max(word.len()) / 3).clamp(1, 3))
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// Damerau-Levenshtein distance (adjacent swaps count once), for short words.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}
