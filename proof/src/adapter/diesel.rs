//! diesel, on all three dialects, through its pool of r2d2.
//!
//! diesel blocks, so every call runs on a thread of its own, and a guard lives on one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use diesel::connection::{AnsiTransactionManager, Connection, TransactionManager};
use diesel::r2d2::{
    ConnectionManager, CustomizeConnection, Pool, PooledConnection, R2D2Connection,
};
use diesel::result::{DatabaseErrorKind, Error};
use futures_util::future::BoxFuture;
use highwater_fencing::diesel::{Dialect as Supported, DieselFence as _, Fenced};
use highwater_fencing::{Configured, Resolution, TableName, migrate};
use tokio::task::spawn_blocking;

use super::error::plain;
use super::session::{self, Blocking, BlockingGuard, run_body};
use super::{
    Abilities, Adapter, Body, BoxError, Dialect, DriverError, End, Form, Source, Tx, Verdict,
};

/// One per dialect of this build.
pub(super) const ADAPTERS: &[&dyn Adapter] = &[
    #[cfg(feature = "diesel-postgres")]
    &Diesel::<diesel::PgConnection>::NEW,
    #[cfg(feature = "diesel-mysql")]
    &Diesel::<diesel::MysqlConnection>::NEW,
    #[cfg(feature = "diesel-sqlite")]
    &Diesel::<diesel::SqliteConnection>::NEW,
];

struct Diesel<C>(std::marker::PhantomData<fn() -> C>);

impl<C> Diesel<C> {
    const NEW: Self = Self(std::marker::PhantomData);
}

/// What the generic code below cannot say, because diesel's bounds name the connection.
trait Driven: Supported + R2D2Connection + Send {
    const DIALECT: Dialect;
    /// What is set on a new connection.
    const SETUP: &'static str;

    /// Runs one statement that changes rows, and gives their number.
    fn change(&mut self, sql: &str) -> Result<usize, Error>;
    fn number(&mut self, sql: &str) -> Result<Option<i64>, Error>;
}

macro_rules! driven {
    ($feature:literal, $connection:ty, $dialect:ident, $setup:literal) => {
        #[cfg(feature = $feature)]
        impl Driven for $connection {
            const DIALECT: Dialect = Dialect::$dialect;
            const SETUP: &'static str = $setup;

            fn change(&mut self, sql: &str) -> Result<usize, Error> {
                diesel::RunQueryDsl::execute(diesel::sql_query(sql), self)
            }

            fn number(&mut self, sql: &str) -> Result<Option<i64>, Error> {
                let query = diesel::dsl::sql::<diesel::sql_types::BigInt>(sql);
                diesel::OptionalExtension::optional(diesel::RunQueryDsl::get_result(query, self))
            }
        }
    };
}

driven!("diesel-postgres", diesel::PgConnection, Postgres, "");
driven!("diesel-mysql", diesel::MysqlConnection, MySql, "");
// As sqlx opens one.
driven!(
    "diesel-sqlite",
    diesel::SqliteConnection,
    Sqlite,
    "PRAGMA busy_timeout = 5000; PRAGMA foreign_keys = ON"
);

impl<C: Driven> Adapter for Diesel<C> {
    fn name(&self) -> &'static str {
        "diesel"
    }

    fn dialect(&self) -> Dialect {
        C::DIALECT
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            // The body gets diesel's own connection.
            sees_errors: false,
            // diesel has no transaction object, and its commit is not ours.
            joins: false,
            lends: true,
            counts_savepoints: true,
            cancels: false,
            // The caller takes the connection from its pool.
            pools: false,
            // diesel has no commit hook.
            vetoes: false,
        }
    }

    fn open<'a>(
        &'a self,
        url: &'a str,
        connections: u32,
    ) -> BoxFuture<'a, Result<Arc<dyn Source>, DriverError>> {
        let url = url.to_owned();
        Box::pin(async move {
            let open = blocking(move || {
                let pool = Pool::builder()
                    .max_size(connections)
                    .min_idle(Some(0))
                    .connection_timeout(PATIENCE)
                    .connection_customizer(Box::new(Setup(C::SETUP)))
                    .build(ConnectionManager::<C>::new(url))
                    .map_err(DriverError::new)?;
                // A wrong URL is told here, not at the first use.
                pool.get().map_err(DriverError::new)?;
                Ok(Open(Mutex::new(Some(pool))))
            });
            Ok(Arc::new(open.await?) as Arc<dyn Source>)
        })
    }
}

