//! Owns a term: whoever holds the guard leads, and whoever drops it gives the lease back.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use highwater_lock::{Fence, FencingToken, Key};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::context::LeaderContext;
use super::gate::caught;
use super::term::{Releasing, Term, unanswered};
use super::watchman;
use super::{BackendError, Cause, LeaseEnd, NotLeader, RenewError, TermOutcome, TermReport};
use crate::Release;

/// Leads a name until it is released, dropped or lost.
///
/// Like every lease it proves nothing after a pause: give [`LeaderGuard::fence`] to every transaction
/// that writes.
///
/// Dropping it gives the lease back in the background. While contexts of it are alive, the lease is
/// kept for them: they are told to stop ([`NotLeader::Cancelled`]), and the lease is given back when
/// the last is dropped. It is extended meanwhile (if it is extended at all), for one lease time at
/// most; after that it runs out. After a loss too, what is left of the lease is kept for contexts
/// that are alive.
#[must_use = "the leadership ends when the guard is dropped"]
pub struct LeaderGuard {
    term: Arc<Term>,
    /// Every context has a receiver.
    contexts: watch::Sender<()>,
    watchman: JoinHandle<()>,
    runtime: Handle,
    finished: bool,
}

impl LeaderGuard {
    /// In this runtime, when the task beside the term has begun.
    ///
    /// A task that was only just spawned can stand in a place of the runtime's thread from which no
    /// other thread takes it. An action that computes would keep it there, and nothing be extended.
    pub(super) async fn start(term: Arc<Term>, runtime: Handle) -> Self {
        let (sender, started) = oneshot::channel();
        let guard = Self {
            watchman: runtime.spawn(watchman::watch(Arc::clone(&term), sender)),
            contexts: watch::Sender::new(()),
            runtime,
            finished: false,
            term,
        };
        // An error is the end of the runtime.
        let _ = started.await;
        guard
    }

    /// What the parts of the work look at; it can be cloned and sent to other tasks.
    pub fn context(&self) -> LeaderContext {
        LeaderContext::of(Arc::clone(&self.term), self.contexts.subscribe())
    }

    /// What is led, with its tenant.
    pub fn name(&self) -> &Key {
        self.term.name()
    }

    /// The fencing token: higher than that of every earlier leader in this domain.
    pub fn token(&self) -> FencingToken {
        self.term.grant().token
    }

    /// See [`LeaderContext::fence`].
    pub fn fence(&self) -> Fence {
        self.term.grant().fence()
    }

    /// See [`LeaderContext::slot`].
    pub fn slot(&self) -> Option<u32> {
        self.term.grant().slot
    }

    /// See [`LeaderContext::remaining`].
    pub fn remaining(&self) -> Duration {
        self.term
            .leading()
            .map(|leading| leading.remaining)
            .unwrap_or_default()
    }

    /// See [`LeaderContext::check`].
    ///
    /// # Errors
    /// Why it is not the leader any more.
    pub fn check(&self) -> Result<(), NotLeader> {
        self.term.check()
    }

    /// See [`LeaderContext::lost`].
    pub fn lost(&self) -> impl Future<Output = NotLeader> + Send + use<> {
        let term = Arc::clone(&self.term);
        async move { term.not_leader().await }
    }

    /// See [`LeaderContext::extend`].
    ///
    /// # Errors
    /// See [`RenewError`].
    pub async fn extend(&self, lease: Duration) -> Result<(), RenewError> {
        self.term.extend_by_hand(lease).await
    }

    /// Ends the leadership, gives the lease back and says what came of it, at most 10 s later.
    ///
    /// Contexts that are still alive are no longer those of a leader. After a loss, the release is sent
    /// when the last of them is dropped or when the lease ends, half a second later at most.
    /// Dropping the future leaves the release to the background.
    pub async fn release(self) -> TermReport {
        self.finish(TermOutcome::Completed).await
    }

