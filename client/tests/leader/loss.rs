//! A lease that cannot be kept is lost: in time, aloud, and for good.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater_client::leader::{
    BoxFuture, Clock, InProcess, LeaderElector, LeaderError, LeaderResult, LeaseEnd, LossPolicy,
    NotLeader, Occurrence, RenewError, TermOutcome, TokioClock,
};
use highwater_client::{Key, Lost};
use tokio::time::{Instant, advance, sleep};

use crate::faulty::{Call, Fault, Faulty};
use crate::{SECOND, candidate, elector, happened, now, options};

/// The margin of a lease of 30 s.
const MARGIN: Duration = Duration::from_millis(500);

fn faulty(node: &str) -> (InProcess, Faulty, LeaderElector) {
    let service = InProcess::new();
    let faulty = Faulty::new(service.clone());
    let options = options(node).auto_extend(true).build().unwrap();
    let elector = LeaderElector::new(faulty.clone(), options);
    (service, faulty, elector)
}

#[tokio::test(start_paused = true)]
async fn failed_extensions_are_repeated_until_shortly_before_the_end_and_then_the_lease_is_lost() {
    let (_, faulty, a) = faulty("a");
    let mut events = a.subscribe();
    let started = Instant::now();
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    faulty.extend(Fault::Fails);
    assert_eq!(guard.lost().await, NotLeader::Lost(Lost::Expired));
    let lost = started.elapsed();
    // Before the service may elect another one, and not much before.
    assert!(
        lost <= 30 * SECOND - MARGIN + Duration::from_millis(2),
        "{lost:?}"
    );
    assert!(lost >= 29 * SECOND, "{lost:?}");
    let attempts = faulty.calls().len();
    assert!((15..=25).contains(&attempts), "{attempts}");
    assert_eq!(guard.release().await.end, LeaseEnd::Released);
    let events = happened(&mut events);
    let failures = events
        .iter()
        .filter(|what| matches!(what, Occurrence::ExtensionFailed { .. }));
    assert_eq!(failures.count(), attempts);
    let revoked = events
        .iter()
        .filter(|what| matches!(what, Occurrence::Revoked { .. }));
    assert_eq!(revoked.count(), 1);
    assert_eq!(a.stats().extensions_failed, attempts as u64);
}

