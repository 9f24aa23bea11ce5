//! A holder process from inside: takes the lock and writes, as an application does.
//!
//! It knows nothing of the round it is in. Commands come from standard input and answers go to
//! standard output; the database is named by the environment, since a URL can hold a password.

use std::env;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use highwater_client::{AcquireOptions, Client, Fence, Key, Ticket};
use highwater_fencing::{Configured, FenceOptions, TableNameError};

use crate::adapter::{self, BoxError, Dialect, DriverError, Source, Statements, Tx, Verdict, body};

use super::LEASE;
use super::choice::{ChoiceError, dialect_of};
use super::observer::{FENCE, ORDERS, STOCK};
use super::pipe::{Pipe, Stopping};
use super::words::{Answer, Command, Form, How, Stop};

/// The environment of a holder process.
pub(super) mod setting {
    pub(in crate::prove) const DATABASE_URL: &str = "HIGHWATER_PROVE_DATABASE_URL";
    pub(in crate::prove) const ADAPTER: &str = "HIGHWATER_PROVE_ADAPTER";
}

/// The work of a holder process, until standard input ends.
///
/// # Errors
/// It was not started by [`run`](super::run), or its pipes are broken. What the database or the lock
/// server refuse is an answer to the proof.
pub async fn work() -> Result<(), WorkerError> {
    let pipe = Arc::new(Pipe::open());
    let mut worker = match Worker::open(pipe.clone()).await {
        Ok(worker) => worker,
        Err(WorkerError::Open(error)) => {
            let reason = chain(&error);
            return Ok(pipe.say(&Answer::Failed { reason }).await?);
        }
        Err(error) => return Err(error),
    };
    pipe.say(&Answer::Ready).await?;
    while let Some(command) = pipe.hear().await? {
        let answer = worker.obey(command).await;
        pipe.say(&answer).await?;
    }
    Ok(())
}

struct Worker {
    pipe: Arc<Pipe>,
    dialect: Dialect,
    is_mariadb: bool,
    source: Arc<dyn Source>,
    options: FenceOptions,
    /// The lock server it is connected to.
    client: Option<(String, Client)>,
    ticket: Option<Ticket>,
    /// The stock as far as it knows: what it read, less what it wrote since.
    stock: i64,
}

impl Worker {
    async fn open(pipe: Arc<Pipe>) -> Result<Self, WorkerError> {
        let required = |name| env::var(name).map_err(|_| WorkerError::Setting(name));
        let url = required(setting::DATABASE_URL)?;
        let name = required(setting::ADAPTER)?;
        let dialect = dialect_of(&url)?;
        let adapter = adapter::all()
            .into_iter()
            .find(|adapter| adapter.name() == name && adapter.dialect() == dialect)
            .ok_or(WorkerError::Setting(setting::ADAPTER))?;
        // One connection, so that what is set for a session is set for the next transaction.
        let source = adapter.open(&url, 1).await.map_err(WorkerError::Open)?;
        let is_mariadb =
            dialect == Dialect::MySql && is_mariadb(&*source).await.map_err(WorkerError::Open)?;
        Ok(Self {
            pipe,
            dialect,
            is_mariadb,
            source,
            options: FenceOptions::new().table(FENCE)?,
            client: None,
            ticket: None,
            stock: 0,
        })
    }

    async fn obey(&mut self, command: Command) -> Answer {
        let done = match command {
            Command::Acquire { server, key } => self.acquire(server, &key).await,
            Command::Read { how, order, sku } => self.read(how, order, sku).await,
            Command::Write {
                how,
                deduction,
                order,
                sku,
                quantity,
                stop,
            } => {
                let left = self.stock - quantity;
                let statements = [
                    format!("UPDATE {STOCK} SET quantity = {left} WHERE sku = {sku}"),
                    format!(
                        "INSERT INTO {ORDERS} (deduction, order_id, sku, quantity) \
                         VALUES ({deduction}, {order}, {sku}, {quantity})"
                    ),
                ];
                self.write(how, statements, left, stop).await
            }
            Command::GoOn => Err("it has not stopped".into()),
            Command::Release => {
                if let Some(ticket) = self.ticket.take() {
                    // Whoever was overtaken has nothing to release, and is told so.
                    let _ = ticket.release().await;
                }
                Ok(Answer::Released)
            }
        };
        done.unwrap_or_else(|error| answer_of(&error))
    }

