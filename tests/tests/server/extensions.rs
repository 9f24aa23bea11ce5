//! What the base protocol does not have: milliseconds, slots, minimum holds, questions.

use std::time::{Duration, Instant};

use crate::wire::*;

#[tokio::test]
async fn an_acquire_in_milliseconds_tells_how_long_it_waited() {
    let server = server().await;
    let mut holder = Wire::open(&server).await;
    let mut waiter = Wire::open(&server).await;
    let free = waiter.ask(&acquire_timed(1, 0, 60_000, &["free"])).await;
    assert_eq!(free.timed('a', 1).1, 0);

    let lease_ms = 250;
    let asked = Instant::now();
    let holders = holder.ask(&acquire_timed(1, 0, lease_ms, &["apple"])).await;
    let (token, _, _) = holders.timed('a', 1);
    let sent = Instant::now();
    let answer = waiter
        .ask(&acquire_timed(2, 60_000, 60_000, &["apple", "pear"]))
        .await;
    let (successor, waited_ms, _) = answer.timed('a', 2);
    assert!(successor > token);
    // The holder had its whole lease, and nothing is told that did not pass.
    let passed = u128::from(waited_ms);
    assert!(passed <= sent.elapsed().as_millis(), "{waited_ms}");
    assert!(asked.elapsed() >= Duration::from_millis(lease_ms.into()));
    assert!(waited_ms > 0, "it had to wait");
}

#[tokio::test]
async fn a_wait_in_milliseconds_ends_after_it() {
    let server = server().await;
    let mut wire = Wire::open(&server).await;
    wire.take(1, "apple").await;
    let sent = Instant::now();
    let request = acquire_timed(2, 120, 60_000, &["apple"]);
    wire.expect(&request, timed_out(2)).await;
    assert!(sent.elapsed() >= Duration::from_millis(120));
    let request = acquire_slot(3, 0, 60_000, 1, "group");
    wire.ask(&request).await.timed('n', 3);
    let sent = Instant::now();
    let request = acquire_slot(4, 120, 60_000, 1, "group");
    wire.expect(&request, timed_out(4)).await;
    assert!(sent.elapsed() >= Duration::from_millis(120));
    assert_eq!(server.counts().waiters, 0);
}

#[tokio::test]
async fn slots_go_to_as_many_as_there_are_and_then_in_the_order_of_arrival() {
    let server = server().await;
    let mut wire = Wire::open(&server).await;
    let mut tokens = Vec::new();
    for slot in 0..3 {
        let request = acquire_slot(1, 0, 60_000, 3, "group");
        let (token, waited_ms, got) = wire.ask(&request).await.timed('n', 1);
        assert_eq!((waited_ms, got), (0, Some(slot)));
        tokens.push(token);
    }
    assert!(tokens.is_sorted() && tokens[0] < tokens[1], "{tokens:?}");
    let request = acquire_slot(2, 0, 60_000, 3, "group");
    wire.expect(&request, timed_out(2)).await;
    for id in [3, 4] {
        wire.send(&acquire_slot(id, 60_000, 60_000, 3, "group"))
            .await;
    }
    eventually(|| server.counts().waiters == 2).await;

    // Extended and released by the name and the token, in any way.
    let extended = wire.ask(&extend(5, tokens[1], 120_000, &["group"])).await;
    assert_eq!(extended, Answer::new('x', 5, &120_000_u32.to_be_bytes()));
    wire.send(&release(6, tokens[1], "group")).await;
    let mut answers = [wire.answer().await, wire.answer().await];
    answers.sort_by_key(|answer| answer.id);
    assert_eq!(answers[0].timed('n', 3).2, Some(1));
    assert_eq!(answers[1], released(6));
    wire.send(&retain(7, tokens[0], 0, &["group"])).await;
    let mut answers = [wire.answer().await, wire.answer().await];
    answers.sort_by_key(|answer| answer.id);
    assert_eq!(answers[0].timed('n', 4).2, Some(0));
    assert_eq!(answers[1], Answer::new('h', 7, &[]));
}

