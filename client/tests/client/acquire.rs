//! Every way in which an acquire can end, and what is left behind.

use std::time::Duration;

use highwater_client::{AcquireError, AcquireOptions, ErrorCode, FencingToken};
use highwater_protocol::handshake::Slot;
use highwater_protocol::{Reply, Request, Shape};
use tokio::time::Instant;

use crate::fake::{Fake, Manners, PATIENCE};
use crate::{
    acquired, acquiring, cancel_of, domain, granted, keys, release_of, released, token, wait,
};

#[tokio::test(start_paused = true)]
async fn a_grant_becomes_a_ticket_that_is_valid_from_before_the_request() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let lease = Duration::from_millis(29_500);
    let before = Instant::now();
    let acquire = acquiring(&client, "sku", wait(1_500).lease(lease));
    let (peer, request) = fake.request().await;
    let arrived = Instant::now();
    match &request {
        Request::Acquire {
            keys,
            wait_seconds,
            lease,
            ..
        } => {
            assert_eq!(keys.to_string(), "sku");
            assert_eq!(*wait_seconds, 2);
            assert_eq!(lease.get(), 30);
        }
        other => panic!("{other:?}"),
    }
    // The time that the answer takes must not lengthen the lease.
    tokio::time::sleep(Duration::from_millis(200)).await;
    peer.reply(granted(&request, 42));
    let ticket = acquire.await.unwrap().unwrap();
    assert_eq!(ticket.token(), token(42));
    assert_eq!(ticket.keys(), &keys(&["sku"]));
    assert_eq!(ticket.domain(), domain(1));
    assert!(ticket.is_valid());
    // Two clocks are read one after the other, and rounded to the safe side.
    let noise = Duration::from_millis(20);
    assert!(ticket.valid_before() + noise >= (before + lease).into_std());
    assert!(ticket.valid_before() <= (arrived + lease).into_std());
    let fence = ticket.fence();
    assert_eq!(fence.domain(), domain(1));
    assert_eq!(fence.marks()[0].key.as_bytes(), b"sku");
    assert_eq!(fence.marks()[0].token, token(42));
}

#[tokio::test(start_paused = true)]
async fn a_set_has_one_token_for_all_its_keys() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let set = keys(&["b", "a", "c"]);
    let acquire = tokio::spawn({
        let (client, set) = (client.clone(), set.clone());
        async move { client.acquire_set(&set, wait(5_000)).await }
    });
    let (peer, request) = fake.request().await;
    assert_eq!(acquired(&request), "a,b,c");
    peer.reply(granted(&request, 5));
    let ticket = acquire.await.unwrap().unwrap();
    let fence = ticket.fence();
    assert_eq!(fence.marks().len(), 3);
    assert!(fence.marks().iter().all(|mark| mark.token == token(5)));
    drop(ticket);
    let (_, request) = fake.request().await;
    assert_eq!(release_of(&request), ("a,b,c".to_owned(), 5));
}

#[tokio::test(start_paused = true)]
async fn every_answer_has_its_own_outcome() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    for (bytes, outcome) in [
        (&b"T\x00\x08"[..], AcquireError::TimedOut),
        (b"B\x00\x08", AcquireError::Busy),
        (b"I\x00\x08", AcquireError::Indeterminate),
    ] {
        let acquire = acquiring(&client, "k", wait(5_000));
        let (peer, request) = fake.request().await;
        let reply = [bytes, &request.id().get().to_be_bytes()].concat();
        peer.send(reply);
        assert_eq!(acquire.await.unwrap().unwrap_err(), outcome);
    }
    for code in [ErrorCode::BadKey, ErrorCode::BadLease] {
        let acquire = acquiring(&client, "k", wait(5_000));
        let (peer, request) = fake.request().await;
        let id = request.id();
        peer.reply(Reply::Error { id, code });
        let error = acquire.await.unwrap().unwrap_err();
        assert_eq!(error, AcquireError::Rejected(code));
    }
}

