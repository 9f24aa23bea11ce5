//! The client for programs without async: the same names, and calls that wait.
//!
//! ```no_run
//! use std::time::Duration;
//! use highwater_client::{AcquireOptions, Key, blocking::Client};
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder("locks.example:5225").connect()?;
//! let options = AcquireOptions::new().auto_extend(Duration::from_secs(600));
//! let ticket = client.acquire(&Key::new("report/daily")?, options)?;
//! let fence = ticket.fence(); // for every transaction that writes what the lock protects
//! # drop(fence);
//! ticket.release()?;
//! client.close();
//! # Ok(()) }
//! ```
//!
//! The connections, the extensions and the releases of dropped tickets live in one thread of the
//! client's own, so they go on while the application computes. Every call has a deadline, also if
//! that thread should come to a stop.
//!
//! The calls may be made from any thread. Inside of an async runtime they work, and block the
//! thread that polls, like any other code that waits: there use [`Client`](crate::Client), or
//! `tokio::task::spawn_blocking`.

pub(crate) mod runtime;

use std::fmt;
use std::io::{self, ErrorKind};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use highwater_lock::{Domain, Fence, FencingToken, Key, KeySet};
use highwater_protocol::Secret;
use tokio::io::{AsyncRead, AsyncWrite};

use self::runtime::Runtime;
use crate::acquire;
use crate::limits::{ANSWER_TIME, CLOSE_BOUND, GRACE, ONE_TRY_BUDGET, QUERY_BUDGET};
use crate::{
    AcquireError, AcquireOptions, ClientTls, ConnectError, ConnectHint, ExtendError, Extensions,
    KeyStatus, Lost, QueryError, Release, ReleaseError, Stats,
};

/// Configures a blocking [`Client`]; like [`crate::Builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct Builder {
    address: String,
    connect_time: Duration,
    inner: crate::Builder,
}

impl Builder {
    /// See [`crate::Builder::token`].
    pub fn token(mut self, secret: Secret) -> Self {
        self.inner = self.inner.token(secret);
        self
    }

    /// See [`crate::Builder::tls`].
    pub fn tls(mut self, tls: ClientTls) -> Self {
        self.inner = self.inner.tls(tls);
        self
    }

    /// See [`crate::Builder::connect_time`].
    pub fn connect_time(mut self, time: Duration) -> Self {
        self.connect_time = time;
        self.inner = self.inner.connect_time(time);
        self
    }

    /// See [`crate::Builder::dialer`]. The function is called in the client's thread.
    pub fn dialer<D, F, S>(mut self, dial: D) -> Self
    where
        D: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.inner = self.inner.dialer(dial);
        self
    }

    /// Starts the client's thread and connects; see [`crate::Builder::connect`].
    ///
    /// # Errors
    /// The configuration is wrong, the server cannot be reached in time, or there is no thread.
    pub fn connect(self) -> Result<Client, ConnectError> {
        let runtime = Runtime::start().map_err(ConnectError::Thread)?;
        let connecting = self.inner.connect();
        match runtime.call(self.connect_time.saturating_add(SLACK), connecting) {
            Some(client) => {
                let client = client?;
                runtime.stays_for(client.ended());
                Ok(Client(Arc::new(Inner { client, runtime })))
            }
            None => Err(ConnectError::Unreachable {
                address: self.address,
                hint: ConnectHint::NetworkSilent,
                source: ErrorKind::TimedOut.into(),
            }),
        }
    }
}

/// A client of one lock server, like [`crate::Client`], whose calls block.
///
/// Cloning it is cheap, and all clones share its thread and connections. They end in the
/// background when the last clone and the last ticket are dropped; at the end of a program call
/// [`Client::close`], or the releases of tickets that were just dropped may be cut short.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    // Declared first: when it is dropped, its tasks end; the thread stays until they have.
    client: crate::Client,
    runtime: Runtime,
}

impl Client {
    /// Configures a client of the server at `HOST:PORT`.
    pub fn builder(address: impl fmt::Display) -> Builder {
        let address = address.to_string();
        Builder {
            inner: crate::Client::builder(&address),
            connect_time: crate::builder::CONNECT_TIME,
            address,
        }
    }

    /// Configures a client of a cluster; see [`crate::Client::cluster`].
    pub fn cluster<A: fmt::Display>(
        addresses: impl IntoIterator<Item = A>,
        identity: Domain,
    ) -> Builder {
        let addresses: Vec<String> = addresses.into_iter().map(|a| a.to_string()).collect();
        Builder {
            address: addresses.join(", "),
            inner: crate::Client::cluster(addresses, identity),
            connect_time: crate::builder::CONNECT_TIME,
        }
    }

    /// Waits for its turn and takes the lock; see [`crate::Client::acquire`].
    ///
    /// # Errors
    /// The lock is not held, except perhaps after [`AcquireError::Indeterminate`].
    pub fn acquire(&self, key: &Key, options: AcquireOptions) -> Result<Ticket, AcquireError> {
        self.acquire_set(&KeySet::from(key.clone()), options)
    }

    /// Takes all keys of the set at once, under one token; see [`crate::Client::acquire_set`].
    ///
    /// # Errors
    /// None of the keys is held, except perhaps after [`AcquireError::Indeterminate`].
    pub fn acquire_set(
        &self,
        keys: &KeySet,
        options: AcquireOptions,
    ) -> Result<Ticket, AcquireError> {
        self.take(keys.clone(), None, options)
    }

