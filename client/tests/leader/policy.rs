//! What the failure policies do, beyond the table in the contract of backends.

use std::sync::atomic::{AtomicU32, Ordering};

use highwater_client::leader::{
    BackendError, Cause, FailurePolicy, InProcess, LeaderElector, LeaderError, PolicyResult,
    RenewError,
};
use tokio::time::timeout;

use crate::faulty::{Fault, Faulty, unavailable};
use crate::moody::Moody;
use crate::{SECOND, candidate, options};

#[tokio::test(start_paused = true)]
async fn a_lock_service_that_never_answers_is_an_outage_under_any_policy() {
    for policy in [
        FailurePolicy::Error,
        FailurePolicy::Skip,
        FailurePolicy::FailOpen,
    ] {
        let faulty = Faulty::new(InProcess::new());
        let a = LeaderElector::new(faulty.clone(), options("a").build().unwrap());
        faulty.acquire(Fault::Hangs);
        let runs = AtomicU32::new(0);
        let run = a.run_with_policy("job", policy, |leader| {
            runs.fetch_add(1, Ordering::Relaxed);
            async move { Ok::<_, ()>(leader.fence().is_some()) }
        });
        let ran = match (policy, timeout(200 * SECOND, run).await.unwrap()) {
            (FailurePolicy::Error, Err(LeaderError::Backend(error))) if error.is_outage() => 0,
            (FailurePolicy::Skip, Ok(PolicyResult::SkippedByFailure { .. })) => 0,
            (FailurePolicy::FailOpen, Ok(PolicyResult::Unprotected { outcome, .. })) => {
                assert_eq!(outcome, Ok(false));
                1
            }
            (policy, other) => panic!("{policy:?}: {other:?}"),
        };
        assert_eq!(runs.load(Ordering::Relaxed), ran, "{policy:?}");
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
