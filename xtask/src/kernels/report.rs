//! What a guest told, read from its second serial port: the init's lines of JSON, and libtest's output between them.

use lab::guest::GuestLine;
use serde::Serialize;

/// Lines that are kept of what a failed test said.
const SAID_LINES_MAX: usize = 12;

/// What became of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Report {
    /// `uname -r`; `None` when it did not come as far as its init.
    pub(super) release: Option<String>,
    pub(super) programs: Vec<Program>,
    /// Hooks that the daemon held.
    pub(super) daemon: Vec<String>,
    /// One for each program of tables.
    pub(super) tables: Vec<Tables>,
    /// What some kernels have and this one doesn't, and what that means.
    pub(super) lacks: Vec<String>,
    /// What went wrong beside programs and tables.
    pub(super) errors: Vec<String>,
    /// Whether the guest came to its end.
    pub(super) done: bool,
}

/// A program of the kernel half.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) loaded: bool,
    /// Instructions that the verifier walked through, of a million that it would.
    pub(super) walked: Option<u32>,
    /// Hooks that it went onto.
    pub(super) attached: Vec<String>,
    /// Why it did not, with the verifier's words.
    pub(super) errors: Vec<String>,
}

/// A program of packet tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tables {
    /// Such as `prog`.
    pub(super) name: String,
    pub(super) passed: usize,
    pub(super) failed: Vec<Failed>,
    /// The one at which the guest ended.
    pub(super) unfinished: Option<String>,
    /// Whether all have run.
    pub(super) complete: bool,
}

/// A table that did not hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Failed {
    pub(super) name: String,
    pub(super) said: String,
}

impl Report {
    /// Reads a port.
    pub(super) fn parse(port: &str) -> Self {
        let mut report = Self::default();
        // The failed table whose words are being read.
        let mut at = None;
        for line in port.lines().map(|line| line.trim_end_matches('\r')) {
            match (serde_json::from_str(line), report.tables.last_mut()) {
                (Ok(line), _) => report.take(line),
                (Err(_), Some(tables)) => tables.read(line, &mut at),
                (Err(_), None) => {}
            }
        }
        report
    }

    fn take(&mut self, line: GuestLine) {
        match line {
            GuestLine::Booted { release } => self.release = Some(release),
            GuestLine::Lacks { what, so } => self.lacks.push(format!("{what}: {so}")),
            GuestLine::Loaded { program, walked, error } => self.programs.push(Program {
                name: program,
                loaded: error.is_none(),
                walked,
                attached: Vec::new(),
                errors: error.into_iter().collect(),
            }),
            GuestLine::Attached { program, hook, error } => {
                if let Some(known) = self.programs.iter_mut().find(|known| known.name == program) {
                    match error {
                        None => known.attached.push(hook),
                        Some(error) => known.errors.push(format!("{hook}: {error}")),
                    }
                }
            }
            GuestLine::Daemon { hooks, error } => {
                self.daemon = hooks;
                self.errors.extend(error.map(|error| format!("the daemon: {error}")));
            }
            GuestLine::Tables { name } => self.tables.push(Tables { name, ..Tables::default() }),
            GuestLine::Ended { code } => {
                let Some(tables) = self.tables.last_mut() else { return };
                tables.complete = true;
                // Failed tables make it 101; anything else is no verdict about packets.
                if !matches!(code, Some(0 | 101)) {
                    self.errors.push(format!("the packet tables `{}` ended with {code:?}", tables.name));
                }
            }
            GuestLine::Done => self.done = true,
            GuestLine::Failed { error } => self.errors.push(error),
        }
    }

    /// Whether everything was there and right.
    pub(super) fn holds(&self) -> bool {
        let Self { release, programs, daemon, tables, lacks: _, errors, done } = self;
        let program_holds =
            |program: &Program| program.loaded && program.errors.is_empty() && !program.attached.is_empty();
        release.is_some()
            && !programs.is_empty()
            && programs.iter().all(program_holds)
            && !daemon.is_empty()
            && errors.is_empty()
            && !tables.is_empty()
            && tables.iter().all(Tables::hold)
            && *done
    }
}

