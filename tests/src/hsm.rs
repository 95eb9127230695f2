//! HSMs: SoftHSM's tokens, the fault module in front of them, and a network between them and who asks.
//!
//! Every token is made anew by SoftHSM's own tool, in the directory of one test. A process that is killed while it logs
//! in destroys a SoftHSM token, so none is ever shared.

mod fault;
mod network;
mod token;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

pub use fault::{Call, FaultModule};
pub use network::{HsmClient, NetworkHsm};
pub use token::{KeyKind, PIN, SoftHsm};

use crate::ns::Namespace;
use crate::process::{Finished, run_command};

/// Where Debian and the other distributions have SoftHSM.
const SOFTHSM: [&str; 4] = [
    "/usr/lib/softhsm/libsofthsm2.so",
    "/usr/lib64/pkcs11/libsofthsm2.so",
    "/usr/lib/pkcs11/libsofthsm2.so",
    "/usr/local/lib/softhsm/libsofthsm2.so",
];

/// A PKCS#11 module as a program reaches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The library to load.
    pub library: PathBuf,
    /// What the library reads from the environment.
    pub environment: Vec<(&'static str, String)>,
}

impl Module {
    /// Runs OpenSC's `pkcs11-tool` on this module: a client that has nothing in common with Sluice's.
    ///
    /// # Errors
    ///
    /// When it can't be started or takes longer than `limit`; its exit code is in the result.
    pub fn tool(&self, ns: &Namespace, limit: Duration, arguments: &[&str]) -> Result<Finished> {
        let mut command = Command::new("pkcs11-tool");
        command.arg("--module").arg(&self.library).args(arguments).envs(self.environment.iter().cloned());
        run_command(ns, command, "", limit)
    }

    /// The environment as a TOML table.
    #[must_use]
    pub fn environment_toml(&self) -> String {
        let pairs: Vec<String> = self.environment.iter().map(|(name, value)| format!("{name} = {value:?}")).collect();
        format!("{{ {} }}", pairs.join(", "))
    }
}

/// SoftHSM's library.
///
/// # Errors
///
/// When it isn't installed.
pub fn softhsm_library() -> Result<&'static Path> {
    let found = SOFTHSM.iter().map(Path::new).find(|path| path.exists());
    found.context("SoftHSM's library isn't here: run `cargo xtask setup`")
}
