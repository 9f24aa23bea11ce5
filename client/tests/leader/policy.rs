//! What the failure policies do, beyond the table in the contract of backends.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater_client::Key;
use highwater_client::leader::{
    Backend, BackendError, BoxFuture, Candidacy, Cause, Clock, FailurePolicy, InProcess,
    LeaderElector, LeaderError, LeaderGroupElector, LeaderGroupOptions, LeaderOptionsBuilder,
    LeaderResult, LeaderState, Lease, PolicyResult, RenewError,
};
use tokio::time::{Instant, sleep, timeout};

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

/// Timers go by milliseconds.
const NOISE: Duration = Duration::from_millis(20);

/// Fails the first candidacies so.
struct Failing {
    service: InProcess,
    times: u32,
    failure: BackendError,
    candidacies: Arc<AtomicU32>,
}

impl Failing {
    fn new(service: &InProcess, times: u32, failure: BackendError) -> Self {
        Self {
            service: service.clone(),
            times,
            failure,
            candidacies: Arc::default(),
        }
    }

    fn elector(self, options: LeaderOptionsBuilder) -> (LeaderElector, Arc<AtomicU32>) {
        let (times, failure) = (self.times, self.failure);
        let candidacies = Arc::clone(&self.candidacies);
        let mood = move |_: &Candidacy| match candidacies.fetch_add(1, Ordering::SeqCst) {
            number if number < times => Err(failure.clone()),
            _ => Ok(true),
        };
        let backend = Moody {
            service: self.service,
            mood,
        };
        let elector = LeaderElector::new(backend, options.build().unwrap());
        (elector, self.candidacies)
    }
}

fn unanswered() -> BackendError {
    BackendError::Indeterminate(Cause::new("no answer"))
}

