//! What can come out of a call: honest outcomes, one small type per operation.

use std::time::Duration;
use std::{fmt, io};

use highwater_protocol::ErrorCode;
use highwater_protocol::handshake::HelloError;

use crate::hint::ConnectHint;

/// Why there is no [`Client`](crate::Client).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address is not `HOST:PORT`. Correct it.
    #[error("{address:?} is not an address of the form HOST:PORT")]
    InvalidAddress {
        /// What was given.
        address: String,
    },
    /// A cluster has 3 or 5 nodes, each with an address of its own, in the order of the slots, and
    /// none is reached through a dialer. Correct the list.
    #[error("{nodes} addresses, or a dialer, are not a cluster")]
    InvalidCluster {
        /// How many addresses were given.
        nodes: usize,
    },
    /// The name to look for in the server's certificate is not one. Give another with
    /// [`ClientTls::server_name`](crate::ClientTls::server_name).
    #[error("{name:?} cannot be the name in a certificate")]
    InvalidServerName {
        /// What was given, or the host of the address.
        name: String,
    },
    /// The server does not know this client token. Correct it; trying again does not help.
    #[error("the server refused the client token")]
    Unauthenticated,
    /// Something else than the server, or than the node of the cluster, answers there. Correct the address.
    #[error("another program or another mode answers at this address")]
    WrongServer(#[source] HelloError),
    /// No trustworthy encrypted connection is possible: an unknown authority, another name, or
    /// no TLS at the other end. Correct the configuration.
    #[error("the encrypted connection to {address} was refused: {hint}")]
    Tls {
        /// Where the server should be.
        address: String,
        /// What to look at first.
        hint: ConnectHint,
        /// What the TLS library says.
        source: io::Error,
    },
    /// The system gave no thread or no runtime to the blocking client. Free some, then try again.
    #[error("the client's thread could not be started")]
    Thread(#[source] io::Error),
    /// Nothing that can be used answered in time. Trying again later may help.
    #[error("no server could be reached at {address} in time: {hint}")]
    Unreachable {
        /// Where the server should be.
        address: String,
        /// What to look at first.
        hint: ConnectHint,
        /// What came of the last attempt.
        source: io::Error,
    },
}

/// Why there is no ticket.
///
/// For every variant except [`AcquireError::Indeterminate`] it is certain that this call holds
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Others held the keys, or stood before, for the whole wait. Try again when it suits.
    #[error("the wait ended before the lock was free")]
    TimedOut,
    /// The wait was over before the request was sent, so nobody was asked: this client has as many
    /// acquires without an answer as it may (1,024 for each connection), or the connection took
    /// nothing more. Slow down, or wait for longer.
    #[error("the wait ended before the request was sent")]
    NotSent,
    /// The server has reached one of its limits. Slow down, then try again.
    #[error("the server is at one of its limits")]
    Busy,
    /// No connection for the whole wait. The client goes on connecting; try again.
    #[error("there was no connection to the server")]
    NotConnected,
    /// The server does not accept the client token (any more). Correct the configuration.
    #[error("the server refused the client token")]
    Unauthenticated,
    /// The request was sent and no answer came, or the server itself could not say. The keys may
    /// be held by a token that nobody knows until the lease ends. Do not enter the protected
    /// work; asking again is safe and waits for that lease at worst.
    #[error("the request was sent, and its outcome is unknown")]
    Indeterminate,
    /// The server refused the request itself, or was not ready during the whole wait
    /// ([`ErrorCode::NotActive`], [`ErrorCode::NoLeader`]: try again later).
    #[error("the server refused the request: {0}")]
    Rejected(ErrorCode),
    /// The wait is longer than a server accepts. Ask for less; waits can be repeated.
    #[error("a wait of {wait:?} is above 1 h")]
    InvalidWait {
        /// What was asked for.
        wait: Duration,
    },
    /// The lease is zero or longer than a server gives. Ask for another one.
    #[error("a lease of {lease:?} is not above 0 and at most 1 h")]
    InvalidLease {
        /// What was asked for.
        lease: Duration,
    },
    /// [`AcquireOptions::min_work`](crate::AcquireOptions::min_work) is longer than the lease. Ask
    /// for a longer lease.
    #[error("work of {min_work:?} does not fit into the lease")]
    InvalidMinWork {
        /// What was asked for.
        min_work: Duration,
    },
    /// [`AcquireOptions::min_hold`](crate::AcquireOptions::min_hold) is longer than the lease. Ask
    /// for a longer lease.
    #[error("a minimum hold of {min_hold:?} is longer than the lease")]
    InvalidMinHold {
        /// What was asked for.
        min_hold: Duration,
    },
    /// A lease this short cannot be extended in time by itself. Ask for 300 ms or more.
    #[error("a lease of {lease:?} is too short to be extended by itself")]
    LeaseTooShortToExtend {
        /// What was asked for.
        lease: Duration,
    },
    /// The lock was granted, and too little of its lease was left when that became known. It was
    /// let go in the background. Ask for a longer lease or a shorter wait.
    #[error("only {remaining:?} of the lease were left")]
    TooShort {
        /// What was left.
        remaining: Duration,
    },
    /// The server does not have the extensions of the protocol that are needed for what was asked
    /// for. Nothing was sent. Ask for less, or use a newer server.
    #[error("the server does not offer what was asked for")]
    Unsupported,
    /// The client was closed. Make a new one.
    #[error("the client is closed")]
    Closed,
}

