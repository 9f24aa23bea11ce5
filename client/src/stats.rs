//! What a client has done since it was made, counted.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{AcquireError, Release, ReleaseError};

/// What a client and all its clones have done since it was made.
///
/// Each number is exact and only grows; they are read one after the other, so two of them need not
/// be of the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Connections that were opened and let in.
    pub connected: u64,
    /// Attempts to open one that failed.
    pub connects_failed: u64,
    /// Connections that ended before the client did.
    pub disconnected: u64,
    /// Acquires that gave a ticket.
    pub acquired: u64,
    /// Acquires whose wait ended at the server.
    pub timed_out: u64,
    /// Acquires whose wait ended before they were sent.
    pub not_sent: u64,
    /// Acquires that the server refused at one of its limits.
    pub busy: u64,
    /// Acquires with an unknown outcome.
    pub indeterminate: u64,
    /// Grants that came with too little of their lease, and were released.
    pub too_short: u64,
    /// Acquires that ended in any other way, except by dropping their future.
    pub acquires_failed: u64,
    /// Grants that arrived after their caller had gone, and were released.
    pub unwanted: u64,
    /// Locks that were released, by a call or in the background.
    pub released: u64,
    /// Releases whose token did not hold the keys any more.
    pub not_current: u64,
    /// Releases with an unknown outcome or that were refused.
    pub releases_failed: u64,
    /// Tickets that were dropped when no more could be queued, or after the end of the client:
    /// their locks are kept until the leases end.
    pub releases_dropped: u64,
    /// Leases that were extended, by a call or by themselves.
    pub extended: u64,
    /// Extensions that failed.
    pub extensions_failed: u64,
}

/// The counters behind [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) connected: Counter,
    pub(crate) connects_failed: Counter,
    pub(crate) disconnected: Counter,
    acquired: Counter,
    timed_out: Counter,
    not_sent: Counter,
    busy: Counter,
    indeterminate: Counter,
    too_short: Counter,
    acquires_failed: Counter,
    pub(crate) unwanted: Counter,
    released: Counter,
    not_current: Counter,
    releases_failed: Counter,
    pub(crate) releases_dropped: Counter,
    pub(crate) extended: Counter,
    pub(crate) extensions_failed: Counter,
}

impl Counts {
    /// Counts how an acquire ended.
    pub(crate) fn acquired<T>(&self, outcome: &Result<T, AcquireError>) {
        let counter = match outcome {
            Ok(_) => &self.acquired,
            Err(AcquireError::TimedOut) => &self.timed_out,
            Err(AcquireError::NotSent) => &self.not_sent,
            Err(AcquireError::Busy) => &self.busy,
            Err(AcquireError::Indeterminate) => &self.indeterminate,
            Err(AcquireError::TooShort { .. }) => &self.too_short,
            Err(_) => &self.acquires_failed,
        };
        counter.add();
    }

    /// Counts how a release ended.
    pub(crate) fn released(&self, outcome: Result<Release, ReleaseError>) {
        let counter = match outcome {
            Ok(Release::Released) => &self.released,
            Ok(Release::NotCurrent) => &self.not_current,
            Err(_) => &self.releases_failed,
        };
        counter.add();
    }

    pub(crate) fn read(&self) -> Stats {
        Stats {
            connected: self.connected.get(),
            connects_failed: self.connects_failed.get(),
            disconnected: self.disconnected.get(),
            acquired: self.acquired.get(),
            timed_out: self.timed_out.get(),
            not_sent: self.not_sent.get(),
            busy: self.busy.get(),
            indeterminate: self.indeterminate.get(),
            too_short: self.too_short.get(),
            acquires_failed: self.acquires_failed.get(),
            unwanted: self.unwanted.get(),
            released: self.released.get(),
            not_current: self.not_current.get(),
            releases_failed: self.releases_failed.get(),
            releases_dropped: self.releases_dropped.get(),
            extended: self.extended.get(),
            extensions_failed: self.extensions_failed.get(),
        }
    }
}

/// One number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
