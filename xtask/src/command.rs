//! Children: found by name, told nothing that cargo told xtask, and quoted when they fail.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, bail};

/// A user's PATH often lacks these, though nginx, nft and ip live there.
const SBIN: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Lines of a failed child's output that an error quotes: enough for a compiler's or a resolver's last words.
const QUOTED_LINES_MAX: usize = 15;

/// Finds the program `name` in PATH and in the system folders that PATH may lack.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SBIN.iter().map(PathBuf::from))
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(name))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    // Asks the kernel, which knows of the user, of mount options and of dangling links.
    path.is_file() && nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok()
}

/// A command that inherits no setting of the build that runs xtask.
///
/// Cargo's and rustup's variables would make another compiler's cargo take this one's flags and folders, and
/// `LD_LIBRARY_PATH` (set by `cargo run`) would give it this one's libraries. What says how to reach a registry stays.
pub(crate) fn foreign(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_of_outer_build) {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

fn is_of_outer_build(name: &str) -> bool {
    let is_network = ["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_"]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    let is_build = ["CARGO", "RUSTC", "RUSTFLAGS", "RUSTDOC", "RUSTUP_TOOLCHAIN", "LD_LIBRARY_PATH"]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    is_build && !is_network
}

/// The cargo that runs xtask: by the variable that it sets, so that a rustup toolchain named on the command line
/// (`cargo +nightly xtask …`) serves for the whole run.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.stdin(Stdio::null());
    command
}

/// Runs `command` unseen and gives its standard output.
///
/// # Errors
///
/// When it can't be started, or ends with a failure; the error then quotes the last lines of what it said.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let line = describe(command);
    let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let said = format!("{stdout}{}", String::from_utf8_lossy(&output.stderr));
    bail!("`{line}` failed ({}):\n{}", status(output.status), tail(&said));
}

/// Runs `command` with its output shown.
///
/// # Errors
///
/// When it can't be started, or ends with a failure.
pub(crate) fn shown(command: &mut Command) -> anyhow::Result<()> {
    let line = describe(command);
    let ended = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !ended.success() {
        bail!("`{line}` failed ({})", status(ended));
    }
    Ok(())
}

/// Runs `command` unseen and gives all that it said, and how it ended.
///
/// # Errors
///
/// When it can't be started.
pub(crate) fn kept(command: &mut Command) -> anyhow::Result<(String, anyhow::Result<()>)> {
    let line = describe(command);
    let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    let ended = if output.status.success() {
        Ok(())
    } else {
        Err(anyhow::anyhow!("`{line}` failed ({})", status(output.status)))
    };
    Ok((said, ended))
}

fn status(status: ExitStatus) -> String {
    status.code().map_or_else(|| "ended by a signal".to_owned(), |code| format!("status {code}"))
}

fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let words: Vec<_> = std::iter::once(name).chain(command.get_args()).map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// The last lines of `said`, indented to stand under an error.
fn tail(said: &str) -> String {
    let lines: Vec<_> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.len().saturating_sub(QUOTED_LINES_MAX);
    let quoted: Vec<_> = lines.iter().skip(first).map(|line| format!("    {line}")).collect();
    quoted.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outer_build_is_told_from_the_way_to_the_registry() {
        for name in
            ["CARGO", "CARGO_PKG_NAME", "CARGO_ENCODED_RUSTFLAGS", "CARGO_TARGET_DIR", "RUSTFLAGS", "RUSTC_WRAPPER"]
        {
            assert!(is_of_outer_build(name), "{name}");
        }
        for name in ["CARGO_HOME", "CARGO_HTTP_PROXY", "CARGO_REGISTRIES_X_INDEX", "RUSTUP_HOME", "HOME", "PATH"] {
            assert!(!is_of_outer_build(name), "{name}");
        }
    }

    #[test]
    fn a_failure_quotes_what_the_child_said() {
        let error = output(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"])).unwrap_err();

        assert_eq!(error.to_string(), "`sh -c echo out; echo err >&2; exit 3` failed (status 3):\n    out\n    err");
    }

    #[test]
    fn a_missing_program_is_not_found() {
        assert_eq!(find("sluice-no-such-program"), None);
        assert!(find("sh").is_some());
    }
}
