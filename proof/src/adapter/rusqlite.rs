//! rusqlite.
//!
//! It has no pool, so a source keeps its idle connections itself. Every call runs on a thread that
//! may block, as in an asynchronous program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use highwater_fencing::rusqlite::{FenceError, Fenced, RusqliteFence as _, poisoned};
use highwater_fencing::{Configured, Resolution, TableName, migrate};
use rusqlite::{Connection, Error, OptionalExtension as _, Transaction};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::plain;
use super::session::{self, Blocking, BlockingGuard, run_body};
use super::{
    Abilities, Adapter, Body, BoxError, Dialect, DriverError, End, Form, Source, Tx, Verdict,
};

/// One: it speaks to SQLite only.
pub(super) const ADAPTERS: [&dyn Adapter; 1] = [&Rusqlite];

struct Rusqlite;

impl Adapter for Rusqlite {
    fn name(&self) -> &'static str {
        "rusqlite"
    }

    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            sees_errors: true,
            joins: true,
            lends: true,
            // A savepoint is a type of its own, which cannot be joined.
            counts_savepoints: false,
            cancels: false,
            pools: false,
            vetoes: true,
        }
    }

    fn open<'a>(
        &'a self,
        url: &'a str,
        connections: u32,
    ) -> BoxFuture<'a, Result<Arc<dyn Source>, DriverError>> {
        Box::pin(async move {
            // The options all say "create it", which is what rusqlite does.
            let path = url.trim_start_matches("sqlite://").split('?').next();
            let open = Open {
                path: path.unwrap_or_default().to_owned(),
                idle: Arc::default(),
                limit: connections,
                free: Arc::new(Semaphore::new(
                    connections.try_into().expect("at least 32 bits"),
                )),
            };
            open.blocking(|_| Ok(())).await.map_err(wrap)?;
            Ok(Arc::new(open) as Arc<dyn Source>)
        })
    }
}

struct Open {
    path: String,
    idle: Arc<Mutex<Vec<Connection>>>,
    limit: u32,
    free: Arc<Semaphore>,
}

/// A connection in use, which goes back to its source when it is dropped.
struct InUse {
    conn: Option<Connection>,
    idle: Arc<Mutex<Vec<Connection>>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl InUse {
    fn conn(&mut self) -> &mut Connection {
        self.conn.as_mut().expect("only drop takes it")
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if self.permit.is_some() {
            let idle = self.idle.lock();
            idle.expect("nothing panics under the lock")
                .extend(self.conn.take());
        }
    }
}

impl Open {
    async fn acquire(&self) -> Result<InUse, Error> {
        let permit = Arc::clone(&self.free).acquire_owned().await.ok();
        let mut idle = self.idle.lock().expect("nothing panics under the lock");
        let conn = match (&permit, idle.pop()) {
            (Some(_), Some(conn)) => conn,
            (Some(_), None) => connect(&self.path)?,
            // It was closed: a database without tables is the closest to no connection.
            (None, _) => Connection::open_in_memory()?,
        };
        Ok(InUse {
            conn: Some(conn),
            idle: Arc::clone(&self.idle),
            permit,
        })
    }

    /// Runs a closure with a connection on a thread that may block.
    async fn blocking<T, E>(
        &self,
        run: impl FnOnce(&mut Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let mut conn = self.acquire().await?;
        match tokio::task::spawn_blocking(move || run(conn.conn())).await {
            Ok(result) => result,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }

    /// Runs a session with a connection on a thread that may block.
    async fn session(
        &self,
        serve: impl FnOnce(&mut Connection, session::Door) + Send + 'static,
    ) -> Result<Box<dyn Tx>, Verdict> {
        let mut conn = self.acquire().await.map_err(database)?;
        session::on_thread(move |door| serve(conn.conn(), door)).await
    }
}

fn connect(path: &str) -> Result<Connection, Error> {
    let conn = Connection::open(path)?;
    conn.busy_timeout(Duration::from_secs(5))?;
    Ok(conn)
}

impl Source for Open {
    fn begin<'a>(&'a self, fence: &'a Configured) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        self.begin_on("", fence)
    }

    fn admit<'a>(
        &'a self,
        before: &'a str,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        let (before, fence) = (before.to_owned(), fence.clone());
        Box::pin(self.session(move |conn, door| {
            door.serve_blocking(joined(conn, &before, &fence).map_err(verdict));
        }))
    }

