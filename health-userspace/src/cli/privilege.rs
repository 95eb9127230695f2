//! What the caller may do.

use std::fs;

/// Bits of `CapEff`: <https://github.com/torvalds/linux/blob/v6.6/include/uapi/linux/capability.h>.
const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// What loading, attaching and reading the kernel half needs, with the bits that will do for each. This is the one list:
/// CAP_BPF makes maps and programs; without CAP_PERFMON the verifier refuses their pointer arithmetic; CAP_NET_ADMIN
/// attaches them and marks the sockets of checks. CAP_SYS_ADMIN still stands for the first two, as before Linux 5.8. Pins
/// need the permissions of their folder besides.
const NEEDED: [(&[u32], &str); 3] = [
    (&[CAP_BPF, CAP_SYS_ADMIN], "CAP_BPF"),
    (&[CAP_PERFMON, CAP_SYS_ADMIN], "CAP_PERFMON"),
    (&[CAP_NET_ADMIN], "CAP_NET_ADMIN"),
];

/// The list in words, for messages. Entering the namespaces of `node.netns` needs one more.
pub const NEEDED_TEXT: &str = "CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (for node.netns CAP_SYS_ADMIN too)";

/// Capabilities that the daemon needs and this process lacks. Empty where the kernel doesn't say, so that its own
/// refusal decides.
#[must_use]
pub fn missing() -> Vec<&'static str> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective(&status).map(lacking).unwrap_or_default()
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn lacking(effective: u64) -> Vec<&'static str> {
    let has = |bits: &[u32]| bits.iter().any(|bit| effective & (1 << bit) != 0);
    NEEDED.into_iter().filter(|(bits, _)| !has(bits)).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing() {
        let table: [(u64, &[&str]); 4] = [
            (0, &["CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN"]),
            (0x1ff_ffff_ffff, &[]),
            (1 << CAP_SYS_ADMIN, &["CAP_NET_ADMIN"]),
            (1 << CAP_BPF | 1 << CAP_PERFMON | 1 << CAP_NET_ADMIN, &[]),
        ];
        for (caps, wanted) in table {
            assert_eq!(lacking(caps), wanted, "{caps:x}");
        }
        for (_, name) in NEEDED {
            assert!(NEEDED_TEXT.contains(name), "{name}");
        }
        assert!(crate::datapath::DatapathError::Permission.to_string().contains(NEEDED_TEXT));
        assert_eq!(effective("Name:\tx\nCapEff:\t0000000000000400\n"), Some(1024));
        assert_eq!(effective(""), None);
    }
}
