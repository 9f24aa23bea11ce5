//! The times of an election, checked when they are put together.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::limits::SHORTEST_KEPT_LEASE;

/// Who a candidate is, in events, in the history and for operators. It has no part in the
/// decision who leads: two candidates of one name are still two.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(Arc<str>);

impl NodeId {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Takes a name that is not blank and has at most [`NodeId::MAX_BYTES`].
    ///
    /// # Errors
    /// [`OptionsError::Node`].
    pub fn new(name: impl AsRef<str>) -> Result<Self, OptionsError> {
        let name = name.as_ref();
        if name.trim().is_empty() || name.len() > Self::MAX_BYTES {
            return Err(OptionsError::Node);
        }
        Ok(Self(Arc::from(name)))
    }

    /// A name that nobody else has.
    pub(super) fn random() -> Self {
        let [a, b, c, d] = crate::system::random_bytes();
        Self(Arc::from(format!("node-{a:02x}{b:02x}{c:02x}{d:02x}")))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({:?})", &*self.0)
    }
}

/// What happens to an action whose lease is lost while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossPolicy {
    /// It is dropped at its next await.
    #[default]
    Cancel,
    /// It runs on, and is told by `LeaderContext::lost` and `check`. The outcome says that the lease
    /// was lost all the same.
    Notify,
}

/// How to be elected and for how long; checked, and so always legal.
///
/// ```
/// use std::time::Duration;
/// use highwater_client::leader::LeaderOptions;
///
/// let options = LeaderOptions::builder()
///     .wait(Duration::from_millis(500))
///     .lease(Duration::from_secs(10))
///     .min_lease(Duration::from_secs(1))
///     .auto_extend(true)
///     .node("node-a")
///     .build()?;
/// assert_eq!(options.lease(), Duration::from_secs(10));
/// # Ok::<(), highwater_client::leader::OptionsError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderOptions {
    pub(super) wait: Duration,
    pub(super) lease: Duration,
    pub(super) min_lease: Duration,
    pub(super) auto_extend: bool,
    pub(super) on_loss: LossPolicy,
    pub(super) node: Option<NodeId>,
}

impl LeaderOptions {
    /// Starts from the defaults: a wait of 5 s, a lease of 60 s, no minimum lease, no extension by
    /// itself, cancelled on loss, a random node name.
    pub fn builder() -> LeaderOptionsBuilder {
        LeaderOptionsBuilder {
            options: Self::default(),
            node: None,
        }
    }

    /// The longest wait to be elected.
    pub fn wait(&self) -> Duration {
        self.wait
    }

    /// The time after an election or an extension after which others may be elected.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// The time after an election in which nobody else is elected, even if the action ends early.
    pub fn min_lease(&self) -> Duration {
        self.min_lease
    }

    /// Whether the lease is extended while the action runs.
    pub fn auto_extend(&self) -> bool {
        self.auto_extend
    }

    /// What happens to the action when the lease is lost.
    pub fn on_loss(&self) -> LossPolicy {
        self.on_loss
    }

    /// Who the candidate is, if that was said.
    pub fn node(&self) -> Option<&NodeId> {
        self.node.as_ref()
    }

    pub(super) fn check(self) -> Result<Self, OptionsError> {
        if self.wait > LONGEST {
            return Err(OptionsError::Wait { wait: self.wait });
        }
        if self.lease.is_zero() || self.lease > LONGEST {
            return Err(OptionsError::Lease { lease: self.lease });
        }
        if self.min_lease > self.lease {
            return Err(OptionsError::MinLease {
                min_lease: self.min_lease,
                lease: self.lease,
            });
        }
        if self.auto_extend && self.lease < SHORTEST_KEPT_LEASE {
            return Err(OptionsError::TooShortToExtend { lease: self.lease });
        }
        Ok(self)
    }
}

impl Default for LeaderOptions {
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(5),
            lease: Duration::from_secs(60),
            min_lease: Duration::ZERO,
            auto_extend: false,
            on_loss: LossPolicy::Cancel,
            node: None,
        }
    }
}

/// Puts [`LeaderOptions`] together.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct LeaderOptionsBuilder {
    options: LeaderOptions,
    node: Option<String>,
}

