//! Creates the table of marks through diesel-async.

use ::diesel::result::Error;

use super::connection::Connection;
use super::driver;
use crate::TableName;
use crate::migrate::{MigrateError, Outcome};

/// Creates the table `highwater_fence` unless it is there.
///
/// Re-running is harmless, also from several programs at once. Lend a connection that is outside of
/// a transaction. Dropping the future leaves the connection broken, so that its pool closes it.
///
/// # Errors
/// See [`MigrateError`].
pub async fn run<C: Connection>(conn: &mut C) -> Result<Outcome, MigrateError<Error>> {
    run_for(conn, &TableName::DEFAULT).await
}

/// Creates a table of another name unless it is there. Its schema has to exist; on MySQL and MariaDB
/// that is a database.
///
/// # Errors
/// See [`MigrateError`].
pub async fn run_for<C: Connection>(
    conn: &mut C,
    table: &TableName,
) -> Result<Outcome, MigrateError<Error>> {
    driver::check_usable(conn).map_err(MigrateError::Database)?;
    // A call that is cancelled half-way must not leave the connection to a pool.
    driver::condemn(conn);
    let outcome = C::migrate(conn, table).await;
    driver::acquit(conn);
    outcome
}
