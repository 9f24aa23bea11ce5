//! How a lease is given back when nobody does so by hand.

use std::time::Duration;

use crate::leader::NotLeader;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::Service;
use super::world::World;
use crate::leader::schedule::caught;
use crate::system::now;

pub async fn a_dropped_run_gives_its_lease_back(service: impl Service) {
    let world = &World::new(service);
    let options = world.options().lease(600 * world.unit).auto_extend(true);
    let (a, b) = (
        world.elector("a", options).await,
        world.candidate("b").await,
    );
    let (dropped, mut is_dropped) = oneshot::channel::<()>();
    let run = a.run_if_leader("job", |_| async move {
        let _dropped = dropped;
        std::future::pending::<()>().await;
    });
    assert!(timeout(world.unit, run).await.is_err());
    assert!(matches!(
        is_dropped.try_recv(),
        Err(oneshot::error::TryRecvError::Closed)
    ));
    assert!(!a.watch("job").unwrap().is_leader());
    world.is_free(&b, "job").await;
    world
        .until("it is told", async || a.stats().released == 1)
        .await;
    assert_eq!((a.stats().cancelled, a.stats().actions_failed), (1, 0));
}

pub async fn a_panic_gives_its_lease_back(service: impl Service) {
    let world = &World::new(service);
    let a = world
        .elector("a", world.options().lease(600 * world.unit))
        .await;
    let run = a.run_if_leader("job", |_| async { panic!("on purpose") });
    assert!(caught(run).await.is_err());
    assert!(
        a.state("job").await.unwrap().is_free(),
        "it is given back before the panic goes on"
    );
    assert_eq!(a.stats().panicked, 1);
}

/// kubernetes: the lease is released before the cancelled work has drained.
pub async fn the_lease_is_kept_until_cancelled_work_is_at_rest(service: impl Service) {
    let world = &World::new(service);
    let (a, b) = (
        world.elector("a", world.options().auto_extend(true)).await,
        world.candidate("b").await,
    );
    let (stop, stopped) = oneshot::channel::<()>();
    let (told, is_told) = oneshot::channel();
    let run = a.run_if_leader("job", |leader| async move {
        tokio::spawn(async move {
            told.send(leader.lost().await).unwrap();
            stopped.await.unwrap();
            drop(leader);
        });
        std::future::pending::<()>().await;
    });
    assert!(timeout(world.unit, run).await.is_err());
    assert_eq!(is_told.await.unwrap(), NotLeader::Cancelled);
    let started = now();
    while started.elapsed() < 15 * world.unit {
        assert!(b.try_acquire("job").await.unwrap().is_none());
        sleep(world.unit).await;
    }
    stop.send(()).unwrap();
    world.is_free(&b, "job").await;
    world
        .until("it is told", async || a.stats().released == 1)
        .await;
}

/// redisson: a renewal outlives the unlock.
pub async fn nothing_is_held_or_extended_after_many_acquires_cancels_and_releases(
    service: impl Service,
) {
    let world = &World::new(service);
    let options = world.options().wait(600 * world.unit);
    let a = world.elector("a", options.auto_extend(true)).await;
    for round in 0..u64::from(world.service().rounds()) {
        match round % 4 {
            0 => {
                let guard = a.try_acquire("job").await.unwrap().unwrap();
                guard.release().await;
            }
            1 => drop(a.try_acquire("job").await.unwrap().unwrap()),
            2 => {
                // Dropped at some moment between the request and the answer, or later.
                let acquire = a.try_acquire("job");
                let moment = Duration::from_micros(round % 997);
                drop(timeout(moment, acquire).await);
            }
            _ => {
                let run = a.run_if_leader("job", |leader| async move {
                    leader.extend(Duration::from_secs(600)).await
                });
                assert!(run.await.unwrap().unwrap().is_ok());
            }
        }
    }
    world.is_free(&a, "job").await;
    world
        .until("all terms are over", async || {
            let stats = a.stats();
            stats.elected == stats.released + stats.revoked
        })
        .await;
    let extended = a.stats().extended;
    // Two times what is between extensions.
    world.pass(14).await;
    assert_eq!(a.stats().extended, extended);
    assert_eq!(a.stats().extensions_failed, 0);
}
