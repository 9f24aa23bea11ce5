//! Opens one connection: TCP, TLS, the challenge-response, and the question for the domain.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use highwater_lock::Domain;
use highwater_protocol::handshake::{ACCEPTED, Challenge, HELLO_BYTES, HelloError, Node};
use highwater_protocol::{
    ErrorCode, Extensions, FrameError, Reply, ReplyDecoder, Request, RequestNumber, Secret,
};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::limits::SETUP_TIME;

/// Where to connect, and how to be let in.
pub(crate) struct Target {
    /// `HOST:PORT`.
    pub(crate) address: String,
    /// What has to stand there.
    pub(crate) node: Node,
    pub(crate) secret: Secret,
    pub(crate) tls: Option<(TlsConnector, ServerName<'static>)>,
    /// `None` is TCP.
    pub(crate) dial: Option<Dial>,
}

/// A byte stream, encrypted or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Opens a byte stream to the server in the application's own way.
pub(crate) type Dial = Arc<dyn Fn() -> Dialing + Send + Sync>;
pub(crate) type Dialing = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send>>;

/// How far an attempt to open a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Stage {
    /// The host's addresses are looked up.
    Resolving,
    Connecting,
    Encrypting,
    /// The server has not said hello yet.
    Greeting,
    /// The server has not judged the answer yet, or not told its domain.
    Entering,
}

/// The stage of the attempt under way, for those who lose their patience with it.
#[derive(Debug, Default)]
pub(crate) struct Progress(AtomicU8);

impl Progress {
    fn reach(&self, stage: Stage) {
        self.0.store(stage as u8, Ordering::Relaxed);
    }

    pub(crate) fn stage(&self) -> Stage {
        let stages = [
            Stage::Resolving,
            Stage::Connecting,
            Stage::Encrypting,
            Stage::Greeting,
            Stage::Entering,
        ];
        stages[usize::from(self.0.load(Ordering::Relaxed))]
    }
}

/// A connection on which requests may be sent.
pub(crate) struct Opened {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) decoder: ReplyDecoder,
    pub(crate) domain: Domain,
    /// `None` for a server of the base protocol, which must not even be asked.
    pub(crate) extensions: Option<Extensions>,
}

/// How to find out the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// Ask with the extension, which a server of the base protocol answers by closing.
    Ask,
    /// Take the constant that all single servers of the base protocol have.
    Assume,
}

/// Opens a connection within [`SETUP_TIME`].
pub(crate) async fn open(
    target: &Target,
    probe: Probe,
    progress: &Progress,
) -> Result<Opened, SetupError> {
    match timeout(SETUP_TIME, open_unbounded(target, probe, progress)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(SetupError::TimedOut(progress.stage())),
    }
}

async fn open_unbounded(
    target: &Target,
    probe: Probe,
    progress: &Progress,
) -> Result<Opened, SetupError> {
    let stream = dial(target, progress).await?;
    let mut stream: Box<dyn Stream> = match &target.tls {
        None => stream,
        Some((connector, name)) => {
            progress.reach(Stage::Encrypting);
            let encrypted = connector.connect(name.clone(), stream).await;
            Box::new(encrypted.map_err(|error| setup_io(error, Stage::Encrypting))?)
        }
    };
    authenticate(&mut stream, target, progress).await?;
    let mut decoder = ReplyDecoder::new();
    let (domain, extensions) = match probe {
        Probe::Ask => {
            let (domain, extensions) = ask_domain(&mut stream, &mut decoder, target.node).await?;
            (domain, Some(extensions))
        }
        Probe::Assume => (Domain::from_bytes(target.node.identity()), None),
    };
    Ok(Opened {
        stream,
        decoder,
        domain,
        extensions,
    })
}

async fn dial(target: &Target, progress: &Progress) -> Result<Box<dyn Stream>, SetupError> {
    let unreachable = |stage| move |error| SetupError::Unreachable(error, stage);
    progress.reach(Stage::Connecting);
    if let Some(dial) = &target.dial {
        return dial().await.map_err(unreachable(Stage::Connecting));
    }
    progress.reach(Stage::Resolving);
    let addresses = lookup_host(&target.address).await;
    let addresses: Vec<_> = addresses.map_err(unreachable(Stage::Resolving))?.collect();
    progress.reach(Stage::Connecting);
    let stream = TcpStream::connect(&addresses[..]).await;
    let stream = stream.map_err(unreachable(Stage::Connecting))?;
    // Requests are small and somebody waits for each.
    let set = stream.set_nodelay(true);
    set.map_err(unreachable(Stage::Connecting))?;
    Ok(Box::new(stream))
}

