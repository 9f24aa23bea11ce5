//! A running server as its owner sees it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use highwater_lock::Domain;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::admin::{Bound, Site};
use crate::builder::Builder;
use crate::connection::{Phase, Shared};
use crate::desk::Counts;
use crate::listener;
use crate::readiness::Readiness;
use crate::storage::{StorageCounts, Writer};

/// A running lock server. Dropping it stops it at once, without telling anybody.
///
/// It works in the background of the Tokio runtime it was started in. Stop it with
/// [`Server::shutdown`], which lets the clients know.
#[must_use = "dropping a server stops it"]
pub struct Server {
    local_addr: SocketAddr,
    shared: Arc<Shared>,
    phase: watch::Sender<Phase>,
    /// Closed when the listener has ended.
    ended: watch::Receiver<()>,
    listener: JoinHandle<()>,
    timekeeper: JoinHandle<()>,
    admin: Option<AdminSide>,
    /// Stores what must survive; none for a server in memory.
    keeper: Option<JoinHandle<()>>,
}

/// A running admin listener.
struct AdminSide {
    local_addr: SocketAddr,
    site: Arc<Site>,
    serving: JoinHandle<()>,
}

impl Server {
    /// A builder with the default limits. Storage and authentication have to be chosen.
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(crate) fn run(
        listener: TcpListener,
        local_addr: SocketAddr,
        shared: Shared,
        admin: Option<Bound>,
        writer: Option<Writer>,
    ) -> Self {
        let shared = Arc::new(shared);
        let (phase, phases) = watch::channel(Phase::Running);
        let (ending, ended) = watch::channel(());
        let timekeeper = Arc::clone(&shared);
        let admin = admin.map(|admin| {
            let local_addr = admin.local_addr;
            let (site, serve) = admin.open(Arc::clone(&shared));
            AdminSide {
                local_addr,
                site,
                serving: tokio::spawn(serve),
            }
        });
        let keeper = writer.map(|writer| {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                if let Some(desk) = shared.desk.single() {
                    desk.keep_store(writer).await;
                }
            })
        });
        let accept = listener::accept(listener, Arc::clone(&shared), phases, ending);
        Self {
            local_addr,
            ended,
            listener: tokio::spawn(accept),
            timekeeper: tokio::spawn(async move {
                if let Some(desk) = timekeeper.desk.single() {
                    desk.keep_time().await;
                }
            }),
            keeper,
            shared,
            phase,
            admin,
        }
    }

    /// The address it listens on, with the real port if it was started on port 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The address of its admin listener, with the real port, if it has one.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|admin| admin.local_addr)
    }

    /// The address on which it listens for the other nodes of its cluster, if it is a node of one.
    #[cfg(feature = "cluster")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.shared.desk.cluster().map(|running| running.peer_addr)
    }

    /// What it knows of its cluster, if it is a node of one.
    #[cfg(feature = "cluster")]
    pub fn cluster_status(&self) -> Option<crate::cluster::NodeStatus> {
        let running = self.shared.desk.cluster();
        running.map(|running| running.presence.status())
    }

    /// The domain of all tokens it gives out. An in-memory server has a new one at every start, a
    /// durable one that of its data directory.
    pub fn domain(&self) -> Domain {
        self.shared.desk.domain()
    }

    /// How much there is at this moment, for logs and metrics.
    pub fn counts(&self) -> Counts {
        self.shared.desk.counts()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn admin_site(&self) -> Option<&Site> {
        self.admin.as_ref().map(|admin| &*admin.site)
    }

    /// Whether it grants locks now, and why not.
    pub fn readiness(&self) -> Readiness {
        self.shared.readiness()
    }

    /// What durability has cost since the start.
    pub fn storage_counts(&self) -> StorageCounts {
        self.shared.desk.storage_counts()
    }

    /// Completes when the server has ended by itself, which only a broken invariant of its own
    /// causes: it then closes all connections and accepts none. Start a new one; in memory that is
    /// a new domain. Dropping the future changes nothing.
    pub async fn failed(&self) {
        let mut ended = self.ended.clone();
        let listener = async move { while ended.changed().await.is_ok() {} };
        #[cfg(feature = "cluster")]
        if let Some(running) = self.shared.desk.cluster() {
            let mut ended = running.ended.clone();
            let node = async move { while ended.changed().await.is_ok() {} };
            tokio::select! {
                () = listener => {}
                () = node => {}
            }
            return;
        }
        listener.await;
    }

    /// Stops the server in an orderly way.
    ///
    /// It accepts no connection and grants nothing from now on; queued acquires are answered
    /// "not active". Releases and extensions are served until nobody holds anything or no client
    /// is connected any more, at most for [`Limits::drain_time`](crate::Limits::drain_time); then
    /// what waits is sent and the connections are closed, which takes at most two seconds more. A
    /// durable server then stores for how long the leases that are left may go on, which the next
    /// start waits for; that takes another two seconds at most. Cancelling stops at once, as a
    /// crash does.
    pub async fn shutdown(mut self) {
        self.phase.send_replace(Phase::Draining);
        let shared = Arc::clone(&self.shared);
        #[cfg(feature = "cluster")]
        if let Some(running) = shared.desk.cluster() {
            running.presence.retire().await;
            self.phase.send_replace(Phase::Closing);
            let _ = timeout(CLOSING_TIME, &mut self.listener).await;
            // The others would only be told by an engine that has ended that it has.
            running.peers.abort();
            running.presence.end().await;
            let mut written = running.written.clone();
            let free = async move { while written.changed().await.is_ok() {} };
            let _ = timeout(CLOSING_TIME, free).await;
            return;
        }
        let Some(desk) = shared.desk.single() else {
            return;
        };
        desk.drain();
        let drain_time = shared.limits.drain_time;
        let _ = timeout(drain_time, desk.settled()).await;
        self.phase.send_replace(Phase::Closing);
        let _ = timeout(CLOSING_TIME, &mut self.listener).await;
        if let Some(keeper) = &mut self.keeper {
            desk.seal();
            if timeout(CLOSING_TIME, keeper).await.is_err() {
                tracing::warn!("the disk takes too long: the next start is as after a crash");
            }
        }
        desk.leave_folder();
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("local_addr", &self.local_addr)
            .field("domain", &self.domain())
            .finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.listener.abort();
        self.timekeeper.abort();
        if let Some(admin) = &self.admin {
            admin.serving.abort();
        }
        if let Some(keeper) = &self.keeper {
            keeper.abort();
        }
    }
}

/// How long all connections together may take to close.
const CLOSING_TIME: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use highwater_protocol::Secret;
    use highwater_protocol::handshake::{Challenge, HELLO_BYTES, Node};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn a_broken_machine_ends_the_server_and_not_only_its_connections() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::builder().in_memory().listen(listen).no_auth();
        let server = server.start().await.unwrap();
        let shared = Arc::clone(&server.shared);
        let broken =
            std::thread::spawn(move || shared.desk.single().unwrap().break_for_test()).join();
        assert!(broken.is_err());

        let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello).await.unwrap();
        let challenge = Challenge::from_hello(&hello, Node::Single).unwrap();
        let answer = challenge.answer(&Secret::no_auth());
        stream.write_all(&answer).await.unwrap();

        let failed = timeout(Duration::from_secs(20), server.failed()).await;
        assert!(
            failed.is_ok(),
            "the server seems to be there and serves nobody"
        );
        assert!(TcpStream::connect(server.local_addr()).await.is_err());
    }
}
