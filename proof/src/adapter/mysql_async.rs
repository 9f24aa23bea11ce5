//! mysql_async, on MySQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::BoxFuture;
use highwater_fencing::mysql_async::{FenceError, Fenced, MysqlAsyncFence as _};
use highwater_fencing::{Configured, Poisoned, Resolution, TableName, migrate};
use mysql_async::prelude::Queryable;
use mysql_async::{
    Conn, Error, Opts, OptsBuilder, Pool, PoolConstraints, PoolOpts, Transaction, TxOpts,
};

use super::error::plain;
use super::session::{self, Guard};
use super::{
    Abilities, Adapter, Body, BoxError, Dialect, DriverError, End, Form, Source, Statements, Tx,
    Verdict,
};

/// The one.
pub(super) const ADAPTERS: [&dyn Adapter; 1] = [&MysqlAsync];

struct MysqlAsync;

impl Adapter for MysqlAsync {
    fn name(&self) -> &'static str {
        "mysql-async"
    }

    fn dialect(&self) -> Dialect {
        Dialect::MySql
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            sees_errors: true,
            joins: true,
            lends: true,
            // The driver has no nested transactions.
            counts_savepoints: false,
            cancels: true,
            pools: true,
            vetoes: false,
        }
    }

    fn url_variants(&self) -> &'static [&'static str] {
        &["?client_found_rows=true", "?client_found_rows=false"]
    }

    fn open<'a>(
        &'a self,
        url: &'a str,
        connections: u32,
    ) -> BoxFuture<'a, Result<Arc<dyn Source>, DriverError>> {
        Box::pin(async move {
            let connections = usize::try_from(connections).expect("a small number");
            let constraints = PoolConstraints::new(connections, connections);
            let pool = PoolOpts::default()
                .with_constraints(constraints.expect("both are the same"))
                // The default hides what a connection comes back with.
                .with_reset_connection(false);
            let options = OptsBuilder::from_opts(Opts::from_url(url).map_err(DriverError::new)?)
                // The driver would go to the socket of a local server, past the proxy of a test.
                .prefer_socket(false)
                .pool_opts(pool);
            Ok(Arc::new(Open(Pool::new(options))) as Arc<dyn Source>)
        })
    }
}

struct Open(Pool);

impl Open {
    async fn join(&self, before: &str) -> Result<Transaction<'static>, Verdict> {
        let begun = self.0.start_transaction(TxOpts::default()).await;
        let mut tx = begun.map_err(database)?;
        if !before.is_empty() {
            tx.query_drop(before).await.map_err(database)?;
        }
        Ok(tx)
    }
}

impl Source for Open {
    fn begin<'a>(&'a self, fence: &'a Configured) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        Box::pin(async move { fenced(fence.begin(&self.0).await) })
    }

    fn admit<'a>(
        &'a self,
        before: &'a str,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        Box::pin(async move { fenced(fence.admit(self.join(before).await?).await) })
    }

    fn admit_nested<'a>(
        &'a self,
        fence: &'a Configured,
        then: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        Box::pin(async move {
            // The driver does not know of savepoints, but the fence does not survive one.
            let mut tx = self.admit("SAVEPOINT nested", fence).await?;
            let back = tx.run_past("ROLLBACK TO SAVEPOINT nested").await;
            back.map_err(Verdict::Database)?;
            tx.run(then).await.map_err(Verdict::Database)?;
            match tx.commit().await {
                Err(refused) => Err(refused),
                Ok(()) => panic!("a transaction without its fence was committed"),
            }
        })
    }

    fn begin_on<'a>(
        &'a self,
        before: &'a str,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        let (pool, before, fence) = (self.0.clone(), before.to_owned(), fence.clone());
        Box::pin(session::on_task(move |door| async move {
            let mut conn = match lent(&pool, &before).await {
                Ok(conn) => conn,
                Err(error) => return door.serve::<Fenced<'_>>(Err(database(error))).await,
            };
            let begun = fence.begin_on(&mut conn).await;
            door.serve(begun.map_err(verdict)).await;
        }))
    }

    fn begin_on_nested<'a>(
        &'a self,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        Box::pin(async move {
            let mut conn = self.0.get_conn().await.map_err(database)?;
            let open = conn.start_transaction(TxOpts::default()).await;
            // It stays open on the connection, which the pool will clean.
            std::mem::forget(open.map_err(database)?);
            match fence.begin_on(&mut conn).await {
                Err(error) => Err(verdict(error)),
                Ok(_) => panic!("a fence was taken inside a transaction"),
            }
        })
    }

    fn transaction<'a>(
        &'a self,
        fence: &'a Configured,
        body: Body,
    ) -> BoxFuture<'a, Result<i64, BoxError>> {
        Box::pin(async move {
            let done = fence.transaction(&self.0, async |tx: &mut Fenced<'static>| body(tx).await);
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
        Box::pin(async move {
            let mut conn;
            let begun = match form {
                Form::Begin => {
                    started.store(true, Ordering::SeqCst);
                    fence.begin(&self.0).await
                }
                Form::Lend => {
                    conn = lent(&self.0, "").await.map_err(database)?;
                    started.store(true, Ordering::SeqCst);
                    fence.begin_on(&mut conn).await
                }
                Form::Join => {
                    let tx = self.join("").await?;
                    started.store(true, Ordering::SeqCst);
                    fence.admit(tx).await
                }
            };
            let mut tx = begun.map_err(verdict)?;
            tx.query_drop(sql).await.map_err(database)?;
            let ended = match end {
                End::Commit => tx.commit().await,
                End::Rollback => tx.rollback().await,
                End::Drop => Ok(()),
            };
            ended.map_err(verdict)
        })
    }

    fn resolve<'a>(&'a self, fence: &'a Configured) -> BoxFuture<'a, Result<Resolution, Verdict>> {
        Box::pin(async move { fence.resolve(&self.0).await.map_err(verdict) })
    }

    fn run<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(async move {
            let mut conn = self.0.get_conn().await.map_err(wrap)?;
            conn.query_drop(sql).await.map_err(wrap)
        })
    }

    fn begin_unfenced(&self) -> BoxFuture<'_, Result<Box<dyn Tx>, DriverError>> {
        Box::pin(async move {
            let tx = self.0.start_transaction(TxOpts::default()).await;
            Ok(Box::new(Unfenced(tx.map_err(wrap)?)) as Box<dyn Tx>)
        })
    }

    fn migrate<'a>(&'a self, table: &'a TableName) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(async move {
            let migrated = migrate::mysql_async::run_for(&self.0, table).await;
            migrated.map(drop).map_err(DriverError::new)
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        let pool = self.0.clone();
        Box::pin(async move { drop(pool.disconnect().await) })
    }
}

