//! One client from accept to close: set-up, then frames in and replies out in one task.
//!
//! Whatever ends it (the peer, a bound, malformed bytes, the server's stop) ends this connection
//! only, and its queue places and unsent grants are given back at once. What the frames mean is
//! decided at the [`desk`](crate::desk).

mod setup;
mod transport;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use highwater_lock::ConnectionId;
use highwater_protocol::{FrameError, RequestDecoder, Secret};
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use self::setup::SetupError;
use self::transport::{Received, Sink, Transport};
use crate::desk::IdInUse;
use crate::front::Front;
use crate::limits::Limits;
use crate::metrics::{Closed, Traffic, micros};
use crate::outbox::{Outbox, Overflow};
use crate::readiness::Readiness;
use crate::swap::Swap;
use crate::system;
use crate::throttle::Throttle;

/// What all connections of a server share.
pub(crate) struct Shared {
    pub(crate) desk: Front,
    pub(crate) limits: Limits,
    /// Each is valid; the empty one stands for a server without authentication.
    pub(crate) secrets: Swap<[Secret]>,
    pub(crate) tls: Option<Swap<ServerConfig>>,
    pub(crate) complaints: Throttle,
    pub(crate) traffic: Traffic,
}

impl Shared {
    pub(crate) fn readiness(&self) -> Readiness {
        match self.desk.is_broken() {
            true => Readiness::Failed,
            false => self.desk.readiness(),
        }
    }
}

/// Where a server is on its way from start to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    /// No new connection, no new grant; the open connections are served.
    Draining,
    /// Connections send what waits and close.
    Closing,
}

/// Serves an accepted connection until it ends.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    tcp: TcpStream,
    peer: SocketAddr,
    mut phase: watch::Receiver<Phase>,
) {
    let _open = shared.traffic.open.hold();
    let set_up = tokio::select! {
        set_up = setup::set_up(&shared, tcp) => set_up,
        // A peer that is not through yet is better off with another server.
        _ = phase.changed() => {
            shared.traffic.closed(Closed::Stopped).add();
            return;
        }
    };
    let end = match set_up {
        Ok(transport) => {
            let mut connection = Connection::new(shared.clone(), transport);
            let end = connection.run(&mut phase).await;
            connection.part(&end).await;
            end
        }
        Err(error) => End::SetUp(error),
    };
    shared.traffic.closed(end.counts_as()).add();
    if end.is_ordinary() {
        tracing::debug!(%peer, reason = %end, "connection ended");
    } else if let Some(suppressed) = shared.complaints.admit(system::now()) {
        tracing::warn!(%peer, reason = %end, suppressed, "connection closed");
    }
}

/// An open connection. Dropping it gives back everything it had and did not get out.
struct Connection {
    shared: Arc<Shared>,
    id: ConnectionId,
    outbox: Arc<Outbox>,
    transport: Transport,
    decoder: RequestDecoder,
    /// When the unfinished frame began, while there is one.
    frame_began: Option<Instant>,
    /// When the peer last took something, while replies wait for it.
    output_moved: Option<Instant>,
}

impl Connection {
    fn new(shared: Arc<Shared>, transport: Transport) -> Self {
        let outbox = Arc::new(Outbox::new(shared.limits.effective_output_bytes()));
        Self {
            id: shared.desk.connect(Arc::clone(&outbox)),
            shared,
            outbox,
            transport,
            decoder: RequestDecoder::new(),
            frame_began: None,
            output_moved: None,
        }
    }

    async fn run(&mut self, phase: &mut watch::Receiver<Phase>) -> End {
        match self.work(phase).await {
            Ok(end) | Err(end) => end,
        }
    }

    async fn work(&mut self, phase: &mut watch::Receiver<Phase>) -> Result<End, End> {
        self.receive(Transport::receive_early)?;
        let mut stopped = pin!(async {
            // Without a sender the server is gone.
            phase.wait_for(|phase| *phase == Phase::Closing).await.ok();
        });
        loop {
            self.send()?;
            // A peer that reads nothing is not read either, so what it is owed stays bounded.
            let most = self.shared.limits.effective_output_bytes();
            let may_read = |outbox: &Outbox| Ok::<_, Overflow>(outbox.waiting_bytes()? <= most / 2);
            let reads = may_read(&self.outbox)?;
            tokio::select! {
                biased;
                () = &mut stopped => return Ok(End::Stopped),
                ready = self.transport.tcp.writable(), if self.transport.has_output() => {
                    ready?;
                }
                ready = self.transport.tcp.readable(), if reads => {
                    ready?;
                    // Nobody tells that more was put on top of what waits already.
                    if may_read(&self.outbox)? {
                        self.receive(Transport::receive)?;
                    }
                }
                () = self.outbox.filled() => {}
                end = self.out_of_time(reads) => return Err(end),
            }
        }
    }

    /// Moves waiting replies towards the kernel, as far as it takes them.
    fn send(&mut self) -> Result<(), End> {
        let mut progress = self.transport.flush()?;
        if !self.transport.has_output() {
            self.transport.queue(self.outbox.take()?)?;
            progress |= self.transport.flush()?;
        }
        for free_since in self.transport.handed_over() {
            let latency = self.shared.desk.since(free_since);
            self.shared.traffic.hand_over.record(micros(latency));
        }
        self.output_moved = match self.output_moved {
            _ if !self.transport.has_output() => None,
            Some(moved) if !progress => Some(moved),
            _ => Some(system::now()),
        };
        Ok(())
    }

