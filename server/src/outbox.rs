//! The replies that wait to be sent on one connection.
//!
//! Whoever decides a reply puts it here without waiting; the connection's own task takes it away
//! and sends it. A grant travels with its reply, so that one which never leaves can be given
//! back. The box is bounded: a reader that lets it run over loses its connection.

use std::sync::{Mutex, MutexGuard, PoisonError};

use highwater_lock::{FencingToken, KeySet, Timestamp};
use highwater_protocol::Reply;
use tokio::sync::Notify;

/// A lock that is held as soon as its reply has left; given back if it never does.
#[derive(Clone, Debug)]
pub(crate) struct UnsentGrant {
    pub(crate) keys: KeySet,
    pub(crate) token: FencingToken,
    /// When the lock became free for it, if somebody else had it before.
    pub(crate) handed_over: Option<Timestamp>,
}

/// Encoded replies in order, and the grants among them.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) bytes: Vec<u8>,
    /// Each with the offset in `bytes` at which its reply ends; increasing.
    pub(crate) grants: Vec<(usize, UnsentGrant)>,
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Outbox {
    limit: usize,
    content: Mutex<Content>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Content {
    batch: Batch,
    overflowed: bool,
    /// Somebody was told to announce what came since it was emptied.
    to_announce: bool,
}

impl Outbox {
    /// An empty box for at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            content: Mutex::default(),
            filled: Notify::new(),
        }
    }

    /// Adds a reply, with its grant if it is one. Never waits.
    ///
    /// Returns whether the caller has to [`announce`](Self::announce) it: only the first one since the
    /// box was emptied, so that what is decided together is sent together.
    #[must_use = "the connection does not look by itself"]
    pub(crate) fn push(&self, reply: &Reply, grant: Option<UnsentGrant>) -> bool {
        let mut content = self.content();
        if content.overflowed {
            // Nothing is sent any more. The grant is kept only to be given back.
            let end = content.batch.bytes.len();
            content.batch.grants.extend(grant.map(|grant| (end, grant)));
            return false;
        }
        if content.batch.bytes.is_empty() {
            content.batch.bytes.reserve(SOME_REPLIES);
        }
        reply.encode(&mut content.batch.bytes);
        let end = content.batch.bytes.len();
        content.batch.grants.extend(grant.map(|grant| (end, grant)));
        if end > self.limit {
            content.overflowed = true;
            content.batch.bytes = Vec::new();
            return true;
        }
        !std::mem::replace(&mut content.to_announce, true)
    }

    /// Adds a reply and announces it.
    #[cfg(feature = "cluster")]
    pub(crate) fn deliver(&self, reply: &Reply, grant: Option<UnsentGrant>) {
        if self.push(reply, grant) {
            self.announce();
        }
    }

    /// Wakes the connection to look into its box.
    pub(crate) fn announce(&self) {
        self.filled.notify_one();
    }

    /// Waits until something in the box was announced since the last time.
    pub(crate) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Takes everything out.
    ///
    /// # Errors
    /// The box ran over: the connection must end.
    pub(crate) fn take(&self) -> Result<Batch, Overflow> {
        let mut content = self.content();
        if content.overflowed {
            return Err(Overflow);
        }
        content.to_announce = false;
        Ok(std::mem::take(&mut content.batch))
    }

    /// The bytes that wait. To be asked before anything is done that fills the box, and whenever it
    /// was announced: while the peer takes nothing, nothing is taken out either.
    ///
    /// # Errors
    /// The box ran over: the connection must end.
    pub(crate) fn waiting_bytes(&self) -> Result<usize, Overflow> {
        let content = self.content();
        if content.overflowed {
            return Err(Overflow);
        }
        Ok(content.batch.bytes.len())
    }

    /// Takes out the grants that were never sent, at the end of the connection.
    pub(crate) fn close(&self) -> Vec<UnsentGrant> {
        let mut content = self.content();
        content.overflowed = true;
        let batch = std::mem::take(&mut content.batch);
        batch.grants.into_iter().map(|(_, grant)| grant).collect()
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room for the replies of a short batch, in bytes.
const SOME_REPLIES: usize = 256;

/// The reader is too slow for the bound on waiting replies.
#[derive(Debug)]
pub(crate) struct Overflow;
