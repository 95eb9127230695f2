//! Builds the kernel half and lays it where the datapath includes it: `OUT_DIR/sluice.bpf.o`.
//!
//! The kernel half is a workspace of its own, for another target and another compiler, which `cargo xtask setup` found
//! and named in the toolchain file. Cargo runs this again only when a part of the kernel half changed.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Relative to this package.
const TOOLCHAIN_FILE: &str = "../target/ebpf-toolchain.toml";

/// Relative to this package.
const KERNEL_HALF: &str = "../health-ebpf";

/// Relative to this package: what the kernel half is made of.
const SOURCES: [&str; 5] = [
    "../health-ebpf/src",
    "../health-ebpf/Cargo.toml",
    "../health-ebpf/Cargo.lock",
    "../health-common/src",
    "../health-common/Cargo.toml",
];

/// Full debug information and BTF: the kernel needs the latter for the types of pinned maps and for CO-RE, and shows
/// source lines in verifier logs from it.
const RUSTFLAGS: &str = "-C debuginfo=2 -C link-arg=--btf";

/// Why there is no kernel half.
enum Failure {
    /// Something is missing around it.
    Setup(String),
    /// Its compiler refused it; what it said.
    Compiler(String),
}

fn main() -> ExitCode {
    for path in SOURCES.iter().chain(&[TOOLCHAIN_FILE]) {
        println!("cargo::rerun-if-changed={path}");
    }
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        // Cargo fails the build for the error; a failure of the script too would bury it under the script's output.
        Err(Failure::Setup(error)) => {
            println!("cargo::error={error}");
            ExitCode::SUCCESS
        }
        // Here that output is what is wanted.
        Err(Failure::Compiler(said)) => {
            eprintln!("{said}");
            println!("cargo::error=the kernel half does not build, its compiler's words are below");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), Failure> {
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(variable("OUT_DIR")?).join("sluice.bpf.o");
    let kernel_half = package.join(KERNEL_HALF);

    let text = fs::read_to_string(package.join(TOOLCHAIN_FILE)).map_err(|error| {
        format!("run `cargo xtask setup` first, which finds the kernel half's compiler ({TOOLCHAIN_FILE}: {error})")
    })?;
    let toolchain: toml::Table =
        text.parse().map_err(|error| format!("{TOOLCHAIN_FILE}: {error}; run `cargo xtask setup`"))?;
    compile(&toolchain, &kernel_half)?;

    let object = kernel_half.join("target/bpfel-unknown-none/release/sluice");
    fs::copy(&object, &out)
        .map_err(|error| format!("cannot copy {} to {}: {error}", object.display(), out.display()))?;
    Ok(())
}

/// Runs the kernel half's cargo, and passes its warnings on.
fn compile(toolchain: &toml::Table, kernel_half: &Path) -> Result<(), Failure> {
    let setting = |name: &str| {
        let value = toolchain.get(name).and_then(toml::Value::as_str);
        value.ok_or_else(|| format!("{TOOLCHAIN_FILE} has no `{name}`: run `cargo xtask setup`"))
    };
    let mut path = OsString::from(setting("linker_dir")?);
    path.push(":");
    path.push(env::var_os("PATH").unwrap_or_default());

    let mut cargo = Command::new(setting("cargo")?);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_of_outer_build) {
            cargo.env_remove(name);
        }
    }
    cargo
        .args([
            "build",
            "--quiet",
            "--release",
            "-Z",
            "build-std=core",
            "--target",
            "bpfel-unknown-none",
            "--target-dir",
        ])
        .arg(kernel_half.join("target"))
        .current_dir(kernel_half)
        .stdin(Stdio::null())
        .env("PATH", path)
        .env("RUSTC", setting("rustc")?)
        .env("RUSTFLAGS", RUSTFLAGS);
    if toolchain.get("bootstrap").and_then(toml::Value::as_bool) == Some(true) {
        cargo.env("RUSTC_BOOTSTRAP", "1");
    }

    let output = cargo.output().map_err(|error| {
        format!("cannot start {}: {error}; run `cargo xtask setup`", cargo.get_program().to_string_lossy())
    })?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(Failure::Compiler(said.into_owned()));
    }
    // Quiet as cargo is, what is left are warnings.
    for line in said.lines().filter(|line| !line.is_empty()) {
        println!("cargo::warning={line}");
    }
    Ok(())
}

/// Whether a variable steers the build that runs this script: it would give the kernel half's cargo the flags, wrappers
/// and folders of another compiler. What says how to reach a registry stays.
fn is_of_outer_build(name: &str) -> bool {
    let starts_with_any = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    starts_with_any(&["CARGO", "RUSTC", "RUSTFLAGS", "RUSTDOC", "RUSTUP_TOOLCHAIN", "LD_LIBRARY_PATH"])
        && !starts_with_any(&["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_"])
}

impl From<String> for Failure {
    fn from(error: String) -> Self {
        Self::Setup(error)
    }
}

fn variable(name: &str) -> Result<OsString, String> {
    env::var_os(name).ok_or_else(|| format!("cargo did not set {name}"))
}
