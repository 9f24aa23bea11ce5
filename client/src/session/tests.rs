//! One connection over a pipe in memory, where time runs as fast as the test likes.

use std::time::Duration;

use highwater_protocol::{
    Extensions, FencingToken, Incoming, Key, KeySet, RequestDecoder, Secret, Shape,
};
use tokio::io::DuplexStream;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::*;
use crate::AcquireOptions;
use crate::call::{Ask, Ended, Waiting};
use crate::limits::GRACE;
use crate::pool::Pool;
use crate::release::Order;
use crate::setup::Target;

/// Those of a server that counts in seconds.
const SOME: Option<Extensions> = Some(Extensions::EXTEND.and(Extensions::CANCEL));

struct Line {
    server: DuplexStream,
    ends: Arc<pool::Session>,
    shared: Arc<Shared>,
    session: JoinHandle<End>,
    releases: mpsc::Receiver<Order>,
}

/// A running session whose pipe holds so many bytes.
fn line(pipe: usize, extensions: Option<Extensions>) -> Line {
    let (client, server) = tokio::io::duplex(pipe);
    line_over(Box::new(client), server, extensions)
}

fn line_over(
    stream: Box<dyn Stream>,
    server: DuplexStream,
    extensions: Option<Extensions>,
) -> Line {
    let target = Target {
        address: String::new(),
        node: highwater_protocol::handshake::Node::Single,
        secret: Secret::no_auth(),
        tls: None,
        dial: None,
    };
    let (orders, releases) = mpsc::channel(16);
    let shared = Arc::new(Shared::new(vec![target], Pool::new(1), orders));
    let opened = Opened {
        stream,
        decoder: ReplyDecoder::new(),
        domain: Domain::from_bytes([1; 32]),
        extensions,
    };
    let (session, ends) = Session::new(Arc::clone(&shared), 0, opened);
    Line {
        server,
        ends: Arc::new(ends),
        shared,
        session: tokio::spawn(session.run()),
        releases,
    }
}

impl Line {
    async fn acquire(&self, wait: Duration) -> Waiting {
        let ask = Ask::Acquire {
            keys: KeySet::from(Key::new("k").unwrap()),
            slots: None,
            until: Some(system::now() + wait),
            terms: AcquireOptions::new().check().unwrap(),
        };
        let session = Some(Arc::clone(&self.ends));
        let (call, waiting) = Waiting::new(self.shared.next_id(), ask, session);
        self.ends.acquires.send(call).await.unwrap();
        waiting
    }

