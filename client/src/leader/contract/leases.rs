//! How a lease lasts, and how it is lost.

use crate::Lost;
use crate::leader::{
    LeaderElector, LeaderError, LeaderGuard, LeaderResult, LeaseEnd, NotLeader, RenewError,
    Standing,
};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::world::{PATIENCE, World, dropped_when, elected};
use super::{Memory, Service};
use crate::leader::schedule::caught;
use crate::system::now;

pub async fn a_lease_that_is_not_extended_is_lost_before_another_one_is_elected(
    service: impl Service,
) {
    let world = &World::new(service);
    let a = world.candidate("a").await;
    let b = world
        .elector("b", world.options().wait(600 * world.unit))
        .await;
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    let started = now();
    let lost = guard.lost();
    let context = guard.context();
    let next = tokio::spawn(async move {
        let guard = elected(&b).await;
        assert!(context.check().is_err(), "two lead");
        guard
    });
    assert_eq!(lost.await, NotLeader::Lost(Lost::Expired));
    let lost = now();
    assert!(
        lost - started < 20 * world.unit + world.unit,
        "{:?}",
        lost - started
    );
    let next = next.await.unwrap();
    assert!(next.token() > guard.token());
    assert_eq!(guard.release().await.end, LeaseEnd::NotHeld);
    assert_eq!(a.stats().revoked, 1);
}

pub async fn a_lease_that_extends_itself_outlives_its_time(service: impl Service) {
    let world = &World::new(service);
    let a = world.elector("a", world.options().auto_extend(true)).await;
    let b = world.candidate("b").await;
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    let mut extended = 0;
    world
        .until("three lease times pass", async || {
            assert_eq!(guard.check(), Ok(()));
            assert!(b.try_acquire("job").await.unwrap().is_none());
            extended = a.stats().extended;
            extended >= 9
        })
        .await;
    let report = guard.release().await;
    assert_eq!(report.end, LeaseEnd::Released);
    assert!(
        report.held >= 50 * world.unit && report.extensions >= extended,
        "{report:?}"
    );
    assert!(b.try_acquire("job").await.unwrap().is_some());
}

pub async fn an_extension_by_hand_lengthens_the_lease(service: impl Service) {
    let world = &World::new(service);
    let (a, b) = (world.candidate("a").await, world.candidate("b").await);
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    guard.extend(100 * world.unit).await.unwrap();
    let remaining = guard.remaining();
    assert!(
        remaining > 80 * world.unit && remaining <= 100 * world.unit,
        "{remaining:?}"
    );
    guard.extend(world.unit).await.unwrap();
    assert!(
        guard.remaining() > 50 * world.unit,
        "a lease is not shortened"
    );
    world.pass(25).await;
    assert_eq!(guard.check(), Ok(()));
    assert!(b.try_acquire("job").await.unwrap().is_none());
    let context = guard.context();
    assert_eq!(guard.release().await.end, LeaseEnd::Released);
    let error = context.extend(world.unit).await.unwrap_err();
    assert!(matches!(error, RenewError::NotLeader(NotLeader::Ended)));
}

pub async fn a_minimum_lease_keeps_everybody_out_however_its_action_ends(service: impl Service) {
    let world = &World::new(service);
    let options = world.lasting().min_lease(10 * world.unit);
    let a = world.elector("a", options).await;
    let b = world
        .elector("b", world.options().wait(600 * world.unit))
        .await;
    for ending in ["success", "error", "panic", "drop"] {
        let started = now();
        match ending {
            "drop" => {
                let (begins, begun) = oneshot::channel();
                let run = a.run_if_leader(ending, |_| async move {
                    begins.send(()).unwrap();
                    std::future::pending::<()>().await;
                });
                dropped_when(run, begun).await;
            }
            "panic" => {
                let run = a.run_if_leader(ending, |_| async { panic!("on purpose") });
                assert!(caught(run).await.is_err());
            }
            _ => {
                let fails = ending == "error";
                let run = a.run_if_leader_result(ending, |_| async move {
                    if fails { Err(()) } else { Ok(()) }
                });
                let result = run.await.unwrap();
                let end = &result.term().unwrap().end;
                assert!(
                    matches!(end, LeaseEnd::Retained { .. }),
                    "{ending}: {end:?}"
                );
                // Its caller does not wait for it.
                assert!(started.elapsed() < 9 * world.unit);
            }
        }
        world
            .until("it is retained", async || {
                let state = a.state(ending).await.unwrap();
                matches!(state.holders[0].standing, Standing::Retained { .. })
            })
            .await;
        // Nobody, the same node included.
        assert!(a.try_acquire(ending).await.unwrap().is_none(), "{ending}");
        let next = b.try_acquire(ending).await.unwrap().unwrap();
        let kept = started.elapsed();
        assert!(kept >= 10 * world.unit, "{ending}: {kept:?}");
        assert!(
            !world.is_virtual() || kept <= 11 * world.unit,
            "{ending}: {kept:?}"
        );
        next.release().await;
    }
}

