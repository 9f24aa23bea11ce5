//! Creates the table of marks through sea-orm: on its pool, with the migrations for sqlx.

use ::sea_orm::{DatabaseConnection, DatabaseConnectionType, DbErr};
use ::sqlx::Error;

use super::error::{query, unsupported};
use crate::TableName;
use crate::migrate::{self, MigrateError, Outcome};

/// Creates the table `highwater_fence` unless it is there.
///
/// Re-running is harmless, also from several programs at once. It takes no part in the migrations
/// of `sea-orm-migration`; to have it among those, run the SQL of
/// [`print`](crate::migrate::print) in one of yours.
///
/// # Errors
/// See [`MigrateError`].
pub async fn run(db: &DatabaseConnection) -> Result<Outcome, MigrateError<DbErr>> {
    run_for(db, &TableName::DEFAULT).await
}

/// Creates a table of another name unless it is there.
///
/// # Errors
/// See [`MigrateError`].
pub async fn run_for(
    db: &DatabaseConnection,
    table: &TableName,
) -> Result<Outcome, MigrateError<DbErr>> {
    let outcome = match &db.inner {
        #[cfg(feature = "sea-orm-mysql")]
        DatabaseConnectionType::SqlxMySqlPoolConnection(_) => {
            migrate::mysql::run_for(db.get_mysql_connection_pool(), table).await
        }
        #[cfg(feature = "sea-orm-postgres")]
        DatabaseConnectionType::SqlxPostgresPoolConnection(_) => {
            migrate::postgres::run_for(db.get_postgres_connection_pool(), table).await
        }
        #[cfg(feature = "sea-orm-sqlite")]
        DatabaseConnectionType::SqlxSqlitePoolConnection(_) => {
            migrate::sqlite::run_for(db.get_sqlite_connection_pool(), table).await
        }
        _ => return Err(MigrateError::Database(unsupported())),
    };
    outcome.map_err(|error: MigrateError<Error>| match error {
        MigrateError::ForeignTable { table, source } => MigrateError::ForeignTable {
            table,
            source: query(source),
        },
        MigrateError::Database(error) => MigrateError::Database(query(error)),
    })
}
