//! The right to work under a lock, and its end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use highwater_lock::{Domain, Fence, FenceKey, FencingToken, KeySet, Mark};
use highwater_protocol::SpanMillis;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::extend::{self, Grant};
use crate::life::Life;
use crate::options::Terms;
use crate::pool::Pool;
use crate::release::{self, Order};
use crate::shared::{Busy, Shared};
use crate::system::{self, Moment};
use crate::{ExtendError, Lost, Release, ReleaseError, trace};

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
    // Declared first: no extension outlives the ticket.
    keeper: Option<Keeper>,
    // Declared before the client, so that its release is queued before the last client may close.
    held: Held,
    life: Arc<Life>,
    client: Client,
}

impl Ticket {
    pub(crate) fn new(mut held: Held, client: Client, terms: &Terms) -> Self {
        held.claimed = true;
        held.min_hold = terms.min_hold;
        let life = Arc::new(Life::new(held.valid_before));
        let keeper = terms.keep.map(|max_hold| {
            let granted = held.valid_before.minus(terms.lease);
            let work = extend::keep(
                Arc::clone(&held.shared),
                held.grant.clone(),
                Arc::clone(&life),
                terms.lease,
                granted.plus(max_hold),
            );
            Keeper(held.shared.runtime.spawn(work))
        });
        Self {
            keeper,
            held,
            life,
            client,
        }
    }

    /// The fencing token: higher than that of every earlier holder in this domain.
    pub fn token(&self) -> FencingToken {
        self.held.grant.token
    }

    /// What is locked.
    pub fn keys(&self) -> &KeySet {
        &self.held.grant.keys
    }

    /// Which of the slots is held, from 0 up; `None` for a plain lock.
    pub fn slot(&self) -> Option<u32> {
        self.held.grant.slot
    }

    /// Which start of which lock service the token belongs to; learnt on the connection over
    /// which it was granted.
    pub fn domain(&self) -> Domain {
        self.held.grant.domain
    }

    /// The moment until which nobody else can hold the lock, as far as this process can know.
    ///
    /// It is the lease counted from before the request was sent, thus earlier than what the
    /// server counts; an extension moves it. Where the wait took a good part of the lease, the
    /// client has asked the server for the lease again after the grant, and counts from there.
    ///
    /// Leases are counted on a clock that runs on while the machine is suspended, where the system
    /// has one (Linux and Android); elsewhere a suspend may go unnoticed. This is the same moment
    /// on the monotonic clock, as it stands now: a suspend from here on brings it nearer, so ask
    /// [`Ticket::is_valid`] or [`Ticket::remaining`] rather than keeping it.
    pub fn valid_before(&self) -> std::time::Instant {
        self.life.valid_before().clock().into_std()
    }

    /// Whether [`Ticket::valid_before`] has not come yet, and nothing else has ended the ticket.
    /// Once it is `false` it stays so. Good for giving up early; only the fence makes a write safe.
    pub fn is_valid(&self) -> bool {
        self.ended().is_none()
    }

    /// What is left until [`Ticket::valid_before`]; zero when the ticket is not valid.
    pub fn remaining(&self) -> Duration {
        match self.ended() {
            None => self.life.valid_before().remaining(),
            Some(_) => Duration::ZERO,
        }
    }

    pub(crate) fn ended(&self) -> Option<Lost> {
        if self.life.lost().is_none() && self.pool().is_domain_gone(self.domain()) {
            // Kept, because the domain could come back, and the ticket may not.
            self.life.end(Lost::DomainChanged);
        }
        self.life.lost()
    }

    fn pool(&self) -> &Pool {
        &self.held.shared.pool
    }

