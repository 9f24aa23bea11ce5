//! Fenced transactions on MySQL and MariaDB through diesel.
//!
//! diesel runs several statements in one message and reports the first error among them, but only
//! as a text. The number is asked of the server, and how far a message got stands in variables of
//! the session.

use ::diesel::RunQueryDsl as _;
use ::diesel::connection::{AnsiTransactionManager, SimpleConnection as _};
use ::diesel::dsl::sql;
use ::diesel::mysql::MysqlConnection;
use ::diesel::result::{DatabaseErrorKind, Error};
use ::diesel::sql_types::{BigInt, Nullable, Text, Unsigned};

use super::FenceError;
use super::driver::{Driver, Failure, Opened, Order, answer, forget, raw_rollback};
use super::migrate::unreadable;
use crate::TableName;
use crate::migrate::{Dialect, MigrateError, print, probe};
use crate::sql::{Class, Failed, StoredMark, mysql, refusal};

impl Driver for MysqlConnection {
    fn open(conn: &mut Self, order: Order<'_>) -> Result<Opened, Failure> {
        let opened = Opened::new(order.marker);
        let begin = mysql::begin(order.options, order.fence, order.marker, true, &[]);
        match AnsiTransactionManager::begin_transaction_sql(conn, &begin) {
            Ok(()) => Ok(opened),
            Err(error @ (Error::AlreadyInTransaction | Error::BrokenTransactionManager)) => {
                Err(Failure::database(error, Class::Other))
            }
            Err(error) => {
                let failure = explain(conn, order, error);
                Self::rollback(conn, &opened).ok();
                Err(failure)
            }
        }
    }

    fn commit(conn: &mut Self, opened: &Opened) -> Result<(), Failure> {
        let marker = opened.marker;
        let number = marker.number();
        let message = format!(
            "RELEASE SAVEPOINT {marker}; COMMIT; \
             SET @highwater_committed = {number}, autocommit = @highwater_autocommit"
        );
        let Err(error) = conn.batch_execute(&message) else {
            forget(conn);
            return Ok(());
        };
        let report = report(conn);
        Self::rollback(conn, opened).ok();
        let (failed, class) = match report {
            // Only restoring the session failed.
            Some(report) if report.committed == number => return Ok(()),
            Some(report) => {
                let failed = mysql::failed_at_once(report.error);
                (failed, mysql::class(report.error))
            }
            None => (Failed::Unknown, Class::Other),
        };
        Err(Failure::of_commit(failed, error, class))
    }

    fn rollback(conn: &mut Self, _opened: &Opened) -> Result<(), Error> {
        let ended = raw_rollback(conn, mysql::ROLLBACK).or_else(|_| {
            // Once more, should only this statement have been killed.
            raw_rollback(conn, mysql::ROLLBACK)
        });
        match ended {
            Ok(()) => forget(conn),
            // Autocommit may be off: the count must not be zero, so that no pool takes the
            // connection back. If this fails too, then the connection is gone altogether.
            Err(_) => {
                AnsiTransactionManager::begin_transaction_sql(conn, "DO 0").ok();
            }
        }
        ended
    }

    fn class(error: &Error) -> Class {
        match answer(error) {
            Some((DatabaseErrorKind::SerializationFailure, _)) => Class::Transient,
            // 1020: MariaDB has no kind for it.
            Some((_, text)) if text.starts_with("Record has changed since last read") => {
                Class::Transient
            }
            _ => Class::Other,
        }
    }

    fn is_present(conn: &mut Self, table: &TableName) -> Result<bool, MigrateError<Error>> {
        let ask = "(SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = COALESCE(";
        let ask = sql::<BigInt>(ask).bind::<Nullable<Text>, _>(table.schema());
        let ask = ask.sql(", DATABASE()) AND table_name = ");
        let ask = ask.bind::<Text, _>(table.name()).sql(")");
        let count: i64 = ::diesel::select(ask)
            .get_result(conn)
            .map_err(MigrateError::Database)?;
        if count > 0
            && let Err(source) = conn.batch_execute(&probe(&table.quoted('`'), "`key`"))
        {
            // bad field
            let foreign = report(conn).is_some_and(|report| report.error == 1054);
            return Err(unreadable(table, source, foreign));
        }
        Ok(count > 0)
    }

    fn create(conn: &mut Self, table: &TableName) -> Result<(), Error> {
        // The server serialises concurrent statements on one table name by itself.
        conn.batch_execute(&print(Dialect::MySql, table))
    }
}

/// What an error of the fence statement means. The transaction is still open after a refusal, and
/// the row that refused is locked, so what is read here is what refused.
fn explain(conn: &mut MysqlConnection, order: Order<'_>, error: Error) -> Failure {
    let table = order.options.table_ref();
    let class = report(conn).map_or(Class::Other, |report| mysql::class(report.error));
    match class {
        Class::Refused => {}
        Class::NoTable => {
            return Failure::of(FenceError::NotMigrated {
                table: table.clone(),
            });
        }
        class => return Failure::database(error, class),
    }
    let read = mysql::read(table, order.fence);
    let rows = sql::<(Text, Text, Unsigned<BigInt>, Unsigned<BigInt>)>(&read).load(conn);
    match rows {
        Ok(rows) => {
            let marks: Vec<StoredMark> = rows.into_iter().filter_map(stored_mark).collect();
            let reason = refusal(order.options, order.fence, &marks);
            Failure::of(reason.unwrap_or(FenceError::Database(error)))
        }
        Err(error) => Failure::database(error, Class::Other),
    }
}

fn stored_mark((key, domain, token, step): (String, String, u64, u64)) -> Option<StoredMark> {
    StoredMark::from_columns(&key, &domain, token, step)
}

/// What the server says about the message that failed.
#[derive(Debug)]
struct Report {
    /// The number of the error.
    error: u16,
    /// The number of the last marker on this session whose transaction was committed.
    committed: u64,
}

/// Asks for it; `None` if the server does not answer.
fn report(conn: &mut MysqlConnection) -> Option<Report> {
    // The error is the last condition: a statement may give warnings before it.
    let note = "GET DIAGNOSTICS @highwater_conditions = NUMBER; \
                GET DIAGNOSTICS CONDITION @highwater_conditions @highwater_error = MYSQL_ERRNO";
    conn.batch_execute(note).ok()?;
    let number = |variable| format!("CAST(COALESCE({variable}, 0) AS UNSIGNED)");
    let ask = format!(
        "SELECT {}, {}",
        number("@highwater_error"),
        number("@highwater_committed"),
    );
    type Numbers = (Unsigned<BigInt>, Unsigned<BigInt>);
    let numbers: Result<(u64, u64), Error> = sql::<Numbers>(&ask).get_result(conn);
    let (error, committed) = numbers.ok()?;
    Some(Report {
        error: u16::try_from(error).ok()?,
        committed,
    })
}
