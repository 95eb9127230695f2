use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn claim(key: u64, id: u16, part: u64) -> Claim {
    Claim { key, share: Share { id: OriginId(id), part } }
}

fn counts(table: &[OriginId]) -> BTreeMap<OriginId, usize> {
    let mut counts = BTreeMap::new();
    for id in table {
        *counts.entry(*id).or_default() += 1;
    }
    counts
}

#[test]
fn nobody_has_no_table_and_one_has_all_of_it() {
    assert!(table(&[]).is_empty());
    assert!(table(&[claim(7, 1, 0)]).is_empty());
    assert_eq!(table(&[claim(7, 1, 5)]), vec![OriginId(1); SLOTS]);
}

/// Two nodes that gave the same addresses other numbers, in files of another order.
#[test]
fn numbers_and_order_do_not_matter() {
    let keys = [0xaaaa, 0x1234_5678_9abc, 3, u64::MAX];
    let one: Vec<Claim> = (1..).zip(keys).map(|(id, key)| claim(key, id, 100)).collect();
    let other: Vec<Claim> = (1..=4).zip(keys).map(|(id, key)| claim(key, 90 - id, 100)).rev().collect();
    let (one, other) = (table(&one), table(&other));
    for (a, b) in one.iter().zip(&other) {
        assert_eq!(a.0, 90 - b.0);
    }
}

#[test]
fn equal_claims_have_equal_parts_and_others_by_weight() {
    let equal: Vec<Claim> = (1..=4).map(|id| claim(u64::from(id) * 77, id, 100)).collect();
    assert!(counts(&table(&equal)).values().all(|count| (62..=63).contains(count)));
    let weighed = counts(&table(&[claim(1, 1, 300), claim(2, 2, 100), claim(3, 3, 0)]));
    assert!((186..=190).contains(&weighed[&OriginId(1)]), "{weighed:?}");
    assert_eq!(weighed.len(), 2);
    let tiny = counts(&table(&[claim(1, 1, 1_000_000), claim(2, 2, 1), claim(3, 3, 1)]));
    assert_eq!((tiny[&OriginId(2)], tiny[&OriginId(3)]), (1, 1));
}

/// The paper's figure 12: when a backend goes, the flows of the others stay, but for a few percent.
#[test]
fn when_one_goes_few_places_of_the_others_change() {
    let all: Vec<Claim> = (1..=10).map(|id| claim(steering::mix(u64::from(id), 9), id, 100)).collect();
    let before = table(&all);
    for gone in 0..all.len() {
        let mut rest = all.clone();
        let id = rest.remove(gone).share.id;
        let after = table(&rest);
        let moved = before.iter().zip(&after).filter(|(b, a)| **b != id && b != a).count();
        assert!(moved <= SLOTS / 10, "{moved} places of origins that stayed changed");
    }
}

proptest! {
    #[test]
    fn every_share_has_a_place_and_none_is_left_over(parts in prop::collection::vec((any::<u64>(), 1_u64..1_000_000), 1..100)) {
        let claims: Vec<Claim> = (0..).zip(&parts).map(|(id, (key, part))| claim(*key, id, *part)).collect();
        let table = table(&claims);
        prop_assert_eq!(table.len(), SLOTS);
        prop_assert!(!table.contains(&OriginId::NONE));
        prop_assert_eq!(counts(&table).len(), claims.len());
    }
}
