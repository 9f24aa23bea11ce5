//! Turns, tokens, and nothing left behind.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use highwater_client::{AcquireError, Release};

use crate::{acquiring, all_free, client_of, key, keys, queued, server, wait};

#[tokio::test]
async fn the_queue_is_served_in_order_with_rising_tokens() {
    let server = server().await;
    let client = client_of(&server).await;
    let mut ticket = client.acquire(&key("k"), wait(5_000)).await.unwrap();
    let mut waiting = Vec::new();
    for length in 1..=10 {
        waiting.push(acquiring(&client, "k", wait(20_000)));
        queued(&server, length).await;
    }
    for next in waiting {
        let before = ticket.token();
        assert_eq!(ticket.domain(), server.domain());
        assert_eq!(ticket.release().await, Ok(Release::Released));
        // The head of the queue, or this never ends.
        ticket = tokio::time::timeout(Duration::from_secs(5), next)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert!(ticket.token() > before);
    }
    drop(ticket);
    all_free(&server).await;
    client.close().await;
    server.shutdown().await;
}

#[tokio::test]
async fn a_wait_ends_when_it_should() {
    let server = server().await;
    let client = client_of(&server).await;
    let _held = client.acquire(&key("k"), wait(0)).await.unwrap();
    for (milliseconds, at_least, at_most) in [(0, 0, 500), (300, 290, 900), (1_000, 900, 1_600)] {
        let started = Instant::now();
        let error = client.acquire(&key("k"), wait(milliseconds)).await;
        assert_eq!(error.unwrap_err(), AcquireError::TimedOut);
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(at_least), "{took:?}");
        assert!(took <= Duration::from_millis(at_most), "{took:?}");
    }
    queued(&server, 0).await;
}

#[tokio::test]
async fn a_set_is_taken_as_a_whole() {
    let server = server().await;
    let client = client_of(&server).await;
    let single = client.acquire(&key("b"), wait(5_000)).await.unwrap();
    let set = keys(&["a", "b", "c"]);
    let taking = tokio::spawn({
        let (client, set) = (client.clone(), set.clone());
        async move { client.acquire_set(&set, wait(20_000)).await }
    });
    queued(&server, 1).await;
    single.release().await.unwrap();
    let ticket = taking.await.unwrap().unwrap();
    assert_eq!(ticket.keys(), &set);
    assert_eq!(ticket.fence().marks().len(), 3);
    for name in ["a", "b", "c"] {
        let error = client.acquire(&key(name), wait(0)).await.unwrap_err();
        assert_eq!(error, AcquireError::TimedOut);
    }
    assert_eq!(ticket.release().await, Ok(Release::Released));
    all_free(&server).await;
}

#[tokio::test]
async fn a_dropped_ticket_lets_the_next_one_in() {
    let server = server().await;
    let client = client_of(&server).await;
    let ticket = client.acquire(&key("k"), wait(5_000)).await.unwrap();
    let next = acquiring(&client, "k", wait(20_000));
    queued(&server, 1).await;
    drop(ticket);
    drop(next.await.unwrap().unwrap());
    all_free(&server).await;
}

#[tokio::test]
async fn a_dropped_future_gives_its_place_up_at_once() {
    let server = server().await;
    let client = client_of(&server).await;
    let ticket = client.acquire(&key("k"), wait(5_000)).await.unwrap();
    let gone = acquiring(&client, "k", wait(60_000));
    queued(&server, 1).await;
    let next = acquiring(&client, "k", wait(60_000));
    queued(&server, 2).await;
    gone.abort();
    queued(&server, 1).await;
    ticket.release().await.unwrap();
    drop(next.await.unwrap().unwrap());
    all_free(&server).await;
}

#[tokio::test]
async fn a_lease_ends_and_the_late_release_does_not_free_the_successors_lock() {
    let server = server().await;
    let client = client_of(&server).await;
    let short = wait(5_000).lease(Duration::from_secs(1));
    let old = client.acquire(&key("k"), short).await.unwrap();
    let new = client.acquire(&key("k"), wait(10_000)).await.unwrap();
    assert!(new.token() > old.token());
    assert!(!old.is_valid());
    assert_eq!(old.release().await, Ok(Release::NotCurrent));
    let error = client.acquire(&key("k"), wait(0)).await.unwrap_err();
    assert_eq!(error, AcquireError::TimedOut);
    assert_eq!(new.release().await, Ok(Release::Released));
}

#[tokio::test]
async fn who_waits_longer_than_its_lease_still_gets_a_whole_one() {
    let server = server().await;
    let client = client_of(&server).await;
    let long = wait(5_000).lease(Duration::from_secs(3));
    let _frozen = client.acquire(&key("k"), long).await.unwrap();
    let short = wait(10_000).lease(Duration::from_secs(2));
    let ticket = client.acquire(&key("k"), short).await.unwrap();
    assert!(ticket.is_valid());
    assert!(ticket.remaining() > Duration::from_secs(1));
}

/// Many tasks count under a lock; what they count is not atomic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_at_a_time_and_tokens_in_the_order_of_the_work() {
    let server = server().await;
    let client = client_of(&server).await;
    let total = Arc::new(AtomicU64::new(0));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (client, total, seen) = (client.clone(), total.clone(), seen.clone());
            tokio::spawn(async move {
                for _ in 0..10 {
                    let ticket = client.acquire(&key("k"), wait(60_000)).await.unwrap();
                    let read = total.load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    seen.lock().unwrap().push(ticket.token());
                    total.store(read + 1, Ordering::SeqCst);
                    ticket.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(total.load(Ordering::SeqCst), 200);
    let seen = seen.lock().unwrap();
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]));
}

/// Futures dropped at every moment, and tickets dropped at once: no lock stays behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_never_leaks_a_lock() {
    let server = server().await;
    let client = client_of(&server).await;
    for round in 0..400_u64 {
        let tasks: Vec<_> = (0..4)
            .map(|_| acquiring(&client, "k", wait(60_000)))
            .collect();
        // From before the request is sent to long after the grant has come.
        let moment = Duration::from_micros(round * 5);
        tokio::time::sleep(moment).await;
        for task in tasks {
            task.abort();
            drop(task.await);
        }
    }
    all_free(&server).await;
    let ticket = client.acquire(&key("k"), wait(0)).await.unwrap();
    assert_eq!(ticket.release().await, Ok(Release::Released));
    client.close().await;
}
