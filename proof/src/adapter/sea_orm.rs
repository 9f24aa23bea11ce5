//! sea-orm, on all three dialects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::BoxFuture;
use highwater_fencing::sea_orm::{FenceError, Fenced, SeaOrmFence as _, poisoned};
use highwater_fencing::{Configured, Resolution, TableName, migrate};
use sea_orm::{
    ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DatabaseTransaction, DbErr,
    RuntimeErr, Statement, TransactionTrait as _,
};

use super::error::plain;
use super::{
    Abilities, Adapter, Body, BoxError, Dialect, DriverError, End, Form, Source, Statements, Tx,
    Verdict,
};

/// One per dialect.
pub(super) const ADAPTERS: [&dyn Adapter; 3] = [
    &SeaOrm(Dialect::Postgres),
    &SeaOrm(Dialect::MySql),
    &SeaOrm(Dialect::Sqlite),
];

struct SeaOrm(Dialect);

impl Adapter for SeaOrm {
    fn name(&self) -> &'static str {
        "sea-orm"
    }

    fn dialect(&self) -> Dialect {
        self.0
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            sees_errors: true,
            joins: false,
            // It has no single connection.
            lends: false,
            counts_savepoints: false,
            cancels: true,
            pools: true,
            vetoes: self.0 == Dialect::Sqlite,
        }
    }

    fn open<'a>(
        &'a self,
        url: &'a str,
        connections: u32,
    ) -> BoxFuture<'a, Result<Arc<dyn Source>, DriverError>> {
        Box::pin(async move {
            let mut options = ConnectOptions::new(url);
            options.max_connections(connections).sqlx_logging(false);
            let db = Database::connect(options).await.map_err(wrap)?;
            Ok(Arc::new(Open(db)) as Arc<dyn Source>)
        })
    }
}

struct Open(DatabaseConnection);

impl Source for Open {
    fn begin<'a>(&'a self, fence: &'a Configured) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        Box::pin(async move {
            let tx = fence.begin(&self.0).await.map_err(verdict)?;
            Ok(Box::new(tx) as Box<dyn Tx>)
        })
    }

    fn admit<'a>(
        &'a self,
        _before: &'a str,
        _fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        unreachable!("a transaction cannot be joined")
    }

    fn admit_nested<'a>(
        &'a self,
        _fence: &'a Configured,
        _then: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        unreachable!("a transaction cannot be joined")
    }

    fn begin_on<'a>(
        &'a self,
        _before: &'a str,
        _fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        unreachable!("there is no connection to lend")
    }

    fn transaction<'a>(
        &'a self,
        fence: &'a Configured,
        body: Body,
    ) -> BoxFuture<'a, Result<i64, BoxError>> {
        Box::pin(async move {
            let done = fence.transaction(&self.0, async |tx: &Fenced| body(&mut InBody(tx)).await);
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
            assert_eq!(form, Form::Begin, "the only one");
            started.store(true, Ordering::SeqCst);
            let tx = fence.begin(&self.0).await.map_err(verdict)?;
            run(&tx, sql).await.map_err(Verdict::Database)?;
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
        Box::pin(async move { run(&self.0, sql).await.map(drop) })
    }

    fn begin_unfenced(&self) -> BoxFuture<'_, Result<Box<dyn Tx>, DriverError>> {
        Box::pin(async move {
            let tx = self.0.begin().await.map_err(wrap)?;
            Ok(Box::new(Unfenced(tx)) as Box<dyn Tx>)
        })
    }

    fn migrate<'a>(&'a self, table: &'a TableName) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(async move {
            let migrated = migrate::sea_orm::run_for(&self.0, table).await;
            migrated.map(drop).map_err(DriverError::new)
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let _ = self.0.close_by_ref().await;
        })
    }
}

async fn run(conn: &impl ConnectionTrait, sql: &str) -> Result<u64, DriverError> {
    let done = conn.execute_unprepared(sql).await.map_err(wrap)?;
    Ok(done.rows_affected())
}

async fn number(conn: &impl ConnectionTrait, sql: &str) -> Result<Option<i64>, DriverError> {
    let statement = Statement::from_string(conn.get_database_backend(), sql);
    let row = conn.query_one_raw(statement).await.map_err(wrap)?;
    let number = row.map(|row| row.try_get_by_index(0));
    number.transpose().map_err(wrap)
}

impl Statements for Fenced {
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        Box::pin(run(&*self, sql))
    }

    fn number<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        Box::pin(number(&*self, sql))
    }

    fn run_past<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        Box::pin(async move { run(&self.connection(), sql).await })
    }

    fn number_past<'a>(
        &'a mut self,
        sql: &'a str,
    ) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        Box::pin(async move { number(&self.connection(), sql).await })
    }
}

impl Tx for Fenced {
    fn commit(self: Box<Self>) -> BoxFuture<'static, Result<(), Verdict>> {
        Box::pin(async move { (*self).commit().await.map_err(verdict) })
    }

    fn rollback(self: Box<Self>) -> BoxFuture<'static, Result<(), Verdict>> {
        Box::pin(async move { (*self).rollback().await.map_err(verdict) })
    }
}

/// What the body of the closure form gets.
struct InBody<'t>(&'t Fenced);

impl Statements for InBody<'_> {
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        Box::pin(run(self.0, sql))
    }

    fn number<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        Box::pin(number(self.0, sql))
    }

    fn run_past<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        Box::pin(async move { run(&self.0.connection(), sql).await })
    }

    fn number_past<'a>(
        &'a mut self,
        sql: &'a str,
    ) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        Box::pin(async move { number(&self.0.connection(), sql).await })
    }
}

struct Unfenced(DatabaseTransaction);

impl Statements for Unfenced {
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        Box::pin(run(&self.0, sql))
    }

    fn number<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        Box::pin(number(&self.0, sql))
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

fn database(error: DbErr) -> Verdict {
    Verdict::Database(wrap(error))
}

fn verdict(error: FenceError) -> Verdict {
    error.map_driver(wrap)
}

fn wrap(error: DbErr) -> DriverError {
    let poisoned = poisoned(&error).cloned();
    let (DbErr::Conn(RuntimeErr::SqlxError(of_sqlx))
    | DbErr::Exec(RuntimeErr::SqlxError(of_sqlx))
    | DbErr::Query(RuntimeErr::SqlxError(of_sqlx))) = &error
    else {
        return DriverError::new(error);
    };
    let of_server = of_sqlx.as_database_error();
    let code = of_server.and_then(|error| error.code()).map(Into::into);
    // As the guard records it: without the prefix of sea-orm.
    let text = of_sqlx.to_string();
    DriverError::new(error)
        .with_text(text)
        .with_code(code)
        .with_poisoned(poisoned)
}

/// The program of the adapter's page.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/adapters/sea-orm.md")]
struct Page;
