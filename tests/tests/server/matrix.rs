//! Every request against every state of a key.

use crate::wire::*;

#[tokio::test]
async fn a_free_key() {
    let server = server().await;
    let mut wire = Wire::open(&server).await;
    let first = wire.ask(&acquire(1, 0, 60, "tried")).await.token('A', 1);
    let second = wire.ask(&acquire(2, 5, 60, "waited")).await.token('A', 2);
    let set = acquire_set(3, 0, 60, &["a", "b"]);
    let third = wire.ask(&set).await.token('S', 3);
    assert!(first < second && second < third, "one counter for all keys");

    wire.expect(&release(4, third + 1, "free"), not_held(4))
        .await;
    let set = release_set(5, third + 1, &["c", "d"]);
    wire.expect(&set, not_held(5)).await;
    let extended = extend(6, third + 1, 1_000, &["free"]);
    wire.expect(&extended, not_held(6)).await;
    // A live token of another key is told apart from a dead one.
    wire.expect(&release(7, first, "free"), error(7, 6)).await;
}

#[tokio::test]
async fn a_key_held_by_another_grant() {
    let server = server().await;
    let mut holder = Wire::open(&server).await;
    let mut other = Wire::open(&server).await;
    let token = holder.take(1, "apple").await;
    let elsewhere = other.take(9, "pear").await;

    other
        .expect(&acquire(1, 0, 60, "apple"), timed_out(1))
        .await;
    let set = acquire_set(2, 0, 60, &["apple", "plum"]);
    other.expect(&set, timed_out(2)).await;
    other
        .expect(&acquire(3, 1, 60, "apple"), timed_out(3))
        .await;

    // A token of the past, of the future, and one that is live with another key.
    for wrong in [token - 1, token + 1_000] {
        other.expect(&release(4, wrong, "apple"), not_held(4)).await;
        let extended = extend(5, wrong, 1_000, &["apple"]);
        other.expect(&extended, not_held(5)).await;
    }
    other
        .expect(&release(6, elsewhere, "apple"), error(6, 6))
        .await;
    let extended = extend(7, elsewhere, 1_000, &["apple"]);
    other.expect(&extended, error(7, 6)).await;
    // Nothing of this freed it.
    other
        .expect(&acquire(8, 0, 60, "apple"), timed_out(8))
        .await;
    holder
        .expect(&release(2, token, "apple"), released(2))
        .await;
}

#[tokio::test]
async fn a_key_held_by_this_very_token() {
    let server = server().await;
    let mut wire = Wire::open(&server).await;
    let token = wire.take(1, "apple").await;
    // Not reentrant: the holder queues like everybody.
    wire.expect(&acquire(2, 0, 60, "apple"), timed_out(2)).await;
    wire.send(&acquire(3, 30, 60, "apple")).await;
    eventually(|| server.counts().waiters == 1).await;

    // An extension never shortens: 60 s were asked for before.
    let answer = wire.ask(&extend(4, token, 1, &["apple"])).await;
    assert_eq!((answer.opcode, answer.id), ('x', 4));
    let remaining = u32::from_be_bytes(answer.rest.as_slice().try_into().expect("4 bytes"));
    assert!((30_000..=60_000).contains(&remaining), "{remaining}");
    let answer = wire.ask(&extend(5, token, 120_000, &["apple"])).await;
    assert_eq!(answer, Answer::new('x', 5, &120_000_u32.to_be_bytes()));

    wire.send(&release(6, token, "apple")).await;
    let mut answers = [wire.answer().await, wire.answer().await];
    answers.sort_by_key(|answer| answer.id);
    assert!(
        answers[0].token('A', 3) > token,
        "a new token for the successor"
    );
    assert_eq!(answers[1], released(6));
    // The old token is worth nothing now.
    wire.expect(&release(7, token, "apple"), not_held(7)).await;
}

#[tokio::test]
async fn a_lease_that_ran_out() {
    let server = server().await;
    let mut wire = Wire::open(&server).await;
    let mut next = Wire::open(&server).await;
    let token = wire.ask(&acquire(1, 0, 1, "apple")).await.token('A', 1);
    let successor = next.ask(&acquire(1, 10, 60, "apple")).await.token('A', 1);
    assert!(successor > token);

    wire.expect(&release(2, token, "apple"), not_held(2)).await;
    let extended = extend(3, token, 60_000, &["apple"]);
    wire.expect(&extended, not_held(3)).await;
    wire.expect(&acquire(4, 0, 60, "apple"), timed_out(4)).await;
    next.expect(&release(2, successor, "apple"), released(2))
        .await;
}

#[tokio::test]
async fn a_set_is_one_lock_with_one_token() {
    let server = server().await;
    let mut wire = Wire::open(&server).await;
    let keys = ["apple", "pear", "plum"];
    let token = wire.ask(&acquire_set(1, 0, 60, &keys)).await.token('S', 1);
    for (id, key) in (2..).zip(keys) {
        wire.expect(&acquire(id, 0, 60, key), timed_out(id)).await;
    }
    // Not by a part of its keys, nor by more of them.
    wire.expect(&release(5, token, "apple"), error(5, 6)).await;
    let part = release_set(6, token, &["apple", "pear"]);
    wire.expect(&part, error(6, 6)).await;
    let more = release_set(7, token, &["apple", "kiwi", "pear", "plum"]);
    wire.expect(&more, error(7, 6)).await;

    let answer = wire.ask(&release_set(8, token, &keys)).await;
    assert_eq!(answer, Answer::new('G', 8, &[]));
    let again = release_set(9, token, &keys);
    wire.expect(&again, not_held(9)).await;
    for (id, key) in (10..).zip(keys) {
        wire.take(id, key).await;
    }
}

#[tokio::test]
async fn every_connection_can_release_by_key_and_token() {
    let server = server().await;
    let token = Wire::open(&server).await.take(1, "apple").await;
    eventually(|| server.counts().connections == 0).await;
    // A delivered lock outlives its connection.
    let mut other = Wire::open(&server).await;
    other
        .expect(&acquire(1, 0, 60, "apple"), timed_out(1))
        .await;
    other.expect(&release(2, token, "apple"), released(2)).await;
    other.take(3, "apple").await;
}

#[tokio::test]
async fn the_domain_of_the_server_is_told() {
    let server = server().await;
    let mut wire = Wire::open(&server).await;
    // And that it has every extension.
    let mut told = server.domain().as_bytes().to_vec();
    told.extend([0, 0, 0, 0x3f]);
    wire.expect(&domain(1), Answer::new('d', 1, &told)).await;
}
