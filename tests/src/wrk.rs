//! `wrk`, the client that users know: a fixed number of connections that are kept open.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::ns::Namespace;
use crate::process::{Process, spawn};

/// A running wrk.
#[derive(Debug)]
pub struct Wrk {
    process: Process,
    output: tempfile::NamedTempFile,
    seconds: u32,
}

/// What wrk counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrkReport {
    /// Requests answered.
    pub requests: u64,
    /// Connect, read, write and timeout errors, and answers that are neither 2xx nor 3xx.
    pub errors: u64,
}

impl Wrk {
    /// Starts one thread with `connections` connections for `seconds`.
    ///
    /// # Errors
    ///
    /// When wrk is not there.
    pub fn start(ns: &Namespace, target: SocketAddr, connections: u32, seconds: u32) -> Result<Self> {
        let output = tempfile::NamedTempFile::new()?;
        let mut command = Command::new("wrk");
        command
            .args(["-t1", "--timeout", "5s"])
            .arg(format!("-c{connections}"))
            .arg(format!("-d{seconds}s"))
            .arg(format!("http://{target}/"))
            .stdin(Stdio::null())
            .stdout(output.reopen()?)
            .stderr(output.reopen()?);
        Ok(Self { process: spawn(ns, command)?, output, seconds })
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// When it does not end 10 s after its time, or prints what it never printed.
    pub fn finish(mut self) -> Result<WrkReport> {
        self.process.wait(Duration::from_secs(u64::from(self.seconds) + 10))?;
        let text = std::fs::read_to_string(self.output.path())?;
        parse(&text).with_context(|| format!("cannot read wrk's report: {text}"))
    }
}

fn parse(text: &str) -> Option<WrkReport> {
    let mut report = WrkReport::default();
    let mut complete = false;
    for line in text.lines().map(str::trim) {
        if let Some((count, _)) = line.split_once(" requests in ") {
            report.requests = count.parse().ok()?;
            complete = true;
        } else if let Some(kinds) = line.strip_prefix("Socket errors:") {
            for kind in kinds.split(',') {
                report.errors += kind.rsplit(' ').next()?.parse::<u64>().ok()?;
            }
        } else if let Some(count) = line.strip_prefix("Non-2xx or 3xx responses:") {
            report.errors += count.trim().parse::<u64>().ok()?;
        }
    }
    complete.then_some(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_error_counts() {
        let text = "  100 requests in 1.00s, 1MB read\n  Socket errors: connect 1, read 2, write 0, timeout 3\n  \
                    Non-2xx or 3xx responses: 4\nRequests/sec: 100\n";
        assert_eq!(parse(text), Some(WrkReport { requests: 100, errors: 10 }));
        assert_eq!(parse("unable to connect"), None);
    }
}
