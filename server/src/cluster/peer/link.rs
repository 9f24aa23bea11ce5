//! The calling side of a connection to a peer.
//!
//! One request at a time. The connection is opened when it is first needed, kept, and opened anew
//! after anything has gone wrong with it.
//!
//! A call may be given up at any moment: heartbeats are, after some tens of milliseconds. On a busy machine that
//! alone must not cost the connection, or the next heartbeats have to open one within their short time and a
//! leader that is only slow is taken for gone. So what a call has begun goes on: an opening in a task of its own, a
//! frame that is half out with the next call, and a reply that comes late is skipped. Only what has had no
//! answer for [`STALE`] is begun anew.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use highwater_protocol::handshake::Slot;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::frame::{Answer, Ends, Frame, FrameError, Incoming, Outgoing, between};
use super::handshake::{self, Callee, Caller, HELLO_BYTES, Refused, VERDICT_BYTES};
use super::{Stream, Trust};
use crate::system;

/// See the module's description.
pub(in crate::cluster) struct Link {
    trust: Arc<Trust>,
    own: Caller,
    to: Callee,
    /// `HOST:PORT`.
    address: String,
    place: Mutex<Place>,
    stale: Duration,
}

#[derive(Default)]
enum Place {
    #[default]
    Closed,
    Opening {
        since: Instant,
        task: JoinSet<Result<Open, LinkError>>,
    },
    Open(Open),
}

impl Place {
    /// Whether nothing good is to be expected any more.
    fn is_stale(&self, limit: Duration) -> bool {
        let since = match self {
            Self::Closed => None,
            Self::Opening { since, .. } => Some(*since),
            Self::Open(open) => open.waits_since,
        };
        since.is_some_and(|since| since.elapsed() >= limit)
    }
}

struct Open {
    stream: Box<dyn Stream>,
    ends: Ends,
    calls: u64,
    outgoing: Outgoing,
    incoming: Incoming,
    /// Since when a call waits for its reply that may have been given up.
    waits_since: Option<Instant>,
}

impl Open {
    /// Sends a request and waits for its reply. May be given up at any moment, and called again.
    async fn exchange(&mut self, kind: u8, body: Vec<u8>) -> Result<Frame, LinkError> {
        let stream = &mut *self.stream;
        self.outgoing.finish(stream).await?;
        self.calls += 1;
        let id = self.calls;
        self.outgoing.put(self.ends, &Frame { kind, id, body })?;
        self.waits_since.get_or_insert_with(system::now);
        self.outgoing.finish(stream).await?;
        loop {
            let reply = self.incoming.read(stream, self.ends.reversed()).await?;
            let reply = reply.ok_or(LinkError::Closed)?;
            // An earlier one is that of a call that was given up.
            if reply.id >= id {
                self.waits_since = None;
                return Ok(reply);
            }
            self.waits_since = Some(system::now());
        }
    }
}

impl Link {
    pub(in crate::cluster) fn new(
        trust: Arc<Trust>,
        own: Caller,
        to: Callee,
        address: String,
    ) -> Self {
        Self {
            trust,
            own,
            to,
            address,
            place: Mutex::default(),
            stale: STALE,
        }
    }

    /// Which slot it leads to.
    pub(in crate::cluster) fn slot(&self) -> Slot {
        self.to.slot
    }

    /// Sends a request and waits for its reply, for so long at most.
    pub(in crate::cluster) async fn call(
        &self,
        kind: u8,
        body: Vec<u8>,
        time: Duration,
    ) -> Result<Vec<u8>, LinkError> {
        let answered = timeout(time, self.call_unbounded(kind, body)).await;
        answered.map_err(|_| LinkError::TimedOut)?
    }

