//! Leader election over a server that errs on order, in virtual time.

use std::time::Duration;

use highwater_client::leader::{
    Backend, BackendError, Candidacy, FailurePolicy, Highwater, LeaderElector, LeaderError,
    LeaderOptions, LeaderOptionsBuilder, LeaderResult, LeaseEnd, NodeId, NotLeader, PolicyResult,
};
use highwater_client::{Client, Key, Lost, Release};
use tokio::time::{Instant, sleep, timeout};

use crate::fake::Manners;
use crate::model::{Fault, Kind, Model};

const SECOND: Duration = Duration::from_secs(1);
const NOISE: Duration = Duration::from_millis(20);

fn options() -> LeaderOptionsBuilder {
    let options = LeaderOptions::builder().wait(Duration::ZERO);
    options.lease(30 * SECOND).auto_extend(true).node("a")
}

fn elector(client: &Client, options: LeaderOptionsBuilder) -> LeaderElector {
    LeaderElector::new(Highwater::new(client.clone()), options.build().unwrap())
}

/// No answer at all, and the connection ends or not.
fn silence(to: Kind, closes: bool) -> Option<Fault> {
    Some(Fault {
        to,
        bytes: 0,
        closes,
    })
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_extended_each_time_a_third_of_it_has_passed_and_never_after_its_release() {
    let model = Model::full().await;
    let a = elector(&model.client().await, options());
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    sleep(305 * SECOND).await;
    assert_eq!(model.books(|books| books.extends), 30);
    assert_eq!(guard.release().await.end, LeaseEnd::Released);
    sleep(100 * SECOND).await;
    assert_eq!(
        model.books(|books| (books.extends, books.releases)),
        (30, 1)
    );
}

/// redisson: a renewal outlives the unlock.
#[tokio::test(start_paused = true)]
async fn nothing_is_held_or_extended_after_ten_thousand_acquires_cancels_and_releases() {
    let delay = Duration::from_millis(3);
    let model = Model::start(Manners::Full(crate::domain(1)), delay).await;
    let lease = Duration::from_millis(300);
    let a = elector(&model.client().await, options().lease(lease));
    for round in 0..10_000_u64 {
        // Past one extension, and at any moment of the acquire, an extension and the release.
        let span = Duration::from_millis(round % 131);
        match round % 4 {
            0 => {
                let guard = a.try_acquire("job").await.unwrap().unwrap();
                sleep(span).await;
                guard.release().await;
            }
            1 => {
                let guard = a.try_acquire("job").await.unwrap().unwrap();
                sleep(span).await;
                drop(guard);
            }
            2 => {
                // Before the answer, at its moment, or after it.
                let early = Duration::from_millis(round % 7);
                drop(timeout(early, a.try_acquire("job")).await);
            }
            _ => {
                let run = a.run_if_leader("job", |_| std::future::pending::<()>());
                assert!(timeout(span, run).await.is_err());
            }
        }
    }
    sleep(SECOND).await;
    let books = model.books(|books| (books.held.clone(), books.extends));
    assert!(books.0.is_empty(), "{books:?}");
    assert!(books.1 > 1_000, "{books:?}");
    sleep(60 * SECOND).await;
    assert_eq!(model.books(|books| books.extends), books.1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_extend_is_refused_and_nothing_is_sent_to_it() {
    let model = Model::start(Manners::Base, Duration::ZERO).await;
    let client = model.client().await;
    let error = elector(&client, options())
        .try_acquire("job")
        .await
        .unwrap_err();
    assert!(
        matches!(error, LeaderError::Backend(BackendError::Rejected(_))),
        "{error:?}"
    );
    assert_eq!(model.books(|books| books.acquires), 0);
    let bounded = elector(&client, options().auto_extend(false));
    assert_eq!(
        bounded.run_if_leader("job", |_| async { 7 }).await.unwrap(),
        Some(7)
    );
}

#[tokio::test(start_paused = true)]
async fn a_candidacy_without_an_answer_is_unknown_and_no_contention() {
    for closes in [true, false] {
        let model = Model::full().await;
        let a = elector(&model.client().await, options());
        model.errs(silence(Kind::Acquire, closes));
        let started = Instant::now();
        let run = a.run_if_leader("job", |_| async { panic!("it must not run") });
        let error = run.await.map(|_: Option<()>| ()).unwrap_err();
        let is_unknown = matches!(error, LeaderError::Backend(BackendError::Indeterminate(_)));
        assert!(is_unknown && error.is_transient(), "{error:?}");
        assert!(started.elapsed() <= 9 * SECOND);
        assert_eq!(a.stats().skipped, 0);
    }
    let model = Model::full().await;
    let a = elector(&model.client().await, options());
    model.errs(silence(Kind::Acquire, true));
    let open = a.run_with_policy("job", FailurePolicy::FailOpen, |leader| async move {
        Ok::<_, ()>(leader.fence())
    });
    let open = open.await.unwrap();
    assert!(
        matches!(
            open,
            PolicyResult::Unprotected {
                outcome: Ok(None),
                ..
            }
        ),
        "{open:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_forgot_the_lease_ends_the_leadership_at_the_first_extension() {
    let model = Model::full().await;
    let a = elector(&model.client().await, options());
    model.forgets();
    let started = Instant::now();
    let run = a.run_if_leader_result("job", |_| std::future::pending::<Result<(), ()>>());
    let result = run.await.unwrap();
    let LeaderResult::LeaseLost {
        reason, outcome, ..
    } = result
    else {
        panic!("{result:?}");
    };
    assert_eq!((reason, outcome), (Lost::NotHeld, None));
    let took = started.elapsed();
    assert!(
        took + NOISE >= 10 * SECOND && took <= 11 * SECOND,
        "{took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_falls_silent_ends_the_leadership_before_it_could_elect_another_one() {
    let model = Model::full().await;
    let client = model.client().await;
    let a = elector(&client, options());
    let started = Instant::now();
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    model.errs(silence(Kind::Extend, false));
    assert_eq!(guard.lost().await, NotLeader::Lost(Lost::Expired));
    let took = started.elapsed();
    let margin = Duration::from_millis(500);
    assert!(
        took <= 30 * SECOND - margin + NOISE && took >= 29 * SECOND,
        "{took:?}"
    );
    // It was tried many times, over new connections.
    assert!(model.books(|books| books.extends) >= 3);
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_got_lost_is_unknown_and_no_loss() {
    let model = Model::full().await;
    let a = elector(&model.client().await, options());
    model.errs(silence(Kind::Release, true));
    let run = a.run_if_leader_result("job", |_| async { Ok::<_, ()>(7) });
    let healed = async {
        while model.books(|books| books.releases) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        model.errs(None);
    };
    let (result, ()) = tokio::join!(run, healed);
    let result = result.unwrap();
    let LeaderResult::Elected { value: 7, term } = result else {
        panic!("{result:?}");
    };
    assert!(matches!(term.end, LeaseEnd::Unknown { .. }), "{term:?}");
    // The second attempt found it released.
    assert_eq!(
        model.books(|books| (books.held.len(), books.releases)),
        (0, 2)
    );
    assert_eq!((a.stats().revoked, a.stats().release_unknown), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_candidacy_that_was_never_sent_is_no_contention_and_no_reason_to_run_unprotected() {
    // Whoever asks waits for longer than this test takes.
    let model = Model::start(Manners::Full(crate::domain(1)), 500 * SECOND).await;
    let client = model.client().await;
    let patient = elector(&client, options().wait(600 * SECOND));
    // More than two connections take.
    for number in 0..3_000 {
        let patient = patient.clone();
        tokio::spawn(async move { patient.try_acquire(format!("job-{number}")).await.map(drop) });
    }
    sleep(SECOND).await;
    let a = elector(&client, options());
    let run = a.run_with_policy("free", FailurePolicy::FailOpen, |_| async {
        panic!("it must not run");
        #[expect(unreachable_code, reason = "it has a type all the same")]
        Ok::<(), ()>(())
    });
    let error = run.await.unwrap_err();
    assert!(
        matches!(error, LeaderError::Backend(BackendError::Busy(_))),
        "{error:?}"
    );
    assert_eq!((a.stats().skipped, a.stats().failed), (0, 1));
    let stats = client.stats();
    assert_eq!((stats.not_sent, stats.timed_out), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_declined_is_not_kept_by_its_minimum() {
    let model = Model::full().await;
    let backend = Highwater::new(model.client().await);
    for (declines, retains) in [(true, 0), (false, 1)] {
        let (name, node) = (Key::new("job").unwrap(), NodeId::new("a").unwrap());
        let mut candidacy = Candidacy::new(name, node);
        candidacy.min_lease = 30 * SECOND;
        let lease = backend.acquire(candidacy).await.unwrap().unwrap();
        let released = match declines {
            true => lease.decline(),
            false => lease.release(),
        };
        assert_eq!(released.await, Ok(Release::Released));
        assert_eq!(model.books(|books| books.retains), retains);
        assert!(model.books(|books| books.held.is_empty()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_closed_at_once_still_gives_back_what_was_led() {
    for closes_first in [false, true] {
        let model = Model::full().await;
        let client = model.client().await;
        let a = elector(&client, options());
        let guard = a.try_acquire("job").await.unwrap().unwrap();
        if closes_first {
            // So the tasks of the client hear of it before the one that releases begins.
            tokio::join!(client.close(), async { drop(guard) });
        } else {
            drop(guard);
            client.close().await;
        }
        assert_eq!(
            model.books(|books| (books.held.len(), books.releases)),
            (0, 1)
        );
    }
}