/// Why there is no answer to a query. Nothing has changed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// No answer came within 5 s, or there was no connection. Ask again.
    #[error("there was no answer in time")]
    NoAnswer,
    /// The server does not accept the client token (any more). Correct the configuration.
    #[error("the server refused the client token")]
    Unauthenticated,
    /// The server does not have this extension of the protocol.
    #[error("the server cannot be asked for locks")]
    Unsupported,
    /// The server refused the request itself.
    #[error("the server refused the query: {0}")]
    Rejected(ErrorCode),
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

/// Why a lease was not extended. What was valid before stays so, except after
/// [`ExtendError::Lost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The ticket is no longer worth anything. Stop the work; acquire again if it must go on.
    #[error("the lock is lost: {0}")]
    Lost(Lost),
    /// No certain answer came within 5 s. Extend again while the ticket is valid.
    #[error("the outcome of the extension is unknown")]
    Unknown,
    /// The lease is below a millisecond or above an hour. Ask for another one.
    #[error("a lease of {lease:?} is not between 1 ms and 1 h")]
    InvalidLease {
        /// What was asked for.
        lease: Duration,
    },
    /// The server speaks only the base protocol, which has no extension.
    #[error("the server cannot extend a lease")]
    Unsupported,
    /// The server refused the request itself.
    #[error("the server refused the extension: {0}")]
    Rejected(ErrorCode),
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

/// What a release came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Release {
    /// The keys were held by the ticket's token until now, and went to the next in line; with a
    /// [minimum hold](crate::AcquireOptions::min_hold), when that is over.
    Released,
    /// The ticket's token did not hold the keys. The lease had ended, or the lock service has
    /// started anew (another domain); or the answer to an earlier attempt of this same release
    /// got lost. Never does a successor lose its lock by this.
    NotCurrent,
}

/// Why the outcome of a release is not known. The lease ends the lock at the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// No certain answer came within 5 s. Nothing to do: the lock is free, or will be when its
    /// lease ends.
    #[error("the outcome of the release is unknown")]
    Unknown,
    /// The server refused the request itself, which a ticket of this client should never see.
    #[error("the server refused the release: {0}")]
    Rejected(ErrorCode),
    /// The client was closed before. The lock is free when its lease ends.
    #[error("the client is closed")]
    Closed,
}

/// Why a ticket is no longer worth anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lost {
    /// Its lease may have ended.
    Expired,
    /// The lock service has started anew without memory of it.
    DomainChanged,
    /// The server says that its token does not hold the keys: the lease ended there, or somebody
    /// released it with the same token or by force.
    NotHeld,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease may have ended",
            Self::DomainChanged => "the lock service has started anew",
            Self::NotHeld => "the server does not know its token any more",
        })
    }
}
