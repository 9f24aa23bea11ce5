//! The guard: an open transaction whose fence was admitted.

use std::cell::RefCell;
use std::fmt;

use ::rusqlite::{
    Connection, DropBehavior, Error, OptionalExtension as _, Params, Row, Transaction, ffi, params,
};

use super::FenceError;
use super::health::{class, code, is_transient};
use super::statement::{Statement, tap};
use crate::health::Health;
use crate::hooks::Watch;
use crate::sql::{Class, Failed, Marker, StoredMark, refusal, sqlite};
use crate::{Fence, FenceOptions, Mark};

/// An open transaction whose fence was admitted.
///
/// It has the methods of a connection that run SQL, and like there they take `&self`. A function
/// that takes `&Fenced<'_>` cannot be called without a fence.
///
/// - It ends with [`commit`](Self::commit) or [`rollback`](Self::rollback). Dropped without either,
///   it is rolled back.
/// - The first error *poisons* it: every later statement is refused (see
///   [`poisoned`](super::poisoned)), and so is the commit. A row that was not found, or a value of
///   another type than expected, is no such error.
/// - There is no nested transaction, since a savepoint of rusqlite needs `&mut Connection`.
///   Savepoints in raw SQL are possible.
/// - While it lives, a commit hook refuses every commit but its own, and a rollback hook notices its
///   end. Hooks that were set on the connection before are replaced, and afterwards there are none.
/// - It stays on the thread that began it, as a transaction of rusqlite does.
#[must_use = "a fenced transaction that is dropped is rolled back"]
pub struct Fenced<'c> {
    link: Link<'c>,
    watch: Watch,
    /// Only in a transaction of the caller: a savepoint of theirs may be around the fence, and be
    /// rolled back with it.
    marker: Option<Marker>,
    health: RefCell<Health>,
    /// What has to run before the commit, if there are protected tables.
    close: Option<String>,
    /// Nothing is left to be ended on the connection.
    done: bool,
}

