//! A token's clock against the host's.

use super::protocol::{Info, TokenInfo};
use cryptoki_sys::CKF_CLOCK_ON_TOKEN;
use health_core::{Span, model::Hsm};
use jiff::{civil::DateTime, tz::TimeZone};
use std::time::Duration;
use tokio::time::Instant;

/// A clock that says the same this long later has stopped: it shows whole seconds.
const FROZEN_AFTER: Duration = Duration::from_secs(2);
const NS_PER_S: i64 = 1_000_000_000;

/// What a token's clock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// The token has none.
    NotOffered,
    /// It says this second, so many ns before (negative) or after the host's clock at least; 0 if it may be right.
    Off { by_ns: i64 },
    /// It says nothing that is a time.
    Broken(Hsm),
}

/// What was read before, for a clock that has stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    text: [u8; 16],
    since: Instant,
}

/// Reads a clock. `before` is what this token said last, and becomes what it says now.
pub(super) fn read(info: &Info, token: &TokenInfo, before: &mut Option<Before>, now: Instant) -> Reading {
    if token.flags & CKF_CLOCK_ON_TOKEN == 0 {
        *before = None;
        return Reading::NotOffered;
    }
    let second = match parse(&token.utc_time) {
        Ok(second) => second,
        Err(reason) => {
            *before = None;
            return Reading::Broken(reason);
        }
    };
    match before {
        Some(last) if last.text == token.utc_time => {
            if now.saturating_duration_since(last.since) >= FROZEN_AFTER {
                return Reading::Broken(Hsm::ClockFrozen);
            }
        }
        _ => *before = Some(Before { text: token.utc_time, since: now }),
    }
    Reading::Off { by_ns: off(second, info.before_ns, info.after_ns) }
}

/// Whether a clock that is off by this is wrong.
pub(super) fn is_skewed(by_ns: i64, drift_max: Span) -> bool {
    by_ns.unsigned_abs() > drift_max.0
}

/// Distance between the second [T, T+1) and the host's interval; 0 where they meet.
fn off(second: i64, before_ns: i64, after_ns: i64) -> i64 {
    let first = second.saturating_mul(NS_PER_S);
    let last = first.saturating_add(NS_PER_S);
    if first > after_ns {
        first.saturating_sub(after_ns)
    } else if last < before_ns {
        last.saturating_sub(before_ns)
    } else {
        0
    }
}

/// `YYYYMMDDhhmmss00` (PKCS#11 v2.40 §3.3, `utcTime`) as seconds since 1970.
fn parse(text: &[u8; 16]) -> Result<i64, Hsm> {
    if text.iter().all(|&byte| byte == b'0' || byte == 0) {
        return Err(Hsm::ClockUnset);
    }
    if !text.iter().all(u8::is_ascii_digit) {
        return Err(Hsm::ClockMalformed);
    }
    let number =
        |from: usize, to: usize| text[from..to].iter().fold(0_i16, |sum, &digit| sum * 10 + i16::from(digit - b'0'));
    let small = |from: usize| i8::try_from(number(from, from + 2)).unwrap_or(i8::MAX);
    // A leap second is the second before it, to all who count without them.
    let second = if small(12) == 60 { 59 } else { small(12) };
    let time = DateTime::new(number(0, 4), small(4), small(6), small(8), small(10), second, 0);
    let time = time.and_then(|time| TimeZone::UTC.to_timestamp(time));
    time.map(jiff::Timestamp::as_second).map_err(|_impossible| Hsm::ClockImpossible)
}