/// Runs SQL on every new connection.
#[derive(Debug)]
struct Setup(&'static str);

impl<C: Connection> CustomizeConnection<C, diesel::r2d2::Error> for Setup {
    fn on_acquire(&self, conn: &mut C) -> Result<(), diesel::r2d2::Error> {
        if !self.0.is_empty() {
            conn.batch_execute(self.0)?;
        }
        Ok(())
    }
}

/// The pool, until it is closed.
struct Open<C: Driven>(Mutex<Option<Pool<ConnectionManager<C>>>>);

type Pooled<C> = PooledConnection<ConnectionManager<C>>;

impl<C: Driven> Open<C> {
    /// Takes a connection, on the thread that is going to block.
    fn taker(&self) -> impl FnOnce() -> Result<Pooled<C>, DriverError> + Send + use<C> {
        let pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pool.clone();
        move || match pool {
            Some(pool) => pool.get().map_err(DriverError::new),
            None => Err(DriverError::text("the pool is closed")),
        }
    }

    /// Begins on a thread of its own, which the guard keeps.
    fn session<'a>(
        &self,
        before: &str,
        fence: &Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        let (take, before, fence) = (self.taker(), before.to_owned(), fence.clone());
        Box::pin(session::on_thread(move |door| {
            let mut conn = match take().and_then(|conn| prepared(conn, &before)) {
                Ok(conn) => conn,
                Err(error) => {
                    return door.serve_blocking::<Fenced<'_, C>>(Err(Verdict::Database(error)));
                }
            };
            let begun = fence.begin(&mut *conn);
            door.serve_blocking(begun.map_err(|error| error.map_driver(wrap)));
        }))
    }

    /// Calls something with a connection, on another thread.
    fn with<'a, R, F>(&self, call: F) -> BoxFuture<'a, Result<R, Verdict>>
    where
        R: Send + 'static,
        F: FnOnce(&mut C) -> Result<R, Verdict> + Send + 'static,
    {
        let take = self.taker();
        Box::pin(blocking(move || {
            let mut conn = take().map_err(Verdict::Database)?;
            call(&mut conn)
        }))
    }
}

