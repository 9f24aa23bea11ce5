//! The right to work under a lock, and its end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use highwater_lock::{Domain, Fence, FencingToken, KeySet, Mark};
use tokio::time::{Instant, sleep_until};

use crate::client::Client;
use crate::release::{self, Order};
use crate::shared::Shared;
use crate::system;
use crate::{Lost, Release, ReleaseError};

/// Holds one lock, or several under one token, until it is released, dropped or expired.
///
/// A ticket proves nothing by itself: a process can be paused for longer than its lease and not
/// notice. So give [`Ticket::fence`] to every transaction that writes what the lock protects, and
/// the database refuses the write of a ticket that has a successor.
///
/// Dropping a ticket asks for the release in the background and does not wait for it; that is
/// best effort, and the lease ends the lock at the latest. A ticket keeps its client's
/// connections open.
#[must_use = "the lock is released when the ticket is dropped"]
pub struct Ticket {
    // Declared first, so that its release is queued before the last client may close.
    held: Held,
    client: Client,
}

impl Ticket {
    pub(crate) fn new(held: Held, client: Client) -> Self {
        Self { held, client }
    }

    /// The fencing token: higher than that of every earlier holder in this domain.
    pub fn token(&self) -> FencingToken {
        self.held.token
    }

    /// What is locked.
    pub fn keys(&self) -> &KeySet {
        &self.held.keys
    }

    /// Which start of which lock service the token belongs to; learnt on the connection over
    /// which it was granted.
    pub fn domain(&self) -> Domain {
        self.held.domain
    }

    /// The moment until which nobody else can hold the lock, as far as this process can know.
    ///
    /// It is the lease counted from before the request was sent, thus earlier than what the
    /// server counts. Where the wait took a good part of the lease, the client has asked the
    /// server for the lease again after the grant, and counts from there; a server of the base
    /// protocol does not offer that, and then the moment may have passed already. The clock is
    /// the monotonic one of the system and may stand still during a suspend.
    pub fn valid_before(&self) -> std::time::Instant {
        self.held.valid_before.into_std()
    }

    /// Whether [`Ticket::valid_before`] has not come yet. Good for giving up early; only the fence
    /// makes a write safe.
    pub fn is_valid(&self) -> bool {
        system::now() < self.held.valid_before
    }

    /// What is left until [`Ticket::valid_before`].
    pub fn remaining(&self) -> Duration {
        self.held
            .valid_before
            .saturating_duration_since(system::now())
    }

    /// Completes when the ticket is no longer worth anything: its time is over, or the lock
    /// service has started anew. It can only speak while this process runs. Dropping the future
    /// changes nothing.
    pub async fn lost(&self) -> Lost {
        tokio::select! {
            biased;
            () = sleep_until(self.held.valid_before) => Lost::Expired,
            () = self.client.shared().pool.domain_gone(self.held.domain) => Lost::DomainChanged,
        }
    }

    /// What a fenced transaction offers to the database: every key with the token, and the domain.
    pub fn fence(&self) -> Fence {
        let token = self.held.token;
        let marks = self.held.keys.keys().iter().map(|key| Mark {
            key: key.into(),
            token,
        });
        Fence::from_marks(self.held.domain, marks)
            .expect("a set has keys, and all of them have one token")
    }

    /// Gives the lock back and says what came of it, at most 5 s later.
    ///
    /// Sent again, over any connection to the same domain, until the answer is certain; the token
    /// makes that harmless, for it can never end the lock of a successor. Dropping the future
    /// leaves the release to the background, like dropping the ticket.
    ///
    /// # Errors
    /// The outcome is not known.
    pub async fn release(self) -> Result<Release, ReleaseError> {
        // A closing client lets it finish. Declared first: what is dropped here and still owed is
        // queued for the background before the client stops waiting.
        let _busy = self.held.shared.busy();
        let mut ticket = self;
        let order = ticket.held.order();
        let outcome = release::release(ticket.client.shared(), &order).await;
        ticket.held.owed = false;
        outcome
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("keys", &self.held.keys)
            .field("token", &self.held.token)
            .field("domain", &self.held.domain)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// A grant, from the moment its frame was read: whoever drops it releases it.
pub(crate) struct Held {
    pub(crate) keys: KeySet,
    pub(crate) token: FencingToken,
    pub(crate) domain: Domain,
    pub(crate) valid_before: Instant,
    pub(crate) shared: Arc<Shared>,
    /// Whether it must be released when it is dropped.
    pub(crate) owed: bool,
}

impl Held {
    fn order(&self) -> Order {
        Order {
            keys: self.keys.clone(),
            token: self.token,
            domain: self.domain,
            until: system::now() + release::BUDGET,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.owed {
            self.shared.release_later(self.order());
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({} by {})", self.keys, self.token)
    }
}
