//! A client of the lock port, as small as it can be.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use highwater_protocol::handshake::{Challenge, HELLO_BYTES, Node};
use highwater_protocol::{
    Key, KeySet, LeaseMillis, LeaseSeconds, Reply, ReplyDecoder, Request, RequestNumber, Secret,
    SpanMillis,
};
use highwater_server::{Admin, FencingToken, Limits, Server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// Longer than anything here takes; reaching it is a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Client {
    stream: TcpStream,
    decoder: ReplyDecoder,
    rest: Vec<u8>,
    next_id: u64,
}

impl Client {
    pub(crate) async fn open(server: &Server) -> Self {
        let opened = Self::open_with(server, &Secret::no_auth()).await;
        opened.expect("it is let in")
    }

    /// With this client token, or `None` if it is refused.
    pub(crate) async fn open_with(server: &Server, secret: &Secret) -> Option<Self> {
        let mut stream = within(TcpStream::connect(server.local_addr()))
            .await
            .unwrap();
        stream.set_nodelay(true).unwrap();
        let mut hello = [0; HELLO_BYTES];
        within(stream.read_exact(&mut hello)).await.unwrap();
        let challenge = Challenge::from_hello(&hello, Node::Single).unwrap();
        let answer = challenge.answer(secret);
        within(stream.write_all(&answer)).await.unwrap();
        let verdict = within(stream.read_u8()).await.unwrap();
        (verdict == 1).then(|| Self {
            stream,
            decoder: ReplyDecoder::new(),
            rest: Vec::new(),
            next_id: 1,
        })
    }

    pub(crate) async fn send(&mut self, request: &Request) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.send_bytes(&bytes).await;
    }

    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        within(self.stream.write_all(bytes)).await.unwrap();
    }

    pub(crate) async fn reply(&mut self) -> Reply {
        loop {
            let mut chunk = &self.rest[..];
            let reply = self.decoder.next(&mut chunk).unwrap();
            let left = chunk.len();
            self.rest.drain(..self.rest.len() - left);
            if let Some(reply) = reply {
                return reply;
            }
            let mut buffer = [0; 8 * 1024];
            let count = within(self.stream.read(&mut buffer)).await.unwrap();
            assert_ne!(count, 0, "the connection ended");
            self.rest.extend_from_slice(&buffer[..count]);
        }
    }

    pub(crate) async fn ask(&mut self, request: &Request) -> Reply {
        self.send(request).await;
        self.reply().await
    }

    /// An acquire of this connection, for keys separated by commas.
    pub(crate) fn acquire(&mut self, names: &str, wait_seconds: u8, lease: u8) -> Request {
        Request::Acquire {
            id: self.id(),
            keys: keys(names),
            wait_seconds,
            lease: LeaseSeconds::new(lease).unwrap(),
        }
    }

    pub(crate) fn id(&mut self) -> RequestNumber {
        let id = RequestNumber::new(self.next_id).unwrap();
        self.next_id += 1;
        id
    }

    /// Takes free keys.
    pub(crate) async fn take(&mut self, names: &str) -> FencingToken {
        let acquire = self.acquire(names, 0, 60);
        granted(&self.ask(&acquire).await)
    }

    /// Asks for keys that are held, and stays in the queue.
    pub(crate) async fn queue(&mut self, server: &Server, names: &str) {
        let before = server.counts().waiters;
        let acquire = self.acquire(names, 250, 60);
        self.send(&acquire).await;
        eventually(|| server.counts().waiters == before + 1).await;
    }

    /// Takes free keys for longer than any test runs.
    pub(crate) async fn take_for_long(&mut self, names: &str) -> FencingToken {
        let token = self.take(names).await;
        let (id, keys) = (self.id(), keys(names));
        let lease = LeaseMillis::new(3_600_000).unwrap();
        let extend = Request::Extend {
            id,
            keys,
            token,
            lease,
        };
        let extended = self.ask(&extend).await;
        assert!(matches!(extended, Reply::Extended { .. }), "{extended:?}");
        token
    }

    /// Takes a free slot.
    pub(crate) async fn take_slot(&mut self, name: &str, slots: u32) -> FencingToken {
        let acquire = Request::AcquireSlot {
            id: self.id(),
            name: Key::new(name).unwrap(),
            slots: NonZeroU32::new(slots).unwrap(),
            wait: SpanMillis::new(0).unwrap(),
            lease: LeaseMillis::new(60_000).unwrap(),
        };
        match self.ask(&acquire).await {
            Reply::GrantedSlot { token, .. } => token,
            other => panic!("not a slot: {other:?}"),
        }
    }

    pub(crate) async fn release(&mut self, names: &str, token: FencingToken) -> Reply {
        let (id, keys) = (self.id(), keys(names));
        self.ask(&Request::Release { id, keys, token }).await
    }
}

pub(crate) fn keys(names: &str) -> KeySet {
    KeySet::new(names.split(',').map(|name| Key::new(name).unwrap())).unwrap()
}

#[track_caller]
pub(crate) fn granted(reply: &Reply) -> FencingToken {
    match reply {
        Reply::Granted { token, .. } => *token,
        other => panic!("not a grant: {other:?}"),
    }
}

pub(crate) fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A server with an admin listener that this test alone uses.
pub(crate) async fn server() -> Server {
    server_with(|_| {}, |admin| admin).await
}

pub(crate) async fn server_with(
    change: impl FnOnce(&mut Limits),
    admin: impl FnOnce(Admin) -> Admin,
) -> Server {
    let mut limits = Limits::default();
    change(&mut limits);
    let builder = Server::builder().in_memory().listen(any_port()).no_auth();
    let builder = builder.limits(limits).admin(admin(Admin::on(any_port())));
    builder.start().await.unwrap()
}

/// Waits for something that must come.
#[track_caller]
pub(crate) fn within<T>(future: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        match timeout(PATIENCE, future).await {
            Ok(value) => value,
            Err(_) => panic!("nothing within {PATIENCE:?} at {caller}"),
        }
    }
}

/// Asks again and again until the condition holds.
pub(crate) async fn eventually(condition: impl Fn() -> bool) {
    until(async || condition()).await;
}

/// As [`eventually`], for a condition that has to be asked for.
pub(crate) async fn until(mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}");
        sleep(Duration::from_millis(2)).await;
    }
}