/// The connection, by the form that the transaction was begun with.
enum Link<'c> {
    /// A connection that is ours until the end.
    Lent(&'c Connection),
    /// Inside a transaction that the caller began.
    Joined(Transaction<'c>),
}

impl<'c> Fenced<'c> {
    /// Begins on a connection outside of a transaction, which must be lent for the whole time.
    pub(crate) fn begin(
        conn: &'c Connection,
        fence: &Fence,
        options: &FenceOptions,
    ) -> Result<Self, FenceError> {
        if !conn.is_autocommit() {
            return Err(FenceError::InSavepoint);
        }
        conn.execute_batch(sqlite::BEGIN)
            .map_err(FenceError::Database)?;
        Self::over(Link::Lent(conn)).fenced(fence, options)
    }

    /// Takes the fence inside a transaction of the caller.
    pub(crate) fn join(
        mut tx: Transaction<'c>,
        fence: &Fence,
        options: &FenceOptions,
    ) -> Result<Self, FenceError> {
        // From now on this guard decides.
        tx.set_drop_behavior(DropBehavior::Rollback);
        if tx.is_autocommit() {
            // It was ended with raw SQL. What the database answers to a rollback says so.
            return match tx.rollback() {
                Err(error) => Err(FenceError::Ended(error)),
                Ok(()) => Err(FenceError::InSavepoint),
            };
        }
        Self::over(Link::Joined(tx)).fenced(fence, options)
    }

    fn over(link: Link<'c>) -> Self {
        Self {
            marker: matches!(link, Link::Joined(_)).then(Marker::new),
            link,
            watch: Watch::default(),
            health: RefCell::default(),
            close: None,
            done: false,
        }
    }

    /// Takes the fence and closes the connection to other commits. After an error
    /// the transaction was rolled back.
    fn fenced(mut self, fence: &Fence, options: &FenceOptions) -> Result<Self, FenceError> {
        match self.take(fence, options) {
            Ok(()) => Ok(self),
            Err(error) => {
                self.end().ok();
                Err(error)
            }
        }
    }

    fn take(&mut self, fence: &Fence, options: &FenceOptions) -> Result<(), FenceError> {
        for mark in fence.marks() {
            if admit(self.connection(), fence, options, mark)? {
                self.close = Some(sqlite::close(options));
            }
        }
        let conn = self.connection();
        if let Some(marker) = self.marker {
            (conn.execute_batch(&format!("SAVEPOINT {marker}"))).map_err(FenceError::Database)?;
        }
        let (mut may_pass, rolled_back) = self.watch.hooks();
        // True turns the commit into a rollback.
        conn.commit_hook(Some(move || !may_pass()))
            .and_then(|()| conn.rollback_hook(Some(rolled_back)))
            .map_err(FenceError::Database)
    }

    /// Runs one statement, and gives the number of changed rows.
    ///
    /// # Errors
    /// The driver's. After the first one every statement is refused: see
    /// [`poisoned`](super::poisoned).
    pub fn execute<P: Params>(&self, sql: &str, params: P) -> Result<usize, Error> {
        self.tap(|conn| conn.execute(sql, params))
    }

    /// Runs several statements without parameters.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn execute_batch(&self, sql: &str) -> Result<(), Error> {
        self.tap(|conn| conn.execute_batch(sql))
    }

    /// Runs a query, and gives what `f` makes of the first row.
    ///
    /// # Errors
    /// As [`execute`](Self::execute). [`Error::QueryReturnedNoRows`] does not poison; with
    /// [`optional`](::rusqlite::OptionalExtension::optional) it becomes `None`.
    pub fn query_row<T, P, F>(&self, sql: &str, params: P, f: F) -> Result<T, Error>
    where
        P: Params,
        F: FnOnce(&Row<'_>) -> Result<T, Error>,
    {
        self.tap(|conn| conn.query_row(sql, params, f))
    }

    /// Runs a query, and gives what `f` makes of each row. All rows are read before it returns.
    ///
    /// # Errors
    /// As [`execute`](Self::execute), and the first one of `f`.
    pub fn query_map<T, P, F>(&self, sql: &str, params: P, f: F) -> Result<Vec<T>, Error>
    where
        P: Params,
        F: FnMut(&Row<'_>) -> Result<T, Error>,
    {
        self.tap(|conn| conn.prepare(sql)?.query_map(params, f)?.collect())
    }

    /// Prepares a statement that is run several times.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn prepare(&self, sql: &str) -> Result<Statement<'_>, Error> {
        let inner = self.tap(|conn| conn.prepare(sql))?;
        Ok(Statement::new(inner, &self.health))
    }

    /// The number of rows that the last statement changed.
    pub fn changes(&self) -> u64 {
        self.connection().changes()
    }

    /// The rowid of the last row that was inserted on this connection.
    pub fn last_insert_rowid(&self) -> i64 {
        self.connection().last_insert_rowid()
    }

    /// The connection itself, for what is not possible through the guard, and for libraries that
    /// want one.
    ///
    /// Errors are not seen here and do not poison. What still holds: nothing is committed except by
    /// [`commit`](Self::commit), and that only succeeds if the transaction is the one that took the
    /// fence. If the commit hook or the rollback hook is
    /// replaced, it answers [`FenceError::Ended`].
    pub fn connection(&self) -> &Connection {
        match &self.link {
            Link::Lent(conn) => conn,
            Link::Joined(tx) => tx,
        }
    }

    /// Commits, and reports success only if the transaction was committed under its fence.
    ///
    /// # Errors
    /// - [`FenceError::Poisoned`]: a statement failed before; rolled back.
    /// - [`FenceError::Database`]: the database refused the commit; rolled back.
    /// - [`FenceError::Ended`]: another statement had ended the transaction.
    /// - [`FenceError::Unknown`]: writing to the disk failed; the transaction may be in.
    pub fn commit(mut self) -> Result<(), FenceError> {
        self.finish()
    }

    /// Rolls back. The mark goes back with everything else.
    ///
    /// # Errors
    /// [`FenceError::Database`] if the driver failed. The connection then refuses every commit:
    /// close it.
    pub fn rollback(mut self) -> Result<(), FenceError> {
        self.end().map_err(FenceError::Database)
    }

    /// Commits without consuming the guard.
    pub(crate) fn finish(&mut self) -> Result<(), FenceError> {
        let first = self.health.get_mut().first_failure().map(str::to_owned);
        if let Some(first) = first {
            self.end().ok();
            return Err(FenceError::Poisoned { first });
        }
        let committed = self.release_and_commit();
        match committed {
            Ok(()) => {
                self.done = true;
                // It works wherever setting them did.
                self.open().ok();
            }
            Err(_) => drop(self.end()),
        }
        committed
    }

    fn release_and_commit(&self) -> Result<(), FenceError> {
        let conn = self.connection();
        if self.watch.has_ended() {
            let ended = ffi::Error::new(ffi::SQLITE_ABORT_ROLLBACK);
            return Err(FenceError::Ended(failure(ended, sqlite::ENDED)));
        }
        if let Some(close) = &self.close {
            conn.prepare_cached(close)
                .and_then(|mut close| close.execute([]))
                .map_err(|error| not_committed(error, 0))?;
        }
        if let Some(marker) = self.marker {
            conn.execute_batch(&format!("RELEASE {marker}"))
                .map_err(|error| not_committed(error, 0))?;
        }
        commit_when_readers_left(conn, &self.watch).map_err(|error| not_committed(error, 1))?;
        if self.watch.was_asked() {
            return Ok(());
        }
        let unseen = ffi::Error::new(ffi::SQLITE_MISUSE);
        Err(FenceError::Unknown(failure(unseen, sqlite::UNSEEN)))
    }

    /// Rolls back without consuming the guard.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        self.done = true;
        let conn = self.connection();
        if !conn.is_autocommit() {
            // If it fails, the hook stays: what follows on the connection would be committed
            // together with this.
            self.watch.shut();
            conn.execute_batch("ROLLBACK")?;
        }
        self.open()
    }

    /// Lets commits pass again.
    fn open(&self) -> Result<(), Error> {
        let conn = self.connection();
        conn.commit_hook(None::<fn() -> bool>)?;
        conn.rollback_hook(None::<fn()>)
    }

    /// Whether the whole transaction may succeed if it is run again.
    pub(crate) fn is_transient(&self) -> bool {
        self.health.borrow().is_transient()
    }

    fn tap<'t, T>(
        &'t self,
        statement: impl FnOnce(&'t Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        tap(&self.health, || statement(self.connection()))
    }
}

