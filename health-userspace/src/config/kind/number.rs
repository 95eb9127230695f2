//! Numbers as they are written, compared exactly: neither 4.9999999999999999 nor 9007199254740993 is what a double makes
//! of it.

use std::{cmp::Ordering, fmt};

/// Most characters of a number. A longer one is a mistake or an attack.
const CHARS_MAX: usize = 400;

/// A decimal number of any size: ± 0.d₁d₂d₃… × 10^point. Zero has no digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    negative: bool,
    /// Neither the first nor the last one is 0.
    digits: Vec<u8>,
    point: i64,
    text: String,
}

impl Decimal {
    /// Reads what JSON (RFC 8259 §6) takes for a number. `None` for anything else, and for what is beyond reason.
    pub(super) fn read(text: &str) -> Option<Self> {
        if text.len() > CHARS_MAX {
            return None;
        }
        let unsigned = text.strip_prefix('-').unwrap_or(text);
        let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, read_exponent(exponent)?),
            None => (unsigned, 0),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((_, "")) => return None,
            Some(parts) => parts,
            None => (mantissa, ""),
        };
        let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty()
            || (whole.len() > 1 && whole.starts_with('0'))
            || !all_digits(whole)
            || !all_digits(fraction)
        {
            return None;
        }
        let all: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|byte| byte - b'0').collect();
        let zeros = all.iter().take_while(|digit| **digit == 0).count();
        let mut digits = all.get(zeros..).unwrap_or_default().to_vec();
        while digits.last() == Some(&0) {
            digits.pop();
        }
        let places = |count: usize| i64::try_from(count).ok();
        let point = if digits.is_empty() { 0 } else { exponent + places(whole.len())? - places(zeros)? };
        let negative = text.starts_with('-') && !digits.is_empty();
        Some(Self { negative, digits, point, text: text.to_owned() })
    }
}

/// At most nine digits, so that nothing overflows.
fn read_exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let fits = (1..=9).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    let size: i64 = if fits { digits.parse().ok()? } else { return None };
    Some(if text.starts_with('-') { -size } else { size })
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// By value: 1 is 1.0 is 10e-1.
pub(super) fn compare(left: &Decimal, right: &Decimal) -> Ordering {
    let size = |number: &Decimal| (!number.digits.is_empty(), number.point);
    let sizes = || size(left).cmp(&size(right)).then_with(|| left.digits.cmp(&right.digits));
    match (left.negative, right.negative) {
        (false, true) => Ordering::Greater,
        (true, false) => Ordering::Less,
        (false, false) => sizes(),
        (true, true) => sizes().reverse(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(left: &str, right: &str) -> Ordering {
        compare(&Decimal::read(left).expect(left), &Decimal::read(right).expect(right))
    }

    #[test]
    fn numbers_are_compared_as_written() {
        let table = [
            ("3", "5", Ordering::Less),
            ("4.9999999999999999", "5", Ordering::Less),
            ("9007199254740993", "9007199254740992", Ordering::Greater),
            ("217.20000000000002", "217.2", Ordering::Greater),
            ("1", "1.0", Ordering::Equal),
            ("10e-1", "1", Ordering::Equal),
            ("0.001E3", "1", Ordering::Equal),
            ("-0", "0.0", Ordering::Equal),
            ("0e5", "0", Ordering::Equal),
            ("-2", "1", Ordering::Less),
            ("-2", "-10", Ordering::Greater),
            ("0.5", "0.25", Ordering::Greater),
            ("1e999999999", "1", Ordering::Greater),
            ("1e-999999999", "0", Ordering::Greater),
        ];
        for (left, right, expected) in table {
            assert_eq!(order(left, right), expected, "{left} {right}");
            assert_eq!(order(right, left), expected.reverse(), "{right} {left}");
        }
    }

    #[test]
    fn what_json_takes_for_no_number_is_none() {
        let long = "1".repeat(CHARS_MAX + 1);
        let bad = ["", "-", "01", "1.", ".5", "+1", "1e", "1e1000000000", "0x1", " 1", "1 ", "NaN", "1_000", &long];
        for text in bad {
            assert_eq!(Decimal::read(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn whole_numbers_are_compared_like_integers(left: i128, right: i128) {
            prop_assert_eq!(order(&left.to_string(), &right.to_string()), left.cmp(&right));
        }

        #[test]
        fn moving_the_point_changes_nothing(number in any::<i64>().prop_filter("a 0 may lead no number", |n| *n != 0),
                                            places in 0_u8..40) {
            let zeros = "0".repeat(places.into());
            prop_assert_eq!(order(&format!("{number}e{places}"), &format!("{number}{zeros}")), Ordering::Equal);
        }

        #[test]
        fn any_bytes_are_a_number_only_if_json_says_so(text in "[-+0-9.eE]{0,30}|\\PC{0,20}") {
            let read = Decimal::read(&text);
            // It agrees with the JSON library on what is a number, as far as that goes.
            let json = serde_json::from_str::<serde_json::Number>(&text).is_ok();
            prop_assert!(read.is_none() || text.contains(['e', 'E']) || json, "{}", text);
        }
    }
}
