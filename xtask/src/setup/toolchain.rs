//! The toolchain file: what `setup` found, for `health-userspace/build.rs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::{compiler, linker};
use crate::command;

/// Relative to the workspace, wherever cargo's target directory is: build.rs must find it with nothing to go by.
const FILE: &str = "target/ebpf-toolchain.toml";

/// What builds the kernel half.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Toolchain {
    /// Cargo of the same release as `rustc`.
    pub(crate) cargo: PathBuf,
    /// The compiler, with the source of `core` in its sysroot.
    pub(crate) rustc: PathBuf,
    /// Whether the compiler is a stable one, which takes `-Z` options only under `RUSTC_BOOTSTRAP=1`.
    pub(crate) bootstrap: bool,
    /// First line of `rustc -vV`: tells that the compiler was replaced since.
    pub(crate) version: String,
    /// The folder that holds `bpf-linker`, to be put before PATH.
    pub(crate) linker_dir: PathBuf,
}

impl Toolchain {
    /// What the last set-up of this clone found. `None` if there was none, or if its file is of another version.
    pub(crate) fn read(root: &Path) -> Option<Self> {
        toml::from_str(&fs::read_to_string(root.join(FILE)).ok()?).ok()
    }

    /// Leaves `self` for build.rs. A file with the same content keeps its time, so that nothing is rebuilt.
    pub(super) fn write(&self, root: &Path) -> anyhow::Result<()> {
        if Self::read(root).as_ref() == Some(self) {
            return Ok(());
        }
        let path = root.join(FILE);
        let cannot = || format!("cannot write {} (does another user own the folder?)", path.display());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(cannot)?;
        }
        let text =
            format!("# Written by `cargo xtask setup`, read by health-userspace/build.rs.\n{}", toml::to_string(self)?);
        fs::write(&path, text).with_context(cannot)
    }

    /// Whether all of it is still there, the same, and runs.
    pub(super) fn is_current(&self) -> bool {
        self.cargo.is_file()
            && compiler::probe(&self.cargo, &self.rustc).is_ok_and(|now| now.version.line == self.version)
            && linker::runs(&self.linker_dir)
    }

    /// The cargo that can build `core` from source (`-Z build-std`).
    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = command::foreign(&self.cargo);
        cargo.env("RUSTC", &self.rustc);
        if self.bootstrap {
            cargo.env("RUSTC_BOOTSTRAP", "1");
        }
        cargo
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Toolchain {
        Toolchain {
            cargo: "/opt/a folder/cargo".into(),
            rustc: "/opt/\"quoted\"/rustc".into(),
            bootstrap: true,
            version: "rustc 1.96.0 (ac68faa20 2026-05-25)".to_owned(),
            linker_dir: "/opt/linker".into(),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let root = tempfile::tempdir().expect("a temporary folder");

        example().write(root.path()).expect("the folder is ours");

        assert_eq!(Toolchain::read(root.path()), Some(example()));
    }

    #[test]
    fn the_same_again_leaves_the_file_alone() {
        let root = tempfile::tempdir().expect("a temporary folder");
        example().write(root.path()).expect("the folder is ours");
        let written = || fs::metadata(root.path().join(FILE)).and_then(|file| file.modified()).expect("it was written");
        let first = written();

        example().write(root.path()).expect("the folder is ours");

        assert_eq!(written(), first);
    }

    #[test]
    fn a_file_of_another_version_is_no_toolchain() {
        let root = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(root.path().join("target")).expect("the folder is ours");
        fs::write(root.path().join(FILE), "cargo = '/usr/bin/cargo'\n").expect("the folder is ours");

        assert_eq!(Toolchain::read(root.path()), None);
    }

    #[test]
    fn a_compiler_that_is_gone_is_not_current() {
        assert!(!example().is_current());
    }
}
