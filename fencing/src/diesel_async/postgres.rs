//! Fenced transactions on PostgreSQL through diesel-async.

use ::diesel::dsl::sql;
use ::diesel::result::{DatabaseErrorKind, Error};
use ::diesel::sql_types::{BigInt, Bool, Text};
use ::diesel_async::{AsyncPgConnection, RunQueryDsl as _, SimpleAsyncConnection as _};
use futures_core::future::BoxFuture;
use futures_util::FutureExt as _;
use futures_util::future::join;

use super::FenceError;
use super::driver::{Cleaned, Commit, Driver, Failure, Order, said, text};
use crate::migrate::{Dialect, MigrateError, Outcome, print};
use crate::sql::{Class, Failed, Marker, StoredMark, postgres, refusal};
use crate::{Fence, TableName};

impl Driver for AsyncPgConnection {
    fn begin(order: Order<'_>) -> String {
        postgres::begin(order.options, order.fence, order.marker)
    }

    fn not_opened<'a>(
        conn: &'a mut Self,
        order: Order<'a>,
        error: Error,
    ) -> BoxFuture<'a, (Failure, Cleaned)> {
        Box::pin(async move {
            let class = Self::class(&error);
            let clean = conn.batch_execute("ROLLBACK").await.is_ok();
            if !clean {
                let error = FenceError::Database(error);
                return (Failure { error, class }, Cleaned(false));
            }
            let class = match class {
                Class::Other => class_of_other(order),
                class => class,
            };
            // The aborted transaction could not read any more. By now the mark may have moved on,
            // but never back, so the reason still holds.
            match explain(conn, order, error).await {
                Ok(error) => (Failure { error, class }, Cleaned(true)),
                Err(error) => (FenceError::Database(error).into(), Cleaned(false)),
            }
        })
    }

    fn commit(conn: &mut Self, marker: Marker) -> BoxFuture<'_, Commit> {
        Box::pin(async move {
            // Both leave at once, as two messages, so that each has an answer of its own. After a
            // failed release there is nothing that `COMMIT` could commit: the transaction is gone
            // or aborted.
            let release = format!("RELEASE SAVEPOINT {marker}");
            let shared: &Self = conn;
            let (mut first, mut second) = (shared, shared);
            let answers = join(
                first.batch_execute(&release),
                second.batch_execute("COMMIT"),
            );
            match answers.await {
                (Ok(()), Ok(())) => Commit::Done(Cleaned(true)),
                (Err(error), Ok(())) => {
                    let failed = postgres::failed_by_text(text(&error), marker);
                    Commit::Failed(failed, error, Class::Other)
                }
                (Ok(()), Err(error)) => {
                    let failed = uncommitted(conn, &error).await;
                    let class = Self::class(&error);
                    Commit::Failed(failed, error, class)
                }
                (Err(error), Err(_)) => Commit::Failed(Failed::Unknown, error, Class::Other),
            }
        })
    }

    fn rollback(conn: &mut Self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move { conn.batch_execute("ROLLBACK").await })
    }

    fn abandon(conn: &mut Self) {
        // The first poll hands the message to the task that owns the socket.
        let _ = conn.batch_execute("ROLLBACK").now_or_never();
    }

    fn class(error: &Error) -> Class {
        match error {
            Error::DatabaseError(DatabaseErrorKind::SerializationFailure, _) => Class::Transient,
            _ => postgres::class_of_text(text(error), details(error)),
        }
    }

    fn last_class(_conn: &mut Self) -> BoxFuture<'_, Class> {
        Box::pin(std::future::ready(Class::Other))
    }

    fn migrate<'a>(
        conn: &'a mut Self,
        table: &'a TableName,
    ) -> BoxFuture<'a, Result<Outcome, MigrateError<Error>>> {
        Box::pin(async move {
            if is_table_of_marks(conn, table).await? {
                return Ok(Outcome::Present);
            }
            // One message is one transaction, and the lock is held to its end: `IF NOT EXISTS`
            // alone can fail when two programs create the same table at once.
            let create = format!(
                "BEGIN; SELECT pg_advisory_xact_lock({MIGRATION_LOCK}); {}; COMMIT",
                print(Dialect::Postgres, table)
                    .trim_end()
                    .trim_end_matches(';'),
            );
            if let Err(error) = conn.batch_execute(&create).await {
                conn.batch_execute("ROLLBACK").await.ok();
                return Err(MigrateError::Database(error));
            }
            is_table_of_marks(conn, table).await?;
            Ok(Outcome::Created)
        })
    }
}

