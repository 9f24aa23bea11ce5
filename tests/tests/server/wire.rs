//! A client of bare bytes: what it sends is written by hand, what it reads is not interpreted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use highwater_protocol::Secret;
use highwater_protocol::handshake::{Challenge, Node};
use highwater_server::{Admin, Builder, Limits, Server};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

/// Longer than anything here takes; reaching it is a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Any byte stream, plain or encrypted.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

pub(crate) struct Wire {
    pub(crate) stream: Box<dyn Stream>,
}

/// A whole reply: its opcode, its id, and the rest of its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) opcode: char,
    pub(crate) id: u64,
    pub(crate) rest: Vec<u8>,
}

impl Answer {
    pub(crate) fn new(opcode: char, id: u64, rest: &[u8]) -> Self {
        Self {
            opcode,
            id,
            rest: rest.to_vec(),
        }
    }

    /// The token of a grant for this request.
    #[track_caller]
    pub(crate) fn token(&self, opcode: char, id: u64) -> u64 {
        assert_eq!((self.opcode, self.id), (opcode, id), "not this grant");
        let token = u64::from_be_bytes(self.rest.as_slice().try_into().expect("8 bytes"));
        assert_ne!(token, 0, "zero is not a token");
        token
    }
}

impl Wire {
    /// A plain connection to a server without authentication, past the challenge.
    pub(crate) async fn open(server: &Server) -> Self {
        Self::open_at(server.local_addr()).await
    }

    /// The same for a server that may be in another process.
    pub(crate) async fn open_at(address: SocketAddr) -> Self {
        let mut wire = Self::dial(address).await;
        assert_eq!(wire.log_in(&Secret::no_auth()).await, Some(1));
        wire
    }

    /// A plain connection of which nothing is read yet.
    pub(crate) async fn dial(address: SocketAddr) -> Self {
        let stream = within(TcpStream::connect(address)).await.expect("connects");
        stream.set_nodelay(true).expect("a socket option");
        Self {
            stream: Box::new(stream),
        }
    }

    /// As [`Wire::open`], through TLS if `tls` is given, with a receive buffer so small that
    /// replies soon wait at the server.
    pub(crate) async fn open_narrow(server: &Server, tls: Option<TlsConnector>) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4_096).expect("a socket option");
        let tcp = within(socket.connect(server.local_addr())).await;
        let tcp = tcp.expect("connects");
        let stream: Box<dyn Stream> = match tls {
            None => Box::new(tcp),
            Some(connector) => Box::new(encrypt(&connector, tcp).await),
        };
        let mut wire = Self { stream };
        assert_eq!(wire.log_in(&Secret::no_auth()).await, Some(1));
        wire
    }

    /// Answers the challenge and gives the verdict, or `None` if there was none.
    pub(crate) async fn log_in(&mut self, secret: &Secret) -> Option<u8> {
        let hello = self.read::<28>().await?;
        let challenge = Challenge::from_hello(&hello, Node::Single).expect("a hello");
        self.send(&challenge.answer(secret)).await;
        Some(self.read::<1>().await?[0])
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        within(self.stream.write_all(bytes)).await.expect("writes");
        within(self.stream.flush()).await.expect("flushes");
    }

    /// Exactly so many bytes, or `None` if the connection ends.
    pub(crate) async fn read<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        match within(self.stream.read_exact(&mut bytes)).await {
            Ok(_) => Some(bytes),
            Err(_) => None,
        }
    }

    pub(crate) async fn answer(&mut self) -> Answer {
        self.next_answer().await.expect("an answer, not the end")
    }

    /// The next answer, or `None` if the connection ends without one.
    pub(crate) async fn answer_or_end(&mut self) -> Option<Answer> {
        self.next_answer().await
    }

    async fn next_answer(&mut self) -> Option<Answer> {
        let [opcode, high, low] = self.read::<3>().await?;
        let mut body = vec![0; usize::from(u16::from_be_bytes([high, low]))];
        within(self.stream.read_exact(&mut body)).await.ok()?;
        assert!(body.len() >= 8, "every answer carries an id");
        let id = u64::from_be_bytes(body[..8].try_into().expect("8 bytes"));
        Some(Answer::new(char::from(opcode), id, &body[8..]))
    }

    pub(crate) async fn ask(&mut self, request: &[u8]) -> Answer {
        self.send(request).await;
        self.answer().await
    }

    /// Sends the request and expects the whole reply.
    #[track_caller]
    pub(crate) fn expect<'a>(
        &'a mut self,
        request: &[u8],
        expected: Answer,
    ) -> impl Future<Output = ()> + 'a {
        let caller = std::panic::Location::caller();
        let request = request.to_vec();
        async move {
            let answer = self.ask(&request).await;
            assert_eq!(answer, expected, "asked at {caller}");
        }
    }

    /// Takes a free key and gives its token.
    pub(crate) async fn take(&mut self, id: u64, key: &str) -> u64 {
        self.ask(&acquire(id, 0, 60, key)).await.token('A', id)
    }

    /// Gives all answers up to the end of the connection.
    pub(crate) async fn answers_until_end(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        while let Some(answer) = self.next_answer().await {
            answers.push(answer);
        }
        answers
    }

    /// The server closes without saying anything more.
    pub(crate) async fn expect_end(&mut self) {
        let answers = self.answers_until_end().await;
        assert_eq!(answers, [], "the connection had to end");
    }
}

