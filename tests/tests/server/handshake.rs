//! Who gets in, and what a peer that does not get in can do.

use std::time::Duration;

use highwater_lock::FencingToken;
use highwater_protocol::Secret;
use highwater_server::{Limits, Server, StartError};

use crate::wire::{Wire, builder, eventually, server, server_with};

fn secret(text: &str) -> Secret {
    Secret::new(text).expect("a secret")
}

async fn guarded_server() -> Server {
    let builder = builder()
        .client_token(secret("the old client token"))
        .client_token(secret("the new client token"));
    builder.start().await.expect("starts")
}

#[tokio::test]
async fn the_server_speaks_first_and_never_with_the_same_nonce() {
    let server = server().await;
    let mut nonces = Vec::new();
    for _ in 0..8 {
        let mut wire = Wire::dial(server.local_addr()).await;
        let hello = wire.read::<28>().await.expect("a hello");
        assert_eq!(&hello[..12], b"TCKCLI3\0\x00\x03\x00\xff");
        nonces.push(hello[12..].to_vec());
    }
    nonces.sort();
    nonces.dedup();
    assert_eq!(nonces.len(), 8);
}

#[tokio::test]
async fn during_a_rotation_the_old_and_the_new_secret_are_valid() {
    let server = guarded_server().await;
    for text in ["the old client token", "the new client token"] {
        let mut wire = Wire::dial(server.local_addr()).await;
        assert_eq!(wire.log_in(&secret(text)).await, Some(1));
        wire.take(1, text.replace(' ', "-").as_str()).await;
    }
}

#[tokio::test]
async fn a_wrong_secret_gets_one_zero_byte_and_a_close() {
    let server = guarded_server().await;
    for wrong in [secret("another client token"), Secret::no_auth()] {
        let mut wire = Wire::dial(server.local_addr()).await;
        assert_eq!(wire.log_in(&wrong).await, Some(0));
        wire.expect_end().await;
    }
    assert_eq!(server.counts().connections, 0);
}

#[tokio::test]
async fn a_server_without_authentication_still_wants_the_right_answer() {
    let server = server().await;
    let mut wire = Wire::dial(server.local_addr()).await;
    assert_eq!(
        wire.log_in(&secret("a secret it cannot know")).await,
        Some(0)
    );
    wire.expect_end().await;
}

#[tokio::test]
async fn an_answer_does_not_work_for_another_connection() {
    use highwater_protocol::handshake::{Challenge, Node};
    let server = server().await;
    let mut recorded = Wire::dial(server.local_addr()).await;
    let hello = recorded.read::<28>().await.expect("a hello");
    let challenge = Challenge::from_hello(&hello, Node::Single).expect("a hello");
    let answer = challenge.answer(&Secret::no_auth());

    let mut replayed = Wire::dial(server.local_addr()).await;
    replayed.read::<28>().await.expect("a hello");
    replayed.send(&answer).await;
    assert_eq!(replayed.read::<1>().await, Some([0]));
    recorded.send(&answer).await;
    assert_eq!(recorded.read::<1>().await, Some([1]));
}

/// Answers that somebody without the secret could have: heard elsewhere, thrown back, or guessed.
#[tokio::test]
async fn replayed_and_reflected_answers_are_refused() {
    use highwater_protocol::handshake::{Challenge, Node, Nonce, Slot};
    let old = secret("the old client token");
    let server = guarded_server().await;
    let mut heard = Vec::new();
    for _ in 0..3 {
        let mut wire = Wire::dial(server.local_addr()).await;
        let hello = wire.read::<28>().await.expect("a hello");
        let challenge = Challenge::from_hello(&hello, Node::Single).expect("a hello");
        let answer = challenge.answer(&old);
        wire.send(&answer).await;
        assert_eq!(wire.read::<1>().await, Some([1]));
        heard.push(answer);
    }
    let mut tried = 0;
    let mut number = 0;
    loop {
        let mut wire = Wire::dial(server.local_addr()).await;
        let hello = wire.read::<28>().await.expect("a hello");
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&hello[12..]);
        let right = Challenge::from_hello(&hello, Node::Single)
            .expect("a hello")
            .answer(&old);
        let mut thrown_back = [0; 32];
        thrown_back[..28].copy_from_slice(&hello);
        let mut nonce_twice = [0; 32];
        nonce_twice[..16].copy_from_slice(&nonce);
        nonce_twice[16..].copy_from_slice(&nonce);
        // The same nonce, but for another node or with nothing known.
        let identity = Node::Single.identity();
        let member = Node::Cluster {
            identity,
            slot: Slot::new(0).expect("a slot"),
        };
        let of_member = Challenge::new(member, Nonce::from(nonce)).answer(&old);
        let without = Challenge::new(Node::Single, Nonce::from(nonce)).answer(&Secret::no_auth());
        let fixed = [thrown_back, nonce_twice, of_member, without, [0; 32]];
        let answers = heard.iter().chain(&fixed).copied();
        // And the right one with any one bit turned.
        let turned = (0..256).map(|bit| {
            let mut wrong = right;
            wrong[bit / 8] ^= 1 << (bit % 8);
            wrong
        });
        let Some(answer) = answers.chain(turned).nth(number) else {
            break;
        };
        wire.send(&answer).await;
        assert_eq!(wire.read::<1>().await, Some([0]), "answer {number}");
        wire.expect_end().await;
        number += 1;
        tried += 1;
    }
    println!("{tried} answers");
    assert_eq!(tried, 3 + 5 + 256);
    eventually(|| server.counts().connections == 0).await;
}

