//! Creates the table of marks through mysql_async.

use ::mysql_async::prelude::Queryable as _;
use ::mysql_async::{Conn, Error, Pool};

use crate::TableName;
use crate::migrate::{Dialect, MigrateError, Outcome, print, probe};

/// Creates the table `highwater_fence` unless it is there.
///
/// Re-running is harmless, also from several programs at once.
///
/// # Errors
/// See [`MigrateError`].
pub async fn run(pool: &Pool) -> Result<Outcome, MigrateError<Error>> {
    run_for(pool, &TableName::DEFAULT).await
}

/// Creates a table of another name unless it is there. Its schema, which is a database, has to
/// exist.
///
/// # Errors
/// See [`MigrateError`].
pub async fn run_for(pool: &Pool, table: &TableName) -> Result<Outcome, MigrateError<Error>> {
    let mut conn = pool.get_conn().await.map_err(MigrateError::Database)?;
    if is_present(&mut conn, table).await? {
        return Ok(Outcome::Present);
    }
    // The server serialises concurrent statements on one table name by itself.
    let create = print(Dialect::MySql, table);
    (conn.query_drop(create).await).map_err(MigrateError::Database)?;
    is_present(&mut conn, table).await?;
    Ok(Outcome::Created)
}

/// Whether the table exists, with the columns it needs.
async fn is_present(conn: &mut Conn, table: &TableName) -> Result<bool, MigrateError<Error>> {
    let count = "SELECT COUNT(*) FROM information_schema.tables \
         WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?";
    let count: Option<u64> = conn
        .exec_first(count, (table.schema(), table.name()))
        .await
        .map_err(MigrateError::Database)?;
    if count.unwrap_or(0) == 0 {
        return Ok(false);
    }
    let columns = probe(&table.quoted('`'), "`key`");
    match conn.query_drop(columns).await {
        Ok(()) => Ok(true),
        // bad field: a column is missing
        Err(Error::Server(error)) if error.code == 1054 => Err(MigrateError::ForeignTable {
            table: table.clone(),
            source: Error::Server(error),
        }),
        Err(error) => Err(MigrateError::Database(error)),
    }
}