    async fn call_unbounded(&self, kind: u8, body: Vec<u8>) -> Result<Vec<u8>, LinkError> {
        let mut place = self.place.lock().await;
        if place.is_stale(self.stale) {
            *place = Place::Closed;
        }
        let answered = match self.open(&mut place).await {
            Ok(open) => open
                .exchange(kind, body)
                .await
                .map(|reply| (reply, open.calls)),
            Err(error) => Err(error),
        };
        let answered = answered.map(|(reply, id)| reply.answers(kind, id));
        match answered {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(Answer::Failed(why))) => Err(LinkError::Failed(why)),
            Ok(Err(misfit)) => {
                *place = Place::Closed;
                Err(LinkError::Failed(misfit.to_string()))
            }
            Err(error) => {
                *place = Place::Closed;
                Err(error)
            }
        }
    }

    /// The open connection, as soon as there is one.
    async fn open<'a>(&self, place: &'a mut Place) -> Result<&'a mut Open, LinkError> {
        if let Place::Closed = place {
            let (trust, address) = (Arc::clone(&self.trust), self.address.clone());
            let mut task = JoinSet::new();
            task.spawn(connect(trust, self.own, self.to, address));
            let since = system::now();
            *place = Place::Opening { since, task };
        }
        if let Place::Opening { task, .. } = place {
            let opened = task.join_next().await.ok_or(LinkError::Closed)?;
            let opened = opened.map_err(io::Error::other)?;
            *place = Place::Open(opened?);
        }
        match place {
            Place::Open(open) => Ok(open),
            _ => Err(LinkError::Closed),
        }
    }
}

async fn connect(
    trust: Arc<Trust>,
    own: Caller,
    to: Callee,
    address: String,
) -> Result<Open, LinkError> {
    let tcp = TcpStream::connect(&address).await?;
    tcp.set_nodelay(true)?;
    let mut stream: Box<dyn Stream> = match &trust.connect {
        None => Box::new(tcp),
        Some(config) => {
            let host = address.rsplit_once(':').map_or("", |(host, _)| host);
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
            let connector = TlsConnector::from(config.get());
            Box::new(connector.connect(name, tcp).await?)
        }
    };
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).await?;
    let nonce = system::random().map_err(io::Error::other)?;
    let answered = handshake::answer(&hello, own, to, &trust, nonce);
    let (answer, there) = answered?;
    stream.write_all(&answer).await?;
    stream.flush().await?;
    let mut verdict = [0; VERDICT_BYTES];
    stream.read_exact(&mut verdict).await?;
    handshake::check(&hello, &answer, &verdict, &trust)?;
    Ok(Open {
        stream,
        ends: between(trust.domain, own, there),
        calls: 0,
        outgoing: Outgoing::default(),
        incoming: Incoming::default(),
        waits_since: None,
    })
}

/// How long what was begun may stay without an answer before it is begun anew: longer than a busy machine needs,
/// and short beside the time in which another node is elected.
const STALE: Duration = Duration::from_millis(300);

/// Why a call has no reply.
#[derive(Debug, thiserror::Error)]
pub(in crate::cluster) enum LinkError {
    #[error("no answer in time")]
    TimedOut,
    #[error("the connection was closed")]
    Closed,
    #[error("{0}")]
    Refused(#[from] Refused),
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// The peer says why.
    #[error("{0}")]
    Failed(String),
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> Self {
        Self::Frame(FrameError::Io(error))
    }
}

#[cfg(test)]
mod tests {
    use highwater_lock::Domain;
    use highwater_protocol::Secret;
    use tokio::net::TcpListener;
    use tokio::sync::{Semaphore, mpsc};

    use super::*;
    use crate::cluster::peer::frame::{self, CLOCK};
    use crate::cluster::peer::handshake::ANSWER_BYTES;
    use crate::cluster::peer::secrets::PeerSecrets;
    use crate::cluster::types::Member;

    const LIMIT: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(5);

    /// A peer that does each of its steps only when it may: to say hello, and to reply to a request.
    struct Peer {
        link: Link,
        may: Arc<Semaphore>,
        /// Which of its connections has brought a request, counted from one, and what was in it.
        heard: mpsc::UnboundedReceiver<(u32, Vec<u8>)>,
        _serving: JoinSet<()>,
    }