pub(crate) async fn encrypt(
    connector: &TlsConnector,
    tcp: TcpStream,
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let name = ServerName::try_from("localhost").expect("a name");
    within(connector.connect(name, tcp)).await.expect("TLS")
}

pub(crate) fn frame(opcode: u8, body: Vec<u8>) -> Vec<u8> {
    let length = u16::try_from(body.len()).expect("a short body");
    let mut frame = vec![opcode];
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend(body);
    frame
}

fn put_keys(body: &mut Vec<u8>, keys: &[&str]) {
    body.push(u8::try_from(keys.len()).expect("few keys"));
    for key in keys {
        body.push(u8::try_from(key.len()).expect("a short key"));
        body.extend_from_slice(key.as_bytes());
    }
}

pub(crate) fn acquire(id: u64, wait: u8, lease: u8, key: &str) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    body.extend([wait, lease]);
    body.extend_from_slice(key.as_bytes());
    frame(b'A', body)
}

pub(crate) fn acquire_set(id: u64, wait: u8, lease: u8, keys: &[&str]) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    body.extend([wait, lease]);
    put_keys(&mut body, keys);
    frame(b'S', body)
}

pub(crate) fn release(id: u64, token: u64, key: &str) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    body.extend(token.to_be_bytes());
    body.extend_from_slice(key.as_bytes());
    frame(b'R', body)
}

pub(crate) fn release_set(id: u64, token: u64, keys: &[&str]) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    body.extend(token.to_be_bytes());
    put_keys(&mut body, keys);
    frame(b'G', body)
}

pub(crate) fn extend(id: u64, token: u64, lease_ms: u32, keys: &[&str]) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    body.extend(token.to_be_bytes());
    body.extend(lease_ms.to_be_bytes());
    put_keys(&mut body, keys);
    frame(b'x', body)
}

pub(crate) fn cancel(id: u64, acquire: u64) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    body.extend(acquire.to_be_bytes());
    frame(b'c', body)
}

/// `a`: acquire, times in milliseconds.
pub(crate) fn acquire_timed(id: u64, wait_ms: u32, lease_ms: u32, keys: &[&str]) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    body.extend(wait_ms.to_be_bytes());
    body.extend(lease_ms.to_be_bytes());
    put_keys(&mut body, keys);
    frame(b'a', body)
}

/// `n`: acquire one of N slots, times in milliseconds.
pub(crate) fn acquire_slot(
    id: u64,
    wait_ms: u32,
    lease_ms: u32,
    slots: u32,
    name: &str,
) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    body.extend(wait_ms.to_be_bytes());
    body.extend(lease_ms.to_be_bytes());
    body.extend(slots.to_be_bytes());
    body.extend_from_slice(name.as_bytes());
    frame(b'n', body)
}

/// `h`: release with a minimum hold.
pub(crate) fn retain(id: u64, token: u64, minimum_ms: u32, keys: &[&str]) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    body.extend(token.to_be_bytes());
    body.extend(minimum_ms.to_be_bytes());
    put_keys(&mut body, keys);
    frame(b'h', body)
}

/// `q`: what holds a key.
pub(crate) fn query(id: u64, from_slot: u32, key: &str) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    body.extend(from_slot.to_be_bytes());
    body.extend_from_slice(key.as_bytes());
    frame(b'q', body)
}

pub(crate) fn domain(id: u64) -> Vec<u8> {
    frame(b'd', id.to_be_bytes().to_vec())
}

pub(crate) fn released(id: u64) -> Answer {
    Answer::new('R', id, &[])
}

pub(crate) fn timed_out(id: u64) -> Answer {
    Answer::new('T', id, &[])
}

pub(crate) fn not_held(id: u64) -> Answer {
    Answer::new('N', id, &[])
}

