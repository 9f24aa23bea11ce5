//! Applies the migrations through sqlx, one module per database.
//!
//! Programs that start at the same time are serialised by a lock of the database. A table that is
//! already there is only looked at, so a role without the right to create tables can run this too.

use ::sqlx::Error;

use crate::TableName;
use crate::migrate::MigrateError;

#[cfg(feature = "sqlx-mysql")]
pub mod mysql;
#[cfg(feature = "sqlx-postgres")]
pub mod postgres;
#[cfg(feature = "sqlx-sqlite")]
pub mod sqlite;

/// The error of a statement that reads the columns of a table which exists.
fn foreign(table: &TableName) -> impl FnOnce(Error) -> MigrateError<Error> {
    let table = table.clone();
    |source| match source.as_database_error().and_then(|error| error.code()) {
        Some(code) if FOREIGN.contains(&&*code) => MigrateError::ForeignTable { table, source },
        _ => MigrateError::Database(source),
    }
}

/// A column is missing, or it is no table at all; not that reading it is forbidden, for example.
/// PostgreSQL: undefined_column, wrong_object_type; MySQL: bad field; SQLite: a statement that
/// cannot be prepared.
const FOREIGN: [&str; 4] = ["42703", "42809", "42S22", "1"];