#[tokio::test(start_paused = true)]
async fn options_out_of_range_are_refused_before_anything_is_sent() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let long = Duration::from_millis(3_600_001);
    let error = acquiring(&client, "k", wait(3_600_001))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error, AcquireError::InvalidWait { wait: long });
    for lease in [Duration::ZERO, long] {
        let options = AcquireOptions::new().lease(lease);
        let error = acquiring(&client, "k", options).await.unwrap().unwrap_err();
        assert_eq!(error, AcquireError::InvalidLease { lease });
    }
    // Only with times in milliseconds.
    for options in [wait(255_001), wait(0).lease(Duration::from_millis(250_001))] {
        let error = acquiring(&client, "k", options).await.unwrap().unwrap_err();
        assert_eq!(error, AcquireError::Unsupported);
    }
    acquiring(&client, "next", wait(5_000));
    assert_eq!(acquired(&fake.request().await.1), "next");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_not_ready_is_asked_again_within_the_wait() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    for options in [wait(5_000), wait(0)] {
        let acquire = acquiring(&client, "k", options);
        let mut id = None;
        for code in [Some(ErrorCode::NotActive), Some(ErrorCode::NoLeader), None] {
            let (peer, request) = fake.request().await;
            assert_ne!(id.replace(request.id()), Some(request.id()));
            let id = request.id();
            peer.reply(match code {
                Some(code) => Reply::Error { id, code },
                None => Reply::Moved { id, leader: None },
            });
        }
        let (peer, request) = fake.request().await;
        peer.reply(granted(&request, 9));
        assert_eq!(acquire.await.unwrap().unwrap().token(), token(9));
        // The dropped ticket.
        let (peer, request) = fake.request().await;
        peer.reply(released(&request));
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_gets_ready_is_the_outcome_at_the_end_of_the_wait() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let started = Instant::now();
    let mut acquire = acquiring(&client, "k", wait(400));
    let error = loop {
        tokio::select! {
            outcome = &mut acquire => break outcome.unwrap().unwrap_err(),
            (peer, request) = fake.request() => {
                peer.reply(Reply::Error { id: request.id(), code: ErrorCode::NotActive });
            }
        }
    };
    assert_eq!(error, AcquireError::Rejected(ErrorCode::NotActive));
    assert!(started.elapsed() >= Duration::from_millis(390));
}

#[tokio::test(start_paused = true)]
async fn a_reply_against_the_protocol_ends_the_connection_and_leaves_the_outcome_unknown() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let strange: [fn(&Request) -> Vec<u8>; 6] = [
        // A kind that does not fit.
        |request| {
            encoded(Reply::Released {
                id: request.id(),
                shape: Shape::One,
            })
        },
        |request| {
            encoded(Reply::Granted {
                id: request.id(),
                shape: Shape::Set,
                token: token(3),
            })
        },
        // A number nobody asked with.
        |_| {
            encoded(Reply::TimedOut {
                id: 999_999.try_into().unwrap(),
            })
        },
        // Leaders do not exist here.
        |request| {
            encoded(Reply::Moved {
                id: request.id(),
                leader: Slot::new(1),
            })
        },
        |_| {
            encoded(Reply::Leader {
                leader: Slot::new(0),
            })
        },
        |_| b"garbage".to_vec(),
    ];
    for bytes in strange {
        let acquire = acquiring(&client, "k", wait(60_000));
        let (peer, request) = fake.request().await;
        peer.send(bytes(&request));
        // At once, and not at the end of the wait.
        let outcome = tokio::time::timeout(PATIENCE, acquire).await;
        let error = outcome.unwrap().unwrap().unwrap_err();
        assert_eq!(error, AcquireError::Indeterminate);
        fake.closed(peer.number).await;
    }
}

fn encoded(reply: Reply) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    bytes
}

