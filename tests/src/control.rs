//! The daemon's socket. The lab asks it hundreds of times a minute, and a process of `sluice` for each would be a third of
//! all that the two cores have to do.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// For each line of an answer: what `sluice` itself waits.
const LINE_LIMIT: Duration = Duration::from_secs(5);
/// For each line when events are followed: the daemon says something every 30 s.
const FOLLOW_LIMIT: Duration = Duration::from_secs(65);
/// `health-userspace/src/control/protocol.rs`.
const VERSION: u16 = 1;

/// The `status` that `sluice status --json` prints.
///
/// # Errors
///
/// Nobody listens, or the answer is none.
pub(crate) fn status(socket: &Path) -> io::Result<Value> {
    let mut answer = Value::Null;
    ask(socket, LINE_LIMIT, &json!({ "v": VERSION, "ask": "status" }), |line| {
        answer = line;
        false
    })?;
    match answer.get_mut("status") {
        Some(status) => Ok(status.take()),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, answer.to_string())),
    }
}

/// The events that `sluice events --json` prints, one value each.
///
/// # Errors
///
/// As [`status`].
pub(crate) fn events(socket: &Path) -> io::Result<Vec<Value>> {
    let mut events = Vec::new();
    ask(socket, LINE_LIMIT, &json!({ "v": VERSION, "ask": "events" }), |mut line| match line.get_mut("event") {
        Some(event) => {
            events.push(event.take());
            true
        }
        // All that are kept have come.
        None => false,
    })?;
    Ok(events)
}

/// The same, and then what comes, until `more` says no.
///
/// # Errors
///
/// The daemon ends, or sent so much that it left something out.
pub(crate) fn follow(socket: &Path, mut more: impl FnMut(Value) -> bool) -> io::Result<()> {
    let mut missed = false;
    ask(socket, FOLLOW_LIMIT, &json!({ "v": VERSION, "ask": "events", "follow": true }), |mut line| {
        missed = line["answer"] == "missed";
        !missed && line.get_mut("event").is_none_or(|event| more(event.take()))
    })?;
    if missed { Err(io::ErrorKind::InvalidData.into()) } else { Ok(()) }
}

/// Asks, and hands over one answer after the other until `more` says no.
fn ask(socket: &Path, limit: Duration, question: &Value, mut more: impl FnMut(Value) -> bool) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    writeln!(stream, "{question}")?;
    let mut answers = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        if answers.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !more(serde_json::from_str(&line)?) {
            return Ok(());
        }
    }
}
