//! sqlx, on all three dialects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::BoxFuture;
use highwater_fencing::sqlx::{Dialect as Supported, FenceError, Fenced, Poisoned, SqlxFence as _};
use highwater_fencing::{Configured, Resolution, TableName, migrate};
use sqlx::pool::{PoolConnection, PoolOptions};
use sqlx::{
    AssertSqlSafe, Connection as _, Database, Error, MySql, Pool, Postgres, Sqlite, Transaction,
};

use super::error::plain;
use super::session::{self, Guard};
use super::{
    Abilities, Adapter, Body, BoxError, Dialect, DriverError, End, Form, Source, Statements, Tx,
    Verdict,
};

/// One per dialect.
pub(super) const ADAPTERS: [&dyn Adapter; 3] = [
    &Sqlx::<Postgres>::NEW,
    &Sqlx::<MySql>::NEW,
    &Sqlx::<Sqlite>::NEW,
];

struct Sqlx<Db>(std::marker::PhantomData<fn() -> Db>);

impl<Db> Sqlx<Db> {
    const NEW: Self = Self(std::marker::PhantomData);
}

/// What the generic code below cannot say, because sqlx's bounds name the database.
trait Driven: Supported {
    const SPOKEN: Dialect;

    fn run_on<'a>(
        conn: &'a mut Self::Connection,
        sql: &'a str,
    ) -> BoxFuture<'a, Result<u64, Error>>;
    fn number<'a>(
        conn: &'a mut Self::Connection,
        sql: &'a str,
    ) -> BoxFuture<'a, Result<Option<i64>, Error>>;
    fn run_in<'a>(tx: &'a mut Fenced<'_, Self>, sql: &'a str) -> BoxFuture<'a, Result<u64, Error>>;
    fn number_in<'a>(
        tx: &'a mut Fenced<'_, Self>,
        sql: &'a str,
    ) -> BoxFuture<'a, Result<Option<i64>, Error>>;
    fn migrate<'a>(
        pool: &'a Pool<Self>,
        table: &'a TableName,
    ) -> BoxFuture<'a, Result<(), migrate::Error>>;
    fn begin_on<'a>(
        conn: &'a mut PoolConnection<Self>,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Fenced<'a, Self>, FenceError>>;
}

macro_rules! driven {
    ($database:ty, $dialect:ident, $migrate:path) => {
        impl Driven for $database {
            const SPOKEN: Dialect = Dialect::$dialect;

            fn run_on<'a>(
                conn: &'a mut Self::Connection,
                sql: &'a str,
            ) -> BoxFuture<'a, Result<u64, Error>> {
                Box::pin(async move {
                    let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await?;
                    Ok(done.rows_affected())
                })
            }

            fn number<'a>(
                conn: &'a mut Self::Connection,
                sql: &'a str,
            ) -> BoxFuture<'a, Result<Option<i64>, Error>> {
                Box::pin(async move {
                    sqlx::query_scalar(AssertSqlSafe(sql))
                        .fetch_optional(conn)
                        .await
                })
            }

            fn run_in<'a>(
                tx: &'a mut Fenced<'_, Self>,
                sql: &'a str,
            ) -> BoxFuture<'a, Result<u64, Error>> {
                Box::pin(async move {
                    let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await?;
                    Ok(done.rows_affected())
                })
            }

            fn number_in<'a>(
                tx: &'a mut Fenced<'_, Self>,
                sql: &'a str,
            ) -> BoxFuture<'a, Result<Option<i64>, Error>> {
                Box::pin(async move {
                    sqlx::query_scalar(AssertSqlSafe(sql))
                        .fetch_optional(&mut *tx)
                        .await
                })
            }

            fn migrate<'a>(
                pool: &'a Pool<Self>,
                table: &'a TableName,
            ) -> BoxFuture<'a, Result<(), migrate::Error>> {
                Box::pin(async move { $migrate(pool, table).await.map(drop) })
            }

            fn begin_on<'a>(
                conn: &'a mut PoolConnection<Self>,
                fence: &'a Configured,
            ) -> BoxFuture<'a, Result<Fenced<'a, Self>, FenceError>> {
                Box::pin(fence.begin_on(conn))
            }
        }
    };
}

driven!(Postgres, Postgres, migrate::postgres::run_for);
driven!(MySql, MySql, migrate::mysql::run_for);
driven!(Sqlite, Sqlite, migrate::sqlite::run_for);

