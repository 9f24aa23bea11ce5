//! What is answered and what ends the connection.

use crate::wire::*;

#[tokio::test]
async fn a_bad_key_is_answered() {
    let server = server().await;
    let mut wire = Wire::open(&server).await;
    for key in ["", "a b", "a\n", "\ra"] {
        wire.expect(&acquire(1, 0, 60, key), error(1, 1)).await;
        wire.expect(&release(2, 7, key), error(2, 1)).await;
        let set = acquire_set(3, 0, 60, &["a", key]);
        wire.expect(&set, error(3, 1)).await;
        let set = release_set(4, 7, &["a", key]);
        wire.expect(&set, error(4, 1)).await;
    }
    let long = "k".repeat(129);
    let set = acquire_set(5, 0, 60, &["a", &long]);
    wire.expect(&set, error(5, 1)).await;
    wire.take(6, &"k".repeat(128)).await;
}

#[tokio::test]
async fn a_bad_lease_is_answered() {
    let server = server().await;
    let mut wire = Wire::open(&server).await;
    for lease in [0, 251, 255] {
        wire.expect(&acquire(1, 0, lease, "a"), error(1, 2)).await;
        let set = acquire_set(2, 0, lease, &["a", "b"]);
        wire.expect(&set, error(2, 2)).await;
    }
    let token = wire.ask(&acquire(3, 0, 250, "a")).await.token('A', 3);
    for lease_ms in [0, 3_600_001] {
        let extended = extend(4, token, lease_ms, &["a"]);
        wire.expect(&extended, error(4, 2)).await;
    }
}

#[tokio::test]
async fn a_set_that_is_not_canonical_is_answered() {
    let server = server().await;
    let mut wire = Wire::open(&server).await;
    let names: Vec<String> = (b'a'..=b'q').map(|c| char::from(c).to_string()).collect();
    let seventeen: Vec<&str> = names.iter().map(String::as_str).collect();
    let sets: [&[&str]; 5] = [&[], &["a"], &["b", "a"], &["a", "a"], &seventeen];
    for set in sets {
        let taken = acquire_set(1, 0, 60, set);
        wire.expect(&taken, error(1, 5)).await;
        wire.expect(&release_set(2, 7, set), error(2, 5)).await;
    }
    let sixteen = acquire_set(3, 0, 60, &seventeen[..16]);
    wire.ask(&sixteen).await.token('S', 3);
}

#[tokio::test]
async fn a_zero_token_is_answered() {
    let server = server().await;
    let mut wire = Wire::open(&server).await;
    wire.expect(&release(1, 0, "a"), error(1, 7)).await;
    let set = release_set(2, 0, &["a", "b"]);
    wire.expect(&set, error(2, 7)).await;
    let extended = extend(3, 0, 1_000, &["a"]);
    wire.expect(&extended, error(3, 7)).await;
}

#[tokio::test]
async fn a_full_queue_is_busy_and_a_try_is_not() {
    let server = server_with(|limits| limits.locks.waiters_per_key = 1).await;
    let mut wire = Wire::open(&server).await;
    wire.take(1, "apple").await;
    wire.send(&acquire(2, 60, 60, "apple")).await;
    let busy = Answer::new('B', 3, &[]);
    wire.expect(&acquire(3, 60, 60, "apple"), busy).await;
    let busy = Answer::new('B', 4, &[]);
    let set = acquire_set(4, 60, 60, &["apple", "pear"]);
    wire.expect(&set, busy).await;
    wire.expect(&acquire(5, 0, 60, "apple"), timed_out(5)).await;
}

#[tokio::test]
async fn no_more_keys_than_the_limit_are_held() {
    let server = server_with(|limits| limits.locks.keys = 2).await;
    let mut wire = Wire::open(&server).await;
    let token = wire.take(1, "a").await;
    wire.take(2, "b").await;
    let busy = Answer::new('B', 3, &[]);
    wire.expect(&acquire(3, 0, 60, "c"), busy).await;
    wire.expect(&release(4, token, "a"), released(4)).await;
    wire.take(5, "c").await;
}