/// What came of it, and how often the action ran without a lock and with one.
async fn ran(a: &LeaderElector, policy: FailurePolicy) -> (&'static str, u32) {
    let runs = AtomicU32::new(0);
    let run = a.run_with_policy("job", policy, |_| async {
        runs.fetch_add(1, Ordering::Relaxed);
        Ok::<_, ()>(())
    });
    let seen = match run.await {
        Ok(PolicyResult::Held(LeaderResult::Elected { .. })) => "elected",
        Ok(PolicyResult::Held(LeaderResult::Skipped)) => "skipped",
        Ok(PolicyResult::SkippedByFailure { failure }) if failure.is_outage() => "left out",
        Ok(PolicyResult::Unprotected { failure, .. }) => match failure {
            BackendError::Indeterminate(_) => "unprotected, unknown",
            _ => "unprotected",
        },
        Err(LeaderError::Backend(error)) if error.is_outage() => "error",
        other => panic!("{other:?}"),
    };
    (seen, runs.into_inner())
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_passes_within_the_wait_decides_nothing() {
    for failure in [unavailable(), unanswered()] {
        for (policy, expected, candidacies) in [
            (FailurePolicy::Error, ("error", 0), 1),
            (FailurePolicy::Skip, ("elected", 1), 4),
            (FailurePolicy::FailOpen, ("elected", 1), 4),
        ] {
            let failing = Failing::new(&InProcess::new(), 3, failure.clone());
            let (a, asked) = failing.elector(options("a").wait(5 * SECOND));
            assert_eq!(ran(&a, policy).await, expected, "{policy:?} {failure}");
            assert_eq!(asked.load(Ordering::SeqCst), candidacies);
            assert_eq!(a.stats().failed, u64::from(candidacies.min(3)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_lasts_is_asked_about_for_the_wait_and_decides_then() {
    for (failure, open) in [
        (unavailable(), "unprotected"),
        (unanswered(), "unprotected, unknown"),
    ] {
        for (policy, expected) in [
            (FailurePolicy::Skip, ("left out", 0)),
            (FailurePolicy::FailOpen, (open, 1)),
        ] {
            let failing = Failing::new(&InProcess::new(), u32::MAX, failure.clone());
            let (a, asked) = failing.elector(options("a").wait(5 * SECOND));
            let started = Instant::now();
            assert_eq!(ran(&a, policy).await, expected, "{policy:?}");
            let took = started.elapsed();
            assert!(took >= 5 * SECOND && took < 5 * SECOND + NOISE, "{took:?}");
            let asked = asked.load(Ordering::SeqCst);
            assert!((6..=20).contains(&asked), "{asked} candidacies");
        }
    }
}

/// The node of the queue is lost while somebody leads who is alive and well.
#[tokio::test(start_paused = true)]
async fn a_leader_that_leads_all_the_time_is_contention_although_one_attempt_is_unknown() {
    for (failure, skip) in [(unavailable(), "skipped"), (unanswered(), "left out")] {
        for (policy, expected) in [
            (FailurePolicy::Skip, skip),
            (FailurePolicy::FailOpen, "skipped"),
        ] {
            let service = InProcess::new();
            let rival = candidate(&service, "b").try_acquire("job").await.unwrap();
            let failing = Failing::new(&service, 1, failure.clone());
            let (a, asked) = failing.elector(options("a").wait(5 * SECOND));
            let started = Instant::now();
            assert_eq!(ran(&a, policy).await, (expected, 0), "{policy:?} {failure}");
            let took = started.elapsed();
            assert!(took >= 5 * SECOND && took < 5 * SECOND + NOISE, "{took:?}");
            assert_eq!(asked.load(Ordering::SeqCst), 2);
            drop(rival);
        }
    }
}

/// Whether the question with this number is answered.
type Answers = fn(u32) -> bool;

/// Loses its first candidacy after a while, and fails the others at once. Does not answer each question.
struct Lossy {
    service: InProcess,
    after: Duration,
    failure: BackendError,
    waits: Arc<Mutex<Vec<Duration>>>,
    answers: Answers,
    questions: AtomicU32,
}

impl Backend for Lossy {
    fn acquire(
        &self,
        candidacy: Candidacy,
    ) -> BoxFuture<Result<Option<Arc<dyn Lease>>, BackendError>> {
        let mut waits = self.waits.lock().unwrap();
        waits.push(candidacy.wait);
        let (after, failure) = match waits.len() {
            1 => (self.after, self.failure.clone()),
            _ => (Duration::ZERO, unavailable()),
        };
        Box::pin(async move {
            sleep(after).await;
            Err(failure)
        })
    }

    fn state(&self, name: Key) -> BoxFuture<Result<LeaderState, BackendError>> {
        match (self.answers)(self.questions.fetch_add(1, Ordering::SeqCst)) {
            true => self.service.state(name),
            false => Box::pin(std::future::pending()),
        }
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.service.clock()
    }
}

/// What came of it while somebody else leads, how often it ran, the waits of the candidacies, and how long it
/// took.
async fn ran_beside_a_leader(
    policy: FailurePolicy,
    wait: Duration,
    after: Duration,
    failure: BackendError,
    answers: Answers,
) -> ((&'static str, u32), Vec<Duration>, Duration) {
    let service = InProcess::new();
    let b = crate::elector(&service, options("b").lease(100 * SECOND));
    let rival = b.try_acquire("job").await.unwrap().unwrap();
    let waits = Arc::default();
    let lossy = Lossy {
        service,
        after,
        failure,
        waits: Arc::clone(&waits),
        answers,
        questions: AtomicU32::new(0),
    };
    let a = LeaderElector::new(lossy, options("a").wait(wait).build().unwrap());
    let started = Instant::now();
    let seen = ran(&a, policy).await;
    let took = started.elapsed();
    assert_eq!(rival.check(), Ok(()));
    let waits = waits.lock().unwrap().clone();
    (seen, waits, took)
}

/// The wait ends while the service elects nobody, and an earlier leader leads all the time.
#[tokio::test(start_paused = true)]
async fn a_leader_that_leads_all_the_time_is_contention_although_the_last_attempts_failed() {
    let wait = 5 * SECOND;
    for after in [Duration::ZERO, wait - Duration::from_millis(100)] {
        for failure in [unavailable(), unanswered()] {
            for (policy, expected) in [
                (FailurePolicy::Skip, "left out"),
                (FailurePolicy::FailOpen, "skipped"),
            ] {
                let (seen, waits, took) =
                    ran_beside_a_leader(policy, wait, after, failure.clone(), |_| true).await;
                assert_eq!(seen, (expected, 0), "{policy:?} {failure} {after:?}");
                assert!(!waits.contains(&Duration::ZERO), "{waits:?}");
                assert!(took >= wait && took < wait + NOISE, "{took:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_leads_is_asked_again_and_without_an_answer_nobody_counts_as_a_leader() {
    let cases: [(Answers, BackendError, _); 5] = [
        (|number| number > 0, unanswered(), ("skipped", 0)),
        (|number| number != 1, unanswered(), ("skipped", 0)),
        // All that are asked before the first candidacy; nothing is unknown when it is asked again.
        (|number| number > 4, unavailable(), ("skipped", 0)),
        (|_| false, unanswered(), ("unprotected, unknown", 1)),
        (
            |number| number < 1,
            unanswered(),
            ("unprotected, unknown", 1),
        ),
    ];
    for (number, (answers, failure, expected)) in cases.into_iter().enumerate() {
        let (seen, _, took) = ran_beside_a_leader(
            FailurePolicy::FailOpen,
            20 * SECOND,
            Duration::ZERO,
            failure,
            answers,
        )
        .await;
        assert_eq!(seen, expected, "case {number}");
        assert!(took < 22 * SECOND + NOISE, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn questions_without_an_answer_leave_half_of_the_wait_for_the_candidacy() {
    for millis in [1, 20, 500, 1_000, 5_000, 60_000] {
        let wait = Duration::from_millis(millis);
        let (seen, waits, took) = ran_beside_a_leader(
            FailurePolicy::FailOpen,
            wait,
            Duration::ZERO,
            unanswered(),
            |_| false,
        )
        .await;
        assert_eq!(seen, ("unprotected, unknown", 1));
        assert!(waits[0] + NOISE >= wait / 2, "{waits:?} of {wait:?}");
        assert!(!waits.contains(&Duration::ZERO), "{waits:?}");
        assert!(took >= wait && took < wait + NOISE, "{took:?} of {wait:?}");
    }
}

/// Nobody leads: the lease is that of the own request, whose answer was lost.
#[tokio::test(start_paused = true)]
async fn the_own_lease_of_which_nobody_knows_is_no_leader() {
    for (wait, expected) in [
        // The lease of that request is over by then.
        (60 * SECOND, ("elected", 1)),
        (5 * SECOND, ("unprotected, unknown", 1)),
    ] {
        let faulty = Faulty::new(InProcess::new());
        let a = LeaderElector::new(faulty.clone(), options("a").wait(wait).build().unwrap());
        faulty.acquire(Fault::Unanswered);
        let heals = async {
            while a.stats().failed == 0 {
                sleep(Duration::from_millis(1)).await;
            }
            faulty.acquire(Fault::None);
        };
        let (seen, ()) = tokio::join!(ran(&a, FailurePolicy::FailOpen), heals);
        assert_eq!(seen, expected);
        let events = (a.stats().skipped, a.stats().failed);
        assert_eq!(events, (0, 1));
    }
}

/// A group is full only if all of its leaders were there before.
#[tokio::test(start_paused = true)]
async fn a_group_with_a_place_of_which_nobody_knows_is_not_full() {
    for (rivals, expected) in [(2, 0), (1, 1)] {
        let service = InProcess::new();
        let group = |node: &str| {
            let options = LeaderGroupOptions::builder().slots(2).node(node);
            options.wait(5 * SECOND).lease(30 * SECOND).build().unwrap()
        };
        let b = LeaderGroupElector::new(service.clone(), group("b"));
        let mut guards = Vec::new();
        for _ in 0..rivals {
            guards.push(b.try_acquire("job").await.unwrap().unwrap());
        }
        let faulty = Faulty::new(service.clone());
        let asked = Arc::new(AtomicU32::new(0));
        let moody = Moody {
            service,
            mood: {
                let asked = Arc::clone(&asked);
                move |_: &Candidacy| match asked.fetch_add(1, Ordering::SeqCst) {
                    0 => Err(unanswered()),
                    _ => Ok(true),
                }
            },
        };
        // It takes the last place, or there is none for it.
        let backend: Arc<dyn Backend> = match rivals {
            1 => Arc::new(faulty.clone()),
            _ => Arc::new(moody),
        };
        let a = LeaderGroupElector::new(backend, group("a"));
        faulty.acquire(Fault::Unanswered);
        let runs = AtomicU32::new(0);
        let run = a.run_with_policy("job", FailurePolicy::FailOpen, |_| async {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok::<_, ()>(())
        });
        let heals = async {
            while a.stats().failed == 0 {
                sleep(Duration::from_millis(1)).await;
            }
            faulty.acquire(Fault::None);
        };
        let (result, ()) = tokio::join!(run, heals);
        let is_open = matches!(result, Ok(PolicyResult::Unprotected { .. }));
        assert_eq!(
            (is_open, runs.into_inner()),
            (expected == 1, expected),
            "{result:?}"
        );
    }
}