impl<Db: Driven> Adapter for Sqlx<Db> {
    fn name(&self) -> &'static str {
        "sqlx"
    }

    fn dialect(&self) -> Dialect {
        Db::SPOKEN
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            sees_errors: true,
            joins: true,
            lends: true,
            counts_savepoints: true,
            cancels: true,
            pools: true,
            vetoes: Db::SPOKEN == Dialect::Sqlite,
        }
    }

    fn open<'a>(
        &'a self,
        url: &'a str,
        connections: u32,
    ) -> BoxFuture<'a, Result<Arc<dyn Source>, DriverError>> {
        Box::pin(async move {
            let options = PoolOptions::<Db>::new().max_connections(connections);
            let pool = options.connect(url).await.map_err(wrap)?;
            Ok(Arc::new(Open(pool)) as Arc<dyn Source>)
        })
    }
}

struct Open<Db: Database>(Pool<Db>);

impl<Db: Driven> Source for Open<Db> {
    fn begin<'a>(&'a self, fence: &'a Configured) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        Box::pin(async move { fenced(fence.begin(&self.0).await) })
    }

    fn admit<'a>(
        &'a self,
        before: &'a str,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        Box::pin(async move {
            let mut tx = self.0.begin().await.map_err(database)?;
            if !before.is_empty() {
                Db::run_on(&mut tx, before).await.map_err(database)?;
            }
            fenced(fence.admit(tx).await)
        })
    }

    fn admit_nested<'a>(
        &'a self,
        fence: &'a Configured,
        then: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        Box::pin(async move {
            let mut tx = self.0.begin().await.map_err(database)?;
            let nested = tx.begin().await.map_err(database)?;
            let refused = match fence.admit(nested).await {
                Err(error) => error.map_driver(wrap),
                Ok(_) => panic!("a fence was taken inside a savepoint"),
            };
            Db::run_on(&mut tx, then).await.map_err(database)?;
            tx.commit().await.map_err(database)?;
            Err(refused)
        })
    }

    fn begin_on<'a>(
        &'a self,
        before: &'a str,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        let (pool, before, fence) = (self.0.clone(), before.to_owned(), fence.clone());
        Box::pin(session::on_task(move |door| async move {
            let mut conn = match lent::<Db>(&pool, &before).await {
                Ok(conn) => conn,
                Err(error) => return door.serve::<Fenced<'_, Db>>(Err(database(error))).await,
            };
            let begun = Db::begin_on(&mut conn, &fence).await;
            door.serve(begun.map_err(|error| error.map_driver(wrap)))
                .await;
        }))
    }

    fn begin_on_nested<'a>(
        &'a self,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        Box::pin(async move {
            let mut conn = self.0.acquire().await.map_err(database)?;
            // sqlx does not see a transaction of raw SQL. This one stays open on the connection.
            std::mem::forget(conn.begin().await.map_err(database)?);
            let refused = match Db::begin_on(&mut conn, fence).await {
                Err(error) => error.map_driver(wrap),
                Ok(_) => panic!("a fence was taken inside a transaction"),
            };
            drop(conn.detach());
            Err(refused)
        })
    }

    fn transaction<'a>(
        &'a self,
        fence: &'a Configured,
        body: Body,
    ) -> BoxFuture<'a, Result<i64, BoxError>> {
        Box::pin(async move {
            let done =
                fence.transaction(&self.0, async |tx: &mut Fenced<'static, Db>| body(tx).await);
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
                    conn = lent::<Db>(&self.0, "").await.map_err(database)?;
                    started.store(true, Ordering::SeqCst);
                    Db::begin_on(&mut conn, fence).await
                }
                Form::Join => {
                    let tx = self.0.begin().await.map_err(database)?;
                    started.store(true, Ordering::SeqCst);
                    fence.admit(tx).await
                }
            };
            let mut tx = begun.map_err(|error| error.map_driver(wrap))?;
            Db::run_in(&mut tx, sql).await.map_err(database)?;
            let ended = match end {
                End::Commit => tx.commit().await,
                End::Rollback => tx.rollback().await,
                End::Drop => Ok(()),
            };
            ended.map_err(|error| error.map_driver(wrap))
        })
    }

    fn resolve<'a>(&'a self, fence: &'a Configured) -> BoxFuture<'a, Result<Resolution, Verdict>> {
        Box::pin(async move {
            let resolved = fence.resolve(&self.0).await;
            resolved.map_err(|error| error.map_driver(wrap))
        })
    }

    fn run<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(async move {
            let mut conn = self.0.acquire().await.map_err(wrap)?;
            Db::run_on(&mut conn, sql).await.map(drop).map_err(wrap)
        })
    }

    fn begin_unfenced(&self) -> BoxFuture<'_, Result<Box<dyn Tx>, DriverError>> {
        Box::pin(async move {
            let tx = self.0.begin().await.map_err(wrap)?;
            Ok(Box::new(Unfenced(tx)) as Box<dyn Tx>)
        })
    }

    fn migrate<'a>(&'a self, table: &'a TableName) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(async move { Db::migrate(&self.0, table).await.map_err(DriverError::new) })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.close())
    }
}

