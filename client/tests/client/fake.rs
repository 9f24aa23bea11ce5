//! A lock server that does what a test says, right or wrong.
//!
//! It is reached through memory, so that a test with paused time is the same every time. It lets
//! clients in by itself, as its [`Manners`] say, and tells the test of every request; the
//! test decides what is answered and when.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater_client::{Builder, Client, Domain, Secret};
use highwater_protocol::handshake::{
    ACCEPTED, ANSWER_BYTES, Challenge, HELLO_BYTES, Node, Nonce, REJECTED, Slot,
};
use highwater_protocol::{Extensions, Incoming, Reply, Request, RequestDecoder, RequestNumber};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex,
};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long a test waits for something that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// What a connection holds in each direction.
const PIPE: usize = 64 * 1024;

/// What it does with a new connection.
#[derive(Clone, Debug)]
pub(crate) enum Manners {
    /// Lets in who knows the secret, and answers the question for the domain. Can extend and
    /// cancel, and counts in seconds.
    Polite(Domain),
    /// The same with everything that there is.
    Full(Domain),
    /// Lets in, and closes on the question for the domain, like a server of the base protocol.
    Base,
    /// Like a base server for the very first connection, and polite after that.
    Stumbling(Domain),
    /// Polite after six connections, two of each client that has two: like a base server, away,
    /// and once more like a base server.
    Faltering(Domain),
    /// Closes at once.
    Away,
    /// Polite for so many bytes of its own, and then says nothing, or closes.
    Partial {
        domain: Domain,
        bytes: usize,
        stalls: bool,
    },
    /// Sends these bytes instead of a hello.
    Bytes(Vec<u8>),
    /// Says hello as a member of a cluster.
    Cluster,
    /// A node in this slot of the cluster with this identity, with everything that there is.
    Node(Domain, u8),
    /// Lets in and answers the question for the domain with these bytes.
    Strange(Vec<u8>),
}

pub(crate) struct Fake {
    door: Door,
    pub(crate) secret: Option<Secret>,
    manners: Arc<Mutex<(Manners, Option<Secret>)>>,
    events: mpsc::UnboundedReceiver<Event>,
    gone: BTreeSet<usize>,
}

/// Where connections begin.
#[derive(Clone)]
pub(crate) struct Door(mpsc::UnboundedSender<DuplexStream>);

impl Door {
    /// A new connection, as the client sees it.
    pub(crate) fn knock(&self) -> io::Result<DuplexStream> {
        let (client, server) = duplex(PIPE);
        let sent = self.0.send(server);
        sent.map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok(client)
    }
}

/// The server's end of the bytes.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// The server's end of one connection.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) number: usize,
    orders: mpsc::UnboundedSender<Option<Vec<u8>>>,
}

pub(crate) enum Event {
    Opened(Peer),
    Request(Peer, Request),
    Closed(usize),
}

impl Fake {
    pub(crate) async fn start(manners: Manners) -> Self {
        Self::with_secret(manners, None).await
    }

    pub(crate) async fn with_secret(manners: Manners, secret: Option<Secret>) -> Self {
        let (door, mut arrivals) = mpsc::unbounded_channel();
        let manners = Arc::new(Mutex::new((manners, secret.clone())));
        let (sender, events) = mpsc::unbounded_channel();
        let shared = Arc::clone(&manners);
        tokio::spawn(async move {
            for number in 0.. {
                let Some(stream) = arrivals.recv().await else {
                    return;
                };
                let manners = shared.lock().unwrap().clone();
                let events = sender.clone();
                tokio::spawn(async move {
                    if serve(stream, manners, number, &events).await.is_some() {
                        let _ = events.send(Event::Closed(number));
                    }
                });
            }
        });
        Self {
            door: Door(door),
            secret,
            manners,
            events,
            gone: BTreeSet::new(),
        }
    }

