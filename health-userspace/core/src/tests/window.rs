use super::*;
use proptest::prelude::*;

const LENGTH: Span = Span::from_secs(30);

fn good(n: u64) -> Tally {
    Tally { good: n, bad: 0 }
}

#[test]
fn forgets_after_its_length_and_a_tenth() {
    let mut window = Window::new(LENGTH);
    let start = Timestamp(1_000_000_000_000);
    window.record(start, good(7));
    window.advance(start.after(LENGTH));
    assert_eq!(window.tally(), good(7), "the whole length is covered");
    window.advance(start.after(Span::from_secs(33)));
    assert_eq!(window.tally(), Tally::EMPTY);
}

#[test]
fn a_clock_that_steps_back_loses_nothing() {
    let mut window = Window::new(LENGTH);
    window.record(Timestamp(500_000_000_000), good(1));
    window.record(Timestamp(400_000_000_000), good(2));
    assert_eq!(window.tally(), good(3));
}

#[test]
fn resizing_keeps_what_is_held() {
    let mut window = Window::new(LENGTH);
    window.record(Timestamp(500_000_000_000), Tally { good: 3, bad: 4 });
    window.resize(Span::from_secs(60));
    window.advance(Timestamp(555_000_000_000));
    assert_eq!(window.tally(), Tally { good: 3, bad: 4 });
}

#[test]
fn thresholds_are_strict_and_need_samples() {
    for (good, bad, percent, below) in
        [(0, 0, 100, false), (1, 4, 20, false), (19, 81, 20, true), (80, 20, 80, false), (0, 1, 1, true)]
    {
        assert_eq!(Tally { good, bad }.is_below(percent), below, "{good}/{bad} {percent}");
    }
}

proptest! {
    /// Against a list of everything: all of the last length is there, nothing older than a tenth more.
    #[test]
    fn covers_the_length_and_at_most_a_tenth_more(steps in prop::collection::vec((0_u64..8_000, 0_u64..5, 0_u64..5), 1..80)) {
        let mut window = Window::new(LENGTH);
        let mut now = Timestamp(7_777_777_777);
        let mut all: Vec<(Timestamp, Tally)> = Vec::new();
        for (millis, good, bad) in steps {
            now = now.after(Span::from_millis(millis));
            window.record(now, Tally { good, bad });
            all.push((now, Tally { good, bad }));
            let within = |span: Span| all.iter().filter(|(at, _)| now.since(*at) <= span)
                .fold(Tally::EMPTY, |sum, (_, tally)| sum.plus(*tally));
            let (least, most) = (within(LENGTH), within(LENGTH.times(11).part(10)));
            let held = window.tally();
            prop_assert!(least.good <= held.good && held.good <= most.good);
            prop_assert!(least.bad <= held.bad && held.bad <= most.bad);
        }
    }
}

use alloc::vec::Vec;
