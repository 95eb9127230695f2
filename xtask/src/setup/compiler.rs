//! The kernel half's compiler: one that can build `core` for BPF, so a nightly, or a stable one told to act as one,
//! with the library's source in its sysroot.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, bail, ensure};

use super::{announce, apt};
use crate::command;

/// Debian's newer compiler (packaged for its web browsers) and the library's source for it.
const DEBIAN_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];

/// Where a distribution's packages put the compiler, whatever stands before it in PATH.
const SYSTEM_BIN: &str = "/usr/bin";

/// As `rust-version` of the workspace: aya-ebpf and the kernel half use what this release brought.
const RELEASE_MIN: (u32, u32) = (1, 95);

/// The LLVM versions that bpf-linker 0.13.0 has a feature for.
const LLVM_RANGE: std::ops::RangeInclusive<u32> = 21..=23;

/// A compiler that can build the kernel half.
#[derive(Debug)]
pub(super) struct Compiler {
    pub(super) cargo: PathBuf,
    pub(super) rustc: PathBuf,
    /// Whether it needs `RUSTC_BOOTSTRAP=1`.
    pub(super) bootstrap: bool,
    pub(super) version: Version,
}

/// What `rustc -vV` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// Its first line.
    pub(super) line: String,
    /// Major and minor number.
    pub(super) release: (u32, u32),
    pub(super) is_nightly: bool,
    /// LLVM's major version.
    pub(super) llvm: u32,
}

impl FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(said: &str) -> anyhow::Result<Self> {
        let line = said.lines().next().unwrap_or_default().to_owned();
        let field = |name: &str| {
            let value = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            value.with_context(|| format!("`rustc -vV` names no {name}"))
        };
        let release = field("release")?;
        let llvm = field("LLVM version")?;
        let number = |text: &str, nth: usize| {
            let part = text.split(['.', '-']).nth(nth).and_then(|part| part.parse::<u32>().ok());
            part.with_context(|| format!("`rustc -vV` has a version that is no number: {text}"))
        };
        Ok(Self {
            line,
            release: (number(release, 0)?, number(release, 1)?),
            is_nightly: release.ends_with("-nightly") || release.ends_with("-dev"),
            llvm: number(llvm, 0)?,
        })
    }
}

/// Finds a compiler for the kernel half, or installs one.
///
/// What is there goes before what must be fetched, and rustup before the distribution. A way that fails is not the end:
/// its reason is kept for the case that all do.
pub(super) fn find_or_install() -> anyhow::Result<Compiler> {
    type Way = fn() -> anyhow::Result<Compiler>;
    let ways: [(&str, Way); 4] = [
        ("rustup's nightly", rustup_nightly),
        ("the distribution's compiler", system),
        ("rustup's nightly, with its source installed", rustup_install),
        ("Debian's packages", debian_install),
    ];
    let mut reasons = Vec::new();
    for (name, way) in ways {
        match way() {
            Ok(compiler) => return Ok(compiler),
            Err(reason) => reasons.push(format!("- {name}: {reason:#}")),
        }
    }
    bail!(
        "no compiler can build `core` for BPF here:\n{}\nmend one of them: `rustup toolchain install nightly --profile \
         minimal --component rust-src` as this user, or `apt-get install {}` as root on Debian 12 with its security \
         updates",
        reasons.join("\n"),
        DEBIAN_PACKAGES.join(" ")
    );
}

