//! tokio-postgres, through deadpool-postgres and through bb8-postgres.

use std::error::Error as _;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bb8_postgres::PostgresConnectionManager;
use futures_util::future::BoxFuture;
use highwater_fencing::tokio_postgres::{FenceError, Fenced, Poisoned, TokioPostgresFence as _};
use highwater_fencing::{Configured, Resolution, TableName, migrate};
use tokio_postgres::{Client, Config, Error, NoTls, SimpleQueryMessage};

use super::error::plain;
use super::session::{self, Guard};
use super::{
    Abilities, Adapter, Body, BoxError, Dialect, DriverError, End, Form, Source, Statements, Tx,
    Verdict,
};

/// One per pool.
pub(super) const ADAPTERS: [&dyn Adapter; 2] = [&Through::Deadpool, &Through::Bb8];

/// The pool that the connections come from.
#[derive(Clone, Copy)]
enum Through {
    Deadpool,
    Bb8,
}

impl Adapter for Through {
    fn name(&self) -> &'static str {
        match self {
            Self::Deadpool => "tokio-postgres",
            Self::Bb8 => "tokio-postgres (bb8)",
        }
    }

    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            sees_errors: true,
            joins: true,
            lends: true,
            // The driver does, but does not tell. The server is asked instead.
            counts_savepoints: false,
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
            let config: Config = url.parse().map_err(wrap)?;
            let pools = match self {
                Self::Deadpool => {
                    let size = usize::try_from(connections).expect("a small number");
                    let manager = deadpool_postgres::Manager::new(config.clone(), NoTls);
                    let pool = deadpool_postgres::Pool::builder(manager).max_size(size);
                    Pools::Deadpool(pool.build().map_err(DriverError::new)?)
                }
                Self::Bb8 => {
                    let manager = PostgresConnectionManager::new(config.clone(), NoTls);
                    let pool = bb8::Pool::builder()
                        .max_size(connections)
                        .connection_timeout(WAIT_FOR_CONNECTION);
                    Pools::Bb8(pool.build(manager).await.map_err(wrap)?)
                }
            };
            let pool = Pool {
                pools,
                config,
                closed: Arc::default(),
            };
            // So that a database that cannot be reached is said here.
            drop(pool.get().await?);
            Ok(Arc::new(Open(pool)) as Arc<dyn Source>)
        })
    }
}

#[derive(Clone)]
struct Pool {
    pools: Pools,
    config: Config,
    closed: Arc<AtomicBool>,
}

#[derive(Clone)]
enum Pools {
    Deadpool(deadpool_postgres::Pool),
    Bb8(bb8::Pool<PostgresConnectionManager<NoTls>>),
}

/// A pooled connection; as `&mut` it becomes a `&mut Client` by itself.
enum Pooled {
    Deadpool(deadpool_postgres::Object),
    Bb8(bb8::PooledConnection<'static, PostgresConnectionManager<NoTls>>),
    /// One that is lost: what a closed source has, so that it shows what is refused before anything
    /// is sent.
    Lost(Client),
}

impl Pool {
    async fn get(&self) -> Result<Pooled, DriverError> {
        if self.closed.load(Ordering::SeqCst) {
            let (client, connection) = self.config.connect(NoTls).await.map_err(wrap)?;
            drop(connection);
            return Ok(Pooled::Lost(client));
        }
        match &self.pools {
            Pools::Deadpool(pool) => {
                let waiting = tokio::time::timeout(WAIT_FOR_CONNECTION, pool.get()).await;
                let pooled =
                    waiting.map_err(|_| DriverError::text("the pool has no connection"))?;
                Ok(Pooled::Deadpool(pooled.map_err(DriverError::new)?))
            }
            Pools::Bb8(pool) => {
                let pooled = pool.get_owned().await.map_err(DriverError::new)?;
                Ok(Pooled::Bb8(pooled))
            }
        }
    }

    /// Neither pool waits for what is in use, but all of it can be taken.
    async fn close(&self) {
        let mut taken = Vec::new();
        let size = match &self.pools {
            Pools::Deadpool(pool) => pool.status().size,
            Pools::Bb8(pool) => usize::try_from(pool.state().connections).unwrap_or(0),
        };
        for _ in 0..size {
            taken.extend(self.get().await.ok());
        }
        self.closed.store(true, Ordering::SeqCst);
        if let Pools::Deadpool(pool) = &self.pools {
            pool.close();
        }
    }
}

impl Deref for Pooled {
    type Target = Client;

