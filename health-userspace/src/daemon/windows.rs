//! Which services' time of the day it is. The core has no clock but the monotonic one.

use health_core::{
    model::{ServiceId, ServiceSpec},
    policy::DayWindow,
};
use jiff::{Timestamp, tz::TimeZone};

/// Services in which no stage of a way back may begin now.
pub(super) fn closed(specs: &[ServiceSpec], now: Timestamp) -> Vec<ServiceId> {
    let has = |spec: &&ServiceSpec| spec.policy.failback.window.as_ref().is_some_and(|window| !is_open(window, now));
    specs.iter().filter(has).map(|spec| spec.id).collect()
}

fn is_open(window: &DayWindow, now: Timestamp) -> bool {
    // The configuration has proved that the zone is there; a database that lost it since closes no window.
    let zone = if window.zone.is_empty() { Some(TimeZone::system()) } else { TimeZone::get(&window.zone).ok() };
    let Some(zone) = zone else { return true };
    let time = now.to_zoned_datetime(zone).time();
    let minute = u16::from(time.hour().unsigned_abs()) * 60 + u16::from(time.minute().unsigned_abs());
    window.is_open(minute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zone_is_the_windows_own() {
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let window = |zone: &str| DayWindow { from: 120, to: 300, zone: zone.to_owned() };
        for (now, zone, open) in [
            ("2026-11-30T02:00:00Z", "UTC", true),
            ("2026-11-30T05:00:00Z", "UTC", false),
            ("2026-11-29T18:00:00Z", "Asia/Shanghai", true),
            ("2026-11-30T02:00:00Z", "Asia/Shanghai", false),
        ] {
            assert_eq!(is_open(&window(zone), at(now)), open, "{now} {zone}");
        }
    }
}
