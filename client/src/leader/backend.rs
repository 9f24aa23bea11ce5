//! What an elector needs of a lock service, so that others can bring their own.
//!
//! A backend takes locks and tells what holds them. Everything else (extensions in time, loss,
//! events, the order of release and extension) is done by the elector, the same for all backends.

use std::fmt;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use highwater_lock::{Domain, Fence, FenceKey, FencingToken, Key};

use super::{Cause, NodeId, RenewError};
use crate::{Lost, Release};

/// A future that owns what it needs.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// A lock service in which leaders are elected.
///
/// # What an implementation promises
/// - One name has one living lease at most, or one for each slot. Tokens of one domain grow with
///   every election, of whatever name.
/// - An acquire ends soon after its wait. Dropping its future gives the place in the queue up, and
///   a lease that was granted all the same is released.
/// - `Ok(None)` means contention and nothing else.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use highwater_client::Key;
/// use highwater_client::leader::{
///     Backend, BackendError, BoxFuture, Candidacy, Clock, LeaderState, Lease,
/// };
///
/// /// Elects nobody while the service is closed for the night.
/// struct ByDay<B> {
///     inner: B,
///     night: Arc<AtomicBool>,
/// }
///
/// impl<B: Backend> Backend for ByDay<B> {
///     fn acquire(
///         &self,
///         candidacy: Candidacy,
///     ) -> BoxFuture<Result<Option<Arc<dyn Lease>>, BackendError>> {
///         if self.night.load(Ordering::Relaxed) {
///             return Box::pin(async { Ok(None) });
///         }
///         self.inner.acquire(candidacy)
///     }
///
///     fn state(&self, name: Key) -> BoxFuture<Result<LeaderState, BackendError>> {
///         self.inner.state(name)
///     }
///
///     fn clock(&self) -> Arc<dyn Clock> {
///         self.inner.clock()
///     }
/// }
/// ```
pub trait Backend: Send + Sync + 'static {
    /// Waits for the leadership; `None` when others had it for the whole wait.
    fn acquire(
        &self,
        candidacy: Candidacy,
    ) -> BoxFuture<Result<Option<Arc<dyn Lease>>, BackendError>>;

    /// Asks what holds a name. It changes nothing.
    fn state(&self, name: Key) -> BoxFuture<Result<LeaderState, BackendError>>;

    /// The clock by which the elector sleeps and counts. The default is Tokio's.
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(TokioClock::default())
    }
}

impl<B: Backend + ?Sized> Backend for Arc<B> {
    fn acquire(
        &self,
        candidacy: Candidacy,
    ) -> BoxFuture<Result<Option<Arc<dyn Lease>>, BackendError>> {
        (**self).acquire(candidacy)
    }

    fn state(&self, name: Key) -> BoxFuture<Result<LeaderState, BackendError>> {
        (**self).state(name)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        (**self).clock()
    }
}

/// One lease that a [`Backend`] gave, until it is released or lost.
pub trait Lease: Send + Sync + 'static {
    /// What was granted.
    fn grant(&self) -> &Grant;

    /// What is certainly left of the lease now, counted from before it was asked for; or why
    /// nothing is. Once an error it stays one.
    ///
    /// # Errors
    /// Why the lease is over.
    fn remaining(&self) -> Result<Duration, Lost>;

    /// Completes when the backend learns that the lease is over, without having been asked. That its
    /// time has passed the elector sees by itself.
    fn lost(&self) -> BoxFuture<Lost>;

    /// Lengthens the lease so that it lasts at least so long from now; never shortens it. An answer
    /// that the lease is not held is [`NotLeader::Lost`](super::NotLeader::Lost), and final.
    ///
    /// It can be called again before an earlier future is over, but no two of them are called or polled
    /// at the same time, and all of them are dropped before the release.
    fn extend(&self, lease: Duration) -> BoxFuture<Result<(), RenewError>>;

    /// Gives the lease back; the rest of the minimum lease is kept from everybody. From this call
    /// on it can neither be extended nor be used.
    ///
    /// The call alone must be enough: dropping its future leaves the release to the background.
    fn release(&self) -> BoxFuture<Result<Release, BackendError>>;

    /// Gives a lease back under which nobody led: like [`Lease::release`], but without the minimum
    /// lease, because nothing was done that should not be repeated.
    ///
    /// Unless a backend does better, the minimum is kept.
    fn decline(&self) -> BoxFuture<Result<Release, BackendError>> {
        self.release()
    }
}

