//! What slot and token say of themselves, against what the operator wants of them.

use super::{
    latch::PinFlags,
    protocol::{Info, Token, TokenInfo},
};
use crate::config::{ERROR_STATE, Flag, Pkcs11Check, Versions};
use cryptoki_sys::{CKF_USER_PIN_COUNT_LOW, CKF_USER_PIN_FINAL_TRY, CKF_USER_PIN_LOCKED};
use health_core::model::Hsm;

/// Whether a token is the one that is meant. An empty serial or label names nothing.
pub(super) fn is_meant(info: &TokenInfo, token: &Token) -> bool {
    match token {
        Token::Serial(serial) => !serial.is_empty() && info.serial == *serial,
        Token::Label(label) => !label.is_empty() && info.label == *label,
    }
}

/// Versions and flags. `Err` has the reason and the words for it.
pub(super) fn rules(info: &Info, token: &TokenInfo, rule: &Pkcs11Check) -> Result<(), (Hsm, String)> {
    flags(info, token, &rule.flags_forbid)?;
    let version = |what: &str, range: &Option<Versions>, (major, minor): (u8, u8), reason| match range {
        Some(range) if !range.contains((major, minor)) => {
            Err((reason, format!("{what} {major}.{minor} is outside of {range}")))
        }
        _ => Ok(()),
    };
    version("firmware", &rule.firmware, token.firmware, Hsm::Firmware)?;
    version("hardware", &rule.hardware, token.hardware, Hsm::Hardware)
}

fn flags(info: &Info, token: &TokenInfo, forbidden: &[Flag]) -> Result<(), (Hsm, String)> {
    let set = |flag: &&Flag| if flag.of_slot { info.slot.flags } else { token.flags } & flag.bit != 0;
    match forbidden.iter().find(set) {
        None => Ok(()),
        Some(flag) if flag.name == ERROR_STATE => {
            Err((Hsm::Device, "the token says that it is in an error state".to_owned()))
        }
        Some(flag) => Err((Hsm::Flag, format!("the flag {} is set", flag.name))),
    }
}

/// What the token says of its user's PIN.
pub(super) const fn pin_flags(token: &TokenInfo) -> PinFlags {
    PinFlags {
        count_low: token.flags & CKF_USER_PIN_COUNT_LOW != 0,
        final_try: token.flags & CKF_USER_PIN_FINAL_TRY != 0,
        locked: token.flags & CKF_USER_PIN_LOCKED != 0,
    }
}

/// Rounds with ever more sessions that make a leak.
const GROWTH_MAX: u32 = 3;

/// Sessions that the token counts, watched for a leak of ours.
#[derive(Debug, Default)]
pub(super) struct LeakWatch {
    last: Option<u64>,
    growth: u32,
    /// What was counted when a worker was retired for it.
    suspected: Option<u64>,
    /// It counts other programs' sessions too, as some vendors do: our end changed nothing.
    foreign: bool,
}

impl LeakWatch {
    /// Takes a count. True: it has grown in several rounds though we hold no more than before.
    pub(super) fn grew(&mut self, token: &TokenInfo) -> bool {
        let (_, count) = token.sessions;
        // CK_UNAVAILABLE_INFORMATION is all ones.
        if count == u64::MAX || self.foreign {
            return false;
        }
        if let Some(suspected) = self.suspected.take()
            && count >= suspected
        {
            self.foreign = true;
            return false;
        }
        self.growth = if self.last.is_some_and(|last| count > last) { self.growth + 1 } else { 0 };
        self.last = Some(count);
        if self.growth < GROWTH_MAX {
            return false;
        }
        *self = Self { suspected: Some(count), ..Self::default() };
        true
    }

    /// Another worker: what it holds is no growth.
    pub(super) fn begin(&mut self) {
        (self.last, self.growth) = (None, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(count: u64) -> TokenInfo {
        TokenInfo {
            label: String::new(),
            manufacturer: String::new(),
            model: String::new(),
            serial: String::new(),
            flags: 0,
            sessions: (0, count),
            rw_sessions: (0, 0),
            pin_len: (0, 0),
            hardware: (0, 0),
            firmware: (0, 0),
            utc_time: [0; 16],
        }
    }

    #[test]
    fn a_leak_is_growth_that_ends_with_the_worker() {
        let mut watch = LeakWatch::default();
        let mut grew = |count| watch.grew(&counted(count));
        assert!(!grew(1) && !grew(2) && !grew(3) && grew(4), "three in a row");
        assert!(!grew(1), "the worker's end has freed them: ours");
        assert!(!grew(2) && !grew(2) && !grew(3) && !grew(4), "two, then level, then two");
        assert!(grew(5));
        assert!(!grew(5), "its end has freed nothing: they are somebody else's");
        assert!(!grew(6) && !grew(7) && !grew(8) && !grew(9));
        assert!(!LeakWatch::default().grew(&counted(u64::MAX)));
    }

    #[test]
    fn versions_are_pairs() {
        let range = Versions { first: (2, 5), last: (2, 10) };
        for (version, want) in [((2, 5), true), ((2, 10), true), ((2, 11), false), ((2, 4), false), ((9, 9), false)] {
            assert_eq!(range.contains(version), want, "{version:?}");
        }
    }
}
