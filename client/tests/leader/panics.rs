//! Panics in the code of others, wherever it is called: the lease is given back, and everybody told.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use highwater_client::leader::{
    BoxFuture, Clock, HistorySink, InProcess, LeaderElector, LeaseEnd, MemoryHistory, Occurrence,
    StreamLease, TermOutcome, TermRecord, TokioClock,
};
use tokio::time::{Instant, sleep};

use crate::faulty::{Fault, Faulty};
use crate::{Bomb, SECOND, candidate, caught, elector, happened, now, options};

/// How the last term of these events ended.
fn last(events: &mut highwater_client::leader::Events) -> (TermOutcome, LeaseEnd) {
    match happened(events).pop() {
        Some(Occurrence::Ended { outcome, end, .. }) => (outcome, end),
        other => panic!("{other:?}"),
    }
}

/// Gives an item, then panics; and again where it is dropped, if it shall.
struct Panics {
    items: u32,
    _bomb: Option<Bomb>,
}

impl Stream for Panics {
    type Item = Result<u32, ()>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.items = self.items.checked_sub(1).expect("in a stream, on purpose");
        Poll::Ready(Some(Ok(self.items)))
    }
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    std::future::poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_panics_gives_the_lease_back_before_the_panic_goes_on() {
    for bomb in [false, true] {
        let service = InProcess::new();
        let (a, b) = (candidate(&service, "a"), candidate(&service, "b"));
        let mut events = a.subscribe();
        let stream = a.stream_if_leader("job", StreamLease::AutoExtend, |_| Panics {
            items: 1,
            _bomb: bomb.then(|| Bomb),
        });
        let mut stream = stream.await.unwrap().unwrap();
        assert_eq!(next(&mut stream).await, Some(Ok(0)));
        assert!(caught(next(&mut stream)).await.is_err());
        // Already, without a pause.
        assert!(b.try_acquire("job").await.unwrap().is_some());
        assert_eq!(
            last(&mut events),
            (TermOutcome::Panicked, LeaseEnd::Released)
        );
        assert_eq!((a.stats().panicked, a.stats().cancelled), (1, 0));
        // Nothing comes after it.
        assert_eq!(next(&mut stream).await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_panics_keeps_the_lease_for_the_parts_of_its_work() {
    let service = InProcess::new();
    let (a, b) = (candidate(&service, "a"), candidate(&service, "b"));
    let mut part = None;
    let stream = a.stream_if_leader("job", StreamLease::AutoExtend, |leader| {
        part = Some(leader);
        Panics {
            items: 0,
            _bomb: None,
        }
    });
    let mut stream = stream.await.unwrap().unwrap();
    assert!(caught(next(&mut stream)).await.is_err());
    assert!(b.try_acquire("job").await.unwrap().is_none());
    drop(part);
    sleep(SECOND).await;
    assert!(b.try_acquire("job").await.unwrap().is_some());
    assert_eq!(a.stats().panicked, 1);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_cannot_be_made_or_dropped_gives_the_lease_back_too() {
    for how in ["made", "ended", "lost"] {
        let service = InProcess::new();
        let (a, b) = (candidate(&service, "a"), candidate(&service, "b"));
        let make = |leader: highwater_client::leader::LeaderContext| {
            drop(leader);
            assert_ne!(how, "made", "on purpose");
            Explosive(how == "ended", Bomb)
        };
        let made = a.stream_if_leader("job", StreamLease::Bounded, make);
        let ran = caught(async {
            let mut stream = made.await.unwrap().unwrap();
            next(&mut stream).await
        });
        assert!(ran.await.is_err(), "{how}");
        assert!(b.try_acquire("job").await.unwrap().is_some(), "{how}");
        // A loss says more than what came behind it.
        let panicked = u64::from(how != "lost");
        let stats = a.stats();
        assert_eq!((stats.panicked, stats.cancelled), (panicked, 0), "{how}");
        assert_eq!(stats.revoked, 1 - panicked, "{how}");
    }
}

/// Ends, or waits for ever; and panics where it is dropped.
struct Explosive(bool, Bomb);

impl Stream for Explosive {
    type Item = Result<(), ()>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.0 {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_action_that_panics_when_it_is_cut_off_gives_the_lease_back() {
    let service = InProcess::new();
    let (a, b) = (candidate(&service, "a"), candidate(&service, "b"));
    let run = a.run_if_leader("job", |_| async {
        let _bomb = Bomb;
        std::future::pending::<()>().await;
    });
    let started = Instant::now();
    assert!(caught(run).await.is_err());
    assert!(started.elapsed() < 30 * SECOND);
    // Already, although what is left of its lease is not over.
    assert!(b.try_acquire("job").await.unwrap().is_some());
    assert_eq!((a.stats().elected, a.stats().revoked), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_panics_where_its_guard_is_dropped_is_lost_and_given_back() {
    let service = InProcess::new();
    let faulty = Faulty::new(service.clone());
    let a = LeaderElector::new(faulty.clone(), options("a").build().unwrap());
    let mut events = a.subscribe();
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    faulty.remaining(Fault::Panics);
    // On the way of another panic: a second one would end the process.
    let run = caught(async move {
        let _guard = guard;
        panic!("on purpose");
    });
    assert!(run.await.is_err());
    assert!(
        candidate(&service, "b")
            .try_acquire("job")
            .await
            .unwrap()
            .is_some()
    );
    tokio::task::yield_now().await;
    let told = happened(&mut events);
    assert!(
        matches!(
            told[..],
            [Occurrence::Elected { .. }, Occurrence::Revoked { .. }]
        ),
        "{told:?}"
    );
    assert!(!a.watch("job").unwrap().is_leader());
}

/// Throws something that panics again where it is dropped.
struct Throws;

impl HistorySink for Throws {
    fn record(&self, _: TermRecord) {
        std::panic::panic_any(Bomb);
    }
}

#[tokio::test(start_paused = true)]
async fn a_sink_of_the_history_that_panics_changes_no_outcome_and_silences_no_other() {
    let a = candidate(&InProcess::new(), "a");
    let history = Arc::new(MemoryHistory::new(10));
    a.record_to(Arc::new(Throws));
    a.record_to(history.clone());
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    assert_eq!(guard.release().await.end, LeaseEnd::Released);
    let ran = a.run_if_leader("job", |_| async { 7 }).await;
    assert_eq!(ran.unwrap(), Some(7));
    assert_eq!(history.records().len(), 2);
}

#[test]
fn a_panic_that_ends_a_runtime_costs_no_lease_of_a_guard_that_lives_on() {
    let service = InProcess::new();
    let a = elector(&service, options("a").auto_extend(true));
    let mut events = a.subscribe();
    let mut kept = None;
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().build().unwrap();
        kept = runtime.block_on(a.try_acquire("job")).unwrap();
        panic!("on purpose, and the runtime is dropped on the way");
    }));
    assert!(unwound.is_err());
    let guard = kept.unwrap();
    assert_eq!(guard.check(), Ok(()));
    assert!(a.watch("job").unwrap().is_leader());
    drop(guard);
    let told = happened(&mut events);
    assert!(
        matches!(
            told[..],
            [Occurrence::Elected { .. }, Occurrence::Ended { .. }]
        ),
        "{told:?}"
    );
}

/// Sleeps for ever.
#[derive(Debug)]
struct Sleepless(TokioClock);

impl Clock for Sleepless {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, _: Duration) -> BoxFuture<()> {
        Box::pin(std::future::pending())
    }
}

#[test]
fn a_candidacy_outside_of_a_runtime_panics_before_anything_is_held() {
    // One that needs no runtime to sleep: else that panics already.
    let service = InProcess::with_clock(Sleepless(TokioClock::new()));
    let a = candidate(&service, "a");
    let polled = catch_unwind(AssertUnwindSafe(|| now(a.try_acquire("job")).is_some()));
    assert!(polled.is_err());
    assert!(!a.watch("job").unwrap().is_leader());
    assert_eq!(a.stats().elected, 0);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().build().unwrap();
    let next = runtime.block_on(candidate(&service, "b").try_acquire("job"));
    assert!(next.unwrap().is_some());
}
