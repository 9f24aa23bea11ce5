//! The client: what an application holds, and the start and end of everything behind it.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use highwater_lock::{Domain, Key, KeySet};
use highwater_protocol::{Extensions, KeyStatus};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::acquire;
use crate::builder::Builder;
use crate::limits::{CLOSE_TIME, CONNECTIONS, GOODBYE_TIME, QUEUED_RELEASES};
use crate::options::AcquireOptions;
use crate::pool::Pool;
use crate::setup::Target;
use crate::shared::{Phase, Shared};
use crate::ticket::Ticket;
use crate::{AcquireError, ConnectError, QueryError, Stats, hint, keeper, query, release};

/// A client of one lock server, or of one cluster. Cloning it is cheap, and all clones share its connections.
///
/// The connections are kept open, and opened again after a failure, by tasks in the background;
/// they end when the last clone and the last ticket are dropped, or with [`Client::close`].
///
/// Those tasks live in the Tokio runtime in which [`Builder::connect`] ran. When that ends, every
/// call answers that there is no connection, and dropped tickets are left to their leases.
#[derive(Clone)]
pub struct Client(Arc<Handle>);

impl Client {
    /// Configures a client of the server at `HOST:PORT`.
    pub fn builder(address: impl fmt::Display) -> Builder {
        Builder::new(address.to_string())
    }

    /// Configures a client of a cluster: the addresses of its nodes for clients, each `HOST:PORT`, in
    /// the order of their slots, and the identity of the cluster, which is the domain of its tokens.
    ///
    /// It has one connection to each node, asks the leader, and follows it when it changes.
    pub fn cluster<A: fmt::Display>(
        addresses: impl IntoIterator<Item = A>,
        identity: Domain,
    ) -> Builder {
        let addresses = addresses.into_iter().map(|address| address.to_string());
        Builder::cluster(addresses.collect(), identity)
    }

    /// Waits for its turn and takes the lock.
    ///
    /// The server serves in the order of arrival. Everything that can go wrong has its own variant
    /// of the error; each call ends 4 s after its wait at the latest, where one try counts as 5 s.
    /// A request that was surely not sent is made again within the wait; one that may have been
    /// seen never is.
    ///
    /// Dropping the future gives the place in the queue up; a lock that was granted all the same
    /// is released in the background. A server of the base protocol cannot be told: there the
    /// place stays until the wait is over, and its grant is released when it comes.
    ///
    /// # Errors
    /// The lock is not held, except perhaps after [`AcquireError::Indeterminate`].
    pub async fn acquire(
        &self,
        key: &Key,
        options: AcquireOptions,
    ) -> Result<Ticket, AcquireError> {
        let keys = KeySet::from(key.clone());
        acquire::acquire(self, keys, None, &options).await
    }

    /// Takes all keys of the set at once, under one token.
    ///
    /// All or nothing, and in the order of arrival across sets and single keys, so sets cannot
    /// deadlock. Otherwise like [`Client::acquire`].
    ///
    /// # Errors
    /// None of the keys is held, except perhaps after [`AcquireError::Indeterminate`].
    pub async fn acquire_set(
        &self,
        keys: &KeySet,
        options: AcquireOptions,
    ) -> Result<Ticket, AcquireError> {
        acquire::acquire(self, keys.clone(), None, &options).await
    }

    /// Waits for one of the `slots` slots of a name and takes it: a lock that so many can hold at
    /// once, each with a slot number and a token of its own.
    ///
    /// One queue, in the order of arrival, for all of them. Everybody who uses the name must give
    /// the same number, as long as anybody holds a slot or queues for one; another number, or the
    /// same name as a plain lock, is [`ErrorCode::OtherUse`](crate::ErrorCode::OtherUse).
    /// Otherwise like [`Client::acquire`]; needs a server with extensions.
    ///
    /// # Errors
    /// No slot is held, except perhaps after [`AcquireError::Indeterminate`].
    pub async fn acquire_slot(
        &self,
        name: &Key,
        slots: NonZeroU32,
        options: AcquireOptions,
    ) -> Result<Ticket, AcquireError> {
        let keys = KeySet::from(name.clone());
        acquire::acquire(self, keys, Some(slots), &options).await
    }

    /// Asks what holds a key and how many wait for it; for the name of an N-slot lock, the first
    /// slot that is taken.
    ///
    /// For people and dashboards: the answer may be old when it arrives, and is never a reason to
    /// write anything. Asked again until there is an answer, for at most 5 s.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub async fn query(&self, key: &Key) -> Result<KeyStatus, QueryError> {
        query::query(self.shared(), key, 0).await
    }

    /// Like [`Client::query`], with the first slot from `from_slot` on that is taken. To see all of
    /// them, ask for 0, and then always for the slot after the last one, until it is free.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub async fn query_slots(&self, name: &Key, from_slot: u32) -> Result<KeyStatus, QueryError> {
        query::query(self.shared(), name, from_slot).await
    }

    /// What the server has beyond the base protocol, as it told when it was connected to; `None`
    /// while there is no connection.
    pub fn extensions(&self) -> Option<Extensions> {
        self.shared().pool.extensions()
    }

    /// Ends the client and all its clones within 5 s.
    ///
    /// Acquires that are under way end, releases that are get a moment to finish, dropped tickets
    /// are released, and the connections are closed. Release or drop tickets before: one that is still alive then can only be given up
    /// to its lease. Dropping the future does not stop the closing.
    pub async fn close(&self) {
        let shared = self.shared();
        shared.advance(Phase::Closing);
        if timeout(CLOSE_TIME - GOODBYE_TIME, self.0.alive.closed())
            .await
            .is_err()
        {
            shared.advance(Phase::Closed);
            let _ = timeout(GOODBYE_TIME, self.0.alive.closed()).await;
        }
    }

    /// What this client and its clones have done so far.
    pub fn stats(&self) -> Stats {
        self.shared().counts.read()
    }

    /// Completes when all tasks of the client have ended, without keeping the client.
    #[cfg(feature = "blocking")]
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let alive = self.0.alive.clone();
        async move { alive.closed().await }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// Starts the tasks and waits for the first connection.
    pub(crate) async fn start(targets: Vec<Target>, until: Instant) -> Result<Self, ConnectError> {
        let (releases, orders) = mpsc::channel(QUEUED_RELEASES);
        let links = match targets.len() {
            1 => CONNECTIONS,
            nodes => nodes,
        };
        let shared = Arc::new(Shared::new(targets, Pool::new(links), releases));
        let alive = watch::Sender::new(());
        let releaser = release::work(Arc::clone(&shared), orders);
        spawn(&alive, releaser);
        for index in 0..links {
            spawn(&alive, keeper::keep(Arc::clone(&shared), index));
        }
        // From here on, dropping it ends the tasks.
        let client = Self(Arc::new(Handle { shared, alive }));
        match client.shared().pool.first(until).await {
            Ok(()) => Ok(client),
            Err(error) => Err(hint::connect_error(client.shared().target(0), &error)),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("address", &self.shared().target(0).address)
            .finish_non_exhaustive()
    }
}

/// Closes the client when the last clone and ticket are gone.
struct Handle {
    shared: Arc<Shared>,
    /// Every task holds a receiver.
    alive: watch::Sender<()>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.advance(Phase::Closing);
    }
}

fn spawn(alive: &watch::Sender<()>, task: impl Future<Output = ()> + Send + 'static) {
    let alive = alive.subscribe();
    tokio::spawn(async move {
        task.await;
        drop(alive);
    });
}
