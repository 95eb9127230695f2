//! The house rules that no lint knows, as tests over the text of the project (TigerBeetle's `tidy`).
//!
//! The words that are looked for are put together with `concat!`, so that this file doesn't break its own rules.

use std::fs;
use std::path::Path;

/// Lines that a file may have, its tests not counted.
const FILE_LINES_MAX: usize = 400;

/// Lines that a function may have.
const FUNCTION_LINES_MAX: usize = 70;

/// Files that are longer all the same, and how long. A ratchet: a row may only shrink, and goes when it is no longer
/// needed.
const LONG_FILES: [(&str, usize); 0] = [];

/// Functions that are longer all the same, as `path::name`, and how long. A ratchet like [`LONG_FILES`].
const LONG_FUNCTIONS: [(&str, usize); 0] = [];

/// The only shell script: what CI calls.
const SHELL_SCRIPTS: [&str; 1] = [".ci/run"];

/// Where aya may be used: the datapath, the map types' `Pod` marks, the kernel half (its aya is another crate) and the
/// tests that load programs.
const AYA_FOLDERS: [&str; 5] =
    ["health-userspace/src/datapath/", "health-userspace/src/datapath.rs", "health-common/", "health-ebpf/", "tests/"];

/// A text file of the project.
struct Source {
    /// Relative to the workspace.
    path: String,
    text: String,
}

impl Source {
    fn is_rust(&self) -> bool {
        self.has_extension("rs")
    }

    fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|found| found == extension)
    }

    /// Whether the whole file is test code. The package `tests` has its own library, which is not.
    fn is_test(&self) -> bool {
        let inside = self.path.strip_prefix("tests/").unwrap_or(&self.path);
        let name = inside.rsplit('/').next().unwrap_or_default();
        inside.split('/').any(|folder| folder == "tests") || ["tests.rs", "proptests.rs", "tidy.rs"].contains(&name)
    }

    /// How many lines stand before the test module, which closes a file here.
    fn code_lines(&self) -> usize {
        if self.is_test() {
            return 0;
        }
        let lines: Vec<_> = self.text.lines().collect();
        let tests = lines.windows(2).position(|pair| {
            pair[0] == "#[cfg(test)]" && pair[1].trim_start().starts_with("mod ") && pair[1].ends_with('{')
        });
        tests.unwrap_or(lines.len())
    }

    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.numbered().take(self.code_lines())
    }

    fn tests(&self) -> impl Iterator<Item = (usize, &str)> {
        self.numbered().skip(self.code_lines())
    }

    /// The lines and their numbers, from 1.
    fn numbered(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }
}

/// The line without its comment, roughly: enough for words that are no part of an address.
fn without_comment(line: &str) -> &str {
    if line.trim_start().starts_with("//") {
        return "";
    }
    line.split_once(" // ").map_or(line, |(code, _)| code)
}

/// Whether `word` stands in `line` with no letter, digit or underscore around it.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line.get(..start).and_then(|text| text.chars().next_back());
        let after = line.get(start + word.len()..).and_then(|text| text.chars().next());
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Whether a function of this name is called in `line`.
fn calls(line: &str, name: &str) -> bool {
    has_word(line, name) && line.contains(&format!("{name}("))
}

/// All text files of the project. The tree is walked rather than git asked, so that a source archive can be checked too.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let mut found = Vec::new();
    collect(root, root, &mut found);
    assert!(found.len() > 20, "the workspace was not found at {}", root.display());
    found
}

fn collect(root: &Path, folder: &Path, found: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).expect("the workspace can be read") {
        let entry = entry.expect("the workspace can be read");
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type().expect("the workspace can be read");
        if kind.is_dir() && name != "target" && name != ".git" {
            collect(root, &path, found);
        } else if kind.is_file() && name != "Cargo.lock" && name != ".git" {
            // What isn't text has no words to check.
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let path = path.strip_prefix(root).expect("it lies in the root").to_string_lossy().into_owned();
            found.push(Source { path, text });
        }
    }
}

/// Fails with one line for each breach.
#[track_caller]
fn assert_none(rule: &str, breaches: &[String]) {
    assert!(breaches.is_empty(), "{rule}:\n  {}", breaches.join("\n  "));
}

/// Adds those of `lines` to `found` that `breaks` finds at fault.
fn search<'a>(
    found: &mut Vec<String>,
    source: &'a Source,
    lines: impl Iterator<Item = (usize, &'a str)>,
    breaks: impl Fn(&str) -> bool,
) {
    let broken = lines.filter(|(_, line)| breaks(line));
    found.extend(broken.map(|(number, line)| format!("{}:{number}: {}", source.path, line.trim())));
}

