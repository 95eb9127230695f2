//! `sluice events` as text.

use super::words::{clean, short_span};
use crate::report::EventLine;
use jiff::{Timestamp, tz::TimeZone};
use unicode_width::UnicodeWidthStr;

/// Events of this kind come in swarms, so equal ones are folded.
const FOLDED: &str = "rescue";

/// Columns that events are shown in; those that follow must fit the ones before.
#[derive(Clone, Debug)]
pub struct Columns {
    zone: TimeZone,
    dated: bool,
    what: usize,
    object: usize,
    detail: usize,
}

impl Columns {
    /// Columns for these events, seen at `now`: the date is shown where not all of them are of today.
    #[must_use]
    pub fn new(events: &[EventLine], now: Timestamp, zone: TimeZone) -> Self {
        let day = |at: Timestamp| at.to_zoned_datetime(zone.clone()).date();
        let dated = events.iter().any(|event| day(stamp(event.time_ns)) != day(now));
        let widest = |of: fn(&EventLine) -> &str, least: usize| {
            events.iter().map(|event| of(event).width()).max().unwrap_or(0).max(least)
        };
        Self {
            dated,
            what: widest(|event| &event.what, 10),
            object: widest(|event| &event.object, 14),
            // Long details push only their own line.
            detail: widest(|event| &event.detail, 30).min(60),
            zone,
        }
    }

    /// The heading, with the offset that times are shown in.
    #[must_use]
    pub fn heading(&self, now: Timestamp) -> String {
        let offset = now.to_zoned_datetime(self.zone.clone()).strftime("%:z").to_string();
        self.line(&format!("TIME ({offset})"), "WHAT", "OBJECT", "DETAIL", "BY")
    }

    /// One event.
    #[must_use]
    pub fn one(&self, event: &EventLine) -> String {
        let format = if self.dated { "%Y-%m-%d %H:%M:%S.%9f" } else { "%H:%M:%S.%9f" };
        let time = stamp(event.time_ns).to_zoned_datetime(self.zone.clone()).strftime(format).to_string();
        self.line(&time, &event.what, &event.object, &event.detail, &event.by)
    }

    fn line(&self, time: &str, what: &str, object: &str, detail: &str, by: &str) -> String {
        let time_width = if self.dated { 29 } else { 18 };
        let cells = [(time, time_width), (what, self.what), (object, self.object), (detail, self.detail), (by, 0)];
        let pad = |(cell, width): (&str, usize)| {
            let cell = clean(cell);
            let blanks = " ".repeat(width.saturating_sub(cell.width()));
            cell + &blanks
        };
        cells.map(pad).join("  ").trim_end().to_owned() + "\n"
    }
}

/// Swarms as one event each: equal rescues with nothing but rescues between them become the first of them, which says
/// how many there were, and in how long.
#[must_use]
pub fn fold(events: &[EventLine]) -> Vec<EventLine> {
    struct Swarm<'a> {
        first: &'a EventLine,
        count: u64,
        until_ns: u64,
    }
    let mut swarms: Vec<Swarm<'_>> = Vec::new();
    let mut begin = 0;
    for event in events {
        if event.what != FOLDED {
            begin = swarms.len() + 1;
        } else if let Some(swarm) = swarms[begin..].iter_mut().find(|swarm| alike(swarm.first, event)) {
            swarm.count += 1;
            swarm.until_ns = event.time_ns;
            continue;
        }
        swarms.push(Swarm { first: event, count: 1, until_ns: event.time_ns });
    }
    let name = |swarm: Swarm<'_>| {
        let mut event = swarm.first.clone();
        if swarm.count > 1 {
            let spread = short_span(swarm.until_ns.saturating_sub(event.time_ns));
            event.detail = format!("{} (x{} in {spread}, folded)", event.detail, swarm.count);
        }
        event
    };
    swarms.into_iter().map(name).collect()
}

/// Alike but for numbers that differ each time, which follow the first comma.
fn alike(a: &EventLine, b: &EventLine) -> bool {
    let kind = |event: &'_ EventLine| event.detail.split(',').next().map(str::to_owned);
    a.object == b.object && a.by == b.by && kind(a) == kind(b)
}

fn stamp(time_ns: u64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(time_ns)).unwrap_or(Timestamp::MAX)
}
