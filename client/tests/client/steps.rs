//! Futures that are dropped at every point at which they can stop.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::advance;

/// How the world around the future goes on between two polls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum World {
    /// Every task that is ready runs once.
    Steps,
    /// So much time passes.
    Time(Duration),
}

/// Polls the future so many times and drops it; the outcome if it was quicker.
pub(crate) async fn polled<F: Future>(future: F, times: usize, world: World) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..times {
        let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        match world {
            World::Steps => yield_now().await,
            World::Time(span) => advance(span).await,
        }
    }
    None
}

/// More polls than any future here needs.
pub(crate) const MANY: usize = 500;
