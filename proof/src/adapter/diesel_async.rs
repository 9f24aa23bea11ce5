//! diesel-async, on PostgreSQL and MySQL, through deadpool.

use std::ops::DerefMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use diesel::OptionalExtension as _;
use diesel::dsl::sql;
use diesel::result::Error;
use diesel::sql_types::BigInt;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::deadpool::{Object, Pool};
use diesel_async::{
    AnsiTransactionManager, AsyncMysqlConnection, AsyncPgConnection, RunQueryDsl as _,
    SimpleAsyncConnection as _, TransactionManager as _,
};
use futures_util::future::BoxFuture;
use highwater_fencing::diesel_async::{Connection, DieselAsyncFence as _, FenceError, Fenced};
use highwater_fencing::{Configured, Resolution, TableName, migrate};

use super::error::plain;
use super::session::{self, Guard};
use super::{
    Abilities, Adapter, Body, BoxError, Dialect, DriverError, End, Form, Source, Statements, Tx,
    Verdict,
};

/// One per dialect.
pub(super) const ADAPTERS: [&dyn Adapter; 2] = [
    &DieselAsync::<AsyncPgConnection>::NEW,
    &DieselAsync::<AsyncMysqlConnection>::NEW,
];

struct DieselAsync<C>(std::marker::PhantomData<fn() -> C>);

impl<C> DieselAsync<C> {
    const NEW: Self = Self(std::marker::PhantomData);
}

/// What the generic code below cannot say, because diesel's bounds name the connection.
trait Driven: Connection {
    const DIALECT: Dialect;
    /// Ends the session it runs in.
    const KILL: &str;
    type Pool: Clone + Send + Sync + 'static;
    type Pooled: DerefMut<Target = Self> + Send + 'static;

    fn pool(url: &str, connections: usize) -> Result<Self::Pool, DriverError>;
    fn get(pool: &Self::Pool) -> BoxFuture<'_, Result<Self::Pooled, DriverError>>;
    fn is_closed(pool: &Self::Pool) -> bool;
    fn close(pool: &Self::Pool);
    fn run<'a>(conn: &'a mut Self, sql: &'a str) -> BoxFuture<'a, Result<u64, Error>>;
    fn number<'a>(conn: &'a mut Self, sql: &'a str) -> BoxFuture<'a, Result<Option<i64>, Error>>;
}

macro_rules! driven {
    ($connection:ty, $dialect:ident, $parameters:literal, $kill:literal) => {
        impl Driven for $connection {
            const DIALECT: Dialect = Dialect::$dialect;
            const KILL: &str = $kill;
            type Pool = Pool<Self>;
            type Pooled = Object<Self>;

            fn pool(url: &str, connections: usize) -> Result<Pool<Self>, DriverError> {
                let mark = if url.contains('?') { '&' } else { '?' };
                let url = match $parameters {
                    "" => url.to_owned(),
                    parameters => format!("{url}{mark}{parameters}"),
                };
                let manager = AsyncDieselConnectionManager::<Self>::new(url);
                let pool = Pool::builder(manager).max_size(connections).build();
                pool.map_err(DriverError::new)
            }

            fn get(pool: &Pool<Self>) -> BoxFuture<'_, Result<Object<Self>, DriverError>> {
                Box::pin(async move { pool.get().await.map_err(DriverError::new) })
            }

            fn is_closed(pool: &Pool<Self>) -> bool {
                pool.is_closed()
            }

            fn close(pool: &Pool<Self>) {
                pool.close();
            }

            fn run<'a>(conn: &'a mut Self, sql: &'a str) -> BoxFuture<'a, Result<u64, Error>> {
                Box::pin(async move {
                    if !counts(sql) {
                        conn.batch_execute(sql).await?;
                        return Ok(0);
                    }
                    let rows = diesel::sql_query(sql).execute(conn).await?;
                    Ok(u64::try_from(rows).expect("a number of rows"))
                })
            }

            fn number<'a>(
                conn: &'a mut Self,
                text: &'a str,
            ) -> BoxFuture<'a, Result<Option<i64>, Error>> {
                Box::pin(
                    async move { sql::<BigInt>(text).get_result::<i64>(conn).await.optional() },
                )
            }
        }
    };
}

