//! What runs in the guest: the init, the daemon and the packet tables, as cargo builds them, and the libraries that they
//! load. The kernel alone is foreign.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::cpio::Archive;
use super::mirror::Image;
use crate::command;

/// Tests of the lab that need nothing but the kernel.
const TABLES: [&str; 3] = ["prog", "prog_xdp", "prog_l3"];

/// The kernel opens it for its init.
const CONSOLE: (u32, u32) = (5, 1);

/// Programs, by their path in the guest, and the files that they load, by a path that is the same there and here.
#[derive(Debug)]
pub(super) struct Guest {
    programs: Vec<(String, PathBuf)>,
    libraries: Vec<PathBuf>,
}

impl Guest {
    /// Builds what it needs.
    pub(super) fn build(root: &Path) -> Result<Self> {
        let daemon = artifact(root, &["build", "--package", "sluice", "--bin", "sluice"], "sluice")?;
        let init = artifact(root, &["build", "--package", "lab", "--example", "kernel_init"], "kernel_init")?;
        let ip = command::find("ip").context("there is no `ip`: run `cargo xtask setup`")?;
        let mut programs = vec![("/init".to_owned(), init), ("/sluice".to_owned(), daemon), ("/ip".to_owned(), ip)];
        for name in TABLES {
            let program = artifact(root, &["test", "--package", "lab", "--test", name, "--no-run"], name)?;
            programs.push((format!("/tables/{name}"), program));
        }
        let ldd = command::find("ldd").context("there is no `ldd` to find a program's libraries with")?;
        let mut libraries = Vec::new();
        for (_, program) in &programs {
            libraries.extend(libraries_in(&command::output(command::foreign(&ldd).arg(program))?));
        }
        libraries.sort();
        libraries.dedup();
        Ok(Self { programs, libraries })
    }

    /// Writes the first filesystem of a kernel.
    pub(super) fn write(&self, image: &Image, path: &Path) -> Result<()> {
        let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let mut archive = Archive::new(BufWriter::new(File::create(path)?));
        archive.device("/dev/console", CONSOLE)?;
        for (name, program) in &self.programs {
            archive.file(name, &read(program)?)?;
        }
        for library in &self.libraries {
            archive.file(&library.to_string_lossy(), &read(library)?)?;
        }
        archive.folder("/modules")?;
        for (number, module) in (0..).zip(&image.modules) {
            let name = module.file_name().context("it was found by its name")?.to_string_lossy();
            // The init goes by the order of the names.
            archive.file(&format!("/modules/{number}-{name}"), &read(module)?)?;
        }
        Ok(archive.finish()?.flush()?)
    }
}

/// Runs cargo, and finds where it put the program `name`.
fn artifact(root: &Path, arguments: &[&str], name: &str) -> Result<PathBuf> {
    let mut cargo = command::cargo();
    cargo
        .args(arguments)
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(root)
        .stderr(std::process::Stdio::inherit());
    let output = cargo.output().context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo could not build `{name}` ({})", output.status);
    executable_in(&String::from_utf8_lossy(&output.stdout), name)
        .with_context(|| format!("cargo does not say where it put `{name}`"))
}

fn executable_in(messages: &str, name: &str) -> Option<PathBuf> {
    messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
        let is_it = message.pointer("/target/name").and_then(Value::as_str) == Some(name);
        message.get("executable").and_then(Value::as_str).filter(|_| is_it).map(PathBuf::from)
    })
}

/// Reads what `ldd` says: `NAME => PATH (ADDRESS)` a line, or only a path for the loader. What the kernel brings itself has
/// none.
fn libraries_in(loaded: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let (path, _address) = line.trim().rsplit_once(" (")?;
        let path = path.rsplit_once(" => ").map_or(path, |(_, path)| path);
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    loaded.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_found() {
        let loaded = "\tlinux-vdso.so.1 (0x00007f23e2b45000)\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f23e221e000)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f23e2b47000)\n";

        assert_eq!(libraries_in(loaded), ["/lib/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from));
        assert_eq!(libraries_in("\tstatically linked\n"), Vec::<PathBuf>::new());
    }

    #[test]
    fn the_program_is_told_from_what_it_needs() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"lab"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"prog"},"executable":"/t/debug/deps/prog-1"}
{"reason":"build-finished","success":true}"#;

        assert_eq!(executable_in(messages, "prog"), Some(PathBuf::from("/t/debug/deps/prog-1")));
        assert_eq!(executable_in(messages, "lab"), None);
    }
}