    fn deref(&self) -> &Client {
        match self {
            Self::Deadpool(pooled) => pooled,
            Self::Bb8(pooled) => pooled,
            Self::Lost(client) => client,
        }
    }
}

impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut Client {
        match self {
            Self::Deadpool(pooled) => pooled,
            Self::Bb8(pooled) => pooled,
            Self::Lost(client) => client,
        }
    }
}

struct Open(Pool);

impl Source for Open {
    fn begin<'a>(&'a self, fence: &'a Configured) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        self.begin_on("", fence)
    }

    fn admit<'a>(
        &'a self,
        before: &'a str,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        let (pool, before, fence) = (self.0.clone(), before.to_owned(), fence.clone());
        Box::pin(session::on_task(move |door| async move {
            let mut pooled = match lent(&pool, "").await {
                Ok(pooled) => pooled,
                Err(error) => return refused(door, error).await,
            };
            let begun = async {
                let tx = pooled.transaction().await?;
                if !before.is_empty() {
                    tx.batch_execute(&before).await?;
                }
                Ok(tx)
            };
            match begun.await {
                Ok(tx) => door.serve(verdict(fence.admit(tx).await)).await,
                Err(error) => refused(door, wrap(error)).await,
            }
        }))
    }

    fn admit_nested<'a>(
        &'a self,
        fence: &'a Configured,
        then: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        Box::pin(async move {
            let mut pooled = lent(&self.0, "").await.map_err(Verdict::Database)?;
            let mut tx = pooled.transaction().await.map_err(database)?;
            let nested = tx.transaction().await.map_err(database)?;
            let Err(refusal) = fence.admit(nested).await else {
                panic!("a fence was taken inside a savepoint");
            };
            tx.batch_execute(then).await.map_err(database)?;
            tx.commit().await.map_err(database)?;
            Err(refusal.map_driver(wrap))
        })
    }

    fn begin_on<'a>(
        &'a self,
        before: &'a str,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        let (pool, before, fence) = (self.0.clone(), before.to_owned(), fence.clone());
        Box::pin(session::on_task(move |door| async move {
            let mut pooled = match lent(&pool, &before).await {
                Ok(pooled) => pooled,
                Err(error) => return refused(door, error).await,
            };
            let begun = fence.begin(&mut pooled).await;
            door.serve(verdict(begun)).await;
        }))
    }

    fn transaction<'a>(
        &'a self,
        fence: &'a Configured,
        body: Body,
    ) -> BoxFuture<'a, Result<i64, BoxError>> {
        Box::pin(async move {
            let mut pooled = lent(&self.0, "").await?;
            let done = fence.transaction(&mut pooled, async |tx: &Fenced<'_>| {
                let mut statements = tx;
                body(&mut statements).await
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
        Box::pin(async move {
            let mut pooled = lent(&self.0, "").await.map_err(Verdict::Database)?;
            let tx = match form {
                Form::Begin | Form::Lend => {
                    started.store(true, Ordering::SeqCst);
                    fence.begin(&mut pooled).await
                }
                Form::Join => {
                    let tx = pooled.transaction().await.map_err(database)?;
                    started.store(true, Ordering::SeqCst);
                    fence.admit(tx).await
                }
            };
            let tx = verdict(tx)?;
            run(tx.simple_query(sql).await).map_err(Verdict::Database)?;
            let ended = match end {
                End::Commit => tx.commit().await,
                End::Rollback => tx.rollback().await,
                End::Drop => Ok(()),
            };
            verdict(ended)
        })
    }

    fn resolve<'a>(&'a self, fence: &'a Configured) -> BoxFuture<'a, Result<Resolution, Verdict>> {
        Box::pin(async move {
            let mut pooled = lent(&self.0, "").await.map_err(Verdict::Database)?;
            verdict(fence.resolve(&mut pooled).await)
        })
    }

    fn run<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(async move { lent(&self.0, sql).await.map(drop) })
    }

    fn begin_unfenced(&self) -> BoxFuture<'_, Result<Box<dyn Tx>, DriverError>> {
        Box::pin(async move {
            let pooled = lent(&self.0, "BEGIN").await?;
            Ok(Box::new(Unfenced(Some(pooled))) as Box<dyn Tx>)
        })
    }

    fn migrate<'a>(&'a self, table: &'a TableName) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(async move {
            let pooled = lent(&self.0, "").await?;
            let migrated = migrate::tokio_postgres::run_for(&pooled, table).await;
            migrated.map(drop).map_err(DriverError::new)
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.close())
    }
}

/// A connection of the pool, with something done on it before.
async fn lent(pool: &Pool, before: &str) -> Result<Pooled, DriverError> {
    let pooled = pool.get().await?;
    if !before.is_empty() {
        pooled.batch_execute(before).await.map_err(wrap)?;
    }
    Ok(pooled)
}

