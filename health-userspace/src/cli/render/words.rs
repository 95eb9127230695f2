//! Lengths of time, times of day, sizes, marks.

use jiff::{Timestamp, tz::TimeZone};

/// A length of time that is read at a glance: `0.3s`, `12s`, `4m12s`, `38m`, `3h4m`, `2d3h`.
#[must_use]
pub fn span(millis: u64) -> String {
    let secs = millis / 1000;
    let (days, hours, minutes) = (secs / 86_400, secs / 3600 % 24, secs / 60 % 60);
    let two = |first: String, second: u64, unit: &str| match second {
        0 => first,
        _ => format!("{first}{second}{unit}"),
    };
    match secs {
        0..10 => format!("{secs}.{}s", millis % 1000 / 100),
        10..60 => format!("{secs}s"),
        60..3600 => two(format!("{minutes}m"), secs % 60, "s"),
        3600..86_400 => two(format!("{hours}h"), minutes, "m"),
        _ => two(format!("{days}d"), hours, "h"),
    }
}

/// A short length of time: `0.4ms`, `2ms`, `1.6s`.
#[must_use]
pub fn short_span(nanos: u64) -> String {
    match nanos {
        0..10_000_000 if !nanos.is_multiple_of(1_000_000) => {
            format!("{}.{}ms", nanos / 1_000_000, nanos % 1_000_000 / 100_000)
        }
        0..1_000_000_000 => format!("{}ms", nanos / 1_000_000),
        _ => span(nanos / 1_000_000),
    }
}

/// A size: `812 B`, `36 MiB`. Rounded to the nearest.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut rest = bytes;
    for unit in &units[..4] {
        if rest < 1024 {
            return format!("{rest} {unit}");
        }
        rest = rest.saturating_add(512) / 1024;
    }
    format!("{rest} {}", units[4])
}

/// Date, time and offset.
#[must_use]
pub fn date_time(at: Timestamp, zone: &TimeZone) -> String {
    let zoned = at.to_zoned_datetime(zone.clone());
    format!("{}{}", zoned.strftime("%Y-%m-%d %H:%M:%S "), zoned.strftime("%:z"))
}

/// Text from outside as text for a terminal: control characters must not reach it as orders.
#[must_use]
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// How loud a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// All is well.
    Calm,
    /// Look at it.
    Notice,
    /// Act.
    Alarm,
}

impl Weight {
    /// The mark at the beginning of a line, two columns wide.
    #[must_use]
    pub const fn mark(self) -> &'static str {
        match self {
            Self::Calm => "  ",
            Self::Notice => "! ",
            Self::Alarm => "!!",
        }
    }

    /// `text`, coloured if `colour`.
    #[must_use]
    pub fn paint(self, text: &str, colour: bool) -> String {
        match self {
            Self::Notice if colour => format!("\u{1b}[33m{text}\u{1b}[0m"),
            Self::Alarm if colour => format!("\u{1b}[1;31m{text}\u{1b}[0m"),
            _ => text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time() {
        let table = [
            (0, "0.0s"),
            (349, "0.3s"),
            (9_999, "9.9s"),
            (12_000, "12s"),
            (252_000, "4m12s"),
            (2_280_000, "38m"),
            (11_040_000, "3h4m"),
            (183_600_000, "2d3h"),
        ];
        for (millis, wanted) in table {
            assert_eq!(span(millis), wanted);
        }
        let short = [(400_000, "0.4ms"), (2_000_000, "2ms"), (45_600_000, "45ms"), (1_600_000_000, "1.6s")];
        for (nanos, wanted) in short {
            assert_eq!(short_span(nanos), wanted);
        }
    }

    #[test]
    fn sizes() {
        for (size, wanted) in [(812, "812 B"), (37_748_736, "36 MiB"), (1_100_000, "1 MiB"), (u64::MAX, "16777216 TiB")]
        {
            assert_eq!(bytes(size), wanted);
        }
    }

    #[test]
    fn a_terminal_gets_no_orders() {
        assert_eq!(clean("disk\u{1b}[2J swap\n磁盘"), "disk\u{fffd}[2J swap\u{fffd}磁盘");
    }
}
