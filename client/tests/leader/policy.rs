//! What the failure policies do: every policy against everything that can happen. The action runs at
//! most once in each cell.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use highwater_client::leader::{
    BackendError, Cause, FailurePolicy, InProcess, LeaderElector, LeaderError, LeaderResult,
    PolicyResult, RenewError,
};
use highwater_client::{Key, Lost};
use tokio::time::{sleep, timeout};

use crate::faulty::{Fault, Faulty, unavailable};
use crate::moody::Moody;
use crate::{SECOND, candidate, options};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Cell {
    Contention,
    BackendFails,
    BackendUnanswered,
    BackendHangs,
    Ok,
    Error,
    Panic,
    Cancel,
    LeaseLost,
    LostAtRelease,
}

const CELLS: [Cell; 10] = [
    Cell::Contention,
    Cell::BackendFails,
    Cell::BackendUnanswered,
    Cell::BackendHangs,
    Cell::Ok,
    Cell::Error,
    Cell::Panic,
    Cell::Cancel,
    Cell::LeaseLost,
    Cell::LostAtRelease,
];

/// What came of one cell, and how often the action began.
struct Seen {
    outcome: &'static str,
    runs: u32,
}

async fn play(policy: FailurePolicy, cell: Cell) -> Seen {
    let service = InProcess::new();
    let faulty = Faulty::new(service.clone());
    let a = LeaderElector::new(faulty.clone(), options("a").build().unwrap());
    let mut rival = None;
    match cell {
        Cell::Contention => rival = candidate(&service, "b").try_acquire("job").await.unwrap(),
        Cell::BackendFails => faulty.acquire(Fault::Fails),
        Cell::BackendUnanswered => faulty.acquire(Fault::Unanswered),
        Cell::BackendHangs => faulty.acquire(Fault::Hangs),
        _ => {}
    }
    let runs = Arc::new(AtomicU32::new(0));
    let run = a.run_with_policy("job", policy, |leader| {
        let runs = Arc::clone(&runs);
        let service = service.clone();
        async move {
            runs.fetch_add(1, Ordering::Relaxed);
            match cell {
                Cell::Error => return Err("the action failed"),
                Cell::Panic => panic!("on purpose"),
                Cell::Cancel => std::future::pending().await,
                Cell::LeaseLost => sleep(100 * SECOND).await,
                Cell::LostAtRelease => service.force_release(&Key::new("job").unwrap()),
                _ => {}
            }
            Ok(leader.fence().is_some())
        }
    });
    // Before its lease ends, or long after.
    let limit = if cell == Cell::Cancel { 5 } else { 200 } * SECOND;
    let outcome = caught(AssertUnwindSafe(timeout(limit, run))).await;
    let outcome = match outcome {
        Err(_) => "panicked",
        Ok(Err(_)) => "cancelled",
        Ok(Ok(Err(LeaderError::Backend(_)))) => "backend error",
        Ok(Ok(Ok(PolicyResult::Held(result)))) => match result {
            LeaderResult::Elected { value: true, .. } => "elected",
            LeaderResult::Skipped => "skipped",
            LeaderResult::ActionFailed { .. } => "action failed",
            LeaderResult::LeaseLost { outcome: None, .. } => "lost, cut off",
            LeaderResult::LeaseLost {
                reason: Lost::NotHeld,
                outcome: Some(Ok(true)),
                ..
            } => "lost at the end",
            other => panic!("{other:?}"),
        },
        Ok(Ok(Ok(PolicyResult::SkippedByFailure { .. }))) => "skipped by failure",
        Ok(Ok(Ok(PolicyResult::Unprotected {
            outcome: Ok(false), ..
        }))) => "unprotected",
        other => panic!("{policy:?} {cell:?}: {other:?}"),
    };
    drop(rival);
    // Whatever there was of a lease is given back.
    if !matches!(cell, Cell::BackendUnanswered) {
        tokio::task::yield_now().await;
        assert!(
            a.state("job").await.unwrap().is_free(),
            "{policy:?} {cell:?}"
        );
    }
    Seen {
        outcome,
        runs: runs.load(Ordering::Relaxed),
    }
}

