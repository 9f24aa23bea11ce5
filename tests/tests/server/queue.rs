//! Turns: in the order of arrival, across connections, and only for those who still wait.

use std::time::{Duration, Instant};

use crate::wire::*;

/// Sends an acquire and returns when it stands in the queue.
async fn enqueue(server: &highwater_server::Server, wire: &mut Wire, request: &[u8]) {
    let before = server.counts().waiters;
    wire.send(request).await;
    eventually(|| server.counts().waiters == before + 1).await;
}

#[tokio::test]
async fn two_connections_are_served_in_the_order_of_arrival() {
    let server = server().await;
    let mut holder = Wire::open(&server).await;
    let mut waiters = [Wire::open(&server).await, Wire::open(&server).await];
    let mut token = holder.take(1, "apple").await;
    let order = [0, 1, 1, 0, 1, 0, 0];
    for (id, turn) in (10..).zip(order) {
        let request = acquire(id, 60, 60, "apple");
        enqueue(&server, &mut waiters[turn], &request).await;
    }
    holder
        .expect(&release(2, token, "apple"), released(2))
        .await;
    for (id, turn) in (10..).zip(order) {
        // Nobody passes the queue, not even at the moment of the hand-over.
        holder
            .expect(&acquire(3, 0, 60, "apple"), timed_out(3))
            .await;
        let granted = waiters[turn].answer().await.token('A', id);
        assert!(granted > token);
        token = granted;
        holder
            .expect(&release(4, token, "apple"), released(4))
            .await;
    }
}

#[tokio::test]
async fn a_wait_ends_with_a_timeout_and_leaves_the_queue() {
    let server = server().await;
    let mut wire = Wire::open(&server).await;
    let token = wire.take(1, "apple").await;
    let sent = Instant::now();
    wire.expect(&acquire(2, 1, 60, "apple"), timed_out(2)).await;
    assert!(sent.elapsed() >= Duration::from_millis(900), "too early");
    assert_eq!(server.counts().waiters, 0);
    wire.expect(&release(3, token, "apple"), released(3)).await;
    assert_eq!(
        server.counts().held_keys,
        0,
        "a late grant to a waiter that left"
    );
}

#[tokio::test]
async fn a_connection_that_ends_leaves_every_queue_at_once() {
    let server = server().await;
    let mut holder = Wire::open(&server).await;
    let mut leaver = Wire::open(&server).await;
    let mut stayer = Wire::open(&server).await;
    let apple = holder.take(1, "apple").await;
    let pear = holder.take(2, "pear").await;
    enqueue(&server, &mut leaver, &acquire(1, 60, 60, "apple")).await;
    enqueue(&server, &mut leaver, &acquire(2, 60, 60, "pear")).await;
    // A set that waits behind it, and somebody behind that set.
    let set = acquire_set(1, 60, 60, &["apple", "plum"]);
    enqueue(&server, &mut stayer, &set).await;
    enqueue(&server, &mut stayer, &acquire(2, 60, 60, "pear")).await;

    drop(leaver);
    eventually(|| server.counts().waiters == 2).await;
    holder
        .expect(&release(3, apple, "apple"), released(3))
        .await;
    stayer.answer().await.token('S', 1);
    holder.expect(&release(4, pear, "pear"), released(4)).await;
    stayer.answer().await.token('A', 2);
}

#[tokio::test]
async fn a_place_that_is_given_up_wakes_those_behind_it() {
    let server = server().await;
    let mut holder = Wire::open(&server).await;
    let mut leaver = Wire::open(&server).await;
    let mut behind = Wire::open(&server).await;
    holder.take(1, "apple").await;
    // Its set heads the queue of the free key too, and blocks it.
    let set = acquire_set(1, 60, 60, &["apple", "pear"]);
    enqueue(&server, &mut leaver, &set).await;
    enqueue(&server, &mut behind, &acquire(1, 60, 60, "pear")).await;
    drop(leaver);
    behind.answer().await.token('A', 1);
}

#[tokio::test]
async fn a_cancelled_acquire_is_answered_and_never_granted() {
    let server = server().await;
    let mut holder = Wire::open(&server).await;
    let mut waiter = Wire::open(&server).await;
    let token = holder.take(1, "apple").await;
    enqueue(&server, &mut waiter, &acquire(1, 60, 60, "apple")).await;
    waiter.expect(&cancel(2, 1), timed_out(1)).await;
    assert_eq!(waiter.answer().await, Answer::new('c', 2, &[1]));
    holder
        .expect(&release(2, token, "apple"), released(2))
        .await;
    assert_eq!(server.counts().held_keys, 0);

    // Its id is free for the next request.
    let token = waiter.take(1, "apple").await;
    waiter
        .expect(&release(1, token, "apple"), released(1))
        .await;

    // What is granted, answered or unknown was not queued; a grant is not touched.
    let token = waiter.take(3, "apple").await;
    for never_queued in [1, 3, 99] {
        let nothing = Answer::new('c', 4, &[0]);
        waiter.expect(&cancel(4, never_queued), nothing).await;
    }
    waiter
        .expect(&release(5, token, "apple"), released(5))
        .await;
}

#[tokio::test]
async fn one_connection_cannot_cancel_for_another() {
    let server = server().await;
    let mut holder = Wire::open(&server).await;
    let mut waiter = Wire::open(&server).await;
    holder.take(1, "apple").await;
    enqueue(&server, &mut waiter, &acquire(5, 60, 60, "apple")).await;
    let nothing = Answer::new('c', 2, &[0]);
    holder.expect(&cancel(2, 5), nothing).await;
    assert_eq!(server.counts().waiters, 1);
}

#[tokio::test]
async fn ten_thousand_locks_are_taken_and_given_back() {
    let server = server().await;
    let mut wire = Wire::open(&server).await;
    let mut requests = Vec::new();
    let mut tokens = Vec::new();
    for round in 0..100_u64 {
        requests.clear();
        let ids = 100 * round + 1..=100 * round + 100;
        for id in ids.clone() {
            requests.extend(acquire(id, 0, 250, &format!("key-{id}")));
        }
        wire.send(&requests).await;
        for id in ids {
            tokens.push((id, wire.answer().await.token('A', id)));
        }
    }
    assert_eq!(server.counts().held_keys, 10_000);
    assert!(tokens.is_sorted_by(|a, b| a.1 < b.1), "tokens in order");
    for some in tokens.chunks(100) {
        requests.clear();
        for (id, token) in some {
            requests.extend(release(*id, *token, &format!("key-{id}")));
        }
        wire.send(&requests).await;
        for (id, _) in some {
            assert_eq!(wire.answer().await, released(*id));
        }
    }
    assert_eq!(server.counts().held_keys, 0);
}
