//! Milliseconds, slots, minimum holds and queries, at a real server.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use highwater_client::{AcquireError, Client, ErrorCode, Extensions, FenceKey, KeyState, Release};

use crate::{acquiring, all_free, client_of, key, queued, server, wait};

fn slots(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap()
}

#[tokio::test]
async fn our_server_has_all_extensions() {
    let server = server().await;
    let client = client_of(&server).await;
    let told = client.extensions().unwrap();
    assert!(told.contains(Extensions::ALL), "{told:?}");
}

#[tokio::test]
async fn a_lease_below_a_second_ends_as_early_as_it_says() {
    let server = server().await;
    let client = client_of(&server).await;
    let started = Instant::now();
    let lease = Duration::from_millis(300);
    let old = client
        .acquire(&key("k"), wait(0).lease(lease))
        .await
        .unwrap();
    let new = client.acquire(&key("k"), wait(20_000)).await.unwrap();
    let took = started.elapsed();
    assert!(took >= lease, "{took:?}");
    // A server that counts in whole seconds would take one.
    assert!(took < Duration::from_millis(950), "{took:?}");
    assert!(!old.is_valid() && new.is_valid());
    assert_eq!(old.release().await, Ok(Release::NotCurrent));
}

#[tokio::test]
async fn so_many_hold_a_name_at_once_each_with_a_slot_and_a_fence_of_its_own() {
    let server = server().await;
    let client = client_of(&server).await;
    let mut tickets = Vec::new();
    for _ in 0..3 {
        let ticket = client.acquire_slot(&key("pool"), slots(3), wait(0)).await;
        tickets.push(ticket.unwrap());
    }
    let taken: BTreeSet<_> = tickets.iter().map(|ticket| ticket.slot()).collect();
    assert_eq!(taken, BTreeSet::from([Some(0), Some(1), Some(2)]));
    let fences: BTreeSet<_> = tickets
        .iter()
        .map(|ticket| ticket.fence().marks()[0].key.clone())
        .collect();
    assert_eq!(
        fences,
        (0..3)
            .map(|slot| FenceKey::slot(&key("pool"), slot))
            .collect()
    );
    let full = client.acquire_slot(&key("pool"), slots(3), wait(0)).await;
    assert_eq!(full.unwrap_err(), AcquireError::TimedOut);

    // Another number, and a plain lock of that name.
    let other_use = AcquireError::Rejected(ErrorCode::OtherUse);
    let other = client.acquire_slot(&key("pool"), slots(4), wait(0)).await;
    assert_eq!(other.unwrap_err(), other_use);
    let plain = client.acquire(&key("pool"), wait(0)).await;
    assert_eq!(plain.unwrap_err(), other_use);

    // The next one gets the slot that becomes free, under a higher token.
    let waiting = tokio::spawn({
        let client: Client = client.clone();
        async move {
            client
                .acquire_slot(&key("pool"), slots(3), wait(20_000))
                .await
        }
    });
    queued(&server, 1).await;
    let middle = tickets.remove(1);
    let (slot, token) = (middle.slot(), middle.token());
    middle.extend(Duration::from_secs(100)).await.unwrap();
    assert_eq!(middle.release().await, Ok(Release::Released));
    let next = waiting.await.unwrap().unwrap();
    assert_eq!(next.slot(), slot);
    assert!(next.token() > token);
    drop((tickets, next));
    all_free(&server).await;
}

#[tokio::test]
async fn a_minimum_hold_outlives_the_ticket() {
    let server = server().await;
    let client = client_of(&server).await;
    let min_hold = Duration::from_millis(700);
    for drops in [true, false] {
        let started = Instant::now();
        let ticket = client
            .acquire(&key("k"), wait(0).min_hold(min_hold))
            .await
            .unwrap();
        let lost = ticket.lost();
        if drops {
            drop(ticket);
        } else {
            assert_eq!(ticket.release().await, Ok(Release::Released));
        }
        let next = client.acquire(&key("k"), wait(20_000)).await.unwrap();
        let took = started.elapsed();
        assert!(took >= min_hold, "{took:?}");
        assert!(took < Duration::from_secs(20), "{took:?}");
        drop((next, lost));
        all_free(&server).await;
    }
}

#[tokio::test]
async fn a_query_tells_what_holds_a_key_and_who_waits() {
    let server = server().await;
    let client = client_of(&server).await;
    let status = client.query(&key("k")).await.unwrap();
    assert_eq!((status.state, status.waiters), (KeyState::Free, 0));
    let options = wait(0).min_hold(Duration::from_secs(60));
    let ticket = client.acquire(&key("k"), options).await.unwrap();
    let waiting = acquiring(&client, "k", wait(60_000));
    queued(&server, 1).await;
    let status = client.query(&key("k")).await.unwrap();
    assert_eq!(status.waiters, 1);
    match status.state {
        KeyState::Held {
            token,
            slot,
            remaining_ms,
        } => {
            assert_eq!((token, slot), (ticket.token(), 0));
            assert!((50_000..=60_000).contains(&remaining_ms), "{remaining_ms}");
        }
        other => panic!("{other:?}"),
    }
    let token = ticket.token();
    assert_eq!(ticket.release().await, Ok(Release::Released));
    let status = client.query(&key("k")).await.unwrap();
    assert!(
        matches!(status.state, KeyState::Retained { token: of, .. } if of == token),
        "{status:?}"
    );
    assert_eq!(status.waiters, 1);
    waiting.abort();
    // Slots are walked one after the other.
    let mut held = Vec::new();
    for _ in 0..3 {
        let ticket = client.acquire_slot(&key("pool"), slots(4), wait(0)).await;
        held.push(ticket.unwrap());
    }
    let mut from = 0;
    let mut seen = Vec::new();
    while let KeyState::Held { token, slot, .. } =
        client.query_slots(&key("pool"), from).await.unwrap().state
    {
        seen.push((Some(slot), token));
        from = slot + 1;
    }
    let expected = held.iter().map(|ticket| (ticket.slot(), ticket.token()));
    assert_eq!(seen, expected.collect::<Vec<_>>());
}

#[tokio::test]
async fn a_retained_lock_is_not_the_old_holders_any_more() {
    let server = server().await;
    let client = client_of(&server).await;
    let min_hold = Duration::from_secs(30);
    let options = wait(0).min_hold(min_hold).auto_extend(Duration::MAX);
    let ticket = client.acquire(&key("k"), options.clone()).await.unwrap();
    drop(ticket);
    // Not even for the same client.
    let again = client.acquire(&key("k"), options).await;
    assert_eq!(again.unwrap_err(), AcquireError::TimedOut);
}
