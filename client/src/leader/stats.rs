//! What an elector has done, counted.

use crate::stats::Counter;

/// What an elector, its clones and its tenants have done since it was made.
///
/// Each number is exact and only grows; they are read one after the other, so two of them need not
/// be of the same moment. Each term counts as elected once, and ends in one of `released`,
/// `retained`, `revoked` and `release_unknown`; the last also if the runtime ends before the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaderStats {
    /// Terms that began.
    pub elected: u64,
    /// Waits that ended in contention.
    pub skipped: u64,
    /// Candidacies that ended because the lock service failed; of those that are made again under a
    /// policy, each.
    pub failed: u64,
    /// Extensions, by themselves or by hand.
    pub extended: u64,
    /// Attempts to extend that failed.
    pub extensions_failed: u64,
    /// Terms whose lease was lost.
    pub revoked: u64,
    /// Terms whose lease was given back and is free.
    pub released: u64,
    /// Terms whose lease was given back and is kept by its minimum.
    pub retained: u64,
    /// Terms whose release has an unknown outcome.
    pub release_unknown: u64,
    /// Actions that gave an error.
    pub actions_failed: u64,
    /// Actions that panicked.
    pub panicked: u64,
    /// Actions and guards that were dropped.
    pub cancelled: u64,
    /// Actions that ran without a lock, because the lock service failed and their policy is to fail
    /// open.
    pub unprotected: u64,
}

/// The counters behind [`LeaderStats`].
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) elected: Counter,
    pub(super) skipped: Counter,
    pub(super) failed: Counter,
    pub(super) extended: Counter,
    pub(super) extensions_failed: Counter,
    pub(super) revoked: Counter,
    pub(super) released: Counter,
    pub(super) retained: Counter,
    pub(super) release_unknown: Counter,
    pub(super) actions_failed: Counter,
    pub(super) panicked: Counter,
    pub(super) cancelled: Counter,
    pub(super) unprotected: Counter,
}

impl Counts {
    pub(super) fn read(&self) -> LeaderStats {
        LeaderStats {
            elected: self.elected.get(),
            skipped: self.skipped.get(),
            failed: self.failed.get(),
            extended: self.extended.get(),
            extensions_failed: self.extensions_failed.get(),
            revoked: self.revoked.get(),
            released: self.released.get(),
            retained: self.retained.get(),
            release_unknown: self.release_unknown.get(),
            actions_failed: self.actions_failed.get(),
            panicked: self.panicked.get(),
            cancelled: self.cancelled.get(),
            unprotected: self.unprotected.get(),
        }
    }
}
