//! The calling side of a connection to a peer.
//!
//! One request at a time. The connection is opened when it is first needed, kept, and opened anew
//! after anything has gone wrong with it: a call that is given up half way leaves none behind.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use highwater_protocol::handshake::Slot;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::frame::{self, Answer, Ends, Frame, FrameError, between};
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
    open: Mutex<Option<Open>>,
}

struct Open {
    stream: Box<dyn Stream>,
    ends: Ends,
    calls: u64,
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
            open: Mutex::new(None),
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
        let mut place = self.open.lock().await;
        let mut open = match place.take() {
            Some(open) => open,
            None => self.connect().await?,
        };
        open.calls += 1;
        let id = open.calls;
        let request = Frame { kind, id, body };
        let stream = &mut *open.stream;
        frame::write(stream, open.ends, &request).await?;
        let reply = frame::read(stream, open.ends.reversed()).await?;
        let reply = reply.ok_or(LinkError::Closed)?;
        match reply.answers(kind, id) {
            Ok(body) => {
                *place = Some(open);
                Ok(body)
            }
            Err(Answer::Failed(why)) => {
                *place = Some(open);
                Err(LinkError::Failed(why))
            }
            Err(misfit) => Err(LinkError::Failed(misfit.to_string())),
        }
    }

    async fn connect(&self) -> Result<Open, LinkError> {
        let tcp = TcpStream::connect(&self.address).await?;
        tcp.set_nodelay(true)?;
        let mut stream: Box<dyn Stream> = match &self.trust.connect {
            None => Box::new(tcp),
            Some(config) => {
                let host = self.address.rsplit_once(':').map_or("", |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
                let connector = TlsConnector::from(config.get());
                Box::new(connector.connect(name, tcp).await?)
            }
        };
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello).await?;
        let trust = &*self.trust;
        let nonce = system::random().map_err(io::Error::other)?;
        let answered = handshake::answer(&hello, self.own, self.to, trust, nonce);
        let (answer, there) = answered?;
        stream.write_all(&answer).await?;
        stream.flush().await?;
        let mut verdict = [0; VERDICT_BYTES];
        stream.read_exact(&mut verdict).await?;
        handshake::check(&hello, &answer, &verdict, trust)?;
        Ok(Open {
            stream,
            ends: between(trust.domain, self.own, there),
            calls: 0,
        })
    }
}

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
