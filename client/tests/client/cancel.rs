//! Calls whose futures are dropped at every point: no lock stays behind.

use std::num::NonZeroU32;
use std::time::Duration;

use highwater_client::{AcquireOptions, Key};
use tokio::time::sleep;

use crate::fake::Manners;
use crate::model::Model;
use crate::steps::{MANY, World, polled};
use crate::{domain, keys, wait};

/// Longer than a release in the background takes.
const SETTLED: Duration = Duration::from_secs(6);
/// The answers of the server take several of these.
const TICK: Duration = Duration::from_millis(1);
const DELAY: Duration = Duration::from_millis(5);

fn worlds() -> [(World, Duration); 2] {
    [(World::Steps, Duration::ZERO), (World::Time(TICK), DELAY)]
}

/// Whatever was granted is released, also while the client lives on.
async fn nothing_is_left(model: &Model, when: usize) {
    sleep(SETTLED).await;
    model.books(|books| {
        assert!(
            books.held.is_empty(),
            "dropped after {when} polls: {books:?}"
        );
    });
}

#[tokio::test(start_paused = true)]
async fn an_acquire_dropped_after_any_number_of_polls_leaves_no_lock() {
    for (world, delay) in worlds() {
        for manners in [
            Manners::Full(domain(1)),
            Manners::Polite(domain(1)),
            Manners::Base,
        ] {
            let model = Model::start(manners, delay).await;
            let client = model.client().await;
            let set = keys(&["k"]);
            let mut granted = 0;
            for times in 0..MANY {
                let acquire = client.acquire_set(&set, wait(20_000));
                let outcome = polled(acquire, times, world).await;
                let is_ticket = outcome.is_some();
                granted = model.books(|books| books.acquires);
                drop(outcome);
                nothing_is_left(&model, times).await;
                if is_ticket {
                    break;
                }
                assert!(times + 1 < MANY, "it never ended");
            }
            // Some were dropped before anything was sent, and some after.
            let sent = model.books(|books| books.acquires);
            assert!(granted > 1 && sent > 1, "{sent} acquires were sent");
            assert!(client.stats().unwanted > 0);
            client.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_confirms_its_lease_leaves_no_lock_either() {
    // So slow that a good part of the lease is gone when the grant comes.
    let delay = Duration::from_millis(40);
    let model = Model::start(Manners::Polite(domain(1)), delay).await;
    let client = model.client().await;
    let set = keys(&["k"]);
    let options = wait(20_000).lease(Duration::from_millis(100));
    for times in 0..MANY {
        let acquire = client.acquire_set(&set, options.clone());
        let outcome = polled(acquire, times, World::Time(TICK)).await;
        let is_ticket = outcome.is_some();
        drop(outcome);
        nothing_is_left(&model, times).await;
        if is_ticket {
            break;
        }
        assert!(times + 1 < MANY, "it never ended");
    }
    assert!(model.books(|books| books.extends) > 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_dropped_after_any_number_of_polls_is_done_all_the_same() {
    for (world, delay) in worlds() {
        let model = Model::start(Manners::Full(domain(1)), delay).await;
        let client = model.client().await;
        let set = keys(&["k"]);
        for times in 0..MANY {
            let ticket = client.acquire_set(&set, wait(20_000)).await.unwrap();
            let outcome = polled(ticket.release(), times, world).await;
            nothing_is_left(&model, times).await;
            if outcome.is_some() {
                break;
            }
            assert!(times + 1 < MANY, "it never ended");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_extension_dropped_after_any_number_of_polls_leaves_the_ticket_as_it_is() {
    for (world, delay) in worlds() {
        let model = Model::start(Manners::Polite(domain(1)), delay).await;
        let client = model.client().await;
        let set = keys(&["k"]);
        for times in 0..MANY {
            let ticket = client.acquire_set(&set, wait(20_000)).await.unwrap();
            let before = ticket.remaining();
            let extension = ticket.extend(Duration::from_secs(200));
            let outcome = polled(extension, times, world).await;
            assert!(ticket.is_valid());
            match outcome {
                // The clocks are read anew, a little earlier or later than each other.
                None => assert!(ticket.remaining() <= before + Duration::from_millis(20)),
                Some(outcome) => {
                    outcome.unwrap();
                    assert!(ticket.remaining() > before);
                }
            }
            drop(ticket);
            nothing_is_left(&model, times).await;
            if outcome.is_some() {
                break;
            }
            assert!(times + 1 < MANY, "it never ended");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_connect_dropped_after_any_number_of_polls_leaves_no_connection() {
    let model = Model::polite().await;
    for times in 0..MANY {
        let outcome = polled(model.builder().connect(), times, World::Steps).await;
        let is_client = outcome.is_some();
        drop(outcome);
        sleep(SETTLED).await;
        assert_eq!(model.books(|books| books.open), 0, "after {times} polls");
        if is_client {
            return;
        }
    }
    panic!("it never ended");
}

#[tokio::test(start_paused = true)]
async fn a_kept_ticket_is_not_extended_once_its_release_has_begun() {
    for times in 0..30 {
        let model = Model::start(Manners::Polite(domain(1)), DELAY).await;
        let client = model.client().await;
        let options = AcquireOptions::new()
            .lease(Duration::from_millis(300))
            .auto_extend(Duration::MAX);
        let ticket = client.acquire_set(&keys(&["k"]), options).await.unwrap();
        // Around the moment at which an extension is asked for.
        sleep(Duration::from_millis(85 + times)).await;
        drop(ticket);
        let before = model.books(|books| books.extends);
        sleep(SETTLED).await;
        model.books(|books| {
            assert!(books.held.is_empty());
            // At most the one that was under way.
            assert!(
                books.extends <= before + 1,
                "{} and {before}",
                books.extends
            );
        });
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_of_a_slot_leaves_none_either() {
    for (world, delay) in worlds() {
        let model = Model::start(Manners::Full(domain(1)), delay).await;
        let client = model.client().await;
        let (name, slots) = (Key::new("pool").unwrap(), NonZeroU32::new(3).unwrap());
        let options = wait(20_000).min_hold(Duration::from_secs(1));
        for times in 0..MANY {
            let acquire = client.acquire_slot(&name, slots, options.clone());
            let outcome = polled(acquire, times, world).await;
            let is_ticket = outcome.is_some();
            drop(outcome);
            nothing_is_left(&model, times).await;
            if is_ticket {
                break;
            }
            assert!(times + 1 < MANY, "it never ended");
        }
        // What nobody got was not kept from others either.
        assert_eq!(model.books(|books| books.retains), 1);
    }
}