pub(crate) fn error(id: u64, code: u8) -> Answer {
    Answer::new('E', id, &[code])
}

/// What a `q` answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) state: u8,
    pub(crate) slot: u32,
    pub(crate) token: u64,
    pub(crate) remaining_ms: u32,
    pub(crate) waiters: u32,
    pub(crate) slots: u32,
    pub(crate) taken: u32,
}

impl Answer {
    /// The answer to a query.
    #[track_caller]
    pub(crate) fn status(&self, id: u64) -> Status {
        assert_eq!((self.opcode, self.id), ('q', id), "not this status");
        assert_eq!(self.rest.len(), 29);
        let number = |at: usize| u32::from_be_bytes(self.rest[at..at + 4].try_into().expect("4"));
        Status {
            state: self.rest[0],
            slot: number(1),
            token: u64::from_be_bytes(self.rest[5..13].try_into().expect("8 bytes")),
            remaining_ms: number(13),
            waiters: number(17),
            slots: number(21),
            taken: number(25),
        }
    }

    /// The token and the waited milliseconds of a grant in milliseconds, and the slot if it is one.
    #[track_caller]
    pub(crate) fn timed(&self, opcode: char, id: u64) -> (u64, u32, Option<u32>) {
        assert_eq!((self.opcode, self.id), (opcode, id), "not this grant");
        let number = |at: usize| u32::from_be_bytes(self.rest[at..at + 4].try_into().expect("4"));
        let token = u64::from_be_bytes(self.rest[..8].try_into().expect("8 bytes"));
        assert_ne!(token, 0, "zero is not a token");
        let slot = match opcode {
            'a' => None,
            _ => Some(number(12)),
        };
        assert_eq!(self.rest.len(), if slot.is_some() { 16 } else { 12 });
        (token, number(8), slot)
    }
}

/// A builder for a server that this test alone uses.
pub(crate) fn builder() -> Builder {
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    Server::builder().in_memory().listen(any_port)
}

pub(crate) async fn server() -> Server {
    server_with(|_| {}).await
}

pub(crate) async fn server_with(change: impl FnOnce(&mut Limits)) -> Server {
    let mut limits = Limits::default();
    change(&mut limits);
    let started = builder().no_auth().limits(limits).start().await;
    started.expect("starts")
}

/// As [`server_with`], with an admin listener, for [`counter`].
pub(crate) async fn counted_server_with(change: impl FnOnce(&mut Limits)) -> Server {
    let mut limits = Limits::default();
    change(&mut limits);
    let admin = Admin::on(SocketAddr::from(([127, 0, 0, 1], 0)));
    let started = builder()
        .no_auth()
        .limits(limits)
        .admin(admin)
        .start()
        .await;
    started.expect("starts")
}

/// What the server counts under a name with its label, such as `busy_total{reason="keys"}`.
pub(crate) async fn counter(server: &Server, name: &str) -> u64 {
    let address = server.admin_addr().expect("an admin listener");
    let mut stream = within(TcpStream::connect(address)).await.expect("connects");
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    within(stream.write_all(request)).await.expect("writes");
    let mut page = String::new();
    within(stream.read_to_string(&mut page))
        .await
        .expect("a page");
    let wanted = format!("highwater_{name} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&wanted));
    let value = value.unwrap_or_else(|| panic!("there is no {wanted}in {page}"));
    value.parse().expect("a number")
}

/// Waits until the server has counted so many.
pub(crate) async fn eventually_counted(server: &Server, name: &str, count: u64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let counted = counter(server, name).await;
        if counted == count {
            return;
        }
        let late = Instant::now() >= deadline;
        assert!(!late && counted < count, "{name} is {counted}, not {count}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A certificate for `localhost`: the server's configuration, and a client that trusts it.
pub(crate) fn tls() -> (Arc<rustls::ServerConfig>, TlsConnector) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("makes");
    let folder = tempfile::tempdir().expect("a folder");
    let certificate = folder.path().join("certificate.pem");
    let key = folder.path().join("key.pem");
    std::fs::write(&certificate, made.cert.pem()).expect("writes");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("writes");
    let server = highwater_server::tls_from_pem_files(&certificate, &key).expect("an identity");

    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (server, TlsConnector::from(Arc::new(client)))
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
#[track_caller]
pub(crate) fn eventually(condition: impl Fn() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let deadline = Instant::now() + PATIENCE;
        while !condition() {
            assert!(
                Instant::now() < deadline,
                "not within {PATIENCE:?} at {caller}"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
