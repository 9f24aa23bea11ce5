//! Leases that are extended by themselves, at a real server.

use std::time::Duration;

use highwater_client::{AcquireError, AcquireOptions, ExtendError, Lost, Release};
use highwater_tests::wait::eventually;

use crate::{PATIENCE, acquiring, all_free, client_of, key, server, wait};

fn kept(lease: Duration) -> AcquireOptions {
    wait(5_000).lease(lease).auto_extend(Duration::MAX)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_a_kept_ticket_outlives_its_lease_many_times() {
    let server = server().await;
    let client = client_of(&server).await;
    let lease = Duration::from_secs(1);
    let ticket = client.acquire(&key("kept"), kept(lease)).await.unwrap();
    let load: Vec<_> = (0..64)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                loop {
                    let key = key(&format!("k{}", number % 8));
                    let ticket = client.acquire(&key, wait(60_000)).await.unwrap();
                    ticket.release().await.unwrap();
                }
            })
        })
        .collect();
    // Somebody wants it all the time.
    let rival = acquiring(&client, "kept", wait(60_000));
    eventually("ten extensions were made", PATIENCE, async || {
        (client.stats().extended >= 10).then_some(())
    })
    .await;
    assert!(ticket.is_valid());
    assert!(!rival.is_finished());
    for task in load {
        task.abort();
    }
    assert_eq!(ticket.release().await, Ok(Release::Released));
    drop(rival.await.unwrap().unwrap());
    all_free(&server).await;
}

#[tokio::test]
async fn a_dropped_kept_ticket_frees_its_lock() {
    let server = server().await;
    let client = client_of(&server).await;
    let ticket = client
        .acquire(&key("k"), kept(Duration::from_secs(1)))
        .await
        .unwrap();
    eventually("an extension was made", PATIENCE, async || {
        (client.stats().extended >= 1).then_some(())
    })
    .await;
    drop(ticket);
    all_free(&server).await;
}

#[tokio::test]
async fn a_kept_ticket_ends_when_its_time_is_over_and_the_next_one_gets_the_lock() {
    let server = server().await;
    let client = client_of(&server).await;
    let options = wait(0)
        .lease(Duration::from_secs(1))
        .auto_extend(Duration::from_millis(2_500));
    let ticket = client.acquire(&key("k"), options).await.unwrap();
    let next = acquiring(&client, "k", wait(20_000));
    assert_eq!(ticket.lost().await, Lost::Expired);
    let next = next.await.unwrap().unwrap();
    assert!(next.token() > ticket.token());
    // Never before the other one is lost.
    assert!(!ticket.is_valid());
    let error = ticket.extend(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(error, ExtendError::Lost(Lost::Expired));
    assert_eq!(ticket.release().await, Ok(Release::NotCurrent));
    assert!(next.is_valid());
}

#[tokio::test]
async fn a_server_that_starts_anew_ends_a_kept_ticket() {
    let first = server().await;
    let address = first.local_addr();
    let client = client_of(&first).await;
    let ticket = client
        .acquire(&key("k"), kept(Duration::from_secs(60)))
        .await
        .unwrap();
    drop(first);
    let _second = eventually("the address is free again", PATIENCE, async || {
        crate::server_at(address).await.ok()
    })
    .await;
    let lost = tokio::time::timeout(PATIENCE, ticket.lost()).await;
    assert_eq!(lost, Ok(Lost::DomainChanged));
    assert!(!ticket.is_valid());
}

#[tokio::test]
async fn a_wait_that_eats_the_lease_still_leaves_the_work_its_time() {
    let server = server().await;
    let client = client_of(&server).await;
    let holder = client.acquire(&key("k"), wait(0)).await.unwrap();
    let lease = Duration::from_millis(2_000);
    let min_work = Duration::from_millis(1_500);
    let waiting = acquiring(&client, "k", wait(20_000).lease(lease).min_work(min_work));
    // Longer than what the work leaves of the lease.
    let started = std::time::Instant::now();
    crate::queued(&server, 1).await;
    eventually("the time is over", PATIENCE, async || {
        (started.elapsed() > lease).then_some(())
    })
    .await;
    holder.release().await.unwrap();
    let ticket = waiting.await.unwrap().unwrap();
    assert!(ticket.remaining() > min_work - Duration::from_millis(500));
    let too_much = wait(0).lease(lease).min_work(lease * 2);
    let error = client.acquire(&key("other"), too_much).await.unwrap_err();
    assert!(matches!(error, AcquireError::InvalidMinWork { .. }));
}