/// Compares lengths with a limit and its ratchet.
fn too_long(lengths: &[(String, usize)], max: usize, ratchet: &[(&str, usize)]) -> Vec<String> {
    let mut breaches = Vec::new();
    for (name, lines) in lengths {
        match ratchet.iter().find(|(known, _)| known == name) {
            Some((_, before)) if lines != before || *lines <= max => {
                breaches
                    .push(format!("{name}: {lines} lines, {before} in the ratchet: bring the row to what it is now"));
            }
            None if *lines > max => breaches.push(format!("{name}: {lines} lines, {max} allowed")),
            Some(_) | None => {}
        }
    }
    let gone = ratchet.iter().filter(|(known, _)| !lengths.iter().any(|(name, _)| name == known));
    breaches.extend(gone.map(|(name, _)| format!("{name}: is in the ratchet, but not in the project")));
    breaches
}

/// Each function of a file with its length. Rustfmt has laid the text out, so a function ends at the first line that
/// closes a brace at its own depth.
fn functions(source: &Source) -> Vec<(String, usize)> {
    let lines: Vec<_> = source.code().map(|(_, line)| line).collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let end = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
        let body = lines.iter().skip(start);
        // A declaration without a body, or a body on one line, ends at once.
        if line.ends_with(';') || line.ends_with('}') {
            continue;
        }
        found.push((format!("{}::{name}", source.path), body.take_while(|line| **line != end).count() + 1));
    }
    found
}

/// The name of the function whose definition begins on this line.
fn function_name(line: &str) -> Option<&str> {
    let words = without_comment(line);
    let (before, after) = words.split_once("fn ")?;
    let is_definition = before.split_whitespace().all(|word| {
        word.starts_with("pub")
            || word.ends_with(')')
            || ["const", "unsafe", "async", "extern", "\"C\""].contains(&word)
    });
    let name = after.split(['(', '<']).next()?;
    (is_definition && !name.is_empty()).then_some(name)
}

#[test]
fn files_are_short() {
    let lengths: Vec<_> =
        sources().into_iter().filter(Source::is_rust).map(|file| (file.path.clone(), file.code_lines())).collect();

    assert_none("a file is too long", &too_long(&lengths, FILE_LINES_MAX, &LONG_FILES));
}

#[test]
fn functions_are_short() {
    let lengths: Vec<_> = sources().iter().filter(|file| file.is_rust()).flat_map(functions).collect();

    assert_none("a function is too long", &too_long(&lengths, FUNCTION_LINES_MAX, &LONG_FUNCTIONS));
}

#[test]
fn aya_is_used_in_the_datapath_only() {
    let mut found = Vec::new();
    for source in sources().iter().filter(|file| file.is_rust()) {
        if AYA_FOLDERS.iter().any(|folder| source.path.starts_with(folder)) || source.is_test() {
            continue;
        }
        search(&mut found, source, source.numbered(), |line| {
            let code = without_comment(line);
            ["aya", "aya_obj", "aya_log"].iter().any(|name| {
                code.contains(&format!("use {name}")) && has_word(code, name)
                    || code.contains(&format!("{name}::")) && has_word(code, name)
            })
        });
    }
    assert_none("only health-userspace/src/datapath may use aya", &found);
}

#[test]
fn tests_do_not_sleep() {
    let mut found = Vec::new();
    for source in sources().iter().filter(|file| file.is_rust()) {
        search(&mut found, source, source.tests(), |line| {
            // Imported or not.
            ["sleep", concat!("sleep_", "until")].iter().any(|call| calls(without_comment(line), call))
        });
    }
    assert_none("a test waits for a condition with a deadline, it does not sleep", &found);
}

#[test]
fn no_test_is_ignored() {
    let mut found = Vec::new();
    for source in sources().iter().filter(|file| file.is_rust()) {
        search(&mut found, source, source.numbered(), |line| line.contains(concat!("#[", "ignore")));
    }
    assert_none("a test that needs more than others belongs to the package `tests`", &found);
}

#[test]
fn what_is_to_be_done_has_an_issue() {
    let mut found = Vec::new();
    for source in sources().iter().filter(|file| file.is_rust() || file.has_extension("toml")) {
        search(&mut found, source, source.numbered(), |line| {
            [concat!("TO", "DO"), concat!("FIX", "ME")].iter().any(|word| has_word(line, word)) && !names_an_issue(line)
        });
    }
    assert_none("name the issue (#N)", &found);
}

fn names_an_issue(line: &str) -> bool {
    line.split('#').skip(1).any(|after| after.starts_with(|first: char| first.is_ascii_digit()))
}

#[test]
fn there_are_no_shell_scripts() {
    let is_shell = |source: &Source| {
        let first = source.text.lines().next().unwrap_or_default();
        let is_script = first.starts_with("#!") && first.ends_with("sh");
        is_script || source.has_extension("sh") || source.has_extension("bash")
    };
    let found: Vec<_> = sources()
        .into_iter()
        .filter(|source| is_shell(source) && !SHELL_SCRIPTS.contains(&source.path.as_str()))
        .map(|source| source.path)
        .collect();

    assert_none("write an xtask instead of a shell script", &found);
}

