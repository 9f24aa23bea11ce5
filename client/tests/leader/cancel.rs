//! Dropping, panicking and draining: the lease is given back, and never before the work is at rest.

use std::sync::Arc;
use std::time::Duration;

use highwater_client::leader::{
    BackendError, InProcess, LeaderElector, LeaderError, LeaseEnd, NotLeader, Occurrence, Standing,
    TermOutcome,
};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::faulty::{Call, Fault, Faulty};
use crate::{SECOND, candidate, caught, elector, happened, options};

#[tokio::test(start_paused = true)]
async fn a_cancelled_run_drops_its_action_and_gives_the_lease_back() {
    let service = InProcess::new();
    let (a, b) = (
        elector(&service, options("a").auto_extend(true)),
        candidate(&service, "b"),
    );
    let mut events = a.subscribe();
    let (dropped, mut is_dropped) = oneshot::channel::<()>();
    let run = a.run_if_leader("job", |_| async move {
        let _dropped = dropped;
        sleep(100 * SECOND).await;
    });
    assert!(timeout(50 * SECOND, run).await.is_err());
    assert!(is_dropped.try_recv().is_err(), "the action is dropped");
    assert!(!a.watch("job").unwrap().is_leader());
    assert!(b.try_acquire("job").await.unwrap().is_some());
    tokio::task::yield_now().await;
    let last = happened(&mut events).pop().unwrap();
    assert!(
        matches!(
            last,
            Occurrence::Ended {
                outcome: TermOutcome::Cancelled,
                end: LeaseEnd::Released,
                ..
            }
        ),
        "{last:?}"
    );
    let stats = a.stats();
    assert_eq!(
        (stats.cancelled, stats.actions_failed, stats.released),
        (1, 0, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_minimum_lease_holds_after_failure_panic_and_cancellation_too() {
    for ending in ["fails", "panics", "is cancelled", "guard"] {
        let service = InProcess::new();
        let a = elector(&service, options("a").min_lease(10 * SECOND));
        match ending {
            "fails" => {
                let run = a.run_if_leader_result("job", |_| async { Err::<(), _>(()) });
                assert!(run.await.unwrap().term().is_some());
            }
            "panics" => {
                let a = a.clone();
                let run = tokio::spawn(async move {
                    a.run_if_leader("job", |_| async { panic!("on purpose") })
                        .await
                });
                assert!(run.await.unwrap_err().is_panic());
            }
            "is cancelled" => {
                let run = a.run_if_leader("job", |_| std::future::pending::<()>());
                assert!(timeout(SECOND / 10, run).await.is_err());
            }
            _ => drop(a.try_acquire("job").await.unwrap().unwrap()),
        }
        tokio::task::yield_now().await;
        let state = a.state("job").await.unwrap();
        assert!(
            matches!(state.holders[..], [ref holder] if matches!(holder.standing, Standing::Retained { .. })),
            "{ending}: {state:?}"
        );
        assert!(a.try_acquire("job").await.unwrap().is_none(), "{ending}");
        sleep(10 * SECOND).await;
        assert!(a.try_acquire("job").await.unwrap().is_some(), "{ending}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_gives_the_lease_back_before_it_goes_on() {
    let service = InProcess::new();
    let (a, b) = (candidate(&service, "a"), candidate(&service, "b"));
    for at_once in [true, false] {
        let run = a.run_if_leader("job", |_| {
            assert!(!at_once, "before there is a future");
            async { panic!("in the future") }
        });
        assert!(caught(run).await.is_err());
        // Already, without a pause.
        let guard = b.try_acquire("job").await.unwrap().unwrap();
        guard.release().await;
    }
    assert_eq!(a.stats().panicked, 2);
}

/// kubernetes: the lease is released before the cancelled work has drained.
#[tokio::test(start_paused = true)]
async fn the_lease_is_kept_until_the_parts_of_a_cancelled_action_are_at_rest() {
    let service = InProcess::new();
    let (a, b) = (
        elector(&service, options("a").auto_extend(true)),
        candidate(&service, "b"),
    );
    let (sender, part) = oneshot::channel();
    let run = a.run_if_leader("job", |leader| async move {
        let work = tokio::spawn(async move {
            let told = leader.lost().await;
            // It takes its time to stop, longer than what is left of the lease.
            sleep(29 * SECOND).await;
            assert_eq!(leader.check(), Err(told));
            told
        });
        sender.send(work).unwrap();
        std::future::pending::<()>().await;
    });
    assert!(timeout(25 * SECOND, run).await.is_err());
    let cancelled = Instant::now();
    for _ in 0..28 {
        sleep(SECOND).await;
        assert!(
            b.try_acquire("job").await.unwrap().is_none(),
            "{:?}",
            cancelled.elapsed()
        );
    }
    assert_eq!(part.await.unwrap().await.unwrap(), NotLeader::Cancelled);
    tokio::task::yield_now().await;
    assert_eq!(cancelled.elapsed(), 29 * SECOND);
    assert!(b.try_acquire("job").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn work_that_never_comes_to_rest_keeps_the_lease_for_two_lease_times_at_most() {
    let service = InProcess::new();
    let a = elector(&service, options("a").auto_extend(true));
    let b = elector(&service, options("b").wait(200 * SECOND));
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    let leaked = guard.context();
    let dropped = Instant::now();
    drop(guard);
    assert_eq!(leaked.check(), Err(NotLeader::Cancelled));
    let next = b.try_acquire("job").await.unwrap().unwrap();
    let kept = dropped.elapsed();
    assert!((30 * SECOND..=60 * SECOND).contains(&kept), "{kept:?}");
    assert!(matches!(leaked.check(), Err(NotLeader::Lost(_))));
    assert_eq!(next.check(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn the_parts_of_an_action_that_is_over_are_not_leaders() {
    let a = candidate(&InProcess::new(), "a");
    let kept = a.run_if_leader("job", |leader| async move { leader }).await;
    let kept = kept.unwrap().unwrap();
    assert_eq!(kept.check(), Err(NotLeader::Ended));
    assert_eq!(kept.lost().await, NotLeader::Ended);
    assert!(kept.extend(SECOND).await.is_err());
    assert!(a.try_acquire("job").await.unwrap().is_some());
}

/// redisson: a renewal outlives the unlock.
#[tokio::test(start_paused = true)]
async fn nothing_is_extended_after_ten_thousand_acquires_cancels_and_releases() {
    let faulty = Faulty::new(InProcess::new());
    let lease = Duration::from_millis(300);
    let options = options("a").lease(lease).wait(5 * SECOND).auto_extend(true);
    let a = LeaderElector::new(faulty.clone(), options.build().unwrap());
    for round in 0..10_000_u64 {
        let name = format!("job-{}", round % 7);
        // Past one extension, some of the time in the middle of one.
        let span = Duration::from_millis(round % 130);
        faulty.extend(if round % 5 == 0 {
            Fault::Hangs
        } else {
            Fault::None
        });
        match round % 4 {
            0 => {
                let guard = a.try_acquire(&name).await.unwrap().unwrap();
                sleep(span).await;
                guard.release().await;
            }
            1 => {
                let guard = a.try_acquire(&name).await.unwrap().unwrap();
                sleep(span).await;
                drop(guard);
            }
            2 => {
                let run = a.run_if_leader(&name, |_| std::future::pending::<()>());
                assert!(timeout(span, run).await.is_err());
            }
            _ => {
                let run = a.run_if_leader(&name, |_| sleep(span));
                assert_eq!(run.await.unwrap(), Some(()));
            }
        }
    }
    tokio::task::yield_now().await;
    let before = faulty.calls();
    sleep(60 * SECOND).await;
    assert_eq!(
        faulty.calls().len(),
        before.len(),
        "nothing is asked for any more"
    );
    let mut released = std::collections::BTreeSet::new();
    for call in before {
        match call {
            Call::Release(token) => assert!(released.insert(token), "{token} is released once"),
            Call::Extend(token) => {
                assert!(!released.contains(&token), "{token} outlives its release")
            }
        }
    }
    let stats = a.stats();
    assert_eq!(stats.elected, stats.released + stats.revoked);
    for number in 0..7 {
        let state = a.state(format!("job-{number}")).await.unwrap();
        assert!(state.is_free(), "{state:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_release_waits_for_an_extension_that_is_under_way_and_ends_it() {
    let faulty = Faulty::new(InProcess::new());
    let a = LeaderElector::new(
        faulty.clone(),
        options("a").auto_extend(true).build().unwrap(),
    );
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    faulty.extend(Fault::Hangs);
    let by_hand = guard.context();
    let extending = tokio::spawn(async move { by_hand.extend(100 * SECOND).await });
    sleep(11 * SECOND).await;
    let report = guard.release().await;
    assert_eq!(report.end, LeaseEnd::Released);
    assert_eq!(report.held, 11 * SECOND);
    assert!(extending.await.unwrap().is_err());
}

/// etcd: a waiter is granted, or left waiting, after it is gone.
#[tokio::test(start_paused = true)]
async fn a_candidate_that_gave_up_is_never_elected_and_does_not_hold_up_the_others() {
    let service = InProcess::new();
    let holder = candidate(&service, "holder")
        .try_acquire("job")
        .await
        .unwrap()
        .unwrap();
    let a = elector(&service, options("a").wait(600 * SECOND));
    let b = elector(&service, options("b").wait(600 * SECOND));
    let first = tokio::spawn({
        let a = a.clone();
        async move { a.try_acquire("job").await.map(|guard| guard.is_some()) }
    });
    tokio::task::yield_now().await;
    let second = tokio::spawn(async move { b.try_acquire("job").await.unwrap().unwrap().token() });
    tokio::task::yield_now().await;
    assert_eq!(a.state("job").await.unwrap().waiting, 2);
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert_eq!(a.state("job").await.unwrap().waiting, 1);
    let token = holder.token();
    holder.release().await;
    // The next token: no other lease was given meanwhile.
    assert_eq!(second.await.unwrap().get(), token.get() + 1);
    assert_eq!(a.stats().elected, 0);
}

#[tokio::test(start_paused = true)]
async fn a_candidate_whose_lock_service_starts_anew_is_told_and_not_left_waiting() {
    let service = InProcess::new();
    let holder = candidate(&service, "holder")
        .try_acquire("job")
        .await
        .unwrap()
        .unwrap();
    let a = elector(&service, options("a").wait(600 * SECOND));
    let started = Instant::now();
    let waiting = tokio::spawn(async move { a.try_acquire("job").await.map(|_| ()) });
    tokio::task::yield_now().await;
    service.restart();
    assert!(waiting.await.unwrap().is_err());
    assert_eq!(started.elapsed(), Duration::ZERO);
    drop(holder);
}

/// etcd: a waiter is granted a lock whose lease is over.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_granted_too_late_leads_nobody_and_is_given_back() {
    let service = InProcess::new();
    let faulty = Faulty::new(service.clone());
    faulty.acquire(Fault::Late);
    let options = options("a").wait(60 * SECOND).build().unwrap();
    let a = LeaderElector::new(faulty.clone(), options);
    let mut events = a.subscribe();
    let error = a.try_acquire("job").await.unwrap_err();
    let too_late = LeaderError::Backend(BackendError::TooLate);
    assert_eq!(error.to_string(), too_late.to_string());
    assert!(error.is_transient());
    // 400 ms of it were left.
    let next = candidate(&service, "b").try_acquire("job").await.unwrap();
    assert!(next.is_some());
    let events = happened(&mut events);
    assert!(
        matches!(
            events[..],
            [Occurrence::Failed {
                error: BackendError::TooLate
            }]
        ),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lock_service_that_never_answers_is_an_error_and_no_hang() {
    let faulty = Faulty::new(InProcess::new());
    faulty.acquire(Fault::Hangs);
    let a = LeaderElector::new(faulty.clone(), options("a").build().unwrap());
    let started = Instant::now();
    assert!(a.try_acquire("job").await.unwrap_err().is_transient());
    assert_eq!(started.elapsed(), 15 * SECOND);
}

#[test]
fn a_guard_that_outlives_its_runtime_still_gives_the_lease_back() {
    let service = InProcess::new();
    let a = Arc::new(candidate(&service, "a"));
    let start = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
    };
    let runtime = start();
    let guard = runtime.block_on(a.try_acquire("job")).unwrap().unwrap();
    drop(runtime);
    drop(guard);
    let state = start().block_on(a.state("job")).unwrap();
    assert!(state.is_free(), "{state:?}");
}