impl Drop for Fenced<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.end().ok();
        }
    }
}

impl fmt::Debug for Fenced<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fenced")
            .field("marker", &self.marker)
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}

/// Raises one mark, or says why not. Gives whether there may be protected tables.
fn admit(
    conn: &Connection,
    fence: &Fence,
    options: &FenceOptions,
    mark: &Mark,
) -> Result<bool, FenceError> {
    let table = options.table_ref();
    let number = |number: u64| i64::try_from(number).expect("the range was checked before");
    let domain = fence.domain();
    let binds = params![
        mark.key.as_bytes(),
        &domain.as_bytes()[..],
        number(mark.token.get()),
        fence.step().map(|step| number(step.get())),
    ];
    let admitted = conn
        .prepare_cached(&sqlite::admit(options))
        .and_then(|mut admit| admit.query_row(binds, |row| row.get(0)));
    match admitted.optional() {
        Ok(Some(protected)) => return Ok(protected),
        Ok(None) => {}
        Err(error) if class(&error) == Class::NoTable => {
            return Err(FenceError::NotMigrated {
                table: table.clone(),
            });
        }
        Err(error) => return Err(FenceError::Database(error)),
    }
    let stored = conn
        .query_row(&sqlite::read(table), [mark.key.as_bytes()], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })
        .map_err(FenceError::Database)?;
    Err(refusal(options, fence, stored_mark(stored).as_slice())
        .unwrap_or(FenceError::Database(Error::InvalidQuery)))
}

fn stored_mark((key, domain, token, step): (String, String, i64, i64)) -> Option<StoredMark> {
    let (token, step) = (u64::try_from(token).ok()?, u64::try_from(step).ok()?);
    StoredMark::from_columns(&key, &domain, token, step)
}

/// An error of ours, in the driver's type.
fn failure(code: ffi::Error, text: &str) -> Error {
    Error::SqliteFailure(code, Some(text.to_owned()))
}

/// Commits. A reader that holds a rollback-journal database busy leaves the transaction open, and
/// it is too late to run it again: wait for the reader a few times.
fn commit_when_readers_left(conn: &Connection, watch: &Watch) -> Result<(), Error> {
    let mut tries = 0;
    loop {
        watch.let_ours_pass();
        let Err(error) = conn.execute_batch("COMMIT") else {
            return Ok(());
        };
        tries += 1;
        let busy = code(&error).is_some_and(|(code, _)| sqlite::is_busy(code));
        if !busy || tries >= sqlite::COMMIT_TRIES {
            return Err(error);
        }
        std::thread::sleep(sqlite::COMMIT_PAUSE);
    }
}

/// The verdict about an error of the release (`acknowledged` = 0) or of the commit (1).
fn not_committed(error: Error, acknowledged: u32) -> FenceError {
    let failed = match code(&error) {
        Some((code, message)) => sqlite::failed(code, &message, acknowledged),
        None if acknowledged == 0 => Failed::RolledBack,
        None => Failed::Unknown,
    };
    match failed {
        Failed::RolledBack => FenceError::Database(error),
        Failed::Ended => FenceError::Ended(error),
        Failed::Unknown => FenceError::Unknown(error),
    }
}

/// Whether the whole transaction may succeed if it is run again after this verdict.
pub(crate) fn is_collision(error: &FenceError) -> bool {
    matches!(error, FenceError::Database(error) if is_transient(error))
}
