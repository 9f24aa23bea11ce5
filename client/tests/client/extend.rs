//! Leases that are extended, by hand and by themselves.

use std::time::Duration;

use highwater_client::{AcquireError, AcquireOptions, ErrorCode, ExtendError, Lost};
use highwater_protocol::{Reply, Request};
use tokio::time::{Instant, sleep, timeout};

use crate::fake::{Fake, Manners};
use crate::model::Model;
use crate::{acquiring, domain, granted, keys, ticket, token, wait};

const SECOND: Duration = Duration::from_secs(1);
/// Two clocks are read one after the other.
const NOISE: Duration = Duration::from_millis(20);

#[track_caller]
fn about(time: Duration, expected: Duration) {
    assert!(
        time <= expected && time + NOISE >= expected,
        "{time:?} is not {expected:?}"
    );
}

fn kept(lease: Duration) -> AcquireOptions {
    wait(5_000).lease(lease).auto_extend(Duration::MAX)
}

/// The keys, token and lease of an extension.
#[track_caller]
fn extension(request: &Request) -> (String, u64, u32) {
    match request {
        Request::Extend {
            keys, token, lease, ..
        } => (keys.to_string(), token.get(), lease.get()),
        other => panic!("not an extension: {other:?}"),
    }
}

fn extended(request: &Request, remaining_ms: u32) -> Reply {
    let id = request.id();
    Reply::Extended { id, remaining_ms }
}

#[tokio::test(start_paused = true)]
async fn an_extension_counts_from_before_it_was_sent() {
    let (mut fake, client, _peers, ticket) = ticket("k").await;
    let extending = tokio::spawn(async move {
        let outcome = ticket.extend(100 * SECOND).await;
        (ticket, outcome)
    });
    let (peer, request) = fake.request().await;
    assert_eq!(extension(&request), ("k".into(), 1, 100_000));
    sleep(SECOND).await;
    // More than was asked for is no reason to count more.
    peer.reply(extended(&request, 200_000));
    let (ticket, outcome) = extending.await.unwrap();
    assert_eq!(outcome, Ok(()));
    about(ticket.remaining(), 99 * SECOND);
    assert_eq!(client.stats().extended, 1);
}

