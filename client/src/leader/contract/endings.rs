//! How a lease is given back when nobody does so by hand.

use std::time::Duration;

use crate::leader::{LeaderElector, NotLeader};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::Service;
use super::world::{World, dropped_when};
use crate::leader::schedule::caught;
use crate::system::now;

pub async fn a_dropped_run_gives_its_lease_back(service: impl Service) {
    let world = &World::new(service);
    let options = world.lasting().auto_extend(true);
    let (a, b) = (
        world.elector("a", options).await,
        world.candidate("b").await,
    );
    let (dropped, mut is_dropped) = oneshot::channel::<()>();
    let (begins, begun) = oneshot::channel();
    let run = a.run_if_leader("job", |_| async move {
        let _dropped = dropped;
        begins.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    dropped_when(run, begun).await;
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
    let a = world.elector("a", world.lasting()).await;
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
        world.elector("a", world.lasting().auto_extend(true)).await,
        world.candidate("b").await,
    );
    let (stop, stopped) = oneshot::channel::<()>();
    let (told, is_told) = oneshot::channel();
    let (begins, begun) = oneshot::channel();
    let run = a.run_if_leader("job", |leader| async move {
        begins.send(()).unwrap();
        tokio::spawn(async move {
            told.send(leader.lost().await).unwrap();
            stopped.await.unwrap();
            drop(leader);
        });
        std::future::pending::<()>().await;
    });
    dropped_when(run, begun).await;
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
    // Whatever of it is not given back is still there at the end.
    let options = world.lasting().wait(600 * world.unit);
    let a = world.elector("a", options.auto_extend(true)).await;
    let rounds = u64::from(world.service().rounds());
    many_terms(&a, "job", rounds).await;
    world.is_free(&a, "job").await;
    // Whatever goes on to be extended is extended soon.
    let options = world.options().wait(600 * world.unit).auto_extend(true);
    let a = world.elector("a", options).await;
    many_terms(&a, "other", rounds / 10).await;
    world.is_free(&a, "other").await;
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

/// One after the other, each ended in another way.
async fn many_terms(a: &LeaderElector, name: &str, rounds: u64) {
    for round in 0..rounds {
        match round % 4 {
            0 => {
                let guard = a.try_acquire(name).await.unwrap().unwrap();
                guard.release().await;
            }
            1 => drop(a.try_acquire(name).await.unwrap().unwrap()),
            2 => {
                // Dropped at some moment between the request and the answer, or later.
                let acquire = a.try_acquire(name);
                let moment = Duration::from_micros(round % 997);
                drop(timeout(moment, acquire).await);
            }
            _ => {
                let run = a.run_if_leader(name, |leader| async move {
                    leader.extend(Duration::from_secs(600)).await
                });
                assert!(run.await.unwrap().unwrap().is_ok());
            }
        }
    }
}
