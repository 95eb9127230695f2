//! Mistakes and warnings, each with its place and its cure.

use std::{cell::RefCell, fmt, io, ops::Range};

/// Most mistakes that are printed; a generated file may repeat one of them ten thousand times.
const SHOWN_MAX: usize = 50;
/// Most characters of a source line that are printed.
const LINE_CHARS_MAX: usize = 160;

/// One mistake or warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file, as it was called.
    pub file: String,
    /// Line, from 1; 0 where the file as a whole is meant.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong. Lower case, names the object.
    pub message: String,
    /// What to do.
    pub fix: String,
    /// The source line and the carets below it.
    excerpt: Option<(String, String)>,
}

/// Why a configuration can't be applied; at least one reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors {
    /// In the file's order.
    pub errors: Vec<Diagnostic>,
}

/// Where the readers leave what they find.
#[derive(Debug, Default)]
pub(super) struct Sink {
    found: RefCell<Vec<Found>>,
}

#[derive(Debug)]
struct Found {
    at: Range<usize>,
    fatal: bool,
    message: String,
    fix: String,
}

impl Sink {
    /// Something is wrong; nothing may be applied.
    pub(super) fn error(&self, at: Range<usize>, message: impl Into<String>, fix: impl Into<String>) {
        let (message, fix) = (message.into(), fix.into());
        self.found.borrow_mut().push(Found { at, fatal: true, message, fix });
    }

    /// Something is allowed and will hurt.
    pub(super) fn warning(&self, at: Range<usize>, message: impl Into<String>, fix: impl Into<String>) {
        let (message, fix) = (message.into(), fix.into());
        self.found.borrow_mut().push(Found { at, fatal: false, message, fix });
    }

    /// Whether anything is wrong so far. Rules that join values are only worth asking then.
    pub(super) fn has_errors(&self) -> bool {
        self.found.borrow().iter().any(|found| found.fatal)
    }

    /// All that was found, as errors.
    pub(super) fn into_errors(self, file: &str, text: &str) -> ConfigErrors {
        let (errors, _) = self.split(file, text);
        errors.unwrap_or(ConfigErrors { errors: Vec::new() })
    }

    /// Errors, if any, and warnings, each in the file's order.
    pub(super) fn split(self, file: &str, text: &str) -> (Option<ConfigErrors>, Vec<Diagnostic>) {
        let mut found = self.found.into_inner();
        found.sort_by_key(|found| (found.at.start, found.at.end));
        let lines = Lines::new(text);
        let (fatal, mild): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| found.fatal);
        let place = |list: Vec<Found>| list.into_iter().map(|one| lines.place(file, one)).collect::<Vec<_>>();
        let errors = place(fatal);
        ((!errors.is_empty()).then_some(ConfigErrors { errors }), place(mild))
    }
}

/// A text and the beginnings of its lines.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        let ends = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n').map(|(at, _)| at + 1);
        Self { text, starts: std::iter::once(0).chain(ends).collect() }
    }

    fn place(&self, file: &str, found: Found) -> Diagnostic {
        // A span may lie behind the end (unclosed table), or inside a character if the parser recovered there.
        let mut at = found.at.start.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let line = self.starts.partition_point(|&start| start <= at);
        let start = self.starts[line - 1];
        let source = self.text[start..].lines().next().unwrap_or("");
        let column = self.text[start..at].chars().count().min(source.chars().count());
        let length = self.text.get(at..found.at.end.min(start + source.len())).map_or(1, |part| part.chars().count());
        Diagnostic {
            file: file.to_owned(),
            line,
            column: column + 1,
            message: found.message,
            fix: found.fix,
            excerpt: Some(excerpt(source, column, length.max(1))),
        }
    }
}

/// The part of a line around a place, and carets under it.
fn excerpt(source: &str, column: usize, length: usize) -> (String, String) {
    let skipped = if column + 20 > LINE_CHARS_MAX { column - 60 } else { 0 };
    // Bytes of a broken file must not reach the terminal as orders to it.
    let clean = |c: char| if c.is_control() && c != '\t' { '\u{fffd}' } else { c };
    let shown: String = source.chars().skip(skipped).take(LINE_CHARS_MAX).map(clean).collect();
    // Ideographs are two columns wide, and so is the ideographic space.
    let pad = |c: char| match c {
        '\t' => '\t',
        '\u{1100}'..='\u{115f}'
        | '\u{2e80}'..='\u{a4cf}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe30}'..='\u{fe6f}'
        | '\u{ff00}'..='\u{ff60}' => '\u{3000}',
        _ => ' ',
    };
    let mut carets: String = shown.chars().take(column - skipped).map(pad).collect();
    let room = LINE_CHARS_MAX.saturating_sub(column - skipped).max(1);
    carets.extend(std::iter::repeat_n('^', length.min(room)));
    (shown, carets)
}

impl ConfigErrors {
    /// The file is not there, or may not be read.
    pub(super) fn unreadable(file: &str, source: &io::Error) -> Self {
        let fix = match source.kind() {
            io::ErrorKind::NotFound => "create it, or name another with -c FILE",
            io::ErrorKind::PermissionDenied => "run as a user that may read it",
            _ => "name a readable file with -c FILE",
        };
        Self::whole(file, &format!("cannot read the configuration: {source}"), fix)
    }

    /// The file is no UTF-8.
    pub(super) fn not_text(file: &str, bytes: &[u8], at: usize) -> Self {
        let sink = Sink::default();
        sink.error(at..at + 1, "this byte is not UTF-8", "save the file as UTF-8");
        sink.into_errors(file, &String::from_utf8_lossy(bytes))
    }

    /// The file is beyond reason.
    pub(super) fn too_long(file: &str, max: usize) -> Self {
        Self::whole(file, &format!("the file is longer than {max} bytes"), "name a Sluice configuration")
    }

    fn whole(file: &str, message: &str, fix: &str) -> Self {
        let (file, message, fix) = (file.to_owned(), message.to_owned(), fix.to_owned());
        Self { errors: vec![Diagnostic { file, line: 0, column: 0, message, fix, excerpt: None }] }
    }
}

impl fmt::Display for Diagnostic {
    /// `file:line:column: message`, the source line with carets, and the fix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => writeln!(f, "{}: {}", self.file, self.message)?,
            _ => writeln!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?,
        }
        if let Some((source, carets)) = &self.excerpt {
            let gutter = self.line.to_string();
            let blank = " ".repeat(gutter.len());
            writeln!(f, " {blank} |\n {gutter} | {source}\n {blank} | {carets}")?;
        }
        write!(f, "fix: {}", self.fix)
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, error) in self.errors.iter().take(SHOWN_MAX).enumerate() {
            if nth > 0 {
                write!(f, "\n\n")?;
            }
            write!(f, "{error}")?;
        }
        match self.errors.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, "\n\nand {more} more"),
        }
    }
}
