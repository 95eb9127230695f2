use super::*;
use proptest::prelude::*;

fn member(id: u16, tier: u8, weight: u16, standing: Standing) -> Member {
    let factor = match standing {
        Standing::Proved | Standing::Unproved => 100,
        Standing::Degraded => 50,
        Standing::HighRisk | Standing::Staged => 10,
        Standing::Waiting | Standing::Out | Standing::Never => 0,
    };
    let ready = matches!(standing, Standing::Proved | Standing::Degraded);
    Member { id: OriginId(id), tier, weight, factor, standing, ready, bound: Bound::Free }
}

/// U healthy, N unknown, G degraded, H high risk, S in a stage of 10 %, R recovering, D fault, M maintenance; one tier a word.
fn pool_with(words: &str, limits: Limits) -> Pool {
    let mut members = Vec::new();
    for (word, tier) in words.split(' ').zip(0_u8..) {
        for letter in word.chars() {
            let standing = match letter {
                'U' => Standing::Proved,
                'N' => Standing::Unproved,
                'G' => Standing::Degraded,
                'H' => Standing::HighRisk,
                'S' => Standing::Staged,
                'R' => Standing::Waiting,
                'D' => Standing::Out,
                'M' => Standing::Never,
                other => panic!("{other}"),
            };
            members.push(member(u16::try_from(members.len()).expect("few"), tier, 1, standing));
        }
    }
    Pool::new(members, limits)
}

fn pool(words: &str) -> Pool {
    pool_with(words, Limits::default())
}

/// Percent of each id, rounded to the nearest.
fn percents(shares: &[Share], n: usize) -> Vec<u64> {
    let total: u64 = shares.iter().map(|share| share.part).sum();
    let part = |id: usize| -> u64 { shares.iter().filter(|s| usize::from(s.id.0) == id).map(|s| s.part).sum() };
    (0..n).map(|id| (part(id) * 100 + total / 2).checked_div(total).unwrap_or(0)).collect()
}