async fn caught<F: Future>(future: AssertUnwindSafe<F>) -> std::thread::Result<F::Output> {
    let mut future = std::pin::pin!(future.0);
    std::future::poll_fn(move |context| {
        match std::panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => std::task::Poll::Ready(Err(panic)),
        }
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn every_policy_against_everything_that_can_happen() {
    for policy in [
        FailurePolicy::Error,
        FailurePolicy::Skip,
        FailurePolicy::FailOpen,
    ] {
        for cell in CELLS {
            let failed = match policy {
                FailurePolicy::Skip => ("skipped by failure", 0),
                FailurePolicy::FailOpen => ("unprotected", 1),
                _ => ("backend error", 0),
            };
            let expected = match cell {
                Cell::Contention => ("skipped", 0),
                Cell::BackendFails | Cell::BackendUnanswered | Cell::BackendHangs => failed,
                Cell::Ok => ("elected", 1),
                Cell::Error => ("action failed", 1),
                Cell::Panic => ("panicked", 1),
                Cell::Cancel => ("cancelled", 1),
                Cell::LeaseLost => ("lost, cut off", 1),
                Cell::LostAtRelease => ("lost at the end", 1),
            };
            let seen = play(policy, cell).await;
            assert_eq!((seen.outcome, seen.runs), expected, "{policy:?} {cell:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_runs_its_action_once_under_any_policy() {
    for policy in [
        FailurePolicy::Error,
        FailurePolicy::Skip,
        FailurePolicy::FailOpen,
    ] {
        for fails in [false, true] {
            let faulty = Faulty::new(InProcess::new());
            let a = LeaderElector::new(faulty.clone(), options("a").build().unwrap());
            if fails {
                faulty.acquire(Fault::Fails);
            }
            let runs = AtomicU32::new(0);
            let run = a.run_with_policy("job", policy, |_| async {
                runs.fetch_add(1, Ordering::Relaxed);
                std::future::pending::<Result<(), ()>>().await
            });
            let dropped = timeout(SECOND, run).await.is_err();
            let began = !fails || policy == FailurePolicy::FailOpen;
            assert_eq!(
                (dropped, runs.load(Ordering::Relaxed)),
                (began, u32::from(began))
            );
            tokio::task::yield_now().await;
            assert!(a.state("job").await.unwrap().is_free());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_lock_there_is_no_fence_and_nothing_to_lose() {
    let faulty = Faulty::new(InProcess::new());
    let a = LeaderElector::new(faulty.clone(), options("a").build().unwrap());
    faulty.acquire(Fault::Fails);
    let run = a.run_with_policy("job", FailurePolicy::FailOpen, |leader| async move {
        assert_eq!(
            (leader.fence(), leader.token(), leader.slot()),
            (None, None, None)
        );
        assert_eq!(
            (leader.name().as_str(), leader.node().as_str()),
            ("job", "a")
        );
        assert_eq!(leader.check(), Ok(()));
        assert_eq!(leader.remaining(), std::time::Duration::MAX);
        assert!(timeout(100 * SECOND, leader.lost()).await.is_err());
        let error = leader.extend(SECOND).await.unwrap_err();
        assert!(matches!(error, RenewError::Unprotected));
        Err::<(), _>("its own")
    });
    let (outcome, failure) = (Err("its own"), unavailable());
    assert_eq!(
        run.await.unwrap(),
        PolicyResult::Unprotected { outcome, failure }
    );
    assert_eq!((a.stats().unprotected, a.stats().elected), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn no_policy_has_a_say_in_a_wrong_configuration() {
    let service = InProcess::new();
    let options = highwater_client::leader::LeaderGroupOptions::builder();
    let group = highwater_client::leader::LeaderGroupElector::new(
        service.clone(),
        options.build().unwrap(),
    );
    let guard = group.try_acquire("pool").await.unwrap().unwrap();
    let a = candidate(&service, "a");
    for policy in [
        FailurePolicy::Error,
        FailurePolicy::Skip,
        FailurePolicy::FailOpen,
    ] {
        for name in ["pool", "not a name"] {
            let run = a.run_with_policy(name, policy, |_| async {
                panic!("it must not run");
                #[expect(unreachable_code, reason = "it has a type all the same")]
                Ok::<(), ()>(())
            });
            assert!(run.await.is_err(), "{policy:?} {name}");
        }
    }
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn no_policy_acts_while_the_lock_service_works() {
    let busy = || BackendError::Busy(Cause::new("so many wait"));
    for policy in [
        FailurePolicy::Error,
        FailurePolicy::Skip,
        FailurePolicy::FailOpen,
    ] {
        let full = Moody {
            service: InProcess::new(),
            mood: move |_: &_| Err(busy()),
        };
        let slow = Faulty::new(InProcess::new());
        slow.acquire(Fault::Late);
        let options = || options("a").wait(60 * SECOND).build().unwrap();
        for (a, expected) in [
            (LeaderElector::new(full, options()), busy()),
            (LeaderElector::new(slow, options()), BackendError::TooLate),
        ] {
            let run = a.run_with_policy("job", policy, |_| async {
                panic!("it must not run");
                #[expect(unreachable_code, reason = "it has a type all the same")]
                Ok::<(), ()>(())
            });
            let error = run.await.unwrap_err();
            assert!(error.is_transient(), "{policy:?} {error:?}");
            assert!(
                matches!(&error, LeaderError::Backend(error) if *error == expected),
                "{policy:?} {error:?}"
            );
        }
    }
}
