//! Aligned columns.

use super::words::clean;
use unicode_width::UnicodeWidthStr;

/// Which edge the cells of a column share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table that is as narrow as its cells allow.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
    indent: &'static str,
}

impl Table {
    /// An empty table with a heading for each column.
    #[must_use]
    pub fn new(indent: &'static str, columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new(), indent }
    }

    /// Adds a row. Control characters are replaced.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().map(|cell| clean(&cell)).collect();
        debug_assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        self.rows.push(cells);
    }

    /// Heading and rows, a line each. Two blanks between columns, none at the end of a line.
    #[must_use]
    pub fn text(&self) -> String {
        let heading: Vec<String> = self.columns.iter().map(|&(name, _)| name.to_owned()).collect();
        let lines = || std::iter::once(&heading).chain(&self.rows);
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|nth| lines().filter_map(|cells| cells.get(nth)).map(|cell| cell.width()).max().unwrap_or(0))
            .collect();
        let mut text = String::new();
        for cells in lines() {
            let mut line = self.indent.to_owned();
            for ((cell, width), (_, align)) in cells.iter().zip(&widths).zip(&self.columns) {
                if line.len() > self.indent.len() {
                    line.push_str("  ");
                }
                let blanks = " ".repeat(width.saturating_sub(cell.width()));
                match align {
                    Align::Left => line.extend([cell.as_str(), &blanks]),
                    Align::Right => line.extend([blanks.as_str(), cell]),
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn words_left_numbers_right_and_wide_characters_count_twice() {
        let mut table = Table::new("", &[("NAME", Align::Left), ("OPEN", Align::Right), ("WHY", Align::Left)]);
        table.row(["a".into(), "3".into(), String::new()]);
        table.row(["首页".into(), "9120".into(), "ready".into()]);
        table.row(["b".into(), "12".into(), "x\ty".into()]);
        expect![[r"
            NAME  OPEN  WHY
            a        3
            首页  9120  ready
            b       12  x�y
        "]]
        .assert_eq(&table.text());
    }
}
