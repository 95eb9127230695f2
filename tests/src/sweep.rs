//! What a killed run can leave behind: pins and temporary files, both named after its process.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Where BPF objects are pinned.
const BPFFS: &str = "/sys/fs/bpf";
const PIN_PREFIX: &str = "sluice-lab-";
pub(crate) const DIR_PREFIX: &str = "sluice-lab-";

/// A name that no other lab has: `PID-N`.
pub(crate) fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The pin directory of the lab called `unique`.
#[must_use]
pub fn pin_dir_name(unique: &str) -> PathBuf {
    Path::new(BPFFS).join(format!("{PIN_PREFIX}{unique}"))
}

/// Removes pins and temporary directories of labs whose process is gone. With the pins go the programs that they keep
/// attached to the host's cgroup. Never touches anything that is not a lab's.
pub fn sweep() {
    for (place, prefix) in [(PathBuf::from(BPFFS), PIN_PREFIX), (std::env::temp_dir(), DIR_PREFIX)] {
        let Ok(entries) = fs::read_dir(place) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let owner =
                name.to_str().and_then(|name| name.strip_prefix(prefix)).and_then(|rest| rest.split('-').next());
            let Some(owner) = owner.and_then(|pid| pid.parse::<u32>().ok()) else { continue };
            if !Path::new(&format!("/proc/{owner}")).exists() {
                // Another run may be sweeping the same left-over.
                fs::remove_dir_all(entry.path()).ok();
            }
        }
    }
}
