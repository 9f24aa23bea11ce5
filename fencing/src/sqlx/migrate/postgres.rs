//! Creates the table of marks in PostgreSQL.

use ::sqlx::{AssertSqlSafe, Error, Executor as _, PgConnection, PgPool, query, raw_sql};

use super::foreign;
use crate::TableName;
use crate::migrate::{Dialect, MigrateError, Outcome, print, probe};

/// Creates the table `highwater_fence` unless it is there.
///
/// Re-running is harmless, also from several programs at once. Cancelling it changes nothing.
///
/// # Errors
/// See [`MigrateError`].
pub async fn run(pool: &PgPool) -> Result<Outcome, MigrateError<Error>> {
    run_for(pool, &TableName::DEFAULT).await
}

/// Creates a table of another name unless it is there. Its schema has to exist.
///
/// # Errors
/// See [`MigrateError`].
pub async fn run_for(pool: &PgPool, table: &TableName) -> Result<Outcome, MigrateError<Error>> {
    // A connection that is cancelled half-way must not go back to the pool inside a transaction.
    let mut conn = (pool.acquire().await.map_err(MigrateError::Database)?).detach();
    let outcome = apply(&mut conn, table).await;
    ::sqlx::Connection::close(conn).await.ok();
    outcome
}

async fn apply(conn: &mut PgConnection, table: &TableName) -> Result<Outcome, MigrateError<Error>> {
    if is_present(conn, table).await? {
        return Ok(Outcome::Present);
    }
    // One message is one transaction, and the lock is held to its end: `IF NOT EXISTS` alone can
    // fail when two programs create the same table at once.
    let create = format!(
        "BEGIN; SELECT pg_advisory_xact_lock({MIGRATION_LOCK}); {}; COMMIT",
        print(Dialect::Postgres, table)
            .trim_end()
            .trim_end_matches(';'),
    );
    (conn.execute(raw_sql(AssertSqlSafe(create))).await).map_err(MigrateError::Database)?;
    is_present(conn, table).await?;
    Ok(Outcome::Created)
}

/// Whether the table exists, with the columns it needs.
async fn is_present(
    conn: &mut PgConnection,
    table: &TableName,
) -> Result<bool, MigrateError<Error>> {
    let quoted = table.quoted('"');
    let exists: bool = ::sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL")
        .bind(&quoted)
        .fetch_one(&mut *conn)
        .await
        .map_err(MigrateError::Database)?;
    if exists {
        let columns = query(AssertSqlSafe(probe(&quoted, "key, last_tx")));
        columns.execute(conn).await.map_err(foreign(table))?;
    }
    Ok(exists)
}

/// A number that no other program should use for an advisory lock: "highwate" in ASCII.
const MIGRATION_LOCK: i64 = 0x6869_6768_7761_7465;