    fn admit_nested<'a>(
        &'a self,
        _fence: &'a Configured,
        then: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        let then = then.to_owned();
        Box::pin(async move {
            let outer = self.blocking(move |conn| {
                let mut tx = conn.transaction()?;
                // `fence.admit(…)` of this does not compile.
                tx.savepoint()?.commit()?;
                tx.execute_batch(&then)?;
                tx.commit()
            });
            outer.await.map_err(database)?;
            Err(Verdict::InSavepoint)
        })
    }

    fn begin_on<'a>(
        &'a self,
        before: &'a str,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        let (before, fence) = (before.to_owned(), fence.clone());
        Box::pin(self.session(move |conn, door| {
            door.serve_blocking(begun(conn, &before, &fence).map_err(verdict));
        }))
    }

    fn transaction<'a>(
        &'a self,
        fence: &'a Configured,
        body: Body,
    ) -> BoxFuture<'a, Result<i64, BoxError>> {
        let fence = fence.clone();
        Box::pin(async move {
            let done = self.blocking(move |conn| {
                fence.transaction(conn, |tx| -> Result<i64, BoxError> {
                    run_body(&mut InBody(tx), &body)
                })
            });
            done.await.map_err(|error| plain(error, wrap))
        })
    }

    fn walk<'a>(
        &'a self,
        form: Form,
        fence: &'a Configured,
        sql: &'a str,
        end: End,
        started: &'a AtomicBool,
    ) -> BoxFuture<'a, Result<(), Verdict>> {
        let (fence, sql) = (fence.clone(), sql.to_owned());
        Box::pin(async move {
            started.store(true, Ordering::SeqCst);
            let walk = self.blocking(move |conn| {
                let tx = match form {
                    Form::Begin | Form::Lend => fence.begin(conn)?,
                    Form::Join => fence.admit(conn.transaction()?)?,
                };
                tx.execute_batch(&sql)?;
                match end {
                    End::Commit => tx.commit(),
                    End::Rollback => tx.rollback(),
                    End::Drop => Ok(()),
                }
            });
            walk.await.map_err(verdict)
        })
    }

    fn resolve<'a>(&'a self, fence: &'a Configured) -> BoxFuture<'a, Result<Resolution, Verdict>> {
        let fence = fence.clone();
        Box::pin(async move {
            let resolved = self.blocking(move |conn| fence.resolve(conn));
            resolved.await.map_err(verdict)
        })
    }

    fn run<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, Result<(), DriverError>> {
        let sql = sql.to_owned();
        Box::pin(async move {
            let done = self.blocking(move |conn| conn.execute_batch(&sql));
            done.await.map_err(wrap)
        })
    }

    fn begin_unfenced(&self) -> BoxFuture<'_, Result<Box<dyn Tx>, DriverError>> {
        Box::pin(async move {
            let begun = self.session(move |conn, door| {
                let tx = conn.transaction().map_err(database);
                door.serve_blocking(tx.map(Unfenced));
            });
            begun.await.map_err(|error| match error {
                Verdict::Database(error) => error,
                other => DriverError::new(other),
            })
        })
    }

    fn migrate<'a>(&'a self, table: &'a TableName) -> BoxFuture<'a, Result<(), DriverError>> {
        let table = table.clone();
        Box::pin(async move {
            let mut conn = self.acquire().await.map_err(wrap)?;
            let migrated = tokio::task::spawn_blocking(move || {
                migrate::rusqlite::run_for(conn.conn(), &table).map(drop)
            });
            match migrated.await {
                Ok(result) => result.map_err(DriverError::new),
                Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let all = self.free.acquire_many(self.limit).await;
            self.idle
                .lock()
                .expect("nothing panics under the lock")
                .clear();
            self.free.close();
            drop(all);
        })
    }
}

