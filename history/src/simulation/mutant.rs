//! Bugs on purpose: what the checker has to find.

/// A bug in the shell around the lock core or in the database of the simulation. None of them is
/// in the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Mutant {
    /// A leader that loses its office answers "not taken" to what it has already appended.
    MovedAfterAppend,
    /// Frames count that are for, or from, a process that is no more.
    DeadGenerationAccepted,
    /// All leaders use one epoch, so that waiters of an old one stay in the queue.
    OldWaitersGranted,
    /// A new leader releases the grants it has no connection for.
    InheritedGrantReleased,
    /// A new leader takes over the ticks of a deposed one as its own.
    DeposedExpiryApplied,
    /// An extension sets the end of the lease, also to an earlier one.
    ExtensionShortens,
    /// The token counter is not in the snapshot.
    TokensLostOnRestart,
    /// The database compares no token.
    StaleWriteAccepted,
    /// The database repeats a commit whose answer was lost.
    WriteDoubled,
    /// The database acknowledges before it writes.
    WriteLost,
    /// A release puts the head of the queue at its end.
    FifoOvertaken,
    /// The end of a connection leaves its waiters in the queue.
    DisconnectIgnored,
    /// A release looks at the key, not at the token.
    ReleasedByKey,
    /// Nobody proposes a tick.
    TicksForgotten,
    /// A replica expires locks by its own clock.
    LocalExpiry,
    /// A leader stamps what its clock shows, instead of going on from the last stamp.
    RawClockStamped,
    /// A leader answers when it has appended, not when it is decided.
    AnsweredBeforeCommit,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::MovedAfterAppend,
        Self::DeadGenerationAccepted,
        Self::OldWaitersGranted,
        Self::InheritedGrantReleased,
        Self::DeposedExpiryApplied,
        Self::ExtensionShortens,
        Self::TokensLostOnRestart,
        Self::StaleWriteAccepted,
        Self::WriteDoubled,
        Self::WriteLost,
        Self::FifoOvertaken,
        Self::DisconnectIgnored,
        Self::ReleasedByKey,
        Self::TicksForgotten,
        Self::LocalExpiry,
        Self::RawClockStamped,
        Self::AnsweredBeforeCommit,
    ];
}
