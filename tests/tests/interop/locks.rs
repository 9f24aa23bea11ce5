//! Acquire, set acquire, release, timeout and busy, as the published client reports them.

use std::time::{Duration, Instant};

use highwater_server::Limits;
use ticketing::{ReleaseOutcome, TicketError};

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_acquired_and_released() {
    let server = server().await;
    let broker = client(&server).await;
    let first = broker
        .acquire("apple", WAIT, LEASE, WORK)
        .await
        .expect("free");
    let token = first.token();
    assert_eq!(
        first.release().await.expect("answered"),
        ReleaseOutcome::Released
    );
    let second = broker
        .acquire("apple", WAIT, LEASE, WORK)
        .await
        .expect("free");
    assert!(second.token() > token);
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_is_acquired_as_a_whole_and_released_as_a_whole() {
    let server = server().await;
    let broker = client(&server).await;
    // Unsorted and repeated: the client makes it canonical.
    let keys = ["plum", "apple", "plum", "pear"];
    let set = broker
        .acquire_set(&keys, WAIT, LEASE, WORK)
        .await
        .expect("free");
    assert_eq!(set.keys().collect::<Vec<_>>(), ["apple", "pear", "plum"]);
    assert_eq!(server.counts().held_keys, 3);
    for key in keys {
        let refused = broker.acquire(key, Duration::ZERO, LEASE, WORK).await;
        assert!(matches!(refused, Err(TicketError::Timeout)), "{refused:?}");
    }
    assert_eq!(
        set.release().await.expect("answered"),
        ReleaseOutcome::Released
    );
    assert_eq!(server.counts().held_keys, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_of_one_key_is_the_lock_of_that_key() {
    let server = server().await;
    let broker = client(&server).await;
    let set = broker
        .acquire_set(&["apple"], WAIT, LEASE, WORK)
        .await
        .expect("free");
    let refused = broker.acquire("apple", Duration::ZERO, LEASE, WORK).await;
    assert!(matches!(refused, Err(TicketError::Timeout)), "{refused:?}");
    set.release().await.expect("answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_over_is_a_timeout_and_the_connection_lives_on() {
    let server = server().await;
    let broker = client(&server).await;
    let held = broker
        .acquire("apple", WAIT, LEASE, WORK)
        .await
        .expect("free");
    // An answer at the client's own deadline would be too late: it would close the connection,
    // and with it every request that waits on it. So these two, one on each of its connections,
    // must come through.
    let mut bystanders = Vec::new();
    for _ in 0..2 {
        let broker = broker.clone();
        bystanders.push(tokio::spawn(async move {
            let ticket = broker.acquire("apple", WAIT, LEASE, WORK).await?;
            ticket.release().await
        }));
    }
    eventually("both queue", || server.counts().waiters == 2).await;
    let mut waits = Vec::new();
    for _ in 0..8 {
        let broker = broker.clone();
        waits.push(tokio::spawn(async move {
            let began = Instant::now();
            let refused = broker
                .acquire("apple", Duration::from_secs(1), LEASE, WORK)
                .await;
            (refused, began.elapsed())
        }));
    }
    for wait in waits {
        let (refused, took) = wait.await.expect("ends");
        assert!(matches!(refused, Err(TicketError::Timeout)), "{refused:?}");
        assert!(took >= Duration::from_millis(900), "{took:?}");
    }
    held.release().await.expect("answered");
    for bystander in bystanders {
        let outcome = bystander.await.expect("ends").expect("its turn");
        assert_eq!(outcome, ReleaseOutcome::Released);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_busy() {
    let mut limits = Limits::default();
    limits.locks.waiters_per_key = 1;
    let server = server_with(limits).await;
    let broker = client(&server).await;
    let held = broker
        .acquire("apple", WAIT, LEASE, WORK)
        .await
        .expect("free");
    let queued = {
        let broker = broker.clone();
        tokio::spawn(async move { broker.acquire("apple", WAIT, LEASE, WORK).await })
    };
    eventually("one queues", || server.counts().waiters == 1).await;
    let refused = broker.acquire("apple", WAIT, LEASE, WORK).await;
    assert!(matches!(refused, Err(TicketError::Busy)), "{refused:?}");
    held.release().await.expect("answered");
    let turn = queued.await.expect("ends").expect("its turn");
    turn.release().await.expect("answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_after_the_lease_says_that_it_is_gone() {
    let server = server().await;
    let broker = client(&server).await;
    let second = Duration::from_secs(1);
    let late = broker
        .acquire("apple", WAIT, second, Duration::ZERO)
        .await
        .expect("free");
    let next = broker
        .acquire("apple", WAIT, LEASE, WORK)
        .await
        .expect("its turn");
    assert!(next.token() > late.token());
    let outcome = late.release().await.expect("answered");
    assert_eq!(outcome, ReleaseOutcome::AlreadyGoneOrNotCurrent);
    // The late release did not free the successor's lock.
    assert_eq!(
        next.release().await.expect("answered"),
        ReleaseOutcome::Released
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_ticket_is_released_in_the_background() {
    let server = server().await;
    let broker = client(&server).await;
    drop(
        broker
            .acquire("apple", WAIT, LEASE, WORK)
            .await
            .expect("free"),
    );
    eventually("released", || server.counts().held_keys == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_wait_leaves_the_queue() {
    let server = server().await;
    let broker = client(&server).await;
    let held = broker
        .acquire("apple", WAIT, LEASE, WORK)
        .await
        .expect("free");
    let other = client(&server).await;
    let waits = tokio::spawn({
        let other = other.clone();
        async move { other.acquire("apple", WAIT, LEASE, WORK).await }
    });
    eventually("it queues", || server.counts().waiters == 1).await;
    waits.abort();
    eventually("it left", || server.counts().waiters == 0).await;
    held.release().await.expect("answered");
    eventually("nothing is held", || server.counts().held_keys == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_the_secret_gets_in_and_one_without_does_not() {
    let secret = highwater_server::Secret::new("a shared client token").expect("a secret");
    let builder = builder().client_token(secret);
    let server = builder.start().await.expect("starts");
    let address = server.local_addr().to_string();

    let broker = client_builder(&address).token("a shared client token");
    let broker = ready(broker.connect().expect("a configuration")).await;
    let ticket = broker.acquire("apple", WAIT, LEASE, WORK).await;
    ticket.expect("free").release().await.expect("answered");

    let stranger = client_builder(&address).token("another client token");
    let stranger = stranger.connect().expect("a configuration");
    let refused = stranger.acquire("pear", WAIT, LEASE, WORK).await;
    assert!(matches!(refused, Err(TicketError::Auth)), "{refused:?}");
}
