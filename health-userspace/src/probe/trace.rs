//! What a round notes while it runs: its steps and their times, and in words why it ended.

use super::clock::now;
use health_core::{Span, Timestamp, model::Layer};

/// One step of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Stable name, such as `connect`, `tls`, `first_byte`; the same in all output.
    pub name: &'static str,
    /// What a failure of this step is a failure of.
    pub layer: Layer,
    /// How long it took, or lasted until the deadline ended it.
    pub took: Span,
}

/// What a round found out besides pass or fail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Why it ended as it did, in words for people: what came and what was expected. Never in a label. At most
    /// [`DETAIL_CHARS_MAX`] characters; control characters are escaped.
    pub detail: Option<String>,
    /// Base weight that a script set (`dynamic_weight`).
    pub weight: Option<u16>,
    /// When the first of the shown certificates that counts ends. Unit: seconds since 1970.
    pub cert_not_after: Option<i64>,
}

/// Longest [`Notes::detail`]: it comes from the origin, and status must stay readable.
pub const DETAIL_CHARS_MAX: usize = 200;

/// The notes of the round that runs. A kind begins each of its steps here; what the deadline cuts off is then known by
/// name.
#[derive(Debug, Default)]
pub struct Trace {
    steps: Vec<Step>,
    running: Option<(&'static str, Layer, Timestamp)>,
    notes: Notes,
}

impl Trace {
    /// A step begins; the one before has ended.
    pub fn begin(&mut self, name: &'static str, layer: Layer) {
        let at = now();
        self.end_at(at);
        self.running = Some((name, layer, at));
    }

    /// The running step has ended, and none follows yet.
    pub fn end(&mut self) {
        self.end_at(now());
    }

    fn end_at(&mut self, at: Timestamp) {
        if let Some((name, layer, began)) = self.running.take() {
            self.steps.push(Step { name, layer, took: at.since(began) });
        }
    }

    /// A step that somebody else timed (a worker process).
    pub fn push(&mut self, step: Step) {
        self.end();
        self.steps.push(step);
    }

    /// Layer of the running step, or of the last one; `Network` before the first.
    #[must_use]
    pub fn layer(&self) -> Layer {
        let running = self.running.map(|(_, layer, _)| layer);
        running.or_else(|| self.steps.last().map(|step| step.layer)).unwrap_or(Layer::Network)
    }

    /// Says why the round ends as it does. The last word counts.
    pub fn explain(&mut self, detail: impl AsRef<str>) {
        let escaped: String = detail.as_ref().chars().flat_map(shown).take(DETAIL_CHARS_MAX).collect();
        self.notes.detail = Some(escaped);
    }

    /// Whether somebody has said why.
    #[must_use]
    pub const fn is_explained(&self) -> bool {
        self.notes.detail.is_some()
    }

    /// Notes the base weight that a script set.
    pub const fn set_weight(&mut self, weight: u16) {
        self.notes.weight = Some(weight);
    }

    /// Notes when the certificate ends. Unit: seconds since 1970.
    pub const fn set_cert_not_after(&mut self, at: i64) {
        self.notes.cert_not_after = Some(at);
    }

    /// What was noted, when the round is over.
    pub(super) fn finish(mut self, at: Timestamp) -> (Vec<Step>, Notes) {
        self.end_at(at);
        (self.steps, self.notes)
    }
}

/// As it may be shown on a terminal.
fn shown(c: char) -> impl Iterator<Item = char> {
    let (escaped, plain) = if c.is_control() { (Some(c.escape_default()), None) } else { (None, Some(c)) };
    escaped.into_iter().flatten().chain(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_each_other_and_the_last_one_is_cut_off_by_name() {
        let mut trace = Trace::default();
        assert_eq!(trace.layer(), Layer::Network);
        trace.begin("connect", Layer::Transport);
        trace.begin("tls", Layer::Tls);
        trace.end();
        assert_eq!(trace.layer(), Layer::Tls);
        trace.push(Step { name: "select", layer: Layer::Application, took: Span::from_millis(7) });
        trace.begin("first_byte", Layer::Application);
        let (steps, _) = trace.finish(now());
        let names: Vec<_> = steps.iter().map(|step| (step.name, step.layer)).collect();
        let app = Layer::Application;
        assert_eq!(names, [("connect", Layer::Transport), ("tls", Layer::Tls), ("select", app), ("first_byte", app)]);
        assert_eq!(steps[2].took, Span::from_millis(7));
    }

    #[test]
    fn what_an_origin_says_cannot_paint_the_terminal_nor_fill_it() {
        let mut trace = Trace::default();
        trace.explain("line\u{1b}[31m\r\n登录");
        assert!(trace.is_explained());
        let (_, notes) = trace.finish(now());
        assert_eq!(notes.detail.as_deref(), Some("line\\u{1b}[31m\\r\\n登录"));
        let mut trace = Trace::default();
        trace.explain("x".repeat(10_000));
        assert_eq!(trace.finish(now()).1.detail.map(|detail| detail.len()), Some(DETAIL_CHARS_MAX));
    }
}
