//! The end of a term: its lease is given back, and everybody told what came of it.

use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use super::super::gate::caught;
use super::super::{BackendError, BoxFuture, Cause, LeaseEnd, TermOutcome, TermRecord, TermReport};
use super::{Stage, Term};
use crate::{Lost, Release};

impl Term {
    /// Gives the lease back, after the last extension has ended.
    pub(in crate::leader) fn begin_release(&self) -> Releasing {
        self.end();
        self.gate.close();
        let held = self.clock.elapsed().saturating_sub(self.began);
        let answer = caught(|| self.lease.release());
        let answer = answer.unwrap_or_else(|error| Box::pin(async { Err(error) }));
        Releasing { held, answer }
    }

    /// What the backend says to a release; it is not waited for for ever.
    pub(in crate::leader) async fn answer(
        &self,
        mut releasing: Releasing,
    ) -> Result<Release, BackendError> {
        let answer = poll_fn(
            |context| match caught(|| releasing.answer.as_mut().poll(context)) {
                Ok(answer) => answer,
                Err(error) => Poll::Ready(Err(error)),
            },
        );
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            () = self.clock.sleep(RELEASE_TIME) => Err(unanswered()),
        };
        let _ = caught(|| drop(releasing));
        answer
    }

    /// Tells everybody what came of the term.
    pub(in crate::leader) fn conclude(
        &self,
        held: Duration,
        answer: Result<Release, BackendError>,
        outcome: TermOutcome,
    ) -> TermReport {
        let at_most = self.min_lease.saturating_sub(held);
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
pub(in crate::leader) struct Releasing {
    /// How long the term lasted.
    pub(in crate::leader) held: Duration,
    answer: BoxFuture<Result<Release, BackendError>>,
}

/// What is known of a release whose answer did not come.
pub(in crate::leader) fn unanswered() -> BackendError {
    BackendError::Indeterminate(Cause::new("no answer to the release"))
}

/// How long the outcome of a release is waited for.
pub(in crate::leader) const RELEASE_TIME: Duration = Duration::from_secs(10);
