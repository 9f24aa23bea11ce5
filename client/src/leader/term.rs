//! One leadership: whether it is still good, and the order of extension, loss and release.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use highwater_lock::Key;
use tokio::sync::{Mutex, watch};

use super::hub::Hub;
use super::level::Leading;
use super::{
    BackendError, BoxFuture, Cause, Clock, Grant, LeaderOptions, Lease, LeaseEnd, NodeId,
    NotLeader, RenewError, TermOutcome, TermRecord, TermReport,
};
use crate::{Lost, Release};

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
    /// One extension at a time; the release comes after the last.
    extending: Mutex<()>,
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
            extending: Mutex::new(()),
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

    /// How long until the leadership is over here, if the lease is not extended.
    ///
    /// # Errors
    /// Why it is over already.
    pub(super) fn left(&self) -> Result<Duration, Lost> {
        let left = self.lease.remaining()?.checked_sub(self.margin);
        left.filter(|left| !left.is_zero()).ok_or(Lost::Expired)
    }

    /// How long until the lease is to be extended; `None` for never.
    pub(super) fn until_extension(&self) -> Option<Duration> {
        let kept = self.kept.load(Ordering::Relaxed);
        let remaining = self.lease.remaining().ok().filter(|_| kept)?;
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
    pub(super) async fn not_leader(&self) -> NotLeader {
        self.reached(|stage| stage != Stage::Leading).await;
        self.check().err().unwrap_or(NotLeader::Ended)
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
        let extending = async {
            let _one = self.extending.lock().await;
            self.look();
            if forbidden(*self.stage.borrow()) {
                return Err(self.refusal());
            }
            self.lease.extend(lease).await
        };
        let outcome = tokio::select! {
            biased;
            () = self.reached(forbidden) => Err(self.refusal()),
            outcome = extending => outcome,
        };
        match &outcome {
            Ok(()) => {
                self.extensions.fetch_add(1, Ordering::Relaxed);
                self.hub
                    .extended(self, self.lease.remaining().unwrap_or_default());
            }
            Err(RenewError::NotLeader(NotLeader::Lost(lost))) => self.lose(*lost),
            Err(RenewError::Backend(error)) => self.hub.not_extended(self, error),
            Err(_) => {}
        }
        outcome
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

    /// Gives the lease back without waiting for what comes of it.
    pub(super) fn let_go(&self) {
        self.end();
        drop(self.lease.release());
    }

    /// Gives the lease back, after the last extension has ended.
    pub(super) async fn begin_release(&self) -> Releasing {
        self.end();
        let _last = self.extending.lock().await;
        self.releasing()
    }

    /// The same at once, if no extension is under way.
    pub(super) fn try_begin_release(&self) -> Option<Releasing> {
        self.end();
        let _last = self.extending.try_lock().ok()?;
        Some(self.releasing())
    }

    fn releasing(&self) -> Releasing {
        let held = self.clock.elapsed().saturating_sub(self.began);
        Releasing {
            held,
            answer: self.lease.release(),
        }
    }

    /// Waits for the answer, and tells everybody what came of the term.
    pub(super) async fn conclude(&self, begun: Releasing, outcome: TermOutcome) -> TermReport {
        let Releasing { held, answer } = begun;
        let at_most = self.min_lease.saturating_sub(held);
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            () = self.clock.sleep(RELEASE_TIME) => {
                Err(BackendError::Indeterminate(Cause::new("no answer to the release")))
            }
        };
        let end = match answer {
            Ok(Release::NotCurrent) => LeaseEnd::NotHeld,
            Ok(_) if at_most.is_zero() => LeaseEnd::Released,
            Ok(_) => LeaseEnd::Retained { at_most },
            Err(error) => LeaseEnd::Unknown {
                error: Cause::new(error),
            },
        };
        if end == LeaseEnd::NotHeld {
            self.was_not_held();
        }
        let report = TermReport {
            token: self.grant().token,
            slot: self.grant().slot,
            held,
            extensions: self.extensions.load(Ordering::Relaxed),
            end,
        };
        let lost = self.was_lost();
        let outcome = lost.map_or(outcome, |_| TermOutcome::Lost);
        self.hub.ended(self, outcome, &report);
        self.hub.record(&TermRecord {
            name: self.name.clone(),
            node: self.node.clone(),
            began: self.began,
            outcome,
            lost,
            term: report.clone(),
        });
        report
    }

    /// The release says that the lease was lost before, unnoticed.
    fn was_not_held(&self) {
        let first = self.stage.send_if_modified(|stage| {
            let first = *stage == Stage::Ended;
            if first {
                *stage = Stage::Lost(Lost::NotHeld);
            }
            first
        });
        if first {
            self.hub.revoked(self, Lost::NotHeld);
        }
    }
}

/// A release that was asked for.
pub(super) struct Releasing {
    held: Duration,
    answer: BoxFuture<Result<Release, BackendError>>,
}

/// How long before the end of a lease the leadership is over here: a twentieth, at most half a
/// second. It is the time to stop in before the lock service can elect somebody else.
pub(super) fn margin(lease: Duration) -> Duration {
    (lease / 20).min(Duration::from_millis(500))
}

/// How long the outcome of a release is waited for.
pub(super) const RELEASE_TIME: Duration = Duration::from_secs(10);