impl<C: Driven> Source for Open<C> {
    fn begin<'a>(&'a self, fence: &'a Configured) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        self.session("", fence)
    }

    fn admit<'a>(
        &'a self,
        _before: &'a str,
        _fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        panic!("diesel does not join")
    }

    fn admit_nested<'a>(
        &'a self,
        _fence: &'a Configured,
        _then: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        panic!("diesel does not join")
    }

    fn begin_on<'a>(
        &'a self,
        before: &'a str,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        self.session(before, fence)
    }

    fn begin_on_nested<'a>(
        &'a self,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        let fence = fence.clone();
        let refused = self.with(move |conn| {
            AnsiTransactionManager::begin_transaction(conn).map_err(database)?;
            let refused = match fence.begin(conn) {
                Err(error) => error.map_driver(wrap),
                Ok(_) => panic!("a fence was taken inside a transaction"),
            };
            AnsiTransactionManager::rollback_transaction(conn).map_err(database)?;
            Err::<std::convert::Infallible, _>(refused)
        });
        Box::pin(async move { refused.await.map(|never| match never {}) })
    }

    fn transaction<'a>(
        &'a self,
        fence: &'a Configured,
        body: Body,
    ) -> BoxFuture<'a, Result<i64, BoxError>> {
        let (take, fence) = (self.taker(), fence.clone());
        Box::pin(blocking(move || {
            let mut conn = take().map_err(Verdict::Database)?;
            let done = fence.transaction(&mut *conn, |conn| run_body(&mut Bare(conn), &body));
            done.map_err(|error| plain(error, wrap))
        }))
    }

    fn walk<'a>(
        &'a self,
        _form: Form,
        fence: &'a Configured,
        sql: &'a str,
        end: End,
        started: &'a AtomicBool,
    ) -> BoxFuture<'a, Result<(), Verdict>> {
        let (fence, sql) = (fence.clone(), sql.to_owned());
        started.store(true, Ordering::SeqCst);
        self.with(move |conn| {
            let mut tx = fence.begin(conn).map_err(|error| error.map_driver(wrap))?;
            run(tx.connection(), &sql).map_err(database)?;
            let ended = match end {
                End::Commit => tx.commit(),
                End::Rollback => tx.rollback(),
                End::Drop => Ok(()),
            };
            ended.map_err(|error| error.map_driver(wrap))
        })
    }

    fn resolve<'a>(&'a self, fence: &'a Configured) -> BoxFuture<'a, Result<Resolution, Verdict>> {
        let fence = fence.clone();
        self.with(move |conn| {
            let resolved = fence.resolve(conn);
            resolved.map_err(|error| error.map_driver(wrap))
        })
    }

    fn run<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, Result<(), DriverError>> {
        let (take, sql) = (self.taker(), sql.to_owned());
        Box::pin(blocking(move || {
            run(&mut *take()?, &sql).map(drop).map_err(wrap)
        }))
    }

    fn begin_unfenced(&self) -> BoxFuture<'_, Result<Box<dyn Tx>, DriverError>> {
        let take = self.taker();
        Box::pin(async move {
            let begun = session::on_thread(move |door| {
                let mut conn = match take() {
                    Ok(conn) => conn,
                    Err(error) => {
                        return door
                            .serve_blocking::<Unfenced<'_, C>>(Err(Verdict::Database(error)));
                    }
                };
                let begun = AnsiTransactionManager::begin_transaction(&mut *conn);
                door.serve_blocking(begun.map(|()| Unfenced(&mut *conn)).map_err(database));
                // A guard that was dropped without an end leaves the transaction open, and the pool
                // drops such a connection.
            });
            begun.await.map_err(DriverError::new)
        })
    }

    fn migrate<'a>(&'a self, table: &'a TableName) -> BoxFuture<'a, Result<(), DriverError>> {
        let (take, table) = (self.taker(), table.clone());
        Box::pin(blocking(move || {
            let migrated = migrate::diesel::run_for(&mut *take()?, &table);
            migrated.map(drop).map_err(DriverError::new)
        }))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        let pool = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async move {
            // Connections close when the last holder lets go; closing blocks.
            let _ = spawn_blocking(move || drop(pool)).await;
        })
    }
}

/// Runs something that blocks on another thread; a panic there goes on here.
async fn blocking<R: Send + 'static>(call: impl FnOnce() -> R + Send + 'static) -> R {
    match spawn_blocking(call).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn prepared<C: Driven>(mut conn: Pooled<C>, before: &str) -> Result<Pooled<C>, DriverError> {
    if !before.is_empty() {
        run(&mut *conn, before).map_err(wrap)?;
    }
    Ok(conn)
}

/// Only prepared statements tell how many rows they changed, and only these can be several.
fn run<C: Driven>(conn: &mut C, sql: &str) -> Result<u64, Error> {
    const CHANGES: [&str; 3] = ["INSERT ", "UPDATE ", "DELETE "];
    let starts = |word: &&str| sql.get(..word.len()) == Some(*word);
    let is_one = !sql.trim_end().trim_end_matches(';').contains(';');
    if is_one && CHANGES.iter().any(starts) {
        return Ok(u64::try_from(conn.change(sql)?).unwrap_or(u64::MAX));
    }
    conn.batch_execute(sql).map(|()| 0)
}

/// diesel's connection, in the body of a closure form.
struct Bare<'c, C>(&'c mut C);

