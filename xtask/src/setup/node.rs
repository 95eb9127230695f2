//! What running and testing need of the machine: bpffs, and the servers and tools of the lab.

use std::fs;

use anyhow::{Context as _, bail};
use nix::mount::MsFlags;

use super::{announce, apt};
use crate::command;

/// Where the pinned maps and programs live by default.
const BPFFS: &str = "/sys/fs/bpf";

/// Program, and Debian's package for it.
///
/// nginx is origin and proxy of the lab, haproxy another proxy, wrk its load, nft its faults; ip and nsenter make and enter its namespaces;
/// curl is the user who asks. softhsm2-util makes HSMs, p11-kit and socat put a network before them, pkcs11-tool uses them. named, postfix and openssl are asked by checks. cargo-fmt and cargo-clippy are steps of `cargo xtask test`, missing where cargo itself
/// came from Debian.
const PROGRAMS: [(&str, &str); 16] = [
    ("nginx", "nginx-light"),
    ("haproxy", "haproxy"),
    ("wrk", "wrk"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("nsenter", "util-linux"),
    ("curl", "curl"),
    ("softhsm2-util", "softhsm2"),
    ("pkcs11-tool", "opensc"),
    ("p11-kit", "p11-kit"),
    ("socat", "socat"),
    ("named", "bind9"),
    ("postfix", "postfix"),
    ("openssl", "openssl"),
    ("cargo-fmt", "rustfmt-web"),
    ("cargo-clippy", "rust-web-clippy"),
];

/// Mounts and installs what is missing.
pub(super) fn ensure() -> anyhow::Result<()> {
    // Both are tried before either is reported: one message shall name all that is missing.
    let missing: Vec<_> = [ensure_bpffs(), ensure_programs()]
        .into_iter()
        .filter_map(Result::err)
        .map(|error| format!("{error:#}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!("setup for running and testing:\n- {}", missing.join("\n- "));
}

fn ensure_bpffs() -> anyhow::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read the list of mounts")?;
    if is_bpffs(&mounts, BPFFS) {
        return Ok(());
    }
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "bpffs is not mounted and this is not root: run as root `mount -t bpf bpf {BPFFS}`, or `cargo xtask setup`"
        );
    }
    let none: Option<&str> = None;
    nix::mount::mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), none).with_context(|| {
        format!("cannot mount bpffs at {BPFFS} (a container needs CAP_SYS_ADMIN, or the host's {BPFFS} bound into it)")
    })?;
    announce(&format!("mounted bpffs at {BPFFS}"));
    Ok(())
}

/// Whether the last mount at `point` is a bpffs; an earlier one would be covered.
fn is_bpffs(mounts: &str, point: &str) -> bool {
    let mut at_point = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        (fields.next()? == point).then(|| fields.next())?
    });
    at_point.next_back() == Some("bpf")
}

fn ensure_programs() -> anyhow::Result<()> {
    let missing: Vec<_> = PROGRAMS.iter().filter(|(program, _)| command::find(program).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    apt::install(&packages)?;
    if let Some((program, package)) = missing.iter().find(|(program, _)| command::find(program).is_none()) {
        bail!("{package} is installed, but `{program}` is still not to be found");
    }
    for service in ["nginx", "haproxy", "named", "postfix"] {
        if missing.iter().any(|(program, _)| *program == service) {
            keep_from_booting(service);
        }
    }
    Ok(())
}

/// The package enables its service for the next boot, where nginx would take port 80. Only the program is wanted, and only
/// a service that this set-up brought is touched.
fn keep_from_booting(service: &str) {
    let Some(systemctl) = command::find("systemctl") else { return };
    match command::output(command::foreign(systemctl).args(["disable", &format!("{service}.service")])) {
        Ok(_) => announce(&format!("{service} is installed but not started, and its service is disabled")),
        Err(error) => announce(&format!("{service} is installed but may start at the next boot: {error:#}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bpffs_is_told_from_what_lies_there_else() {
        let table = [
            ("mounted", "none /sys/fs/bpf bpf rw,nosuid 0 0\n", true),
            ("elsewhere", "none /run/bpf bpf rw 0 0\n", false),
            ("something else", "none /sys/fs/bpf tmpfs rw 0 0\n", false),
            ("covered", "none /sys/fs/bpf bpf rw 0 0\nnone /sys/fs/bpf tmpfs rw 0 0\n", false),
            ("nothing", "sysfs /sys sysfs rw 0 0\n", false),
        ];
        for (name, mounts, want) in table {
            assert_eq!(is_bpffs(mounts, BPFFS), want, "{name}");
        }
    }

    #[test]
    fn the_file_of_mounts_has_the_shape_that_is_read() {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("Linux has it");

        assert!(mounts.lines().any(|line| line.split(' ').nth(1) == Some("/")), "the root is mounted");
    }
}
