//! Who is let in, and what stands in the way.

use std::error::Error as _;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use highwater_client::{
    AcquireError, Client, ConnectError, ConnectHint, Domain, HelloError, Secret,
};
use highwater_protocol::handshake::{HELLO_BYTES, Node};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::fake::{Fake, Manners};
use crate::{acquiring, domain, granted, released, wait};

/// The frame that tells the domain: opcode, length, id, the domain itself, and the extensions.
const DOMAIN_REPLY_BYTES: usize = 3 + 8 + 32 + 4;
const CONNECT_TIME: Duration = Duration::from_millis(500);

async fn refusal(manners: Manners) -> ConnectError {
    let fake = Fake::start(manners).await;
    let builder = fake.builder().connect_time(CONNECT_TIME);
    builder.connect().await.unwrap_err()
}

async fn unreachable(manners: Manners) -> (ConnectHint, io::Error) {
    match refusal(manners).await {
        ConnectError::Unreachable { hint, source, .. } => (hint, source),
        other => panic!("{other:?}"),
    }
}

fn secret(text: &str) -> Secret {
    Secret::new(text).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_right_secret_opens_and_a_wrong_or_missing_one_is_named() {
    let right = secret("the right client token");
    let mut fake = Fake::with_secret(Manners::Polite(domain(1)), Some(right)).await;
    fake.client().await;
    for wrong in [secret("another client token"), Secret::no_auth()] {
        let builder = fake.builder().token(wrong);
        let error = builder.connect().await.unwrap_err();
        assert!(matches!(error, ConnectError::Unauthenticated), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_no_longer_valid_ends_calls_before_their_wait() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, peers) = fake.client().await;
    fake.demands(secret("a new client token"));
    for peer in peers {
        peer.close();
        fake.closed(peer.number).await;
    }
    let started = Instant::now();
    loop {
        match acquiring(&client, "k", wait(60_000))
            .await
            .unwrap()
            .unwrap_err()
        {
            AcquireError::Unauthenticated => break,
            // Sent before the client noticed.
            AcquireError::Indeterminate => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn another_program_or_mode_is_named_at_once() {
    let started = Instant::now();
    let http = b"HTTP/1.1 400 Bad Request\r\n\r\nwrong".to_vec();
    let error = refusal(Manners::Bytes(http)).await;
    assert!(
        matches!(error, ConnectError::WrongServer(HelloError::Magic)),
        "{error:?}"
    );
    let error = refusal(Manners::Cluster).await;
    let expected = HelloError::Mode { mode: 1 };
    assert!(
        matches!(error, ConnectError::WrongServer(hello) if hello == expected),
        "{error:?}"
    );
    assert!(started.elapsed() < Duration::from_millis(900));
}

#[tokio::test]
async fn nobody_at_the_address_is_unreachable_in_time_and_the_cause_is_told() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let builder = Client::builder(address).connect_time(Duration::from_millis(500));
    let error = builder.connect().await.unwrap_err();
    let cause = error.source().unwrap().to_string();
    assert!(cause.to_lowercase().contains("refused"), "{cause}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    let ConnectError::Unreachable { hint, source, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(hint, ConnectHint::NothingListens);
    assert_eq!(source.kind(), ErrorKind::ConnectionRefused);
}

/// Where an attempt ends, and what a client then says, for every byte of the way in.
#[tokio::test(start_paused = true)]
async fn a_server_that_stalls_or_closes_after_any_byte_of_the_way_in_is_told_apart() {
    let whole = HELLO_BYTES + 1 + DOMAIN_REPLY_BYTES;
    for stalls in [true, false] {
        for bytes in 0..whole {
            if !stalls && bytes == HELLO_BYTES + 1 {
                // So does a server of the base protocol, and is used as one.
                continue;
            }
            let started = Instant::now();
            let manners = Manners::Partial {
                domain: domain(1),
                bytes,
                stalls,
            };
            let (hint, source) = unreachable(manners).await;
            let expected = match (stalls, bytes < HELLO_BYTES) {
                (true, true) => ConnectHint::SilentWithoutTls,
                (false, true) => ConnectHint::ClosedAtOnce,
                (_, false) => ConnectHint::Interrupted,
            };
            assert_eq!(hint, expected, "after {bytes} bytes");
            assert_eq!(source.kind() == ErrorKind::TimedOut, stalls, "{source}");
            assert_eq!(started.elapsed(), CONNECT_TIME, "after {bytes} bytes");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn garbage_in_the_place_of_the_domain_is_no_connection() {
    for bytes in [
        b"z".to_vec(),
        // A domain for another question.
        [&b"d\x00\x2c\x00\x00\x00\x00\x00\x00\x00\x63"[..], &[7; 36]].concat(),
        b"T\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01".to_vec(),
        b"L\x00\x01\x02".to_vec(),
    ] {
        let (hint, _) = unreachable(Manners::Strange(bytes)).await;
        assert_eq!(hint, ConnectHint::Unsuitable);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_still_starting_is_tried_again() {
    let mut fake = Fake::start(Manners::Away).await;
    let connect = tokio::spawn(fake.builder().connect());
    // Its attempts fail while it is away; whenever it comes, they succeed.
    tokio::time::sleep(Duration::from_millis(150)).await;
    fake.becomes(Manners::Polite(domain(1)));
    fake.opened().await;
    connect.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_base_server_is_used_with_the_constant_domain() {
    let mut fake = Fake::start(Manners::Base).await;
    let client = fake.builder().connect().await.unwrap();
    let acquire = acquiring(&client, "k", wait(5_000));
    let (peer, request) = fake.request().await;
    peer.reply(granted(&request, 7));
    let ticket = acquire.await.unwrap().unwrap();
    assert_eq!(ticket.domain(), Domain::from_bytes(Node::Single.identity()));
}

#[tokio::test(start_paused = true)]
async fn one_close_on_the_question_for_the_domain_does_not_make_a_base_server() {
    let mut fake = Fake::start(Manners::Stumbling(domain(3))).await;
    let client = fake.builder().connect().await.unwrap();
    // The one that stumbles, the other one, and the first one again.
    for _ in 0..3 {
        fake.opened().await;
    }
    for number in [7, 8] {
        let acquire = acquiring(&client, "k", wait(5_000));
        let (peer, request) = fake.request().await;
        peer.reply(granted(&request, number));
        assert_eq!(acquire.await.unwrap().unwrap().domain(), domain(3));
        let (peer, request) = fake.request().await;
        peer.reply(released(&request));
    }
}

#[tokio::test(start_paused = true)]
async fn closes_with_another_failure_between_them_do_not_make_a_base_server() {
    let mut fake = Fake::start(Manners::Faltering(domain(3))).await;
    let client = fake.builder().connect().await.unwrap();
    for _ in 0..4 {
        fake.opened().await;
    }
    for number in [7, 8] {
        let acquire = acquiring(&client, "k", wait(5_000));
        let (peer, request) = fake.request().await;
        peer.reply(granted(&request, number));
        assert_eq!(acquire.await.unwrap().unwrap().domain(), domain(3));
        let (peer, request) = fake.request().await;
        peer.reply(released(&request));
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_may_connect_with_any_patience() {
    let fake = Fake::start(Manners::Polite(domain(1))).await;
    let builder = fake.builder().connect_time(Duration::MAX);
    builder.connect().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_wrong_address_is_told_before_anything_is_sent() {
    for address in ["nowhere", "host:", "host:0", ":1"] {
        let error = Client::builder(address).connect().await.unwrap_err();
        assert!(
            matches!(error, ConnectError::InvalidAddress { .. }),
            "{error:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stays_away_is_asked_less_and_less_often() {
    let (sender, mut attempts) = mpsc::unbounded_channel();
    let builder = Client::builder("away:1").dialer(move || {
        sender.send(Instant::now()).unwrap();
        std::future::ready(Err::<DuplexStream, _>(ErrorKind::ConnectionRefused.into()))
    });
    let time = Duration::from_secs(60);
    let started = Instant::now();
    let error = builder.connect_time(time).connect().await.unwrap_err();
    assert_eq!(started.elapsed(), time);
    assert!(
        matches!(error, ConnectError::Unreachable { .. }),
        "{error:?}"
    );
    let mut times = Vec::new();
    while let Ok(attempt) = attempts.try_recv() {
        times.push(attempt - started);
    }
    // Both connections: 0.1, 0.2, 0.4, 0.8, 1.6, and then 3.2 s, each with jitter down to a half.
    let steady = 2 * (60_000 - 6_300) / 3_200;
    assert!(
        times.len() >= 2 * 6 + steady - 1,
        "{} attempts",
        times.len()
    );
    assert!(
        times.len() <= 2 * (7 + 60_000 / 1_600),
        "{} attempts",
        times.len()
    );
    // The first ones come quickly.
    assert!(times[5] <= Duration::from_millis(700), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lets_in_and_throws_out_is_not_asked_more_often_than_one_that_is_away() {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (_client, peers) = fake.client().await;
    for peer in peers {
        peer.close();
    }
    let started = Instant::now();
    let mut opened = 0;
    while started.elapsed() < Duration::from_secs(30) {
        fake.opened().await.close();
        opened += 1;
    }
    assert!(opened <= 2 * (7 + 30_000 / 1_600), "{opened} connections");
    // After a connection that lasted the next one comes at once again.
    let (peer, _other) = (fake.opened().await, fake.opened().await);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let lost = Instant::now();
    peer.close();
    fake.opened().await;
    assert!(
        lost.elapsed() <= Duration::from_millis(101),
        "{:?}",
        lost.elapsed()
    );
}

/// Opens connections as long as it does not panic: at the call, or when its future is polled.
fn frail(fake: &Fake, is_called: bool, panics: u32) -> (highwater_client::Builder, Arc<AtomicU32>) {
    let (door, left) = (fake.door(), Arc::new(AtomicU32::new(panics)));
    let panicking = Arc::clone(&left);
    let builder = Client::builder("fake:1").dialer(move || {
        let panics = takes_one(&panicking);
        assert!(!(panics && is_called), "on purpose");
        let door = door.clone();
        async move {
            assert!(!panics, "on purpose");
            door.knock()
        }
    });
    (builder, left)
}

#[tokio::test(start_paused = true)]
async fn a_dialer_that_panics_has_failed_and_is_tried_again() {
    for is_called in [true, false] {
        let mut fake = Fake::start(Manners::Full(domain(1))).await;
        let (builder, left) = frail(&fake, is_called, 6);
        let client = builder.connect().await.unwrap();
        let peers = [fake.opened().await, fake.opened().await];
        assert_eq!(client.stats().connects_failed, 6);
        // Later too.
        left.store(5, Ordering::SeqCst);
        for peer in peers {
            peer.close();
            fake.closed(peer.number).await;
        }
        fake.opened().await;
        fake.opened().await;
        assert_eq!(client.stats().connects_failed, 11);
        let acquire = acquiring(&client, "k", wait(5_000));
        let (peer, request) = fake.request().await;
        peer.reply(granted(&request, 1));
        assert!(acquire.await.unwrap().is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_dialer_that_always_panics_is_named_in_time() {
    let fake = Fake::start(Manners::Full(domain(1))).await;
    let (builder, _) = frail(&fake, false, u32::MAX);
    let started = Instant::now();
    let error = builder.connect_time(CONNECT_TIME).connect().await;
    let ConnectError::Unreachable { hint, source, .. } = error.unwrap_err() else {
        panic!("it is not there");
    };
    assert_eq!(hint, ConnectHint::Panicked);
    assert!(source.to_string().contains("on purpose"), "{source}");
    assert_eq!(started.elapsed(), CONNECT_TIME);
}

/// Panics when it is read from, or dropped, once it is told to.
struct Frail {
    inner: DuplexStream,
    reads: Arc<AtomicU32>,
    writes: Arc<AtomicU32>,
    drops: Arc<AtomicU32>,
}

fn takes_one(left: &AtomicU32) -> bool {
    let took = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
        left.checked_sub(1)
    });
    took.is_ok()
}

impl Drop for Frail {
    fn drop(&mut self) {
        assert!(!takes_one(&self.drops), "on purpose");
    }
}

impl AsyncRead for Frail {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        assert!(read.is_pending() || !takes_one(&self.reads), "on purpose");
        read
    }
}

impl AsyncWrite for Frail {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        assert!(
            written.is_pending() || !takes_one(&self.writes),
            "on purpose"
        );
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_panics_ends_its_connection_and_another_one_is_opened() {
    for (on_read, on_write, on_drop) in [(1, 0, 0), (0, 1, 0), (0, 0, 1)] {
        let mut fake = Fake::start(Manners::Full(domain(1))).await;
        let reads = Arc::new(AtomicU32::new(0));
        let (writes, drops) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let dialer = {
            let (door, reads) = (fake.door(), Arc::clone(&reads));
            let (writes, drops) = (Arc::clone(&writes), Arc::clone(&drops));
            move || {
                std::future::ready(door.knock().map(|inner| Frail {
                    inner,
                    reads: Arc::clone(&reads),
                    writes: Arc::clone(&writes),
                    drops: Arc::clone(&drops),
                }))
            }
        };
        let builder = Client::builder("fake:1").dialer(dialer);
        let client = builder.connect().await.unwrap();
        let _peers = [fake.opened().await, fake.opened().await];
        let acquire = acquiring(&client, "held", wait(5_000));
        let (peer, request) = fake.request().await;
        peer.reply(granted(&request, 1));
        let ticket = acquire.await.unwrap().unwrap();
        writes.store(on_write, Ordering::SeqCst);
        let waiting = acquiring(&client, "k", wait(60_000));
        let (peer, _) = fake.request().await;
        reads.store(on_read, Ordering::SeqCst);
        drops.store(on_drop, Ordering::SeqCst);
        if on_read == 1 {
            peer.reply(highwater_protocol::Reply::Leader { leader: None });
        } else if on_drop == 1 {
            peer.close();
        }
        // It was sent, also where the stream did not say so, and nobody will hear an answer.
        let outcome = waiting.await.unwrap();
        assert_eq!(outcome.unwrap_err(), AcquireError::Indeterminate);
        fake.opened().await;
        let to_come = [&reads, &writes, &drops].map(|panics| panics.load(Ordering::SeqCst));
        assert_eq!(to_come, [0; 3], "it has panicked");
        assert_eq!(client.stats().disconnected, 1);
        assert!(ticket.is_valid());
        let acquire = acquiring(&client, "other", wait(5_000));
        let (peer, request) = fake.request().await;
        peer.reply(granted(&request, 2));
        assert!(acquire.await.unwrap().is_ok());
    }
}
