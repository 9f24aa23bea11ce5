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
    |error| match error {
        source @ Error::Database(_) => MigrateError::ForeignTable { table, source },
        error => MigrateError::Database(error),
    }
}

/// Reads nothing, but fails if a column is missing.
fn probe(quoted_table: &str, quoted_key: &str) -> String {
    format!("SELECT {quoted_key}, domain, token, step, updated_at FROM {quoted_table} WHERE 1 = 0")
}