#[tokio::test]
async fn garbage_is_a_wrong_secret_and_harms_nobody() {
    let server = server().await;
    let mut bystander = Wire::open(&server).await;
    let mut garbage = Wire::dial(server.local_addr()).await;
    garbage.read::<28>().await.expect("a hello");
    garbage
        .send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await;
    assert_eq!(garbage.read::<1>().await, Some([0]));
    garbage.expect_end().await;

    let mut half = Wire::dial(server.local_addr()).await;
    half.send(b"half").await;
    drop(half);
    bystander.take(1, "apple").await;
}

#[tokio::test]
async fn a_silent_peer_does_not_keep_its_slot() {
    let server = server_with(|limits| {
        limits.connections = 1;
        limits.handshake_time = Duration::from_millis(200);
    })
    .await;
    let mut silent = Wire::dial(server.local_addr()).await;
    silent.read::<28>().await.expect("a hello");
    silent.expect_end().await;

    let mut slow = Wire::dial(server.local_addr()).await;
    slow.read::<28>().await.expect("a hello");
    slow.send(&[7; 31]).await;
    slow.expect_end().await;
    // The slot is free again, for a peer that speaks.
    Wire::open(&server).await.take(1, "apple").await;
}

#[tokio::test]
async fn a_connection_beyond_the_limit_is_closed_before_the_hello() {
    let server = server_with(|limits| limits.connections = 1).await;
    let first = Wire::open(&server).await;
    let mut second = Wire::dial(server.local_addr()).await;
    assert_eq!(second.read::<1>().await, None);

    drop(first);
    eventually(|| server.counts().connections == 0).await;
    let mut third = Wire::dial(server.local_addr()).await;
    // The slot may be given back a moment after the queue places.
    while third.read::<28>().await.is_none() {
        third = Wire::dial(server.local_addr()).await;
    }
}

#[tokio::test]
async fn no_authentication_is_refused_off_loopback() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
        let builder = builder().listen(address.parse().expect("an address"));
        let refused = builder.no_auth().start().await;
        let refused = refused.expect_err("must not start");
        assert!(
            matches!(refused, StartError::NoAuthOffLoopback { .. }),
            "{address}: {refused}"
        );
    }
}

#[tokio::test]
async fn a_secret_makes_every_address_possible() {
    let builder = builder().listen("0.0.0.0:0".parse().expect("an address"));
    let started = builder.client_token(secret("a shared client token"));
    let server = started.start().await.expect("starts");
    assert_ne!(server.local_addr().port(), 0);
}

#[tokio::test]
async fn storage_and_authentication_have_to_be_chosen() {
    let listen = "127.0.0.1:0".parse().expect("an address");
    let base = Server::builder().listen(listen);
    let refused = base.clone().no_auth().start().await;
    assert!(matches!(refused, Err(StartError::StorageNotChosen)));

    let base = base.in_memory().limits(Limits::default());
    let refused = base.clone().start().await;
    assert!(matches!(refused, Err(StartError::AuthenticationNotChosen)));
    let refused = base.clone().client_token(Secret::no_auth()).start().await;
    assert!(matches!(refused, Err(StartError::EmptySecret)));
    let both = base.client_token(secret("a shared client token")).no_auth();
    let refused = both.start().await;
    assert!(matches!(
        refused,
        Err(StartError::AuthenticationContradicts)
    ));
}

#[tokio::test]
async fn a_first_token_that_no_database_can_store_is_refused() {
    let listen = "127.0.0.1:0".parse().expect("an address");
    let base = Server::builder().listen(listen).in_memory().no_auth();
    let highest = i64::MAX.unsigned_abs();
    let first = |number| FencingToken::new(number).expect("not zero");
    let refused = base.clone().first_token(first(highest + 1)).start().await;
    assert!(
        matches!(refused, Err(StartError::FirstTokenOutOfRange { token }) if token.get() == highest + 1)
    );
    let started = base.first_token(first(highest)).start().await;
    drop(started.expect("starts"));
}
