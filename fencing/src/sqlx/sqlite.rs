//! Fenced transactions on SQLite through sqlx.
//!
//! sqlx runs a connection on a thread of its own, which works off requests in order. That makes
//! cancelling simple: what was asked for is done, and a rollback that is queued comes after it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use ::sqlx::sqlite::{SqliteConnection, SqliteRow};
use ::sqlx::{
    AssertSqlSafe, Connection as _, Error, Executor as _, Row as _, SqlSafeStr as _, Sqlite, query,
    raw_sql,
};
use futures_core::future::BoxFuture;
use futures_util::FutureExt as _;
use sqlx_core::transaction::TransactionManager as _;

use super::FenceError;
use super::driver::{Commit, Driver, Failure, Order, depth, left_open};
use crate::Mark;
use crate::hooks::Watch;
use crate::sql::{Class, Failed, Marker, StoredMark, refusal, sqlite};

type Manager = <Sqlite as ::sqlx::Database>::TransactionManager;

/// What the hooks of a connection share with the guard.
#[derive(Debug, Default)]
#[expect(unnameable_types, reason = "part of a sealed trait")]
pub struct Hook {
    watch: Watch,
    /// `BEGIN` was acknowledged, or a rollback asked for: there is something to put right.
    begun: AtomicBool,
    /// The marker, which only a transaction of the caller has: a savepoint of theirs may be around the
    /// fence, and be rolled back with it.
    marked: AtomicBool,
    /// What has to run before the commit, if there are protected tables.
    close: OnceLock<String>,
}

impl Hook {
    /// Refuses commits on this connection from now on, and notices the end of the transaction.
    async fn close(&self, conn: &mut SqliteConnection) -> Result<(), Error> {
        let (may_pass, rolled_back) = self.watch.hooks();
        let mut handle = conn.lock_handle().await?;
        handle.set_commit_hook(may_pass);
        handle.set_rollback_hook(rolled_back);
        Ok(())
    }
}

impl Driver for Sqlite {
    type Veto = Hook;

    const CLOSE_ABANDONED: bool = false;

    /// The count is kept by the thread, and a rollback may still be queued there.
    fn settle(conn: &mut SqliteConnection) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(conn.ping())
    }

    fn open<'a>(
        conn: &'a mut SqliteConnection,
        order: Order<'a>,
        hold: bool,
        hook: &'a Hook,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            if let Err(error) = Manager::begin(conn, Some(sqlite::BEGIN.into_sql_str())).await {
                let error = FenceError::Database(error);
                return Err(Failure { error, clean: true });
            }
            match take(conn, order, hook).await {
                Ok(()) => Ok(()),
                Err(error) => {
                    let clean = Self::rollback(conn, hold, hook).await.is_ok();
                    Err(Failure { error, clean })
                }
            }
        })
    }

    fn join<'a>(
        conn: &'a mut SqliteConnection,
        order: Order<'a>,
        hook: &'a Hook,
    ) -> BoxFuture<'a, Result<(), FenceError>> {
        Box::pin(async move {
            take(conn, order, hook).await?;
            let marker = raw_sql(AssertSqlSafe(format!("SAVEPOINT {}", order.marker)));
            conn.execute(marker).await.map_err(FenceError::Database)?;
            hook.marked.store(true, Ordering::SeqCst);
            Ok(())
        })
    }

    fn commit<'a>(
        conn: &'a mut SqliteConnection,
        marker: Marker,
        _hold: bool,
        hook: &'a Hook,
    ) -> BoxFuture<'a, Commit> {
        Box::pin(async move {
            if let Some(nested) = left_open::<Self>(conn) {
                return nested;
            }
            if hook.watch.has_ended() {
                let error = Error::Protocol(sqlite::ENDED.to_owned());
                return Commit::Failed(Failed::Ended, error);
            }
            // Not in one request with the commit: the driver answers each statement of several, and
            // being woken for each takes longer than asking twice. Prepared once, like the fence.
            if let Some(close) = hook.close.get()
                && let Err(error) = conn.execute(query(AssertSqlSafe(close.clone()))).await
            {
                return Commit::Failed(failed(&error, 0), error);
            }
            if hook.marked.load(Ordering::SeqCst) {
                let release = raw_sql(AssertSqlSafe(format!("RELEASE {marker}")));
                if let Err(error) = conn.execute(release).await {
                    return Commit::Failed(failed(&error, 0), error);
                }
            }
            let committed = commit_when_readers_left(conn, &hook.watch).await;
            if matches!(committed, Commit::Done { .. }) {
                hook.watch.let_all_pass();
                if !hook.watch.was_asked() {
                    let error = Error::Protocol(sqlite::UNSEEN.to_owned());
                    return Commit::Failed(Failed::Unknown, error);
                }
            }
            committed
        })
    }

    fn rollback<'a>(
        conn: &'a mut SqliteConnection,
        _hold: bool,
        hook: &'a Hook,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            hook.watch.let_all_pass();
            hook.begun.store(true, Ordering::SeqCst);
            if Manager::rollback(conn).await.is_err() {
                // The transaction is gone, but the driver still counts one: open one for it.
                conn.execute(raw_sql("BEGIN")).await?;
                Manager::rollback(conn).await?;
            }
            while depth::<Self>(conn) > 0 {
                Manager::rollback(conn).await?;
            }
            Ok(())
        })
    }

    fn abandon(conn: &mut SqliteConnection, hook: &Hook) {
        hook.watch.let_all_pass();
        if !hook.begun.load(Ordering::SeqCst) {
            // The thread takes back a BEGIN whose answer nobody waits for.
            return;
        }
        // What is still under way ends in one of three ways, and this puts each of them right:
        // - The transaction is open. Then `BEGIN` and the last `ROLLBACK` are errors nobody sees.
        // - It is gone, but the driver counts it: `BEGIN` gives the driver's rollback one to end.
        // - A commit or rollback worked, but nobody waited for its answer. Then the thread ignores
        //   the next rollback, the others find a count of zero, and the last `ROLLBACK` ends what
        //   `BEGIN` began.
        // One poll hands a request to the thread.
        let _ = conn.execute(raw_sql("BEGIN")).now_or_never();
        for _ in 0..=depth::<Self>(conn).max(1) {
            Manager::start_rollback(conn);
        }
        let _ = conn.execute(raw_sql("ROLLBACK")).now_or_never();
    }

    fn class(error: &Error) -> Class {
        match code(error) {
            Some((code, message)) => sqlite::class(code, message),
            None => Class::Other,
        }
    }
}

