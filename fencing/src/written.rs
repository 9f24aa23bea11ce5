//! How the write of one row ended.

/// What a fenced write of one row did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the row may not have been there"]
pub enum Written {
    /// The fence was admitted, and exactly one row was written, in one transaction.
    Applied,
    /// The fence was admitted, but there is no row with this key, so everything was rolled back: also
    /// the mark and the step, which can be used again.
    NoRow,
}