async fn authenticate(
    stream: &mut Box<dyn Stream>,
    target: &Target,
    progress: &Progress,
) -> Result<(), SetupError> {
    let greeting = |error| setup_io(error, Stage::Greeting);
    let entering = |error| setup_io(error, Stage::Entering);
    progress.reach(Stage::Greeting);
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).await.map_err(greeting)?;
    let challenge = Challenge::from_hello(&hello, target.node)?;
    progress.reach(Stage::Entering);
    let answer = challenge.answer(&target.secret);
    stream.write_all(&answer).await.map_err(entering)?;
    stream.flush().await.map_err(entering)?;
    match stream.read_u8().await.map_err(entering)? {
        ACCEPTED => Ok(()),
        // Zero says it; anything else is no acceptance either.
        _ => Err(SetupError::Rejected),
    }
}

async fn ask_domain(
    stream: &mut Box<dyn Stream>,
    decoder: &mut ReplyDecoder,
    node: Node,
) -> Result<(Domain, Extensions), SetupError> {
    let id = RequestNumber::MIN;
    let mut question = Vec::new();
    Request::Domain { id }.encode(&mut question);
    // A base server may have closed before the last byte of the question, or of the answer.
    let closed = |_| SetupError::ClosedOnProbe;
    stream.write_all(&question).await.map_err(closed)?;
    stream.flush().await.map_err(closed)?;
    let mut buffer = [0; 64];
    let mut domain = None;
    while domain.is_none() {
        let count = stream.read(&mut buffer).await.map_err(closed)?;
        if count == 0 && decoder.is_mid_frame() {
            // It knows the question.
            let error = io::ErrorKind::UnexpectedEof.into();
            return Err(SetupError::Unreachable(error, Stage::Entering));
        }
        if count == 0 {
            return Err(SetupError::ClosedOnProbe);
        }
        let mut chunk = &buffer[..count];
        while let Some(reply) = decoder.next(&mut chunk)? {
            match reply {
                Reply::Leader { leader } if leader.is_none() || node != Node::Single => {}
                Reply::Domain {
                    id: answered,
                    domain: told,
                    extensions,
                } if answered == id && domain.is_none() && may_tell(node, told) => {
                    domain = Some((told, extensions));
                }
                Reply::Error { id: answered, code } if answered == id => {
                    return Err(SetupError::NotReady(code));
                }
                _ => return Err(SetupError::Misfit),
            }
        }
    }
    domain.ok_or(SetupError::Misfit)
}

/// The domain of a cluster is its identity, which was checked before.
fn may_tell(node: Node, domain: Domain) -> bool {
    node == Node::Single || domain.as_bytes() == &node.identity()
}

fn setup_io(error: io::Error, stage: Stage) -> SetupError {
    // Over TLS the other end's refusal of us arrives with the first read.
    if is_tls(&error) {
        SetupError::Tls(error)
    } else {
        SetupError::Unreachable(error, stage)
    }
}

fn is_tls(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(|source| source.is::<rustls::Error>())
}

/// Why a connection did not open.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    #[error("not reachable: {0}")]
    Unreachable(io::Error, Stage),
    #[error("no answer in time")]
    TimedOut(Stage),
    #[error("no trustworthy encryption: {0}")]
    Tls(io::Error),
    #[error("{0}")]
    Hello(#[from] HelloError),
    #[error("the client token was refused")]
    Rejected,
    #[error("closed on the question for its domain")]
    ClosedOnProbe,
    #[error("{0}")]
    NotReady(ErrorCode),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("a reply fits no request")]
    Misfit,
    #[error("what opens connections panicked: {0}")]
    Panicked(String),
}

impl SetupError {
    /// Whether it needs somebody to correct something.
    pub(crate) fn is_fatal(&self) -> bool {
        matches!(self, Self::Tls(_) | Self::Hello(_) | Self::Rejected)
    }

    /// For the caller of `connect`, who may be one of several that hear of it.
    pub(crate) fn to_io(&self) -> io::Error {
        match self {
            Self::Unreachable(error, _) | Self::Tls(error) => match error.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => io::Error::new(error.kind(), error.to_string()),
            },
            Self::TimedOut(_) => io::Error::new(io::ErrorKind::TimedOut, self.to_string()),
            other => io::Error::other(other.to_string()),
        }
    }
}
