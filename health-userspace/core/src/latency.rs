//! What answers usually take, learned while all is well, and answers that take much longer.
//!
//! Times fill a bucket of ten seconds. A bucket whose 95th percentile is far above what was usual in the past hour is late;
//! so many late ones in a row make a grade. What is usual is learned only from minutes in which the origin was `healthy`
//! throughout and no bucket was late; at all other times it stays what it was, so that an origin that ails for a day is still
//! held to what it was before. Minutes without an answer are no minutes: a night without traffic forgets nothing.

use crate::{
    policy::{Latency as Limits, LatencyOver},
    time::{Span, Timestamp},
    verdict::Grade,
    window::Tally,
};
use alloc::{format, string::String, vec::Vec};
use health_common::histogram;

/// Length of a bucket (design.md §5).
const BUCKET: Span = Span::from_secs(10);

/// What is learned, is learned by the minute (design.md §5).
const MINUTE: Span = Span::from_secs(60);

/// Parts that the past is kept in: the oldest of them goes at once.
const PARTS: usize = 6;

/// [`PARTS`], as a divisor.
const PARTS_OF_HISTORY: u64 = 6;

/// Samples from which a 95th percentile says more than one stray; below it the median is taken.
const TAIL_SAMPLES_MIN: u64 = 20;

/// Prompt buckets in a row that end a grade: one may be luck.
const PROMPT_ENDS: u8 = 2;

/// Times by buckets of the histogram that the kernel keeps too ([`health_common::histogram`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times(Vec<(u8, u32)>);

impl Times {
    /// Adds `count` times that fall into `bucket`. Others than the histogram has are its last.
    pub fn add(&mut self, bucket: usize, count: u32) {
        let last = histogram::BUCKETS.saturating_sub(1);
        let Ok(bucket) = u8::try_from(bucket.min(last)) else { return };
        match self.0.binary_search_by_key(&bucket, |(bucket, _)| *bucket) {
            Ok(place) => {
                if let Some((_, held)) = self.0.get_mut(place) {
                    *held = held.saturating_add(count);
                }
            }
            Err(place) => self.0.insert(place, (bucket, count)),
        }
    }

    /// Adds one time.
    pub fn add_time(&mut self, time: Span) {
        self.add(histogram::bucket(time.0), 1);
    }

    /// Adds all of `other`.
    pub fn add_all(&mut self, other: &Self) {
        for &(bucket, count) in &other.0 {
            self.add(usize::from(bucket), count);
        }
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.0.iter().fold(0, |sum, (_, count)| sum.saturating_add(u64::from(*count)))
    }

    /// The time below which `percent` of them lie. `None` without samples.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> Option<Span> {
        let mut counts = [0_u64; histogram::BUCKETS];
        for &(bucket, count) in &self.0 {
            if let Some(sum) = counts.get_mut(usize::from(bucket)) {
                *sum = u64::from(count);
            }
        }
        histogram::percentile(&counts, &[0; histogram::BUCKETS], percent).map(|(ns, _)| Span(ns))
    }
}

/// What is usual of one origin's traffic or of one check: outlives the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Baseline {
    /// The 95th percentile.
    pub p95: Span,
    /// Samples that it rests on.
    pub samples: u64,
}

/// The times of one origin's traffic, or of one check.
#[derive(Clone, Debug)]
pub struct Latency {
    /// Samples below which a bucket is not judged: it goes on.
    samples_min: u64,
    /// The bucket that is filling.
    bucket: Times,
    bucket_began: Timestamp,
    /// The minute that is filling, and whether it teaches nothing.
    minute: Times,
    minute_began: Timestamp,
    spoilt: bool,
    /// Newest first.
    past: [Times; PARTS],
    /// Minutes in the newest of them.
    minutes: u64,
    usual: Option<Baseline>,
    /// Of an earlier daemon, until there is enough to go by.
    inherited: Option<Baseline>,
    late: u8,
    very_late: u8,
    prompt: u8,
    grade: Grade,
    newest: Option<Newest>,
}

/// The newest bucket that was judged.
#[derive(Clone, Copy, Debug)]
struct Newest {
    at: Timestamp,
    took: Span,
    /// Whether `took` is the 95th percentile, not the median.
    tail: bool,
}

/// What a bucket is held to.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// The policy.
    pub limits: &'a Limits,
    /// Whether the origin is `healthy`.
    pub healthy: bool,
    /// The response timeout, of traffic.
    pub timeout: Option<Span>,
    /// How long a bucket with too few samples goes on.
    pub patience: Span,
}

impl Latency {
    /// Nothing is known. Buckets of fewer than `samples_min` say nothing.
    #[must_use]
    pub fn new(samples_min: u64) -> Self {
        Self {
            samples_min,
            bucket: Times::default(),
            bucket_began: Timestamp::NEVER,
            minute: Times::default(),
            minute_began: Timestamp::NEVER,
            spoilt: false,
            past: core::array::from_fn(|_| Times::default()),
            minutes: 0,
            usual: None,
            inherited: None,
            late: 0,
            very_late: 0,
            prompt: 0,
            grade: Grade::Unknown,
            newest: None,
        }
    }

    /// Adds times that ended just before now.
    pub fn record(&mut self, times: &Times) {
        self.bucket.add_all(times);
    }

    /// Adds one.
    pub fn record_one(&mut self, took: Span) {
        self.bucket.add_time(took);
    }