#[test]
fn no_machine_is_written_into_the_project() {
    let folders = [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/wo", "rk/")];
    let hosts = [
        concat!("crates", ".io"),
        concat!("static.rust-", "lang.org"),
        concat!("deb.", "debian.org"),
        concat!("security.", "debian.org"),
        concat!("pypi", ".org"),
        concat!("python", "hosted.org"),
        concat!("npm", "js.org"),
    ];
    let mut found = Vec::new();
    for source in &sources() {
        search(&mut found, source, source.numbered(), |line| {
            let is_rooted = |(start, _): (usize, &str)| {
                !line
                    .get(..start)
                    .is_some_and(|before| before.ends_with(|last: char| last.is_alphanumeric() || last == '.'))
            };
            folders.iter().any(|folder| line.match_indices(folder).any(is_rooted))
                || hosts.iter().any(|host| line.contains(host))
        });
    }
    assert_none("somebody's folder, or a registry's host, is named", &found);
}

#[test]
fn the_core_has_no_clock_and_no_std() {
    let words =
        ["Instant", "SystemTime", "println", "eprintln", "thread", "async", "await", "tokio", "rand", "HashMap"];
    let mut found = Vec::new();
    for source in sources().iter().filter(|file| file.is_rust() && file.path.starts_with("health-userspace/core/src/"))
    {
        search(&mut found, source, source.code(), |line| {
            let code = without_comment(line);
            code.contains("std::") || words.iter().any(|word| has_word(code, word))
        });
    }
    assert_none("the core is pure: time is an argument, and everything else comes in and goes out as values", &found);
}

#[test]
fn xtask_builds_before_the_kernel_half_can() {
    // On a bare machine `cargo xtask setup` must compile while the build script of `sluice` would still fail.
    let mut found = Vec::new();
    for source in sources().iter().filter(|file| ["xtask/Cargo.toml", "tests/Cargo.toml"].contains(&file.path.as_str()))
    {
        let dependencies = source.text.split("[dependencies]").nth(1).unwrap_or_default();
        let dependencies = dependencies.split("\n[").next().unwrap_or_default();
        search(&mut found, source, (1..).zip(dependencies.lines()), |line| line.starts_with("sluice"));
    }
    assert_none("xtask needs this package, so it cannot need `sluice` (a dev-dependency can)", &found);
}

#[test]
fn a_function_is_measured_from_its_name_to_its_brace() {
    let text = "fn short() {\n    one();\n}\n\nimpl X {\n    pub(crate) const fn long(\n        a: u8,\n    ) -> u8 {\n        a\n    }\n\n    fn declared();\n}\n";
    let source = Source { path: "x.rs".to_owned(), text: text.to_owned() };

    assert_eq!(functions(&source), [("x.rs::short".to_owned(), 3), ("x.rs::long".to_owned(), 5)]);
}

#[test]
fn a_call_is_told_from_a_word() {
    let table = [
        ("thread::nap(long);", true),
        ("nap(long).await;", true),
        ("kid_nap(long);", false),
        ("no nap here", false),
        ("nap_until(late)", false),
    ];
    for (line, want) in table {
        assert_eq!(calls(line, "nap"), want, "{line}");
    }
}

#[test]
fn a_ratchet_only_shrinks() {
    let lengths = [("a".to_owned(), 5), ("b".to_owned(), 12), ("c".to_owned(), 11)];

    assert_eq!(too_long(&lengths, 10, &[("b", 12), ("c", 11)]), Vec::<String>::new());
    assert_eq!(too_long(&lengths, 10, &[("a", 11), ("b", 13), ("c", 11), ("d", 12)]).len(), 3);
    assert_eq!(too_long(&lengths, 10, &[("b", 12)]), ["c: 11 lines, 10 allowed"]);
}

#[test]
fn tests_are_told_from_code() {
    let table = [
        ("tests/src/lib.rs", false),
        ("tests/tests/netns.rs", true),
        ("health-userspace/tests/cli.rs", true),
        ("health-userspace/core/src/window/tests.rs", true),
        ("health-userspace/src/main.rs", false),
    ];
    for (path, want) in table {
        let source = Source { path: path.to_owned(), text: "fn main() {}\n".to_owned() };
        assert_eq!(source.is_test(), want, "{path}");
    }
    let source = Source { path: "x.rs".to_owned(), text: "code\n#[cfg(test)]\nmod tests {\n}\n".to_owned() };
    assert_eq!((source.code_lines(), source.tests().count()), (1, 3));
}