/// A connection of the pool, with something done on it before.
async fn lent(pool: &Pool, before: &str) -> Result<Conn, Error> {
    let mut conn = pool.get_conn().await?;
    if !before.is_empty() {
        conn.query_drop(before).await?;
    }
    Ok(conn)
}

async fn run<Q: Queryable>(conn: &mut Q, sql: &str) -> Result<u64, DriverError> {
    if sql.contains(';') {
        // The guard sees the errors of later statements only if it reads the answers itself.
        return conn.query_drop(sql).await.map(|()| 0).map_err(wrap);
    }
    let answer = conn.query_iter(sql).await.map_err(wrap)?;
    let rows = answer.affected_rows();
    answer.drop_result().await.map_err(wrap)?;
    Ok(rows)
}

async fn number<Q: Queryable>(conn: &mut Q, sql: &str) -> Result<Option<i64>, DriverError> {
    conn.query_first(sql).await.map_err(wrap)
}

fn fenced(begun: Result<Fenced<'static>, FenceError>) -> Result<Box<dyn Tx>, Verdict> {
    match begun {
        Ok(tx) => Ok(Box::new(tx)),
        Err(error) => Err(verdict(error)),
    }
}

impl Statements for Fenced<'_> {
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        Box::pin(run(self, sql))
    }

    fn number<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        Box::pin(number(self, sql))
    }

    fn run_past<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        Box::pin(run(self.connection(), sql))
    }

    fn number_past<'a>(
        &'a mut self,
        sql: &'a str,
    ) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        Box::pin(number(self.connection(), sql))
    }
}

impl Guard for Fenced<'_> {
    fn commit<'g>(self) -> BoxFuture<'g, Result<(), Verdict>>
    where
        Self: 'g,
    {
        Box::pin(async move { self.commit().await.map_err(verdict) })
    }

    fn rollback<'g>(self) -> BoxFuture<'g, Result<(), Verdict>>
    where
        Self: 'g,
    {
        Box::pin(async move { self.rollback().await.map_err(verdict) })
    }
}

impl Tx for Fenced<'static> {
    fn commit(self: Box<Self>) -> BoxFuture<'static, Result<(), Verdict>> {
        Box::pin(async move { (*self).commit().await.map_err(verdict) })
    }

    fn rollback(self: Box<Self>) -> BoxFuture<'static, Result<(), Verdict>> {
        Box::pin(async move { (*self).rollback().await.map_err(verdict) })
    }
}

struct Unfenced(Transaction<'static>);

impl Statements for Unfenced {
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        Box::pin(run(&mut self.0, sql))
    }

    fn number<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        Box::pin(number(&mut self.0, sql))
    }

    fn run_past<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        self.run(sql)
    }

    fn number_past<'a>(
        &'a mut self,
        sql: &'a str,
    ) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        self.number(sql)
    }
}

impl Tx for Unfenced {
    fn commit(self: Box<Self>) -> BoxFuture<'static, Result<(), Verdict>> {
        Box::pin(async move { self.0.commit().await.map_err(database) })
    }

    fn rollback(self: Box<Self>) -> BoxFuture<'static, Result<(), Verdict>> {
        Box::pin(async move { self.0.rollback().await.map_err(database) })
    }
}

fn verdict(error: FenceError) -> Verdict {
    error.map_driver(wrap)
}

fn database(error: Error) -> Verdict {
    Verdict::Database(wrap(error))
}

fn wrap(error: Error) -> DriverError {
    let (code, poisoned) = match &error {
        Error::Server(error) => (Some(error.state.clone()), None),
        Error::Other(error) => (None, error.downcast_ref::<Poisoned>().cloned()),
        _ => (None, None),
    };
    DriverError::new(error)
        .with_code(code)
        .with_poisoned(poisoned)
}
