//! Fenced transactions on MySQL and MariaDB through sqlx.

use ::sqlx::mysql::{MySqlConnection, MySqlDatabaseError, MySqlRow};
use ::sqlx::{
    AssertSqlSafe, Either, Error, Executor as _, MySql, Row as _, SqlSafeStr as _, raw_sql,
};
use futures_core::future::BoxFuture;
use futures_util::StreamExt as _;
use sqlx_core::transaction::TransactionManager as _;

use super::FenceError;
use super::driver::{Commit, Driver, Failure, Order, commit_in_turn, queue_rollback};
use crate::sql::{Class, Failed, Marker, StoredMark, mysql, refusal};

type Manager = <MySql as ::sqlx::Database>::TransactionManager;

impl Driver for MySql {
    /// The server's autocommit is switched off instead.
    type Veto = ();

    /// Above all because autocommit would stay off.
    const CLOSE_ABANDONED: bool = true;

    fn open<'a>(
        conn: &'a mut MySqlConnection,
        order: Order<'a>,
        hold: bool,
        (): &'a (),
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let Order {
                fence,
                options,
                marker,
            } = order;
            let begin = mysql::begin(options, fence, marker, hold, &[]);
            match Manager::begin(conn, Some(AssertSqlSafe(begin).into_sql_str())).await {
                Ok(()) => Ok(()),
                Err(error) => Err(not_opened(conn, order, hold, error).await),
            }
        })
    }

    fn join<'a>(
        conn: &'a mut MySqlConnection,
        order: Order<'a>,
        (): &'a (),
    ) -> BoxFuture<'a, Result<(), FenceError>> {
        Box::pin(async move {
            let join = mysql::join(order.options, order.fence, order.marker);
            match conn.execute(raw_sql(AssertSqlSafe(join))).await {
                Ok(_) => Ok(()),
                Err(error) => Err(explain(conn, order, error).await),
            }
        })
    }

    fn commit<'a>(
        conn: &'a mut MySqlConnection,
        marker: Marker,
        hold: bool,
        (): &'a (),
    ) -> BoxFuture<'a, Commit> {
        Box::pin(async move {
            if hold {
                commit_at_once(conn, marker).await
            } else {
                let release = raw_sql(AssertSqlSafe(format!("RELEASE SAVEPOINT {marker}")));
                let released = conn.execute(release).await.map(drop);
                commit_in_turn::<Self>(conn, released, failed).await
            }
        })
    }

    fn rollback<'a>(
        conn: &'a mut MySqlConnection,
        hold: bool,
        (): &'a (),
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let rollback = if hold { mysql::ROLLBACK } else { "ROLLBACK" };
            conn.execute(raw_sql(rollback)).await?;
            // Lowers the driver's count; a second rollback is harmless on this server.
            queue_rollback::<Self>(conn);
            Ok(())
        })
    }

    fn abandon(conn: &mut MySqlConnection, (): &()) {
        queue_rollback::<Self>(conn);
    }

    fn class(error: &Error) -> Class {
        match server_error(error) {
            Some(error) => mysql::class(error.number()),
            None => Class::Other,
        }
    }
}

/// Says why the fence was not taken, and ends what the message with `BEGIN` left open.
async fn not_opened(
    conn: &mut MySqlConnection,
    order: Order<'_>,
    hold: bool,
    error: Error,
) -> Failure {
    let answered = server_error(&error).is_some();
    let error = explain(conn, order, error).await;
    let clean = answered && MySql::rollback(conn, hold, &()).await.is_ok();
    Failure { error, clean }
}

/// What an error of the fence statement means. The transaction is still open after a refusal, and
/// the row that refused is locked, so what is read here is what refused.
async fn explain(conn: &mut MySqlConnection, order: Order<'_>, error: Error) -> FenceError {
    let table = order.options.table_ref();
    match MySql::class(&error) {
        Class::Refused => {}
        Class::NoTable => {
            return FenceError::NotMigrated {
                table: table.clone(),
            };
        }
        _ => return FenceError::Database(error),
    }
    let read = raw_sql(AssertSqlSafe(mysql::read(table, order.fence)));
    match conn.fetch_all(read).await {
        Ok(rows) => {
            let marks: Vec<StoredMark> = rows.iter().filter_map(stored_mark).collect();
            refusal(order.options, order.fence, &marks).unwrap_or(FenceError::Database(error))
        }
        Err(error) => FenceError::Database(error),
    }
}

fn stored_mark(row: &MySqlRow) -> Option<StoredMark> {
    StoredMark::from_columns(
        row.try_get(0).ok()?,
        row.try_get(1).ok()?,
        row.try_get(2).ok()?,
        row.try_get(3).ok()?,
    )
}

/// Release, commit and the restored autocommit in one message, for a connection that goes back to
/// its pool.
///
/// The marker's number comes back as a row between them. It ties the answers to this message: if answers
/// of an earlier statement were still under way, the row would not stand in its place.
async fn commit_at_once(conn: &mut MySqlConnection, marker: Marker) -> Commit {
    let message = format!(
        "RELEASE SAVEPOINT {marker}; COMMIT; SELECT {}; \
         SET autocommit = @highwater_autocommit",
        marker.number(),
    );
    let mut answers = conn.fetch_many(raw_sql(AssertSqlSafe(message)));
    let mut acknowledged = 0;
    let mut committed = false;
    let mut error = None;
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(Either::Left(_)) => acknowledged += 1,
            Ok(Either::Right(row)) => {
                let number = row.try_get::<i64, _>(0).map(i64::unsigned_abs);
                let is_ours = number.is_ok_and(|number| number == marker.number());
                committed = acknowledged == 2 && is_ours;
            }
            Err(failed) => {
                error = Some(failed);
                break;
            }
        }
    }
    drop(answers);
    match error {
        // The row is an answer of its own: release, commit, select, set.
        None if committed && acknowledged == 4 => {
            queue_rollback::<MySql>(conn);
            Commit::Done { clean: true }
        }
        _ if committed => Commit::Done { clean: false },
        Some(error) => Commit::Failed(failed(&error, acknowledged), error),
        None => {
            let error = Error::Protocol("the answers to COMMIT are out of step".to_owned());
            Commit::Failed(Failed::Unknown, error)
        }
    }
}

/// Only an answer of the server that leaves the connection open can mean "not committed".
fn failed(error: &Error, acknowledged: u32) -> Failed {
    match server_error(error) {
        Some(error) => mysql::failed(error.number(), acknowledged),
        None => Failed::Unknown,
    }
}

/// Whether the server said that nothing was written. (Of a statement it answers every error, but
/// that it was killed.)
pub(crate) fn is_answer(error: &Error) -> bool {
    server_error(error).is_some_and(|error| mysql::failed(error.number(), 0) != Failed::Unknown)
}

/// Whether a trigger refused.
pub(crate) fn is_signal(error: &Error) -> bool {
    server_error(error).is_some_and(|error| error.number() == 1644)
}

fn server_error(error: &Error) -> Option<&MySqlDatabaseError> {
    error.as_database_error()?.try_downcast_ref()
}
