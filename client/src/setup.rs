//! Opens one connection: TCP, TLS, the challenge-response, and the question for the domain.

use std::io;

use highwater_lock::Domain;
use highwater_protocol::handshake::{ACCEPTED, Challenge, HELLO_BYTES, HelloError, Node};
use highwater_protocol::{
    ErrorCode, FrameError, Reply, ReplyDecoder, Request, RequestNumber, Secret,
};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::limits::SETUP_TIME;

/// Where to connect, and how to be let in.
pub(crate) struct Target {
    /// `HOST:PORT`.
    pub(crate) address: String,
    pub(crate) secret: Secret,
    pub(crate) tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// A byte stream, encrypted or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection on which requests may be sent.
pub(crate) struct Opened {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) decoder: ReplyDecoder,
    pub(crate) domain: Domain,
    pub(crate) extensions: bool,
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
pub(crate) async fn open(target: &Target, probe: Probe) -> Result<Opened, SetupError> {
    match timeout(SETUP_TIME, open_unbounded(target, probe)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(SetupError::TimedOut),
    }
}

async fn open_unbounded(target: &Target, probe: Probe) -> Result<Opened, SetupError> {
    let stream = TcpStream::connect(&target.address)
        .await
        .map_err(SetupError::Unreachable)?;
    // Requests are small and somebody waits for each.
    stream.set_nodelay(true).map_err(SetupError::Unreachable)?;
    let mut stream: Box<dyn Stream> = match &target.tls {
        None => Box::new(stream),
        Some((connector, name)) => {
            let encrypted = connector.connect(name.clone(), stream).await;
            Box::new(encrypted.map_err(setup_io)?)
        }
    };
    authenticate(&mut stream, &target.secret).await?;
    let mut decoder = ReplyDecoder::new();
    let (domain, extensions) = match probe {
        Probe::Ask => (ask_domain(&mut stream, &mut decoder).await?, true),
        Probe::Assume => (Domain::from_bytes(Node::Single.identity()), false),
    };
    Ok(Opened {
        stream,
        decoder,
        domain,
        extensions,
    })
}

async fn authenticate(stream: &mut Box<dyn Stream>, secret: &Secret) -> Result<(), SetupError> {
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).await.map_err(setup_io)?;
    let challenge = Challenge::from_hello(&hello, Node::Single)?;
    let answer = challenge.answer(secret);
    stream.write_all(&answer).await.map_err(setup_io)?;
    stream.flush().await.map_err(setup_io)?;
    match stream.read_u8().await.map_err(setup_io)? {
        ACCEPTED => Ok(()),
        // Zero says it; anything else is no acceptance either.
        _ => Err(SetupError::Rejected),
    }
}

async fn ask_domain(
    stream: &mut Box<dyn Stream>,
    decoder: &mut ReplyDecoder,
) -> Result<Domain, SetupError> {
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
        if count == 0 {
            return Err(SetupError::ClosedOnProbe);
        }
        let mut chunk = &buffer[..count];
        while let Some(reply) = decoder.next(&mut chunk)? {
            match reply {
                Reply::Leader { leader: None } => {}
                Reply::Domain {
                    id: answered,
                    domain: told,
                    ..
                } if answered == id && domain.is_none() => domain = Some(told),
                Reply::Error { id: answered, code } if answered == id => {
                    return Err(SetupError::NotReady(code));
                }
                _ => return Err(SetupError::Misfit),
            }
        }
    }
    domain.ok_or(SetupError::Misfit)
}

fn setup_io(error: io::Error) -> SetupError {
    // Over TLS the other end's refusal of us arrives with the first read.
    if is_tls(&error) {
        SetupError::Tls(error)
    } else {
        SetupError::Unreachable(error)
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
    Unreachable(io::Error),
    #[error("not open in time; a server that expects TLS, or none, stays silent like this")]
    TimedOut,
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
}

impl SetupError {
    /// Whether it needs somebody to correct something.
    pub(crate) fn is_fatal(&self) -> bool {
        matches!(self, Self::Tls(_) | Self::Hello(_) | Self::Rejected)
    }

    /// For the caller of `connect`, who may be one of several that hear of it.
    pub(crate) fn to_io(&self) -> io::Error {
        match self {
            Self::Unreachable(error) | Self::Tls(error) => {
                io::Error::new(error.kind(), error.to_string())
            }
            Self::TimedOut => io::Error::new(io::ErrorKind::TimedOut, self.to_string()),
            other => io::Error::other(other.to_string()),
        }
    }
}
