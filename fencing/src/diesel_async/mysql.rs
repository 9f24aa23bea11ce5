//! Fenced transactions on MySQL and MariaDB through diesel-async.
//!
//! The driver keeps nothing of an error but its text, in the language of the server, and does not
//! even tell an answer of the server from a broken connection. So the server is asked what its last
//! error was. And a statement that was dropped before its answer came leaves that answer to the next
//! one; so whatever matters is confirmed by a row with a number that its message left behind.

use ::diesel::QueryResult;
use ::diesel::dsl::sql;
use ::diesel::mysql::Mysql;
use ::diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use ::diesel::result::Error;
use ::diesel::sql_types::{BigInt, Nullable, Text, Unsigned};
use ::diesel_async::{AsyncMysqlConnection, RunQueryDsl as _, SimpleAsyncConnection as _};
use futures_core::future::BoxFuture;
use futures_util::FutureExt as _;

use super::FenceError;
use super::driver::{Cleaned, Commit, Driver, Failure, Order, said, text};
use crate::migrate::{Dialect, MigrateError, Outcome, print};
use crate::sql::{Class, Failed, Marker, StoredMark, mysql, refusal};
use crate::{Fence, TableName};

impl Driver for AsyncMysqlConnection {
    fn begin(order: Order<'_>) -> String {
        // The session may be changed, because an abandoned connection does not go back to a pool.
        let notes = [format!(
            "@highwater_error = NULL, @highwater_reached = {BEGUN}"
        )];
        mysql::begin(order.options, order.fence, order.marker, true, &notes)
    }

    fn not_opened<'a>(
        conn: &'a mut Self,
        order: Order<'a>,
        error: Error,
    ) -> BoxFuture<'a, (Failure, Cleaned)> {
        Box::pin(async move {
            let Some(report) = Report::of_error(conn).await else {
                return (FenceError::Database(error).into(), Cleaned(false));
            };
            let class = report.class();
            let error = explain(conn, order, class, error).await;
            let clean = Self::rollback(conn).await.is_ok();
            (Failure { error, class }, Cleaned(clean))
        })
    }

    fn commit(conn: &mut Self, marker: Marker) -> BoxFuture<'_, Commit> {
        Box::pin(async move {
            let tie = Marker::new();
            let message = format!(
                "RELEASE SAVEPOINT {marker}; COMMIT; \
                 SET @highwater_reached = {COMMITTED}, @highwater_tie = {}, \
                 autocommit = @highwater_autocommit",
                tie.number(),
            );
            let done = conn.batch_execute(&message).await;
            let report = match &done {
                Ok(()) => Report::tied(conn, tie).await,
                Err(_) => Report::of_error(conn).await,
            };
            match (done, report) {
                (done, Some(report)) if report.reached == COMMITTED => {
                    Commit::Done(Cleaned(done.is_ok()))
                }
                (Err(error), Some(report)) => {
                    Commit::Failed(report.failed(), error, report.class())
                }
                (Err(error), None) => Commit::Failed(Failed::Unknown, error, Class::Other),
                (Ok(()), _) => {
                    let error = said("the answers to COMMIT are out of step");
                    Commit::Failed(Failed::Unknown, error, Class::Other)
                }
            }
        })
    }

    fn rollback(conn: &mut Self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let tie = Marker::new();
            let message = format!("{}; SET @highwater_tie = {}", mysql::ROLLBACK, tie.number());
            conn.batch_execute(&message).await?;
            match Report::tied(conn, tie).await {
                Some(_) => Ok(()),
                None => Err(said("the answers to ROLLBACK are out of step")),
            }
        })
    }

    fn abandon(conn: &mut Self) {
        // The first poll writes the message, unless the socket is full.
        let rollback = conn.batch_execute("ROLLBACK");
        let _ = tokio::task::unconstrained(rollback).now_or_never();
    }

    fn class(error: &Error) -> Class {
        let says = |words| text(error).contains(words);
        if says("Deadlock found") || says("Record has changed since last read") {
            Class::Transient
        } else {
            Class::Other
        }
    }

    fn last_class(conn: &mut Self) -> BoxFuture<'_, Class> {
        Box::pin(async move {
            let report = Report::of_error(conn).await;
            report.map_or(Class::Other, |report| report.class())
        })
    }

    fn migrate<'a>(
        conn: &'a mut Self,
        table: &'a TableName,
    ) -> BoxFuture<'a, Result<Outcome, MigrateError<Error>>> {
        Box::pin(async move {
            if is_table_of_marks(conn, table).await? {
                return Ok(Outcome::Present);
            }
            // The server serialises concurrent statements on one table name by itself.
            let create = print(Dialect::MySql, table);
            (conn.batch_execute(&create).await).map_err(MigrateError::Database)?;
            is_table_of_marks(conn, table).await?;
            Ok(Outcome::Created)
        })
    }
}