driven!(
    AsyncPgConnection,
    Postgres,
    "",
    "SELECT pg_terminate_backend(pg_backend_pid())"
);
// The driver would go to the socket of a local server, past the proxy of a test.
driven!(
    AsyncMysqlConnection,
    MySql,
    "prefer_socket=false",
    "KILL CONNECTION_ID()"
);

/// Whether it is a single statement that changes rows. Only such ones are prepared, which others
/// cannot be on every server.
fn counts(sql: &str) -> bool {
    let sql = sql.trim().trim_end_matches(';');
    let word = sql.split_whitespace().next().unwrap_or_default();
    let word = word.to_ascii_uppercase();
    !sql.contains(';') && matches!(&*word, "INSERT" | "UPDATE" | "DELETE")
}

impl<C: Driven> Adapter for DieselAsync<C> {
    fn name(&self) -> &'static str {
        "diesel-async"
    }

    fn dialect(&self) -> Dialect {
        C::DIALECT
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            // The body and the guard give the connection itself.
            sees_errors: false,
            // There is no transaction object.
            joins: false,
            lends: true,
            counts_savepoints: true,
            cancels: true,
            pools: true,
            vetoes: false,
        }
    }

    fn open<'a>(
        &'a self,
        url: &'a str,
        connections: u32,
    ) -> BoxFuture<'a, Result<Arc<dyn Source>, DriverError>> {
        Box::pin(async move {
            let connections = usize::try_from(connections).expect("a small number");
            let pool = C::pool(url, connections)?;
            let url = url.to_owned();
            Ok(Arc::new(Open::<C> { pool, url }) as Arc<dyn Source>)
        })
    }
}

struct Open<C: Driven> {
    pool: C::Pool,
    url: String,
}

impl<C: Driven> Clone for Open<C> {
    fn clone(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            url: self.url.clone(),
        }
    }
}

impl<C: Driven> Open<C> {
    /// A connection to lend. After the close it is a dead one: whether something is sent that should
    /// not be is then seen as it is with the other adapters.
    async fn get(&self) -> Result<C::Pooled, DriverError> {
        if !C::is_closed(&self.pool) {
            return C::get(&self.pool).await;
        }
        let pool = C::pool(&self.url, 1)?;
        let mut conn = C::get(&pool).await?;
        conn.batch_execute(C::KILL).await.ok();
        Ok(conn)
    }

    /// The same, with something done on it before.
    async fn lent(&self, before: &str) -> Result<C::Pooled, Verdict> {
        let mut conn = self.get().await.map_err(Verdict::Database)?;
        if !before.is_empty() {
            C::run(&mut conn, before).await.map_err(database)?;
        }
        Ok(conn)
    }
}

impl<C: Driven> Source for Open<C> {
    fn begin<'a>(&'a self, fence: &'a Configured) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        self.begin_on("", fence)
    }

    fn admit<'a>(
        &'a self,
        _before: &'a str,
        _fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        Box::pin(std::future::ready(Err(no_join())))
    }

    fn admit_nested<'a>(
        &'a self,
        _fence: &'a Configured,
        _then: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        Box::pin(std::future::ready(Err(no_join())))
    }

    fn begin_on<'a>(
        &'a self,
        before: &'a str,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        let (source, before, fence) = (self.clone(), before.to_owned(), fence.clone());
        Box::pin(session::on_task(move |door| async move {
            let mut conn = match source.lent(&before).await {
                Ok(conn) => conn,
                Err(verdict) => return door.serve::<Fenced<'_, C>>(Err(verdict)).await,
            };
            let begun = fence.begin(&mut *conn).await;
            door.serve(begun.map_err(verdict)).await;
        }))
    }

    fn begin_on_nested<'a>(
        &'a self,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        Box::pin(async move {
            let mut conn = self.lent("").await?;
            AnsiTransactionManager::begin_transaction(&mut *conn)
                .await
                .map_err(database)?;
            match fence.begin(&mut *conn).await {
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
            let mut conn = self.get().await?;
            let done = fence.transaction(&mut *conn, async |conn: &mut C| {
                body(&mut Direct(conn)).await
            });
            done.await.map_err(|error| plain(error, wrap))
        })
    }

    fn walk<'a>(
        &'a self,
        _form: Form,
        fence: &'a Configured,
        sql: &'a str,
        end: End,
        started: &'a AtomicBool,
    ) -> BoxFuture<'a, Result<(), Verdict>> {
        Box::pin(async move {
            let mut conn = self.lent("").await?;
            started.store(true, Ordering::SeqCst);
            let mut tx = fence.begin(&mut *conn).await.map_err(verdict)?;
            C::run(tx.connection(), sql).await.map_err(database)?;
            let ended = match end {
                End::Commit => tx.commit().await,
                End::Rollback => tx.rollback().await,
                End::Drop => Ok(()),
            };
            ended.map_err(verdict)
        })
    }

    fn resolve<'a>(&'a self, fence: &'a Configured) -> BoxFuture<'a, Result<Resolution, Verdict>> {
        Box::pin(async move {
            let mut conn = self.lent("").await?;
            fence.resolve(&mut *conn).await.map_err(verdict)
        })
    }

    fn run<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(async move {
            let mut conn = self.get().await?;
            C::run(&mut conn, sql).await.map(drop).map_err(wrap)
        })
    }

    fn begin_unfenced(&self) -> BoxFuture<'_, Result<Box<dyn Tx>, DriverError>> {
        Box::pin(async move {
            let mut conn = self.get().await?;
            AnsiTransactionManager::begin_transaction(&mut *conn)
                .await
                .map_err(wrap)?;
            Ok(Box::new(Unfenced::<C>(conn)) as Box<dyn Tx>)
        })
    }

    fn migrate<'a>(&'a self, table: &'a TableName) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(async move {
            let mut conn = self.get().await?;
            let migrated = migrate::diesel_async::run_for(&mut *conn, table).await;
            migrated.map(drop).map_err(DriverError::new)
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        C::close(&self.pool);
        Box::pin(std::future::ready(()))
    }
}