impl Tables {
    /// Reads libtest's words: `test NAME ... ok` while it runs, `---- NAME stdout ----` and what it said at the end.
    fn read(&mut self, line: &str, at: &mut Option<usize>) {
        if let Some(result) = line.strip_prefix("test ")
            && let Some((name, verdict)) = result.split_once(" ...")
        {
            self.take_verdict(name, verdict.trim());
        } else if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            *at = self.failed.iter().position(|failed| failed.name == name);
        } else if line == "failures:" {
            *at = None;
        } else if let Some(failed) = at.and_then(|at| self.failed.get_mut(at))
            && failed.said.lines().count() < SAID_LINES_MAX
            && !line.trim().is_empty()
        {
            if !failed.said.is_empty() {
                failed.said.push('\n');
            }
            failed.said.push_str(line);
        }
    }

    fn take_verdict(&mut self, name: &str, verdict: &str) {
        let name = name.to_owned();
        match verdict {
            "ok" => self.passed += 1,
            "" => self.unfinished = Some(name),
            _ => self.failed.push(Failed { name, said: String::new() }),
        }
    }

    fn hold(&self) -> bool {
        let Self { name: _, passed, failed, unfinished, complete } = self;
        *complete && *passed > 0 && failed.is_empty() && unfinished.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"guest":"booted","release":"6.1.0-50-cloud-amd64"}
{"guest":"lacks","what":"TCX (Linux 6.6)","so":"clsact"}
{"guest":"loaded","program":"egress","walked":284120,"error":null}
{"guest":"attached","program":"egress","hook":"tc_egress by clsact","error":null}
{"guest":"daemon","hooks":["orig0 tc_ingress"],"error":null}
{"guest":"tables","name":"prog"}

running 2 tests
test choice::weights ... ok
test trip::five_in_a_row ... ok

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s

{"guest":"ended","code":0}
{"guest":"tables","name":"prog_xdp"}
test choice::weights ... ok
{"guest":"ended","code":0}
{"guest":"done"}
"#;

    #[test]
    fn a_good_kernel_is_read() {
        let report = Report::parse(GOOD);

        assert_eq!(report.release.as_deref(), Some("6.1.0-50-cloud-amd64"));
        assert_eq!(report.programs.len(), 1);
        assert_eq!(report.programs[0].attached, ["tc_egress by clsact"]);
        assert_eq!(report.programs[0].walked, Some(284_120));
        assert_eq!(report.lacks, ["TCX (Linux 6.6): clsact"]);
        let tables: Vec<_> = report.tables.iter().map(|tables| (tables.name.as_str(), tables.passed)).collect();
        assert_eq!(tables, [("prog", 2), ("prog_xdp", 1)]);
        assert!(report.holds(), "{report:?}");
    }

    #[test]
    fn anything_that_is_missing_is_seen() {
        // Each line that says something good, changed into what it would be if it were not so.
        let table = [
            ("no boot", r#"{"guest":"booted","release":"6.1.0-50-cloud-amd64"}"#, ""),
            (
                "a refused program",
                r#"{"guest":"loaded","program":"egress","walked":284120,"error":null}"#,
                r#"{"guest":"loaded","program":"egress","walked":null,"error":"R1 !read_ok"}"#,
            ),
            (
                "an unattached program",
                r#"{"guest":"attached","program":"egress","hook":"tc_egress by clsact","error":null}"#,
                r#"{"guest":"attached","program":"egress","hook":"tc_egress by clsact","error":"EINVAL"}"#,
            ),
            (
                "a program without a hook",
                r#"{"guest":"attached","program":"egress","hook":"tc_egress by clsact","error":null}"#,
                "",
            ),
            ("no daemon", r#"["orig0 tc_ingress"],"error":null"#, r#"[],"error":"no cgroup""#),
            ("a failed table", "five_in_a_row ... ok", "five_in_a_row ... FAILED"),
            ("an unfinished table", "five_in_a_row ... ok", "five_in_a_row ... "),
            ("no tables in it", "test ", "tset "),
            ("no tables", r#"{"guest":"tables""#, r#"{"guest":"sables""#),
            ("no end", r#"{"guest":"done"}"#, ""),
            ("no end of the tables", r#"{"guest":"ended","code":0}"#, ""),
            ("tables that were killed", r#""code":0"#, r#""code":null"#),
            ("an init that failed", r#"{"guest":"ended","code":0}"#, r#"{"guest":"failed","error":"no ip"}"#),
        ];
        for (name, good, bad) in table {
            let port = GOOD.replace(good, bad);
            assert_ne!(port, GOOD, "{name}");
            assert!(!Report::parse(&port).holds(), "{name}");
        }
    }

    #[test]
    fn a_failed_table_says_why() {
        let port = "{\"guest\":\"tables\",\"name\":\"prog\"}\r\ntest a ... FAILED\r\ntest b ... ok\r\n\r\nfailures:\r\n\r\n---- a stdout ----\r\n\r\nthread 'a' panicked \
                    at x.rs:1:1:\r\nleft: 1\r\n\r\n\r\nfailures:\r\n    a\r\n\r\ntest result: FAILED. 1 passed; 1 failed\r\n";
        let tables = Report::parse(port).tables.remove(0);

        assert_eq!(tables.passed, 1);
        let said = "thread 'a' panicked at x.rs:1:1:\nleft: 1".to_owned();
        assert_eq!(tables.failed, [Failed { name: "a".to_owned(), said }]);
    }

    #[test]
    fn a_guest_that_hangs_says_where() {
        let report = Report::parse("{\"guest\":\"tables\",\"name\":\"prog\"}\ntest a ... ok\ntest b::c ... ");

        assert_eq!(report.tables[0].unfinished.as_deref(), Some("b::c"));
    }
}
