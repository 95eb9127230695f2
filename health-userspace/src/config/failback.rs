//! `policy.failback`: the way back.

use super::read::Section;
use health_core::{
    Span,
    policy::{Approval, Canary, DayWindow, Failback},
};

/// Most stages: more would be finer than a slot table of 251 places shows.
const STAGES_MAX: usize = 16;
/// Longest time of a step, and of an approval. A week.
const WEEK: Span = Span::from_secs(7 * 86_400);
/// Minutes of a day.
const DAY_MINUTES: u16 = 24 * 60;

/// `base` with the section's keys written over it.
pub(super) fn failback(section: &Section<'_>, base: &Failback) -> Failback {
    Failback {
        observe_for: section.time("observe_for", Span::ZERO, WEEK).unwrap_or(base.observe_for),
        stages: stages(section).unwrap_or_else(|| base.stages.clone()),
        stage_for: section.time("stage_for", Span::ZERO, WEEK).unwrap_or(base.stage_for),
        approval: approval(section, base.approval),
        approval_expires: section.time("approval_expires", Span::from_secs(60), WEEK).unwrap_or(base.approval_expires),
        window: window(section, base.window.as_ref()),
        canary: canary(&section.table("canary"), base.canary),
    }
}

/// Percentages that rise to 100.
fn stages(section: &Section<'_>) -> Option<Vec<u8>> {
    let stages: Vec<u8> = section.numbers("stages", "[10, 50, 100]", 1, 100)?;
    let rises = stages.windows(2).all(|pair| pair[0] < pair[1]);
    if !rises || stages.last() != Some(&100) || stages.len() > STAGES_MAX {
        section.error(
            "stages",
            "`failback.stages` do not rise to 100",
            format!("write at most {STAGES_MAX} percentages, each greater than the one before, the last one 100"),
        );
        return None;
    }
    Some(stages)
}

fn approval(section: &Section<'_>, base: Approval) -> Approval {
    let manual = section.choice("approval", &[("auto", false), ("manual", true)]).unwrap_or(base != Approval::Auto);
    let each = [("first_stage", Approval::FirstStage), ("each_stage", Approval::EachStage)];
    let before = section.choice("approve", &each);
    if before.is_some() && !manual {
        section.sink().warning(
            section.at_key("approve"),
            "`approve` says before what an operator approves, but `approval` is \"auto\"",
            "write approval = \"manual\" beside it, or remove it",
        );
    }
    match (manual, before, base) {
        (false, _, _) => Approval::Auto,
        (true, Some(before), _) => before,
        (true, None, Approval::EachStage) => Approval::EachStage,
        (true, None, Approval::Auto | Approval::FirstStage) => Approval::FirstStage,
    }
}

fn window(section: &Section<'_>, base: Option<&DayWindow>) -> Option<DayWindow> {
    let Some(text) = section.text("window", "02:00-05:00 Asia/Shanghai") else { return base.cloned() };
    if text.value.is_empty() {
        // Taken back from what the defaults say.
        return None;
    }
    match day_window(text.value) {
        Ok(window) => Some(window),
        Err(reason) => {
            section.error(
                "window",
                format!("`failback.window` is no time of the day: {reason}"),
                "write, for example, window = \"02:00-05:00 Asia/Shanghai\"; without a zone it is the node's own",
            );
            None
        }
    }
}

/// Reads `HH:MM-HH:MM ZONE`.
fn day_window(text: &str) -> Result<DayWindow, String> {
    let (times, zone) = text.split_once(' ').unwrap_or((text, ""));
    let (from, to) = times.split_once('-').ok_or_else(|| format!("`{times}` has no `-`"))?;
    let (from, to) = (minute(from)?, minute(to)?);
    if from == to {
        return Err("it begins when it ends".to_owned());
    }
    let zone = zone.trim();
    if !zone.is_empty() {
        jiff::tz::TimeZone::get(zone).map_err(|_unknown| format!("no time zone is called `{zone}`"))?;
    }
    Ok(DayWindow { from, to, zone: zone.to_owned() })
}

fn minute(text: &str) -> Result<u16, String> {
    let wrong = || format!("`{text}` is not HH:MM");
    let (hour, minute) = text.split_once(':').ok_or_else(wrong)?;
    let number = |text: &str| text.parse::<u16>().ok().filter(|_| text.len() == 2);
    let (hour, minute) = number(hour).zip(number(minute)).ok_or_else(wrong)?;
    // 24:00 is the end of a day.
    let minutes = hour * 60 + minute;
    if minute > 59 || minutes > DAY_MINUTES { Err(wrong()) } else { Ok(minutes) }
}

/// Writes a window so that it reads the same.
pub(super) fn window_text(window: &DayWindow) -> String {
    let DayWindow { from, to, zone } = window;
    let text = format!("{:02}:{:02}-{:02}:{:02} {zone}", from / 60, from % 60, to / 60, to % 60);
    text.trim_end().to_owned()
}

fn canary(section: &Section<'_>, base: Canary) -> Canary {
    Canary {
        fail_over_standby_percent: section
            .number("fail_over_standby_percent", 0, 100)
            .unwrap_or(base.fail_over_standby_percent),
        ttfb_factor_percent: section.number("ttfb_factor_percent", 100, 10_000).unwrap_or(base.ttfb_factor_percent),
        flows_min: section.number("flows_min", 1, 1_000_000).unwrap_or(base.flows_min),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_read_and_written_alike() {
        for text in ["02:00-05:00 Asia/Shanghai", "22:30-06:00", "00:00-24:00 UTC"] {
            let window = day_window(text).expect("is a window");
            assert_eq!(window_text(&window), text);
        }
        let night = day_window("22:30-06:00").expect("is a window");
        let open: Vec<bool> = [0, 359, 360, 1349, 1350].into_iter().map(|minute| night.is_open(minute)).collect();
        assert_eq!(open, [true, true, false, false, true]);
        for (text, reason) in [
            ("02:00", "`02:00` has no `-`"),
            ("2:00-05:00", "`2:00` is not HH:MM"),
            ("02:60-05:00", "`02:60` is not HH:MM"),
            ("02:00-24:01", "`24:01` is not HH:MM"),
            ("02:00-02:00", "it begins when it ends"),
            ("02:00-05:00 Asia/Nowhere", "no time zone is called `Asia/Nowhere`"),
        ] {
            assert_eq!(day_window(text), Err(reason.to_owned()), "{text}");
        }
    }
}
