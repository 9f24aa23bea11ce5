//! Start, restart and end.

use std::time::{Duration, Instant};

use highwater_server::StartError;

use crate::wire::*;

#[tokio::test]
async fn every_start_is_a_new_domain_and_its_tokens_are_higher() {
    let mut domains = Vec::new();
    let mut last_token = 0;
    for _ in 0..3 {
        let server = server().await;
        let mut wire = Wire::open(&server).await;
        let mut token = 0;
        for id in 1..50 {
            token = wire.take(id, &format!("{id}")).await;
            assert!(token > last_token, "{token} after {last_token}");
        }
        last_token = token;
        domains.push(server.domain());
        drop(wire);
        drop(server);
    }
    domains.sort();
    domains.dedup();
    assert_eq!(domains.len(), 3);
}

#[tokio::test]
async fn two_servers_at_the_same_time_know_nothing_of_each_other() {
    let (one, two) = (server().await, server().await);
    assert_ne!(one.domain(), two.domain());
    assert_ne!(one.local_addr(), two.local_addr());
    Wire::open(&one).await.take(1, "apple").await;
    Wire::open(&two).await.take(1, "apple").await;
}

#[tokio::test]
async fn an_address_in_use_is_told() {
    let server = server().await;
    let again = builder().listen(server.local_addr()).no_auth();
    let refused = again.start().await.expect_err("must not start");
    assert!(matches!(refused, StartError::Listen { .. }), "{refused}");
}

#[tokio::test]
async fn a_shutdown_answers_who_waits_serves_releases_and_then_closes() {
    let server = server_with(|limits| limits.drain_time = PATIENCE).await;
    let address = server.local_addr();
    let mut holder = Wire::open(&server).await;
    let mut waiter = Wire::open(&server).await;
    let token = holder.take(1, "apple").await;
    waiter.send(&acquire(1, 60, 60, "apple")).await;
    eventually(|| server.counts().waiters == 1).await;

    let shutdown = tokio::spawn(server.shutdown());
    assert_eq!(waiter.answer().await, error(1, 3));
    // No new grant, not even of a free key, while held locks can be kept and given back.
    waiter.expect(&acquire(2, 0, 60, "pear"), error(2, 3)).await;
    let set = acquire_set(3, 5, 60, &["pear", "plum"]);
    waiter.expect(&set, error(3, 3)).await;
    let extended = holder.ask(&extend(2, token, 120_000, &["apple"])).await;
    assert_eq!(extended.opcode, 'x');
    eventually(|| std::net::TcpStream::connect(address).is_err()).await;
    assert!(!shutdown.is_finished(), "it waits for the holder");

    holder
        .expect(&release(3, token, "apple"), released(3))
        .await;
    within(shutdown).await.expect("ends");
    holder.expect_end().await;
    waiter.expect_end().await;
}

#[tokio::test]
async fn a_shutdown_with_nothing_held_does_not_wait() {
    let server = server_with(|limits| limits.drain_time = PATIENCE).await;
    let mut idle = Wire::open(&server).await;
    let mut in_set_up = Wire::dial(server.local_addr()).await;
    in_set_up.read::<28>().await.expect("a hello");
    let began = Instant::now();
    within(server.shutdown()).await;
    assert!(began.elapsed() < PATIENCE / 2);
    idle.expect_end().await;
    in_set_up.expect_end().await;
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_holder_for_ever() {
    let server = server_with(|limits| limits.drain_time = Duration::from_millis(100)).await;
    let mut holder = Wire::open(&server).await;
    holder.take(1, "apple").await;
    within(server.shutdown()).await;
    holder.expect_end().await;
}

#[tokio::test]
async fn a_dropped_server_is_gone() {
    let server = server().await;
    let address = server.local_addr();
    let mut wire = Wire::open(&server).await;
    drop(server);
    wire.expect_end().await;
    eventually(|| std::net::TcpStream::connect(address).is_err()).await;
}
