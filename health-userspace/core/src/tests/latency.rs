use super::*;
use crate::policy::Policy;

const SECOND: Span = Span::from_secs(1);

struct Line {
    latency: Latency,
    limits: Limits,
    now: Timestamp,
    timeout: Option<Span>,
    healthy: bool,
}

impl Line {
    fn new(samples_min: u64) -> Self {
        let now = Timestamp(1_000_000_000_000);
        let limits = Policy::default().latency;
        Self { latency: Latency::new(samples_min), limits, now, timeout: None, healthy: true }
    }

    /// So many seconds, with so many answers in each, that take so long.
    fn answers(&mut self, seconds: u64, each: u32, millis: u64) -> Grade {
        for _ in 0..seconds {
            self.now = self.now.after(SECOND);
            for _ in 0..each {
                self.latency.record_one(Span::from_millis(millis));
            }
            let patience = Span::from_secs(30);
            let held = Held { limits: &self.limits, healthy: self.healthy, timeout: self.timeout, patience };
            self.latency.advance(self.now, &held);
            self.healthy &= self.latency.grade() <= Grade::Healthy;
        }
        self.latency.grade()
    }

    fn usual_ms(&self) -> Option<u64> {
        self.latency.baseline().map(|usual| usual.p95.as_millis())
    }
}

#[test]
fn nothing_is_usual_below_the_volume_floor() {
    let mut line = Line::new(20);
    line.answers(180, 1, 10);
    assert_eq!(line.usual_ms(), None, "less than 200 in the closed minutes");
    assert_eq!(line.answers(60, 2, 900), Grade::Healthy, "and so nothing is late");
    line.answers(121, 2, 10);
    assert!(line.usual_ms().is_some());
}

#[test]
fn three_late_buckets_degrade_and_two_prompt_ones_end_it() {
    let mut line = Line::new(20);
    line.answers(300, 5, 20);
    let usual = line.usual_ms().expect("learned");
    assert!((18..=22).contains(&usual), "{usual}");
    // Limit: the greater of 3 x 20 ms and 20 + 50 ms.
    assert_eq!(line.answers(100, 5, 55), Grade::Healthy, "within both");
    assert_eq!(line.answers(19, 5, 200), Grade::Healthy, "two buckets are not three");
    assert_eq!(line.answers(11, 5, 200), Grade::Degraded);
    assert_eq!(line.answers(10, 5, 20), Grade::Degraded, "one prompt bucket may be luck");
    assert_eq!(line.answers(11, 5, 20), Grade::Healthy);
}

#[test]
fn both_the_factor_and_the_addition_must_be_exceeded() {
    for (usual, now, want) in [(1, 40, false), (1, 60, true), (100, 250, false), (100, 340, true)] {
        let mut line = Line::new(20);
        line.answers(300, 5, usual);
        let late = line.answers(50, 5, now) > Grade::Healthy;
        assert_eq!(late, want, "{now} ms where {usual} ms is usual");
    }
}

#[test]
fn very_late_or_over_the_response_timeout_is_high_risk() {
    let mut line = Line::new(20);
    line.answers(300, 5, 20);
    assert_eq!(line.answers(40, 5, 900), Grade::Degraded, "45 x, but not a second more");
    assert_eq!(line.answers(40, 5, 1200), Grade::HighRisk);
    let mut line = Line::new(20);
    line.answers(300, 5, 20);
    line.timeout = Some(Span::from_millis(80));
    assert_eq!(line.answers(40, 5, 100), Grade::HighRisk, "later than any request may be");
    assert!(line.latency.text("ttfb", &line.limits, line.timeout).starts_with("ttfb p95 "));
}

#[test]
fn what_ails_teaches_nothing_however_long() {
    let mut line = Line::new(20);
    line.answers(600, 5, 20);
    let usual = line.usual_ms();
    assert_eq!(line.answers(6 * 3600, 5, 200), Grade::Degraded);
    assert_eq!(line.usual_ms(), usual, "frozen: six hours later it is still late");
    let text = line.latency.text("ttfb", &line.limits, None);
    assert!(text.contains("> 3 x "), "{text}");
}

#[test]
fn a_slow_drift_in_health_is_followed_and_the_past_hour_is_forgotten() {
    let mut line = Line::new(20);
    line.answers(3600, 1, 20);
    for millis in [30, 40, 50] {
        assert_eq!(line.answers(3700, 1, millis), Grade::Healthy);
    }
    let usual = line.usual_ms().expect("learned");
    assert!((44..=56).contains(&usual), "{usual}");
}

/// A night without traffic: what was usual in the evening is usual in the morning.
#[test]
fn silence_forgets_nothing_and_is_never_late() {
    let mut line = Line::new(20);
    line.answers(600, 5, 20);
    let usual = line.usual_ms();
    assert_eq!(line.answers(8 * 3600, 0, 0), Grade::Healthy);
    assert_eq!(line.usual_ms(), usual);
    assert_eq!(line.answers(40, 5, 200), Grade::Degraded);
    assert_eq!(line.answers(60, 0, 0), Grade::Unknown, "nothing is late where nothing comes");
}

/// Two in a hundred that take half a second are what a network and a garbage collector bring about.
#[test]
fn a_two_percent_tail_is_not_late() {
    let mut line = Line::new(20);
    line.answers(600, 20, 20);
    for second in 0..1200_u64 {
        line.now = line.now.after(SECOND);
        for turn in 0..20_u64 {
            let slow = (second * 20 + turn) % 50 == 7;
            line.latency.record_one(Span::from_millis(if slow { 500 } else { 20 }));
        }
        let held = Held { limits: &line.limits, healthy: true, timeout: None, patience: Span::from_secs(30) };
        line.latency.advance(line.now, &held);
        assert!(line.latency.grade() <= Grade::Healthy);
    }
}

/// A check has few rounds in a bucket: its median speaks, so that one slow round does not.
#[test]
fn a_check_is_late_only_if_most_rounds_are() {
    let mut line = Line::new(1);
    let round = |line: &mut Line, millis: u64| {
        line.now = line.now.after(Span::from_secs(5));
        line.latency.record_one(Span::from_millis(millis));
        let held = Held { limits: &line.limits, healthy: true, timeout: None, patience: Span::from_secs(30) };
        line.latency.advance(line.now, &held);
        line.latency.grade()
    };
    for _ in 0..260 {
        round(&mut line, 20);
    }
    assert!(line.usual_ms().is_some());
    for _ in 0..10 {
        assert!(round(&mut line, 800) <= Grade::Healthy);
        assert!(round(&mut line, 20) <= Grade::Healthy);
    }
    let grades: alloc::vec::Vec<Grade> = (0..8).map(|_| round(&mut line, 800)).collect();
    assert_eq!(grades.last(), Some(&Grade::Degraded), "{grades:?}");
}

#[test]
fn a_baseline_is_inherited_until_there_is_enough_to_go_by() {
    let mut line = Line::new(20);
    line.latency.inherit(Baseline { p95: Span::from_millis(20), samples: 1000 });
    assert_eq!(line.answers(40, 5, 200), Grade::Degraded);
    let mut line = Line::new(20);
    line.latency.inherit(Baseline { p95: Span::from_millis(20), samples: 1000 });
    line.answers(600, 5, 40);
    assert!(line.usual_ms().expect("learned") > 35);
}

#[test]
fn off_is_off() {
    let mut line = Line::new(20);
    line.answers(600, 5, 20);
    line.limits.learn = false;
    assert_eq!(line.answers(100, 5, 5000), Grade::Unknown);
    assert_eq!(line.usual_ms(), None);
}
