//! Who is elected, and what it is told.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::leader::{FailurePolicy, LeaderResult, LeaseEnd, PolicyResult};

use super::Service;
use super::world::World;
use crate::system::now;

pub async fn one_leads_at_a_time_and_tokens_grow(service: impl Service) {
    let world = &World::new(service);
    let inside = Arc::new(AtomicBool::new(false));
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for node in ["a", "b", "c"] {
        let options = world.lasting().wait(600 * world.unit);
        let elector = world.elector(node, options).await;
        let (inside, tokens) = (Arc::clone(&inside), Arc::clone(&tokens));
        tasks.push(tokio::spawn(async move {
            for _ in 0..20 {
                let ran = elector.run_if_leader("job", |leader| {
                    let (inside, tokens) = (Arc::clone(&inside), Arc::clone(&tokens));
                    async move {
                        assert!(!inside.swap(true, Ordering::SeqCst), "two lead");
                        tokio::task::yield_now().await;
                        tokens.lock().unwrap().push(leader.token().unwrap());
                        assert!(inside.swap(false, Ordering::SeqCst));
                    }
                });
                assert_eq!(ran.await.unwrap(), Some(()));
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.len(), 60);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

pub async fn contention_ends_after_the_wait_and_is_no_error(service: impl Service) {
    let world = &World::new(service);
    let a = world
        .elector("a", world.options().lease(600 * world.unit))
        .await;
    let b = world
        .elector("b", world.options().wait(3 * world.unit))
        .await;
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    let started = now();
    let skipped = b
        .run_if_leader("job", |_| async { panic!("it must not run") })
        .await;
    assert_eq!(skipped.unwrap(), None::<()>);
    assert!(
        started.elapsed() >= 3 * world.unit,
        "{:?}",
        started.elapsed()
    );
    let one_try = world.candidate("c").await;
    let skipped = one_try
        .run_if_leader_result("job", |_| async { Ok::<(), ()>(()) })
        .await;
    assert_eq!(skipped.unwrap(), LeaderResult::Skipped);
    for policy in [
        FailurePolicy::Error,
        FailurePolicy::Skip,
        FailurePolicy::FailOpen,
    ] {
        let skipped = one_try.run_with_policy("job", policy, |_| async { Ok::<(), ()>(()) });
        assert_eq!(
            skipped.await.unwrap(),
            PolicyResult::Held(LeaderResult::Skipped)
        );
    }
    assert_eq!((b.stats().skipped, b.stats().failed), (1, 0));
    assert_eq!(guard.release().await.end, LeaseEnd::Released);
}

pub async fn a_value_that_is_none_is_still_elected(service: impl Service) {
    let world = &World::new(service);
    let a = world.candidate("a").await;
    assert_eq!(
        a.run_if_leader("job", |_| async { None::<u8> })
            .await
            .unwrap(),
        Some(None)
    );
    assert_eq!(
        a.run_if_leader("job", |_| async {}).await.unwrap(),
        Some(())
    );
    let result = a.run_if_leader_result("job", |_| async { Ok::<_, ()>(None::<u8>) });
    assert!(matches!(
        result.await.unwrap(),
        LeaderResult::Elected { value: None, .. }
    ));
}

pub async fn an_action_that_fails_gives_its_error_and_the_lease_back(service: impl Service) {
    let world = &World::new(service);
    let (a, b) = (world.candidate("a").await, world.candidate("b").await);
    let result = a
        .run_if_leader_result("job", |_| async { Err::<(), _>("no") })
        .await;
    let LeaderResult::ActionFailed { cause, term } = result.unwrap() else {
        panic!("the action failed");
    };
    assert_eq!((cause, term.end), ("no", LeaseEnd::Released));
    assert!(b.try_acquire("job").await.unwrap().is_some());
}

pub async fn candidates_are_elected_in_the_order_of_their_coming(service: impl Service) {
    let world = &World::new(service);
    let options = || world.lasting().wait(600 * world.unit);
    let holder = world.elector("holder", options()).await;
    let guard = holder.try_acquire("job").await.unwrap().unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for (place, node) in (1_u32..).zip(["a", "b", "c"]) {
        let elector = world.elector(node, options()).await;
        let order = Arc::clone(&order);
        tasks.push(tokio::spawn(async move {
            let ran = elector.run_if_leader("job", |_| async { order.lock().unwrap().push(node) });
            assert_eq!(ran.await.unwrap(), Some(()));
        }));
        world.waiting(&holder, "job", place).await;
    }
    guard.release().await;
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), ["a", "b", "c"]);
}

/// spring-integration: a lock object that is made anew is a second leader.
pub async fn the_lock_is_not_reentrant_also_for_an_elector_made_anew(service: impl Service) {
    let world = &World::new(service);
    let first = world.elector("a", world.lasting()).await;
    let guard = first.try_acquire("job").await.unwrap().unwrap();
    let again = world.elector("a", world.lasting()).await;
    assert!(first.try_acquire("job").await.unwrap().is_none());
    assert!(again.try_acquire("job").await.unwrap().is_none());
    assert!(!again.watch("job").unwrap().is_leader());
    assert_eq!(guard.check(), Ok(()));
    drop(first);
    assert!(again.try_acquire("job").await.unwrap().is_none());
    drop(guard);
    world.is_free(&again, "job").await;
}

/// etcd: a waiter is granted, or left waiting, after it is gone.
pub async fn a_dropped_candidacy_is_never_elected(service: impl Service) {
    let world = &World::new(service);
    let options = || world.lasting().wait(600 * world.unit);
    let holder = world.elector("holder", options()).await;
    let guard = holder.try_acquire("job").await.unwrap().unwrap();
    let (a, b) = (
        world.elector("a", options()).await,
        world.elector("b", options()).await,
    );
    let first = tokio::spawn({
        let a = a.clone();
        async move { a.try_acquire("job").await.map(|_| ()) }
    });
    world.waiting(&holder, "job", 1).await;
    let second = tokio::spawn(async move { b.try_acquire("job").await.unwrap().unwrap() });
    world.waiting(&holder, "job", 2).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    world.waiting(&holder, "job", 1).await;
    let token = guard.token();
    guard.release().await;
    let second = second.await.unwrap();
    // No other lease was given meanwhile.
    assert_eq!(second.token().get(), token.get() + 1);
    assert_eq!(a.stats().elected, 0);
}

pub async fn a_group_has_so_many_leaders_with_slots_and_fences_of_their_own(service: impl Service) {
    let world = &World::new(service);
    let mut guards = Vec::new();
    for node in ["a", "b", "c"] {
        let elector = world.group(node, 3).await;
        guards.push(elector.try_acquire("pool").await.unwrap().unwrap());
    }
    let late = world.group("d", 3).await;
    assert!(late.try_acquire("pool").await.unwrap().is_none());
    let slots: BTreeSet<_> = guards.iter().map(|guard| guard.slot().unwrap()).collect();
    assert_eq!(slots, BTreeSet::from([0, 1, 2]));
    let mut keys = BTreeSet::new();
    for guard in &guards {
        let fence = guard.fence();
        let key = format!("pool {}", guard.slot().unwrap());
        assert_eq!(fence.marks()[0].key.as_bytes(), key.as_bytes());
        assert_eq!(fence.marks()[0].token, guard.token());
        assert!(keys.insert(key));
    }
    let state = late.state("pool").await.unwrap();
    assert_eq!((state.slots.unwrap().get(), state.holders.len()), (3, 3));
    let freed = guards.remove(0);
    let (slot, token) = (freed.slot(), freed.token());
    freed.release().await;
    let next = late.try_acquire("pool").await.unwrap().unwrap();
    assert_eq!(next.slot(), slot);
    assert!(next.token() > token);
}

pub async fn another_number_of_slots_is_refused_and_no_contention(service: impl Service) {
    let world = &World::new(service);
    let two = world.group("a", 2).await;
    let guard = two.try_acquire("pool").await.unwrap().unwrap();
    let three = world.group("b", 3).await;
    let error = three.try_acquire("pool").await.unwrap_err();
    assert!(!error.is_transient(), "{error:?}");
    let single = world.candidate("c").await;
    for policy in [FailurePolicy::Skip, FailurePolicy::FailOpen] {
        let run = single.run_with_policy("pool", policy, |_| async { Ok::<(), ()>(()) });
        assert!(run.await.is_err(), "no policy has a say in it");
    }
    drop(guard);
}

pub async fn tenants_do_not_meet(service: impl Service) {
    let world = &World::new(service);
    let a = world.candidate("a").await;
    let (acme, other) = (
        a.for_tenant("acme").unwrap(),
        a.for_tenant("other").unwrap(),
    );
    let guards = (
        a.try_acquire("job").await.unwrap().unwrap(),
        acme.try_acquire("job").await.unwrap().unwrap(),
        other.try_acquire("job").await.unwrap().unwrap(),
    );
    assert_eq!(guards.1.fence().marks()[0].key.as_bytes(), b"acme/job");
    assert!(acme.try_acquire("job").await.unwrap().is_none());
    assert_eq!(
        a.state("acme/job").await.unwrap().holders[0].token,
        guards.1.token()
    );
}