async fn refused(door: session::Door, error: DriverError) {
    door.serve::<Fenced<'_>>(Err(Verdict::Database(error)))
        .await;
}

/// The affected rows of the last statement.
fn run(answers: Result<Vec<SimpleQueryMessage>, Error>) -> Result<u64, DriverError> {
    let affected = |answer: &SimpleQueryMessage| match answer {
        SimpleQueryMessage::CommandComplete(affected) => Some(*affected),
        _ => None,
    };
    let answers = answers.map_err(wrap)?;
    Ok(answers.iter().rev().find_map(affected).unwrap_or(0))
}

/// The first column of the first row.
fn number(answers: Result<Vec<SimpleQueryMessage>, Error>) -> Result<Option<i64>, DriverError> {
    for answer in answers.map_err(wrap)? {
        if let SimpleQueryMessage::Row(row) = answer {
            let number = row.try_get(0).map_err(wrap)?;
            let number = number.map(|digits| digits.parse().map_err(DriverError::new));
            return number.transpose();
        }
    }
    Ok(None)
}

impl Statements for &Fenced<'_> {
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        Box::pin(async move { run(self.simple_query(sql).await) })
    }

    fn number<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        Box::pin(async move { number(self.simple_query(sql).await) })
    }

    fn run_past<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        Box::pin(async move { run(self.connection().simple_query(sql).await) })
    }

    fn number_past<'a>(
        &'a mut self,
        sql: &'a str,
    ) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        Box::pin(async move { number(self.connection().simple_query(sql).await) })
    }
}

impl Statements for Fenced<'_> {
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        Box::pin(async move { run(self.simple_query(sql).await) })
    }

    fn number<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        Box::pin(async move { number(self.simple_query(sql).await) })
    }

    fn run_past<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        Box::pin(async move { run(self.connection().simple_query(sql).await) })
    }

    fn number_past<'a>(
        &'a mut self,
        sql: &'a str,
    ) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        Box::pin(async move { number(self.connection().simple_query(sql).await) })
    }
}

impl Guard for Fenced<'_> {
    fn commit<'g>(self) -> BoxFuture<'g, Result<(), Verdict>>
    where
        Self: 'g,
    {
        Box::pin(async move { verdict(self.commit().await) })
    }

    fn rollback<'g>(self) -> BoxFuture<'g, Result<(), Verdict>>
    where
        Self: 'g,
    {
        Box::pin(async move { verdict(self.rollback().await) })
    }
}

/// A transaction without a fence; dropped without an end, it is rolled back.
struct Unfenced(Option<Pooled>);

impl Unfenced {
    fn client(&self) -> &Client {
        (self.0.as_ref()).expect("the connection is there until the transaction ends")
    }

    fn end(mut self: Box<Self>, with: &'static str) -> BoxFuture<'static, Result<(), Verdict>> {
        let pooled = self.0.take();
        Box::pin(async move {
            match pooled {
                Some(pooled) => pooled.batch_execute(with).await.map_err(database),
                None => Ok(()),
            }
        })
    }
}

impl Drop for Unfenced {
    fn drop(&mut self) {
        if let Some(pooled) = self.0.take() {
            tokio::spawn(async move { pooled.batch_execute("ROLLBACK").await.ok() });
        }
    }
}

impl Statements for Unfenced {
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        Box::pin(async move { run(self.client().simple_query(sql).await) })
    }

    fn number<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        Box::pin(async move { number(self.client().simple_query(sql).await) })
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
        self.end("COMMIT")
    }

    fn rollback(self: Box<Self>) -> BoxFuture<'static, Result<(), Verdict>> {
        self.end("ROLLBACK")
    }
}

fn verdict<T>(result: Result<T, FenceError>) -> Result<T, Verdict> {
    result.map_err(|error| error.map_driver(wrap))
}

fn database(error: Error) -> Verdict {
    Verdict::Database(wrap(error))
}

fn wrap(error: Error) -> DriverError {
    let code = error.code().map(|code| code.code().to_owned());
    let poisoned = (error.source())
        .and_then(|source| source.downcast_ref::<Poisoned>())
        .cloned();
    // By itself it only says "db error".
    let text = (error.as_db_error()).map_or_else(|| error.to_string(), ToString::to_string);
    DriverError::new(error)
        .with_text(text)
        .with_code(code)
        .with_poisoned(poisoned)
}

const WAIT_FOR_CONNECTION: Duration = Duration::from_secs(30);
