//! One leadership: whether it is still good, and the order of extension, loss and release.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use highwater_lock::Key;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::gate::{Gate, caught};
use super::hub::Hub;
use super::level::Leading;
use super::{BoxFuture, Clock, Grant, LeaderOptions, Lease, NodeId, NotLeader, RenewError};
use crate::Lost;

mod release;

#[cfg(feature = "blocking")]
pub(super) use release::RELEASE_TIME;
pub(super) use release::{Releasing, unanswered};

/// From the election on, stages only follow each other in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Leading,
    /// The action was dropped, and parts of it are still at work.
    Draining,
    Lost(Lost),
    Ended,
}

/// One leadership. Its stage never goes back: nothing makes a lost or released term good again.
pub(super) struct Term {
    name: Key,
    node: NodeId,
    lease: Arc<dyn Lease>,
    clock: Arc<dyn Clock>,
    lease_time: Duration,
    min_lease: Duration,
    /// How long before the end of the lease the leadership is over here.
    margin: Duration,
    began: Duration,
    stage: watch::Sender<Stage>,
    /// Whether the lease is to be extended.
    kept: AtomicBool,
    /// Where the extensions are. It is closed before the release.
    gate: Gate,
    extensions: AtomicU64,
    hub: Arc<Hub>,
}

impl Term {
    pub(super) fn new(
        lease: Arc<dyn Lease>,
        node: NodeId,
        options: &LeaderOptions,
        clock: Arc<dyn Clock>,
        hub: Arc<Hub>,
    ) -> Self {
        Self {
            name: lease.grant().name.clone(),
            node,
            lease_time: options.lease,
            min_lease: options.min_lease,
            margin: margin(options.lease),
            began: clock.elapsed(),
            clock,
            stage: watch::Sender::new(Stage::Leading),
            kept: AtomicBool::new(options.auto_extend),
            gate: Gate::default(),
            extensions: AtomicU64::new(0),
            lease,
            hub,
        }
    }

    pub(super) fn name(&self) -> &Key {
        &self.name
    }

    pub(super) fn node(&self) -> &NodeId {
        &self.node
    }

