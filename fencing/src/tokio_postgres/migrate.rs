//! Creates the table of marks through tokio-postgres.
//!
//! ```no_run
//! # async fn start(client: &tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! highwater_fencing::migrate::tokio_postgres::run(client).await?;
//! # Ok(())
//! # }
//! ```

use ::tokio_postgres::error::SqlState;
use ::tokio_postgres::{Client, Error, SimpleQueryMessage};

use crate::TableName;
use crate::migrate::{Dialect, MigrateError, Outcome, print, probe};

/// Creates the table `highwater_fence` unless it is there.
///
/// Re-running is harmless, also from several programs at once. A table that is already there is
/// only looked at, so a role without the right to create tables can run this too. Dropping the
/// future leaves nothing half done.
///
/// # Errors
/// See [`MigrateError`].
pub async fn run(client: &Client) -> Result<Outcome, MigrateError<Error>> {
    run_for(client, &TableName::DEFAULT).await
}

/// Creates a table of another name unless it is there. Its schema has to exist.
///
/// # Errors
/// See [`MigrateError`].
pub async fn run_for(client: &Client, table: &TableName) -> Result<Outcome, MigrateError<Error>> {
    if is_present(client, table).await? {
        return Ok(Outcome::Present);
    }
    // A message of several statements is one transaction, which the server ends by itself, and the
    // lock is held to its end: `IF NOT EXISTS` alone can fail when two programs create the same
    // table at once.
    let create = format!(
        "SELECT pg_advisory_xact_lock({MIGRATION_LOCK}); {}",
        print(Dialect::Postgres, table),
    );
    let created = client.batch_execute(&create).await;
    created.map_err(MigrateError::Database)?;
    is_present(client, table).await?;
    Ok(Outcome::Created)
}

/// Whether the table exists, with the columns it needs.
async fn is_present(client: &Client, table: &TableName) -> Result<bool, MigrateError<Error>> {
    let quoted = table.quoted('"');
    let look = format!("SELECT 1 WHERE to_regclass('{quoted}') IS NOT NULL");
    let found = client.simple_query(&look).await;
    let found = found.map_err(MigrateError::Database)?;
    let exists = (found.iter()).any(|answer| matches!(answer, SimpleQueryMessage::Row(_)));
    if exists {
        let columns = probe(&quoted, "key, last_tx");
        client.batch_execute(&columns).await.map_err(|source| {
            if [SqlState::UNDEFINED_COLUMN, SqlState::WRONG_OBJECT_TYPE]
                .iter()
                .any(|foreign| source.code() == Some(foreign))
            {
                let table = table.clone();
                return MigrateError::ForeignTable { table, source };
            }
            MigrateError::Database(source)
        })?;
    }
    Ok(exists)
}

/// A number that no other program should use for an advisory lock: "highwate" in ASCII.
const MIGRATION_LOCK: i64 = 0x6869_6768_7761_7465;
