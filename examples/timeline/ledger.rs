//! A database that knows who may still write: SQLite in memory, behind the fencing adapter.

use highwater_fencing::rusqlite::{FenceError, RusqliteFence as _};
use highwater_fencing::{Fence, migrate};
use rusqlite::Connection;

/// Who closed the invoices last.
pub(crate) struct Ledger(Connection);

impl Ledger {
    pub(crate) fn open() -> Result<Self, Box<dyn std::error::Error>> {
        let connection = Connection::open_in_memory()?;
        migrate::rusqlite::run(&connection)?;
        connection.execute_batch(
            "CREATE TABLE ledger (one INTEGER PRIMARY KEY, closed_by TEXT NOT NULL);
             INSERT INTO ledger VALUES (1, 'nobody')",
        )?;
        Ok(Self(connection))
    }

    /// Writes under a fence, and says what the database made of it.
    pub(crate) fn close(&mut self, fence: &Fence, node: &str) -> Result<String, FenceError> {
        let written = fence.transaction(&mut self.0, |tx| {
            tx.execute("UPDATE ledger SET closed_by = ?1", [node])?;
            Ok::<_, FenceError>(())
        });
        let said = match written {
            Ok(()) => "written".to_owned(),
            Err(FenceError::Stale {
                offered, highest, ..
            }) => format!("REFUSED: token {offered} is stale, {highest} has written"),
            Err(other) => return Err(other),
        };
        Ok(format!("{said}; closed by {}", self.closed_by()?))
    }

    fn closed_by(&self) -> Result<String, rusqlite::Error> {
        let read = "SELECT closed_by FROM ledger";
        self.0.query_row(read, [], |row| row.get(0))
    }
}