#[tokio::test(start_paused = true)]
async fn an_extension_without_an_answer_does_not_hold_up_the_loss() {
    let (_, faulty, a) = faulty("a");
    faulty.extend(Fault::Hangs);
    let started = Instant::now();
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    assert_eq!(guard.lost().await, NotLeader::Lost(Lost::Expired));
    assert!(started.elapsed() < 30 * SECOND, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_passes_costs_nothing() {
    let (_, faulty, a) = faulty("a");
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    for fault in [Fault::Fails, Fault::Unanswered, Fault::Fails] {
        faulty.extend(fault);
        sleep(15 * SECOND).await;
        faulty.extend(Fault::None);
        sleep(15 * SECOND).await;
        assert_eq!(guard.check(), Ok(()));
    }
    assert_eq!(guard.release().await.end, LeaseEnd::Released);
}

/// redisson: the watchdog stops, and nobody hears of it.
#[tokio::test(start_paused = true)]
async fn an_extension_is_tried_again_after_errors_of_any_number_and_never_ends_in_silence() {
    let (_, faulty, a) = faulty("a");
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    for _ in 0..50 {
        faulty.extend(Fault::Fails);
        sleep(12 * SECOND).await;
        faulty.extend(Fault::None);
        sleep(12 * SECOND).await;
    }
    assert_eq!(guard.check(), Ok(()));
    faulty.extend(Fault::Hangs);
    assert_eq!(guard.lost().await, NotLeader::Lost(Lost::Expired));
}

/// redisson: a loss is only logged.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_held_any_more_is_lost_at_the_next_extension_and_cuts_the_action_off() {
    let service = InProcess::new();
    let a = elector(&service, options("a").auto_extend(true));
    let went_on = Arc::new(AtomicBool::new(false));
    let started = Instant::now();
    let action = a.run_if_leader_result("job", |_| {
        let went_on = Arc::clone(&went_on);
        async move {
            sleep(100 * SECOND).await;
            went_on.store(true, Ordering::Relaxed);
            Ok::<_, ()>(())
        }
    });
    let operator = async {
        sleep(5 * SECOND).await;
        service.force_release(&Key::new("job").unwrap());
    };
    let (result, ()) = tokio::join!(action, operator);
    let LeaderResult::LeaseLost {
        reason,
        outcome,
        term,
    } = result.unwrap()
    else {
        panic!("the lease is lost");
    };
    assert_eq!((reason, outcome), (Lost::NotHeld, None));
    assert_eq!(term.end, LeaseEnd::NotHeld);
    assert_eq!(started.elapsed(), 10 * SECOND);
    assert!(!went_on.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn a_policy_lets_the_action_go_on_and_the_outcome_still_says_that_the_lease_was_lost() {
    let service = InProcess::new();
    let a = elector(&service, options("a").on_loss(LossPolicy::Notify));
    let result = a.run_if_leader_result("job", |leader| async move {
        let lost = leader.lost().await;
        assert_eq!(leader.check(), Err(lost));
        assert_eq!(leader.remaining(), Duration::ZERO);
        sleep(100 * SECOND).await;
        Ok::<_, ()>(lost)
    });
    let LeaderResult::LeaseLost { outcome, term, .. } = result.await.unwrap() else {
        panic!("the lease is lost");
    };
    assert_eq!(outcome, Some(Ok(NotLeader::Lost(Lost::Expired))));
    assert_eq!(term.end, LeaseEnd::NotHeld);
    let error = a
        .run_if_leader("job", |_| sleep(31 * SECOND))
        .await
        .unwrap_err();
    assert!(matches!(
        error,
        LeaderError::LeaseLost {
            reason: Lost::Expired,
            ..
        }
    ));
}

/// spring-integration: the release does not say that the lock was lost before.
#[tokio::test(start_paused = true)]
async fn a_loss_that_only_the_release_notices_is_told() {
    let service = InProcess::new();
    let a = candidate(&service, "a");
    let mut events = a.subscribe();
    let result = a.run_if_leader_result("job", |_| async {
        service.force_release(&Key::new("job").unwrap());
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
    assert_eq!((reason, outcome), (Lost::NotHeld, Some(Ok(7))));
    assert_eq!(term.end, LeaseEnd::NotHeld);
    let events = happened(&mut events);
    assert!(
        matches!(
            events[..],
            [
                Occurrence::Elected { .. },
                Occurrence::Revoked {
                    reason: Lost::NotHeld,
                    ..
                },
            ]
        ),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_is_told_and_ends_the_leadership_exactly_once() {
    for fault in [Fault::Fails, Fault::Unanswered, Fault::Hangs] {
        let (_, faulty, a) = faulty("a");
        let mut events = a.subscribe();
        faulty.release(fault);
        let level = a.watch("job").unwrap();
        let result = a.run_if_leader_result("job", |_| async { Ok::<_, ()>(()) });
        let LeaderResult::Elected { term, .. } = result.await.unwrap() else {
            panic!("it was good until its end");
        };
        assert!(matches!(term.end, LeaseEnd::Unknown { .. }), "{term:?}");
        assert!(!level.is_leader());
        sleep(100 * SECOND).await;
        let events = happened(&mut events);
        assert!(
            matches!(
                events[..],
                [
                    Occurrence::Elected { .. },
                    Occurrence::Ended {
                        outcome: TermOutcome::Completed,
                        end: LeaseEnd::Unknown { .. },
                        ..
                    },
                ]
            ),
            "{events:?}"
        );
        assert_eq!(a.stats().release_unknown, 1);
    }
}

/// curator, spring-integration: after the lock service lost its memory there are two leaders.
#[tokio::test(start_paused = true)]
async fn a_lock_service_that_starts_anew_ends_the_old_leadership_at_once() {
    let service = InProcess::new();
    let (a, b) = (
        elector(&service, options("a").auto_extend(true)),
        candidate(&service, "b"),
    );
    let old = a.try_acquire("job").await.unwrap().unwrap();
    service.restart();
    assert_eq!(old.check(), Err(NotLeader::Lost(Lost::DomainChanged)));
    assert!(!a.watch("job").unwrap().is_leader());
    let new = b.try_acquire("job").await.unwrap().unwrap();
    // Their tokens cannot be compared, and the fence says so.
    assert_ne!(old.fence().domain(), new.fence().domain());
    let error = old.extend(SECOND).await.unwrap_err();
    assert!(matches!(
        error,
        RenewError::NotLeader(NotLeader::Lost(Lost::DomainChanged))
    ));
    assert_eq!(old.release().await.end, LeaseEnd::NotHeld);
    assert_eq!(new.check(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_token_of_before_can_neither_release_nor_extend_the_lease_of_a_successor() {
    let service = InProcess::new();
    let (a, b) = (candidate(&service, "a"), candidate(&service, "b"));
    let old = a.try_acquire("job").await.unwrap().unwrap();
    advance(30 * SECOND).await;
    let new = b.try_acquire("job").await.unwrap().unwrap();
    assert!(new.token() > old.token());
    assert!(old.extend(100 * SECOND).await.is_err());
    assert_eq!(old.release().await.end, LeaseEnd::NotHeld);
    assert_eq!(new.check(), Ok(()));
    let state = b.state("job").await.unwrap();
    assert_eq!(state.holders[0].token, new.token());
    assert_eq!(new.release().await.end, LeaseEnd::Released);
}

/// Tokio's clock, which can also go on while no timer fires and no task runs.
#[derive(Clone, Debug, Default)]
struct Jumping {
    clock: TokioClock,
    jumped: Arc<Mutex<Duration>>,
}

impl Clock for Jumping {
    fn elapsed(&self) -> Duration {
        self.clock.elapsed() + *self.jumped.lock().unwrap()
    }

    fn sleep(&self, span: Duration) -> BoxFuture<()> {
        self.clock.sleep(span)
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_pause_the_action_does_not_go_on_for_one_step() {
    let clock = Jumping::default();
    let service = InProcess::with_clock(clock.clone());
    let a = elector(&service, options("a").auto_extend(true));
    let steps = Arc::new(AtomicU32::new(0));
    let (go_on, next_step) = tokio::sync::oneshot::channel::<()>();
    let mut action = Box::pin(a.run_if_leader_result("job", |_| {
        let steps = Arc::clone(&steps);
        async move {
            steps.fetch_add(1, Ordering::Relaxed);
            next_step.await.unwrap();
            steps.fetch_add(1, Ordering::Relaxed);
            Ok::<(), ()>(())
        }
    }));
    while steps.load(Ordering::Relaxed) == 0 {
        assert!(now(&mut action).is_none());
        tokio::task::yield_now().await;
    }
    *clock.jumped.lock().unwrap() = 31 * SECOND;
    go_on.send(()).unwrap();
    // Nothing has told anybody: the first thing that happens is that the action could go on.
    let result = action.await.unwrap();
    assert!(
        matches!(result, LeaderResult::LeaseLost { outcome: None, .. }),
        "{result:?}"
    );
    assert_eq!(steps.load(Ordering::Relaxed), 1);
}

/// A blocking action on the only thread: nothing can be extended, and nobody can be told meanwhile.
#[test]
fn a_starved_runtime_loses_the_lease_and_says_so() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let service = InProcess::new();
        let lease = Duration::from_millis(300);
        let a = elector(&service, options("a").lease(lease).auto_extend(true));
        let result = a.run_if_leader_result("job", |leader| async move {
            let started = std::time::Instant::now();
            while started.elapsed() < lease * 2 {
                std::hint::spin_loop();
            }
            // It can find out by itself, without an await.
            assert_eq!(leader.check(), Err(NotLeader::Lost(Lost::Expired)));
            Ok::<_, ()>(())
        });
        match result.await.unwrap() {
            LeaderResult::LeaseLost {
                reason, outcome, ..
            } => {
                assert_eq!((reason, outcome), (Lost::Expired, Some(Ok(()))));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!((a.stats().revoked, a.stats().released), (1, 0));
    });
}

/// The extensions run beside the action, so on a second thread they go on.
#[test]
fn a_second_thread_keeps_the_lease_of_an_action_that_computes() {
    let builder = &mut tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_time().build().unwrap();
    let service = InProcess::new();
    let lease = Duration::from_secs(2);
    let a = elector(&service, options("a").lease(lease).auto_extend(true));
    let run = runtime.spawn(async move {
        a.run_if_leader_result("job", |leader| async move {
            let started = std::time::Instant::now();
            while started.elapsed() < lease + lease / 2 {
                std::hint::spin_loop();
            }
            leader.check()
        })
        .await
    });
    let result = runtime.block_on(run).unwrap().unwrap();
    assert!(matches!(result, LeaderResult::Elected { .. }), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn an_extension_by_hand_that_reaches_further_wins_over_the_one_that_comes_by_itself() {
    let (_, faulty, a) = faulty("a");
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    guard.extend(120 * SECOND).await.unwrap();
    assert_eq!(guard.remaining(), 120 * SECOND - MARGIN);
    // The next one by itself would be after 10 s; now it is when 20 s are left.
    sleep(99 * SECOND).await;
    assert_eq!(faulty.calls(), [Call::Extend(guard.token())]);
    sleep(2 * SECOND).await;
    assert_eq!(faulty.calls().len(), 2);
    // A shorter one does not shorten it.
    let before = guard.remaining();
    guard.extend(SECOND).await.unwrap();
    assert_eq!(guard.remaining(), before);
}

#[tokio::test(start_paused = true)]
async fn by_hand_nothing_is_extended_that_is_not_a_lease() {
    let a = candidate(&InProcess::new(), "a");
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    for lease in [Duration::ZERO, Duration::from_secs(3_601)] {
        let error = guard.extend(lease).await.unwrap_err();
        assert!(
            matches!(error, RenewError::Backend(ref error) if !error.is_transient()),
            "{error}"
        );
    }
    assert_eq!(guard.check(), Ok(()));
}