/// Bytes after which no one can tell where the next frame begins, or that no client sends.
fn malformed() -> Vec<(&'static str, Vec<u8>)> {
    let mut trailing = acquire_set(1, 0, 60, &["a", "b"]);
    trailing.push(b'!');
    trailing[2] += 1;
    let mut cut = release_set(1, 7, &["a", "bcd"]);
    cut.truncate(cut.len() - 1);
    cut[2] -= 1;
    let mut not_utf8 = acquire(1, 0, 60, "key");
    not_utf8[13] = 0xff;
    vec![
        ("an unknown opcode", b"Z\0\x08\0\0\0\0\0\0\0\x01".to_vec()),
        (
            "an opcode of replies",
            b"T\0\x08\0\0\0\0\0\0\0\x01".to_vec(),
        ),
        ("id zero", acquire(0, 0, 60, "a")),
        ("id zero of a release", release(0, 7, "a")),
        (
            "a key too long for its frame",
            acquire(1, 0, 60, &"k".repeat(129)),
        ),
        ("a release too long", release(1, 7, &"k".repeat(129))),
        ("a body too short", b"A\0\x09\0\0\0\0\0\0\0\x01\0".to_vec()),
        ("the longest length there is", b"S\xff\xff".to_vec()),
        ("bytes left over", trailing),
        ("a key beyond the body", cut),
        ("a key that is not UTF-8", not_utf8),
        ("text", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
    ]
}

#[tokio::test]
async fn a_malformed_frame_closes_its_own_connection_and_no_other() {
    let server = server().await;
    let mut bystander = Wire::open(&server).await;
    let token = bystander.take(1, "apple").await;
    bystander.send(&acquire(2, 60, 60, "apple")).await;
    for (what, bytes) in malformed() {
        let mut wire = Wire::open(&server).await;
        // What came before it is still done and answered.
        let mut sent = release(1, 7, "free");
        sent.extend(&bytes);
        wire.send(&sent).await;
        let answers = wire.answers_until_end().await;
        assert_eq!(answers, [not_held(1)], "{what}");
    }
    eventually(|| server.counts().connections == 1).await;
    assert_eq!(server.counts().waiters, 1);
    bystander.send(&release(3, token, "apple")).await;
    let mut answers = [bystander.answer().await, bystander.answer().await];
    answers.sort_by_key(|answer| answer.id);
    answers[0].token('A', 2);
    assert_eq!(answers[1], released(3));
}

#[tokio::test]
async fn an_id_in_use_ends_the_connection_whatever_it_is_used_for() {
    let server = server().await;
    let mut holder = Wire::open(&server).await;
    holder.take(1, "apple").await;
    let second_uses = [
        acquire(7, 60, 60, "apple"),
        acquire(7, 0, 60, "free"),
        acquire(7, 0, 0, "refused"),
        release(7, 1, "apple"),
        domain(7),
        cancel(7, 7),
    ];
    for second_use in second_uses {
        let mut wire = Wire::open(&server).await;
        wire.send(&acquire(7, 60, 60, "apple")).await;
        wire.send(&second_use).await;
        wire.expect_end().await;
        eventually(|| server.counts().waiters == 0).await;
    }
    assert_eq!(server.counts().held_keys, 1);
}

#[tokio::test]
async fn an_answered_id_can_be_used_again() {
    let server = server().await;
    let mut wire = Wire::open(&server).await;
    let token = wire.take(7, "apple").await;
    wire.expect(&acquire(7, 0, 60, "apple"), timed_out(7)).await;
    wire.expect(&acquire(7, 0, 0, "apple"), error(7, 2)).await;
    wire.expect(&release(7, token, "apple"), released(7)).await;
}

#[tokio::test]
async fn frames_may_come_in_any_pieces() {
    let server = server().await;
    let mut wire = Wire::open(&server).await;
    for byte in acquire_set(1, 0, 60, &["apple", "pear"]) {
        wire.send(&[byte]).await;
    }
    let token = wire.answer().await.token('S', 1);
    let mut many = Vec::new();
    for id in 2..200 {
        many.extend(acquire(id, 0, 60, "apple"));
    }
    many.extend(release_set(200, token, &["apple", "pear"]));
    wire.send(&many).await;
    for id in 2..200 {
        assert_eq!(wire.answer().await, timed_out(id));
    }
    assert_eq!(wire.answer().await, Answer::new('G', 200, &[]));
}