/// Takes the fence in the transaction that is open, and closes the connection to other commits.
async fn take(
    conn: &mut SqliteConnection,
    order: Order<'_>,
    hook: &Hook,
) -> Result<(), FenceError> {
    hook.begun.store(true, Ordering::SeqCst);
    for mark in order.fence.marks() {
        if admit(conn, order, mark).await? {
            hook.close.get_or_init(|| sqlite::close(order.options));
        }
    }
    hook.close(conn).await.map_err(FenceError::Database)
}

/// Raises one mark, or says why not. Gives whether there may be protected tables.
async fn admit(
    conn: &mut SqliteConnection,
    order: Order<'_>,
    mark: &Mark,
) -> Result<bool, FenceError> {
    let table = order.options.table_ref();
    let fence = order.fence;
    let number = |number: u64| i64::try_from(number).expect("the range was checked before");
    let admit = query(AssertSqlSafe(sqlite::admit(order.options)))
        .bind(mark.key.as_bytes())
        .bind(&fence.domain().as_bytes()[..])
        .bind(number(mark.token.get()))
        .bind(fence.step().map(|step| number(step.get())));
    match conn.fetch_optional(admit).await {
        Ok(Some(row)) => return row.try_get(0).map_err(FenceError::Database),
        Ok(None) => {}
        Err(error) if Sqlite::class(&error) == Class::NoTable => {
            return Err(FenceError::NotMigrated {
                table: table.clone(),
            });
        }
        Err(error) => return Err(FenceError::Database(error)),
    }
    let read = query(AssertSqlSafe(sqlite::read(table))).bind(mark.key.as_bytes());
    let row = (conn.fetch_optional(read).await).map_err(FenceError::Database)?;
    let stored: Vec<StoredMark> = row.iter().filter_map(stored_mark).collect();
    Err(refusal(order.options, fence, &stored).unwrap_or_else(|| {
        FenceError::Database(Error::Protocol("the mark is unreadable".to_owned()))
    }))
}

fn stored_mark(row: &SqliteRow) -> Option<StoredMark> {
    let number = |column: usize| u64::try_from(row.try_get::<i64, _>(column).ok()?).ok();
    StoredMark::from_columns(
        row.try_get(0).ok()?,
        row.try_get(1).ok()?,
        number(2)?,
        number(3)?,
    )
}

/// Commits. A reader that holds a rollback-journal database busy leaves the transaction open, and
/// it is too late to run it again: wait for the reader a few times.
async fn commit_when_readers_left(conn: &mut SqliteConnection, watch: &Watch) -> Commit {
    let mut tries = 0;
    loop {
        watch.let_ours_pass();
        let Err(error) = Manager::commit(conn).await else {
            return Commit::Done { clean: true };
        };
        tries += 1;
        if tries < sqlite::COMMIT_TRIES
            && code(&error).is_some_and(|(code, _)| sqlite::is_busy(code))
        {
            tokio::time::sleep(sqlite::COMMIT_PAUSE).await;
            continue;
        }
        return Commit::Failed(failed(&error, 1), error);
    }
}

fn failed(error: &Error, acknowledged: u32) -> Failed {
    match code(error) {
        Some((code, message)) => sqlite::failed(code, message, acknowledged),
        None if acknowledged == 0 => Failed::RolledBack,
        None => Failed::Unknown,
    }
}

/// The extended result code and the message, if the error came from the database.
fn code(error: &Error) -> Option<(i32, &str)> {
    let error = error.as_database_error()?;
    Some((error.code()?.parse().ok()?, error.message()))
}