/// The connection inside a transaction: there is no other way to run a statement.
struct Direct<'t, C>(&'t mut C);

impl<C: Driven> Statements for Direct<'_, C> {
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        Box::pin(async move { C::run(self.0, sql).await.map_err(wrap) })
    }

    fn number<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        Box::pin(async move { C::number(self.0, sql).await.map_err(wrap) })
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

    fn nested<'a>(
        &'a mut self,
        sql: &'a str,
        keep: bool,
    ) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(async move {
            let ended = (self.0)
                .transaction(async |conn: &mut C| {
                    C::run(conn, sql).await?;
                    if keep {
                        Ok(())
                    } else {
                        Err(Error::RollbackTransaction)
                    }
                })
                .await;
            match ended {
                Err(Error::RollbackTransaction) if !keep => Ok(()),
                ended => ended.map_err(wrap),
            }
        })
    }
}

macro_rules! statements {
    ($guard:ty, $connection:expr) => {
        impl<C: Driven> Statements for $guard {
            fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
                Box::pin(async move { Direct($connection(self)).run(sql).await })
            }

            fn number<'a>(
                &'a mut self,
                sql: &'a str,
            ) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
                Box::pin(async move { Direct($connection(self)).number(sql).await })
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

            fn nested<'a>(
                &'a mut self,
                sql: &'a str,
                keep: bool,
            ) -> BoxFuture<'a, Result<(), DriverError>> {
                Box::pin(async move { Direct($connection(self)).nested(sql, keep).await })
            }
        }
    };
}

statements!(Fenced<'_, C>, Fenced::connection);
statements!(Unfenced<C>, Unfenced::connection);

impl<C: Driven> Guard for Fenced<'_, C> {
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

/// A transaction of the driver. Dropped, its connection is closed by the pool.
struct Unfenced<C: Driven>(C::Pooled);

impl<C: Driven> Unfenced<C> {
    fn connection(&mut self) -> &mut C {
        &mut self.0
    }
}

impl<C: Driven> Tx for Unfenced<C> {
    fn commit(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Verdict>> {
        Box::pin(async move {
            let committed = AnsiTransactionManager::commit_transaction(&mut *self.0).await;
            committed.map_err(database)
        })
    }

    fn rollback(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Verdict>> {
        Box::pin(async move {
            let rolled_back = AnsiTransactionManager::rollback_transaction(&mut *self.0).await;
            rolled_back.map_err(database)
        })
    }
}

fn no_join() -> Verdict {
    Verdict::Database(DriverError::text("diesel-async has no transaction to join"))
}

fn verdict(error: FenceError) -> Verdict {
    error.map_driver(wrap)
}

fn database(error: Error) -> Verdict {
    Verdict::Database(wrap(error))
}

fn wrap(error: Error) -> DriverError {
    DriverError::new(error)
}