    /// Reads once and hands every whole frame to the desk.
    fn receive(
        &mut self,
        read: fn(&mut Transport, Sink<'_>) -> std::io::Result<Received>,
    ) -> Result<(), End> {
        let Self {
            shared,
            id,
            decoder,
            transport,
            ..
        } = self;
        let mut completed = false;
        let mut failure = None;
        let received = read(transport, &mut |mut chunk| {
            if failure.is_none() {
                failure = take_frames(&shared.desk, *id, decoder, &mut chunk, &mut completed).err();
            }
        });
        if let Some(end) = failure {
            return Err(end);
        }
        self.frame_began = match self.frame_began {
            _ if !self.decoder.is_mid_frame() => None,
            Some(began) if !completed => Some(began),
            _ => Some(system::now()),
        };
        match received? {
            Received::Data | Received::Nothing => Ok(()),
            Received::End => Err(End::ByPeer),
        }
    }

    /// Resolves when the peer has kept the server waiting for too long.
    async fn out_of_time(&self, reads: bool) -> End {
        let limits = &self.shared.limits;
        let frame = self.frame_began.filter(|_| reads);
        // Beyond what the clock can tell is never.
        let frame = frame.and_then(|began| began.checked_add(limits.frame_time));
        let frame = frame.map(|at| (at, End::FrameTime));
        let output = self.output_moved;
        let output = output.and_then(|moved| moved.checked_add(limits.output_stall_time));
        let output = output.map(|at| (at, End::Stalled));
        match frame.into_iter().chain(output).min_by_key(|(at, _)| *at) {
            Some((at, end)) => {
                sleep_until(at).await;
                end
            }
            None => std::future::pending().await,
        }
    }

    /// Sends what can still be sent, if the peer may be listening.
    async fn part(&mut self, end: &End) {
        let patience = match end {
            End::Stopped => PARTING_TIME,
            End::Frame(_) | End::IdInUse | End::FrameTime => Duration::ZERO,
            _ => return,
        };
        let rest = async {
            loop {
                self.send()?;
                if !self.transport.has_output() {
                    break;
                }
                self.transport.tcp.writable().await?;
            }
            self.transport.say_goodbye()?;
            Ok::<(), End>(())
        };
        let _ = timeout(patience, rest).await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let undelivered = self.transport.undelivered();
        self.shared.desk.disconnect(self.id, undelivered);
    }
}

/// Hands the frames over in batches: each costs the desk one turn, however many requests are in it.
fn take_frames(
    desk: &Front,
    connection: ConnectionId,
    decoder: &mut RequestDecoder,
    chunk: &mut &[u8],
    completed: &mut bool,
) -> Result<(), End> {
    loop {
        let mut batch = Vec::new();
        // What came before a malformed frame counts.
        let malformed = loop {
            match decoder.next(chunk) {
                Ok(Some(incoming)) => batch.push(incoming),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
            if batch.len() == FRAMES_AT_ONCE {
                break None;
            }
        };
        let is_full = batch.len() == FRAMES_AT_ONCE;
        if !batch.is_empty() {
            *completed = true;
            desk.submit(connection, batch)?;
        }
        match malformed {
            Some(error) => return Err(error.into()),
            None if is_full => {}
            None => return Ok(()),
        }
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the peer closed it")]
    ByPeer,
    #[error("the server stops")]
    Stopped,
    #[error("{0}")]
    SetUp(SetupError),
    #[error("{0}")]
    Io(std::io::Error),
    #[error("malformed frame: {0}")]
    Frame(#[from] FrameError),
    #[error("a request id was used again before its reply")]
    IdInUse,
    #[error("a frame was begun and not finished in time")]
    FrameTime,
    #[error("too many replies wait for a slow reader")]
    Overflow,
    #[error("the peer takes no replies")]
    Stalled,
}

impl End {
    /// Whether it is in the nature of networks, rather than something to look at.
    fn is_ordinary(&self) -> bool {
        match self {
            Self::ByPeer | Self::Stopped => true,
            // Other kinds are broken TLS.
            Self::Io(error) => error.kind() != std::io::ErrorKind::InvalidData,
            _ => false,
        }
    }

    fn counts_as(&self) -> Closed {
        match self {
            Self::ByPeer => Closed::ByPeer,
            Self::Stopped => Closed::Stopped,
            Self::SetUp(SetupError::TooSlow) => Closed::SetUpTime,
            Self::SetUp(SetupError::Rejected) => Closed::WrongSecret,
            Self::SetUp(SetupError::Tls(_)) => Closed::Tls,
            Self::SetUp(SetupError::Io(_) | SetupError::Random(_)) => Closed::SetUpLost,
            Self::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => Closed::Tls,
            Self::Io(_) => Closed::Network,
            Self::Frame(_) => Closed::Malformed,
            Self::IdInUse => Closed::IdInUse,
            Self::FrameTime => Closed::FrameTime,
            Self::Overflow => Closed::Overflow,
            Self::Stalled => Closed::Stalled,
        }
    }
}

impl From<std::io::Error> for End {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<IdInUse> for End {
    fn from(IdInUse: IdInUse) -> Self {
        Self::IdInUse
    }
}

impl From<Overflow> for End {
    fn from(Overflow: Overflow) -> Self {
        Self::Overflow
    }
}

/// How many requests of one connection are handled before others get their turn.
const FRAMES_AT_ONCE: usize = 64;
/// How long a stopping server lets a connection take what waits for it.
const PARTING_TIME: Duration = Duration::from_secs(1);
