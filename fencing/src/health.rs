//! Whether a fenced transaction may go on: remembers its first failure.
//!
//! After an error some databases have ended the transaction and some have not; the rule here is the
//! same for all: only a rollback is left. The adapters note what they see, and ask before each
//! statement.

use std::fmt;

/// The record of one fenced transaction.
#[derive(Debug, Default)]
pub(crate) struct Health {
    failure: Option<FirstFailure>,
}

#[derive(Debug)]
struct FirstFailure {
    text: String,
    transient: bool,
    /// A statement was dropped before its answer came: what the next answer belongs to is unsure.
    abandoned: bool,
}

impl Health {
    /// The error for the next statement, if there was a failure.
    pub(crate) fn refuse(&self) -> Option<Poisoned> {
        let failure = self.failure.as_ref()?;
        Some(Poisoned {
            first: failure.text.clone(),
        })
    }

    /// The first failure, as text.
    pub(crate) fn first_failure(&self) -> Option<&str> {
        self.failure.as_ref().map(|failure| &*failure.text)
    }

    /// Whether the transaction may succeed if it is run again as a whole.
    pub(crate) fn is_transient(&self) -> bool {
        (self.failure.as_ref()).is_some_and(|failure| failure.transient)
    }

    /// Whether the connection itself can no longer be trusted.
    #[allow(dead_code, reason = "not every driver loses step")]
    pub(crate) fn is_abandoned(&self) -> bool {
        (self.failure.as_ref()).is_some_and(|failure| failure.abandoned)
    }

    /// Notes an error of a statement.
    pub(crate) fn note(&mut self, error: &dyn fmt::Display, transient: bool) {
        self.failure.get_or_insert_with(|| FirstFailure {
            text: error.to_string(),
            transient,
            abandoned: false,
        });
    }

    /// Notes that a statement was dropped before its answer came.
    pub(crate) fn note_abandoned(&mut self) {
        let failure = self.failure.get_or_insert_with(|| FirstFailure {
            text: "a statement was abandoned before its answer came".to_owned(),
            transient: false,
            abandoned: true,
        });
        failure.abandoned = true;
    }
}

/// A statement was refused because an earlier one of the same fenced transaction failed.
///
/// Roll back; retrying the statement cannot succeed. Each adapter says how it hands this out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poisoned {
    first: String,
}

impl Poisoned {
    /// The first failure, as text.
    pub fn first(&self) -> &str {
        &self.first
    }
}

impl fmt::Display for Poisoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the fenced transaction can only be rolled back, because a statement failed: {}",
            self.first
        )
    }
}

impl std::error::Error for Poisoned {}
