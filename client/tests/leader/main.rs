//! Leader election over the in-process backend, in virtual time.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod adverse;
mod cancel;
mod events;
mod faulty;
mod groups;
mod jobs;
mod loss;
mod moody;
mod options;
mod order;
mod panics;
mod policy;
mod promises;
mod strategic;
mod streams;
mod terms;
mod threads;

use std::time::Duration;

use highwater_client::leader::{
    Events, InProcess, LeaderElector, LeaderOptions, LeaderOptionsBuilder, Occurrence,
};

const SECOND: Duration = Duration::from_secs(1);

/// A lease of 30 s and one try.
fn options(node: &str) -> LeaderOptionsBuilder {
    LeaderOptions::builder()
        .wait(Duration::ZERO)
        .lease(30 * SECOND)
        .node(node)
}

fn candidate(service: &InProcess, node: &str) -> LeaderElector {
    elector(service, options(node))
}

fn elector(service: &InProcess, options: LeaderOptionsBuilder) -> LeaderElector {
    LeaderElector::new(service.clone(), options.build().unwrap())
}

/// What has happened so far.
fn happened(events: &mut Events) -> Vec<Occurrence> {
    let mut all = Vec::new();
    while let Some(Some(event)) = now(tokio::task::unconstrained(events.next())) {
        all.push(event.unwrap().what);
    }
    all
}

/// What a future gives if it is asked once.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

/// What a future gives, or throws.
async fn caught<F: Future>(future: F) -> std::thread::Result<F::Output> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(move |context| {
        let poll = std::panic::AssertUnwindSafe(|| future.as_mut().poll(context));
        match std::panic::catch_unwind(poll) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => std::task::Poll::Ready(Err(panic)),
        }
    })
    .await
}

/// Panics where it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("in a destructor, on purpose");
        }
    }
}
