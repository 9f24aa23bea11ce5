//! What a single lease is, seen through the traits that a backend implements, and what an elector makes of
//! one that comes too late or is not extended.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::Service;
use super::faulty::Fault;
use super::world::{PATIENCE, World, polled};
use crate::leader::{
    Backend as _, BackendError, Candidacy, LeaderError, LeaderResult, Lease, LeaseEnd, NodeId,
    Occurrence, Standing,
};
use crate::system::now;
use crate::{Key, Lost, Release};

fn candidacy<S: Service>(world: &World<S>, name: &str) -> Candidacy {
    Candidacy {
        lease: 20 * world.unit,
        ..Candidacy::new(Key::new(name).unwrap(), NodeId::new("a").unwrap())
    }
}

/// For a lease that does not run out while somebody waits for its end.
fn lasting<S: Service>(world: &World<S>, name: &str) -> Candidacy {
    Candidacy {
        lease: world.lasting_lease(),
        ..candidacy(world, name)
    }
}

async fn granted<S: Service>(world: &World<S>, candidacy: Candidacy) -> Arc<dyn Lease> {
    let backend = world.service().backend("a").await;
    backend.acquire(candidacy).await.unwrap().unwrap()
}

pub async fn a_lease_is_counted_from_before_it_was_asked_for_and_ends_for_good(
    service: impl Service,
) {
    let world = &World::new(service);
    let backend = world.service().backend("a").await;
    let asked = now();
    let lease = granted(world, candidacy(world, "job")).await;
    let remaining = lease.remaining().unwrap();
    assert!(
        remaining <= 20 * world.unit && remaining + asked.elapsed() > 15 * world.unit,
        "{remaining:?}"
    );
    assert_eq!(lease.grant().name.as_str(), "job");
    assert_eq!(lease.grant().slot, None);
    let contention = backend.acquire(candidacy(world, "job")).await.unwrap();
    assert!(contention.is_none(), "the same node waits like everybody");
    sleep(20 * world.unit).await;
    assert_eq!(lease.remaining(), Err(Lost::Expired));
    let late = lease.extend(20 * world.unit).await;
    assert!(late.is_err(), "a lease that is over is not revived");
    assert!(lease.remaining().is_err());
    let next = granted(world, candidacy(world, "job")).await;
    assert!(next.grant().token > lease.grant().token);
    assert_eq!(next.grant().domain, lease.grant().domain);
    assert_ne!(lease.release().await, Ok(Release::Released));
    assert!(next.remaining().is_ok());
    assert_eq!(next.release().await, Ok(Release::Released));
}

pub async fn a_lease_that_is_given_back_is_over_from_the_call_on(service: impl Service) {
    let world = &World::new(service);
    let a = world.candidate("a").await;
    for answer in ["waited-for", "dropped", "never-polled"] {
        let lease = granted(world, lasting(world, answer)).await;
        let release = lease.release();
        assert!(lease.remaining().is_err(), "{answer}");
        match answer {
            "waited-for" => assert_eq!(release.await, Ok(Release::Released)),
            "dropped" => drop(release),
            // It is kept for longer than the name is taken.
            _ => {
                world.is_free(&a, answer).await;
                drop(release);
            }
        }
        world.is_free(&a, answer).await;
        assert!(lease.extend(20 * world.unit).await.is_err(), "{answer}");
        assert!(a.state(answer).await.unwrap().is_free(), "{answer}");
    }
    // Nobody led, so nothing is kept, or at most the minimum.
    let kept = Candidacy {
        min_lease: 2 * world.unit,
        ..lasting(world, "declined")
    };
    drop(granted(world, kept).await.decline());
    world.is_free(&a, "declined").await;
}