    impl Peer {
        async fn start(stale: Duration) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let secret = Secret::new(b"a secret of these tests alone");
            let trust = Arc::new(Trust {
                domain: Domain::from_bytes([1; 32]),
                secrets: PeerSecrets::new(secret.unwrap()),
                common: Vec::new(),
                accept: None,
                connect: None,
            });
            let [from, to] = [0, 1].map(|slot| Member::first(Slot::new(slot).unwrap()));
            let own = Caller::Node(from);
            let mut link = Link::new(Arc::clone(&trust), own, to.into(), address);
            link.stale = stale;
            let may = Arc::new(Semaphore::new(0));
            let (hears, heard) = mpsc::unbounded_channel();
            let gate = Arc::clone(&may);
            let mut serving = JoinSet::new();
            serving.spawn(async move {
                let mut connections = JoinSet::new();
                for number in 1.. {
                    let (tcp, _) = listener.accept().await.unwrap();
                    let (trust, gate) = (Arc::clone(&trust), Arc::clone(&gate));
                    let hears = hears.clone();
                    connections.spawn(async move {
                        let ends = between(trust.domain, own, to);
                        let _gone = serve(tcp, &trust, ends, to, &gate, |body| {
                            let _ = hears.send((number, body));
                        });
                        _gone.await.err()
                    });
                }
            });
            let _serving = serving;
            Self {
                link,
                may,
                heard,
                _serving,
            }
        }

        async fn call(&self, body: u8, time: Duration) -> Result<Vec<u8>, LinkError> {
            self.link.call(CLOCK, vec![body], time).await
        }

        fn may_do(&self, steps: usize) {
            self.may.add_permits(steps);
        }
    }

    async fn serve(
        mut tcp: TcpStream,
        trust: &Trust,
        ends: Ends,
        own: Member,
        may: &Semaphore,
        mut hears: impl FnMut(Vec<u8>),
    ) -> Result<(), FrameError> {
        may.acquire().await.unwrap().forget();
        let hello = handshake::hello(own, [7; 16]);
        tcp.write_all(&hello).await?;
        let mut answer = [0; ANSWER_BYTES];
        tcp.read_exact(&mut answer).await?;
        let (verdict, _) = handshake::judge(&hello, &answer, own, trust);
        tcp.write_all(&verdict).await?;
        while let Some(request) = frame::read(&mut tcp, ends).await? {
            hears(request.body.clone());
            may.acquire().await.unwrap().forget();
            let reply = request.reply(request.body.clone());
            frame::write(&mut tcp, ends.reversed(), &reply).await?;
        }
        Ok(())
    }

    #[tokio::test]
    async fn an_opening_that_was_given_up_goes_on() {
        let mut peer = Peer::start(LIMIT).await;
        for _ in 0..3 {
            let early = peer.call(1, SHORT).await;
            assert!(matches!(early, Err(LinkError::TimedOut)), "{early:?}");
        }
        peer.may_do(2);
        assert_eq!(peer.call(2, LIMIT).await.unwrap(), [2]);
        assert_eq!(peer.heard.recv().await, Some((1, vec![2])));
    }

    #[tokio::test]
    async fn a_reply_that_comes_late_is_skipped_and_costs_no_connection() {
        let mut peer = Peer::start(LIMIT).await;
        peer.may_do(1);
        for body in 1..4 {
            let late = peer.call(body, SHORT).await;
            assert!(matches!(late, Err(LinkError::TimedOut)), "{late:?}");
        }
        let all = async {
            let answered = peer.call(4, LIMIT);
            peer.may.add_permits(10);
            answered.await
        };
        assert_eq!(all.await.unwrap(), [4]);
        let mut last = None;
        while let Ok((connection, body)) = peer.heard.try_recv() {
            assert_eq!(connection, 1);
            last = Some(body);
        }
        assert_eq!(last, Some(vec![4]));
    }

    #[tokio::test]
    async fn what_has_no_answer_for_long_is_begun_anew() {
        let mut peer = Peer::start(Duration::ZERO).await;
        peer.may_do(1);
        let lost = peer.call(1, SHORT).await;
        assert!(matches!(lost, Err(LinkError::TimedOut)), "{lost:?}");
        peer.may_do(100);
        assert_eq!(peer.call(2, LIMIT).await.unwrap(), [2]);
        assert_eq!(peer.call(3, LIMIT).await.unwrap(), [3]);
        let mut heard = Vec::new();
        while let Ok((connection, body)) = peer.heard.try_recv() {
            heard.push((connection, body));
        }
        let [.., (second, two), (third, three)] = &heard[..] else {
            panic!("{heard:?}");
        };
        assert_eq!((&two[..], &three[..]), (&[2][..], &[3][..]));
        assert!(*second > 1 && third == second, "{heard:?}");
    }
}
