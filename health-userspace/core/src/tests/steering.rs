use super::*;
use alloc::collections::BTreeMap;
use proptest::prelude::*;

fn share(id: u16, part: u64) -> Share {
    Share { id: OriginId(id), part }
}

/// Without any base, as far as it goes by itself.
fn plain(shares: &[Share]) -> Vec<OriginId> {
    table(shares, None, &[])
}

fn counts(slots: &[OriginId]) -> BTreeMap<u16, usize> {
    let mut counts = BTreeMap::new();
    for slot in slots {
        *counts.entry(slot.0).or_insert(0) += 1;
    }
    counts
}

fn moved(a: &[OriginId], b: &[OriginId]) -> usize {
    a.iter().zip(b).filter(|(a, b)| a != b).count()
}

/// P16: weights 0, 1 and huge.
#[test]
fn p16_weights() {
    assert_eq!(counts(&plain(&[share(1, 0), share(2, 100)])), BTreeMap::from([(2, SLOTS)]));
    assert_eq!(plain(&[share(1, 0), share(2, 0)]), []);
    assert_eq!(plain(&[share(1, 0)]), []);
    let ten = counts(&plain(&[share(1, 1), share(2, 10)]));
    assert!((90..=92).contains(&(ten[&2] * 100 / SLOTS + 1)) || ten[&2] == 228, "{ten:?}");
    assert_eq!(ten[&1] + ten[&2], SLOTS);
    assert_eq!(counts(&plain(&[share(1, 1), share(2, 65_535)])), BTreeMap::from([(1, 1), (2, SLOTS - 1)]));
}

#[test]
fn order_does_not_matter() {
    let shares: Vec<Share> = (1..20).map(|id| share(id, u64::from(id) * 3)).collect();
    let mut reversed = shares.clone();
    reversed.reverse();
    assert_eq!(plain(&shares), plain(&reversed));
}

fn equal(n: u16) -> Vec<Share> {
    (1..=n).map(|id| share(id, 1)).collect()
}

fn without(shares: &[Share], gone: &[u16]) -> Vec<Share> {
    shares.iter().copied().filter(|share| !gone.contains(&share.id.0)).collect()
}

/// The bound: when one origin goes, its own slots move and no others.
#[test]
fn only_the_slots_of_the_one_that_goes_move() {
    for n in 2..=32_u16 {
        let all = equal(n);
        let base = base(&all);
        assert_eq!(table(&all, None, &[&base]), base, "all is well");
        for gone in 1..=n {
            let after = table(&without(&all, &[gone]), None, &[&base]);
            assert_eq!(moved(&base, &after), counts(&base)[&gone], "{n} origins, {gone} gone");
        }
    }
}

/// With others gone before, these may have to share anew: at most their slots on top.
#[test]
fn few_slots_move_when_a_second_one_goes() {
    for n in 3..=16_u16 {
        let all = equal(n);
        let base = base(&all);
        let before = table(&without(&all, &[1]), None, &[&base]);
        for gone in 2..=n {
            let after = table(&without(&all, &[1, gone]), None, &[&base]);
            let bound = counts(&before)[&gone] + counts(&base)[&1];
            assert!(moved(&before, &after) <= bound, "{n} origins, 1 and {gone} gone");
        }
    }
}

/// A configuration with one origin more: most places stay.
#[test]
fn bases_resemble_each_other() {
    for n in 2..=32_u16 {
        let moved = moved(&base(&equal(n)), &base(&equal(n + 1)));
        assert!(moved <= SLOTS / (usize::from(n) + 1) + SLOTS / 3, "{n}: {moved}");
    }
}

/// A guarded address: what its owner keeps stays where it is, and what it lost comes back to where it was.
#[test]
fn what_an_owner_keeps_does_not_move() {
    let base = base(&equal(5));
    let own = Some(OriginId(1));
    let mut last = table(&[share(1, 100)], own, &[&base]);
    for part in [99, 86, 71, 50, 10] {
        let next = table(&[share(1, part * 4), share(2, 100 - part), share(3, (100 - part) * 3)], own, &[&base]);
        for (before, after) in last.iter().zip(&next) {
            assert!(*before == OriginId(1) || *after != OriginId(1), "its places only ever shrink");
        }
        last = next;
    }
}

proptest! {
    #[test]
    fn always_full_and_within_one_slot(
        parts in prop::collection::vec(prop_oneof![Just(0_u64), Just(1), Just(65_535), 0_u64..70_000], 1..64)
    ) {
        let shares: Vec<Share> = parts.iter().zip(1_u16..).map(|(part, id)| share(id, *part)).collect();
        let total: u64 = parts.iter().sum();
        let slots = plain(&shares);
        if total == 0 {
            prop_assert!(slots.is_empty());
            return Ok(());
        }
        prop_assert_eq!(slots.len(), SLOTS);
        let counts = counts(&slots);
        let tiny = shares.iter().filter(|s| s.part > 0 && s.part * (SLOTS as u64) < total).count();
        for share in &shares {
            let got = counts.get(&share.id.0).copied().unwrap_or(0);
            prop_assert_eq!(got == 0, share.part == 0, "{} of {}", share.part, total);
            let exact = usize::try_from(share.part * (SLOTS as u64) / total).expect("small");
            // Within one slot, but for what the greatest give to those that would have none.
            prop_assert!(got <= exact.max(1) + 1 && got + tiny + 1 > exact, "{got} for {exact}");
        }
    }

    #[test]
    fn same_shares_same_table(parts in prop::collection::vec(0_u64..100, 1..10), by in 1_u64..1000) {
        let shares: Vec<Share> = parts.iter().zip(1_u16..).map(|(part, id)| share(id, *part)).collect();
        let scaled: Vec<Share> = parts.iter().zip(1_u16..).map(|(part, id)| share(id, *part * by)).collect();
        prop_assert_eq!(plain(&shares), plain(&scaled));
        prop_assert_eq!(base(&shares), base(&scaled));
    }
}