/// Checks that `rustc` can build the kernel half.
///
/// # Errors
///
/// When it doesn't run, is too old, has an LLVM that bpf-linker doesn't know, or lacks the source of `core`.
pub(super) fn probe(cargo: &Path, rustc: &Path) -> anyhow::Result<Compiler> {
    ensure!(rustc.is_file(), "there is no {}", rustc.display());
    ensure!(cargo.is_file(), "there is no {}", cargo.display());
    let version: Version = command::output(command::foreign(rustc).arg("-vV"))?.parse()?;
    let (major, minor) = RELEASE_MIN;
    ensure!(version.release >= RELEASE_MIN, "{} is older than {major}.{minor}", version.line);
    ensure!(
        LLVM_RANGE.contains(&version.llvm),
        "{} uses LLVM {}, and bpf-linker knows LLVM {} to {}",
        version.line,
        version.llvm,
        LLVM_RANGE.start(),
        LLVM_RANGE.end()
    );
    let sysroot = command::output(command::foreign(rustc).args(["--print", "sysroot"]))?;
    let source = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/src/lib.rs");
    ensure!(source.is_file(), "{} comes without the library's source", version.line);
    let bootstrap = !version.is_nightly;
    Ok(Compiler { cargo: cargo.to_owned(), rustc: rustc.to_owned(), bootstrap, version })
}

fn rustup_nightly() -> anyhow::Result<Compiler> {
    let rustup = command::find("rustup").context("there is no rustup")?;
    // The toolchain's own programs rather than rustup's proxies: they need no variable to be the right ones.
    let which = |program: &str| -> anyhow::Result<PathBuf> {
        let path = command::output(command::foreign(&rustup).args(["which", "--toolchain", "nightly", program]))
            .context("rustup has no nightly toolchain")?;
        Ok(path.trim().into())
    };
    probe(&which("cargo")?, &which("rustc")?)
}

fn rustup_install() -> anyhow::Result<Compiler> {
    let rustup = command::find("rustup").context("there is no rustup")?;
    let known = command::output(command::foreign(&rustup).args(["toolchain", "list"]))?;
    let mut install = command::foreign(&rustup);
    if known.lines().any(|toolchain| toolchain.starts_with("nightly-")) {
        // Only the component: updating somebody's nightly is not ours to do.
        announce("installing the component rust-src for rustup's nightly");
        install.args(["component", "add", "rust-src", "--toolchain", "nightly"]);
    } else {
        announce("installing rustup's nightly toolchain with the component rust-src");
        install.args(["toolchain", "install", "nightly", "--profile", "minimal", "--component", "rust-src"]);
    }
    let installed = command::output(&mut install).and_then(|_| rustup_nightly());
    if installed.is_err() {
        announce("rustup could not, so Debian's packages are tried");
    }
    installed
}

fn system() -> anyhow::Result<Compiler> {
    probe(&Path::new(SYSTEM_BIN).join("cargo"), &Path::new(SYSTEM_BIN).join("rustc"))
}

fn debian_install() -> anyhow::Result<Compiler> {
    apt::install(&DEBIAN_PACKAGES)?;
    system()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let debian = "rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)\nbinary: rustc\nhost: \
                      x86_64-unknown-linux-gnu\nrelease: 1.96.0\nLLVM version: 22.1.8\n";
        let nightly = "rustc 1.97.0-nightly (e50aa6fba 2026-05-19)\nrelease: 1.97.0-nightly\nLLVM version: 22.1.4\n";
        let table = [("debian", debian, (1, 96), false, 22), ("nightly", nightly, (1, 97), true, 22)];
        for (name, said, release, is_nightly, llvm) in table {
            let version: Version = said.parse().expect(name);
            assert_eq!((version.release, version.is_nightly, version.llvm), (release, is_nightly, llvm), "{name}");
            assert_eq!(Some(version.line.as_str()), said.lines().next(), "{name}");
        }
    }

    #[test]
    fn a_compiler_without_llvm_is_refused() {
        let error = "rustc 1.96.0\nrelease: 1.96.0\n".parse::<Version>().unwrap_err();

        assert_eq!(error.to_string(), "`rustc -vV` names no LLVM version");
    }

    #[test]
    fn a_version_that_is_no_number_is_refused() {
        let error = "rustc ?\nrelease: next\nLLVM version: 22.1.8\n".parse::<Version>().unwrap_err();

        assert_eq!(error.to_string(), "`rustc -vV` has a version that is no number: next");
    }
}