pub async fn a_retained_lease_is_extended_by_nobody(service: impl Service) {
    let world = &World::new(service);
    let a = world.candidate("a").await;
    let kept = Candidacy {
        min_lease: 10 * world.unit,
        ..lasting(world, "job")
    };
    let started = now();
    let lease = granted(world, kept).await;
    assert_eq!(lease.release().await, Ok(Release::Released));
    assert!(lease.extend(200 * world.unit).await.is_err());
    let state = a.state("job").await.unwrap();
    match state.holders[..] {
        [ref holder] => match holder.standing {
            Standing::Retained { remaining } => assert!(remaining <= 10 * world.unit),
            other => panic!("{other:?}"),
        },
        ref other => panic!("{other:?}"),
    }
    world.is_free(&a, "job").await;
    let kept = started.elapsed();
    assert!(kept >= 9 * world.unit, "{kept:?}");
    assert!(!world.is_virtual() || kept <= 11 * world.unit, "{kept:?}");
}

/// etcd: a waiter is granted a lock whose lease is over.
pub async fn a_grant_that_came_too_late_leads_nobody_and_is_given_back(service: impl Service) {
    let world = &World::new(service);
    let options = world.lasting().wait(60 * world.unit);
    let options = options.min_lease(20 * world.unit);
    let a = world.with_fault("a", options, Fault::Late).await;
    let mut events = a.subscribe();
    let ran = a.run_if_leader("job", |_| async { panic!("it must not run") });
    let error = ran.await.map(|_: Option<()>| ()).unwrap_err();
    assert!(
        matches!(error, LeaderError::Backend(BackendError::TooLate)),
        "{error:?}"
    );
    assert!(error.is_transient());
    assert!(!a.watch("job").unwrap().is_leader());
    let stats = a.stats();
    assert_eq!((stats.elected, stats.failed), (0, 1));
    let told = polled(events.next(), 1, Duration::ZERO).await;
    let told = told.unwrap().unwrap().unwrap().what;
    assert!(matches!(told, Occurrence::Failed { .. }), "{told:?}");
    world.is_free(&a, "job").await;
    let b = world.candidate("b").await;
    let next = b.try_acquire("job").await.unwrap().unwrap();
    assert_eq!(next.release().await.end, LeaseEnd::Released);
}

/// redisson: the watchdog stops, and nobody hears of it.
pub async fn extensions_that_fail_are_tried_again_and_end_in_a_loss_that_is_told(
    service: impl Service,
) {
    let world = &World::new(service);
    let options = || world.options().auto_extend(true);
    let (a, faulty) = world.faulty("a", options()).await;
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    for fault in [Fault::Fails, Fault::Unanswered, Fault::Fails] {
        // Shorter than what is left of a lease that was extended in time.
        faulty.extend(fault);
        let failed = a.stats().extensions_failed;
        world
            .until("an extension fails", async || {
                a.stats().extensions_failed > failed
            })
            .await;
        faulty.extend(Fault::None);
        let extended = a.stats().extended;
        world
            .until("it is extended again", async || {
                a.stats().extended > extended
            })
            .await;
        assert_eq!(guard.check(), Ok(()));
    }
    assert_eq!(guard.release().await.end, LeaseEnd::Released);
    for fault in [Fault::Fails, Fault::Hangs] {
        let (a, faulty) = world.faulty("a", options()).await;
        let mut events = a.subscribe();
        faulty.extend(fault);
        let started = now();
        let run = a.run_if_leader_result("other", |_| std::future::pending::<Result<(), ()>>());
        let result = timeout(PATIENCE, run).await.unwrap().unwrap();
        let LeaderResult::LeaseLost {
            reason, outcome, ..
        } = result
        else {
            panic!("{fault:?}: {result:?}");
        };
        assert_eq!((reason, outcome), (Lost::Expired, None), "{fault:?}");
        let lost = started.elapsed();
        assert!(
            lost < 20 * world.unit || !world.is_virtual(),
            "{fault:?}: {lost:?}"
        );
        let mut revoked = 0;
        while let Some(Some(event)) = polled(events.next(), 1, Duration::ZERO).await {
            revoked += u32::from(matches!(event.unwrap().what, Occurrence::Revoked { .. }));
        }
        assert_eq!((revoked, a.stats().revoked), (1, 1), "{fault:?}");
        world.is_free(&a, "other").await;
    }
}
