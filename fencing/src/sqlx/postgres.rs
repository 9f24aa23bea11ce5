//! Fenced transactions on PostgreSQL through sqlx.

use ::sqlx::postgres::{PgConnection, PgDatabaseError, PgRow, PgSeverity};
use ::sqlx::{
    AssertSqlSafe, Either, Error, Executor as _, Postgres, Row as _, SqlSafeStr as _, raw_sql,
};
use futures_core::future::BoxFuture;
use futures_util::StreamExt as _;
use sqlx_core::transaction::TransactionManager as _;

use super::FenceError;
use super::driver::{Commit, Driver, Failure, Order, commit_in_turn, depth, queue_rollback};
use crate::sql::{Class, Failed, Marker, StoredMark, postgres, refusal};

type Manager = <Postgres as ::sqlx::Database>::TransactionManager;

impl Driver for Postgres {
    /// A commit that comes from elsewhere is seen by the marker, and the server keeps an aborted
    /// transaction closed to everything: nothing to do on the client's side.
    type Veto = ();

    const CLOSE_ABANDONED: bool = true;

    fn open<'a>(
        conn: &'a mut PgConnection,
        order: Order<'a>,
        _hold: bool,
        (): &'a (),
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let Order {
                fence,
                options,
                marker,
            } = order;
            let begin = postgres::begin(options, fence, marker);
            match Manager::begin(conn, Some(AssertSqlSafe(begin).into_sql_str())).await {
                Ok(()) => Ok(()),
                Err(error) => Err(not_opened(conn, order, error).await),
            }
        })
    }

    fn join<'a>(
        conn: &'a mut PgConnection,
        order: Order<'a>,
        (): &'a (),
    ) -> BoxFuture<'a, Result<(), FenceError>> {
        Box::pin(async move {
            let Order {
                fence,
                options,
                marker,
            } = order;
            let join = postgres::join(options, fence, marker);
            let rows = match conn.fetch_all(raw_sql(AssertSqlSafe(join))).await {
                Ok(rows) => rows,
                Err(error) => return Err(explain(error, order)),
            };
            for row in &rows {
                if row.try_get::<i32, _>(0).map_err(FenceError::Database)? != 1 {
                    return Err(FenceError::InSavepoint);
                }
            }
            if rows.len() == fence.marks().len() {
                return Ok(());
            }
            let read = raw_sql(AssertSqlSafe(postgres::read(options.table_ref(), fence)));
            let rows = conn.fetch_all(read).await.map_err(FenceError::Database)?;
            Err(reason(&rows, order).unwrap_or_else(|| FenceError::Database(vanished())))
        })
    }

    fn commit<'a>(
        conn: &'a mut PgConnection,
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
        conn: &'a mut PgConnection,
        _hold: bool,
        (): &'a (),
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            for _ in 0..depth::<Self>(conn) {
                Manager::rollback(conn).await?;
            }
            Ok(())
        })
    }

    fn abandon(conn: &mut PgConnection, (): &()) {
        queue_rollback::<Self>(conn);
    }

    fn class(error: &Error) -> Class {
        match server_error(error) {
            Some(error) => postgres::class(error.code(), error.message()),
            None => Class::Other,
        }
    }
}

/// Ends what the message with `BEGIN` left open, and says why the fence was not taken.
async fn not_opened(conn: &mut PgConnection, order: Order<'_>, error: Error) -> Failure {
    if Postgres::class(&error) != Class::Refused {
        let clean =
            server_error(&error).is_some() && conn.execute(raw_sql("ROLLBACK")).await.is_ok();
        return Failure {
            error: explain(error, order),
            clean,
        };
    }
    // The aborted transaction cannot read any more. Afterwards the mark may have moved on, but
    // never back, so the reason still holds.
    let read = postgres::read(order.options.table_ref(), order.fence);
    let read = raw_sql(AssertSqlSafe(format!("ROLLBACK; {read}")));
    match conn.fetch_all(read).await {
        Ok(rows) => Failure {
            error: reason(&rows, order).unwrap_or_else(|| FenceError::Database(error)),
            clean: true,
        },
        Err(error) => Failure {
            error: FenceError::Database(error),
            clean: false,
        },
    }
}

/// Why these marks, read after a refusal, do not admit the fence.
fn reason(rows: &[PgRow], order: Order<'_>) -> Option<FenceError> {
    let marks: Vec<StoredMark> = rows.iter().filter_map(stored_mark).collect();
    refusal(order.options, order.fence, &marks)
}

fn stored_mark(row: &PgRow) -> Option<StoredMark> {
    let number = |column: usize| u64::try_from(row.try_get::<i64, _>(column).ok()?).ok();
    StoredMark::from_columns(
        row.try_get(0).ok()?,
        row.try_get(1).ok()?,
        number(2)?,
        number(3)?,
    )
}

/// An error of the fence statement, other than a refusal.
fn explain(error: Error, order: Order<'_>) -> FenceError {
    match Postgres::class(&error) {
        Class::NoTable => FenceError::NotMigrated {
            table: order.options.table_ref().clone(),
        },
        _ => FenceError::Database(error),
    }
}

/// The mark refused the fence, but it admits it now: somebody moved it in between.
fn vanished() -> Error {
    Error::Protocol("the mark that refused the fence has changed meanwhile".to_owned())
}

/// Release and commit in one message, for a connection that goes back to its pool.
///
/// sqlx still counts a transaction afterwards, and the only way to lower the count without waiting
/// is to queue a `ROLLBACK`. Outside of a transaction the server would answer it with a warning
/// that ends up in the user's log; so the message opens an empty transaction for it to end. The
/// rollback leaves with the ping that the pool sends before it takes the connection back.
async fn commit_at_once(conn: &mut PgConnection, marker: Marker) -> Commit {
    let message = format!("RELEASE SAVEPOINT {marker}; COMMIT; BEGIN");
    let mut answers = conn.fetch_many(raw_sql(AssertSqlSafe(message)));
    let mut acknowledged = 0;
    let mut error = None;
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(Either::Left(_)) => acknowledged += 1,
            Ok(Either::Right(_)) => {}
            Err(failed) => {
                error = Some(failed);
                break;
            }
        }
    }
    drop(answers);
    match error {
        None if acknowledged == 3 => {
            queue_rollback::<Postgres>(conn);
            Commit::Done { clean: true }
        }
        _ if acknowledged >= 2 => Commit::Done { clean: false },
        error => {
            let error = error.unwrap_or_else(|| Error::Protocol("no answer to COMMIT".to_owned()));
            Commit::Failed(failed(&error, acknowledged), error)
        }
    }
}

/// Only an answer of the server that leaves the connection open can mean "not committed".
fn failed(error: &Error, acknowledged: u32) -> Failed {
    match server_error(error) {
        Some(error) if error.severity() == PgSeverity::Error => {
            postgres::failed(error.code(), acknowledged)
        }
        _ => Failed::Unknown,
    }
}

/// Whether the server said that nothing was written.
pub(crate) fn is_answer(error: &Error) -> bool {
    failed(error, 1) == Failed::RolledBack
}

fn server_error(error: &Error) -> Option<&PgDatabaseError> {
    error.as_database_error()?.try_downcast_ref()
}