    async fn acquire(&mut self, server: String, key: &str) -> Result<Answer, BoxError> {
        let client = match &self.client {
            Some((connected, client)) if *connected == server => client,
            _ => {
                let client = Client::builder(&server).connect().await?;
                &self.client.insert((server, client)).1
            }
        };
        let options = AcquireOptions::new().lease(LEASE).wait(LONGEST_WAIT);
        let ticket = client.acquire(&Key::new(key)?, options).await?;
        let token = ticket.token().get();
        self.ticket = Some(ticket);
        Ok(Answer::Acquired { token })
    }

    async fn read(&mut self, how: How, order: i64, sku: i64) -> Result<Answer, BoxError> {
        let work = Work::Read {
            level: self.level_check(how),
            recorded: format!("SELECT count(*) FROM {ORDERS} WHERE order_id = {order}"),
            stock: format!("SELECT quantity FROM {STOCK} WHERE sku = {sku}"),
        };
        let quantity = self.transaction(how, work).await?;
        if quantity == RECORDED {
            return Ok(Answer::Recorded);
        }
        self.stock = quantity;
        Ok(Answer::Stock { quantity })
    }

    async fn write(
        &mut self,
        how: How,
        statements: [String; 2],
        left: i64,
        stop: Stop,
    ) -> Result<Answer, BoxError> {
        let stop = Arc::new(Stopping::new(stop, self.dialect, self.pipe.clone()));
        let work = Work::Write {
            statements,
            stop: stop.clone(),
        };
        self.transaction(how, work).await?;
        stop.behind_the_commit().await?;
        self.stock = left;
        Ok(Answer::Written)
    }

    /// One transaction in this form, tried again as an application would.
    async fn transaction(&self, how: How, work: Work) -> Result<i64, BoxError> {
        let fence = self.fence(how)?;
        if how.form == Form::Closure {
            let body = body(move |tx| {
                let work = work.clone();
                Box::pin(async move { perform(tx, &work).await })
            });
            return self.source.transaction(&fence, body).await;
        }
        let mut attempt = 1;
        loop {
            match self.attempt(how, &fence, &work).await {
                Err(error) if attempt < ATTEMPTS && is_transient(&error) => attempt += 1,
                done => return done,
            }
        }
    }

    async fn attempt(&self, how: How, fence: &Configured, work: &Work) -> Result<i64, BoxError> {
        let set = format!("TRANSACTION ISOLATION LEVEL {}", how.level);
        let in_transaction = match self.dialect {
            Dialect::Postgres => format!("SET {set}"),
            Dialect::MySql | Dialect::Sqlite => String::new(),
        };
        if self.dialect == Dialect::MySql && how.form != Form::Guard {
            self.source.run(&format!("SET SESSION {set}")).await?;
        }
        let mut tx: Box<dyn Tx> = match how.form {
            Form::Guard | Form::Closure => self.source.begin(fence).await?,
            Form::Join => self.source.admit(&in_transaction, fence).await?,
            Form::Plain => {
                let mut tx = self.source.begin_unfenced().await?;
                if !in_transaction.is_empty() {
                    tx.run(&in_transaction).await?;
                }
                tx
            }
        };
        match perform(&mut *tx, work).await {
            Ok(number) => {
                tx.commit().await?;
                Ok(number)
            }
            Err(error) => {
                // The first error is the one that says something.
                let _ = tx.rollback().await;
                Err(error)
            }
        }
    }

    fn fence(&self, how: How) -> Result<Configured, BoxError> {
        let fence: Fence = match &self.ticket {
            Some(ticket) => ticket.fence(),
            None => return Err("it holds no lock".into()),
        };
        let options = self.options.clone().isolation(how.level.of_fencing());
        Ok(options.apply(fence))
    }

