//! Reverse path filtering, as the stack does it.

use std::fs;

/// How an interface treats packets from addresses whose route leads elsewhere. Linux, `ip-sysctl.rst`: the stricter of
/// `conf.all` and the interface's own value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReversePath {
    /// They pass.
    Off,
    /// They are dropped.
    Strict,
    /// They pass as long as there is any route.
    Loose,
}

impl ReversePath {
    /// Asks the kernel, for the namespace of the calling thread. What can't be read is not there: IPv4 is off.
    #[must_use]
    pub fn of(interface: &str) -> Self {
        let value = |conf: &str| {
            let path = format!("/proc/sys/net/ipv4/conf/{conf}/rp_filter");
            fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        };
        Self::from_values(value("all"), value(interface))
    }

    /// The kernel takes the larger number, so loose wins over strict (`IN_DEV_MAXCONF` in `fib_validate_source`).
    fn from_values(all: u32, own: u32) -> Self {
        match all.max(own) {
            0 => Self::Off,
            1 => Self::Strict,
            _ => Self::Loose,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_value_counts() {
        let table = [
            (0, 0, ReversePath::Off),
            (1, 0, ReversePath::Strict),
            (0, 1, ReversePath::Strict),
            (2, 1, ReversePath::Loose),
            (1, 2, ReversePath::Loose),
        ];
        for (all, own, wanted) in table {
            assert_eq!(ReversePath::from_values(all, own), wanted, "{all} {own}");
        }
    }
}