    async fn request(&mut self) -> Request {
        let mut decoder = RequestDecoder::new();
        loop {
            let mut byte = [0];
            self.server.read_exact(&mut byte).await.unwrap();
            match decoder.next(&mut &byte[..]).unwrap() {
                Some(Incoming::Valid(request)) => return request,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
    }

    async fn reply(&mut self, reply: Reply) {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        self.server.write_all(&bytes).await.unwrap();
    }
}

/// The answer, however long it takes.
async fn patient(waiting: Waiting) -> Ended {
    waiting.finish(std::future::pending(), system::now).await
}

#[tokio::test(start_paused = true)]
async fn a_request_without_answer_ends_the_connection_after_its_wait_and_the_grace() {
    let mut line = line(4_096, None);
    let started = system::now();
    let waiting = line.acquire(Duration::from_secs(7)).await;
    line.request().await;
    assert!(matches!(patient(waiting).await, Ended::Lost));
    assert_eq!(started.elapsed().as_secs(), 7 + GRACE.as_secs());
    assert!(matches!(line.session.await.unwrap(), End::NoAnswer));
}

#[tokio::test(start_paused = true)]
async fn an_answered_request_ends_nothing_later() {
    let mut line = line(4_096, None);
    let waiting = line.acquire(Duration::from_secs(7)).await;
    let id = line.request().await.id();
    line.reply(Reply::TimedOut { id }).await;
    assert!(matches!(patient(waiting).await, Ended::Replied(_)));
    sleep(Duration::from_secs(600)).await;
    assert!(!line.session.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_stops_in_the_middle_ends_the_connection() {
    let mut line = line(4_096, SOME);
    let waiting = line.acquire(Duration::from_secs(200)).await;
    let id = line.request().await.id();
    let started = system::now();
    let mut bytes = Vec::new();
    Reply::TimedOut { id }.encode(&mut bytes);
    // Slow is no reason.
    for byte in &bytes[..10] {
        sleep(STALL_TIME - Duration::from_millis(1)).await;
        line.server.write_all(&[*byte]).await.unwrap();
    }
    assert!(matches!(patient(waiting).await, Ended::Lost));
    assert!(matches!(line.session.await.unwrap(), End::ReadStalled));
    assert_eq!(started.elapsed().as_secs(), 11 * 3 - 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_takes_nothing_ends_the_connection_and_what_was_not_written_is_certain() {
    // Room for one request and the beginning of another: 14 bytes each.
    let line = line(20, SOME);
    let mut calls = Vec::new();
    for _ in 0..4 {
        calls.push(line.acquire(Duration::from_secs(200)).await);
    }
    let started = system::now();
    let mut outcomes = Vec::new();
    for call in calls {
        outcomes.push(match patient(call).await {
            Ended::Lost => "lost",
            Ended::NeverSent => "never sent",
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(outcomes, ["lost", "lost", "never sent", "never sent"]);
    assert_eq!(started.elapsed(), STALL_TIME);
    assert!(matches!(line.session.await.unwrap(), End::WriteStalled));
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_asked_and_must_answer() {
    let mut line = line(4_096, SOME);
    let started = system::now();
    for round in 1..=3 {
        let Request::Domain { id } = line.request().await else {
            panic!("not the question");
        };
        assert_eq!(started.elapsed(), SILENCE * round);
        let domain = Domain::from_bytes([1; 32]);
        line.reply(Reply::Domain {
            id,
            domain,
            extensions: Extensions::ALL,
        })
        .await;
    }
    line.request().await;
    assert!(matches!(line.session.await.unwrap(), End::NoAnswer));
    assert_eq!(started.elapsed(), SILENCE * 4 + ANSWER_TIME);
}

#[tokio::test(start_paused = true)]
async fn another_domain_on_an_open_connection_ends_it() {
    let mut line = line(4_096, SOME);
    let id = line.request().await.id();
    let domain = Domain::from_bytes([2; 32]);
    line.reply(Reply::Domain {
        id,
        domain,
        extensions: Extensions::ALL,
    })
    .await;
    assert!(matches!(line.session.await.unwrap(), End::Misfit));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_holds_back_what_it_takes_is_flushed() {
    let (client, server) = tokio::io::duplex(4_096);
    let holding_back = tokio::io::BufWriter::new(client);
    let mut line = line_over(Box::new(holding_back), server, SOME);
    let started = system::now();
    let waiting = line.acquire(Duration::from_secs(5)).await;
    let id = line.request().await.id();
    assert_eq!(started.elapsed(), Duration::ZERO);
    line.reply(Reply::TimedOut { id }).await;
    assert!(matches!(patient(waiting).await, Ended::Replied(_)));
}

#[tokio::test(start_paused = true)]
async fn a_base_server_may_be_silent_for_ever() {
    let line = line(4_096, None);
    sleep(Duration::from_secs(3_600)).await;
    assert!(!line.session.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_call_withdrawn_before_it_was_taken_up_is_never_written() {
    let mut line = line(4_096, SOME);
    // The session runs only at an await: both are in its queue before it sees one.
    let gone = line.acquire(Duration::from_secs(60)).await;
    drop(gone);
    let stays = line.acquire(Duration::from_secs(60)).await;
    let request = line.request().await;
    let (id, token) = (request.id(), FencingToken::MIN);
    let shape = Shape::One;
    line.reply(Reply::Granted { id, shape, token }).await;
    let Ended::Granted(held) = patient(stays).await else {
        panic!("not granted");
    };
    assert_eq!(held.grant.token, token);
    // And its release is ordered once, when it is dropped.
    assert!(line.releases.try_recv().is_err());
    drop(held);
    assert_eq!(line.releases.try_recv().unwrap().token, token);
    assert!(line.releases.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_over_before_the_sending_is_not_sent() {
    let mut line = line(4_096, SOME);
    let late = line.acquire(Duration::ZERO).await;
    assert!(matches!(patient(late).await, Ended::NeverSent));
    // The next bytes are the question that follows the silence.
    assert!(matches!(line.request().await, Request::Domain { .. }));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_client_says_goodbye() {
    let mut line = line(4_096, SOME);
    line.shared.advance(Phase::Closed);
    assert!(matches!(line.session.await.unwrap(), End::Closed));
    let mut rest = Vec::new();
    line.server.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"");
}