pub async fn a_stale_token_touches_no_successor(service: impl Service) {
    let world = &World::new(service);
    let a = world.candidate("a").await;
    let options = world.options().wait(600 * world.unit).auto_extend(true);
    let b = world.elector("b", options).await;
    let old = a.try_acquire("job").await.unwrap().unwrap();
    let new = b.try_acquire("job").await.unwrap().unwrap();
    assert!(new.token() > old.token());
    assert!(old.extend(100 * world.unit).await.is_err());
    assert_eq!(old.release().await.end, LeaseEnd::NotHeld);
    let state = a.state("job").await.unwrap();
    assert_eq!(state.holders[0].token, new.token());
    assert_eq!(new.check(), Ok(()));
    assert_eq!(new.release().await.end, LeaseEnd::Released);
}

/// redisson: the loss is only logged.
pub async fn an_operator_ends_a_leadership_and_the_next_extension_notices(service: impl Service) {
    let world = &World::new(service);
    let a = world.elector("a", world.options().auto_extend(true)).await;
    let (begun, has_begun) = oneshot::channel();
    let run = a.run_if_leader_result("job", |_| async move {
        begun.send(()).unwrap();
        std::future::pending::<Result<(), ()>>().await
    });
    let operator = async {
        has_begun.await.unwrap();
        world.force_release("job").await;
    };
    let (result, ()) = tokio::join!(run, operator);
    let LeaderResult::LeaseLost {
        reason, outcome, ..
    } = result.unwrap()
    else {
        panic!("the lease is lost");
    };
    assert_eq!((reason, outcome), (Lost::NotHeld, None));
}

/// spring-integration: the release does not say that the lock was lost.
pub async fn an_operator_ends_a_leadership_and_the_release_notices(service: impl Service) {
    let world = &World::new(service);
    let a = world
        .elector("a", world.options().lease(600 * world.unit))
        .await;
    let result = a.run_if_leader_result("job", |_| async {
        world.force_release("job").await;
        Ok::<_, ()>(7)
    });
    let LeaderResult::LeaseLost {
        reason,
        outcome,
        term,
    } = result.await.unwrap()
    else {
        panic!("the lease is lost");
    };
    assert_eq!(
        (reason, outcome, term.end),
        (Lost::NotHeld, Some(Ok(7)), LeaseEnd::NotHeld)
    );
    let error = a
        .run_if_leader("job", |_| world.force_release("job"))
        .await
        .unwrap_err();
    assert!(matches!(error, LeaderError::LeaseLost { .. }));
}

/// curator: after a new connection the old leader still takes itself for one.
pub async fn a_service_that_starts_anew_keeps_its_leader_or_ends_it_and_leaves_no_candidate_waiting(
    service: impl Service,
) {
    let world = &World::new(service);
    let options = || world.options().lease(3_000 * world.unit).auto_extend(true);
    let a = world.elector("a", options()).await;
    let old = a.try_acquire("job").await.unwrap().unwrap();
    let b = world.elector("b", options().wait(3_000 * world.unit)).await;
    let waiting: JoinHandle<Result<Option<LeaderGuard>, LeaderError>> = tokio::spawn({
        let b = b.clone();
        async move { b.try_acquire("job").await }
    });
    world.waiting(&a, "job", 1).await;
    if world.restart().await == Memory::Kept {
        return goes_on_after_a_restart(world, old, waiting, &b).await;
    }
    let lost = timeout(PATIENCE, old.lost()).await.unwrap();
    assert_eq!(lost, NotLeader::Lost(Lost::DomainChanged));
    assert!(!a.watch("job").unwrap().is_leader());
    // It is told in any case, and never left waiting. Who asks again is elected.
    let waited = timeout(PATIENCE, waiting).await.unwrap().unwrap();
    let new = match waited {
        Ok(guard) => guard.unwrap(),
        Err(error) => {
            assert!(error.is_transient(), "{error:?}");
            elected(&b).await
        }
    };
    assert_ne!(new.fence().domain(), old.fence().domain());
    assert!(old.extend(world.unit).await.is_err());
    assert_eq!(old.release().await.end, LeaseEnd::NotHeld);
    assert_eq!(new.check(), Ok(()));
    assert_eq!(new.release().await.end, LeaseEnd::Released);
}

/// What was promised is still so, for the leader and against everybody else.
async fn goes_on_after_a_restart<S: Service>(
    world: &World<S>,
    old: LeaderGuard,
    waiting: JoinHandle<Result<Option<LeaderGuard>, LeaderError>>,
    b: &LeaderElector,
) {
    world
        .until("it is extended after the restart", async || {
            old.extend(world.unit).await.is_ok()
        })
        .await;
    assert_eq!(old.check(), Ok(()));
    let one_try = world.candidate("c").await;
    assert!(one_try.try_acquire("job").await.unwrap().is_none());
    let (token, domain) = (old.token(), old.fence().domain());
    assert_eq!(old.release().await.end, LeaseEnd::Released);
    let new = match timeout(PATIENCE, waiting).await.unwrap().unwrap() {
        Ok(guard) => guard.unwrap(),
        Err(error) => {
            assert!(error.is_transient(), "{error:?}");
            elected(b).await
        }
    };
    assert!(new.token() > token);
    assert_eq!(new.fence().domain(), domain);
    assert_eq!(new.release().await.end, LeaseEnd::Released);
}