/// Whether the kernel believes its own clock: `adjtimex(2)`, `STA_UNSYNC`.
pub(super) fn host_is_synchronised() -> bool {
    // SAFETY: all zeros is a valid `timex`, and with `modes` 0 the call only writes it.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the argument points to a `timex` that lives until the call returns.
    let answer = unsafe { libc::adjtimex(&raw mut state) };
    answer >= 0 && state.status & libc::STA_UNSYNC == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: i64 = 1_773_576_000;

    fn token(text: &[u8; 16], flags: u64) -> TokenInfo {
        TokenInfo {
            label: String::new(),
            manufacturer: String::new(),
            model: String::new(),
            serial: String::new(),
            flags,
            sessions: (0, 0),
            rw_sessions: (0, 0),
            pin_len: (0, 0),
            hardware: (0, 0),
            firmware: (0, 0),
            utc_time: *text,
        }
    }

    #[test]
    fn texts_are_times_or_have_a_name() {
        let table: [(&[u8; 16], Result<i64, Hsm>); 8] = [
            (b"2026031512000000", Ok(NOON)),
            (b"2026031512000099", Ok(NOON)),
            (b"2026123123596000", Ok(1_798_761_599)),
            (b"0000000000000000", Err(Hsm::ClockUnset)),
            (b"                ", Err(Hsm::ClockMalformed)),
            (b"2026-03-15T12:30", Err(Hsm::ClockMalformed)),
            (b"2026131512000000", Err(Hsm::ClockImpossible)),
            (b"2026031599996100", Err(Hsm::ClockImpossible)),
        ];
        for (text, want) in table {
            assert_eq!(parse(text), want, "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn a_second_is_an_interval() {
        let host = NOON * NS_PER_S + NS_PER_S / 2;
        assert_eq!(off(NOON, host, host + 1000), 0);
        assert_eq!(off(NOON + 1, host, host), NS_PER_S / 2);
        assert_eq!(off(NOON - 1, host, host), -NS_PER_S / 2);
        assert_eq!(off(NOON + 121, host, host), 120 * NS_PER_S + NS_PER_S / 2);
        let max = Span::from_secs(5);
        assert!(!is_skewed(5 * NS_PER_S, max) && is_skewed(5 * NS_PER_S + 1, max) && is_skewed(-6 * NS_PER_S, max));
    }

    #[tokio::test]
    async fn a_clock_that_stands_still_is_found_and_one_that_goes_is_not() {
        let info = |text| {
            let token = token(text, CKF_CLOCK_ON_TOKEN);
            let slot = super::super::protocol::SlotInfo {
                description: String::new(),
                manufacturer: String::new(),
                flags: 0,
                hardware: (0, 0),
                firmware: (0, 0),
            };
            let at = NOON * NS_PER_S;
            (Info { slot, token: Some(token.clone()), before_ns: at, after_ns: at }, token)
        };
        let mut before = None;
        let begin = Instant::now();
        let mut at = |text, seconds| {
            let (info, token) = info(text);
            read(&info, &token, &mut before, begin + Duration::from_secs(seconds))
        };
        assert_eq!(at(b"2026031512000000", 0), Reading::Off { by_ns: 0 });
        assert_eq!(at(b"2026031512000000", 1), Reading::Off { by_ns: 0 });
        assert_eq!(at(b"2026031512000000", 2), Reading::Broken(Hsm::ClockFrozen));
        assert_eq!(at(b"2026031512000000", 12), Reading::Broken(Hsm::ClockFrozen));
        assert_eq!(at(b"2026031512000100", 13), Reading::Off { by_ns: NS_PER_S });
    }

    #[test]
    fn without_the_flag_there_is_no_clock() {
        let without = token(b"2026031512000000", 0);
        let (info, mut before) = (info_of(&without), None);
        // SoftHSM fills the field all the same.
        let now = std::time::Instant::now().into();
        assert_eq!(read(&info, &without, &mut before, now), Reading::NotOffered);
    }

    fn info_of(token: &TokenInfo) -> Info {
        let slot = super::super::protocol::SlotInfo {
            description: String::new(),
            manufacturer: String::new(),
            flags: 0,
            hardware: (0, 0),
            firmware: (0, 0),
        };
        Info { slot, token: Some(token.clone()), before_ns: 0, after_ns: 0 }
    }
}
