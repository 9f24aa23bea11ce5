//! Creates the table of marks in SQLite.

use ::sqlx::{AssertSqlSafe, Error, Executor as _, SqliteConnection, SqlitePool, query, raw_sql};

use super::foreign;
use crate::TableName;
use crate::migrate::{Dialect, MigrateError, Outcome, print, probe};

/// Creates the table `highwater_fence` unless it is there.
///
/// Re-running is harmless, also from several programs at once: the file is locked meanwhile, as
/// long as the busy timeout of the pool allows.
///
/// # Errors
/// See [`MigrateError`].
pub async fn run(pool: &SqlitePool) -> Result<Outcome, MigrateError<Error>> {
    run_for(pool, &TableName::DEFAULT).await
}

/// Creates a table of another name unless it is there. A schema is the name of an attached
/// database.
///
/// # Errors
/// See [`MigrateError`].
pub async fn run_for(pool: &SqlitePool, table: &TableName) -> Result<Outcome, MigrateError<Error>> {
    let mut conn = pool.acquire().await.map_err(MigrateError::Database)?;
    if is_present(&mut conn, table).await? {
        return Ok(Outcome::Present);
    }
    // A single statement is a transaction of its own, and it begins with the write lock.
    let create = raw_sql(AssertSqlSafe(print(Dialect::Sqlite, table)));
    conn.execute(create).await.map_err(MigrateError::Database)?;
    is_present(&mut conn, table).await?;
    Ok(Outcome::Created)
}

/// Whether the table exists, with the columns it needs.
async fn is_present(
    conn: &mut SqliteConnection,
    table: &TableName,
) -> Result<bool, MigrateError<Error>> {
    let master = match table.schema() {
        Some(schema) => format!("\"{schema}\".sqlite_master"),
        None => "sqlite_master".to_owned(),
    };
    let count = format!("SELECT COUNT(*) FROM {master} WHERE name = ?1 COLLATE NOCASE");
    let count: i64 = ::sqlx::query_scalar(AssertSqlSafe(count))
        .bind(table.name())
        .fetch_one(&mut *conn)
        .await
        .map_err(MigrateError::Database)?;
    if count > 0 {
        let columns = query(AssertSqlSafe(probe(&table.quoted('"'), "\"key\"")));
        columns.execute(conn).await.map_err(foreign(table))?;
    }
    Ok(count > 0)
}