    /// Closes what is over: buckets, minutes, parts of the past. Call it at each tick.
    pub fn advance(&mut self, now: Timestamp, held: &Held<'_>) {
        if !held.limits.learn {
            self.restart();
            self.usual = None;
            return;
        }
        self.spoilt |= !held.healthy;
        if now.since(self.bucket_began) >= BUCKET {
            self.close_bucket(now, held);
        }
        if now.since(self.minute_began) >= MINUTE {
            self.close_minute(now, held.limits);
        }
        // Nothing is late where nothing comes.
        let silent = self.newest.is_none_or(|newest| now.since(newest.at) > held.patience.plus(BUCKET));
        if silent && self.grade > Grade::Healthy {
            (self.grade, self.late, self.very_late) = (Grade::Unknown, 0, 0);
        }
    }

    fn close_bucket(&mut self, now: Timestamp, held: &Held<'_>) {
        let samples = self.bucket.samples();
        if samples > 0 && samples < self.samples_min && now.since(self.bucket_began) < held.patience {
            return;
        }
        let bucket = core::mem::take(&mut self.bucket);
        self.bucket_began = now;
        let tail = samples >= TAIL_SAMPLES_MIN;
        let took = bucket.percentile(if tail { 95 } else { 50 }).filter(|_| samples >= self.samples_min);
        if let Some(took) = took {
            self.newest = Some(Newest { at: now, took, tail });
            self.judge(took, held);
        }
        self.minute.add_all(&bucket);
    }

    fn judge(&mut self, took: Span, held: &Held<'_>) {
        let over = |limit: LatencyOver| self.baseline().is_some_and(|usual| took > limit.of(usual.p95));
        let very_late = over(held.limits.high_risk) || held.timeout.is_some_and(|timeout| took > timeout);
        let late = very_late || over(held.limits.degraded);
        let run = |run: u8, goes_on: bool| if goes_on { run.saturating_add(1) } else { 0 };
        (self.late, self.very_late) = (run(self.late, late), run(self.very_late, very_late));
        self.prompt = run(self.prompt, !late);
        self.spoilt |= late;
        let enough = held.limits.buckets;
        self.grade = if self.very_late >= enough {
            Grade::HighRisk
        } else if self.late >= enough {
            Grade::Degraded
        } else if self.grade > Grade::Healthy && self.prompt < PROMPT_ENDS {
            self.grade
        } else {
            Grade::Healthy
        };
    }

    fn close_minute(&mut self, now: Timestamp, limits: &Limits) {
        let minute = core::mem::take(&mut self.minute);
        let spoilt = core::mem::take(&mut self.spoilt);
        self.minute_began = now;
        if spoilt || minute.is_empty() {
            return;
        }
        let part = limits.history.part(PARTS_OF_HISTORY).0.checked_div(MINUTE.0).unwrap_or(1).max(1);
        if self.minutes >= part {
            self.minutes = 0;
            self.past.rotate_right(1);
            if let Some(newest) = self.past.first_mut() {
                *newest = Times::default();
            }
        }
        self.minutes = self.minutes.saturating_add(1);
        if let Some(newest) = self.past.first_mut() {
            newest.add_all(&minute);
        }
        let mut all = Times::default();
        self.past.iter().for_each(|part| all.add_all(part));
        let samples = all.samples();
        let enough = samples >= u64::from(limits.samples_min);
        self.usual = all.percentile(95).filter(|_| enough).map(|p95| Baseline { p95, samples });
    }

    /// What is usual, once that is known.
    #[must_use]
    pub fn baseline(&self) -> Option<Baseline> {
        self.usual.or(self.inherited)
    }

    /// Goes on with what an earlier daemon had learned.
    pub(crate) const fn inherit(&mut self, baseline: Baseline) {
        self.inherited = Some(baseline);
    }

    /// What is late is judged anew; what is usual stays.
    pub(crate) fn restart(&mut self) {
        self.bucket = Times::default();
        (self.late, self.very_late, self.prompt) = (0, 0, 0);
        (self.grade, self.newest) = (Grade::Unknown, None);
        self.spoilt = true;
    }

    /// The grade of the newest buckets.
    #[must_use]
    pub const fn grade(&self) -> Grade {
        self.grade
    }

    /// How late it is, as the limit beside what is above it. For a score.
    pub(crate) fn tally(&self, limits: &Limits) -> Tally {
        let limit = self.baseline().map_or(Span::ZERO, |usual| limits.degraded.of(usual.p95));
        let took = self.newest.map_or(Span::ZERO, |newest| newest.took);
        Tally { good: limit.as_millis(), bad: took.since(limit).as_millis() }
    }

    /// In words, such as `ttfb p95 410ms > 3 x 61ms`; `name`: of what.
    pub(crate) fn text(&self, name: &str, limits: &Limits, timeout: Option<Span>) -> String {
        let Some(Newest { took, tail, .. }) = self.newest else { return String::from(name) };
        let word = if tail { "p95" } else { "median" };
        let over = if self.grade == Grade::HighRisk { limits.high_risk } else { limits.degraded };
        match (self.baseline(), timeout) {
            (Some(usual), _) if took > over.of(usual.p95) => {
                let factor = over.factor_percent;
                let times = match (factor.checked_div(100), factor.checked_rem(100)) {
                    (Some(times), Some(0)) => format!("{times} x"),
                    _ => format!("{factor}% of"),
                };
                format!("{name} {word} {} > {times} {}", round(took), round(usual.p95))
            }
            (_, Some(timeout)) if took > timeout => {
                format!("{name} {word} {} > response timeout {timeout}", round(took))
            }
            (Some(usual), _) => format!("{name} {word} {}, usually {}", round(took), round(usual.p95)),
            (None, _) => format!("{name} {word} {}", round(took)),
        }
    }
}

/// A bucket of a histogram has no more than two digits to tell.
fn round(span: Span) -> Span {
    if span >= Span::from_millis(1) { Span::from_millis(span.as_millis()) } else { Span::from_millis(1) }
}

#[cfg(test)]
#[path = "tests/latency.rs"]
mod tests;
