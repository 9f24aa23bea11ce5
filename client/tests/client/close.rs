//! The end of a client: bounded, and leaving as little behind as possible.

use std::time::Duration;

use highwater_client::{AcquireError, ExtendError, Key, QueryError, Release, ReleaseError};
use highwater_protocol::{ErrorCode, Reply};
use tokio::time::Instant;

use crate::fake::{Fake, Manners};
use crate::model::{Fault, Kind, Model};
use crate::{acquiring, cancel_of, domain, granted, keys, release_of, released, ticket, wait};

#[tokio::test(start_paused = true)]
async fn closing_ends_waiting_calls_and_the_connections() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, peers) = fake.client().await;
    let acquire = acquiring(&client, "k", wait(60_000));
    let (_, request) = fake.request().await;
    let closing = tokio::spawn({
        let client = client.clone();
        async move { client.close().await }
    });
    let (peer, cancel) = fake.request().await;
    let (id, of) = cancel_of(&cancel);
    assert_eq!(of, request.id());
    peer.reply(Reply::TimedOut { id: of });
    peer.reply(Reply::Cancelled {
        id,
        was_queued: true,
    });
    let error = acquire.await.unwrap().unwrap_err();
    assert_eq!(error, AcquireError::Closed);
    closing.await.unwrap();
    for peer in peers {
        fake.closed(peer.number).await;
    }
    let error = acquiring(&client, "k", wait(1_000))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error, AcquireError::Closed);
    // Again, and of a clone: nothing to do.
    client.close().await;
}

#[tokio::test(start_paused = true)]
async fn closing_ends_an_acquire_between_two_attempts_without_a_third() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let mut acquire = acquiring(&client, "k", wait(60_000));
    for _ in 0..2 {
        let (peer, request) = fake.request().await;
        let (id, code) = (request.id(), ErrorCode::NotActive);
        peer.reply(Reply::Error { id, code });
    }
    // In the pause before the next one.
    let started = Instant::now();
    client.close().await;
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "it waited for an answer"
    );
    let outcome = tokio::select! {
        biased;
        outcome = &mut acquire => outcome.unwrap(),
        (_, request) = fake.request() => panic!("asked again: {request:?}"),
    };
    assert_eq!(outcome.unwrap_err(), AcquireError::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_grant_during_the_closing_is_released_before_the_end() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let acquire = acquiring(&client, "k", wait(60_000));
    let (peer, request) = fake.request().await;
    let closing = tokio::spawn({
        let client = client.clone();
        async move { client.close().await }
    });
    let _ = fake.request().await;
    peer.reply(granted(&request, 6));
    let (peer, release) = fake.request().await;
    assert_eq!(release_of(&release), ("k".to_owned(), 6));
    peer.reply(released(&release));
    closing.await.unwrap();
    let error = acquire.await.unwrap().unwrap_err();
    assert_eq!(error, AcquireError::Closed);
}

#[tokio::test(start_paused = true)]
async fn closing_takes_at_most_five_seconds_whatever_the_server_does() {
    let (mut fake, client, _peers, ticket) = ticket("k").await;
    let acquire = acquiring(&client, "q", wait(60_000));
    let _ = fake.request().await;
    drop(ticket);
    let started = Instant::now();
    client.close().await;
    assert!(started.elapsed() < Duration::from_secs(5));
    let error = acquire.await.unwrap().unwrap_err();
    assert_eq!(error, AcquireError::Indeterminate);
}

#[tokio::test(start_paused = true)]
async fn what_was_dropped_before_is_released_before_the_connections_close() {
    let (mut fake, client, peers, ticket) = ticket("k").await;
    drop(ticket);
    let closing = tokio::spawn({
        let client = client.clone();
        async move { client.close().await }
    });
    let (peer, release) = fake.request().await;
    assert_eq!(release_of(&release), ("k".to_owned(), 1));
    peer.reply(released(&release));
    closing.await.unwrap();
    for peer in peers {
        fake.closed(peer.number).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_under_way_finishes_before_the_connections_close() {
    let (mut fake, client, _peers, ticket) = ticket("k").await;
    let releasing = tokio::spawn(ticket.release());
    let (peer, release) = fake.request().await;
    let mut closing = tokio::spawn({
        let client = client.clone();
        async move { client.close().await }
    });
    // It would be long over if it did not wait for the release.
    let early = tokio::time::timeout(Duration::from_millis(200), &mut closing).await;
    assert!(early.is_err(), "closed with a release under way");
    peer.reply(released(&release));
    assert_eq!(releasing.await.unwrap(), Ok(Release::Released));
    closing.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_ticket_that_outlives_the_closing_cannot_be_released() {
    let (_fake, client, _peers, ticket) = ticket("k").await;
    client.close().await;
    assert_eq!(ticket.release().await, Err(ReleaseError::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_ticket_keeps_the_connections_and_the_last_one_closes_them() {
    let (mut fake, client, peers, ticket) = ticket("k").await;
    drop(client);
    let release = tokio::spawn(ticket.release());
    let (peer, request) = fake.request().await;
    peer.reply(released(&request));
    release.await.unwrap().unwrap();
    for peer in peers {
        assert_eq!(fake.closed(peer.number).await, []);
    }
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_connect_leaves_nothing_running() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let connect = tokio::spawn(fake.builder().connect());
    let first = fake.opened().await;
    connect.abort();
    // Whether or not it had become a client just then.
    drop(connect.await);
    fake.closed(first.number).await;
}

#[tokio::test(start_paused = true)]
async fn closing_ends_extensions_and_queries_that_are_under_way() {
    let model = Model::full().await;
    let client = model.client().await;
    let ticket = client.acquire_set(&keys(&["k"]), wait(0)).await.unwrap();
    let (to, bytes, closes) = (Kind::Extend, 0, false);
    model.errs(Some(Fault { to, bytes, closes }));
    let extending = tokio::spawn(async move { ticket.extend(Duration::from_secs(60)).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (to, bytes, closes) = (Kind::Query, 0, false);
    model.errs(Some(Fault { to, bytes, closes }));
    let asking = tokio::spawn({
        let client = client.clone();
        async move { client.query(&Key::new("k").unwrap()).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let started = Instant::now();
    client.close().await;
    assert_eq!(extending.await.unwrap(), Err(ExtendError::Closed));
    assert_eq!(asking.await.unwrap(), Err(QueryError::Closed));
    assert!(started.elapsed() < Duration::from_secs(5));
}
