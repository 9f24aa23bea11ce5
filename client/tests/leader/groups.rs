//! Several leaders of one name.

use std::collections::BTreeSet;
use std::time::Duration;

use highwater_client::FenceKey;
use highwater_client::Key;
use highwater_client::leader::{
    InProcess, LeaderError, LeaderGroupElector, LeaderGroupOptions, LeaderResult, LeaseEnd,
    Standing,
};
use tokio::time::{Instant, sleep};

use crate::{SECOND, candidate};

fn group(service: &InProcess, node: &str, slots: u32) -> LeaderGroupElector {
    let options = LeaderGroupOptions::builder()
        .slots(slots)
        .wait(Duration::ZERO);
    let options = options.lease(30 * SECOND).node(node).build().unwrap();
    LeaderGroupElector::new(service.clone(), options)
}

#[tokio::test(start_paused = true)]
async fn so_many_lead_at_once_each_with_a_slot_a_token_and_a_fence_of_its_own() {
    let service = InProcess::new();
    let electors: Vec<_> = ["a", "b", "c"].map(|node| group(&service, node, 3)).into();
    let mut guards = Vec::new();
    for elector in &electors {
        guards.push(elector.try_acquire("pool").await.unwrap().unwrap());
    }
    let late = group(&service, "d", 3);
    assert!(late.try_acquire("pool").await.unwrap().is_none());
    let slots: BTreeSet<_> = guards.iter().map(|guard| guard.slot().unwrap()).collect();
    assert_eq!(slots, BTreeSet::from([0, 1, 2]));
    let tokens: BTreeSet<_> = guards.iter().map(|guard| guard.token()).collect();
    assert_eq!(tokens.len(), 3);
    let name = Key::new("pool").unwrap();
    for guard in &guards {
        let fence = guard.fence();
        let key = FenceKey::slot(&name, guard.slot().unwrap());
        assert_eq!(
            (&fence.marks()[0].key, fence.marks()[0].token),
            (&key, guard.token())
        );
        assert_eq!(
            key.as_bytes(),
            format!("pool {}", guard.slot().unwrap()).as_bytes()
        );
    }
    let state = late.state("pool").await.unwrap();
    assert_eq!((state.slots.unwrap().get(), state.holders.len()), (3, 3));
    let nodes: Vec<_> = state
        .holders
        .iter()
        .map(|holder| holder.node.as_ref().unwrap().as_str())
        .collect();
    assert_eq!(nodes, ["a", "b", "c"]);
    // The slot that becomes free goes to the next, under a higher token.
    let freed = guards.remove(1);
    let slot = freed.slot();
    assert_eq!(freed.release().await.end, LeaseEnd::Released);
    let next = late.run_if_leader_result("pool", |leader| async move {
        Ok::<_, ()>((leader.slot(), leader.token().unwrap()))
    });
    let LeaderResult::Elected {
        value: (taken, token),
        term,
    } = next.await.unwrap()
    else {
        panic!("a slot was free");
    };
    assert_eq!((taken, term.slot), (slot, slot));
    assert!(tokens.iter().all(|other| token > *other));
}

#[tokio::test(start_paused = true)]
async fn one_candidate_may_lead_in_several_slots_and_its_level_shows_them() {
    let elector = group(&InProcess::new(), "a", 2);
    let level = elector.watch("pool").unwrap();
    let first = elector.try_acquire("pool").await.unwrap().unwrap();
    let second = elector.try_acquire("pool").await.unwrap().unwrap();
    assert_eq!(level.leading().len(), 2);
    first.release().await;
    assert_eq!(level.leading()[0].slot, second.slot());
    drop(second);
    assert!(!level.is_leader());
}

#[tokio::test(start_paused = true)]
async fn another_number_of_slots_is_a_wrong_configuration_and_no_contention() {
    let service = InProcess::new();
    let guard = group(&service, "a", 2)
        .try_acquire("pool")
        .await
        .unwrap()
        .unwrap();
    let error = group(&service, "b", 3)
        .try_acquire("pool")
        .await
        .unwrap_err();
    assert!(
        matches!(error, LeaderError::Backend(_)) && !error.is_transient(),
        "{error:?}"
    );
    let error = candidate(&service, "c")
        .try_acquire("pool")
        .await
        .unwrap_err();
    assert!(!error.is_transient());
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_minimum_lease_keeps_one_slot_and_the_others_stay_free() {
    let service = InProcess::new();
    let options = LeaderGroupOptions::builder()
        .wait(Duration::ZERO)
        .min_lease(10 * SECOND)
        .build();
    let elector = LeaderGroupElector::new(service, options.unwrap());
    elector.run_if_leader("pool", |_| async {}).await.unwrap();
    let state = elector.state("pool").await.unwrap();
    assert!(matches!(
        state.holders[0].standing,
        Standing::Retained { .. }
    ));
    let other = elector.try_acquire("pool").await.unwrap().unwrap();
    assert_eq!(other.slot(), Some(1));
    assert!(elector.try_acquire("pool").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_stale_leader_is_fenced_out_by_the_next_one_of_its_slot_and_by_no_neighbour() {
    let service = InProcess::new();
    let elector = group(&service, "a", 2);
    let old = elector.try_acquire("pool").await.unwrap().unwrap();
    sleep(10 * SECOND).await;
    let neighbour = elector.try_acquire("pool").await.unwrap().unwrap();
    let started = Instant::now();
    old.lost().await;
    assert!(started.elapsed() <= 20 * SECOND);
    let fence = old.fence();
    old.release().await;
    let new = elector.try_acquire("pool").await.unwrap().unwrap();
    assert_eq!(new.fence().marks()[0].key, fence.marks()[0].key);
    assert!(new.fence().marks()[0].token > fence.marks()[0].token);
    assert_ne!(neighbour.fence().marks()[0].key, fence.marks()[0].key);
}