#[tokio::test(start_paused = true)]
async fn an_extension_never_shortens_what_the_ticket_counts() {
    let (mut fake, _client, _peers, ticket) = ticket("k").await;
    let extending = tokio::spawn(async move {
        let outcome = ticket.extend(SECOND).await;
        (ticket, outcome)
    });
    let (peer, request) = fake.request().await;
    peer.reply(extended(&request, 29_000));
    let (ticket, outcome) = extending.await.unwrap();
    assert_eq!(outcome, Ok(()));
    about(ticket.remaining(), 30 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn leases_out_of_range_are_refused_before_anything_is_sent() {
    let (_fake, _client, _peers, ticket) = ticket("k").await;
    for lease in [
        Duration::ZERO,
        Duration::from_micros(999),
        Duration::from_millis(3_600_001),
        Duration::MAX,
    ] {
        let error = ticket.extend(lease).await.unwrap_err();
        assert_eq!(error, ExtendError::InvalidLease { lease });
    }
}

#[tokio::test(start_paused = true)]
async fn an_extension_is_repeated_until_its_answer_is_certain() {
    let (mut fake, _client, _peers, ticket) = ticket("k").await;
    let extending = tokio::spawn(async move {
        let outcome = ticket.extend(100 * SECOND).await;
        (ticket, outcome)
    });
    for round in 0..4 {
        let (peer, request) = fake.request().await;
        let id = request.id();
        match round {
            0 => peer.reply(Reply::Indeterminate { id }),
            1 => peer.reply(Reply::Error {
                id,
                code: ErrorCode::NotActive,
            }),
            2 => peer.close(),
            _ => peer.reply(extended(&request, 100_000)),
        }
    }
    let (ticket, outcome) = extending.await.unwrap();
    assert_eq!(outcome, Ok(()));
    assert!(ticket.remaining() > 90 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_holds_nothing_ends_the_ticket_at_once() {
    let (mut fake, _client, _peers, ticket) = ticket("k").await;
    let lost = tokio::spawn(ticket.lost());
    let extending = tokio::spawn(async move {
        let outcome = ticket.extend(100 * SECOND).await;
        (ticket, outcome)
    });
    let (peer, request) = fake.request().await;
    peer.reply(Reply::NotHeld { id: request.id() });
    let (ticket, outcome) = extending.await.unwrap();
    assert_eq!(outcome, Err(ExtendError::Lost(Lost::NotHeld)));
    assert_eq!(lost.await.unwrap(), Lost::NotHeld);
    assert!(!ticket.is_valid());
    assert_eq!(ticket.remaining(), Duration::ZERO);
    // Nothing is sent for it any more.
    let error = ticket.extend(SECOND).await.unwrap_err();
    assert_eq!(error, ExtendError::Lost(Lost::NotHeld));
}

#[tokio::test(start_paused = true)]
async fn a_refused_extension_is_not_repeated_and_the_ticket_stays_valid() {
    let (mut fake, client, _peers, ticket) = ticket("k").await;
    let extending = tokio::spawn(async move {
        let outcome = ticket.extend(100 * SECOND).await;
        (ticket, outcome)
    });
    let (peer, request) = fake.request().await;
    let (id, code) = (request.id(), ErrorCode::BadLease);
    peer.reply(Reply::Error { id, code });
    let (ticket, outcome) = extending.await.unwrap();
    assert_eq!(outcome, Err(ExtendError::Rejected(code)));
    assert!(ticket.is_valid());
    assert_eq!(client.stats().extensions_failed, 1);
}

#[tokio::test(start_paused = true)]
async fn an_expired_ticket_is_not_extended_and_not_revived() {
    let (mut fake, _client, _peers, ticket) = ticket("k").await;
    let answer = tokio::spawn(async move {
        let outcome = ticket.extend(100 * SECOND).await;
        (ticket, outcome)
    });
    let (peer, request) = fake.request().await;
    // The extension gives up before, and another one is not sent.
    sleep(30 * SECOND).await;
    peer.reply(extended(&request, 100_000));
    let (ticket, outcome) = answer.await.unwrap();
    assert_eq!(outcome, Err(ExtendError::Unknown));
    assert!(!ticket.is_valid());
    let error = ticket.extend(100 * SECOND).await.unwrap_err();
    assert_eq!(error, ExtendError::Lost(Lost::Expired));
}

#[tokio::test(start_paused = true)]
async fn a_kept_ticket_is_extended_after_each_third_of_its_lease() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let acquire = acquiring(&client, "k", kept(9 * SECOND));
    let (peer, request) = fake.request().await;
    peer.reply(granted(&request, 1));
    let ticket = acquire.await.unwrap().unwrap();
    for _ in 0..10 {
        let asleep = Instant::now();
        let (peer, request) = fake.request().await;
        about(asleep.elapsed().min(3 * SECOND), 3 * SECOND);
        assert!(asleep.elapsed() < 3 * SECOND + NOISE);
        assert_eq!(extension(&request), ("k".into(), 1, 9_000));
        peer.reply(extended(&request, 9_000));
    }
    assert!(ticket.is_valid());
    // It can be waited for all the time.
    let never = timeout(2 * SECOND, ticket.lost()).await;
    assert!(never.is_err());
    drop(ticket);
    // The next thing is the release, and nothing comes after it.
    let (peer, request) = fake.request().await;
    assert!(matches!(request, Request::Release { .. }), "{request:?}");
    peer.reply(crate::released(&request));
    let nothing = timeout(30 * SECOND, fake.request_in_peace()).await;
    assert!(nothing.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_kept_ticket_that_the_server_forgot_is_lost_at_the_next_extension() {
    let model = Model::polite().await;
    let client = model.client().await;
    let set = keys(&["k"]);
    let ticket = client.acquire_set(&set, kept(9 * SECOND)).await.unwrap();
    sleep(20 * SECOND).await;
    assert!(ticket.is_valid());
    model.forgets();
    let started = Instant::now();
    assert_eq!(ticket.lost().await, Lost::NotHeld);
    assert!(started.elapsed() <= 3 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_kept_ticket_is_held_for_as_long_as_was_allowed() {
    for allowed in [1, 5, 9, 10, 23, 25, 60] {
        let model = Model::polite().await;
        let client = model.client().await;
        let options = wait(0).lease(9 * SECOND).auto_extend(allowed * SECOND);
        let started = Instant::now();
        let ticket = client.acquire_set(&keys(&["k"]), options).await.unwrap();
        assert_eq!(ticket.lost().await, Lost::Expired);
        // The first lease is never shortened.
        let expected = (allowed * SECOND).max(9 * SECOND);
        let took = started.elapsed();
        assert!(took + NOISE >= expected, "{allowed}: {took:?}");
        assert!(took <= expected + NOISE, "{allowed}: {took:?}");
        let asked = model.books(|books| books.extends);
        assert!(asked <= allowed as usize / 3 + 1, "{allowed}: {asked}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kept_ticket_lives_on_however_many_acquires_wait() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let acquire = acquiring(&client, "k", kept(9 * SECOND));
    let (peer, request) = fake.request().await;
    peer.reply(granted(&request, 1));
    let ticket = acquire.await.unwrap().unwrap();
    // More than both connections take up and queue.
    let waiting: Vec<_> = (0..3_000)
        .map(|_| acquiring(&client, "q", wait(200_000)))
        .collect();
    for _ in 0..2_048 {
        fake.request().await;
    }
    for _ in 0..5 {
        let (peer, request) = fake.request().await;
        extension(&request);
        peer.reply(extended(&request, 9_000));
    }
    assert!(ticket.is_valid());
    for call in waiting {
        call.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn an_extension_by_hand_that_reaches_further_puts_the_next_one_off() {
    let model = Model::polite().await;
    let client = model.client().await;
    let set = keys(&["k"]);
    let ticket = client.acquire_set(&set, kept(9 * SECOND)).await.unwrap();
    ticket.extend(100 * SECOND).await.unwrap();
    sleep(90 * SECOND).await;
    assert_eq!(model.books(|books| books.extends), 1);
    sleep(5 * SECOND).await;
    assert_eq!(model.books(|books| books.extends), 2);
    assert!(ticket.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_kept_ticket_survives_the_loss_of_its_connections() {
    let (mut fake, client, peers, _other) = ticket("other").await;
    let acquire = acquiring(&client, "k", kept(9 * SECOND));
    let (peer, request) = fake.request().await;
    peer.reply(granted(&request, 2));
    let ticket = acquire.await.unwrap().unwrap();
    for peer in peers {
        peer.close();
    }
    let (peer, request) = fake.request().await;
    assert_eq!(extension(&request).1, 2);
    peer.reply(extended(&request, 9_000));
    sleep(SECOND).await;
    assert!(ticket.is_valid());
    about(ticket.remaining().min(8 * SECOND), 8 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_extends_nothing_and_the_ticket_ends_with_its_lease() {
    let model = Model::polite().await;
    let client = model.client().await;
    let set = keys(&["k"]);
    let ticket = client.acquire_set(&set, kept(9 * SECOND)).await.unwrap();
    client.close().await;
    let before = model.books(|books| books.extends);
    assert_eq!(ticket.lost().await, Lost::Expired);
    assert_eq!(model.books(|books| books.extends), before);
    let error = ticket.extend(SECOND).await.unwrap_err();
    assert!(
        matches!(error, ExtendError::Lost(Lost::Expired)),
        "{error:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_without_extensions_is_not_asked_for_what_needs_them() {
    let model = Model::start(Manners::Base, Duration::ZERO).await;
    let client = model.client().await;
    let set = keys(&["k"]);
    let error = client.acquire_set(&set, kept(9 * SECOND)).await;
    assert_eq!(error.unwrap_err(), AcquireError::Unsupported);
    assert_eq!(model.books(|books| books.acquires), 0);
    let ticket = client.acquire_set(&set, wait(0)).await.unwrap();
    let error = ticket.extend(SECOND).await.unwrap_err();
    assert_eq!(error, ExtendError::Unsupported);
    assert!(ticket.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_grant_with_too_little_left_is_refused_and_released() {
    let mut fake = Fake::start(Manners::Base).await;
    let client = fake.builder().connect().await.unwrap();
    let options = wait(20_000).lease(10 * SECOND).min_work(6 * SECOND);
    for (delay, is_enough) in [(3_900, true), (4_100, false)] {
        let acquire = acquiring(&client, "k", options.clone());
        let (peer, request) = fake.request().await;
        sleep(Duration::from_millis(delay)).await;
        peer.reply(granted(&request, delay));
        match acquire.await.unwrap() {
            Ok(ticket) => assert!(is_enough && ticket.remaining() >= 6 * SECOND),
            Err(AcquireError::TooShort { remaining }) => {
                assert!(!is_enough);
                about(remaining, Duration::from_millis(10_000 - delay));
            }
            Err(other) => panic!("{other:?}"),
        }
        // Dropped or refused: released in both cases.
        let (peer, request) = fake.request().await;
        assert_eq!(crate::release_of(&request), ("k".into(), delay));
        peer.reply(crate::released(&request));
    }
    assert_eq!(client.stats().too_short, 1);
    assert_eq!(client.stats().unwanted, 0);
}

#[tokio::test(start_paused = true)]
async fn a_grant_with_too_little_left_is_extended_where_that_is_possible() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let options = wait(20_000)
        .lease(10 * SECOND)
        .min_work(9_500 * SECOND / 1_000);
    for outcome in [Some(10_000), None] {
        let acquire = acquiring(&client, "k", options.clone());
        let (peer, request) = fake.request().await;
        // Less than what is confirmed in any case.
        sleep(SECOND).await;
        peer.reply(granted(&request, 1));
        let (peer, request) = fake.request().await;
        let (id, code) = (request.id(), ErrorCode::BadLease);
        peer.reply(match outcome {
            Some(remaining) => extended(&request, remaining),
            None => Reply::Error { id, code },
        });
        match acquire.await.unwrap() {
            Ok(ticket) => assert!(outcome.is_some() && ticket.token() == token(1)),
            Err(error) => {
                assert!(matches!(error, AcquireError::TooShort { .. }), "{error:?}");
                assert!(outcome.is_none());
            }
        }
        let (peer, request) = fake.request().await;
        peer.reply(crate::released(&request));
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_over_when_it_comes_is_never_given_out() {
    let mut fake = Fake::start(Manners::Base).await;
    let client = fake.builder().connect().await.unwrap();
    let acquire = acquiring(&client, "k", wait(20_000).lease(SECOND));
    let (peer, request) = fake.request().await;
    sleep(SECOND).await;
    peer.reply(granted(&request, 1));
    let error = acquire.await.unwrap().unwrap_err();
    let remaining = Duration::ZERO;
    assert_eq!(error, AcquireError::TooShort { remaining });
}
