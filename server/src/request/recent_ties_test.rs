//! Bounds, ages and shares of the ring.

use super::super::copy_name::RaceId;
use super::*;
use proptest::prelude::*;
use tiedkv_protocol::ids::TieId;

const MS: Duration = Duration::from_millis(1);
const N: CopyNumber = CopyNumber(0);

fn bounds() -> RecentTiesBounds {
    RecentTiesBounds { entries_max: 8, age_max: 100 * MS, caller_entries_max: 6, filer_entries_max: 6 }
}

fn race(caller: u128, tie: u128) -> Race {
    Race { caller: CallerId(caller), id: RaceId::Tie(TieId(tie)) }
}

#[test]
fn recent_ties_an_entry_lives_as_long_as_its_age() {
    let mut ring = RecentTies::new(bounds());
    assert_eq!(ring.file(race(1, 1), Filer::Here, CopyNumber(2), Moment(0)), Filed::New);
    assert_eq!(ring.entry(&race(1, 1), Filer::Here, Moment(0) + 100 * MS), Some(CopyNumber(2)));
    assert_eq!(ring.entry(&race(1, 1), Filer::Here, Moment(0) + 101 * MS), None);
    assert_eq!(ring.file(race(1, 2), Filer::Here, N, Moment(0) + 101 * MS), Filed::New);
    assert_eq!(ring.len(), 1, "the old one is gone");
    assert_eq!(ring.evicted_total(), 0, "and was not evicted early");
}

#[test]
fn recent_ties_filers_do_not_shadow_each_other_and_repeat_nothing() {
    let mut ring = RecentTies::new(bounds());
    for filer in [Filer::Peer(NodeId(1)), Filer::Peer(NodeId(2)), Filer::Client, Filer::Here] {
        assert_eq!(ring.file(race(1, 1), filer, N, Moment(0)), Filed::New);
        assert_eq!(ring.file(race(1, 1), filer, N, Moment(0)), Filed::Again);
    }
    assert_eq!(ring.filed(&race(1, 1), Moment(0)).count(), 4);
    assert_eq!(ring.filed(&race(2, 1), Moment(0)).count(), 0, "scoped by caller");
}

#[test]
fn recent_ties_a_full_ring_evicts_the_oldest() {
    let mut ring = RecentTies::new(bounds());
    for tie in 0..9 {
        let filer = if tie % 2 == 0 { Filer::Here } else { Filer::Peer(NodeId(1)) };
        assert_eq!(ring.file(race(tie % 3, tie), filer, N, Moment(tie as u64)), Filed::New);
    }
    assert_eq!(ring.len(), 8);
    assert_eq!(ring.evicted_total(), 1);
    assert_eq!(ring.cancels_lost_total(), 0, "the ended tie of this node costs nothing");
    assert_eq!(ring.entry(&race(0, 0), Filer::Here, Moment(9)), None);
    assert!(ring.entry(&race(2, 8), Filer::Here, Moment(9)).is_some());
    assert_eq!(ring.file(race(1, 9), Filer::Here, N, Moment(9)), Filed::New);
    assert_eq!((ring.evicted_total(), ring.cancels_lost_total()), (2, 1), "a peer's cancel may cost a duplicate");
}

#[test]
fn recent_ties_a_flood_of_one_caller_or_one_peer_keeps_to_its_share() {
    let mut ring = RecentTies::new(bounds());
    assert_eq!(ring.file(race(2, 0), Filer::Here, N, Moment(0)), Filed::New);
    let flood = |ring: &mut RecentTies, caller: u128, filer| {
        (0..100_u128).filter(|tie| ring.file(race(caller, 1000 + tie), filer, N, Moment(0)) == Filed::New).count()
    };
    assert_eq!(flood(&mut ring, 1, Filer::Client), 6);
    assert_eq!(ring.cancels_lost_total(), 94, "what was over the share");
    assert!(ring.entry(&race(2, 0), Filer::Here, Moment(0)).is_some(), "the other caller's entry stays");
    let mut ring = RecentTies::new(RecentTiesBounds { entries_max: 64, caller_entries_max: 64, ..bounds() });
    assert_eq!(flood(&mut ring, 1, Filer::Peer(NodeId(1))), 6);
    assert_eq!(ring.file(race(1, 1), Filer::Peer(NodeId(2)), N, Moment(0)), Filed::New);
}

#[test]
fn recent_ties_evict_forgets_one_entry() {
    let mut ring = RecentTies::new(bounds());
    assert_eq!(ring.file(race(1, 1), Filer::Here, N, Moment(0)), Filed::New);
    assert_eq!(ring.file(race(1, 1), Filer::Client, N, Moment(0)), Filed::New);
    assert!(ring.evict(&race(1, 1), Filer::Client));
    assert!(!ring.evict(&race(1, 1), Filer::Client));
    assert_eq!(ring.sorted(), [(race(1, 1), Filer::Here, N)]);
}

#[test]
fn recent_ties_defaults_add_up() {
    for stripes in [0, 1, 16, 64] {
        let bounds = RecentTiesBounds::of_stripes(stripes);
        assert_eq!(bounds.entries_max * stripes.max(1), RECENT_TIES_MAX);
        assert!(bounds.age_max > 10 * tiedkv_protocol::limits::TIE_DELAY_CAP);
    }
}

proptest! {
    /// Whatever is filed and evicted in any order: the bounds hold and the counts agree with the entries.
    #[test]
    fn recent_ties_bounds_hold(steps in proptest::collection::vec((0..3_u128, 0..12_u128, 0..4_u64, 0..30_u64, any::<bool>()), 0..200)) {
        let mut ring = RecentTies::new(bounds());
        let mut now = Moment(0);
        for (caller, tie, filer, wait, evict) in steps {
            now = now + u32::try_from(wait).unwrap() * MS;
            let filer = match filer { 0 => Filer::Here, 1 => Filer::Client, n => Filer::Peer(NodeId(n)) };
            if evict {
                ring.evict(&race(caller, tie), filer);
            } else {
                ring.file(race(caller, tie), filer, N, now);
            }
            let entries = ring.sorted();
            prop_assert!(ring.len() <= 8 && entries.len() <= ring.len());
            for caller in 0..3 {
                let count = entries.iter().filter(|(race, ..)| race.caller == CallerId(caller)).count();
                prop_assert!(count <= 6);
                prop_assert_eq!(ring.callers.get(&CallerId(caller)).copied().unwrap_or(0), count);
            }
        }
    }
}
