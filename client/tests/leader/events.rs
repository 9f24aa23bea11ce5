//! Events, levels, counters, the history, and the state of a name.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream as _;
use highwater_client::leader::{
    HistorySink, InProcess, Lagged, LeaderError, LeaderGroupOptions, LeaseEnd, MemoryHistory,
    Occurrence, OptionsError, Standing, TermOutcome, TermRecord,
};
use highwater_client::{Key, Lost};
use tokio::time::{advance, sleep};

use crate::{SECOND, candidate, elector, happened, now, options};

#[tokio::test(start_paused = true)]
async fn events_tell_of_a_term_from_the_election_to_the_release() {
    let service = InProcess::new();
    let a = elector(&service, options("a").auto_extend(true));
    let b = candidate(&service, "b");
    let (mut of_a, mut of_b) = (a.subscribe(), b.subscribe());
    let run = a.run_if_leader("job", |_| async {
        assert_eq!(b.run_if_leader("job", |_| async {}).await.unwrap(), None);
        sleep(11 * SECOND).await;
    });
    run.await.unwrap();
    let token = 1.try_into().unwrap();
    let slot = None;
    assert_eq!(
        happened(&mut of_a),
        [
            Occurrence::Elected { token, slot },
            Occurrence::Extended {
                token,
                remaining: 30 * SECOND
            },
            Occurrence::Ended {
                token,
                outcome: TermOutcome::Completed,
                end: LeaseEnd::Released,
            },
        ]
    );
    assert_eq!(happened(&mut of_b), [Occurrence::Skipped]);
    let mut both = a.subscribe();
    a.for_tenant("acme")
        .unwrap()
        .run_if_leader("job", |_| async {})
        .await
        .unwrap();
    // They are a stream too.
    let next = std::future::poll_fn(|context| Pin::new(&mut both).poll_next(context)).await;
    let event = next.unwrap().unwrap();
    assert_eq!(
        (event.name.as_str(), event.node.as_str()),
        ("acme/job", "a")
    );
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_is_told_how_many_events_it_missed() {
    let a = candidate(&InProcess::new(), "a");
    let mut slow = a.subscribe();
    for _ in 0..200 {
        a.run_if_leader("job", |_| async {}).await.unwrap();
    }
    assert_eq!(slow.next().await, Some(Err(Lagged { missed: 400 - 256 })));
    let left = happened(&mut slow);
    assert_eq!(left.len(), 256);
    drop(a);
    assert_eq!(slow.next().await, None);
}

/// spring-cloud-kubernetes: who misses the event of a revocation takes itself for the leader.
#[tokio::test(start_paused = true)]
async fn a_level_shows_no_leader_whose_events_were_missed() {
    let service = InProcess::new();
    let a = candidate(&service, "a");
    let mut level = a.watch("job").unwrap();
    let mut events = a.subscribe();
    assert!(!level.is_leader());
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    assert!(now(level.changed()).is_some());
    let leading = level.leading();
    assert_eq!(leading.len(), 1);
    assert_eq!((leading[0].token, leading[0].slot), (guard.token(), None));
    // Many things happen, and the reader of events gets only the last of them.
    for _ in 0..300 {
        assert!(a.try_acquire("job").await.unwrap().is_none());
    }
    service.restart();
    // No task of the elector has run since.
    assert!(!level.is_leader());
    assert!(matches!(events.next().await, Some(Err(Lagged { .. }))));
    assert!(now(level.changed()).is_some());
    drop(guard);
    assert!(!level.is_leader());
}

#[tokio::test(start_paused = true)]
async fn a_level_is_down_before_the_release_is_sent() {
    let service = InProcess::new();
    let a = candidate(&service, "a");
    let mut level = a.watch("job").unwrap();
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    level.changed().await;
    let mut release = Box::pin(guard.release());
    // Asked once: the release is under way, and no answer is there.
    assert!(now(&mut release).is_none());
    assert!(!level.is_leader());
    assert!(now(level.changed()).is_some());
    release.await;
    assert!(now(level.changed()).is_none(), "it ends once");
}

#[tokio::test(start_paused = true)]
async fn a_level_is_down_while_cancelled_work_comes_to_rest() {
    let a = elector(&InProcess::new(), options("a").auto_extend(true));
    let mut level = a.watch("job").unwrap();
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    level.changed().await;
    let part = guard.context();
    drop(guard);
    assert!(!level.is_leader());
    assert!(now(level.changed()).is_some());
    assert!(!a.state("job").await.unwrap().is_free());
    drop(part);
    tokio::task::yield_now().await;
    assert!(a.state("job").await.unwrap().is_free());
    assert!(now(level.changed()).is_none(), "it ends once");
}

#[tokio::test(start_paused = true)]
async fn a_level_follows_the_clock_also_when_nothing_tells_of_the_end() {
    let a = candidate(&InProcess::new(), "a");
    let level = a.watch("job").unwrap();
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    advance(Duration::from_millis(29_499)).await;
    assert!(level.is_leader());
    advance(Duration::from_millis(1)).await;
    assert!(!level.is_leader());
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_state_tells_holder_token_expiry_and_who_waits() {
    let service = InProcess::new();
    let (a, b) = (
        candidate(&service, "a"),
        elector(&service, options("b").wait(5 * SECOND)),
    );
    assert!(a.state("job").await.unwrap().is_free());
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    advance(4 * SECOND).await;
    let waiting = tokio::spawn({
        let b = b.clone();
        async move { b.try_acquire("job").await.unwrap().is_some() }
    });
    tokio::task::yield_now().await;
    let state = b.state("job").await.unwrap();
    assert_eq!(
        (state.name.as_str(), state.slots, state.waiting),
        ("job", None, 1)
    );
    let [holder] = &state.holders[..] else {
        panic!("{state:?}");
    };
    assert_eq!((holder.token, holder.slot), (guard.token(), None));
    assert_eq!(holder.node.as_ref().map(|node| node.as_str()), Some("a"));
    assert_eq!(
        holder.standing,
        Standing::Held {
            remaining: 26 * SECOND
        }
    );
    assert!(!waiting.await.unwrap());
    assert_eq!(b.state("job").await.unwrap().waiting, 0);
    let wrong = b.state("no spaces").await.unwrap_err();
    assert!(matches!(wrong, LeaderError::Name(_)));
}

#[tokio::test(start_paused = true)]
async fn the_history_has_one_record_for_each_term() {
    struct Panics;
    impl HistorySink for Panics {
        fn record(&self, _: TermRecord) {
            panic!("on purpose");
        }
    }
    let service = InProcess::new();
    let a = elector(&service, options("a").min_lease(SECOND));
    let history = Arc::new(MemoryHistory::new(4));
    a.record_to(Arc::new(Panics));
    a.record_to(history.clone());
    a.run_if_leader_result("first", |_| async { Err::<(), _>("no") })
        .await
        .unwrap()
        .elected();
    let guard = a.try_acquire("second").await.unwrap().unwrap();
    sleep(5 * SECOND).await;
    guard.release().await;
    drop(a.try_acquire("third").await.unwrap().unwrap());
    let lost = a.try_acquire("fourth").await.unwrap().unwrap();
    lost.lost().await;
    lost.release().await;
    let records = history.records();
    let told: Vec<_> = records
        .iter()
        .map(|record| {
            (
                record.name.as_str(),
                record.outcome,
                record.lost,
                record.term.token.get(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("first", TermOutcome::Failed, None, 1),
            ("second", TermOutcome::Completed, None, 2),
            ("third", TermOutcome::Cancelled, None, 3),
            ("fourth", TermOutcome::Lost, Some(Lost::Expired), 4),
        ]
    );
    assert_eq!(records[1].term.held, 5 * SECOND);
    assert_eq!(records[2].began, 5 * SECOND);
    assert_eq!(records[2].node.as_str(), "a");
    a.run_if_leader("fifth", |_| async {}).await.unwrap();
    assert_eq!(history.records()[0].name.as_str(), "second");
}

#[tokio::test(start_paused = true)]
async fn counters_add_up_to_the_terms() {
    let service = InProcess::new();
    let a = elector(&service, options("a").auto_extend(true));
    let retaining = elector(&service, options("a").min_lease(SECOND));
    a.run_if_leader("k", |_| sleep(11 * SECOND)).await.unwrap();
    let guard = a.try_acquire("k").await.unwrap().unwrap();
    assert!(a.try_acquire("k").await.unwrap().is_none());
    service.force_release(&Key::new("k").unwrap());
    guard.release().await;
    a.run_if_leader_result("k", |_| async { Err::<(), _>(()) })
        .await
        .unwrap()
        .elected();
    retaining.run_if_leader("k", |_| async {}).await.unwrap();
    let stats = a.stats();
    assert_eq!((stats.elected, stats.skipped, stats.failed), (3, 1, 0));
    assert_eq!((stats.released, stats.revoked, stats.retained), (2, 1, 0));
    assert_eq!((stats.extended, stats.actions_failed), (1, 1));
    let stats = retaining.stats();
    assert_eq!((stats.elected, stats.retained, stats.released), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn tenants_do_not_meet_and_cannot_be_mistaken_for_each_other() {
    let service = InProcess::new();
    let a = candidate(&service, "a");
    let (acme, other) = (
        a.for_tenant("acme").unwrap(),
        a.for_tenant("other").unwrap(),
    );
    let guards = (
        a.try_acquire("job").await.unwrap().unwrap(),
        acme.try_acquire("job").await.unwrap().unwrap(),
        other.try_acquire("job").await.unwrap().unwrap(),
    );
    assert_eq!(guards.1.name().as_str(), "acme/job");
    assert_eq!(guards.1.fence().marks()[0].key.as_bytes(), b"acme/job");
    assert!(acme.watch("job").unwrap().is_leader());
    assert_eq!(
        acme.state("job").await.unwrap().holders[0].token,
        guards.1.token()
    );
    let deep = acme.for_tenant("eu").unwrap();
    assert_eq!(
        deep.try_acquire("job")
            .await
            .unwrap()
            .unwrap()
            .name()
            .as_str(),
        "acme/eu/job"
    );
    for wrong in ["", "a/b", "/", "a b", &"t".repeat(129)] {
        assert_eq!(
            a.for_tenant(wrong).unwrap_err(),
            OptionsError::Tenant,
            "{wrong:?}"
        );
    }
    for wrong in ["", " ", "a\nb", &"n".repeat(124)] {
        let error = acme.try_acquire(wrong).await.unwrap_err();
        assert!(matches!(error, LeaderError::Name(_)), "{wrong:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_candidate_has_other_times_for_another_job() {
    let service = InProcess::new();
    let a = candidate(&service, "a");
    let other = options("ignored").min_lease(5 * SECOND).build().unwrap();
    let retaining = a.for_tenant("acme").unwrap().with_options(other);
    assert_eq!(retaining.node().as_str(), "a");
    retaining.run_if_leader("job", |_| async {}).await.unwrap();
    let state = a.state("acme/job").await.unwrap();
    assert!(matches!(
        state.holders[0].standing,
        Standing::Retained { .. }
    ));
    let group = a.group(LeaderGroupOptions::builder().slots(3).build().unwrap());
    let guard = group.try_acquire("pool").await.unwrap().unwrap();
    assert_eq!(
        (guard.slot(), guard.context().node().as_str()),
        (Some(0), "a")
    );
    assert!(a.watch("pool").unwrap().is_leader());
    let four = group.with_options(LeaderGroupOptions::builder().slots(4).build().unwrap());
    assert!(four.try_acquire("pool").await.is_err());
    assert_eq!((a.stats().elected, a.stats().failed), (2, 1));
}
