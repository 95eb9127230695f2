//! bpf-linker, built for the LLVM that the kernel half's compiler writes bitcode with.
//!
//! An older LLVM can't read a newer one's bitcode, so the linker loads the very library that the compiler runs with.
//! It goes to the user's cache, under that library's name: a second clone reuses it, and a new compiler gets its own.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::announce;
use super::compiler::Compiler;
use crate::command;

/// The program.
pub(super) const NAME: &str = "bpf-linker";

/// The release that the kernel half was measured with. A newer one may emit other instructions.
const VERSION: &str = "0.13.0";

/// Whether the linker in `folder` starts, so its LLVM is still there.
pub(super) fn runs(folder: &Path) -> bool {
    let linker = folder.join(NAME);
    linker.is_file() && command::output(command::foreign(linker).arg("--version")).is_ok()
}

/// Finds the linker for `compiler` in the cache, or builds it there. Gives the folder that it is in.
pub(super) fn find_or_install(compiler: &Compiler) -> anyhow::Result<PathBuf> {
    let library = llvm_library(&compiler.rustc)?;
    let library_name = library.file_name().context("LLVM's library has no name")?;
    let home = super::cache_dir()?.join(format!("{NAME}-{VERSION}-{}", library_name.to_string_lossy()));
    let bin = home.join("bin");
    if !runs(&bin) {
        install(compiler, &library, &home)?;
    }
    if !runs(&bin) {
        bail!("{} was built but doesn't start", bin.join(NAME).display());
    }
    Ok(bin)
}

fn install(compiler: &Compiler, library: &Path, home: &Path) -> anyhow::Result<()> {
    let prefix = home.join("llvm");
    link_library(library, &prefix.join("lib"))
        .with_context(|| format!("cannot write the cache folder {}", home.display()))?;
    announce(&format!(
        "building {NAME} {VERSION} for LLVM {} into {} (about 80 s, once per user)",
        compiler.version.llvm,
        home.display()
    ));
    let mut cargo = command::foreign(&compiler.cargo);
    cargo
        .args(["install", NAME, "--version", VERSION, "--locked", "--force", "--no-default-features"])
        .args(["--features", &format!("llvm-{}", compiler.version.llvm)])
        .arg("--root")
        .arg(home)
        .env("RUSTC", &compiler.rustc)
        .env("LLVM_PREFIX", &prefix);
    command::output(&mut cargo).with_context(|| format!("cannot build {NAME} {VERSION} (is the network there?)"))?;
    Ok(())
}

/// Links LLVM's library into `folder` under the name that bpf-linker's build script looks for, and under its own: that
/// build script makes `folder` the program's rpath, so it finds the library of a rustup toolchain too.
fn link_library(library: &Path, folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    for name in [Some(OsStr::new("libLLVM.so")), library.file_name()].into_iter().flatten() {
        let link = folder.join(name);
        match fs::remove_file(&link) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => symlink(library, &link)?,
        }
    }
    Ok(())
}

/// The LLVM library that `rustc` runs with.
fn llvm_library(rustc: &Path) -> anyhow::Result<PathBuf> {
    let ldd = command::find("ldd").context("there is no `ldd` to find the compiler's LLVM with")?;
    let loaded = command::output(command::foreign(ldd).arg(rustc))?;
    llvm_of(&loaded).with_context(|| format!("{} loads no shared LLVM library", rustc.display()))
}

/// Reads what `ldd` says of a compiler: `NAME => PATH (ADDRESS)` a line.
fn llvm_of(loaded: &str) -> Option<PathBuf> {
    loaded.lines().find_map(|line| {
        let (name, found) = line.trim().split_once(" => ")?;
        let (path, _address) = found.rsplit_once(" (")?;
        (name.starts_with("libLLVM") && path.starts_with('/')).then(|| PathBuf::from(path))
    })
}

/// The user's cache for Sluice, by the XDG Base Directory Specification: a relative path counts as unset.
pub(super) fn cache_dir(xdg_cache_home: Option<&OsStr>, home: Option<&OsStr>) -> anyhow::Result<PathBuf> {
    let set = |folder: Option<&OsStr>| folder.map(PathBuf::from).filter(|folder| folder.is_absolute());
    let cache = set(xdg_cache_home).or_else(|| set(home).map(|home| home.join(".cache")));
    Ok(cache.context("neither XDG_CACHE_HOME nor HOME says where the cache is: set one")?.join("sluice"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llvm_is_found_among_what_a_compiler_loads() {
        let debian = "\tlinux-vdso.so.1 (0x00007fab89d87000)\n\tlibc.so.6 => /lib/libc.so.6 (0x00007fab8401e000)\n\
                      \tlibLLVM.so.22.1 => /lib/libLLVM.so.22.1 (0x00007fab7b000000)\n";
        let rustup = "\tlibLLVM.so.23.1-rust-1.101.0-nightly => /opt/my rust/bin/../lib/libLLVM.so.23.1-rust-1.101.0-nightly \
                      (0x00007f09a9000000)\n";
        let table = [
            ("debian", debian, Some("/lib/libLLVM.so.22.1")),
            ("rustup", rustup, Some("/opt/my rust/bin/../lib/libLLVM.so.23.1-rust-1.101.0-nightly")),
            ("linked in", "\tlibc.so.6 => /lib/libc.so.6 (0x00007fab8401e000)\n", None),
            ("lost", "\tlibLLVM.so.22.1 => not found\n", None),
        ];
        for (name, loaded, want) in table {
            assert_eq!(llvm_of(loaded), want.map(PathBuf::from), "{name}");
        }
    }

    #[test]
    fn the_cache_is_where_xdg_says() {
        let table = [
            ("set", Some("/xdg"), Some("/h"), Some("/xdg/sluice")),
            ("relative is unset", Some("xdg"), Some("/h"), Some("/h/.cache/sluice")),
            ("empty is unset", Some(""), Some("/h"), Some("/h/.cache/sluice")),
            ("nothing", None, None, None),
        ];
        for (name, xdg, home, want) in table {
            let got = cache_dir(xdg.map(OsStr::new), home.map(OsStr::new)).ok();
            assert_eq!(got, want.map(PathBuf::from), "{name}");
        }
    }

    #[test]
    fn the_library_is_linked_again_over_a_link_that_dangles() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let library = home.path().join("libLLVM.so.22.1");
        fs::write(&library, "").expect("the folder is ours");
        let lib = home.path().join("lib");
        fs::create_dir(&lib).expect("the folder is ours");
        symlink("/nowhere", lib.join("libLLVM.so")).expect("the folder is ours");

        link_library(&library, &lib).expect("the folder is ours");

        for name in ["libLLVM.so", "libLLVM.so.22.1"] {
            assert_eq!(fs::read_link(lib.join(name)).expect("a link"), library, "{name}");
        }
    }
}
