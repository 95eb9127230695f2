//! How a command ends.

use super::privilege::NEEDED_TEXT;
use std::{
    fmt,
    io::{self, ErrorKind},
    process::ExitCode,
};

/// Exit codes of design.md §8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// Failed.
    Failed = 1,
    /// The command line was wrong; clap's own code for it.
    Usage = 2,
    /// A rule forbids it.
    Refused = 3,
    /// No daemon answers; what was printed comes from the maps.
    Unreachable = 4,
    /// `EX_NOPERM` of sysexits.h.
    NoPermission = 77,
    /// `EX_CONFIG` of sysexits.h.
    BadConfig = 78,
    /// `sluice direct`: the command was found and can't be run, as env(1) does.
    CannotRun = 126,
    /// `sluice direct`: there is no such command.
    NotFound = 127,
}

/// Why a command didn't do what it was asked: a code, and a sentence for standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// For people. Empty: nothing needs to be said.
    pub message: String,
}

/// Where the caller of a command gets what it lacks.
fn mend() -> String {
    format!("run it as root, or with {NEEDED_TEXT}")
}

impl Failure {
    /// A failure with its sentence.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    /// A failure from any error: its own words and those of its causes.
    ///
    /// Missing permission anywhere among the causes makes it [`Exit::NoPermission`], with the mend. A reader of our
    /// output that has gone, such as `head`, is no failure.
    pub fn of(error: impl Into<anyhow::Error>) -> Self {
        let error = error.into();
        let is = |kind: ErrorKind| {
            error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).any(|cause| cause.kind() == kind)
        };
        if is(ErrorKind::BrokenPipe) {
            return Self::new(Exit::Done, "");
        }
        if is(ErrorKind::PermissionDenied) {
            return Self::new(Exit::NoPermission, format!("{error:#}; {}", mend()));
        }
        Self::new(Exit::Failed, format!("{error:#}"))
    }

    /// This failure of the maps, which were read because the daemon gave no answer.
    #[must_use]
    pub fn after(self, daemon: &crate::control::ClientError) -> Self {
        let exit = if self.exit == Exit::NoPermission { self.exit } else { Exit::Unreachable };
        Self::new(exit, format!("{daemon}, and its maps can't be read: {}", self.message))
    }

    /// The caller lacks capabilities.
    #[must_use]
    pub fn lacks(capabilities: &[&str]) -> Self {
        Self::new(Exit::NoPermission, format!("not permitted, for want of {}; {}", capabilities.join(", "), mend()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::of(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        // serde_json hides the kind of an error of the writer below it.
        Self::of(io::Error::from(error))
    }
}

impl From<crate::control::ClientError> for Failure {
    fn from(error: crate::control::ClientError) -> Self {
        use crate::control::ClientError;
        let exit = match &error {
            ClientError::NotReachable { .. } | ClientError::Silent { .. } | ClientError::HungUp { .. } => {
                Exit::Unreachable
            }
            ClientError::NotAllowed { .. } => Exit::NoPermission,
            ClientError::Foreign { .. } | ClientError::Complaint { .. } => Exit::Failed,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn causes_decide_the_code() {
        let because = |kind: ErrorKind| {
            let error = Err::<(), _>(io::Error::from(kind)).context("cannot open the pins");
            Failure::of(error.expect_err("it is one"))
        };
        assert_eq!(because(ErrorKind::NotFound).exit, Exit::Failed);
        assert_eq!(because(ErrorKind::BrokenPipe), Failure::new(Exit::Done, ""));
        let denied = because(ErrorKind::PermissionDenied);
        assert_eq!(denied.exit, Exit::NoPermission);
        assert_eq!(
            denied.message,
            "cannot open the pins: permission denied; run it as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN \
             (for node.netns CAP_SYS_ADMIN too)"
        );
    }

    #[test]
    fn codes_are_those_of_the_contract() {
        let all = [Exit::Done, Exit::Failed, Exit::Usage, Exit::Refused, Exit::Unreachable, Exit::NoPermission];
        assert_eq!(all.map(|exit| exit as u8), [0, 1, 2, 3, 4, 77]);
        assert_eq!(Exit::BadConfig as u8, 78);
    }
}
