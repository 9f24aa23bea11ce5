//! What the hooks of an SQLite connection know of a fenced transaction: whether it is still open.
//!
//! Nothing ends a transaction without one of the two being called: `COMMIT` asks the first, and may be
//! refused; every rollback, also that of a refused commit or of a failed statement, calls the second.
//! So they tell what a savepoint around the whole transaction would tell. That one is not free on
//! SQLite, which copies every page aside before its first change under a savepoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};

/// The state of one fenced transaction, shared with the hooks.
#[derive(Debug, Default)]
pub(crate) struct Watch(Arc<State>);

#[derive(Debug, Default)]
struct State {
    gate: AtomicU8,
    /// The transaction was rolled back, or one of the hooks is gone and nobody would know.
    ended: AtomicBool,
    /// The commit that was let through came by.
    asked: AtomicBool,
}

/// No commit may pass.
const SHUT: u8 = 0;
/// One commit, that of the guard, may pass if the transaction was not ended.
const OURS: u8 = 1;
/// The transaction is over, and commits are none of our business.
const FREE: u8 = 2;

impl Watch {
    /// What the hooks of a transaction that begins have to call: whether a commit may pass, and that
    /// there was a rollback. A hook that is replaced counts as the end of the transaction.
    ///
    /// What was before is forgotten: to take over a connection with something open on it, it is rolled
    /// back first, with every commit let through.
    pub(crate) fn hooks(
        &self,
    ) -> (
        impl FnMut() -> bool + Send + use<>,
        impl FnMut() + Send + use<>,
    ) {
        self.0.gate.store(SHUT, SeqCst);
        self.0.ended.store(false, SeqCst);
        self.0.asked.store(false, SeqCst);
        let (commit, rollback) = (Hook(Arc::clone(&self.0)), Hook(Arc::clone(&self.0)));
        (move || commit.may_pass(), move || rollback.end())
    }

    /// Whether the transaction was ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.ended.load(SeqCst)
    }

    /// Whether the commit of the guard passed the hook.
    pub(crate) fn was_asked(&self) -> bool {
        self.0.asked.load(SeqCst)
    }

    /// Lets one commit pass, that of the guard. A commit of somebody else that comes first, because it
    /// was queued before, takes its place, and the guard's is refused.
    pub(crate) fn let_ours_pass(&self) {
        self.0.gate.store(OURS, SeqCst);
    }

    /// Lets every commit pass from now on.
    #[cfg(any(feature = "sqlx-sqlite", test))]
    pub(crate) fn let_all_pass(&self) {
        self.0.gate.store(FREE, SeqCst);
    }

    /// Lets none pass.
    #[cfg(feature = "rusqlite")]
    pub(crate) fn shut(&self) {
        self.0.gate.store(SHUT, SeqCst);
    }
}

/// One of the two hooks, as long as it is on the connection.
struct Hook(Arc<State>);

impl Hook {
    fn may_pass(&self) -> bool {
        match self.0.gate.compare_exchange(OURS, SHUT, SeqCst, SeqCst) {
            Ok(_) => {
                self.0.asked.store(true, SeqCst);
                !self.0.ended.load(SeqCst)
            }
            Err(gate) => gate == FREE,
        }
    }

    fn end(&self) {
        self.0.ended.store(true, SeqCst);
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_guards_commit_passes_and_only_before_an_end() {
        let watch = Watch::default();
        let (mut may_pass, mut rolled_back) = watch.hooks();
        assert!(!may_pass() && !watch.was_asked());
        watch.let_ours_pass();
        assert!(may_pass() && watch.was_asked() && !watch.has_ended());
        assert!(!may_pass(), "one commit only");
        watch.let_ours_pass();
        rolled_back();
        assert!(watch.has_ended());
        assert!(!may_pass());
        watch.let_all_pass();
        assert!(may_pass());
    }

    #[test]
    fn new_hooks_shut_what_was_open() {
        let watch = Watch::default();
        watch.let_all_pass();
        watch.0.ended.store(true, SeqCst);
        let (mut may_pass, _rolled_back) = watch.hooks();
        assert!(!may_pass() && !watch.has_ended());
    }

    #[test]
    fn a_hook_that_is_replaced_is_an_end() {
        for first in [true, false] {
            let watch = Watch::default();
            let (may_pass, rolled_back) = watch.hooks();
            if first {
                drop(may_pass);
            } else {
                drop(rolled_back);
            }
            assert!(watch.has_ended());
        }
    }
}