    pub(super) async fn finish(mut self, outcome: TermOutcome) -> TermReport {
        self.finished = true;
        // Here and not in the task: from now on nobody takes this for a leader.
        self.term.end();
        self.watchman.abort();
        let (token, slot) = (self.token(), self.slot());
        let leaving = Leaving::of(&self.term, outcome);
        let report = Arc::clone(&leaving.report);
        let contexts = self.contexts.clone();
        let task = self.runtime.spawn(async move {
            if leaving.term.was_lost().is_some() {
                at_rest(&leaving.term, &contexts).await;
            }
            leaving.release().await
        });
        task.await.unwrap_or_else(|error| {
            // At the end of its runtime it was given back without waiting for the answer.
            report.get().cloned().unwrap_or_else(|| TermReport {
                token,
                slot,
                held: Duration::ZERO,
                extensions: 0,
                end: LeaseEnd::Unknown {
                    error: Cause::new(error),
                },
            })
        })
    }

    pub(super) fn term(&self) -> &Arc<Term> {
        &self.term
    }

    /// Whether parts of the work are still alive.
    pub(super) fn has_contexts(&self) -> bool {
        self.contexts.receiver_count() > 0
    }

    /// Gives the lease back in the background, when the work is at rest.
    pub(super) fn abandon(mut self, outcome: TermOutcome) {
        self.leave(outcome);
    }

    fn leave(&mut self, outcome: TermOutcome) {
        if self.finished {
            return;
        }
        self.finished = true;
        let mut leaving = Leaving::of(&self.term, outcome);
        if !self.has_contexts() {
            self.term.end();
            self.watchman.abort();
            leaving.begin();
            self.runtime.spawn(leaving.release());
            return;
        }
        self.term.drain();
        let contexts = self.contexts.clone();
        let watchman = self.watchman.abort_handle();
        self.runtime.spawn(async move {
            drained(&leaving.term, &contexts).await;
            leaving.term.end();
            watchman.abort();
            leaving.release().await;
        });
    }
}

impl Drop for LeaderGuard {
    fn drop(&mut self) {
        self.leave(TermOutcome::Cancelled);
    }
}

impl fmt::Debug for LeaderGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderGuard")
            .field("name", self.name())
            .field("token", &self.token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// Waits until no context is left, or the lease is over. It is extended for one lease time at most,
/// so that work which never stops cannot keep it for ever.
async fn drained(term: &Term, contexts: &watch::Sender<()>) {
    let rest = async {
        term.clock().sleep(term.lease_time()).await;
        term.stop_keeping();
        term.over().await;
    };
    tokio::select! {
        biased;
        () = contexts.closed() => return,
        () = term.over() => {}
        () = rest => {}
    }
    at_rest(term, contexts).await;
}

/// After a loss: waits until no context is left, or nothing of the lease is. The parts of the work
/// have that long to stop in, and nobody is elected before.
async fn at_rest(term: &Term, contexts: &watch::Sender<()>) {
    tokio::select! {
        biased;
        () = contexts.closed() => {}
        () = term.run_out() => {}
    }
}

/// A lease to give back: also when the runtime ends before it could.
struct Leaving {
    term: Arc<Term>,
    outcome: TermOutcome,
    begun: Option<Releasing>,
    /// How long the term lasted, once the release was asked for.
    held: Option<Duration>,
    concluded: bool,
    /// What came of it, once everybody was told.
    report: Arc<OnceLock<TermReport>>,
}

impl Leaving {
    fn of(term: &Arc<Term>, outcome: TermOutcome) -> Self {
        Self {
            term: Arc::clone(term),
            outcome,
            begun: None,
            held: None,
            concluded: false,
            report: Arc::default(),
        }
    }

    /// Does now what can be done without waiting.
    fn begin(&mut self) {
        if self.held.is_none() {
            let begun = self.term.begin_release();
            self.held = Some(begun.held);
            self.begun = Some(begun);
        }
    }

    async fn release(mut self) -> TermReport {
        self.begin();
        let answer = match self.begun.take() {
            Some(begun) => self.term.answer(begun).await,
            None => Err(unanswered()),
        };
        self.conclude(answer)
    }

    fn conclude(&mut self, answer: Result<Release, BackendError>) -> TermReport {
        self.concluded = true;
        let held = self.held.unwrap_or_default();
        let report = self.term.conclude(held, answer, self.outcome);
        // There is one conclusion.
        let _ = self.report.set(report.clone());
        report
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if self.concluded {
            return;
        }
        // Of all this, only the panic of somebody who is told could come here, perhaps on the way
        // of another.
        let _ = caught(|| {
            self.begin();
            drop(self.begun.take());
            self.conclude(Err(unanswered()))
        });
    }
}