    /// Reads 1 if the transaction is on its level; nothing where that cannot be read.
    fn level_check(&self, how: How) -> Option<String> {
        let level = how.level.to_string();
        match self.dialect {
            Dialect::Postgres => Some(format!(
                "SELECT (current_setting('transaction_isolation') = '{}')::int::bigint",
                level.to_lowercase()
            )),
            // The variable is that of the session, which a transaction of its own level leaves alone.
            Dialect::MySql if matches!(how.form, Form::Join | Form::Plain) => {
                let variable = match self.is_mariadb {
                    true => "@@session.tx_isolation",
                    false => "@@session.transaction_isolation",
                };
                let level = level.replace(' ', "-");
                Some(format!("SELECT CAST({variable} = '{level}' AS SIGNED)"))
            }
            Dialect::MySql | Dialect::Sqlite => None,
        }
    }
}

async fn is_mariadb(source: &dyn Source) -> Result<bool, DriverError> {
    let mut tx = source.begin_unfenced().await?;
    let found = tx
        .number("SELECT CAST(VERSION() LIKE '%MariaDB%' AS SIGNED)")
        .await?;
    let ended = tx.rollback().await;
    ended.map_err(|error| DriverError::text(chain(&error)))?;
    Ok(found == Some(1))
}

/// What happens in a transaction.
#[derive(Clone)]
enum Work {
    Read {
        level: Option<String>,
        recorded: String,
        stock: String,
    },
    Write {
        /// The stock, then the deduction.
        statements: [String; 2],
        stop: Arc<Stopping>,
    },
}

/// The same statements in every form.
async fn perform(tx: &mut dyn Statements, work: &Work) -> Result<i64, BoxError> {
    match work {
        Work::Read {
            level,
            recorded,
            stock,
        } => {
            if let Some(level) = level
                && tx.number(level).await? != Some(1)
            {
                return Err("the transaction is not on the level that was asked for".into());
            }
            if tx.number(recorded).await? != Some(0) {
                return Ok(RECORDED);
            }
            let stock = tx.number(stock).await?;
            stock.ok_or_else(|| "the stock is gone".into())
        }
        Work::Write {
            statements: [update, insert],
            stop,
        } => {
            stop.inside(Stop::Begun, tx).await?;
            tx.run(update).await?;
            stop.inside(Stop::Updated, tx).await?;
            tx.run(insert).await?;
            stop.inside(Stop::Recorded, tx).await?;
            Ok(0)
        }
    }
}

/// A stock is never below zero, so this is none.
const RECORDED: i64 = -1;

/// Whether an application tries again: the driver failed, and no verdict came.
fn is_transient(error: &BoxError) -> bool {
    match error.downcast_ref::<Verdict>() {
        Some(verdict) => matches!(verdict, Verdict::Database(_)),
        None => error.downcast_ref::<DriverError>().is_some(),
    }
}

fn answer_of(error: &BoxError) -> Answer {
    match error.downcast_ref::<Verdict>() {
        Some(Verdict::Stale {
            offered, highest, ..
        }) => Answer::Stale {
            offered: offered.get(),
            highest: highest.get(),
        },
        _ => Answer::Failed {
            reason: chain(&**error),
        },
    }
}

/// An error with its causes, which often hold the words that matter.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}

/// Why a holder process did not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// Only the proof starts holders.
    #[error("{0} is not set: this command is for `highwater prove` itself")]
    Setting(&'static str),
    /// The URL in the environment is none.
    #[error(transparent)]
    Url(#[from] ChoiceError),
    /// The adapter does not get to the database.
    #[error("the adapter cannot open the database")]
    Open(#[source] DriverError),
    /// A defect of the proof.
    #[error(transparent)]
    Table(#[from] TableNameError),
    /// The pipes are broken.
    #[error("the proof cannot be talked to")]
    Pipe(#[from] io::Error),
}

/// Long enough to see the lease of another one end, on a slow machine too.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Tries of a transaction that fails for a reason that may pass.
const ATTEMPTS: u32 = 5;
