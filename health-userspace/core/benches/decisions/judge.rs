//! Who decides: the rule-of-thumb judges that people have today. Sluice itself is in `sluice.rs`.

use crate::{
    kernel::Answer,
    scenario::{Ms, SECOND, Shape},
};

/// Where a flow goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// `None`: it is refused at once.
    pub(crate) origin: Option<usize>,
    /// It tries an origin that is out, which a judge may do with one flow now and then.
    pub(crate) trial: bool,
}

impl Choice {
    pub(crate) const fn of(origin: usize) -> Self {
        Self { origin: Some(origin), trial: false }
    }
}

/// A first connection attempt, or one that goes elsewhere after the first failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    /// The origin that it asks for.
    pub(crate) own: usize,
    /// Its hash.
    pub(crate) hash: u64,
    pub(crate) client: u64,
}

/// What a check found, and how long it took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) origin: usize,
    pub(crate) began: Ms,
    pub(crate) takes: Ms,
    pub(crate) answer: Answer,
    pub(crate) page_wrong: bool,
}

/// One deadline for everything, as is the default of all of them.
pub(crate) const CHECK_TIMEOUT: Ms = 2 * SECOND;

impl Found {
    pub(crate) const fn passes(&self) -> bool {
        matches!(self.answer, Answer::Served(..)) && self.takes < CHECK_TIMEOUT && !self.page_wrong
    }
}

/// Decides where new flows go.
pub(crate) trait Judge {
    fn choose(&mut self, flow: Flow, now: Ms) -> Choice;
    /// An attempt, the moment its packets pass.
    fn attempt(&mut self, _flow: Flow, _origin: usize, _answer: Answer, _now: Ms) {}
    /// A SYN that is repeated, and what becomes of it.
    fn repeat(&mut self, _origin: usize, _answer: Answer, _now: Ms) {}
    /// A flow has ended for its client.
    fn ended(&mut self, _origin: usize, _well: bool, _now: Ms) {}
    /// Where a refused attempt goes on, at once.
    fn turn(&mut self, _tried: &[usize], _now: Ms) -> Option<usize> {
        None
    }
    /// Where an unanswered SYN is repeated to, if not to the same origin. `sent`: when it was.
    fn resteer(&mut self, _tried: &[usize], _sent: Ms, _now: Ms) -> Option<usize> {
        None
    }
    /// How long a socket waits before it repeats its SYN.
    fn patience(&self, _origin: usize) -> Ms {
        SECOND
    }
    /// How long until an origin is checked again; `None`: never.
    fn interval(&self, _origin: usize) -> Option<Ms> {
        None
    }
    /// Whether it should be checked now, whatever the interval says.
    fn looks_at_once(&mut self, _origin: usize) -> bool {
        false
    }
    fn checked(&mut self, _found: Found) {}
    fn tick(&mut self, _now: Ms) {}
    fn restart(&mut self, _now: Ms) {}
    fn reload(&mut self, _now: Ms) {}
}

/// The usual choice of a pool: its own origin, one beside it, a standby, and its own all the same where nobody is in.
fn choose(shapes: &[Shape], is_in: impl Fn(usize) -> bool, flow: Flow) -> Choice {
    let usable = |origin: usize| shapes[origin].weight > 0 && is_in(origin);
    if usable(flow.own) {
        return Choice::of(flow.own);
    }
    for tier in 0..=1 {
        let those: Vec<usize> =
            (0..shapes.len()).filter(|origin| shapes[*origin].tier == tier && usable(*origin)).collect();
        if !those.is_empty() {
            let place = flow.hash % u64::try_from(those.len()).expect("few");
            return Choice::of(those[usize::try_from(place).expect("few")]);
        }
    }
    Choice::of(flow.own)
}

/// `fall 3 rise 2`, by a check of the page: HAProxy's and Keepalived's way.
pub(crate) struct Counting {
    shapes: Vec<Shape>,
    every: Ms,
    /// Whether it is in, and how many rounds in a row say otherwise.
    known: Vec<(bool, u8)>,
}

impl Counting {
    pub(crate) fn new(shapes: &[Shape], every: Ms) -> Self {
        Self { shapes: shapes.to_vec(), every, known: vec![(true, 0); shapes.len()] }
    }
}

impl Judge for Counting {
    fn choose(&mut self, flow: Flow, _: Ms) -> Choice {
        choose(&self.shapes, |origin| self.known[origin].0, flow)
    }

    fn interval(&self, _: usize) -> Option<Ms> {
        Some(self.every)
    }

    fn checked(&mut self, found: Found) {
        let (is_in, against) = &mut self.known[found.origin];
        *against = if found.passes() == *is_in { 0 } else { *against + 1 };
        if *against >= if *is_in { 3 } else { 2 } {
            (*is_in, *against) = (!*is_in, 0);
        }
    }
}

/// Five failures of traffic in a row eject for 30 s × n: Envoy's outlier detection, of which at most one host or a tenth is out.
pub(crate) struct Consecutive {
    shapes: Vec<Shape>,
    /// Failures in a row, until when it is out, how often it was.
    known: Vec<(u8, Ms, u64)>,
    now: Ms,
}

impl Consecutive {
    pub(crate) fn new(shapes: &[Shape]) -> Self {
        Self { shapes: shapes.to_vec(), known: vec![(0, 0, 0); shapes.len()], now: 0 }
    }
}

impl Judge for Consecutive {
    fn choose(&mut self, flow: Flow, now: Ms) -> Choice {
        self.now = now;
        choose(&self.shapes, |origin| self.known[origin].1 <= now, flow)
    }

    fn ended(&mut self, origin: usize, well: bool, now: Ms) {
        let out = self.known.iter().filter(|known| known.1 > now).count();
        let (row, until, times) = &mut self.known[origin];
        *row = if well { 0 } else { row.saturating_add(1) };
        if *row >= 5 && *until <= now && out == 0 {
            *times += 1;
            (*row, *until) = (0, now + (30 * SECOND * *times).min(300 * SECOND));
        }
    }
}

/// One that never moves anything, and one that moves everything at once.
pub(crate) struct Fixed {
    shapes: Vec<Shape>,
    moves: bool,
}

impl Fixed {
    pub(crate) fn new(shapes: &[Shape], moves: bool) -> Self {
        Self { shapes: shapes.to_vec(), moves }
    }
}

impl Judge for Fixed {
    fn choose(&mut self, flow: Flow, _: Ms) -> Choice {
        choose(&self.shapes, |origin| !self.moves || origin != flow.own, flow)
    }
}
