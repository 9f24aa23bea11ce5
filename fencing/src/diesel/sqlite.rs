//! Fenced transactions on SQLite through diesel.
//!
//! diesel gives the texts of errors and not their codes; the texts are SQLite's own and always
//! English.

use ::diesel::QueryableByName;
use ::diesel::RunQueryDsl as _;
use ::diesel::connection::{AnsiTransactionManager, SimpleConnection as _};
use ::diesel::dsl::sql;
use ::diesel::result::{DatabaseErrorKind, Error};
use ::diesel::sql_query;
use ::diesel::sql_types::{BigInt, Binary, Text};
use ::diesel::sqlite::{Sqlite, SqliteConnection};

use super::FenceError;
use super::driver::{Driver, Failure, Opened, Order, Unwound, answer, raw_rollback, unwind};
use super::migrate::unreadable;
use super::prepared::{Admit, Bare};
use crate::migrate::{Dialect, MigrateError, print, probe};
use crate::sql::{Class, Failed, StoredMark, refusal, sqlite};
use crate::{Mark, TableName};

impl Driver for SqliteConnection {
    fn open(conn: &mut Self, order: Order<'_>) -> Result<Opened, Failure> {
        if let Err(error) = AnsiTransactionManager::begin_transaction_sql(conn, sqlite::BEGIN) {
            let class = Self::class(&error);
            return Err(Failure::database(error, class));
        }
        let mut opened = Opened::new(order.marker);
        if let Err(failure) = take(conn, order, &mut opened) {
            // That it fails is seen by diesel, which goes on counting the transaction.
            Self::rollback(conn, &opened).ok();
            return Err(failure);
        }
        Ok(opened)
    }

    fn commit(conn: &mut Self, opened: &Opened) -> Result<(), Failure> {
        if let Err(error) = release(conn, opened) {
            let failed = code(&error).map_or(Failed::RolledBack, |(code, text)| {
                sqlite::failed(code, text, 0)
            });
            Self::rollback(conn, opened).ok();
            if failed == Failed::Ended {
                close_again(conn, opened);
            }
            return Err(Failure::of_commit(failed, error, Class::Other));
        }
        if let Err(error) = commit_when_readers_left(conn) {
            let class = Self::class(&error);
            // If there was something to roll back, nothing was committed.
            let failed = match raw_rollback(conn, "ROLLBACK") {
                Ok(()) => Failed::RolledBack,
                Err(_) => code(&error).map_or(Failed::Unknown, |(code, text)| {
                    sqlite::failed(code, text, 1)
                }),
            };
            unwind(conn);
            return Err(Failure::of_commit(failed, error, class));
        }
        // diesel still counts the transaction: give it an empty one to end.
        conn.batch_execute("BEGIN").ok();
        unwind(conn);
        Ok(())
    }

    fn rollback(conn: &mut Self, opened: &Opened) -> Result<(), Error> {
        if unwind(conn) == Unwound::All {
            return Ok(());
        }
        // diesel's count was wrong: ended behind its back, or ended and begun again.
        let ended = match raw_rollback(conn, "ROLLBACK") {
            Err(error) if !is_outside(&error) => Err(error),
            _ => Ok(()),
        };
        close_again(conn, opened);
        ended
    }

    fn class(error: &Error) -> Class {
        match code(error) {
            Some((code, text)) => sqlite::class(code, text),
            None => Class::Other,
        }
    }

    fn is_present(conn: &mut Self, table: &TableName) -> Result<bool, MigrateError<Error>> {
        let master = match table.schema() {
            Some(schema) => format!("\"{schema}\".sqlite_master"),
            None => "sqlite_master".to_owned(),
        };
        // A name has no character that ends the literal.
        let ask = format!(
            "(SELECT COUNT(*) FROM {master} WHERE name = '{}' COLLATE NOCASE)",
            table.name(),
        );
        let count: i64 = ::diesel::select(sql::<BigInt>(&ask))
            .get_result(conn)
            .map_err(MigrateError::Database)?;
        if count > 0
            && let Err(source) = conn.batch_execute(&probe(&table.quoted('"'), "\"key\""))
        {
            let text = answer(&source).map_or("", |(_, text)| text);
            let foreign = text.starts_with("no such column");
            return Err(unreadable(table, source, foreign));
        }
        Ok(count > 0)
    }

    fn create(conn: &mut Self, table: &TableName) -> Result<(), Error> {
        // A single statement is a transaction of its own, and it begins with the write lock.
        conn.batch_execute(&print(Dialect::Sqlite, table))
    }
}

/// Takes back what the fence opened for protected tables, and releases the marker.
fn release(conn: &mut SqliteConnection, opened: &Opened) -> Result<(), Error> {
    if let Some(close) = &opened.close {
        Bare(close).execute(conn)?;
    }
    conn.batch_execute(&format!("RELEASE {}", opened.marker))
}

/// Takes back what the fence opened for protected tables, after a raw `COMMIT` made it last: where
/// the connection does not enforce foreign keys, nothing refuses that.
fn close_again(conn: &mut SqliteConnection, opened: &Opened) {
    if let Some(close) = &opened.close {
        conn.batch_execute(close).ok();
    }
}