/// How far the last message of ours came, and what the server's last error was.
struct Report {
    error: u16,
    reached: i64,
}

/// The marker is set.
const BEGUN: i64 = 0;
/// `COMMIT` was answered.
const COMMITTED: i64 = 1;

impl Report {
    /// Asks for the last error, right after the statement that met it. `None` if the server does not
    /// answer, or answers something else before.
    async fn of_error(conn: &mut AsyncMysqlConnection) -> Option<Self> {
        let tie = Marker::new();
        // The error stands behind the warnings of its statement.
        let note = format!(
            "GET DIAGNOSTICS @highwater_conditions = NUMBER; \
             GET DIAGNOSTICS CONDITION @highwater_conditions @highwater_error = MYSQL_ERRNO; \
             SET @highwater_tie = {}",
            tie.number(),
        );
        conn.batch_execute(&note).await.ok()?;
        Self::tied(conn, tie).await
    }

    /// Reads the notes, if the last message came to the point where it left this tie.
    async fn tied(conn: &mut AsyncMysqlConnection, tie: Marker) -> Option<Self> {
        let row: (Option<i64>, Option<i64>, Option<i64>) = Notes.get_result(conn).await.ok()?;
        let (error, reached, number) = row;
        (u64::try_from(number?) == Ok(tie.number())).then_some(Self {
            error: u16::try_from(error.unwrap_or(0)).ok()?,
            reached: reached?,
        })
    }

    fn class(&self) -> Class {
        mysql::class(self.error)
    }

    /// What an error of the message with `COMMIT` means.
    fn failed(&self) -> Failed {
        mysql::failed_at_once(self.error)
    }
}

/// The query for the notes that our messages leave in the session. It is always the same, so that it
/// is prepared once per connection.
#[derive(Clone, Copy, Debug)]
struct Notes;

impl QueryId for Notes {
    type QueryId = Self;
    const HAS_STATIC_QUERY_ID: bool = true;
}

impl QueryFragment<Mysql> for Notes {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Mysql>) -> QueryResult<()> {
        out.push_sql(
            "SELECT CAST(@highwater_error AS SIGNED), CAST(@highwater_reached AS SIGNED), \
             CAST(@highwater_tie AS SIGNED)",
        );
        Ok(())
    }
}

impl Query for Notes {
    type SqlType = (Nullable<BigInt>, Nullable<BigInt>, Nullable<BigInt>);
}

/// What an error of the fence statement means. The transaction is still open after a refusal, and
/// the row that refused is locked, so what is read here is what refused.
async fn explain(
    conn: &mut AsyncMysqlConnection,
    order: Order<'_>,
    class: Class,
    error: Error,
) -> FenceError {
    let (fence, options) = (order.fence, order.options);
    let table = options.table_ref();
    match class {
        Class::Refused => match stored_marks(conn, table, fence).await {
            Ok(marks) => refusal(options, fence, &marks).unwrap_or(FenceError::Database(error)),
            Err(error) => FenceError::Database(error),
        },
        Class::NoTable => FenceError::NotMigrated {
            table: table.clone(),
        },
        _ => FenceError::Database(error),
    }
}

async fn stored_marks(
    conn: &mut AsyncMysqlConnection,
    table: &TableName,
    fence: &Fence,
) -> Result<Vec<StoredMark>, Error> {
    type Columns = (Text, Text, Unsigned<BigInt>, Unsigned<BigInt>);
    let rows: Vec<(String, String, u64, u64)> =
        (sql::<Columns>(&mysql::read(table, fence)).load(conn)).await?;
    let mark = |(key, domain, token, step): (String, String, u64, u64)| {
        StoredMark::from_columns(&key, &domain, token, step)
    };
    Ok(rows.into_iter().filter_map(mark).collect())
}

/// Whether the table exists, with the columns it needs.
async fn is_table_of_marks(
    conn: &mut AsyncMysqlConnection,
    table: &TableName,
) -> Result<bool, MigrateError<Error>> {
    // Checked identifiers: letters, digits and underscores.
    let schema = (table.schema()).map_or("DATABASE()".to_owned(), |schema| format!("'{schema}'"));
    let columns = format!(
        "SELECT COUNT(*), COUNT(CASE WHEN column_name IN \
         ('key', 'domain', 'token', 'step', 'updated_at') THEN 1 END) \
         FROM information_schema.columns WHERE table_schema = {schema} AND table_name = '{}'",
        table.name()
    );
    let (all, ours): (i64, i64) = (sql::<(BigInt, BigInt)>(&columns).get_result(conn).await)
        .map_err(MigrateError::Database)?;
    match (all, ours) {
        (0, _) => Ok(false),
        (_, 5) => Ok(true),
        _ => Err(MigrateError::ForeignTable {
            table: table.clone(),
            source: said(format!("it has {ours} of the 5 columns")),
        }),
    }
}