/// What a candidate asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidacy {
    /// What to lead.
    pub name: Key,
    /// How many may lead at once; `None` for one leader.
    pub slots: Option<NonZeroU32>,
    /// Who asks.
    pub node: NodeId,
    /// How long to wait; zero is one try.
    pub wait: Duration,
    /// How long the lease lasts.
    pub lease: Duration,
    /// How long after the grant nobody else may have it, also after a release.
    pub min_lease: Duration,
    /// Whether the lease will be extended. A service that cannot do that refuses.
    pub auto_extend: bool,
}

impl Candidacy {
    /// One try for a lease of 60 s without a minimum. Change the fields.
    pub fn new(name: Key, node: NodeId) -> Self {
        Self {
            name,
            slots: None,
            node,
            wait: Duration::ZERO,
            lease: Duration::from_secs(60),
            min_lease: Duration::ZERO,
            auto_extend: false,
        }
    }
}

/// What a lease is for, and the number that orders it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// What is led.
    pub name: Key,
    /// Which slot, for a group.
    pub slot: Option<u32>,
    /// Higher than that of every earlier leader in this domain.
    pub token: FencingToken,
    /// The token counter.
    pub domain: Domain,
}

impl Grant {
    /// What a fenced transaction offers to the database. The key of a slot is the name, a space and
    /// the number of the slot, so that leaders of one group do not fence each other out.
    pub fn fence(&self) -> Fence {
        let key = match self.slot {
            Some(slot) => FenceKey::slot(&self.name, slot),
            None => FenceKey::from(&self.name),
        };
        Fence::new(self.domain, key, self.token)
    }
}

/// What holds a name, as it was when the service answered. For people and dashboards: it may be
/// old when it arrives, and is never a reason to write anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderState {
    /// What was asked for.
    pub name: Key,
    /// How many may lead at once; `None` for one leader, and for a name that nobody uses.
    pub slots: Option<NonZeroU32>,
    /// The leaders, by slot; and the slots that a minimum lease keeps.
    pub holders: Vec<Holder>,
    /// How many candidates wait.
    pub waiting: u32,
}

impl LeaderState {
    /// Whether nobody leads, and nothing keeps others from it.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty()
    }
}

/// One leader, or what is left of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its token.
    pub token: FencingToken,
    /// Which slot, for a group.
    pub slot: Option<u32>,
    /// Whether it still leads.
    pub standing: Standing,
    /// Who it is, if the backend or this process knows. The Highwater server does not.
    pub node: Option<NodeId>,
}

/// Whether a holder still leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does, for so long unless it extends or releases the lease.
    Held {
        /// What is left of the lease.
        remaining: Duration,
    },
    /// It does not, and nobody can be elected before this is over.
    Retained {
        /// What is left of the minimum lease.
        remaining: Duration,
    },
}

/// Why a backend did not do what it was asked for. Never contention.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// Not reachable, or not ready. Nothing is held by this call; try again later.
    #[error("the lock service cannot be used now")]
    Unavailable(#[source] Cause),
    /// At a limit, of the lock service or of this side: so many wait already. Nothing is held by this
    /// call. It says nothing against the lock service, and somebody may well lead; try again later.
    #[error("too many wait for the lock service")]
    Busy(#[source] Cause),
    /// The request was sent and no answer came. Its lease may be held by nobody until it ends;
    /// asking again is safe and waits for that at worst.
    #[error("the outcome of the request is unknown")]
    Indeterminate(#[source] Cause),
    /// It was granted so late that too little of the lease was left; it is being released. Ask for
    /// a longer lease or a shorter wait.
    #[error("the lease was granted too late to be of use")]
    TooLate,
    /// It will never do this: another number of slots is in use, the credentials are wrong, or it
    /// lacks an ability. Correct the configuration.
    #[error("the lock service refuses this")]
    Rejected(#[source] Cause),
    /// It was closed on this side.
    #[error("the lock service is closed on this side")]
    Closed,
}

impl BackendError {
    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Unavailable(_) | Self::Busy(_) | Self::Indeterminate(_) | Self::TooLate
        )
    }

    /// Whether the lock service itself could not be used: it was not reached, or gave no answer. For
    /// this, and for nothing else, there is a [`FailurePolicy`](super::FailurePolicy).
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Indeterminate(_))
    }
}

/// Time, as an elector and the in-process backend see it.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time since an origin of the clock's own. It never goes back.
    fn elapsed(&self) -> Duration;

    /// Completes when so much time has passed.
    fn sleep(&self, span: Duration) -> BoxFuture<()>;
}

pub use crate::system::TokioClock;