fn begun<'c>(
    conn: &'c mut Connection,
    before: &str,
    fence: &Configured,
) -> Result<Fenced<'c>, FenceError> {
    conn.execute_batch(before)?;
    fence.begin(conn)
}

/// Deferred, as rusqlite begins by itself: the harder case.
fn joined<'c>(
    conn: &'c mut Connection,
    before: &str,
    fence: &Configured,
) -> Result<Fenced<'c>, FenceError> {
    let tx = conn.transaction()?;
    tx.execute_batch(before)?;
    fence.admit(tx)
}

impl Blocking for Fenced<'_> {
    fn run(&mut self, sql: &str) -> Result<u64, DriverError> {
        self.execute_batch(sql).map_err(wrap)?;
        Ok(self.changes())
    }

    fn number(&mut self, sql: &str) -> Result<Option<i64>, DriverError> {
        let number = self.query_row(sql, [], |row| row.get(0));
        number.optional().map_err(wrap)
    }

    fn run_past(&mut self, sql: &str) -> Result<u64, DriverError> {
        run_on(self.connection(), sql)
    }

    fn number_past(&mut self, sql: &str) -> Result<Option<i64>, DriverError> {
        number_on(self.connection(), sql)
    }
}

impl BlockingGuard for Fenced<'_> {
    fn commit(self) -> Result<(), Verdict> {
        self.commit().map_err(verdict)
    }

    fn rollback(self) -> Result<(), Verdict> {
        self.rollback().map_err(verdict)
    }
}

/// What the body of the closure form gets.
struct InBody<'t, 'c>(&'t Fenced<'c>);

impl Blocking for InBody<'_, '_> {
    fn run(&mut self, sql: &str) -> Result<u64, DriverError> {
        self.0.execute_batch(sql).map_err(wrap)?;
        Ok(self.0.changes())
    }

    fn number(&mut self, sql: &str) -> Result<Option<i64>, DriverError> {
        let number = self.0.query_row(sql, [], |row| row.get(0));
        number.optional().map_err(wrap)
    }

    fn run_past(&mut self, sql: &str) -> Result<u64, DriverError> {
        run_on(self.0.connection(), sql)
    }

    fn number_past(&mut self, sql: &str) -> Result<Option<i64>, DriverError> {
        number_on(self.0.connection(), sql)
    }
}

struct Unfenced<'c>(Transaction<'c>);

impl Blocking for Unfenced<'_> {
    fn run(&mut self, sql: &str) -> Result<u64, DriverError> {
        run_on(&self.0, sql)
    }

    fn number(&mut self, sql: &str) -> Result<Option<i64>, DriverError> {
        number_on(&self.0, sql)
    }

    fn run_past(&mut self, sql: &str) -> Result<u64, DriverError> {
        run_on(&self.0, sql)
    }

    fn number_past(&mut self, sql: &str) -> Result<Option<i64>, DriverError> {
        number_on(&self.0, sql)
    }
}

impl BlockingGuard for Unfenced<'_> {
    fn commit(self) -> Result<(), Verdict> {
        self.0.commit().map_err(database)
    }

    fn rollback(self) -> Result<(), Verdict> {
        self.0.rollback().map_err(database)
    }
}

fn run_on(conn: &Connection, sql: &str) -> Result<u64, DriverError> {
    conn.execute_batch(sql).map_err(wrap)?;
    Ok(conn.changes())
}

fn number_on(conn: &Connection, sql: &str) -> Result<Option<i64>, DriverError> {
    let number = conn.query_row(sql, [], |row| row.get(0));
    number.optional().map_err(wrap)
}

fn database(error: Error) -> Verdict {
    Verdict::Database(wrap(error))
}

fn verdict(error: FenceError) -> Verdict {
    error.map_driver(wrap)
}

fn wrap(error: Error) -> DriverError {
    let code = error
        .sqlite_error()
        .map(|error| error.extended_code.to_string());
    let poisoned = poisoned(&error).cloned();
    DriverError::new(error)
        .with_code(code)
        .with_poisoned(poisoned)
}
