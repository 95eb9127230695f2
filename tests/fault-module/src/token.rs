//! What `C_GetTokenInfo` says otherwise. Pure.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cryptoki_sys::{
    CK_FLAGS, CK_TOKEN_INFO, CK_VERSION, CKF_CLOCK_ON_TOKEN, CKF_USER_PIN_COUNT_LOW, CKF_USER_PIN_FINAL_TRY,
    CKF_USER_PIN_LOCKED,
};

use crate::rules::{Sessions, Token};

/// `text` in a field of fixed width, with `pad` behind it. What is too long is cut.
pub(crate) fn fill<const N: usize>(text: &str, pad: u8) -> [u8; N] {
    let mut field = [pad; N];
    for (place, byte) in field.iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    field
}

/// Changes `info` as `rule` says; `now` is the host's time.
pub(crate) fn change(info: &mut CK_TOKEN_INFO, rule: &Token, now: SystemTime) {
    let version = |(major, minor)| CK_VERSION { major, minor };
    info.firmwareVersion = rule.firmware.map_or(info.firmwareVersion, version);
    info.hardwareVersion = rule.hardware.map_or(info.hardwareVersion, version);
    info.label = rule.label.as_deref().map_or(info.label, |label| fill(label, b' '));
    info.serialNumber = rule.serial.as_deref().map_or(info.serialNumber, |serial| fill(serial, b' '));
    match rule.clock.as_deref() {
        None => {}
        Some("off") => info.flags &= !CKF_CLOCK_ON_TOKEN,
        Some(clock) => {
            info.flags |= CKF_CLOCK_ON_TOKEN;
            info.utcTime = match clock {
                "on" => utc_time(now, rule.skew),
                "blank" => [b' '; 16],
                text => fill(text, b' '),
            };
        }
    }
    info.flags = (info.flags | rule.set_flags) & !rule.clear_flags;
}

/// Session counts, which the token gives only where a limit is set.
pub(crate) const fn change_sessions(info: &mut CK_TOKEN_INFO, rule: Sessions, own: u64) {
    info.ulMaxSessionCount = rule.max;
    info.ulSessionCount = own.saturating_add(rule.foreign);
}

/// The flags of a token that locks after `tries` wrong PINs, `wrong` of which have been given.
pub(crate) const fn pin_flags(wrong: u64, tries: u64) -> CK_FLAGS {
    let left = tries.saturating_sub(wrong);
    match (wrong, left) {
        (0, _) => 0,
        (_, 0) => CKF_USER_PIN_LOCKED,
        (_, 1) => CKF_USER_PIN_COUNT_LOW | CKF_USER_PIN_FINAL_TRY,
        _ => CKF_USER_PIN_COUNT_LOW,
    }
}

/// `YYYYMMDDhhmmss00` of `now` moved by `skew` seconds.
fn utc_time(now: SystemTime, skew: i64) -> [u8; 16] {
    let shift = Duration::from_secs(skew.unsigned_abs());
    let moved = if skew < 0 { now - shift } else { now + shift };
    let seconds = moved.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, of_month) = civil(day);
    fill(
        &format!("{year:04}{month:02}{of_month:02}{:02}{:02}{:02}00", second / 3600, second / 60 % 60, second % 60),
        b' ',
    )
}

/// Year, month and day of the day so many after 1970-01-01 (Howard Hinnant's `civil_from_days`, without negative days).
const fn civil(day: u64) -> (u64, u64, u64) {
    let shifted = day + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march_based = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * march_based + 2) / 5 + 1;
    let month = if march_based < 10 { march_based + 3 } else { march_based - 9 };
    let next = if month <= 2 { 1 } else { 0 };
    (era * 400 + year + next, month, of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn time_is_written_as_the_standard_says() {
        let table: [(u64, i64, &[u8; 16]); 4] = [
            (0, 0, b"1970010100000000"),
            (951_782_400, 0, b"2000022900000000"),
            (1_773_577_845, 0, b"2026031512304500"),
            (1_773_577_845, -120, b"2026031512284500"),
        ];
        for (seconds, skew, want) in table {
            assert_eq!(&utc_time(at(seconds), skew), want, "{seconds} {skew}");
        }
    }

    #[test]
    fn a_clock_raises_its_flag() {
        let mut info = CK_TOKEN_INFO::default();
        let rule = Token { clock: Some("00000000".to_owned()), firmware: Some((9, 9)), ..Token::default() };
        change(&mut info, &rule, at(0));
        assert_eq!((info.flags, &info.utcTime), (CKF_CLOCK_ON_TOKEN, b"00000000        "));
        assert_eq!((info.firmwareVersion.major, info.firmwareVersion.minor), (9, 9));
        change(&mut info, &Token { clock: Some("off".to_owned()), ..Token::default() }, at(0));
        assert_eq!(info.flags, 0);
    }

    #[test]
    fn wrong_pins_are_warned_of_and_then_lock() {
        let flags: Vec<CK_FLAGS> = (0..=4).map(|wrong| pin_flags(wrong, 3)).collect();
        let last = CKF_USER_PIN_COUNT_LOW | CKF_USER_PIN_FINAL_TRY;
        assert_eq!(flags, [0, CKF_USER_PIN_COUNT_LOW, last, CKF_USER_PIN_LOCKED, CKF_USER_PIN_LOCKED]);
    }
}