    /// Changes what happens to connections from now on.
    pub(crate) fn becomes(&self, manners: Manners) {
        self.manners.lock().unwrap().0 = manners;
    }

    /// Lets in only those who know this secret, from now on.
    pub(crate) fn demands(&self, secret: Secret) {
        self.manners.lock().unwrap().1 = Some(secret);
    }

    pub(crate) fn door(&self) -> Door {
        self.door.clone()
    }

    /// A builder for a client of this server.
    pub(crate) fn builder(&self) -> Builder {
        let door = self.door();
        let builder = Client::builder("fake:1").dialer(move || std::future::ready(door.knock()));
        match &self.secret {
            Some(secret) => builder.token(secret.clone()),
            None => builder,
        }
    }

    /// A client with both its connections open.
    pub(crate) async fn client(&mut self) -> (Client, [Peer; 2]) {
        let client = self.builder().connect().await.unwrap();
        (client, [self.opened().await, self.opened().await])
    }

    /// The next thing that happens, however long it takes; `None` is the end.
    pub(crate) async fn any_event(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    async fn event(&mut self) -> Event {
        let event = timeout(PATIENCE, self.events.recv()).await;
        let event = event.expect("nothing happened").unwrap();
        if let Event::Closed(number) = event {
            self.gone.insert(number);
        }
        event
    }

    /// The next new connection; requests before it are an error of the test.
    pub(crate) async fn opened(&mut self) -> Peer {
        loop {
            match self.event().await {
                Event::Opened(peer) => return peer,
                Event::Closed(_) => {}
                Event::Request(_, request) => panic!("unexpected {request:?}"),
            }
        }
    }

    /// The next request on any connection.
    pub(crate) async fn request(&mut self) -> (Peer, Request) {
        loop {
            match self.event().await {
                Event::Request(peer, request) => return (peer, request),
                Event::Opened(_) | Event::Closed(_) => {}
            }
        }
    }

    /// The next request, which need not come.
    pub(crate) async fn request_in_peace(&mut self) -> Request {
        loop {
            match self.any_event().await {
                Some(Event::Request(_, request)) => return request,
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// Waits until the client has closed this connection; gives the requests before.
    pub(crate) async fn closed(&mut self, number: usize) -> Vec<Request> {
        let mut requests = Vec::new();
        while !self.gone.contains(&number) {
            if let Event::Request(_, request) = self.event().await {
                requests.push(request);
            }
        }
        requests
    }
}

impl Peer {
    pub(crate) fn reply(&self, reply: Reply) {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        self.send(bytes);
    }

    pub(crate) fn send(&self, bytes: Vec<u8>) {
        let _ = self.orders.send(Some(bytes));
    }

    pub(crate) fn close(&self) {
        let _ = self.orders.send(None);
    }
}

/// Says what a polite server does, up to so many bytes, and gives the connection back.
async fn partial<S: Stream>(mut stream: S, domain: Domain, bytes: usize) -> S {
    let challenge = Challenge::new(Node::Single, Nonce::from([7; 16]));
    let mut said = challenge.hello().to_vec();
    said.push(ACCEPTED);
    let id = RequestNumber::MIN;
    Reply::Domain {
        id,
        domain,
        extensions: Extensions::EXTEND.and(Extensions::CANCEL),
    }
    .encode(&mut said);
    stream.write_all(&said[..bytes]).await.unwrap();
    // What the client can say by then, or it would be cut off in the middle of that.
    let (hello, question) = (HELLO_BYTES, 11);
    let mut heard = vec![
        0;
        if bytes < hello {
            0
        } else {
            ANSWER_BYTES + question * usize::from(bytes > hello)
        }
    ];
    stream.read_exact(&mut heard).await.unwrap();
    stream
}

/// `Some` when the connection was announced, so that its end must be too.
pub(crate) async fn serve(
    mut stream: impl Stream,
    (manners, secret): (Manners, Option<Secret>),
    number: usize,
    events: &mpsc::UnboundedSender<Event>,
) -> Option<()> {
    let manners = match manners {
        Manners::Stumbling(_) if number == 0 => Manners::Base,
        Manners::Faltering(_) if (2..4).contains(&number) => Manners::Away,
        Manners::Faltering(_) if number < 6 => Manners::Base,
        Manners::Stumbling(domain) | Manners::Faltering(domain) => Manners::Polite(domain),
        other => other,
    };
    let node = match &manners {
        Manners::Away => return None,
        Manners::Partial {
            domain,
            bytes,
            stalls,
        } => {
            let stream = partial(stream, *domain, *bytes).await;
            if *stalls {
                std::future::pending::<()>().await;
            }
            drop(stream);
            return None;
        }
        Manners::Bytes(bytes) => {
            stream.write_all(bytes).await.ok()?;
            let _ = stream.read_u8().await;
            return None;
        }
        Manners::Cluster => Node::Cluster {
            identity: [9; 32],
            slot: Slot::new(0).unwrap(),
        },
        Manners::Node(identity, slot) => Node::Cluster {
            identity: *identity.as_bytes(),
            slot: Slot::new(*slot).unwrap(),
        },
        _ => Node::Single,
    };
    let challenge = Challenge::new(node, Nonce::from([u8::try_from(number % 256).unwrap(); 16]));
    stream.write_all(&challenge.hello()).await.ok()?;
    let mut answer = [0; ANSWER_BYTES];
    stream.read_exact(&mut answer).await.ok()?;
    let secret = secret.unwrap_or_else(Secret::no_auth);
    if !challenge.accepts([&secret], &answer) {
        stream.write_all(&[REJECTED]).await.ok()?;
        return None;
    }
    stream.write_all(&[ACCEPTED]).await.ok()?;
    let (orders, mut orders_end) = mpsc::unbounded_channel();
    let peer = Peer { number, orders };
    let mut opened = false;
    let mut decoder = RequestDecoder::new();
    let mut buffer = [0; 1024];
    if matches!(manners, Manners::Base) {
        // Its clients have nothing to say before they have something to ask.
        opened = true;
        let _ = events.send(Event::Opened(peer.clone()));
    }
    loop {
        tokio::select! {
            order = orders_end.recv() => match order.unwrap() {
                Some(bytes) => {
                    if stream.write_all(&bytes).await.is_err() {
                        return opened.then_some(());
                    }
                }
                None => return opened.then_some(()),
            },
            read = stream.read(&mut buffer) => {
                let count = read.unwrap_or(0);
                if count == 0 {
                    return opened.then_some(());
                }
                let mut chunk = &buffer[..count];
                while let Some(incoming) = decoder.next(&mut chunk).unwrap() {
                    let request = match incoming {
                        Incoming::Valid(request) => request,
                        Incoming::Refused { code, .. } => panic!("the client sent nonsense: {code}"),
                    };
                    match (&manners, request) {
                        (
                            Manners::Polite(domain) | Manners::Full(domain) | Manners::Node(domain, _),
                            Request::Domain { id },
                        ) => {
                            let extensions = match &manners {
                                Manners::Polite(_) => Extensions::EXTEND.and(Extensions::CANCEL),
                                _ => Extensions::ALL,
                            };
                            let domain = *domain;
                            let mut bytes = Vec::new();
                            Reply::Domain { id, domain, extensions }.encode(&mut bytes);
                            stream.write_all(&bytes).await.ok()?;
                            if !opened {
                                opened = true;
                                let _ = events.send(Event::Opened(peer.clone()));
                            }
                        }
                        (Manners::Strange(bytes), Request::Domain { .. }) => {
                            stream.write_all(bytes).await.ok()?;
                        }
                        (_, Request::Domain { .. }) => return opened.then_some(()),
                        (_, request) => {
                            let _ = events.send(Event::Request(peer.clone(), request));
                        }
                    }
                }
            }
        }
    }
}