impl<C: Driven> Blocking for Bare<'_, C> {
    fn run(&mut self, sql: &str) -> Result<u64, DriverError> {
        run(self.0, sql).map_err(wrap)
    }

    fn number(&mut self, sql: &str) -> Result<Option<i64>, DriverError> {
        self.0.number(sql).map_err(wrap)
    }

    fn run_past(&mut self, sql: &str) -> Result<u64, DriverError> {
        self.run(sql)
    }

    fn number_past(&mut self, sql: &str) -> Result<Option<i64>, DriverError> {
        self.number(sql)
    }

    fn nested(&mut self, sql: &str, keep: bool) -> Result<(), DriverError> {
        let nested = self.0.transaction(|conn| {
            run(conn, sql)?;
            if keep {
                Ok(())
            } else {
                Err(Error::RollbackTransaction)
            }
        });
        match nested {
            Err(Error::RollbackTransaction) => Ok(()),
            nested => nested.map_err(wrap),
        }
    }
}

impl<C: Driven> Blocking for Fenced<'_, C> {
    fn run(&mut self, sql: &str) -> Result<u64, DriverError> {
        Bare(self.connection()).run(sql)
    }

    fn number(&mut self, sql: &str) -> Result<Option<i64>, DriverError> {
        Bare(self.connection()).number(sql)
    }

    fn run_past(&mut self, sql: &str) -> Result<u64, DriverError> {
        self.run(sql)
    }

    fn number_past(&mut self, sql: &str) -> Result<Option<i64>, DriverError> {
        self.number(sql)
    }

    fn nested(&mut self, sql: &str, keep: bool) -> Result<(), DriverError> {
        Bare(self.connection()).nested(sql, keep)
    }
}

impl<C: Driven> BlockingGuard for Fenced<'_, C> {
    fn commit(self) -> Result<(), Verdict> {
        self.commit().map_err(|error| error.map_driver(wrap))
    }

    fn rollback(self) -> Result<(), Verdict> {
        self.rollback().map_err(|error| error.map_driver(wrap))
    }
}

/// A transaction of diesel.
struct Unfenced<'c, C>(&'c mut C);

impl<C: Driven> Blocking for Unfenced<'_, C> {
    fn run(&mut self, sql: &str) -> Result<u64, DriverError> {
        Bare(&mut *self.0).run(sql)
    }

    fn number(&mut self, sql: &str) -> Result<Option<i64>, DriverError> {
        Bare(&mut *self.0).number(sql)
    }

    fn run_past(&mut self, sql: &str) -> Result<u64, DriverError> {
        self.run(sql)
    }

    fn number_past(&mut self, sql: &str) -> Result<Option<i64>, DriverError> {
        self.number(sql)
    }
}

impl<C: Driven> BlockingGuard for Unfenced<'_, C> {
    fn commit(self) -> Result<(), Verdict> {
        AnsiTransactionManager::commit_transaction(self.0).map_err(database)
    }

    fn rollback(self) -> Result<(), Verdict> {
        AnsiTransactionManager::rollback_transaction(self.0).map_err(database)
    }
}

fn database(error: Error) -> Verdict {
    Verdict::Database(wrap(error))
}

/// The code is what diesel tells of it.
fn wrap(error: Error) -> DriverError {
    let code = match &error {
        Error::DatabaseError(DatabaseErrorKind::SerializationFailure, _) => Some("40001"),
        Error::DatabaseError(DatabaseErrorKind::UniqueViolation, _) => Some("23505"),
        _ => None,
    };
    let code = code.map(str::to_owned);
    DriverError::new(error).with_code(code)
}

/// How long a connection is waited for.
const PATIENCE: Duration = Duration::from_secs(15);
