//! The kernel half of one origin, as far as the judgement sees it: counters, streaks, the trip word, trials, leases.
//!
//! What `health-ebpf` does with packets, said of whole attempts. Where the two differ, the kernel is right.

use health_core::{
    Span, Timestamp,
    clients::CLIENTS,
    engine::{KernelView, Lease, OriginPlan, Quantile, Streak, TrafficTotals, TripView},
};

/// So many failures in a row trip, from so many clients, if they are no older than `WITHIN`.
const AFTER: u32 = 5;
const SPREAD_MIN: u32 = 3;
const WITHIN: Span = Span::from_secs(10);
/// The first trial, and the longest wait for another.
const HALF_OPEN: (Span, Span) = (Span::from_secs(1), Span::from_secs(30));

/// What becomes of one new connection and its one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing comes back.
    Lost,
    Refused,
    /// The handshake succeeds, and the request is never answered.
    Hangs,
    /// The answer is a status 5xx in plain text.
    Error,
    /// It is an error that nobody can read on the wire.
    Garbage,
    /// The answer comes after this time; whether its status can be read.
    Served(Span, bool),
}

/// A failure, once its time has run out.
#[derive(Clone, Copy, Debug)]
struct Due {
    at: Timestamp,
    sent: Timestamp,
    streak: Streak,
    client: usize,
    guarded: bool,
}

/// Failures of one kind since the last success.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    count: u32,
    clients: u32,
    first: Timestamp,
}

#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) totals: TrafficTotals,
    pub(crate) view: KernelView,
    pub(crate) plan: Option<OriginPlan>,
    runs: [Run; 2],
    half_open: Span,
    trial_at: Timestamp,
    /// SYNs and requests whose time runs out later, and late answers.
    due: Vec<Due>,
    /// When a handshake, and a request, last succeeded. What was sent before is no silence.
    last: [Timestamp; 2],
}

