//! The set-up of a connection: socket options, TLS, challenge and answer, all in bounded time.
//!
//! Nothing of a peer is believed before it is through. What follows the set-up is in the
//! [parent module](super).

use std::io;

use highwater_protocol::handshake::{ACCEPTED, ANSWER_BYTES, Challenge, Nonce, REJECTED};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::Shared;
use super::transport::Transport;
use crate::{socket, system};

/// Takes a new connection to the point where frames begin.
pub(super) async fn set_up(shared: &Shared, tcp: TcpStream) -> Result<Transport, SetupError> {
    timeout(shared.limits.handshake_time, negotiate(shared, tcp))
        .await
        .map_err(|_| SetupError::TooSlow)?
}

async fn negotiate(shared: &Shared, mut tcp: TcpStream) -> Result<Transport, SetupError> {
    socket::configure(&tcp, shared.limits.output_stall_time);
    let Some(tls) = &shared.tls else {
        challenge(shared, &mut tcp).await?;
        return Ok(Transport::new(tcp, None));
    };
    let acceptor = TlsAcceptor::from(tls.get());
    let mut stream = acceptor.accept(tcp).await.map_err(SetupError::Tls)?;
    challenge(shared, &mut stream).await?;
    let (tcp, session) = stream.into_inner();
    Ok(Transport::new(tcp, Some(session)))
}

async fn challenge<S>(shared: &Shared, stream: &mut S) -> Result<(), SetupError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let nonce = Nonce::from(system::random().map_err(SetupError::Random)?);
    let challenge = Challenge::new(shared.desk.node(), nonce);
    stream.write_all(&challenge.hello()).await?;
    stream.flush().await?;
    let mut answer = [0; ANSWER_BYTES];
    stream.read_exact(&mut answer).await?;
    let accepted = challenge.accepts(&*shared.secrets.get(), &answer);
    let verdict = if accepted { ACCEPTED } else { REJECTED };
    stream.write_all(&[verdict]).await?;
    stream.flush().await?;
    if accepted {
        return Ok(());
    }
    stream.shutdown().await?;
    Err(SetupError::Rejected)
}

/// Why a peer did not get through the set-up.
#[derive(Debug, thiserror::Error)]
pub(super) enum SetupError {
    #[error("the set-up was not finished in time")]
    TooSlow,
    #[error("TLS was not agreed on: {0}")]
    Tls(io::Error),
    #[error("the peer was lost during the set-up: {0}")]
    Io(#[from] io::Error),
    #[error("wrong secret")]
    Rejected,
    #[error("the system has no random bytes: {0}")]
    Random(getrandom::Error),
}
