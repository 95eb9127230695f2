//! What a guest kernel of `cargo xtask test-kernels` tells, as lines of JSON on its second serial port. Between them
//! stands what the packet tables print.

use serde::{Deserialize, Serialize};

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "guest", rename_all = "snake_case")]
pub enum GuestLine {
    /// The first one: the kernel runs programs.
    Booted {
        /// `uname -r`.
        release: String,
    },
    /// Something that some kernels have is not there.
    Lacks {
        /// Its name, and since when Linux has it.
        what: String,
        /// What that means to Sluice.
        so: String,
    },
    /// The verifier has judged a program.
    Loaded {
        /// Its name in the object.
        program: String,
        /// How many instructions it walked through (Linux 5.16).
        walked: Option<u32>,
        /// Why not, with the verifier's words.
        error: Option<String>,
    },
    /// A program was put on a hook, and taken away again.
    Attached {
        /// Its name in the object.
        program: String,
        /// Such as `tc_ingress by TCX`.
        hook: String,
        /// Why not.
        error: Option<String>,
    },
    /// The daemon was started and asked for its hooks.
    Daemon {
        /// What it holds, as `target hook`.
        hooks: Vec<String>,
        /// Why it did not start, or what it misses.
        error: Option<String>,
    },
    /// The output of one program of packet tables follows.
    Tables {
        /// Its name.
        name: String,
    },
    /// Those tables have ended.
    Ended {
        /// With this code; `None` when a signal ended them.
        code: Option<i32>,
    },
    /// The last one.
    Done,
    /// The init could not go on.
    Failed {
        /// Why.
        error: String,
    },
}