fn used(shares: &[Share]) -> Vec<u16> {
    let mut ids: Vec<u16> = shares.iter().filter(|share| share.part > 0).map(|share| share.id.0).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// P13: every origin fails.
#[test]
fn p13_panic_threshold() {
    let limits = |panic_percent| Limits { panic_percent, ..Limits::default() };
    for (percent, words, panics, want) in [
        (50, "UUUU", false, &[0, 1, 2, 3][..]),
        (50, "UUDD", false, &[0, 1]),
        (50, "UDDD", true, &[0, 1, 2, 3]),
        (50, "UGDD", false, &[0, 1]),
        (50, "DDDD", true, &[0, 1, 2, 3]),
        (50, "DDDM", true, &[0, 1, 2]),
        (0, "UDDD", false, &[0]),
        (100, "UUUU", false, &[0, 1, 2, 3]),
        (100, "UUUD", true, &[0, 1, 2, 3]),
        (100, "UUUM", false, &[0, 1, 2]),
        (1, "UDDD", false, &[0]),
        (1, "DDDD", true, &[0, 1, 2, 3]),
        (1, "DDDM", true, &[0, 1, 2]),
        (1, "MMMM", false, &[]),
        (1, "DD DU", false, &[3]),
        (1, "DD DD", true, &[0, 1, 2, 3]),
    ] {
        let pool = pool_with(words, limits(percent));
        assert_eq!(pool.is_panic(), panics, "{percent} {words}");
        assert_eq!(used(&pool.shares()), want, "{percent} {words}");
    }
    assert!(!pool_with("DDDD", limits(0)).is_panic(), "0: never");
}

/// The dead are never used while one lives that passes its checks again.
#[test]
fn p13_in_panic_recovering_origins_come_before_dead_ones() {
    assert_eq!(used(&pool("DR").shares_of(OriginId(0))), [1]);
    assert!(pool("DR").is_panic());
}

/// P14: spill and hard failover.
#[test]
fn p14_tiers() {
    let hard = Limits { min_usable_percent: 1, ..Limits::default() };
    for (limits, words, first) in [
        (Limits::default(), "UUUUU UU", 100),
        (Limits::default(), "UUUUD UU", 100),
        (Limits::default(), "UUUDD UU", 86),
        (Limits::default(), "UDDDD UU", 29),
        (Limits::default(), "DDDDD UU", 0),
        (hard, "UDDDD UU", 100),
        (hard, "DDDDD UU", 0),
        // After a restart nothing is known, and nothing moves.
        (Limits::default(), "NNNNN NN", 100),
        (Limits::default(), "NNNNN UU", 100),
        // A stage is exactly its part.
        (Limits::default(), "SSSSS UU", 10),
        (Limits::default(), "SDDDD UU", 2),
        (Limits::default(), "UUUSS UU", 90),
        // Nobody below: the tier keeps everything.
        (Limits::default(), "UDDDD DD", 100),
    ] {
        let pool = pool_with(words, limits);
        let at_vip: u64 = percents(&pool.shares(), 7)[..5].iter().sum();
        assert!(at_vip.abs_diff(first) <= 1, "{words}: {at_vip} instead of {first}");
        // The guarded addresses of the tier together come to the same.
        let own: u64 = (0..5).map(|id| percents(&pool.shares_of(OriginId(id)), 7)[..5].iter().sum::<u64>()).sum();
        assert!((own / 5).abs_diff(first) <= 1, "{words}: guarded {own}/5 instead of {first}");
    }
}

/// P14, P16: weight 0 is no capacity and takes nothing, in panic neither.
#[test]
fn p14_p16_weight_zero() {
    let zero = |standing| {
        Pool::new([member(0, 0, 0, standing), member(1, 0, 100, Standing::Proved)].to_vec(), Limits::default())
    };
    for standing in [Standing::Proved, Standing::Out, Standing::Never] {
        assert_eq!(used(&zero(standing).shares()), [1]);
        assert_eq!(used(&zero(standing).shares_of(OriginId(0))), [1]);
        assert_eq!(zero(standing).armed_of(OriginId(1)).0, [], "{standing:?}");
    }
    let dead =
        Pool::new([member(0, 0, 0, Standing::Proved), member(1, 0, 1, Standing::Out)].to_vec(), Limits::default());
    assert!(dead.is_panic(), "a weight of 0 does not count as usable");
    assert_eq!(used(&dead.shares()), [1]);
    let empty =
        Pool::new([member(0, 0, 0, Standing::Proved), member(1, 1, 1, Standing::Proved)].to_vec(), Limits::default());
    assert_eq!(used(&empty.shares()), [1], "all zero is an empty tier");
}

#[test]
fn a_lone_slow_primary_sheds_part_of_its_traffic() {
    assert_eq!(percents(&pool("G U").shares_of(OriginId(0)), 2), [71, 29]);
    assert_eq!(percents(&pool("H U").shares_of(OriginId(0)), 2), [14, 86]);
    assert_eq!(percents(&pool("G D").shares_of(OriginId(0)), 2), [100, 0], "nobody to take the rest");
    assert_eq!(percents(&pool("H").shares_of(OriginId(0)), 1), [100]);
}

/// By choice nothing goes to a standby that was not seen to serve lately; who has lost everything takes what there is.
#[test]
fn who_is_not_ready_gets_nothing_by_choice() {
    for (words, want) in [
        // Nobody is ready: a slow primary keeps its flows, a dead one's go there all the same.
        ("G N", [100, 0, 0]),
        ("G H", [100, 0, 0]),
        ("D N", [0, 100, 0]),
        ("D H", [0, 100, 0]),
        // Somebody is: the unproved one waits, in its own tier and before it.
        ("G NU", [71, 0, 29]),
        ("D NU", [0, 0, 100]),
        ("D N U", [0, 0, 100]),
        ("G N U", [71, 0, 29]),
        // What ails has its factor, ready or not.
        ("D H U", [0, 14, 86]),
        // A stage is its part and no more.
        ("S N", [10, 90, 0]),
    ] {
        let pool = pool(words);
        assert_eq!(percents(&pool.shares_of(OriginId(0)), 3), want, "{words}");
        assert_eq!(percents(&pool.shares(), 3), want, "{words}, a virtual address");
    }
    let armed: Vec<u16> = pool("U N U").armed_of(OriginId(0)).0.into_iter().map(|id| id.0).collect();
    assert_eq!(armed, [2, 1, 0], "behind those that are ready");
}

#[test]
fn what_is_held_leaves_its_tier_only_as_far_as_it_may() {
    let held = |words: &str, bound| {
        let mut members = pool(words).members;
        members.iter_mut().filter(|member| member.tier == 0).for_each(|member| member.bound = bound);
        Pool::new(members, Limits::default())
    };
    for (words, want, to_vip) in [
        ("D U", [100, 0, 0], [100, 0, 0]),
        ("G U", [100, 0, 0], [100, 0, 0]),
        // Its own tier takes what it can all the same.
        ("DU U", [0, 100, 0], [0, 100, 0]),
        ("U U", [100, 0, 0], [100, 0, 0]),
    ] {
        for bound in [Bound::Planned, Bound::Tier] {
            let pool = held(words, bound);
            assert_eq!(percents(&pool.shares_of(OriginId(0)), 3), want, "{words}");
            assert_eq!(percents(&pool.shares(), 3), to_vip, "{words}, a virtual address");
            assert!(pool.standbys_of(OriginId(0)).is_empty(), "{words}");
        }
    }
    let armed = |words: &str, bound| held(words, bound).armed_of(OriginId(0)).0;
    assert_eq!(armed("D U", Bound::Planned), [OriginId(1)], "a failed attempt is rescued");
    assert_eq!(armed("D U", Bound::Tier), []);
    assert_eq!(armed("DU U", Bound::Tier), [OriginId(1)]);
    assert_eq!(
        (held("D U", Bound::Planned).armed().0, held("D U", Bound::Tier).armed().0),
        ([OriginId(1)].to_vec(), Vec::new())
    );
    assert_eq!(pool("D U").standbys_of(OriginId(0)), [OriginId(1)]);
}

/// `move = "service"`: all of it is here or there.
#[test]
fn a_service_that_moves_as_a_whole_is_on_one_tier() {
    let whole = Limits { whole: true, ..Limits::default() };
    for (words, want) in [
        ("U U", [100, 0, 0]),
        // A slow primary is no reason to write to a replica.
        ("G U", [100, 0, 0]),
        ("H U", [100, 0, 0]),
        ("D U", [0, 100, 0]),
        ("D N", [0, 100, 0]),
        ("D D U", [0, 0, 100]),
        // Half of a tier is too little for all of it.
        ("DU U", [0, 0, 100]),
        ("DU N", [0, 100, 0]),
    ] {
        let pool = pool_with(words, whole);
        assert_eq!(percents(&pool.shares(), 3), want, "{words}, a virtual address");
        assert_eq!(percents(&pool.shares_of(OriginId(0)), 3), want, "{words}");
    }
    let six = pool_with("UUUUDD UU", whole);
    assert_eq!(used(&six.shares()), [6, 7], "66 %");
    let five = pool_with("UUUUD UU", whole);
    assert_eq!(used(&five.shares()), [0, 1, 2, 3]);
    assert_eq!(used(&five.shares_of(OriginId(4))), [0, 1, 2, 3]);
    // No attempt goes to another tier, so a trip moves nothing there.
    let armed = |words: &str, own| pool_with(words, whole).armed_of(OriginId(own)).0;
    assert_eq!(armed("U U", 0), []);
    assert_eq!(armed("UUU U", 0), [OriginId(1), OriginId(2), OriginId(0)]);
    assert_eq!(armed("D UU", 0), [OriginId(1), OriginId(2)]);
    assert_eq!(pool_with("U U", whole).armed().0, [OriginId(0)]);
}

/// 0: nothing is used that is not usable; what is drained does not count.
#[test]
fn without_panic_nothing_usable_is_refused() {
    let refuses = |words: &str, panic_percent| {
        let pool = pool_with(words, Limits { panic_percent, ..Limits::default() });
        (pool.refuses(), pool.is_panic())
    };
    assert_eq!(refuses("D D", 0), (true, false));
    assert_eq!(refuses("D R", 0), (true, false));
    assert_eq!(refuses("D U", 0), (false, false));
    assert_eq!(refuses("M M", 0), (false, false));
    assert_eq!(refuses("D D", 1), (false, true));
}

#[test]
fn the_own_tier_comes_first_and_a_proved_origin_before_an_unknown_one() {
    assert_eq!(percents(&pool("DUU U").shares_of(OriginId(0)), 4), [0, 43, 43, 14], "2/3 usable: the tier keeps 95 %");
    assert_eq!(percents(&pool("DUUU U").shares_of(OriginId(0)), 5), [0, 33, 33, 33, 0]);
    assert_eq!(percents(&pool("DUNU U").shares_of(OriginId(0)), 5), [0, 50, 0, 50, 0]);
    assert_eq!(percents(&pool("DNNN U").shares_of(OriginId(0)), 5), [0, 33, 33, 33, 0]);
    assert_eq!(percents(&pool("D D U").shares_of(OriginId(0)), 3), [0, 0, 100]);
    assert_eq!(percents(&pool("U D").shares_of(OriginId(1)), 2), [100, 0], "a standby's own address");
}

#[test]
fn armed_origins_come_best_first() {
    let ids = |words: &str, own| {
        let (armed, best) = pool(words).armed_of(OriginId(own));
        (armed.into_iter().map(|id| id.0).collect::<Vec<_>>(), best)
    };
    assert_eq!(ids("U U", 0), ([1, 0].to_vec(), 1));
    assert_eq!(ids("UNU UU", 0), ([2, 1, 3, 4, 0].to_vec(), 1));
    assert_eq!(ids("DUU U", 0), ([1, 2, 3].to_vec(), 2));
    assert_eq!(ids("UDM U", 0), ([3, 0].to_vec(), 1));
    assert_eq!(ids("U U U", 1), ([2, 0, 1].to_vec(), 1));
    assert_eq!(ids("D D", 0), (Vec::new(), 0), "panic: what the slot says");
    assert_eq!(ids("UUUUUUUUUUUUUUUUUUUU", 0).0.len(), ARMED_MAX);
    assert_eq!(ids("UUUUUUUUUUUUUUUUUUUU", 0).1, 15);
}

fn any_pool() -> impl Strategy<Value = Vec<Member>> {
    let standing = prop_oneof![
        Just(Standing::Proved),
        Just(Standing::Unproved),
        Just(Standing::Degraded),
        Just(Standing::HighRisk),
        Just(Standing::Waiting),
        Just(Standing::Out),
        Just(Standing::Never),
    ];
    let weight = prop_oneof![Just(0_u16), Just(1), Just(65_535), 0_u16..1000];
    prop::collection::vec((0_u8..4, weight, standing), 1..20).prop_map(|list| {
        list.into_iter().zip(0_u16..).map(|((tier, weight, standing), id)| member(id, tier, weight, standing)).collect()
    })
}

proptest! {
    /// Invariant 8: nobody unusable is used while somebody is usable; nobody drained or weightless ever takes from others.
    #[test]
    fn no_usable_origin_is_passed_over(members in any_pool()) {
        let pool = Pool::new(members.clone(), Limits::default());
        let any = members.iter().any(|member| member.can_serve());
        prop_assert_eq!(pool.is_panic(), !any && members.iter().any(|m| m.weight > 0 && m.standing != Standing::Never));
        for own in &members {
            let shares = pool.shares_of(own.id);
            let total: u64 = shares.iter().map(|share| share.part).sum();
            prop_assert!(total > 0);
            for share in shares.iter().filter(|share| share.part > 0) {
                let of = members.iter().find(|member| member.id == share.id).expect("a member");
                prop_assert!(!any || of.can_serve(), "{:?} used", of);
                let unsteered = share.id == own.id && shares.len() == 1;
                prop_assert!(unsteered || (of.weight > 0 && of.standing != Standing::Never), "{:?} used", of);
            }
            let (armed, best) = pool.armed_of(own.id);
            prop_assert!(armed.len() <= ARMED_MAX && usize::from(best) <= armed.len());
            for id in armed {
                prop_assert!(members.iter().any(|member| member.id == id && member.can_serve()));
            }
        }
    }

    /// A guarded address is itself while its origin is well.
    #[test]
    fn a_healthy_owner_keeps_its_address(members in any_pool()) {
        let pool = Pool::new(members.clone(), Limits::default());
        for own in members.iter().filter(|member| member.can_serve() && member.factor >= MIN_USABLE_PERCENT) {
            prop_assert_eq!(used(&pool.shares_of(own.id)), [own.id.0]);
        }
    }
}