/// What an error of the fence statement means whose text does not say: once the bound of the wait for
/// the mark has passed, that it was not waited for any longer. If it was something else as late as
/// that, nothing is known about the mark either.
fn class_of_other(order: Order<'_>) -> Class {
    match order.options.lock_wait() {
        Some(wait) if order.since.is_past(wait) => Class::LockTimeout,
        _ => Class::Other,
    }
}

/// What the server says more about an error.
fn details(error: &Error) -> Option<&str> {
    match error {
        Error::DatabaseError(_, information) => information.details(),
        _ => None,
    }
}

/// What an error of the fence statement means, on a connection that is outside of a transaction
/// again.
async fn explain(
    conn: &mut AsyncPgConnection,
    order: Order<'_>,
    error: Error,
) -> Result<FenceError, Error> {
    let (fence, options) = (order.fence, order.options);
    let table = options.table_ref();
    if AsyncPgConnection::class(&error) == Class::Refused {
        let marks = stored_marks(conn, table, fence).await?;
        return Ok(refusal(options, fence, &marks).unwrap_or(FenceError::Database(error)));
    }
    // The text is in the language of the server, but it names what is missing.
    let is_named = text(&error).contains(table.name());
    if is_named && !exists(conn, table).await? {
        let table = table.clone();
        return Ok(FenceError::NotMigrated { table });
    }
    Ok(FenceError::Database(error))
}

async fn stored_marks(
    conn: &mut AsyncPgConnection,
    table: &TableName,
    fence: &Fence,
) -> Result<Vec<StoredMark>, Error> {
    let read = sql::<(Text, Text, BigInt, BigInt)>(&postgres::read(table, fence));
    let rows: Vec<(String, String, i64, i64)> = read.load(conn).await?;
    let mark = |(key, domain, token, step): (String, String, i64, i64)| {
        let number = |number: i64| u64::try_from(number).ok();
        StoredMark::from_columns(&key, &domain, number(token)?, number(step)?)
    };
    Ok(rows.into_iter().filter_map(mark).collect())
}

/// What an error means that came for `COMMIT`. Only one after which the connection stays open is the
/// server's word that it did not commit.
async fn uncommitted(conn: &mut AsyncPgConnection, error: &Error) -> Failed {
    let is_lost = matches!(
        error,
        Error::DatabaseError(
            DatabaseErrorKind::UnableToSendCommand | DatabaseErrorKind::ClosedConnection,
            _
        )
    );
    if !is_lost && conn.batch_execute("ROLLBACK").await.is_ok() {
        Failed::RolledBack
    } else {
        Failed::Unknown
    }
}

async fn exists(conn: &mut AsyncPgConnection, table: &TableName) -> Result<bool, Error> {
    // A checked identifier: letters, digits and underscores.
    let exists = format!("SELECT to_regclass('{}') IS NOT NULL", table.quoted('"'));
    sql::<Bool>(&exists).get_result(conn).await
}

/// Whether the table exists, with the columns it needs.
async fn is_table_of_marks(
    conn: &mut AsyncPgConnection,
    table: &TableName,
) -> Result<bool, MigrateError<Error>> {
    if !(exists(conn, table).await).map_err(MigrateError::Database)? {
        return Ok(false);
    }
    let columns = format!(
        "SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass('{}') AND attnum > 0 \
         AND NOT attisdropped \
         AND attname IN ('key', 'domain', 'token', 'step', 'last_tx', 'updated_at')",
        table.quoted('"')
    );
    let columns: i64 =
        (sql::<BigInt>(&columns).get_result(conn).await).map_err(MigrateError::Database)?;
    if columns == 6 {
        return Ok(true);
    }
    Err(MigrateError::ForeignTable {
        table: table.clone(),
        source: said(format!("it has {columns} of the 6 columns")),
    })
}

/// A number that no other program should use for an advisory lock: "highwate" in ASCII.
const MIGRATION_LOCK: i64 = 0x6869_6768_7761_7465;
