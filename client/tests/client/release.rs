//! Giving locks back: certain, repeated, in the background, and only to the right domain.

use std::time::Duration;

use highwater_client::{ErrorCode, Lost, Release, ReleaseError};
use highwater_protocol::Reply;
use tokio::time::Instant;

use crate::fake::Manners;
use crate::model::{Fault, Kind, Model};
use crate::{acquired, acquiring, domain, granted, keys, release_of, released, ticket, wait};

#[tokio::test(start_paused = true)]
async fn released_and_not_current_are_told_apart() {
    let (mut fake, client, _peers, first) = ticket("k").await;
    let release = tokio::spawn(first.release());
    let (peer, request) = fake.request().await;
    assert_eq!(release_of(&request), ("k".to_owned(), 1));
    peer.reply(released(&request));
    assert_eq!(release.await.unwrap(), Ok(Release::Released));

    let acquire = acquiring(&client, "k", wait(5_000));
    let (peer, request) = fake.request().await;
    peer.reply(granted(&request, 2));
    let release = tokio::spawn(acquire.await.unwrap().unwrap().release());
    let (peer, request) = fake.request().await;
    peer.reply(Reply::NotHeld { id: request.id() });
    assert_eq!(release.await.unwrap(), Ok(Release::NotCurrent));
    // Neither is released again by the end of its ticket.
    acquiring(&client, "next", wait(5_000));
    assert_eq!(acquired(&fake.request().await.1), "next");
}

