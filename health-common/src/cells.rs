//! Timeouts without timers: attempts are counted by the time at which they were sent.
//!
//! A ring of cells, each `{epoch tag, sent, done}` in one word. What was sent at least a timeout ago and is not done is
//! unanswered: a subtraction. A cell whose place is needed for a newer epoch is folded into a running total first, so
//! nothing is lost while nobody looks.

/// Epochs of SYNs: 2^24 ns = 16.8 ms, 256 of them = 4.3 s, over the longest SYN timeout (3 s).
pub const SYN_SHIFT: u32 = 24;
/// Cells of SYNs.
pub const SYN_CELLS: usize = 256;
/// Epochs of requests: 2^25 ns = 33.6 ms, 512 of them = 17.2 s, over the longest response timeout (10 s).
pub const REQUEST_SHIFT: u32 = 25;
/// Cells of requests.
pub const REQUEST_CELLS: usize = 512;

const SENT_SHIFT: u32 = 24;
const TAG_SHIFT: u32 = 48;
const COUNT_MASK: u64 = (1 << 24) - 1;

/// One more attempt sent: add this to a cell.
pub const ONE_SENT: u64 = 1 << SENT_SHIFT;
/// One more attempt answered, or void: add this to a cell.
pub const ONE_DONE: u64 = 1;

/// One cell: 16 bits of epoch, 24 bits sent, 24 bits done. 0 is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Cell(pub u64);

impl Cell {
    /// An empty cell of the epoch.
    #[inline(always)]
    #[must_use]
    pub const fn new(epoch: u64, cells: usize) -> Self {
        Self(tag(epoch, cells) << TAG_SHIFT)
    }

    /// Whether it belongs to the epoch.
    #[inline(always)]
    #[must_use]
    pub const fn is_of(self, epoch: u64, cells: usize) -> bool {
        self.0 >> TAG_SHIFT == tag(epoch, cells)
    }

    /// Attempts that are neither answered nor void.
    #[inline(always)]
    #[must_use]
    pub const fn unanswered(self) -> u64 {
        let sent = (self.0 >> SENT_SHIFT) & COUNT_MASK;
        sent.saturating_sub(self.0 & COUNT_MASK)
    }
}

/// What tells epochs apart that share a place. Never 0, so that a cell in use differs from an empty one.
#[inline(always)]
const fn tag(epoch: u64, cells: usize) -> u64 {
    ((epoch / cells as u64) & 0x7fff) | 0x8000
}

/// Unanswered attempts of the whole ring that were sent at least `timeout_ns` ago.
///
/// Cells that nobody reused yet count however old they are; with the folded total they give the number since the
/// beginning. A cell counts once its youngest attempt is overdue.
#[must_use]
pub fn overdue(ring: &[u64], shift: u32, now_ns: u64, timeout_ns: u64) -> u64 {
    let now_epoch = now_ns >> shift;
    let cells = ring.len();
    ring.iter()
        .enumerate()
        .map(|(place, &word)| (place as u64, Cell(word)))
        .filter(|&(place, cell)| {
            // The newest epoch that can live at this place; an older tag is older still, so overdue.
            let epoch = now_epoch - (now_epoch.wrapping_sub(place) % cells as u64);
            !cell.is_of(epoch, cells) || now_ns.saturating_sub((epoch + 1) << shift) >= timeout_ns
        })
        .map(|(_, cell)| cell.unanswered())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the programs do, without atomics.
    fn send(ring: &mut [u64], folded: &mut u64, shift: u32, at: u64) {
        let epoch = at >> shift;
        let place = usize::try_from(epoch % ring.len() as u64).expect("below the length");
        if !Cell(ring[place]).is_of(epoch, ring.len()) {
            *folded += Cell(ring[place]).unanswered();
            ring[place] = Cell::new(epoch, ring.len()).0;
        }
        ring[place] += ONE_SENT;
    }

    proptest! {
        /// Against the slow, obvious model: a list of times.
        #[test]
        fn overdue_is_what_a_list_would_say(
            gaps in proptest::collection::vec(0u64..400_000_000, 1..300),
            timeout in 100_000_000u64..3_000_000_000,
        ) {
            let (mut ring, mut folded, mut at) = ([0u64; SYN_CELLS], 0, 1u64 << 40);
            let mut sent = std::vec::Vec::new();
            for gap in gaps {
                at += gap;
                send(&mut ring, &mut folded, SYN_SHIFT, at);
                sent.push(at);
            }
            let got = folded + overdue(&ring, SYN_SHIFT, at, timeout);
            let cell = 1 << SYN_SHIFT;
            let at_least = sent.iter().filter(|&&t| at - t >= timeout + cell).count() as u64;
            let at_most = sent.iter().filter(|&&t| at - t >= timeout).count() as u64;
            prop_assert!(at_least <= got && got <= at_most, "{at_least} <= {got} <= {at_most}");
        }
    }

    extern crate std;
}
