//! A prepared statement that is seen by the guard, like those which run at once.

use std::cell::RefCell;

use ::rusqlite::{Error, Params, Row};

use super::health::{check, note};
use crate::health::Health;

/// A prepared statement of a [`Fenced`](super::Fenced) transaction.
///
/// It refuses and poisons as the transaction does.
#[derive(Debug)]
pub struct Statement<'t> {
    inner: ::rusqlite::Statement<'t>,
    health: &'t RefCell<Health>,
}

impl<'t> Statement<'t> {
    pub(crate) fn new(inner: ::rusqlite::Statement<'t>, health: &'t RefCell<Health>) -> Self {
        Self { inner, health }
    }

    /// Runs it, and gives the number of changed rows.
    ///
    /// # Errors
    /// The driver's. After the first one every statement is refused: see
    /// [`poisoned`](super::poisoned).
    pub fn execute<P: Params>(&mut self, params: P) -> Result<usize, Error> {
        tap(self.health, || self.inner.execute(params))
    }

    /// Runs it, and gives what `f` makes of the first row.
    ///
    /// # Errors
    /// As [`execute`](Self::execute). [`Error::QueryReturnedNoRows`] does not poison.
    pub fn query_row<T, P, F>(&mut self, params: P, f: F) -> Result<T, Error>
    where
        P: Params,
        F: FnOnce(&Row<'_>) -> Result<T, Error>,
    {
        tap(self.health, || self.inner.query_row(params, f))
    }

    /// Runs it, and gives what `f` makes of each row. All rows are read before it returns.
    ///
    /// # Errors
    /// As [`execute`](Self::execute), and the first one of `f`.
    pub fn query_map<T, P, F>(&mut self, params: P, f: F) -> Result<Vec<T>, Error>
    where
        P: Params,
        F: FnMut(&Row<'_>) -> Result<T, Error>,
    {
        tap(self.health, || self.inner.query_map(params, f)?.collect())
    }
}

/// Runs a statement unless one failed before, and notes its error.
pub(crate) fn tap<T>(
    health: &RefCell<Health>,
    statement: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    check(&health.borrow())?;
    let result = statement();
    if let Err(error) = &result {
        note(&mut health.borrow_mut(), error);
    }
    result
}