#[tokio::test(start_paused = true)]
async fn sent_and_not_answered_is_unknown_and_is_never_sent_again() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let acquire = acquiring(&client, "first", wait(20_000));
    let (peer, request) = fake.request().await;
    assert_eq!(acquired(&request), "first");
    peer.close();
    let error = acquire.await.unwrap().unwrap_err();
    assert_eq!(error, AcquireError::Indeterminate);
    fake.opened().await;
    // Whatever would have been repeated stands before these.
    for _ in 0..4 {
        acquiring(&client, "second", wait(5_000));
        assert_eq!(acquired(&fake.request().await.1), "second");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_one_connection_does_not_touch_the_other() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let first = acquiring(&client, "a", wait(20_000));
    let (one, request_one) = fake.request().await;
    let second = acquiring(&client, "b", wait(20_000));
    let (two, request_two) = fake.request().await;
    assert_ne!(one.number, two.number);
    one.close();
    two.reply(granted(&request_two, 2));
    let _ = request_one;
    assert_eq!(
        first.await.unwrap().unwrap_err(),
        AcquireError::Indeterminate
    );
    assert_eq!(second.await.unwrap().unwrap().token(), token(2));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_ends_the_call_after_its_wait() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let started = Instant::now();
    let acquire = acquiring(&client, "k", wait(500));
    let (_, request) = fake.request().await;
    // At the end of its wait the client takes the request back, and waits a little for a word.
    let (_, cancel) = fake.request().await;
    assert_eq!(cancel_of(&cancel).1, request.id());
    assert!(started.elapsed() >= Duration::from_millis(490));
    let error = acquire.await.unwrap().unwrap_err();
    assert_eq!(error, AcquireError::Indeterminate);
    assert!(started.elapsed() < Duration::from_millis(4_500));
}

#[tokio::test(start_paused = true)]
async fn a_base_server_that_never_answers_loses_its_connection() {
    let mut fake = Fake::start(Manners::Base).await;
    let client = fake.builder().connect().await.unwrap();
    let acquire = acquiring(&client, "k", wait(500));
    let (peer, _) = fake.request().await;
    let error = acquire.await.unwrap().unwrap_err();
    assert_eq!(error, AcquireError::Indeterminate);
    // No cancel: a base server does not know it.
    assert_eq!(fake.closed(peer.number).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_a_fraction_of_a_second_is_exact() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let started = Instant::now();
    let acquire = acquiring(&client, "k", wait(200));
    let (_, request) = fake.request().await;
    let (peer, cancel) = fake.request().await;
    let (id, of) = cancel_of(&cancel);
    assert_eq!(of, request.id());
    peer.reply(Reply::TimedOut { id: of });
    peer.reply(Reply::Cancelled {
        id,
        was_queued: true,
    });
    let error = acquire.await.unwrap().unwrap_err();
    assert_eq!(error, AcquireError::TimedOut);
    assert!(started.elapsed() >= Duration::from_millis(190));
    assert!(started.elapsed() < Duration::from_millis(900));
}

#[tokio::test(start_paused = true)]
async fn a_grant_for_a_dropped_future_is_released_at_once() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let acquire = acquiring(&client, "k", wait(20_000));
    let (peer, request) = fake.request().await;
    acquire.abort();
    // The place in the queue is given up.
    let (same, cancel) = fake.request().await;
    assert_eq!(same.number, peer.number);
    let (id, of) = cancel_of(&cancel);
    assert_eq!(of, request.id());
    // Too late: the grant was under way.
    peer.reply(granted(&request, 77));
    peer.reply(Reply::Cancelled {
        id,
        was_queued: false,
    });
    let (peer, release) = fake.request().await;
    assert_eq!(release_of(&release), ("k".to_owned(), 77));
    peer.reply(released(&release));
    client.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_late_grant_is_released_also_without_the_extensions() {
    let mut fake = Fake::start(Manners::Base).await;
    let client = fake.builder().connect().await.unwrap();
    let acquire = acquiring(&client, "k", wait(20_000));
    let (peer, request) = fake.request().await;
    acquire.abort();
    let _ = acquire.await;
    peer.reply(granted(&request, 78));
    let (_, release) = fake.request().await;
    assert_eq!(release_of(&release), ("k".to_owned(), 78));
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_polls_for_is_released_when_its_future_is_dropped() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let set = keys(&["k"]);
    let mut acquire = Box::pin(client.acquire_set(&set, wait(20_000)));
    let request = tokio::select! {
        _ = &mut acquire => panic!("nobody answered"),
        (peer, request) = fake.request() => {
            peer.reply(granted(&request, 79));
            // A second call on the same connection, answered behind the grant: when its answer is
            // here, the grant has arrived too.
            request
        }
    };
    let _ = request;
    for _ in 0..2 {
        let other = acquiring(&client, "other", wait(5_000));
        let (peer, request) = fake.request().await;
        peer.reply(Reply::TimedOut { id: request.id() });
        let _ = other.await.unwrap().unwrap_err();
    }
    drop(acquire);
    let (_, release) = fake.request().await;
    assert_eq!(release_of(&release), ("k".to_owned(), 79));
}

#[tokio::test(start_paused = true)]
async fn without_a_connection_nothing_is_sent_and_the_outcome_says_so() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, peers) = fake.client().await;
    fake.becomes(Manners::Away);
    for peer in peers {
        peer.close();
        fake.closed(peer.number).await;
    }
    let started = Instant::now();
    // The client may not have noticed yet; what it had already sent then is rightly unknown.
    loop {
        let error = acquiring(&client, "k", wait(300))
            .await
            .unwrap()
            .unwrap_err();
        match error {
            AcquireError::NotConnected => break,
            AcquireError::Indeterminate => assert!(started.elapsed() < Duration::from_secs(5)),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_made_without_a_connection_is_sent_on_the_next_one() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, peers) = fake.client().await;
    fake.becomes(Manners::Away);
    for peer in peers {
        peer.close();
        fake.closed(peer.number).await;
    }
    loop {
        let error = acquiring(&client, "k", wait(100))
            .await
            .unwrap()
            .unwrap_err();
        if error == AcquireError::NotConnected {
            break;
        }
    }
    let acquire = acquiring(&client, "later", wait(10_000));
    fake.becomes(Manners::Polite(domain(2)));
    let (peer, request) = fake.request().await;
    assert_eq!(acquired(&request), "later");
    peer.reply(granted(&request, 4));
    // The domain is that of the connection on which it was granted.
    assert_eq!(acquire.await.unwrap().unwrap().domain(), domain(2));
}

