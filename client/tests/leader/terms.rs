//! What a term is, from the election to its end.

use std::time::Duration;

use highwater_client::Lost;
use highwater_client::leader::{
    BackendError, InProcess, LeaderElector, LeaderError, LeaderResult, LeaseEnd, NotLeader,
    RenewError, Standing,
};
use tokio::time::{Instant, advance, sleep};

use crate::faulty::{Fault, Faulty};
use crate::{SECOND, candidate, elector, options};

#[tokio::test(start_paused = true)]
async fn who_is_elected_runs_and_gives_a_value_although_it_is_none() {
    let a = candidate(&InProcess::new(), "a");
    let value = a.run_if_leader("job", |_| async { None::<u32> }).await;
    assert_eq!(value.unwrap(), Some(None));
    let unit = a.run_if_leader("job", |_| async {}).await;
    assert_eq!(unit.unwrap(), Some(()));
}

#[tokio::test(start_paused = true)]
async fn contention_is_not_an_error_and_runs_nothing() {
    let service = InProcess::new();
    let (a, b) = (candidate(&service, "a"), candidate(&service, "b"));
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    let skipped = b.run_if_leader("job", |_| async { panic!("it must not run") });
    assert_eq!(skipped.await.unwrap(), None);
    let skipped = b.run_if_leader_result("job", |_| async { Ok::<(), ()>(()) });
    assert_eq!(skipped.await.unwrap(), LeaderResult::Skipped);
    guard.release().await;
    let ran = b.run_if_leader("job", |leader| async move { leader.token() });
    assert_eq!(ran.await.unwrap().unwrap().unwrap().get(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_kept_lease_outlives_its_time_many_times() {
    let service = InProcess::new();
    let a = elector(&service, options("a").auto_extend(true));
    let b = candidate(&service, "b");
    let work = a.run_if_leader_result("job", |leader| async move {
        for _ in 0..100 {
            sleep(3 * SECOND).await;
            leader.check()?;
        }
        Ok::<_, NotLeader>(leader.token())
    });
    let rival = async {
        for _ in 0..90 {
            sleep(3 * SECOND).await;
            assert!(b.try_acquire("job").await.unwrap().is_none());
        }
    };
    let (ran, ()) = tokio::join!(work, rival);
    let LeaderResult::Elected { term, .. } = ran.unwrap() else {
        panic!("it was elected");
    };
    assert_eq!(term.end, LeaseEnd::Released);
    assert_eq!(term.held, 300 * SECOND);
    // One for each third of the lease.
    assert!((29..=31).contains(&term.extensions), "{}", term.extensions);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_kept_ends_before_somebody_else_is_elected() {
    let service = InProcess::new();
    let a = candidate(&service, "a");
    let b = elector(&service, options("b").wait(60 * SECOND));
    let started = Instant::now();
    let old = a.run_if_leader("job", |_| sleep(100 * SECOND));
    let new = async {
        let guard = b.try_acquire("job").await.unwrap().unwrap();
        (started.elapsed(), guard.token())
    };
    let (old, (elected, token)) = tokio::join!(async { (old.await, started.elapsed()) }, new);
    let (outcome, stopped) = old;
    match outcome.unwrap_err() {
        LeaderError::LeaseLost { reason, term } => {
            assert_eq!(reason, Lost::Expired);
            assert!(term.token < token);
        }
        other => panic!("{other}"),
    }
    assert!(stopped < 30 * SECOND, "{stopped:?}");
    // The action is at rest, so its lease is given back and not waited for.
    assert!(elected >= stopped && elected <= 30 * SECOND, "{elected:?}");
}

#[tokio::test(start_paused = true)]
async fn a_minimum_lease_keeps_everybody_out_and_its_caller_does_not_wait() {
    let service = InProcess::new();
    let a = elector(&service, options("a").min_lease(10 * SECOND));
    let started = Instant::now();
    let ran = a.run_if_leader_result("job", |_| async { Ok::<_, ()>(()) });
    let LeaderResult::Elected { term, .. } = ran.await.unwrap() else {
        panic!("it was elected");
    };
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(
        term.end,
        LeaseEnd::Retained {
            at_most: 10 * SECOND
        }
    );
    let state = a.state("job").await.unwrap();
    let remaining = 10 * SECOND;
    assert_eq!(state.holders[0].standing, Standing::Retained { remaining });
    assert!(a.try_acquire("job").await.unwrap().is_none());
    sleep(10 * SECOND).await;
    assert!(a.try_acquire("job").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_frozen_leader_learns_of_its_loss_when_it_wakes() {
    let service = InProcess::new();
    let a = elector(&service, options("a").auto_extend(true));
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    let level = a.watch("job").unwrap();
    assert!(guard.check().is_ok() && level.is_leader());
    // Nothing of this process runs meanwhile.
    advance(31 * SECOND).await;
    let lost = NotLeader::Lost(Lost::Expired);
    assert_eq!(guard.check(), Err(lost));
    assert!(!level.is_leader());
    let error = guard.extend(60 * SECOND).await.unwrap_err();
    assert!(matches!(error, RenewError::NotLeader(error) if error == lost));
    assert_eq!(guard.release().await.end, LeaseEnd::NotHeld);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_came_too_late_is_not_kept_by_its_minimum() {
    let service = InProcess::new();
    let faulty = Faulty::new(service.clone());
    let options = options("a").wait(60 * SECOND).min_lease(30 * SECOND);
    let a = LeaderElector::new(faulty.clone(), options.build().unwrap());
    faulty.acquire(Fault::Late);
    let error = a.try_acquire("job").await.unwrap_err();
    assert!(matches!(error, LeaderError::Backend(BackendError::TooLate)));
    assert!(a.state("job").await.unwrap().is_free(), "nobody has led");
    assert!(
        candidate(&service, "b")
            .try_acquire("job")
            .await
            .unwrap()
            .is_some()
    );
}
