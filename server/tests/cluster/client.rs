//! A client that speaks the bytes and decides nothing.

use std::net::SocketAddr;
use std::time::Duration;

use highwater_protocol::handshake::{ACCEPTED, Challenge, HELLO_BYTES, Node, Slot};
use highwater_protocol::{
    FencingToken, Key, LeaseSeconds, Reply, ReplyDecoder, Request, RequestNumber, Secret, Shape,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::nodes::{LIMIT, TOKEN};

pub(crate) struct Client {
    stream: TcpStream,
    decoder: ReplyDecoder,
    early: Vec<Reply>,
    requests: u64,
    /// What was said of leaders, unasked.
    pub(crate) hints: Vec<Option<u8>>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr, identity: [u8; 32], slot: u8) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello).await.unwrap();
        let slot = Slot::new(slot).unwrap();
        let node = Node::Cluster { identity, slot };
        let challenge = Challenge::from_hello(&hello, node).unwrap();
        let answer = challenge.answer(&Secret::new(TOKEN).unwrap());
        stream.write_all(&answer).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), ACCEPTED);
        Self {
            stream,
            decoder: ReplyDecoder::new(),
            early: Vec::new(),
            requests: 0,
            hints: Vec::new(),
        }
    }

    async fn send(&mut self, make: impl FnOnce(RequestNumber) -> Request) -> RequestNumber {
        self.requests += 1;
        let id = RequestNumber::new(self.requests).unwrap();
        let mut bytes = Vec::new();
        make(id).encode(&mut bytes);
        self.stream.write_all(&bytes).await.unwrap();
        id
    }

    /// Asks for a lock without waiting for the answer.
    pub(crate) async fn ask(&mut self, key: &str, wait: u8, lease: u8) -> RequestNumber {
        let keys = Key::new(key).unwrap().into();
        let lease = LeaseSeconds::new(lease).unwrap();
        self.send(|id| Request::Acquire {
            id,
            keys,
            wait_seconds: wait,
            lease,
        })
        .await
    }

    pub(crate) async fn ask_release(&mut self, key: &str, token: FencingToken) -> RequestNumber {
        let keys = Key::new(key).unwrap().into();
        self.send(|id| Request::Release { id, keys, token }).await
    }

    /// The answer to a request.
    pub(crate) async fn answer(&mut self, id: RequestNumber) -> Reply {
        let answered = timeout(LIMIT, self.answer_unbounded(id)).await;
        answered.expect("an answer")
    }

    /// Whether the answer is not there within this time.
    pub(crate) async fn is_silent(&mut self, id: RequestNumber, time: Duration) -> bool {
        timeout(time, self.answer_unbounded(id)).await.is_err()
    }

    async fn answer_unbounded(&mut self, id: RequestNumber) -> Reply {
        loop {
            let found = self
                .early
                .iter()
                .position(|reply| number(reply) == Some(id));
            if let Some(place) = found {
                return self.early.remove(place);
            }
            self.read().await;
        }
    }

    /// Reads until something has been said about a leader that satisfies this.
    pub(crate) async fn hint(&mut self, wanted: impl Fn(Option<u8>) -> bool) {
        let read = async {
            while !self.hints.iter().any(|hint| wanted(*hint)) {
                self.read().await;
            }
        };
        timeout(LIMIT, read).await.expect("a word about the leader");
    }

    async fn read(&mut self) {
        let mut buffer = [0; 4096];
        let count = self.stream.read(&mut buffer).await.unwrap();
        assert_ne!(count, 0, "the server has closed");
        let mut chunk = &buffer[..count];
        while let Some(reply) = self.decoder.next(&mut chunk).unwrap() {
            match reply {
                Reply::Leader { leader } => self.hints.push(leader.map(Slot::get)),
                reply => self.early.push(reply),
            }
        }
    }

    pub(crate) async fn acquire(&mut self, key: &str, wait: u8, lease: u8) -> Reply {
        let id = self.ask(key, wait, lease).await;
        self.answer(id).await
    }

    /// A lock that must be had.
    pub(crate) async fn lock(&mut self, key: &str, wait: u8, lease: u8) -> FencingToken {
        match self.acquire(key, wait, lease).await {
            Reply::Granted { token, .. } => token,
            other => panic!("{key} was not granted: {other:?}"),
        }
    }

    pub(crate) async fn release(&mut self, key: &str, token: FencingToken) -> Reply {
        let id = self.ask_release(key, token).await;
        self.answer(id).await
    }

    /// A release that must succeed.
    pub(crate) async fn unlock(&mut self, key: &str, token: FencingToken) {
        let reply = self.release(key, token).await;
        let shape = Shape::One;
        let released = matches!(reply, Reply::Released { shape: found, .. } if found == shape);
        assert!(released, "{key} was not released: {reply:?}");
    }
}

fn number(reply: &Reply) -> Option<RequestNumber> {
    match reply {
        Reply::Granted { id, .. }
        | Reply::Released { id, .. }
        | Reply::NotHeld { id }
        | Reply::TimedOut { id }
        | Reply::Busy { id }
        | Reply::Moved { id, .. }
        | Reply::Indeterminate { id }
        | Reply::Error { id, .. } => Some(*id),
        _ => None,
    }
}
