//! Futures dropped after every number of polls: the server is left with nothing.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use highwater_client::Client;
use tokio::task::yield_now;

use crate::{all_free, client_of, key, queued, server, wait};

/// Polls the future each time it wants to be, so many times at most; then lets everybody else have
/// so many turns, and drops it.
async fn polled<F: Future>(future: F, times: usize, turns: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = times;
    let output = poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // Without a further poll allowed nobody waits to be woken.
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    if output.is_none() {
        for _ in 0..turns {
            yield_now().await;
        }
    }
    output
}

/// From before the request leaves to after the answer has come, unseen.
const TURNS: [usize; 10] = [0, 1, 2, 3, 5, 10, 50, 100, 200, 500];
/// More polls than any call here needs.
const MANY: usize = 8;

#[tokio::test]
async fn an_acquire_of_a_free_lock() {
    let server = server().await;
    let client = client_of(&server).await;
    for times in 0..MANY {
        for turns in TURNS {
            let key = key("k");
            let acquire = client.acquire(&key, wait(60_000));
            drop(polled(acquire, times, turns).await);
            all_free(&server).await;
        }
    }
    assert!(client.stats().acquired > 0);
    assert!(client.stats().unwanted > 0);
}

#[tokio::test]
async fn an_acquire_that_stands_in_a_queue() {
    let server = server().await;
    let client = client_of(&server).await;
    for (times, turns) in (0..MANY).flat_map(|times| TURNS.map(|turns| (times, turns))) {
        let holder = client.acquire(&key("k"), wait(60_000)).await.unwrap();
        let waiting = tokio::spawn({
            let client: Client = client.clone();
            async move { polled(client.acquire(&key("k"), wait(60_000)), times, turns).await }
        });
        // Lets go at once, for it may also stand before the other one.
        let next = tokio::spawn({
            let client: Client = client.clone();
            async move { drop(client.acquire(&key("k"), wait(60_000)).await.unwrap()) }
        });
        for _ in 0..turns / 2 {
            yield_now().await;
        }
        holder.release().await.unwrap();
        drop(waiting.await.unwrap());
        // Whoever stood behind gets its turn.
        let next = tokio::time::timeout(Duration::from_secs(15), next).await;
        next.unwrap().unwrap();
        all_free(&server).await;
        queued(&server, 0).await;
    }
}

#[tokio::test]
async fn a_release() {
    let server = server().await;
    let client = client_of(&server).await;
    for (times, turns) in (0..MANY).flat_map(|times| TURNS.map(|turns| (times, turns))) {
        let ticket = client.acquire(&key("k"), wait(60_000)).await.unwrap();
        let _ = polled(ticket.release(), times, turns).await;
        all_free(&server).await;
    }
}

#[tokio::test]
async fn an_extension() {
    let server = server().await;
    let client = client_of(&server).await;
    for (times, turns) in (0..MANY).flat_map(|times| TURNS.map(|turns| (times, turns))) {
        let ticket = client.acquire(&key("k"), wait(60_000)).await.unwrap();
        let extended = polled(ticket.extend(Duration::from_secs(100)), times, turns).await;
        assert!(ticket.is_valid());
        assert!(extended.is_none_or(|outcome| outcome.is_ok()));
        ticket.release().await.unwrap();
        all_free(&server).await;
    }
}
