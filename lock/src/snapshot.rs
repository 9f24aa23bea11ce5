//! The machine as bytes, and back.

/// Why bytes are not a snapshot. Nothing is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The bytes do not begin like a snapshot.
    #[error("this is not a snapshot of a lock machine")]
    NotASnapshot,
    /// A format that this build does not know: use the build that wrote it, or a newer one.
    #[error("snapshot format {found} is not known")]
    UnknownVersion {
        /// The format's number.
        found: u16,
    },
    /// The bytes end too early, go on too long, or a field is out of range.
    #[error("the snapshot is damaged at byte {position}")]
    Damaged {
        /// Where reading stopped.
        position: u64,
    },
    /// Every field is well formed, but together they break a rule of the machine.
    #[error("the snapshot contradicts itself: {rule}")]
    Inconsistent {
        /// The rule.
        rule: &'static str,
    },
}