#[tokio::test(start_paused = true)]
async fn an_uncertain_release_is_repeated_with_the_same_token() {
    let (mut fake, _client, _peers, ticket) = ticket("k").await;
    let release = tokio::spawn(ticket.release());
    let mut seen = Vec::new();
    for round in 0..4 {
        let (peer, request) = fake.request().await;
        assert_eq!(release_of(&request), ("k".to_owned(), 1));
        let id = request.id();
        assert!(!seen.contains(&id));
        seen.push(id);
        match round {
            0 => peer.reply(Reply::Indeterminate { id }),
            1 => peer.reply(Reply::Error {
                id,
                code: ErrorCode::NoLeader,
            }),
            2 => peer.close(),
            _ => peer.reply(Reply::NotHeld { id }),
        }
    }
    assert_eq!(release.await.unwrap(), Ok(Release::NotCurrent));
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_refused_is_not_repeated() {
    let (mut fake, client, _peers, ticket) = ticket("k").await;
    let release = tokio::spawn(ticket.release());
    let (peer, request) = fake.request().await;
    let (id, code) = (request.id(), ErrorCode::GroupMismatch);
    peer.reply(Reply::Error { id, code });
    let error = release.await.unwrap().unwrap_err();
    assert_eq!(error, ReleaseError::Rejected(code));
    acquiring(&client, "next", wait(5_000));
    assert_eq!(acquired(&fake.request().await.1), "next");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_never_answered_is_unknown_after_five_seconds() {
    let (mut fake, _client, _peers, ticket) = ticket("k").await;
    let started = Instant::now();
    let mut release = tokio::spawn(ticket.release());
    let mut attempts = 0;
    let outcome = loop {
        tokio::select! {
            outcome = &mut release => break outcome.unwrap(),
            (_, request) = fake.request() => {
                assert_eq!(release_of(&request), ("k".to_owned(), 1));
                attempts += 1;
            }
        }
    };
    assert_eq!(outcome, Err(ReleaseError::Unknown));
    assert!(attempts >= 2, "{attempts} attempts");
    assert!(started.elapsed() >= Duration::from_millis(4_900));
    assert!(started.elapsed() < Duration::from_millis(5_900));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_ticket_is_released_in_the_background_until_that_is_certain() {
    let (mut fake, _client, _peers, ticket) = ticket("k").await;
    drop(ticket);
    let (peer, request) = fake.request().await;
    assert_eq!(release_of(&request), ("k".to_owned(), 1));
    peer.close();
    let (peer, request) = fake.request().await;
    assert_eq!(release_of(&request), ("k".to_owned(), 1));
    peer.reply(released(&request));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_release_goes_on_in_the_background() {
    let (mut fake, _client, _peers, ticket) = ticket("k").await;
    let release = tokio::spawn(ticket.release());
    let (peer, _) = fake.request().await;
    release.abort();
    let _ = release.await;
    peer.close();
    let (peer, request) = fake.request().await;
    assert_eq!(release_of(&request), ("k".to_owned(), 1));
    peer.reply(released(&request));
}

#[tokio::test(start_paused = true)]
async fn a_ticket_stays_invalid_although_its_domain_comes_back() {
    let (mut fake, _client, peers, ticket) = ticket("k").await;
    fake.becomes(Manners::Polite(domain(2)));
    for peer in peers {
        peer.close();
    }
    let others = [fake.opened().await, fake.opened().await];
    tokio::task::yield_now().await;
    while ticket.is_valid() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(ticket.valid_before() > tokio::time::Instant::now().into_std());
    fake.becomes(Manners::Polite(ticket.domain()));
    for peer in others {
        peer.close();
    }
    fake.opened().await;
    fake.opened().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!ticket.is_valid());
    assert_eq!(ticket.remaining(), Duration::ZERO);
    assert_eq!(ticket.lost().await, Lost::DomainChanged);
}

#[tokio::test(start_paused = true)]
async fn a_ticket_of_another_domain_is_never_released_at_this_one() {
    let (mut fake, client, peers, old) = ticket("k").await;
    fake.becomes(Manners::Polite(domain(2)));
    for peer in peers {
        peer.close();
    }
    fake.opened().await;
    fake.opened().await;
    let lost = tokio::time::timeout(Duration::from_secs(5), old.lost()).await;
    assert_eq!(lost, Ok(Lost::DomainChanged));
    // The number 1 may be somebody else's here.
    assert_eq!(old.release().await, Ok(Release::NotCurrent));
    let acquire = acquiring(&client, "k", wait(5_000));
    let (peer, request) = fake.request().await;
    assert_eq!(acquired(&request), "k");
    peer.reply(granted(&request, 1));
    let new = acquire.await.unwrap().unwrap();
    assert_eq!(new.domain(), domain(2));
    let release = tokio::spawn(new.release());
    let (peer, request) = fake.request().await;
    peer.reply(released(&request));
    assert_eq!(release.await.unwrap(), Ok(Release::Released));
}

#[tokio::test(start_paused = true)]
async fn a_ticket_is_lost_when_its_time_is_over() {
    let (mut fake, client, _peers, _other) = ticket("other").await;
    let options = wait(5_000).lease(Duration::from_millis(300));
    let acquire = acquiring(&client, "k", options);
    let (peer, request) = fake.request().await;
    peer.reply(granted(&request, 2));
    let ticket = acquire.await.unwrap().unwrap();
    assert_eq!(ticket.lost().await, Lost::Expired);
    assert!(Instant::now().into_std() >= ticket.valid_before());
    assert!(!ticket.is_valid());
    assert_eq!(ticket.remaining(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_release_gets_through_however_many_acquires_wait() {
    let (mut fake, client, _peers, ticket) = ticket("k").await;
    // More than both connections take up and queue.
    let waiting: Vec<_> = (0..3_000)
        .map(|_| acquiring(&client, "k", wait(60_000)))
        .collect();
    // Full: the connections have taken what they take.
    for _ in 0..2_048 {
        assert_eq!(acquired(&fake.request().await.1), "k");
    }
    let release = tokio::spawn(ticket.release());
    let (peer, request) = fake.request().await;
    assert_eq!(release_of(&request), ("k".to_owned(), 1));
    peer.reply(released(&request));
    assert_eq!(release.await.unwrap(), Ok(Release::Released));
    for call in waiting {
        call.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_kept_ticket_is_not_extended_while_it_is_being_released() {
    let model = Model::polite().await;
    let client = model.client().await;
    let options = wait(0)
        .lease(Duration::from_secs(3))
        .auto_extend(Duration::MAX);
    let ticket = client.acquire_set(&keys(&["k"]), options).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = model.books(|books| books.extends);
    assert!(before >= 8);
    let (to, bytes, closes) = (Kind::Release, 0, false);
    model.errs(Some(Fault { to, bytes, closes }));
    // Five seconds.
    assert_eq!(ticket.release().await, Err(ReleaseError::Unknown));
    assert_eq!(model.books(|books| books.extends), before);
}