/// A connection of the pool, with something done on it before.
async fn lent<Db: Driven>(pool: &Pool<Db>, before: &str) -> Result<PoolConnection<Db>, Error> {
    let mut conn = pool.acquire().await?;
    if !before.is_empty() {
        Db::run_on(&mut conn, before).await?;
    }
    Ok(conn)
}

fn fenced<Db: Driven>(
    begun: Result<Fenced<'static, Db>, FenceError>,
) -> Result<Box<dyn Tx>, Verdict> {
    match begun {
        Ok(tx) => Ok(Box::new(tx)),
        Err(error) => Err(error.map_driver(wrap)),
    }
}

impl<Db: Driven> Statements for Fenced<'_, Db> {
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        Box::pin(async move { Db::run_in(self, sql).await.map_err(wrap) })
    }

    fn number<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        Box::pin(async move { Db::number_in(self, sql).await.map_err(wrap) })
    }

    fn run_past<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        Box::pin(async move { Db::run_on(self.connection(), sql).await.map_err(wrap) })
    }

    fn number_past<'a>(
        &'a mut self,
        sql: &'a str,
    ) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        Box::pin(async move { Db::number(self.connection(), sql).await.map_err(wrap) })
    }

    fn nested<'a>(
        &'a mut self,
        sql: &'a str,
        keep: bool,
    ) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(async move {
            let mut savepoint = self.connection().begin().await.map_err(wrap)?;
            Db::run_on(&mut savepoint, sql).await.map_err(wrap)?;
            let ended = if keep {
                savepoint.commit().await
            } else {
                savepoint.rollback().await
            };
            ended.map_err(wrap)
        })
    }
}

impl<Db: Driven> Guard for Fenced<'_, Db> {
    fn commit<'g>(self) -> BoxFuture<'g, Result<(), Verdict>>
    where
        Self: 'g,
    {
        Box::pin(async move { self.commit().await.map_err(|error| error.map_driver(wrap)) })
    }

    fn rollback<'g>(self) -> BoxFuture<'g, Result<(), Verdict>>
    where
        Self: 'g,
    {
        Box::pin(async move {
            self.rollback()
                .await
                .map_err(|error| error.map_driver(wrap))
        })
    }
}

impl<Db: Driven> Tx for Fenced<'static, Db> {
    fn commit(self: Box<Self>) -> BoxFuture<'static, Result<(), Verdict>> {
        Box::pin(async move {
            (*self)
                .commit()
                .await
                .map_err(|error| error.map_driver(wrap))
        })
    }

    fn rollback(self: Box<Self>) -> BoxFuture<'static, Result<(), Verdict>> {
        Box::pin(async move {
            (*self)
                .rollback()
                .await
                .map_err(|error| error.map_driver(wrap))
        })
    }
}

struct Unfenced<Db: Database>(Transaction<'static, Db>);

impl<Db: Driven> Statements for Unfenced<Db> {
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        Box::pin(async move { Db::run_on(&mut self.0, sql).await.map_err(wrap) })
    }

    fn number<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        Box::pin(async move { Db::number(&mut self.0, sql).await.map_err(wrap) })
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

impl<Db: Driven> Tx for Unfenced<Db> {
    fn commit(self: Box<Self>) -> BoxFuture<'static, Result<(), Verdict>> {
        Box::pin(async move { self.0.commit().await.map_err(database) })
    }

    fn rollback(self: Box<Self>) -> BoxFuture<'static, Result<(), Verdict>> {
        Box::pin(async move { self.0.rollback().await.map_err(database) })
    }
}

fn database(error: Error) -> Verdict {
    Verdict::Database(wrap(error))
}

fn wrap(error: Error) -> DriverError {
    let of_server = error.as_database_error();
    let code = of_server.and_then(|error| error.code()).map(Into::into);
    let poisoned = of_server
        .and_then(|error| error.try_downcast_ref::<Poisoned>())
        .cloned();
    DriverError::new(error)
        .with_code(code)
        .with_poisoned(poisoned)
}
