//! Creates the table of marks through diesel.

use ::diesel::result::Error;

use super::Dialect;
use crate::TableName;
use crate::migrate::{MigrateError, Outcome};

/// Creates the table `highwater_fence` unless it is there.
///
/// Re-running is harmless, also from several programs at once. Inside a transaction it becomes part
/// of it, except that MySQL and MariaDB commit what is open.
///
/// # Errors
/// See [`MigrateError`].
pub fn run<C: Dialect>(conn: &mut C) -> Result<Outcome, MigrateError<Error>> {
    run_for(conn, &TableName::DEFAULT)
}

/// Creates a table of another name unless it is there. Its schema has to exist.
///
/// # Errors
/// See [`MigrateError`].
pub fn run_for<C: Dialect>(
    conn: &mut C,
    table: &TableName,
) -> Result<Outcome, MigrateError<Error>> {
    if C::is_present(conn, table)? {
        return Ok(Outcome::Present);
    }
    C::create(conn, table).map_err(MigrateError::Database)?;
    C::is_present(conn, table)?;
    Ok(Outcome::Created)
}

/// The error of a statement that reads the columns of a table which exists.
pub(super) fn unreadable(table: &TableName, source: Error, foreign: bool) -> MigrateError<Error> {
    if foreign {
        let table = table.clone();
        MigrateError::ForeignTable { table, source }
    } else {
        MigrateError::Database(source)
    }
}
