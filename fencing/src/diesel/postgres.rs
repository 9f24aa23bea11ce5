//! Fenced transactions on PostgreSQL through diesel.
//!
//! diesel looks at the state of libpq after every statement and corrects its count of open
//! transactions by itself, so raw `COMMIT` and `ROLLBACK` are enough.

use ::diesel::RunQueryDsl as _;
use ::diesel::connection::{AnsiTransactionManager, Connection as _, SimpleConnection as _};
use ::diesel::dsl::sql;
use ::diesel::pg::PgConnection;
use ::diesel::result::{DatabaseErrorKind, Error};
use ::diesel::sql_query;
use ::diesel::sql_types::{BigInt, Bool, Text};

use super::FenceError;
use super::driver::{Driver, Failure, Opened, Order, answer, raw_rollback};
use super::migrate::unreadable;
use crate::TableName;
use crate::migrate::{Dialect, MigrateError, print, probe};
use crate::sql::{Class, Failed, StoredMark, postgres, refusal};

impl Driver for PgConnection {
    fn open(conn: &mut Self, order: Order<'_>) -> Result<Opened, Failure> {
        let begin = postgres::begin(order.options, order.fence, order.marker);
        match AnsiTransactionManager::begin_transaction_sql(conn, &begin) {
            Ok(()) => Ok(Opened::new(order.marker)),
            Err(error @ (Error::AlreadyInTransaction | Error::BrokenTransactionManager)) => {
                Err(Failure::database(error, Class::Other))
            }
            Err(error) => Err(not_opened(conn, order, error)),
        }
    }

    fn commit(conn: &mut Self, opened: &Opened) -> Result<(), Failure> {
        let marker = opened.marker;
        let message = format!("RELEASE SAVEPOINT {marker}; COMMIT");
        let Err(error) = conn.batch_execute(&message) else {
            return Ok(());
        };
        // An answer means "not committed" only if the connection outlives it: diesel does not tell
        // the severity.
        let alive = Self::rollback(conn, opened).is_ok();
        let failed = match answer(&error) {
            Some((_, text)) if alive => postgres::failed_by_text(text, marker),
            _ => Failed::Unknown,
        };
        let class = Self::class(&error);
        Err(Failure::of_commit(failed, error, class))
    }

    fn rollback(conn: &mut Self, _opened: &Opened) -> Result<(), Error> {
        // Whatever diesel counts: after a raw `COMMIT; BEGIN` it may not know of a transaction.
        raw_rollback(conn, "ROLLBACK")
    }

    fn class(error: &Error) -> Class {
        match answer(error) {
            Some((DatabaseErrorKind::SerializationFailure, _)) => Class::Transient,
            Some((_, text)) => postgres::class_of_text(text, details(error)),
            None => Class::Other,
        }
    }

    fn is_present(conn: &mut Self, table: &TableName) -> Result<bool, MigrateError<Error>> {
        let missing = is_missing(conn, table).map_err(MigrateError::Database)?;
        if !missing {
            let probe = probe(&table.quoted('"'), "key, last_tx");
            if let Err(source) = sql_query(probe).execute(conn) {
                let foreign = lacks_columns(conn, table);
                return Err(unreadable(table, source, foreign));
            }
        }
        Ok(!missing)
    }

    fn create(conn: &mut Self, table: &TableName) -> Result<(), Error> {
        // The lock is held to the end of the transaction: `IF NOT EXISTS` alone can fail when two
        // programs create the same table at once.
        let create = print(Dialect::Postgres, table);
        let create = format!("SELECT pg_advisory_xact_lock({MIGRATION_LOCK}); {create}");
        conn.transaction(|conn| conn.batch_execute(&create))
    }
}

/// Ends what the message with `BEGIN` left open, and says why the fence was not taken.
fn not_opened(conn: &mut PgConnection, order: Order<'_>, error: Error) -> Failure {
    let class = PgConnection::class(&error);
    // The aborted transaction cannot read any more. Afterwards the mark may have moved on, but
    // never back, so the reason still holds.
    if raw_rollback(conn, "ROLLBACK").is_err() {
        return Failure::database(error, class);
    }
    match class {
        Class::Refused => Failure::of(reason(conn, order)),
        // Asked of the server, because the text of the error depends on its language.
        Class::Other if is_missing(conn, order.options.table_ref()).unwrap_or(false) => {
            Failure::of(FenceError::NotMigrated {
                table: order.options.table_ref().clone(),
            })
        }
        Class::Other => Failure::database(error, class_of_other(order)),
        _ => Failure::database(error, class),
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

/// What the database says more about an error.
fn details(error: &Error) -> Option<&str> {
    match error {
        Error::DatabaseError(_, information) => information.details(),
        _ => None,
    }
}

fn reason(conn: &mut PgConnection, order: Order<'_>) -> FenceError {
    let read = postgres::read(order.options.table_ref(), order.fence);
    let rows = sql::<(Text, Text, BigInt, BigInt)>(&read).load(conn);
    match rows {
        Ok(rows) => {
            let marks: Vec<StoredMark> = rows.into_iter().filter_map(stored_mark).collect();
            let reason = refusal(order.options, order.fence, &marks);
            reason.unwrap_or_else(|| FenceError::Database(vanished()))
        }
        Err(error) => FenceError::Database(error),
    }
}

fn stored_mark((key, domain, token, step): (String, String, i64, i64)) -> Option<StoredMark> {
    let number = |number: i64| u64::try_from(number).ok();
    StoredMark::from_columns(&key, &domain, number(token)?, number(step)?)
}

/// Whether there is no table of this name.
fn is_missing(conn: &mut PgConnection, table: &TableName) -> Result<bool, Error> {
    let ask = format!("{} IS NULL", class_of(table));
    ::diesel::select(sql::<Bool>(&ask)).get_result(conn)
}

/// Whether it is a table of something else. An error is none of its making.
fn lacks_columns(conn: &mut PgConnection, table: &TableName) -> bool {
    let ask = format!(
        "(SELECT count(*) FROM pg_attribute WHERE attrelid = {} AND NOT attisdropped AND \
         attname IN ('key', 'domain', 'token', 'step', 'last_tx', 'updated_at'))",
        class_of(table),
    );
    let columns: Result<i64, Error> = ::diesel::select(sql::<BigInt>(&ask)).get_result(conn);
    columns.is_ok_and(|columns| columns < 6)
}

/// The table as the catalogue knows it.
fn class_of(table: &TableName) -> String {
    // A quoted name has no character that ends the literal.
    format!("to_regclass('{}')", table.quoted('"'))
}

/// The mark refused the fence, but it admits it now: somebody moved it in between.
fn vanished() -> Error {
    let text = "the mark that refused the fence has changed meanwhile";
    Error::DatabaseError(DatabaseErrorKind::Unknown, Box::new(text.to_owned()))
}

/// A number that no other program should use for an advisory lock: "highwate" in ASCII.
const MIGRATION_LOCK: i64 = 0x6869_6768_7761_7465;