/// Takes the fence and sets the marker in the transaction that is open.
fn take(conn: &mut SqliteConnection, order: Order<'_>, opened: &mut Opened) -> Result<(), Failure> {
    for mark in order.fence.marks() {
        if admit(conn, order, mark)? {
            opened.close = Some(sqlite::close(order.options));
        }
    }
    let marker = format!("SAVEPOINT {}", order.marker);
    (conn.batch_execute(&marker)).map_err(|error| Failure::database(error, Class::Other))
}

/// Raises one mark, or says why not. Gives whether there may be protected tables.
fn admit(conn: &mut SqliteConnection, order: Order<'_>, mark: &Mark) -> Result<bool, Failure> {
    let table = order.options.table_ref();
    let fence = order.fence;
    let domain = fence.domain();
    let number = |number: u64| i64::try_from(number).expect("the range was checked before");
    let admit = Admit {
        text: sqlite::admit(order.options),
        key: mark.key.as_bytes(),
        domain: &domain.as_bytes()[..],
        token: number(mark.token.get()),
        step: fence.step().map(|step| number(step.get())),
    };
    let admitted: Result<Vec<bool>, Error> = admit.load(conn);
    match admitted.map(|rows| rows.first().copied()) {
        Ok(Some(protected)) => return Ok(protected),
        Ok(None) => {}
        Err(error) => {
            return Err(match SqliteConnection::class(&error) {
                Class::NoTable => Failure::of(FenceError::NotMigrated {
                    table: table.clone(),
                }),
                class => Failure::database(error, class),
            });
        }
    }
    let read = sql_query(format!(
        "WITH mark (key, domain, token, step) AS ({}) SELECT key, domain, token, step FROM mark",
        sqlite::read(table)
    ));
    let rows = read.bind::<Binary, _>(mark.key.as_bytes()).load(conn);
    let rows: Vec<MarkRow> = rows.map_err(|error| Failure::database(error, Class::Other))?;
    let marks: Vec<StoredMark> = rows.iter().filter_map(MarkRow::mark).collect();
    let reason = refusal(order.options, fence, &marks);
    Err(Failure::of(reason.unwrap_or_else(|| {
        let text = "the mark is unreadable".to_owned();
        FenceError::Database(Error::DatabaseError(
            DatabaseErrorKind::Unknown,
            Box::new(text),
        ))
    })))
}

/// A row of the table of marks.
#[derive(QueryableByName)]
#[diesel(check_for_backend(Sqlite))]
struct MarkRow {
    #[diesel(sql_type = Text)]
    key: String,
    #[diesel(sql_type = Text)]
    domain: String,
    #[diesel(sql_type = BigInt)]
    token: i64,
    #[diesel(sql_type = BigInt)]
    step: i64,
}

impl MarkRow {
    fn mark(&self) -> Option<StoredMark> {
        let number = |number: i64| u64::try_from(number).ok();
        StoredMark::from_columns(
            &self.key,
            &self.domain,
            number(self.token)?,
            number(self.step)?,
        )
    }
}

/// Commits. A reader that holds a rollback-journal database busy leaves the transaction open, and
/// it is too late to run it again: wait for the reader a few times.
fn commit_when_readers_left(conn: &mut SqliteConnection) -> Result<(), Error> {
    let mut tries = 0;
    loop {
        let Err(error) = conn.batch_execute("COMMIT") else {
            return Ok(());
        };
        tries += 1;
        let is_busy = code(&error).is_some_and(|(code, _)| sqlite::is_busy(code));
        if tries == sqlite::COMMIT_TRIES || !is_busy {
            return Err(error);
        }
        std::thread::sleep(sqlite::COMMIT_PAUSE);
    }
}

/// The primary result code that stands behind a text, 1 where it is another one; and the text.
fn code(error: &Error) -> Option<(i32, &str)> {
    let (kind, text) = answer(error)?;
    let code = match kind {
        DatabaseErrorKind::UniqueViolation
        | DatabaseErrorKind::ForeignKeyViolation
        | DatabaseErrorKind::NotNullViolation
        | DatabaseErrorKind::CheckViolation => CONSTRAINT,
        _ => (CODES.iter())
            .find(|(start, _)| text.starts_with(start))
            .map_or(ERROR, |(_, code)| *code),
    };
    Some((code, text))
}

/// Whether the error says that no transaction is open.
fn is_outside(error: &Error) -> bool {
    answer(error).is_some_and(|(_, text)| text.contains("no transaction is active"))
}

const ERROR: i32 = 1;
const CONSTRAINT: i32 = 19;
/// The starts of SQLite's texts, and their result codes.
const CODES: [(&str, i32); 9] = [
    ("database is locked", 5),
    ("database table is locked", 6),
    ("database schema is locked", 6),
    ("out of memory", 7),
    ("interrupted", 9),
    ("disk I/O error", 10),
    ("database or disk is full", 13),
    ("constraint failed", CONSTRAINT),
    ("FOREIGN KEY constraint failed", CONSTRAINT),
];
