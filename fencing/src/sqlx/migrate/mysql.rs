//! Creates the table of marks in MySQL or MariaDB.

use ::sqlx::{AssertSqlSafe, Error, Executor as _, MySqlConnection, MySqlPool, query, raw_sql};

use super::foreign;
use crate::TableName;
use crate::migrate::{Dialect, MigrateError, Outcome, print, probe};

/// Creates the table `highwater_fence` unless it is there.
///
/// Re-running is harmless, also from several programs at once.
///
/// # Errors
/// See [`MigrateError`].
pub async fn run(pool: &MySqlPool) -> Result<Outcome, MigrateError<Error>> {
    run_for(pool, &TableName::DEFAULT).await
}

/// Creates a table of another name unless it is there. Its schema, which is a database, has to
/// exist.
///
/// # Errors
/// See [`MigrateError`].
pub async fn run_for(pool: &MySqlPool, table: &TableName) -> Result<Outcome, MigrateError<Error>> {
    let mut conn = pool.acquire().await.map_err(MigrateError::Database)?;
    if is_present(&mut conn, table).await? {
        return Ok(Outcome::Present);
    }
    // The server serialises concurrent statements on one table name by itself.
    let create = raw_sql(AssertSqlSafe(print(Dialect::MySql, table)));
    conn.execute(create).await.map_err(MigrateError::Database)?;
    is_present(&mut conn, table).await?;
    Ok(Outcome::Created)
}

/// Whether the table exists, with the columns it needs.
async fn is_present(
    conn: &mut MySqlConnection,
    table: &TableName,
) -> Result<bool, MigrateError<Error>> {
    let count: i64 = ::sqlx::query_scalar(
        "SELECT COUNT(*) FROM information_schema.tables \
         WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?",
    )
    .bind(table.schema())
    .bind(table.name())
    .fetch_one(&mut *conn)
    .await
    .map_err(MigrateError::Database)?;
    if count > 0 {
        let columns = query(AssertSqlSafe(probe(&table.quoted('`'), "`key`")));
        columns.execute(conn).await.map_err(foreign(table))?;
    }
    Ok(count > 0)
}