impl LeaderOptionsBuilder {
    /// How long to wait to be elected: 0 (one try) to 1 h.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = wait;
        self
    }

    /// How long the leadership lasts after an election or an extension: above 0, at most 1 h.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// How long after an election nobody else is elected, however early the action ends or fails:
    /// 0 to the lease.
    pub fn min_lease(mut self, min_lease: Duration) -> Self {
        self.options.min_lease = min_lease;
        self
    }

    /// Whether to extend the lease while the action runs, each time a third of it has passed. Needs
    /// a lease of at least 300 ms.
    pub fn auto_extend(mut self, auto_extend: bool) -> Self {
        self.options.auto_extend = auto_extend;
        self
    }

    /// What happens to the action when the lease is lost.
    pub fn on_loss(mut self, policy: LossPolicy) -> Self {
        self.options.on_loss = policy;
        self
    }

    /// Who the candidate is: not blank, at most 128 bytes. Without it a random name is made.
    pub fn node(mut self, node: impl Into<String>) -> Self {
        self.node = Some(node.into());
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn build(self) -> Result<LeaderOptions, OptionsError> {
        let mut options = self.options;
        if let Some(node) = self.node {
            options.node = Some(NodeId::new(node)?);
        }
        options.check()
    }
}

/// How to be elected one of several leaders; checked, and so always legal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderGroupOptions {
    pub(super) each: LeaderOptions,
    pub(super) slots: NonZeroU32,
}

impl LeaderGroupOptions {
    /// Starts from two slots and the defaults of [`LeaderOptions`].
    pub fn builder() -> LeaderGroupOptionsBuilder {
        LeaderGroupOptionsBuilder {
            each: LeaderOptions::builder(),
            slots: 2,
        }
    }

    /// How many may lead at once.
    pub fn slots(&self) -> NonZeroU32 {
        self.slots
    }

    /// Everything else, for each of them.
    pub fn each(&self) -> &LeaderOptions {
        &self.each
    }
}

impl Default for LeaderGroupOptions {
    fn default() -> Self {
        let slots = NonZeroU32::MIN.saturating_add(1);
        Self {
            each: LeaderOptions::default(),
            slots,
        }
    }
}

/// Puts [`LeaderGroupOptions`] together.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct LeaderGroupOptionsBuilder {
    each: LeaderOptionsBuilder,
    slots: u32,
}

impl LeaderGroupOptionsBuilder {
    /// How many may lead at once: at least one. Everybody who uses the name must give the same
    /// number.
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// See [`LeaderOptionsBuilder::wait`].
    pub fn wait(mut self, wait: Duration) -> Self {
        self.each = self.each.wait(wait);
        self
    }

    /// See [`LeaderOptionsBuilder::lease`].
    pub fn lease(mut self, lease: Duration) -> Self {
        self.each = self.each.lease(lease);
        self
    }

    /// See [`LeaderOptionsBuilder::min_lease`].
    pub fn min_lease(mut self, min_lease: Duration) -> Self {
        self.each = self.each.min_lease(min_lease);
        self
    }

    /// See [`LeaderOptionsBuilder::auto_extend`].
    pub fn auto_extend(mut self, auto_extend: bool) -> Self {
        self.each = self.each.auto_extend(auto_extend);
        self
    }

    /// See [`LeaderOptionsBuilder::on_loss`].
    pub fn on_loss(mut self, policy: LossPolicy) -> Self {
        self.each = self.each.on_loss(policy);
        self
    }

    /// See [`LeaderOptionsBuilder::node`].
    pub fn node(mut self, node: impl Into<String>) -> Self {
        self.each = self.each.node(node);
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn build(self) -> Result<LeaderGroupOptions, OptionsError> {
        Ok(LeaderGroupOptions {
            slots: NonZeroU32::new(self.slots).ok_or(OptionsError::NoSlots)?,
            each: self.each.build()?,
        })
    }
}

/// Why options are not legal. Correct them; trying again does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The wait is longer than lock services accept.
    #[error("a wait of {wait:?} is above 1 h")]
    Wait {
        /// What was asked for.
        wait: Duration,
    },
    /// The lease is zero, or longer than lock services give.
    #[error("a lease of {lease:?} is not above 0 and at most 1 h")]
    Lease {
        /// What was asked for.
        lease: Duration,
    },
    /// The minimum lease is longer than the lease.
    #[error("a minimum lease of {min_lease:?} is longer than the lease of {lease:?}")]
    MinLease {
        /// What was asked for.
        min_lease: Duration,
        /// The lease.
        lease: Duration,
    },
    /// A lease this short cannot be extended in time.
    #[error("a lease of {lease:?} is below 300 ms, too short to be extended in time")]
    TooShortToExtend {
        /// What was asked for.
        lease: Duration,
    },
    /// A group without slots has no leader.
    #[error("a group has at least one slot")]
    NoSlots,
    /// The node name is blank or longer than 128 bytes.
    #[error("a node name is not blank and has at most 128 bytes")]
    Node,
    /// The tenant is no key, or contains the `/` that ends it.
    #[error("a tenant is a key without a slash")]
    Tenant,
    /// A job without a pause between its runs would never rest.
    #[error("a period is above zero")]
    Period,
}

/// The longest wait and lease.
const LONGEST: Duration = Duration::from_secs(3_600);
