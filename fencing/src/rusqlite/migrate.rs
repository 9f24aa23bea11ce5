//! Creates the table of marks through rusqlite.

use ::rusqlite::{Connection, Error};

use super::health::code;
use crate::TableName;
use crate::migrate::{Dialect, MigrateError, Outcome, print, probe};

/// Creates the table `highwater_fence` unless it is there.
///
/// Re-running is harmless, also from several programs at once: the file is locked meanwhile, as
/// long as the `busy_timeout` of the connection allows.
///
/// # Errors
/// See [`MigrateError`].
pub fn run(conn: &Connection) -> Result<Outcome, MigrateError<Error>> {
    run_for(conn, &TableName::DEFAULT)
}

/// Creates a table of another name unless it is there. A schema is the name of an attached
/// database.
///
/// # Errors
/// See [`MigrateError`].
pub fn run_for(conn: &Connection, table: &TableName) -> Result<Outcome, MigrateError<Error>> {
    if is_present(conn, table)? {
        return Ok(Outcome::Present);
    }
    // A single statement is a transaction of its own, and it begins with the write lock.
    conn.execute_batch(&print(Dialect::Sqlite, table))
        .map_err(MigrateError::Database)?;
    is_present(conn, table)?;
    Ok(Outcome::Created)
}

/// Whether the table exists, with the columns it needs.
fn is_present(conn: &Connection, table: &TableName) -> Result<bool, MigrateError<Error>> {
    let master = match table.schema() {
        Some(schema) => format!("\"{schema}\".sqlite_master"),
        None => "sqlite_master".to_owned(),
    };
    let count = format!("SELECT COUNT(*) FROM {master} WHERE name = ?1 COLLATE NOCASE");
    let count: i64 = conn
        .query_row(&count, [table.name()], |row| row.get(0))
        .map_err(MigrateError::Database)?;
    if count > 0 {
        conn.prepare(&probe(&table.quoted('"'), "\"key\""))
            .map_err(|source| match code(&source) {
                // SQLITE_ERROR: a statement that cannot be prepared.
                Some((1, _)) => MigrateError::ForeignTable {
                    table: table.clone(),
                    source,
                },
                _ => MigrateError::Database(source),
            })?;
    }
    Ok(count > 0)
}
