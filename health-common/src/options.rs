//! What the TCP options of a SYN say about whether it may be sent elsewhere.

use crate::flow::{FIXED, OPTIONS_MAX, UNTURNABLE};

/// End of the list (RFC 9293 §3.2).
const END: u8 = 0;
/// No operation.
const NOP: u8 = 1;
/// Window scale (RFC 7323 §2).
const WINDOW_SCALE: u8 = 3;
/// Signature of addresses, ports and payload (RFC 2385).
const MD5: u8 = 19;
/// Authentication (RFC 5925), which covers them too.
const AO: u8 = 29;
/// Fast Open (RFC 7413): a cookie is one origin's.
const FAST_OPEN: u8 = 34;
/// Largest shift (RFC 7323 §2.3).
const SHIFT_MAX: u8 = 14;

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// [`FIXED`], [`UNTURNABLE`].
    pub flags: u16,
    /// Shift of the window.
    pub shift: u8,
}

/// Looks at the option at `at`, and gives where the next one begins; `len` or more at the end, or where a length makes no sense.
///
/// A step and not the whole way, so that the programs can hide from the verifier where they are, which it would else follow.
#[inline(always)]
#[must_use]
pub const fn step(options: &[u8; OPTIONS_MAX], at: usize, len: usize, found: &mut Survey) -> usize {
    if at >= len || at >= OPTIONS_MAX {
        return OPTIONS_MAX;
    }
    let kind = options[at];
    if kind == NOP {
        return at + 1;
    }
    if kind == END || at + 1 >= len || at + 1 >= OPTIONS_MAX {
        return OPTIONS_MAX;
    }
    let step = options[at + 1] as usize;
    if step < 2 || at + step > len {
        return OPTIONS_MAX;
    }
    match kind {
        MD5 | AO => found.flags |= FIXED,
        FAST_OPEN => found.flags |= UNTURNABLE,
        WINDOW_SCALE if step > 2 && at + 2 < OPTIONS_MAX => {
            let shift = options[at + 2];
            found.shift = if shift > SHIFT_MAX { SHIFT_MAX } else { shift };
        }
        _ => {}
    }
    at + step
}

/// Looks through the options.
#[must_use]
pub const fn survey(options: &[u8; OPTIONS_MAX], len: usize) -> Survey {
    let mut found = Survey { flags: 0, shift: 0 };
    let mut at = 0;
    while at < len && at < OPTIONS_MAX {
        at = step(options, at, len, &mut found);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_bytes(bytes: &[u8]) -> Survey {
        let mut options = [0; OPTIONS_MAX];
        options[..bytes.len()].copy_from_slice(bytes);
        survey(&options, bytes.len())
    }

    #[test]
    fn what_systems_send() {
        let linux = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
        let windows = [2, 4, 5, 0xb4, 1, 3, 3, 8, 1, 1, 4, 2];
        let mptcp = [2, 4, 5, 0xb4, 30, 4, 0, 1];
        assert_eq!(of_bytes(&linux), Survey { flags: 0, shift: 7 });
        assert_eq!(of_bytes(&windows), Survey { flags: 0, shift: 8 });
        assert_eq!(of_bytes(&mptcp), Survey::default());
        assert_eq!(of_bytes(&[]), Survey::default());
    }

    #[test]
    fn what_binds_a_syn_to_its_origin() {
        let mut md5 = [1; 20];
        (md5[0], md5[1]) = (19, 18);
        let mut ao = [0; 16];
        (ao[0], ao[1]) = (29, 16);
        assert_eq!(of_bytes(&md5).flags, FIXED);
        assert_eq!(of_bytes(&ao).flags, FIXED);
        assert_eq!(of_bytes(&[34, 2, 1, 1]).flags, UNTURNABLE);
    }

    #[test]
    fn nonsense_ends_the_list() {
        assert_eq!(of_bytes(&[2, 0, 3, 3]), Survey::default());
        assert_eq!(of_bytes(&[2, 1, 3, 3]), Survey::default());
        assert_eq!(of_bytes(&[3, 3]), Survey::default());
        assert_eq!(of_bytes(&[3]), Survey::default());
        assert_eq!(of_bytes(&[3, 3, 200, 0]).shift, 14, "RFC 7323 §2.3");
        assert_eq!(of_bytes(&[1; 40]), Survey::default());
        assert_eq!(of_bytes(&[255; 40]), Survey::default());
    }
}
