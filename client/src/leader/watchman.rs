//! The task beside each term: extends its lease in time, and notices its end.
//!
//! It runs apart from the action, so an action that computes for long does not stop it, as long as
//! the runtime has another thread. It never ends without the term having ended: a lease that cannot
//! be extended is lost aloud. A backend that panics has failed to extend it, and is tried again; should
//! the task itself panic, the lease counts as lost.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::RenewError;
use super::schedule::{caught, discard};
use super::term::Term;
use crate::Lost;

/// Works until the lease is lost or given back.
///
/// If it panics, nothing would be extended any more, and nobody told: then the leadership ends. That the
/// task is dropped, at the end of a runtime, is no reason for that: the lease is still good, and may be
/// released by its guard.
pub(super) async fn watch(term: Arc<Term>, started: oneshot::Sender<()>) {
    let watched = caught(work(&term, started)).await;
    if watched.is_err() {
        term.lose(Lost::Expired);
    }
    discard(watched);
}

async fn work(term: &Term, started: oneshot::Sender<()>) {
    let mut lost = term.lost_at_backend();
    // Nobody waits any more: the guard was dropped.
    let _ = started.send(());
    loop {
        let left = match term.left() {
            Ok(left) => left,
            Err(lost) => return term.lose(lost),
        };
        // Timers stand still while the machine is suspended, so it looks now and then.
        let longest = left.min(LOOK);
        let due = term.until_extension();
        let next = async {
            match due {
                Some(due) if due.is_zero() => extend(term, left).await,
                due => {
                    term.clock()
                        .sleep(due.unwrap_or(longest).min(longest))
                        .await
                }
            }
        };
        tokio::select! {
            biased;
            lost = &mut lost => return term.lose(lost),
            () = term.over() => return,
            () = next => {}
        }
    }
}

/// One attempt, while the lease lasts; then a pause if it failed.
async fn extend(term: &Term, left: Duration) {
    let attempt = tokio::select! {
        biased;
        attempt = term.keep() => attempt,
        () = term.clock().sleep(left) => return,
    };
    if let Err(RenewError::Backend(_) | RenewError::Unprotected) = attempt {
        let pause = (term.lease_time() / 30).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        term.clock().sleep(pause.min(left)).await;
    }
}

/// How often it looks at the clock, at least.
const LOOK: Duration = Duration::from_secs(1);
/// The pauses between attempts to extend: a thirtieth of the lease, between these.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
