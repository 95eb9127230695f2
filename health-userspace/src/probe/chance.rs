//! Jitter that is alike in every run.

use health_core::Span;
use std::net::SocketAddr;

/// Marsaglia's xorshift64: spreads schedules, alike in every run, and needs no entropy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chance(u64);

impl Chance {
    /// FNV-1a over what names the schedule.
    pub(super) fn of(address: SocketAddr, check: &str) -> Self {
        let text = format!("{address}/{check}");
        let hash = text
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        // FNV hardly mixes the last bytes upwards, and neighbouring addresses differ in the last bytes only: one step of
        // SplitMix64 (Steele, Lea, Flood 2014) spreads them.
        let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Something below `span`; nothing if there is nothing below.
    pub(super) fn below(&mut self, span: Span) -> Span {
        Span(self.next().checked_rem(span.0).unwrap_or(0))
    }

    /// A share of a whole between two percentages. Unit: ppm.
    pub(super) fn share(&mut self, least: u64, most: u64) -> u64 {
        least * 10_000 + self.next() % ((most - least) * 10_000).max(1)
    }
}

/// That share of `span`.
pub(super) const fn part_of(span: Span, ppm: u64) -> Span {
    Span((span.0 / 1_000_000).saturating_mul(ppm).saturating_add(span.0 % 1_000_000 * ppm / 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_rounds_are_spread_and_alike_in_every_run() {
        let second = Span::from_secs(1);
        let mut tenths = [0_u32; 10];
        for origin in 0_u16..10_000 {
            let [high, low] = origin.to_be_bytes();
            let address = SocketAddr::from(([10, 0, high, low], 80));
            let first = Chance::of(address, "tcp").below(second);
            assert_eq!(first, Chance::of(address, "tcp").below(second));
            tenths[usize::try_from(first.as_millis() / 100).expect("a small number")] += 1;
        }
        assert!(tenths.iter().all(|count| (800..1200).contains(count)), "{tenths:?}");
    }

    #[test]
    fn jitter_stays_within_a_tenth() {
        let mut chance = Chance(1);
        for _ in 0..10_000 {
            let step = part_of(Span::from_secs(5), chance.share(90, 110));
            assert!((Span::from_millis(4500)..=Span::from_millis(5500)).contains(&step), "{step}");
        }
        assert_eq!(Chance(1).below(Span::ZERO), Span::ZERO);
        assert_eq!(part_of(Span::from_secs(86_400), 1_100_000), Span::from_secs(95_040));
    }
}
