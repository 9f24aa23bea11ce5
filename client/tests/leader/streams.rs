//! Streams that are produced while leading.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use highwater_client::Lost;
use highwater_client::leader::{InProcess, LeaderError, OptionsError, StreamError, StreamLease};
use tokio::time::sleep;

use crate::{SECOND, candidate, elector, options};

/// Gives what it was told, each after a pause.
struct Items {
    items: VecDeque<Result<u32, &'static str>>,
    pause: Duration,
    sleep: Option<Pin<Box<tokio::time::Sleep>>>,
    at_rest: Arc<AtomicBool>,
}

impl Stream for Items {
    type Item = Result<u32, &'static str>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let pause = self.pause;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(pause)));
        std::task::ready!(sleep.as_mut().poll(context));
        self.sleep = None;
        Poll::Ready(self.items.pop_front())
    }
}

impl Drop for Items {
    fn drop(&mut self) {
        self.at_rest.store(true, Ordering::Relaxed);
    }
}

fn items(
    items: impl IntoIterator<Item = Result<u32, &'static str>>,
    seconds: u32,
) -> (Items, Arc<AtomicBool>) {
    let at_rest = Arc::new(AtomicBool::new(false));
    let items = Items {
        items: items.into_iter().collect(),
        pause: seconds * SECOND,
        sleep: None,
        at_rest: Arc::clone(&at_rest),
    };
    (items, at_rest)
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    std::future::poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

#[tokio::test(start_paused = true)]
async fn a_stream_leads_until_it_ends_fails_or_is_dropped() {
    for (how, last) in [
        ("ends", None),
        ("fails", Some(Err("no"))),
        ("is dropped", None),
    ] {
        let service = InProcess::new();
        let (a, b) = (candidate(&service, "a"), candidate(&service, "b"));
        let (source, at_rest) = items((0..10).map(Ok).chain(last), 5);
        let stream = a.stream_if_leader("job", StreamLease::AutoExtend, |leader| {
            assert!(leader.fence().is_some());
            source
        });
        let mut stream = stream.await.unwrap().unwrap();
        for number in 0..10 {
            assert_eq!(next(&mut stream).await, Some(Ok(number)));
            // Longer than the lease, which is extended although the options do not say so.
            assert!(b.try_acquire("job").await.unwrap().is_none());
        }
        match how {
            "ends" => assert_eq!(next(&mut stream).await, None),
            "fails" => assert_eq!(
                next(&mut stream).await,
                Some(Err(StreamError::Failed("no")))
            ),
            _ => {}
        }
        if how != "is dropped" {
            // Already: what came last came after the release.
            assert!(b.try_acquire("job").await.unwrap().is_some());
            assert_eq!(next(&mut stream).await, None);
        }
        drop(stream);
        assert!(at_rest.load(Ordering::Relaxed));
        tokio::task::yield_now().await;
        assert!(b.try_acquire("job").await.unwrap().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_bounded_stream_that_does_not_end_is_ended_by_its_lease() {
    let service = InProcess::new();
    // It is not extended, whatever the options say.
    let a = elector(&service, options("a").auto_extend(true));
    let (source, at_rest) = items((0..100).map(Ok), 7);
    let stream = a.stream_if_leader("job", StreamLease::Bounded, |_| source);
    let mut stream = stream.await.unwrap().unwrap();
    for number in 0..4 {
        assert_eq!(next(&mut stream).await, Some(Ok(number)));
    }
    let lost = StreamError::LeaseLost(Lost::Expired);
    assert_eq!(next(&mut stream).await, Some(Err(lost)));
    assert!(at_rest.load(Ordering::Relaxed));
    assert_eq!(next(&mut stream).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_not_polled_in_time_gives_nothing_more() {
    let service = InProcess::new();
    let a = candidate(&service, "a");
    let (source, _) = items((0..100).map(Ok), 0);
    let stream = a.stream_if_leader("job", StreamLease::Bounded, |_| source);
    let mut stream = stream.await.unwrap().unwrap();
    assert_eq!(next(&mut stream).await, Some(Ok(0)));
    tokio::time::advance(30 * SECOND).await;
    let lost = StreamError::LeaseLost(Lost::Expired);
    assert_eq!(next(&mut stream).await, Some(Err(lost)));
    assert_eq!(next(&mut stream).await, None);
    let held = candidate(&service, "b")
        .try_acquire("job")
        .await
        .unwrap()
        .unwrap();
    let (source, _) = items([], 0);
    let skipped = a.stream_if_leader("job", StreamLease::Bounded, |_| source);
    assert!(skipped.await.unwrap().is_none());
    let short = elector(&service, options("a").lease(SECOND / 10));
    let (source, _) = items([], 0);
    let refused = short.stream_if_leader("job", StreamLease::AutoExtend, |_| source);
    let refused = refused.await.unwrap_err();
    assert!(matches!(
        refused,
        LeaderError::Options(OptionsError::TooShortToExtend { .. })
    ));
    drop(held);
}
