//! Who is behind failures: shares of hashed clients, so that one client cannot speak for everyone.

use crate::time::{Span, Timestamp};

/// Clients that the kernel can tell apart.
pub const CLIENTS: usize = 20;

/// Failures by client. Shares rather than counts: one failure may be noted more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clients(pub [u32; CLIENTS]);

impl Clients {
    /// Nobody's.
    pub const NONE: Self = Self([0; CLIENTS]);

    /// Both together.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(more);
        }
        self
    }

    /// What came on top of `earlier`. A share that went back has begun anew.
    #[must_use]
    pub fn minus(mut self, earlier: &Self) -> Self {
        for (now, before) in self.0.iter_mut().zip(earlier.0) {
            *now = now.saturating_sub(before);
        }
        self
    }

    /// One more for each client whose bit is set.
    #[must_use]
    pub fn with(mut self, bits: u32) -> Self {
        for (place, share) in (0_u32..).zip(&mut self.0) {
            let bit = bits.checked_shr(place).unwrap_or(0) & 1;
            *share = share.saturating_add(bit);
        }
        self
    }

    /// How many clients have a share.
    #[must_use]
    pub fn spread(&self) -> u8 {
        self.0.iter().filter(|share| **share > 0).fold(0, |count, _| count.saturating_add(1))
    }

    /// Of `failures`, those that count where no client may stand for more than one part in `min` of them: all, if they are
    /// spread so far; none, if fewer clients than that are behind them, or nobody knows who is. With `min` 1 nobody asks.
    #[must_use]
    pub fn counted(&self, min: u8, failures: u64) -> u64 {
        if min <= 1 {
            return failures;
        }
        let mut shares = self.0.map(u64::from);
        shares.sort_unstable_by(|a, b| b.cmp(a));
        let (all, min) = (sum(&shares), u64::from(min));
        // The loudest so many are cut to what lets each be one part in `min`, together with the rest.
        for loudest in 0..min {
            let uncut = usize::try_from(loudest).ok().and_then(|from| shares.get(from..)).unwrap_or(&[]);
            let (rest, others) = (sum(uncut), min.saturating_sub(loudest));
            if rest >= uncut.first().copied().unwrap_or(0).saturating_mul(others) {
                let counted = rest.saturating_mul(min).checked_div(others).unwrap_or(0);
                return failures.saturating_mul(counted).div_ceil(all.max(1));
            }
        }
        failures
    }
}

fn sum(shares: &[u64]) -> u64 {
    shares.iter().fold(0, |sum, share| sum.saturating_add(*share))
}

/// Halves of a window that are kept, and the one that is filling.
const HALVES: usize = 3;

/// The shares of the past window, forgotten by halves: they tell who, not how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientWindow {
    half: Span,
    newest: u64,
    /// Newest first.
    ring: [Clients; HALVES],
}

impl ClientWindow {
    /// Empty.
    #[must_use]
    pub fn new(length: Span) -> Self {
        Self { half: length.part(2), newest: 0, ring: [Clients::NONE; HALVES] }
    }

    /// Adds what happened just before `now`.
    pub fn record(&mut self, now: Timestamp, clients: &Clients) {
        self.advance(now);
        if let Some(newest) = self.ring.first_mut() {
            *newest = newest.plus(clients);
        }
    }

    /// Forgets what is too old at `now`.
    pub fn advance(&mut self, now: Timestamp) {
        let Some(newest) = now.0.checked_div(self.half.0) else { return };
        let steps = newest.saturating_sub(self.newest);
        for _ in 0..steps.min(3) {
            let [newest, before, _] = self.ring;
            self.ring = [Clients::NONE, newest, before];
        }
        self.newest = self.newest.max(newest);
    }

    /// All that it holds.
    #[must_use]
    pub fn all(&self) -> Clients {
        self.ring.iter().fold(Clients::NONE, Clients::plus)
    }

    /// Starts anew.
    pub fn clear(&mut self) {
        self.ring = [Clients::NONE; HALVES];
    }

    /// Takes another length. What it holds then counts as of its newest moment.
    pub fn resize(&mut self, length: Span) {
        if length.part(2) == self.half {
            return;
        }
        let (held, at) = (self.all(), Timestamp(self.newest.saturating_mul(self.half.0)));
        *self = Self::new(length);
        self.record(at, &held);
    }
}

#[cfg(test)]
impl Clients {
    /// So many failures, of as many clients as there can be.
    pub(crate) fn evenly(failures: u64) -> Self {
        let mut clients = Self::NONE;
        for place in 0..failures {
            clients.0[usize::try_from(place).expect("small") % CLIENTS] += 1;
        }
        clients
    }
}

#[cfg(test)]
#[path = "tests/clients.rs"]
mod tests;