    /// Completes when the ticket is no longer worth anything: its time is over, the lock service
    /// has started anew, or the server did not know the token at an extension.
    ///
    /// It can only speak while this process runs, and after a suspend of the machine up to a
    /// second late. Dropping the future changes nothing; any number of them may wait, and they
    /// outlive the ticket without keeping it.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        let (life, shared) = (Arc::clone(&self.life), Arc::clone(&self.held.shared));
        let domain = self.domain();
        async move {
            let lost = tokio::select! {
                biased;
                lost = life.over() => return lost,
                () = shared.pool.domain_gone(domain) => Lost::DomainChanged,
            };
            life.end(lost);
            lost
        }
    }

    /// Lengthens the lease: the lock is then held for at least `lease` from now, 1 ms to 1 h.
    ///
    /// A lease is never shortened by it. Repeated, over any connection, until the answer is
    /// certain, for at most 5 s and while the ticket is valid. Dropping the future leaves open
    /// whether the server has lengthened the lease; the ticket then counts what it counted before.
    ///
    /// # Errors
    /// See [`ExtendError`]. A lost ticket is never revived.
    pub async fn extend(&self, lease: Duration) -> Result<(), ExtendError> {
        self.extending(lease).await
    }

    /// The same without borrowing the ticket.
    pub(crate) fn extending(
        &self,
        lease: Duration,
    ) -> impl Future<Output = Result<(), ExtendError>> + Send + use<> {
        let (life, shared) = (Arc::clone(&self.life), Arc::clone(&self.held.shared));
        let grant = self.held.grant.clone();
        async move {
            let lease = extend::whole_millis(lease).ok_or(ExtendError::InvalidLease { lease })?;
            extend::extend(&shared, &grant, &life, lease).await
        }
    }

    /// What a fenced transaction offers to the database: every key with the token, and the domain.
    ///
    /// The key of a slot is the name, a space and the number of the slot: every slot has a mark of
    /// its own, so that its holder is compared with those before it and not with its neighbours.
    pub fn fence(&self) -> Fence {
        let Grant {
            keys,
            token,
            domain,
            slot,
        } = self.held.grant.clone();
        let marks = keys.keys().iter().map(|key| Mark {
            key: slot.map_or_else(|| key.into(), |slot| FenceKey::slot(key, slot)),
            token,
        });
        Fence::from_marks(domain, marks).expect("a set has keys, and all of them have one token")
    }

    /// The same, got to no use: its release does not keep it from others.
    pub(crate) fn unused(mut self) -> Self {
        self.held.min_hold = SpanMillis::ZERO;
        self
    }

    /// Where the tasks of its client live.
    pub(crate) fn runtime(&self) -> Handle {
        self.held.shared.runtime.clone()
    }

    /// Has a closing client wait.
    pub(crate) fn busy(&self) -> Busy {
        self.held.shared.busy()
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
        self.release_counting().await.1
    }

    /// The same, with the number of attempts before that had no certain answer.
    pub(crate) async fn release_counting(self) -> (u32, Result<Release, ReleaseError>) {
        // A closing client lets it finish. Declared first: what is dropped here and still owed is
        // queued for the background before the client stops waiting.
        let _busy = self.held.shared.busy();
        let mut ticket = self;
        ticket.keeper = None;
        let order = ticket.held.order();
        let span = trace::release_span(&order);
        let release = release::release_counting(ticket.client.shared(), &order);
        let outcome = trace::within(span, release).await;
        ticket.held.owed = false;
        outcome
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("keys", self.keys())
            .field("token", &self.token())
            .field("domain", &self.domain())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// Extends the lease until it is dropped.
struct Keeper(JoinHandle<()>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A grant, from the moment its frame was read: whoever drops it releases it.
pub(crate) struct Held {
    pub(crate) grant: Grant,
    /// At the time of the grant.
    pub(crate) valid_before: Moment,
    /// Whoever gets a grant to no use does not keep it from others.
    pub(crate) min_hold: SpanMillis,
    pub(crate) shared: Arc<Shared>,
    /// Whether it must be released when it is dropped.
    pub(crate) owed: bool,
    /// Whether it has found its caller.
    pub(crate) claimed: bool,
}

impl Held {
    fn order(&self) -> Order {
        Order {
            keys: self.grant.keys.clone(),
            token: self.grant.token,
            domain: self.grant.domain,
            until: system::now() + release::BUDGET,
            min_hold: self.min_hold,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.owed {
            if !self.claimed {
                self.shared.counts.unwanted.add();
                trace::unwanted(&self.grant.keys, self.grant.token);
            }
            self.shared.release_later(self.order());
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({} by {})", self.grant.keys, self.grant.token)
    }
}
