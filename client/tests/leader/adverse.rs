//! Parts of a program that stand still, a backend that panics, a runtime that is gone.

use std::sync::Arc;
use std::time::Duration;

use highwater_client::Lost;
use highwater_client::leader::{
    BoxFuture, InProcess, LeaderContext, LeaderElector, LeaderError, LeaseEnd, LossPolicy,
    MemoryHistory, NotLeader, Occurrence, RenewError, StreamLease,
};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::faulty::{Call, Fault, Faulty};
use crate::{SECOND, candidate, elector, happened, now, options};

fn faulty() -> (Faulty, LeaderElector) {
    let faulty = Faulty::new(InProcess::new());
    let options = options("a").auto_extend(true).build().unwrap();
    (faulty.clone(), LeaderElector::new(faulty, options))
}

type Extending = BoxFuture<Result<(), RenewError>>;

/// An extension that is under way, and that nobody polls.
fn parked(faulty: &Faulty, context: LeaderContext) -> Extending {
    faulty.extend(Fault::Hangs);
    let mut extending: Extending = Box::pin(async move { context.extend(100 * SECOND).await });
    assert!(now(&mut extending).is_none());
    faulty.extend(Fault::None);
    extending
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_nobody_polls_does_not_hold_up_the_release() {
    let (faulty, a) = faulty();
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    let by_guard = parked(&faulty, guard.context());
    let report = timeout(SECOND, guard.release()).await.unwrap();
    assert_eq!(report.end, LeaseEnd::Released);
    // Whoever goes on with it is told.
    let refused = by_guard.await.unwrap_err();
    assert!(matches!(refused, RenewError::NotLeader(NotLeader::Ended)));
    let run = a.run_if_leader("job", |leader| {
        std::future::ready(parked(&faulty, leader.clone()))
    });
    let by_part = timeout(SECOND, run).await.unwrap().unwrap();
    assert!(a.state("job").await.unwrap().is_free());
    drop(by_part);
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    let context = guard.context();
    let mut by_borrower = Box::pin(guard.extend(100 * SECOND));
    faulty.extend(Fault::Hangs);
    assert!(now(&mut by_borrower).is_none());
    drop(by_borrower);
    let of_dropped = parked(&faulty, context);
    drop(guard);
    // It counts as a part of the work, until the lease ends.
    sleep(61 * SECOND).await;
    assert!(a.state("job").await.unwrap().is_free());
    assert!(of_dropped.await.is_err());
    assert_eq!(a.stats().elected, 3);
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_nobody_polls_holds_up_no_other() {
    let (faulty, a) = faulty();
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    let parked = parked(&faulty, guard.context());
    sleep(60 * SECOND).await;
    assert_eq!(guard.check(), Ok(()));
    timeout(SECOND, guard.extend(200 * SECOND))
        .await
        .unwrap()
        .unwrap();
    assert!(guard.remaining() > 199 * SECOND);
    drop(parked);
    let report = guard.release().await;
    assert!((6..=8).contains(&report.extensions), "{report:?}");
}

/// redisson: the watchdog stops, and nobody hears of it.
#[tokio::test(start_paused = true)]
async fn a_backend_that_panics_while_it_extends_loses_the_lease_in_time_and_aloud() {
    for fault in [Fault::Panics, Fault::PanicsLater] {
        let (faulty, a) = faulty();
        let mut events = a.subscribe();
        let started = Instant::now();
        faulty.extend(fault);
        // It has nothing to wake it.
        let run = a.run_if_leader("job", |_| std::future::pending::<()>());
        let lost = timeout(100 * SECOND, run).await.unwrap().unwrap_err();
        let expired = Lost::Expired;
        assert!(matches!(lost, LeaderError::LeaseLost { reason, .. } if reason == expired));
        assert!(started.elapsed() < 30 * SECOND, "{:?}", started.elapsed());
        let stats = a.stats();
        assert!(stats.extensions_failed > 10, "{stats:?}");
        assert_eq!(stats.revoked, 1);
        let last = happened(&mut events).pop().unwrap();
        assert!(matches!(last, Occurrence::Revoked { .. }), "{last:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_term_that_nobody_watches_any_more_is_lost_at_once() {
    for fault in [Fault::Panics, Fault::PanicsLater] {
        let (faulty, a) = faulty();
        let mut events = a.subscribe();
        faulty.lost(fault);
        let run = a.run_if_leader("job", |_| std::future::pending::<()>());
        let lost = timeout(SECOND, run).await.unwrap().unwrap_err();
        assert!(matches!(lost, LeaderError::LeaseLost { .. }), "{lost}");
        let events = happened(&mut events);
        assert!(
            matches!(
                events[..],
                [Occurrence::Elected { .. }, Occurrence::Revoked { .. }]
            ),
            "{events:?}"
        );
        assert!(a.state("job").await.unwrap().is_free());
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_backend_that_passes_costs_nothing() {
    let (faulty, a) = faulty();
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    for fault in [Fault::Panics, Fault::PanicsLater] {
        faulty.extend(fault);
        let error = guard.extend(40 * SECOND).await.unwrap_err();
        assert!(matches!(error, RenewError::Backend(error) if error.is_transient()));
        sleep(15 * SECOND).await;
        faulty.extend(Fault::None);
        sleep(30 * SECOND).await;
        assert_eq!(guard.check(), Ok(()));
    }
    assert_eq!(guard.release().await.end, LeaseEnd::Released);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_panics_is_an_unknown_end_and_told_once() {
    for fault in [Fault::Panics, Fault::PanicsLater] {
        let (faulty, a) = faulty();
        let mut events = a.subscribe();
        faulty.release(fault);
        let guard = a.try_acquire("job").await.unwrap().unwrap();
        let report = guard.release().await;
        assert!(matches!(report.end, LeaseEnd::Unknown { .. }), "{report:?}");
        let ran = a.run_if_leader("other", |_| async { 7 }).await;
        assert_eq!(ran.unwrap(), Some(7));
        drop(a.try_acquire("third").await.unwrap().unwrap());
        sleep(SECOND).await;
        let stats = a.stats();
        assert_eq!((stats.elected, stats.release_unknown), (3, 3));
        let events = happened(&mut events);
        let ended = |what: &&Occurrence| matches!(what, Occurrence::Ended { .. });
        assert_eq!(events.iter().filter(ended).count(), 3, "{events:?}");
    }
}

/// A part of the work that is told of the loss and needs most of the margin to stop; when it did.
fn part(leader: LeaderContext) -> JoinHandle<Instant> {
    tokio::spawn(async move {
        leader.lost().await;
        sleep(Duration::from_millis(400)).await;
        Instant::now()
    })
}

/// kubernetes: the lease is released before the work has drained.
#[tokio::test(start_paused = true)]
async fn after_a_loss_nobody_is_elected_while_parts_of_the_work_stop_in_their_time() {
    for how in ["cut off", "guard", "dropped guard", "panic", "stream"] {
        let service = InProcess::new();
        let a = candidate(&service, "a");
        let b = elector(&service, options("b").wait(100 * SECOND));
        let (send, mut parts) = tokio::sync::mpsc::unbounded_channel();
        let work = async {
            match how {
                "cut off" => {
                    let run = a.run_if_leader("job", |leader| async move {
                        send.send(part(leader)).unwrap();
                        std::future::pending::<()>().await;
                    });
                    assert!(run.await.is_err());
                }
                "panic" => {
                    let (a, leave) = (a.clone(), SECOND * 30 - Duration::from_millis(400));
                    let run = tokio::spawn(async move {
                        let options = options("a").on_loss(LossPolicy::Notify);
                        let a = a.with_options(options.build().unwrap());
                        a.run_if_leader("job", |leader| async move {
                            send.send(part(leader)).unwrap();
                            sleep(leave).await;
                            panic!("on purpose");
                        })
                        .await
                    });
                    assert!(run.await.unwrap_err().is_panic());
                }
                "stream" => {
                    let stream = a.stream_if_leader("job", StreamLease::Bounded, |leader| {
                        send.send(part(leader)).unwrap();
                        Silent
                    });
                    let mut stream = stream.await.unwrap().unwrap();
                    let next = std::future::poll_fn(|context| {
                        futures_core::Stream::poll_next(std::pin::Pin::new(&mut stream), context)
                    });
                    assert!(next.await.unwrap().is_err());
                }
                _ => {
                    let guard = a.try_acquire("job").await.unwrap().unwrap();
                    send.send(part(guard.context())).unwrap();
                    guard.lost().await;
                    if how == "guard" {
                        guard.release().await;
                    }
                }
            }
        };
        let next = async {
            tokio::task::yield_now().await;
            let _next = b.try_acquire("job").await.unwrap().unwrap();
            Instant::now()
        };
        let ((), elected) = tokio::join!(work, next);
        let at_rest = parts.recv().await.unwrap().await.unwrap();
        assert!(elected >= at_rest, "{how}: {:?} early", at_rest - elected);
    }
}

/// Gives nothing, and does not end.
struct Silent;

impl futures_core::Stream for Silent {
    type Item = Result<(), ()>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Pending
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_loss_work_that_does_not_stop_keeps_the_lease_until_its_end_and_no_longer() {
    let service = InProcess::new();
    let a = candidate(&service, "a");
    let b = elector(&service, options("b").wait(100 * SECOND));
    let started = Instant::now();
    let (send, leaked) = oneshot::channel();
    let run = a.run_if_leader("job", |leader| async move {
        let _ = send.send(leader);
        std::future::pending::<()>().await;
    });
    let (ran, next) = tokio::join!(run, b.try_acquire("job"));
    assert!(ran.is_err() && next.unwrap().is_some());
    let elapsed = started.elapsed();
    assert!((30 * SECOND..31 * SECOND).contains(&elapsed), "{elapsed:?}");
    drop(leaked);
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().build().unwrap()
}

#[test]
fn a_guard_in_another_runtime_is_told_of_its_loss_although_its_own_is_gone() {
    let a = elector(
        &InProcess::new(),
        options("a").lease(Duration::from_millis(400)),
    );
    let first = runtime();
    let guard = first.block_on(a.try_acquire("job")).unwrap().unwrap();
    drop(first);
    let lost = runtime().block_on(async { timeout(20 * SECOND, guard.lost()).await });
    assert_eq!(lost.unwrap(), NotLeader::Lost(Lost::Expired));
}

#[test]
fn a_term_whose_runtime_is_gone_before_its_release_is_told_of_and_recorded() {
    let a = candidate(&InProcess::new(), "a");
    let history = Arc::new(MemoryHistory::new(10));
    a.record_to(history.clone());
    let mut events = a.subscribe();
    let first = runtime();
    let guard = first.block_on(a.try_acquire("job")).unwrap().unwrap();
    drop(first);
    drop(guard);
    let last = happened(&mut events).pop().unwrap();
    assert!(matches!(last, Occurrence::Ended { .. }), "{last:?}");
    assert_eq!(a.stats().release_unknown, 1);
    assert_eq!(history.records().len(), 1);
}

#[test]
fn a_release_without_an_answer_at_the_end_of_its_runtime_is_told_of_and_asked_for_once() {
    let (faulty, a) = faulty();
    faulty.release(Fault::Hangs);
    let first = runtime();
    first.block_on(async {
        let guard = a.try_acquire("job").await.unwrap().unwrap();
        assert!(now(guard.release()).is_none());
        tokio::task::yield_now().await;
        assert_eq!(a.stats().release_unknown, 0);
    });
    drop(first);
    assert_eq!(a.stats().release_unknown, 1);
    let released = faulty.calls();
    assert!(matches!(released[..], [Call::Release(_)]), "{released:?}");
}

#[test]
fn a_release_whose_runtime_is_gone_reports_what_was_told_of_the_term() {
    let (faulty, a) = faulty();
    let history = Arc::new(MemoryHistory::new(10));
    a.record_to(history.clone());
    let first = runtime();
    let guard = first.block_on(async {
        let guard = a.try_acquire("job").await.unwrap().unwrap();
        guard.extend(60 * SECOND).await.unwrap();
        sleep(Duration::from_millis(20)).await;
        guard
    });
    drop(first);
    let report = runtime().block_on(guard.release());
    assert_eq!(report, history.records()[0].term);
    assert!(report.held >= Duration::from_millis(20), "{report:?}");
    assert_eq!(report.extensions, 1);
    assert!(matches!(
        faulty.calls()[..],
        [Call::Extend(_), Call::Release(_)]
    ));
}

#[tokio::test(start_paused = true)]
async fn a_question_without_an_answer_is_an_error_and_no_hang() {
    let (faulty, a) = faulty();
    faulty.hear_nothing();
    let started = Instant::now();
    assert!(a.state("job").await.unwrap_err().is_transient());
    assert_eq!(started.elapsed(), 15 * SECOND);
}