    pub(super) fn grant(&self) -> &Grant {
        self.lease.grant()
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(super) fn lease_time(&self) -> Duration {
        self.lease_time
    }

    /// What is left of the lease. It is asked for where a guard is dropped too, perhaps on the way of a
    /// panic: if the backend panics, nothing is left for certain.
    fn remaining(&self) -> Result<Duration, Lost> {
        caught(|| self.lease.remaining()).unwrap_or(Err(Lost::Expired))
    }

    /// How long until the leadership is over here, if the lease is not extended.
    ///
    /// # Errors
    /// Why it is over already.
    pub(super) fn left(&self) -> Result<Duration, Lost> {
        let left = self.remaining()?.checked_sub(self.margin);
        left.filter(|left| !left.is_zero()).ok_or(Lost::Expired)
    }

    /// How long until the lease is to be extended; `None` for never.
    pub(super) fn until_extension(&self) -> Option<Duration> {
        let kept = self.kept.load(Ordering::Relaxed);
        let remaining = self.remaining().ok().filter(|_| kept)?;
        Some(remaining.saturating_sub(self.lease_time - self.lease_time / 3))
    }

    pub(super) fn stop_keeping(&self) {
        self.kept.store(false, Ordering::Relaxed);
    }

    /// Looks at the clock, so that a loss is known before anybody had the time to notice it.
    pub(super) fn check(&self) -> Result<(), NotLeader> {
        self.look();
        match *self.stage.borrow() {
            Stage::Leading => Ok(()),
            Stage::Draining => Err(NotLeader::Cancelled),
            Stage::Lost(lost) => Err(NotLeader::Lost(lost)),
            Stage::Ended => Err(NotLeader::Ended),
        }
    }

    fn look(&self) {
        if !self.is_over()
            && let Err(lost) = self.left()
        {
            self.lose(lost);
        }
    }

    pub(super) fn leading(&self) -> Option<Leading> {
        let remaining = self.check().ok().and_then(|()| self.left().ok())?;
        Some(Leading {
            token: self.grant().token,
            slot: self.grant().slot,
            remaining,
        })
    }

    pub(super) fn was_lost(&self) -> Option<Lost> {
        match *self.stage.borrow() {
            Stage::Lost(lost) => Some(lost),
            _ => None,
        }
    }

    fn is_over(&self) -> bool {
        matches!(*self.stage.borrow(), Stage::Lost(_) | Stage::Ended)
    }

    /// Completes when contexts of the term are no longer those of a leader.
    ///
    /// It needs nobody who tells it: it looks at the clock when the time is over, by a timer of the
    /// runtime that polls it.
    pub(super) async fn not_leader(&self) -> NotLeader {
        let mut told = pin!(self.reached(|stage| stage != Stage::Leading));
        loop {
            if let Err(reason) = self.check() {
                return reason;
            }
            let left = self.left().unwrap_or_default();
            tokio::select! {
                biased;
                () = &mut told => {}
                () = self.passed(left) => {}
            }
        }
    }

    /// Sleeps in the runtime that polls it. Outside of one there are no timers, and somebody has to
    /// be told.
    async fn passed(&self, span: Duration) {
        match Handle::try_current() {
            Ok(_) => self.clock.sleep(span).await,
            Err(_) => pending().await,
        }
    }

    /// After a loss: completes when nothing is left of the lease itself, which lasts a margin longer
    /// than the leadership; at once if it is known to be held no more.
    pub(super) async fn run_out(&self) {
        let left = self.remaining().unwrap_or_default();
        self.clock.sleep(left.min(self.margin)).await;
    }

    /// Completes when the lease is lost or given back.
    pub(super) async fn over(&self) {
        self.reached(|stage| matches!(stage, Stage::Lost(_) | Stage::Ended))
            .await;
    }

    async fn reached(&self, is: impl Fn(Stage) -> bool) {
        let mut stages = self.stage.subscribe();
        let reached = stages.wait_for(|stage| is(*stage)).await;
        reached.expect("the sender is part of self");
    }

    /// The lease is lost: ends the leadership, once.
    pub(super) fn lose(&self, lost: Lost) {
        let first = self.stage.send_if_modified(|stage| {
            let first = matches!(stage, Stage::Leading | Stage::Draining);
            if first {
                *stage = Stage::Lost(lost);
            }
            first
        });
        if first {
            self.hub.leave(self);
            self.hub.revoked(self, lost);
        }
    }

    /// The action was dropped and is not at rest yet.
    pub(super) fn drain(&self) {
        self.look();
        let first = self.stage.send_if_modified(|stage| {
            let first = *stage == Stage::Leading;
            if first {
                *stage = Stage::Draining;
            }
            first
        });
        if first {
            self.hub.leave(self);
        }
    }

    /// Ends the leadership before the release is sent.
    pub(super) fn end(&self) {
        // A lease that ran out unnoticed was lost, and is not given back as if it were good.
        self.look();
        let first = self.stage.send_if_modified(|stage| {
            let first = matches!(stage, Stage::Leading | Stage::Draining);
            if first {
                *stage = Stage::Ended;
            }
            first
        });
        if first {
            self.hub.leave(self);
        }
    }

    /// Lengthens the lease, for as long as the stage allows it.
    async fn extend(&self, lease: Duration, while_draining: bool) -> Result<(), RenewError> {
        let forbidden = |stage| match stage {
            Stage::Leading => false,
            Stage::Draining => !while_draining,
            Stage::Lost(_) | Stage::Ended => true,
        };
        self.look();
        let mut extension = self.gate.extension();
        let extending = poll_fn(|context| {
            let begin = || {
                let stage = *self.stage.borrow();
                (!forbidden(stage)).then(|| self.lease.extend(lease))
            };
            extension.poll(context, begin, |outcome| self.tell_of_extension(outcome))
        });
        let outcome = tokio::select! {
            biased;
            () = self.reached(forbidden) => None,
            outcome = extending => outcome,
        };
        let outcome = outcome.unwrap_or_else(|| Err(self.refusal()));
        if let Err(RenewError::NotLeader(NotLeader::Lost(lost))) = &outcome {
            self.lose(*lost);
        }
        outcome
    }

    /// Inside the gate: nothing of this comes after the end of the term.
    fn tell_of_extension(&self, outcome: &Result<(), RenewError>) {
        match outcome {
            Ok(()) => {
                self.extensions.fetch_add(1, Ordering::Relaxed);
                let remaining = self.remaining().unwrap_or_default();
                self.hub.extended(self, remaining);
            }
            Err(RenewError::Backend(error)) => self.hub.not_extended(self, error),
            Err(_) => {}
        }
    }

    fn refusal(&self) -> RenewError {
        RenewError::NotLeader(self.check().err().unwrap_or(NotLeader::Ended))
    }

    /// The extension that comes by itself.
    pub(super) async fn keep(&self) -> Result<(), RenewError> {
        self.extend(self.lease_time, true).await
    }

    /// The extension that the action asks for.
    pub(super) async fn extend_by_hand(&self, lease: Duration) -> Result<(), RenewError> {
        self.check()?;
        self.extend(lease, false).await
    }

    /// Completes when the backend tells by itself that the lease is over.
    pub(super) fn lost_at_backend(&self) -> BoxFuture<Lost> {
        self.lease.lost()
    }
}

/// How long before the end of a lease the leadership is over here: a twentieth, at most half a
/// second. It is the time to stop in before the lock service can elect somebody else.
pub(super) fn margin(lease: Duration) -> Duration {
    (lease / 20).min(Duration::from_millis(500))
}
