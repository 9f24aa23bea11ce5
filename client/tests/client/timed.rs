//! What a server with all extensions offers: times in milliseconds, slots, minimum holds, queries.

use std::num::NonZeroU32;
use std::time::Duration;

use highwater_client::{
    AcquireError, AcquireOptions, Client, ErrorCode, Extensions, FenceKey, Key, KeyState,
    KeyStatus, QueryError, Release, ReleaseError, Ticket,
};
use highwater_protocol::{Reply, Request};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::fake::{Fake, Manners, Peer};
use crate::model::Model;
use crate::{acquiring, cancel_of, domain, granted, keys, release_of, released, token, wait};

const SECOND: Duration = Duration::from_secs(1);
const NOISE: Duration = Duration::from_millis(20);

#[track_caller]
fn about(time: Duration, expected: Duration) {
    assert!(
        time <= expected && time + NOISE >= expected,
        "{time:?} is not {expected:?}"
    );
}

async fn full() -> (Fake, Client, [Peer; 2]) {
    let mut fake = Fake::start(Manners::Full(domain(1))).await;
    let (client, peers) = fake.client().await;
    (fake, client, peers)
}

fn name(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn slots(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap()
}

/// The wait and lease of an acquire.
#[track_caller]
fn times(request: &Request) -> (u32, u32) {
    match request {
        Request::AcquireTimed { wait, lease, .. } | Request::AcquireSlot { wait, lease, .. } => {
            (wait.get(), lease.get())
        }
        other => panic!("not timed: {other:?}"),
    }
}

fn granted_after(request: &Request, waited_ms: u32) -> Reply {
    Reply::GrantedTimed {
        id: request.id(),
        token: token(1),
        waited_ms,
    }
}

#[tokio::test(start_paused = true)]
async fn times_travel_in_milliseconds_rounded_up() {
    let (mut fake, client, _peers) = full().await;
    for (wait_us, lease_us, expected) in [
        (1_500_000, 29_500_000, (1_500, 29_500)),
        (1, 1, (1, 1)),
        (0, 1_001, (0, 2)),
        (3_600_000_000, 3_600_000_000, (3_600_000, 3_600_000)),
    ] {
        let options = AcquireOptions::new()
            .wait(Duration::from_micros(wait_us))
            .lease(Duration::from_micros(lease_us));
        acquiring(&client, "k", options);
        let (peer, request) = fake.request().await;
        assert_eq!(times(&request), expected);
        peer.reply(Reply::Busy { id: request.id() });
    }
}

#[tokio::test(start_paused = true)]
async fn the_lease_counts_from_the_grant_and_not_from_the_request() {
    let (mut fake, client, _peers) = full().await;
    let acquire = acquiring(&client, "k", wait(60_000).lease(10 * SECOND));
    let (peer, request) = fake.request().await;
    sleep(40 * SECOND).await;
    // It took a second more until the answer was here.
    peer.reply(granted_after(&request, 39_000));
    let ticket = acquire.await.unwrap().unwrap();
    about(ticket.remaining(), 9 * SECOND);
    // Known without another question.
    drop(ticket);
    assert_eq!(release_of(&fake.request().await.1), ("k".into(), 1));
}

#[tokio::test(start_paused = true)]
async fn no_server_can_have_waited_for_longer_than_the_client() {
    let (mut fake, client, _peers) = full().await;
    let acquire = acquiring(&client, "k", wait(60_000).lease(10 * SECOND));
    let (peer, request) = fake.request().await;
    sleep(SECOND).await;
    peer.reply(granted_after(&request, u32::MAX));
    let ticket = acquire.await.unwrap().unwrap();
    about(ticket.remaining(), 10 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn the_servers_own_word_comes_at_the_end_of_the_wait_and_not_before_it() {
    let (mut fake, client, _peers) = full().await;
    let acquire = acquiring(&client, "k", wait(2_000));
    let (peer, request) = fake.request().await;
    sleep(2 * SECOND + Duration::from_millis(200)).await;
    assert!(!acquire.is_finished());
    peer.reply(Reply::TimedOut { id: request.id() });
    let error = acquire.await.unwrap().unwrap_err();
    assert_eq!(error, AcquireError::TimedOut);
    // And if it does not come, the client asks for it.
    let started = Instant::now();
    acquiring(&client, "k", wait(2_000));
    let (_, request) = fake.request().await;
    let (_, cancel) = fake.request().await;
    assert_eq!(cancel_of(&cancel).1, request.id());
    assert!(started.elapsed() >= 2 * SECOND + Duration::from_millis(200));
    assert!(started.elapsed() <= 2 * SECOND + Duration::from_millis(300));
}

fn taking(client: &Client, options: AcquireOptions) -> JoinHandle<Result<Ticket, AcquireError>> {
    let client = client.clone();
    tokio::spawn(async move { client.acquire_slot(&name("pool"), slots(3), options).await })
}

#[tokio::test(start_paused = true)]
async fn a_slot_has_its_own_fence_and_is_released_by_its_name() {
    let (mut fake, client, _peers) = full().await;
    let acquire = taking(&client, wait(2_000).lease(10 * SECOND));
    let (peer, request) = fake.request().await;
    assert_eq!(times(&request), (2_000, 10_000));
    match &request {
        Request::AcquireSlot { name, slots, .. } => {
            assert_eq!((name.as_str(), slots.get()), ("pool", 3));
        }
        other => panic!("{other:?}"),
    }
    peer.reply(granted(&request, 7));
    let ticket = acquire.await.unwrap().unwrap();
    assert_eq!(ticket.slot(), Some(2));
    assert_eq!(ticket.keys(), &keys(&["pool"]));
    about(ticket.remaining(), 10 * SECOND);
    let fence = ticket.fence();
    assert_eq!(fence.marks().len(), 1);
    assert_eq!(fence.marks()[0].key, FenceKey::slot(&name("pool"), 2));
    assert_eq!(fence.marks()[0].token, token(7));
    let release = tokio::spawn(ticket.release());
    let (peer, request) = fake.request().await;
    assert_eq!(release_of(&request), ("pool".into(), 7));
    peer.reply(released(&request));
    assert_eq!(release.await.unwrap(), Ok(Release::Released));
}

#[tokio::test(start_paused = true)]
async fn a_name_in_other_use_is_told_and_not_asked_for_again() {
    let (mut fake, client, _peers) = full().await;
    for code in [ErrorCode::OtherUse, ErrorCode::BadSlots, ErrorCode::BadTime] {
        let acquire = taking(&client, wait(2_000));
        let (peer, request) = fake.request().await;
        let id = request.id();
        peer.reply(Reply::Error { id, code });
        let error = acquire.await.unwrap().unwrap_err();
        assert_eq!(error, AcquireError::Rejected(code));
    }
}

#[tokio::test(start_paused = true)]
async fn a_minimum_hold_goes_with_the_release_and_with_the_drop() {
    let (mut fake, client, _peers) = full().await;
    let options = wait(2_000).lease(10 * SECOND).min_hold(4 * SECOND);
    for drops in [false, true] {
        let acquire = acquiring(&client, "k", options.clone());
        let (peer, request) = fake.request().await;
        peer.reply(granted(&request, 7));
        let ticket = acquire.await.unwrap().unwrap();
        let release = if drops {
            drop(ticket);
            None
        } else {
            Some(tokio::spawn(ticket.release()))
        };
        let (peer, request) = fake.request().await;
        match &request {
            Request::Retain { minimum, .. } => assert_eq!(minimum.get(), 4_000),
            other => panic!("{other:?}"),
        }
        peer.reply(released(&request));
        if let Some(release) = release {
            assert_eq!(release.await.unwrap(), Ok(Release::Released));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_minimum_hold_is_never_cut_short_by_a_server_that_cannot_do_it() {
    let (mut fake, client, peers) = full().await;
    let options = wait(2_000).lease(10 * SECOND).min_hold(4 * SECOND);
    let acquire = acquiring(&client, "k", options);
    let (peer, request) = fake.request().await;
    peer.reply(granted(&request, 7));
    let ticket = acquire.await.unwrap().unwrap();
    fake.becomes(Manners::Polite(domain(1)));
    for peer in peers {
        peer.close();
        fake.closed(peer.number).await;
    }
    let (opened, _) = (fake.opened().await, fake.opened().await);
    assert_eq!(ticket.release().await, Err(ReleaseError::Unknown));
    // Nothing was sent for it.
    acquiring(&client, "next", wait(5_000));
    let (_, request) = fake.request().await;
    assert!(matches!(request, Request::Acquire { .. }), "{request:?}");
    drop(opened);
}

#[tokio::test(start_paused = true)]
async fn what_a_server_does_not_have_is_not_asked_of_it() {
    for manners in [Manners::Polite(domain(1)), Manners::Base] {
        let extensions = match manners {
            Manners::Base => Extensions::NONE,
            _ => Extensions::EXTEND.and(Extensions::CANCEL),
        };
        let model = Model::start(manners, Duration::ZERO).await;
        let client = model.client().await;
        assert_eq!(client.extensions(), Some(extensions));
        let slot = client.acquire_slot(&name("k"), slots(2), wait(0)).await;
        assert_eq!(slot.unwrap_err(), AcquireError::Unsupported);
        let options = wait(0).min_hold(SECOND);
        let held = client.acquire_set(&keys(&["k"]), options).await;
        assert_eq!(held.unwrap_err(), AcquireError::Unsupported);
        let asked = client.query(&name("k")).await;
        assert_eq!(asked, Err(QueryError::Unsupported));
        assert_eq!(model.books(|books| books.acquires + books.queries), 0);
        client.close().await;
        assert_eq!(client.extensions(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_query_is_repeated_until_there_is_an_answer() {
    let (mut fake, client, _peers) = full().await;
    let asking = tokio::spawn({
        let client = client.clone();
        async move { client.query_slots(&name("pool"), 2).await }
    });
    let status = KeyStatus {
        state: KeyState::Held {
            token: token(9),
            slot: 2,
            remaining_ms: 1_000,
        },
        waiters: 4,
        slots: NonZeroU32::new(3),
        taken: 1,
    };
    for round in 0..4 {
        let (peer, request) = fake.request().await;
        match &request {
            Request::Query { key, from_slot, .. } => {
                assert_eq!((key.as_str(), *from_slot), ("pool", 2));
            }
            other => panic!("{other:?}"),
        }
        let id = request.id();
        match round {
            0 => peer.reply(Reply::Indeterminate { id }),
            1 => peer.reply(Reply::Error {
                id,
                code: ErrorCode::NotActive,
            }),
            2 => peer.close(),
            _ => peer.reply(Reply::Status { id, status }),
        }
    }
    assert_eq!(asking.await.unwrap(), Ok(status));
    let asking = tokio::spawn({
        let client = client.clone();
        async move { client.query(&name("k")).await }
    });
    let (peer, request) = fake.request().await;
    let (id, code) = (request.id(), ErrorCode::BadKey);
    peer.reply(Reply::Error { id, code });
    assert_eq!(asking.await.unwrap(), Err(QueryError::Rejected(code)));
    client.close().await;
    assert_eq!(client.query(&name("k")).await, Err(QueryError::Closed));
}