#[tokio::test(start_paused = true)]
async fn answers_in_any_order_find_their_callers() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let mut calls = Vec::new();
    let mut requests = Vec::new();
    for number in 1..=40_u64 {
        calls.push(acquiring(&client, &format!("k{number}"), wait(20_000)));
        requests.push((number, fake.request().await));
    }
    for (number, (peer, request)) in requests.into_iter().rev() {
        assert_eq!(acquired(&request), format!("k{number}"));
        peer.reply(granted(&request, number));
    }
    for (index, call) in calls.into_iter().enumerate() {
        let ticket = call.await.unwrap().unwrap();
        assert_eq!(Some(ticket.token()), FencingToken::new(index as u64 + 1));
        assert_eq!(ticket.keys(), &keys(&[&format!("k{}", index + 1)]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_may_come_byte_by_byte() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let acquire = acquiring(&client, "k", wait(20_000));
    let (peer, request) = fake.request().await;
    for byte in encoded(granted(&request, 11)) {
        peer.send(vec![byte]);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(acquire.await.unwrap().unwrap().token(), token(11));
}

#[tokio::test(start_paused = true)]
async fn after_a_long_wait_the_lease_is_asked_for_once_more() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let lease = Duration::from_secs(2);
    let acquire = acquiring(&client, "k", wait(20_000).lease(lease));
    let (peer, request) = fake.request().await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let late = Instant::now();
    peer.reply(granted(&request, 12));
    let (peer, extend) = fake.request().await;
    let arrived = Instant::now();
    match extend {
        Request::Extend {
            id,
            keys: of,
            token: by,
            lease,
        } => {
            assert_eq!((of, by, lease.get()), (keys(&["k"]), token(12), 2_000));
            peer.reply(Reply::Extended {
                id,
                remaining_ms: 2_000,
            });
        }
        other => panic!("{other:?}"),
    }
    let ticket = acquire.await.unwrap().unwrap();
    let noise = Duration::from_millis(20);
    assert!(ticket.valid_before() + noise >= (late + lease).into_std());
    assert!(ticket.valid_before() <= (arrived + lease).into_std());
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_ended_before_it_arrived_is_not_given_out() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, _peers) = fake.client().await;
    let options = wait(20_000).lease(Duration::from_millis(400));
    let acquire = acquiring(&client, "k", options);
    let (peer, request) = fake.request().await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    peer.reply(granted(&request, 12));
    let (peer, extend) = fake.request().await;
    peer.reply(Reply::NotHeld { id: extend.id() });
    // In the queue again; this time the answer is quick.
    let (peer, again) = fake.request().await;
    assert_eq!(acquired(&again), "k");
    peer.reply(granted(&again, 13));
    assert_eq!(acquire.await.unwrap().unwrap().token(), token(13));
}