#[tokio::test]
async fn the_holders_of_slots_can_be_walked() {
    let server = server().await;
    let mut wire = Wire::open(&server).await;
    let mut tokens = Vec::new();
    for id in 1..=4 {
        let request = acquire_slot(id, 0, 60_000, 6, "group");
        tokens.push(wire.ask(&request).await.timed('n', id).0);
    }
    wire.expect(&release(5, tokens[1], "group"), released(5))
        .await;
    let mut from = 0;
    let mut seen = Vec::new();
    for _ in 0..4 {
        let status = wire.ask(&query(6, from, "group")).await.status(6);
        assert_eq!((status.slots, status.taken, status.waiters), (6, 3, 0));
        if status.state == 0 {
            break;
        }
        assert!(status.remaining_ms <= 60_000 && status.remaining_ms > 30_000);
        seen.push((status.slot, status.token));
        from = status.slot + 1;
    }
    assert_eq!(seen, [(0, tokens[0]), (2, tokens[2]), (3, tokens[3])]);
    let last = wire.ask(&query(7, u32::MAX, "group")).await.status(7);
    assert_eq!(last.state, 0);
}

#[tokio::test]
async fn a_minimum_hold_keeps_the_key_until_that_long_after_the_grant() {
    let server = server().await;
    let mut wire = Wire::open(&server).await;
    let before = Instant::now();
    let token = wire.take(1, "apple").await;
    let minimum_ms = 400;
    let retained = Answer::new('h', 2, &[]);
    wire.expect(&retain(2, token, minimum_ms, &["apple"]), retained)
        .await;
    // It is nobody's: not to be extended, and not to be released for others either.
    let extended = extend(3, token, 60_000, &["apple"]);
    wire.expect(&extended, not_held(3)).await;
    wire.expect(&release(4, token, "apple"), released(4)).await;
    let status = wire.ask(&query(5, 0, "apple")).await.status(5);
    assert_eq!((status.state, status.token), (2, token));
    assert!(status.remaining_ms <= minimum_ms);
    let next = wire.ask(&acquire(6, 60, 60, "apple")).await.token('A', 6);
    assert!(next > token);
    assert!(before.elapsed() >= Duration::from_millis(minimum_ms.into()));
    // A minimum that is over already frees at once.
    wire.expect(&retain(7, next, 0, &["apple"]), Answer::new('h', 7, &[]))
        .await;
    wire.take(8, "apple").await;
}

#[tokio::test]
async fn acquires_of_every_kind_can_be_cancelled() {
    let server = server().await;
    let mut holder = Wire::open(&server).await;
    let mut waiter = Wire::open(&server).await;
    holder.take(1, "apple").await;
    holder
        .ask(&acquire_slot(2, 0, 60_000, 1, "group"))
        .await
        .timed('n', 2);
    for request in [
        acquire(7, 60, 60, "apple"),
        acquire_set(7, 60, 60, &["apple", "pear"]),
        acquire_timed(7, 60_000, 60_000, &["apple"]),
        acquire_slot(7, 60_000, 60_000, 1, "group"),
    ] {
        waiter.send(&request).await;
        eventually(|| server.counts().waiters == 1).await;
        waiter.expect(&cancel(8, 7), timed_out(7)).await;
        assert_eq!(waiter.answer().await, Answer::new('c', 8, &[1]));
        assert_eq!(server.counts().waiters, 0);
    }
}

#[tokio::test]
async fn a_connection_that_ends_leaves_the_queue_of_a_group() {
    let server = server().await;
    let mut holder = Wire::open(&server).await;
    let mut leaver = Wire::open(&server).await;
    let mut stayer = Wire::open(&server).await;
    let request = acquire_slot(1, 0, 60_000, 1, "group");
    let (token, _, _) = holder.ask(&request).await.timed('n', 1);
    leaver
        .send(&acquire_slot(1, 60_000, 60_000, 1, "group"))
        .await;
    eventually(|| server.counts().waiters == 1).await;
    stayer
        .send(&acquire_slot(1, 60_000, 60_000, 1, "group"))
        .await;
    eventually(|| server.counts().waiters == 2).await;
    drop(leaver);
    eventually(|| server.counts().waiters == 1).await;
    holder
        .expect(&release(2, token, "group"), released(2))
        .await;
    assert_eq!(stayer.answer().await.timed('n', 1).2, Some(0));
}
