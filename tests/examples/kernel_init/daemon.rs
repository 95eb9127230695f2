//! The real daemon: whether it starts on this kernel, and holds its hooks.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use lab::guest::GuestLine;
use lab::wait_for;
use serde_json::Value;

use crate::tell;

/// The machine is emulated, so everything takes its time.
const LIMIT: Duration = Duration::from_mins(1);

const FILE: &str = "/tmp/sluice.toml";
const LOG: &str = "/tmp/sluice.log";

/// Nothing listens at the addresses: the daemon is to start, not to judge.
const CONFIG: &str = r#"
[node]
name = "guest"
interfaces = ["orig0"]

[node.limits]
origins = 64
frontends = 64
half_open = 1024
flows = 1024
moved = 1024

[[service]]
name = "shop"
[[service.origin]]
name = "a"
address = "192.0.2.11:8080"
[[service.origin]]
name = "b"
address = "192.0.2.12:8080"
priority = 1
"#;

/// Starts it, asks it, ends it.
pub(crate) fn test() -> Result<()> {
    let (hooks, error) = match hooks() {
        Ok((held, missing)) if missing.is_empty() && !held.is_empty() => (held, None),
        Ok((held, missing)) => (held, Some(format!("hooks that it misses: {missing:?}\n{}", log()))),
        Err(error) => (Vec::new(), Some(format!("{error:#}\n{}", log()))),
    };
    tell(&GuestLine::Daemon { hooks, error })
}

fn log() -> String {
    fs::read_to_string(LOG).unwrap_or_default()
}

/// The hooks that it holds, and those that it doesn't.
fn hooks() -> Result<(Vec<String>, Vec<String>)> {
    fs::write(FILE, CONFIG)?;
    let log = fs::File::create(LOG)?;
    let mut daemon = Command::new("/sluice")
        .args(["-c", FILE, "run"])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start the daemon")?;
    let mut last = None;
    // The socket answers before the last hook is held; hooks that a kernel lacks are never held, so that the wait may be in vain.
    let waited = wait_for("every hook is held", LIMIT, || match look(&mut daemon) {
        Ok(Some((held, missing))) => {
            let all = !held.is_empty() && missing.is_empty();
            last = Some((held, missing));
            all.then_some(Ok(()))
        }
        Ok(None) => None,
        Err(error) => Some(Err(error)),
    });
    let hooks = match (waited, last) {
        (Ok(Err(ended)), _) => return Err(ended),
        (_, Some(hooks)) => hooks,
        (Err(late), None) => {
            daemon.kill()?;
            return Err(late.context("the daemon does not answer"));
        }
        (Ok(Ok(())), None) => bail!("hooks are held that nobody saw"),
    };
    let detached = Command::new("/sluice").args(["-c", FILE, "detach", "--force"]).output()?;
    ensure!(detached.status.success(), "detach: {}", String::from_utf8_lossy(&detached.stderr));
    // `detach` ends the daemon.
    daemon.wait()?;
    Ok(hooks)
}

/// The hooks, if the daemon answers yet.
fn look(daemon: &mut Child) -> Result<Option<(Vec<String>, Vec<String>)>> {
    if let Some(ended) = daemon.try_wait()? {
        bail!("the daemon ended ({ended})");
    }
    let asked = Command::new("/sluice").args(["-c", FILE, "status", "--json"]).output()?;
    if asked.status.success() { read(&asked.stdout).map(Some) } else { Ok(None) }
}

/// What `status --json` says of hooks: those that are held, and the others.
fn read(status: &[u8]) -> Result<(Vec<String>, Vec<String>)> {
    let status: Value = serde_json::from_slice(status)?;
    let hooks = status.get("hooks").and_then(Value::as_array).context("the status has no hooks")?;
    let name = |hook: &Value| format!("{} {}", text(hook, "interface"), text(hook, "hook"));
    let (held, missing): (Vec<_>, Vec<_>) =
        hooks.iter().partition(|hook| hook.get("attached").and_then(Value::as_bool) == Some(true));
    Ok((held.into_iter().map(name).collect(), missing.into_iter().map(name).collect()))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or("?")
}