    /// Waits for one of the slots of a name and takes it; see [`crate::Client::acquire_slot`].
    ///
    /// # Errors
    /// No slot is held, except perhaps after [`AcquireError::Indeterminate`].
    pub fn acquire_slot(
        &self,
        name: &Key,
        slots: NonZeroU32,
        options: AcquireOptions,
    ) -> Result<Ticket, AcquireError> {
        self.take(KeySet::from(name.clone()), Some(slots), options)
    }

    fn take(
        &self,
        keys: KeySet,
        slots: Option<NonZeroU32>,
        options: AcquireOptions,
    ) -> Result<Ticket, AcquireError> {
        let terms = options.check()?;
        let bound = terms.wait.max(ONE_TRY_BUDGET) + 2 * GRACE + SLACK;
        let client = self.0.client.clone();
        let acquire = async move { acquire::acquire(&client, keys, slots, &options).await };
        // A grant that comes later finds nobody, and is released.
        let ticket = self.0.runtime.call(bound, acquire);
        Ok(Ticket {
            ticket: ticket.unwrap_or(Err(AcquireError::Indeterminate))?,
            inner: Arc::clone(&self.0),
        })
    }

    /// Ends the client and all its clones within 5 s; see [`crate::Client::close`].
    pub fn close(&self) {
        let client = self.0.client.clone();
        let _ = self
            .0
            .runtime
            .call(CLOSE_BOUND, async move { client.close().await });
    }

    /// Asks what holds a key and how many wait for it; see [`crate::Client::query`].
    ///
    /// # Errors
    /// See [`QueryError`].
    pub fn query(&self, key: &Key) -> Result<KeyStatus, QueryError> {
        self.query_slots(key, 0)
    }

    /// See [`crate::Client::query_slots`].
    ///
    /// # Errors
    /// See [`QueryError`].
    pub fn query_slots(&self, name: &Key, from_slot: u32) -> Result<KeyStatus, QueryError> {
        let (client, name) = (self.0.client.clone(), name.clone());
        let query = async move { client.query_slots(&name, from_slot).await };
        let outcome = self.0.runtime.call(QUERY_BUDGET + SLACK, query);
        outcome.unwrap_or(Err(QueryError::NoAnswer))
    }

    /// The client in its thread, which lives until the client has ended.
    pub(crate) fn inner(&self) -> &crate::Client {
        &self.0.client
    }

    /// See [`crate::Client::extensions`].
    pub fn extensions(&self) -> Option<Extensions> {
        self.0.client.extensions()
    }

    /// See [`crate::Client::stats`].
    pub fn stats(&self) -> Stats {
        self.0.client.stats()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.client.fmt(f)
    }
}

/// Holds one lock, or several under one token, like [`crate::Ticket`].
///
/// Dropping it asks for the release in the background and does not wait, in any thread.
#[must_use = "the lock is released when the ticket is dropped"]
pub struct Ticket {
    // Declared first, so that its release is queued before the client may end.
    ticket: crate::Ticket,
    inner: Arc<Inner>,
}

impl Ticket {
    /// See [`crate::Ticket::token`].
    pub fn token(&self) -> FencingToken {
        self.ticket.token()
    }

    /// See [`crate::Ticket::keys`].
    pub fn keys(&self) -> &KeySet {
        self.ticket.keys()
    }

    /// See [`crate::Ticket::slot`].
    pub fn slot(&self) -> Option<u32> {
        self.ticket.slot()
    }

    /// See [`crate::Ticket::domain`].
    pub fn domain(&self) -> Domain {
        self.ticket.domain()
    }

    /// See [`crate::Ticket::valid_before`].
    pub fn valid_before(&self) -> Instant {
        self.ticket.valid_before()
    }

    /// See [`crate::Ticket::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.ticket.is_valid()
    }

    /// See [`crate::Ticket::remaining`].
    pub fn remaining(&self) -> Duration {
        self.ticket.remaining()
    }

    /// See [`crate::Ticket::fence`].
    pub fn fence(&self) -> Fence {
        self.ticket.fence()
    }

    /// Waits until the ticket is lost, for so long at most; `None` when it is not lost by then.
    /// See [`crate::Ticket::lost`].
    pub fn lost(&self, within: Duration) -> Option<Lost> {
        self.inner.runtime.call(within, self.ticket.lost())
    }

    /// See [`crate::Ticket::extend`].
    ///
    /// # Errors
    /// See [`ExtendError`].
    pub fn extend(&self, lease: Duration) -> Result<(), ExtendError> {
        let extending = self.ticket.extending(lease);
        let outcome = self.inner.runtime.call(ANSWER_TIME + SLACK, extending);
        outcome.unwrap_or(Err(ExtendError::Unknown))
    }

    /// Gives the lock back and says what came of it; see [`crate::Ticket::release`].
    ///
    /// # Errors
    /// The outcome is not known.
    pub fn release(self) -> Result<Release, ReleaseError> {
        let release = self.ticket.release();
        let outcome = self.inner.runtime.call(ANSWER_TIME + SLACK, release);
        outcome.unwrap_or(Err(ReleaseError::Unknown))
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ticket.fmt(f)
    }
}

/// What a call may take beyond the bound that it has by itself.
const SLACK: Duration = Duration::from_secs(2);
