//! A server that stops in the middle of anything: every call ends, in time, and says what is true.

use std::time::Duration;

use highwater_client::{
    AcquireError, AcquireOptions, ExtendError, Key, Lost, QueryError, ReleaseError,
};
use tokio::time::{Instant, sleep};

use crate::fake::Manners;
use crate::model::{Fault, Kind, Model};
use crate::{domain, keys, wait};

/// After any number of bytes of an answer of so many, the server falls silent or closes.
fn faults(to: Kind, answer: usize) -> impl Iterator<Item = Fault> {
    (0..answer).flat_map(move |bytes| [true, false].map(|closes| Fault { to, bytes, closes }))
}

/// The answer of a server that counts in seconds, and of one that counts in milliseconds.
#[tokio::test(start_paused = true)]
async fn an_acquire_ends_soon_after_its_wait_and_is_unknown() {
    for (manners, answer) in [
        (Manners::Polite(domain(1)), 19),
        (Manners::Full(domain(1)), 23),
    ] {
        for (milliseconds, fault) in [0, 1_500].into_iter().flat_map(|milliseconds| {
            faults(Kind::Acquire, answer).map(move |fault| (milliseconds, fault))
        }) {
            let model = Model::start(manners.clone(), Duration::ZERO).await;
            let client = model.client().await;
            model.errs(Some(fault));
            let started = Instant::now();
            let error = client.acquire_set(&keys(&["k"]), wait(milliseconds)).await;
            assert_eq!(error.unwrap_err(), AcquireError::Indeterminate, "{fault:?}");
            let bound = Duration::from_millis(milliseconds).max(Duration::from_secs(5));
            let took = started.elapsed();
            assert!(
                took <= bound + Duration::from_secs(2),
                "{fault:?}: {took:?}"
            );
            // Never sent again.
            sleep(Duration::from_secs(60)).await;
            assert_eq!(model.books(|books| books.acquires), 1, "{fault:?}");
            assert_eq!(client.stats().indeterminate, 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_query_ends_within_five_seconds() {
    for fault in faults(Kind::Query, 40) {
        let model = Model::full().await;
        let client = model.client().await;
        model.errs(Some(fault));
        let started = Instant::now();
        let error = client.query(&Key::new("k").unwrap()).await.unwrap_err();
        assert_eq!(error, QueryError::NoAnswer, "{fault:?}");
        assert!(started.elapsed() <= Duration::from_secs(5), "{fault:?}");
        assert!(model.books(|books| books.queries) > 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_ends_within_five_seconds_and_is_unknown() {
    for fault in faults(Kind::Release, 11) {
        let model = Model::polite().await;
        let client = model.client().await;
        let ticket = client.acquire_set(&keys(&["k"]), wait(0)).await.unwrap();
        model.errs(Some(fault));
        let started = Instant::now();
        let outcome = ticket.release().await;
        // The first attempt was done and not answered; the next ones say the same.
        assert_eq!(outcome, Err(ReleaseError::Unknown), "{fault:?}");
        assert!(started.elapsed() <= Duration::from_secs(5), "{fault:?}");
        assert!(model.books(|books| books.releases) > 1, "{fault:?}");
        assert_eq!(client.stats().releases_failed, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_extension_ends_within_five_seconds_and_the_ticket_counts_as_before() {
    for fault in faults(Kind::Extend, 15) {
        let model = Model::polite().await;
        let client = model.client().await;
        let ticket = client.acquire_set(&keys(&["k"]), wait(0)).await.unwrap();
        model.errs(Some(fault));
        let (started, before) = (Instant::now(), ticket.valid_before());
        let error = ticket.extend(Duration::from_secs(100)).await.unwrap_err();
        assert_eq!(error, ExtendError::Unknown, "{fault:?}");
        assert!(started.elapsed() <= Duration::from_secs(5), "{fault:?}");
        assert!(ticket.is_valid());
        // Two readings of two clocks.
        let moved = ticket.valid_before().max(before) - ticket.valid_before().min(before);
        assert!(moved < Duration::from_millis(50), "{fault:?}: {moved:?}");
        assert!(model.books(|books| books.extends) > 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kept_ticket_is_lost_when_its_lease_ends_whatever_the_server_does() {
    for fault in faults(Kind::Extend, 15) {
        let model = Model::polite().await;
        let client = model.client().await;
        let lease = Duration::from_secs(6);
        let options = AcquireOptions::new()
            .lease(lease)
            .auto_extend(Duration::MAX);
        let started = Instant::now();
        let ticket = client.acquire_set(&keys(&["k"]), options).await.unwrap();
        model.errs(Some(fault));
        assert_eq!(ticket.lost().await, Lost::Expired, "{fault:?}");
        let took = started.elapsed();
        assert!(
            took >= lease - Duration::from_millis(50),
            "{fault:?}: {took:?}"
        );
        assert!(
            took <= lease + Duration::from_millis(50),
            "{fault:?}: {took:?}"
        );
        assert!(!ticket.is_valid());
        assert!(model.books(|books| books.extends) > 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kept_ticket_survives_a_server_that_is_silent_for_a_good_part_of_its_lease() {
    let model = Model::polite().await;
    let client = model.client().await;
    let options = AcquireOptions::new()
        .lease(Duration::from_secs(60))
        .auto_extend(Duration::MAX);
    let ticket = client.acquire_set(&keys(&["k"]), options).await.unwrap();
    let (to, bytes, closes) = (Kind::Extend, 0, false);
    model.errs(Some(Fault { to, bytes, closes }));
    // Longer than an extension is tried for at a time.
    sleep(Duration::from_secs(50)).await;
    assert!(client.stats().extensions_failed > 0);
    model.errs(None);
    sleep(Duration::from_secs(100)).await;
    assert!(ticket.is_valid());
}

#[tokio::test(start_paused = true)]
async fn closing_ends_within_five_seconds() {
    for to in [Kind::Acquire, Kind::Release, Kind::Extend, Kind::Cancel] {
        for fault in faults(to, 11) {
            let model = Model::polite().await;
            let client = model.client().await;
            let options = AcquireOptions::new()
                .lease(Duration::from_secs(1))
                .auto_extend(Duration::MAX);
            let set = keys(&["k"]);
            let (_kept, dropped) = (
                client.acquire_set(&set, options.clone()).await.unwrap(),
                client.acquire_set(&set, options.clone()).await.unwrap(),
            );
            model.errs(Some(fault));
            drop(dropped);
            let waiting = tokio::spawn({
                let client = client.clone();
                async move { client.acquire_set(&keys(&["k"]), wait(60_000)).await }
            });
            sleep(Duration::from_millis(400)).await;
            let started = Instant::now();
            client.close().await;
            assert!(started.elapsed() < Duration::from_secs(5), "{fault:?}");
            let outcome = waiting.await.unwrap();
            if to == Kind::Acquire {
                assert_eq!(outcome.unwrap_err(), AcquireError::Indeterminate);
            }
            sleep(Duration::from_secs(1)).await;
            assert_eq!(model.books(|books| books.open), 0, "{fault:?}");
        }
    }
}
