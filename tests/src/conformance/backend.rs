//! What the suite asks of a driver: run SQL, read a number, and a few words that differ.
//!
//! One implementation per sqlx database. The SQL of the cases has no binds; keys that are not
//! plain text only ever go through the fence, and through [`Backend::bytes`].

use std::fmt::Write as _;

use highwater_fencing::TableName;
use highwater_fencing::migrate;
use highwater_fencing::sqlx::{Dialect, Fenced};
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::{AssertSqlSafe, Error, MySql, Pool, Postgres, Sqlite};

/// A sqlx database under test.
pub trait Backend: Dialect {
    /// The column `key`, quoted.
    const KEY: &'static str;
    /// The dialect of the migrations.
    const MIGRATIONS: migrate::Dialect;

    /// Runs SQL, perhaps several statements, on a connection of the pool.
    fn run(pool: &Pool<Self>, sql: &str) -> impl Future<Output = Result<u64, Error>> + Send;
    /// Runs SQL in a fenced transaction.
    fn run_in(
        tx: &mut Fenced<'_, Self>,
        sql: &str,
    ) -> impl Future<Output = Result<u64, Error>> + Send;
    /// Runs SQL on a bare connection.
    fn run_on(
        conn: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<u64, Error>> + Send;
    /// Reads one number, if there is a row.
    fn number(
        pool: &Pool<Self>,
        sql: &str,
    ) -> impl Future<Output = Result<Option<i64>, Error>> + Send;
    /// Reads one number in a fenced transaction.
    fn number_in(
        tx: &mut Fenced<'_, Self>,
        sql: &str,
    ) -> impl Future<Output = Result<Option<i64>, Error>> + Send;
    /// Reads one number on a bare connection.
    fn number_on(
        conn: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<Option<i64>, Error>> + Send;
    /// Creates the table of marks.
    fn migrate(
        pool: &Pool<Self>,
        table: &TableName,
    ) -> impl Future<Output = Result<migrate::Outcome, migrate::Error>> + Send;
    /// Applies a user's own migrations, with sqlx's own means.
    fn run_migrator(
        pool: &Pool<Self>,
        migrator: Migrator,
    ) -> impl Future<Output = Result<(), MigrateError>> + Send;
    /// Bytes as a literal.
    fn bytes(bytes: &[u8]) -> String;
}

/// The bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes every write");
        text
    })
}

macro_rules! backend {
    ($database:ty, $key:literal, $dialect:ident, $migrate:path, $bytes:literal) => {
        impl Backend for $database {
            const KEY: &'static str = $key;
            const MIGRATIONS: migrate::Dialect = migrate::Dialect::$dialect;

            async fn run(pool: &Pool<Self>, sql: &str) -> Result<u64, Error> {
                let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await?;
                Ok(done.rows_affected())
            }

            async fn run_in(tx: &mut Fenced<'_, Self>, sql: &str) -> Result<u64, Error> {
                let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await?;
                Ok(done.rows_affected())
            }

            async fn run_on(conn: &mut Self::Connection, sql: &str) -> Result<u64, Error> {
                let done = sqlx::raw_sql(AssertSqlSafe(sql))
                    .execute(&mut *conn)
                    .await?;
                Ok(done.rows_affected())
            }

            async fn number(pool: &Pool<Self>, sql: &str) -> Result<Option<i64>, Error> {
                let number = sqlx::query_scalar(AssertSqlSafe(sql));
                number.fetch_optional(pool).await
            }

            async fn number_in(tx: &mut Fenced<'_, Self>, sql: &str) -> Result<Option<i64>, Error> {
                let number = sqlx::query_scalar(AssertSqlSafe(sql));
                number.fetch_optional(&mut *tx).await
            }

            async fn number_on(
                conn: &mut Self::Connection,
                sql: &str,
            ) -> Result<Option<i64>, Error> {
                let number = sqlx::query_scalar(AssertSqlSafe(sql));
                number.fetch_optional(&mut *conn).await
            }

            async fn migrate(
                pool: &Pool<Self>,
                table: &TableName,
            ) -> Result<migrate::Outcome, migrate::Error> {
                $migrate(pool, table).await
            }

            async fn run_migrator(
                pool: &Pool<Self>,
                migrator: Migrator,
            ) -> Result<(), MigrateError> {
                migrator.run(pool).await
            }

            fn bytes(bytes: &[u8]) -> String {
                format!($bytes, hex(bytes))
            }
        }
    };
}

backend!(
    Postgres,
    "key",
    Postgres,
    migrate::postgres::run_for,
    "'\\x{}'::bytea"
);
backend!(MySql, "`key`", MySql, migrate::mysql::run_for, "x'{}'");
backend!(Sqlite, "\"key\"", Sqlite, migrate::sqlite::run_for, "x'{}'");