impl Kernel {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            totals: TrafficTotals::default(),
            view: KernelView::default(),
            plan: None,
            runs: [Run::default(); 2],
            half_open: HALF_OPEN.0,
            trial_at: now,
            due: Vec::new(),
            last: [now; 2],
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.view.blocked && self.view.trip.is_none()
    }

    /// Whether this flow is the one that tries it.
    pub(crate) fn take_trial(&mut self, now: Timestamp) -> bool {
        let tries = !self.view.blocked || self.plan.is_some_and(|plan| plan.trials);
        if self.view.trip.is_none() || !tries || now < self.trial_at {
            return false;
        }
        self.half_open = self.half_open.times(2).min(HALF_OPEN.1);
        self.trial_at = now.after(self.half_open);
        true
    }

    /// A wish that reached the kernel.
    pub(crate) fn write(&mut self, plan: OriginPlan) {
        if self.view.blocked && !plan.blocked {
            self.runs = [Run::default(); 2];
        }
        self.view.blocked = plan.blocked;
        self.view.leased = plan.blocked && matches!(plan.lease, Lease::Trips(_));
        if let (Some(at), Some(trip)) = (plan.clear_trip, self.view.trip)
            && trip.since <= at
        {
            self.view.trip = None;
            self.runs = [Run::default(); 2];
        }
        self.plan = Some(plan);
    }

    /// One new connection with one request; `guarded`: the origin is the last usable one.
    pub(crate) fn connect(&mut self, answer: Answer, client: usize, guarded: bool, now: Timestamp) {
        self.totals.syn += 1;
        let client = client % CLIENTS;
        let timeouts = self.plan.map(|plan| (plan.syn_timeout, plan.response_timeout)).unwrap_or_default();
        if answer == Answer::Lost {
            let due = |timeout| Due { at: now.after(timeout), sent: now, streak: Streak::Connect, client, guarded };
            self.due.extend(timeouts.0.map(due));
            return;
        }
        self.totals.last_seen = now;
        if answer == Answer::Refused {
            self.totals.refused += 1;
            self.fails(Streak::Connect, client, guarded, now, now);
            return;
        }
        self.totals.synack += 1;
        self.totals.rtt = Quantile { samples: self.totals.synack, p99: Span::from_millis(2) };
        self.succeeds(Streak::Connect, now);
        self.totals.request += 1;
        let timeout = |timeout| Due { at: now.after(timeout), sent: now, streak: Streak::Request, client, guarded };
        match answer {
            Answer::Lost | Answer::Refused => {}
            Answer::Hangs => self.due.extend(timeouts.1.map(timeout)),
            Answer::Error => {
                self.totals.response += 1;
                self.totals.http_5xx += 1;
                self.fails(Streak::Request, client, guarded, now, now);
            }
            Answer::Garbage => {
                self.totals.response += 1;
                self.succeeds(Streak::Request, now);
            }
            Answer::Served(after, _) if timeouts.1.is_some_and(|timeout| timeout < after) => {
                self.due.extend(timeouts.1.map(timeout));
                self.totals.response += 1;
                self.totals.response_late += 1;
            }
            Answer::Served(after, readable) => {
                self.totals.response += 1;
                self.totals.ttfb.samples = self.totals.response;
                self.totals.ttfb_all.samples += 1;
                self.totals.ttfb_all.total = Span(self.totals.ttfb_all.total.0 + after.0);
                self.totals.http_good += u64::from(readable);
                self.succeeds(Streak::Request, now);
            }
        }
    }

    /// A SYN that was sent before, and its request if it is answered now.
    pub(crate) fn repeat(&mut self, answer: Answer, now: Timestamp) {
        self.totals.syn_retrans += 1;
        match answer {
            Answer::Lost => {}
            Answer::Refused => self.fails(Streak::Connect, 0, true, now, now),
            Answer::Hangs | Answer::Error | Answer::Garbage | Answer::Served(..) => {
                self.totals.synack += 1;
                self.totals.synack_late += 1;
                self.succeeds(Streak::Connect, now);
            }
        }
    }

    /// Whether no handshake has succeeded since `sent` and another one is overdue as well.
    pub(crate) fn is_silent(&self, sent: Timestamp) -> bool {
        let others = self.plan.map_or(1, |plan| u32::from(plan.silent_from)).max(1);
        self.last[0] < sent && self.runs[0].count > others
    }

    /// Time passes: what nobody renewed ends, and what nobody answered fails.
    pub(crate) fn run_out(&mut self, now: Timestamp) {
        let lease = self.plan.map_or(Lease::Stays, |plan| plan.lease);
        let over = matches!(lease, Lease::Trips(at) | Lease::Ends(at) if at <= now);
        if self.view.blocked && over {
            self.view = KernelView { blocked: false, leased: false, ..self.view };
            if matches!(lease, Lease::Trips(_)) && self.view.trip.is_none() {
                // The judgement of traffic is over, trials decide.
                self.trip(Streak::Connect, now);
                self.trial_at = now;
            }
        }
        if self.due.iter().all(|due| now < due.at) {
            return;
        }
        let (due, later) = core::mem::take(&mut self.due).into_iter().partition(|due| due.at <= now);
        self.due = later;
        for due in due {
            let due: Due = due;
            match due.streak {
                Streak::Connect => self.totals.syn_timeout += 1,
                Streak::Request => self.totals.no_response += 1,
            }
            let since = self.last[usize::from(due.streak == Streak::Request)];
            if since < due.sent {
                self.fails(due.streak, due.client, due.guarded, due.sent, now);
            } else {
                self.blame(due.streak, due.client);
            }
        }
    }

    fn trip(&mut self, streak: Streak, now: Timestamp) {
        self.view.trip = Some(TripView { streak, since: now, trials_failed: 0, trials_passed: 0 });
        self.half_open = HALF_OPEN.0;
        self.trial_at = now.after(self.half_open);
    }

    /// `sent`: when what failed was.
    fn fails(&mut self, streak: Streak, client: usize, guarded: bool, sent: Timestamp, now: Timestamp) {
        if let Some(trip) = &mut self.view.trip {
            // What was on its way when it tripped is no trial.
            if trip.since < sent {
                trip.trials_failed += u32::from(trip.streak == streak);
                trip.trials_passed = 0;
            }
            return;
        }
        self.blame(streak, client);
        let run = &mut self.runs[usize::from(streak == Streak::Request)];
        if run.count == 0 || now.since(run.first) > WITHIN {
            *run = Run { first: now, ..Run::default() };
        }
        run.count += 1;
        run.clients |= 1 << client;
        if run.count >= AFTER && run.clients.count_ones() >= SPREAD_MIN && !guarded {
            self.trip(streak, now);
        }
    }

    /// Whose the failure was.
    fn blame(&mut self, streak: Streak, client: usize) {
        let by = if streak == Streak::Request { &mut self.totals.request_by } else { &mut self.totals.connect_by };
        by.0[client] += 1;
    }

    fn succeeds(&mut self, streak: Streak, now: Timestamp) {
        self.last[usize::from(streak == Streak::Request)] = now;
        self.runs[usize::from(streak == Streak::Request)] = Run::default();
        if let Some(trip) = self.view.trip.as_mut().filter(|trip| trip.streak == streak) {
            trip.trials_passed += 1;
            if !self.view.blocked {
                self.view.trip = None;
            }
        }
    }
}
