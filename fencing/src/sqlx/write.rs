//! A fenced write of one row, in one round trip where that is right.

use std::fmt;
use std::sync::Arc;

use ::sqlx::error::BoxDynError;
use ::sqlx::pool::PoolConnection;
use ::sqlx::{Arguments as _, Database, Encode, Error, Pool, Type};
use futures_core::future::BoxFuture;
use highwater_lock::Fence;

use super::FenceError;
use super::dialect::Dialect;
use super::driver::Driver;
use super::fenced::{Fenced, is_transient};
use crate::retry::Retry;
use crate::sql;
use crate::sql::row::{Set, Shape, Slot, Verb};
use crate::{FenceOptions, TableName, Written, migrate};

/// A write of one row that is named by its primary key.
///
/// It says nothing but that: which row, and what its columns become, by themselves or by values of
/// yours. For such a write it makes no difference whether it was put together before or after
/// waiting for the fence. Conditions on other columns, values from queries, and several rows make a
/// difference, and cannot be said here: use
/// [`transaction`](super::SqlxFence::transaction) for them.
///
/// For the same reason, a value that you [`set`](Self::set) must not come from what you read before.
///
/// ```
/// use highwater_fencing::TableName;
/// use highwater_fencing::sqlx::RowWrite;
///
/// let stock = TableName::new("stock")?;
/// let write: RowWrite<'_, sqlx::Sqlite> =
///     RowWrite::update(stock, "sku", "apple").subtract("quantity", 2_i64).set("state", "picked");
/// # Ok::<(), highwater_fencing::TableNameError>(())
/// ```
///
/// Names are quoted: on PostgreSQL capital letters count.
#[derive(Clone)]
pub struct RowWrite<'v, Db: Database> {
    shape: Shape,
    names: Vec<Value<'v, Db>>,
    values: Vec<Value<'v, Db>>,
}

type Value<'v, Db> =
    Arc<dyn Fn(&mut <Db as Database>::Arguments) -> Result<(), BoxDynError> + Send + Sync + 'v>;

impl<'v, Db: Database> RowWrite<'v, Db> {
    /// Changes the row whose primary key has this value.
    ///
    /// It has to be the primary key, or unique: writing more than one row is an error on
    /// PostgreSQL and SQLite, but is not noticed on MySQL and MariaDB.
    pub fn update<T>(table: TableName, key: &str, value: T) -> Self
    where
        T: Encode<'v, Db> + Type<Db> + Clone + Send + Sync + 'v,
    {
        Self::new(Verb::Update, table).key(key, value)
    }

    /// Inserts a row with this primary key; if there is one already, that is the database's error.
    pub fn insert<T>(table: TableName, key: &str, value: T) -> Self
    where
        T: Encode<'v, Db> + Type<Db> + Clone + Send + Sync + 'v,
    {
        Self::new(Verb::Insert, table).key(key, value)
    }

    /// Deletes the row whose primary key has this value.
    pub fn delete<T>(table: TableName, key: &str, value: T) -> Self
    where
        T: Encode<'v, Db> + Type<Db> + Clone + Send + Sync + 'v,
    {
        Self::new(Verb::Delete, table).key(key, value)
    }

    fn new(verb: Verb, table: TableName) -> Self {
        Self {
            shape: Shape::new(verb, table),
            names: Vec::new(),
            values: Vec::new(),
        }
    }

    /// A further column of the primary key.
    #[must_use]
    pub fn key<T>(mut self, column: &str, value: T) -> Self
    where
        T: Encode<'v, Db> + Type<Db> + Clone + Send + Sync + 'v,
    {
        self.shape.name(column);
        self.names.push(encoded(value));
        self
    }

    /// The column becomes this value, which must not come from something that was read before.
    #[must_use]
    pub fn set<T>(self, column: &str, value: T) -> Self
    where
        T: Encode<'v, Db> + Type<Db> + Clone + Send + Sync + 'v,
    {
        self.column(column, Set::To, value)
    }

    /// The value is added to the column. In an insert the column begins with it.
    #[must_use]
    pub fn add<T>(self, column: &str, value: T) -> Self
    where
        T: Encode<'v, Db> + Type<Db> + Clone + Send + Sync + 'v,
    {
        self.column(column, Set::Plus, value)
    }

    /// The value is taken from the column. In an insert the column begins below zero by it.
    #[must_use]
    pub fn subtract<T>(self, column: &str, value: T) -> Self
    where
        T: Encode<'v, Db> + Type<Db> + Clone + Send + Sync + 'v,
    {
        self.column(column, Set::Minus, value)
    }

    fn column<T>(mut self, column: &str, set: Set, value: T) -> Self
    where
        T: Encode<'v, Db> + Type<Db> + Clone + Send + Sync + 'v,
    {
        self.shape.set(column, set);
        self.values.push(encoded(value));
        self
    }
}

impl<Db: Database> fmt::Debug for RowWrite<'_, Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RowWrite").field(&self.shape).finish()
    }
}

fn encoded<'v, Db, T>(value: T) -> Value<'v, Db>
where
    Db: Database,
    T: Encode<'v, Db> + Type<Db> + Clone + Send + Sync + 'v,
{
    Arc::new(move |arguments| arguments.add(value.clone()))
}

/// What each database does for the write of a row.
#[expect(
    unnameable_types,
    reason = "sealed: implemented for the databases below only"
)]
pub trait Write: Driver {
    const DIALECT: migrate::Dialect;

    /// Adds a value of the fence.
    #[doc(hidden)]
    fn bind(arguments: &mut Self::Arguments, value: OfFence<'_>) -> Result<(), BoxDynError>;

    /// Runs a statement and gives the number of rows.
    #[doc(hidden)]
    fn run(
        conn: &mut Self::Connection,
        sql: String,
        arguments: Self::Arguments,
    ) -> BoxFuture<'_, Result<u64, Error>>;

    /// Whether the answer means that the statement wrote, or that it did nothing at all; anything
    /// else is an error.
    #[doc(hidden)]
    fn wrote(answer: Result<u64, Error>) -> Result<bool, Error>;

    /// Whether an error is the server's word that nothing was written.
    #[doc(hidden)]
    fn is_answer(error: &Error) -> bool;
}

/// A value that a fence has for a statement.
#[derive(Debug)]
#[expect(unnameable_types, reason = "part of a sealed trait")]
pub enum OfFence<'a> {
    Bytes(&'a [u8]),
    Number(Option<i64>),
}

macro_rules! write {
    ($feature:literal, $database:ident, $dialect:ident, $wrote:expr, $is_answer:expr) => {
        #[cfg(feature = $feature)]
        impl Write for ::sqlx::$database {
            const DIALECT: migrate::Dialect = migrate::Dialect::$dialect;

            fn bind(
                arguments: &mut Self::Arguments,
                value: OfFence<'_>,
            ) -> Result<(), BoxDynError> {
                match value {
                    OfFence::Bytes(bytes) => arguments.add(bytes.to_vec()),
                    OfFence::Number(number) => arguments.add(number),
                }
            }

            fn run(
                conn: &mut Self::Connection,
                sql: String,
                arguments: Self::Arguments,
            ) -> BoxFuture<'_, Result<u64, Error>> {
                Box::pin(async move {
                    let query = ::sqlx::query_with(::sqlx::AssertSqlSafe(sql), arguments);
                    Ok(query.execute(conn).await?.rows_affected())
                })
            }

            fn wrote(answer: Result<u64, Error>) -> Result<bool, Error> {
                $wrote(answer)
            }

            fn is_answer(error: &Error) -> bool {
                $is_answer(error)
            }
        }
    };
}

write!(
    "sqlx-postgres",
    Postgres,
    Postgres,
    |answer: Result<u64, Error>| match answer {
        Ok(_) => Ok(true),
        Err(error) => match error.as_database_error() {
            Some(refused)
                if sql::row::is_not_written(
                    &refused.code().unwrap_or_default(),
                    refused.message()
                ) =>
                Ok(false),
            _ => Err(error),
        },
    },
    super::postgres::is_answer
);
write!(
    "sqlx-mysql",
    MySql,
    MySql,
    |answer: Result<u64, Error>| match answer {
        Ok(rows) => Ok(rows > 0),
        // A trigger of a protected table, which may be asked before the mark was written.
        Err(error) if super::mysql::is_signal(&error) => Ok(false),
        Err(error) => Err(error),
    },
    super::mysql::is_answer
);
write!(
    "sqlx-sqlite",
    Sqlite,
    Sqlite,
    |answer: Result<u64, Error>| answer.map(|rows| rows > 0),
    |_: &Error| true
);

/// See [`SqlxFence::write`](super::SqlxFence::write).
pub(crate) async fn write<Db: Dialect>(
    pool: &Pool<Db>,
    (fence, options): (&Fence, &FenceOptions),
    write: &RowWrite<'_, Db>,
) -> Result<Written, FenceError> {
    sql::check_range(fence)?;
    if !write.shape.is_complete() {
        let text = "an update that sets no column".to_owned();
        return Err(FenceError::Database(Error::Protocol(text)));
    }
    let mut retry = Retry::new(options.budget());
    loop {
        match attempt(pool, fence, options, write).await {
            Err(error) if is_transient::<Db>(&error) && retry.again().await => {}
            result => return result,
        }
    }
}

/// In one statement where there is one. What did not work there is done, and explained, by a
/// transaction: a fence that refuses, a row that is not there or was not there when the statement
/// began, a mark that is the first of its key on MySQL.
async fn attempt<Db: Dialect>(
    pool: &Pool<Db>,
    fence: &Fence,
    options: &FenceOptions,
    write: &RowWrite<'_, Db>,
) -> Result<Written, FenceError> {
    if let Some(statement) = write.shape.with_fence(Db::DIALECT, options, fence) {
        let arguments = arguments::<Db>(&statement.1, fence, write)?;
        let mut conn = Unfinished(Some(pool.acquire().await.map_err(FenceError::Database)?));
        let answer = Db::run(conn.connection(), statement.0, arguments).await;
        match Db::wrote(answer) {
            Ok(wrote) => {
                conn.finished();
                if wrote {
                    return Ok(Written::Applied);
                }
            }
            Err(error) if Db::is_answer(&error) => {
                conn.finished();
                // A missing table of marks is among these: the transaction explains it.
                if Db::class(&error) != sql::Class::NoTable {
                    return Err(FenceError::Database(error));
                }
            }
            // Without a word of the server nobody knows.
            Err(error) => return Err(FenceError::Unknown(error)),
        }
    }
    let (text, slots) = write.shape.alone(Db::DIALECT);
    let arguments = arguments::<Db>(&slots, fence, write)?;
    let mut tx = Fenced::<'static, Db>::begin(pool, fence, options).await?;
    let rows = Db::run(tx.connection(), text, arguments).await;
    match rows.map_err(FenceError::Database) {
        Ok(1) => tx.commit().await.map(|()| Written::Applied),
        Ok(0) => {
            tx.rollback().await?;
            Ok(Written::NoRow)
        }
        Ok(rows) => {
            tx.rollback().await?;
            let text = format!("the key names {rows} rows: it is not the primary key");
            Err(FenceError::Database(Error::Protocol(text)))
        }
        Err(error) => {
            tx.rollback().await.ok();
            Err(error)
        }
    }
}

fn arguments<Db: Dialect>(
    slots: &[Slot],
    fence: &Fence,
    write: &RowWrite<'_, Db>,
) -> Result<Db::Arguments, FenceError> {
    let number = |number: u64| i64::try_from(number).expect("the range was checked before");
    let mut arguments = Db::Arguments::default();
    for slot in slots {
        let marks = fence.marks();
        let added = match *slot {
            Slot::Name(index) => (write.names[index])(&mut arguments),
            Slot::Value(index) => (write.values[index])(&mut arguments),
            Slot::Key(index) => {
                Db::bind(&mut arguments, OfFence::Bytes(marks[index].key.as_bytes()))
            }
            Slot::Token(index) => {
                let token = number(marks[index].token.get());
                Db::bind(&mut arguments, OfFence::Number(Some(token)))
            }
            Slot::Domain => Db::bind(
                &mut arguments,
                OfFence::Bytes(&fence.domain().as_bytes()[..]),
            ),
            Slot::Step => {
                let step = fence.step().map(|step| number(step.get()));
                Db::bind(&mut arguments, OfFence::Number(step))
            }
        };
        added.map_err(|error| FenceError::Database(Error::Encode(error)))?;
    }
    Ok(arguments)
}

/// A connection whose statement is under way. Dropped before its answer came, it is closed.
struct Unfinished<Db: Dialect>(Option<PoolConnection<Db>>);

impl<Db: Dialect> Unfinished<Db> {
    fn connection(&mut self) -> &mut Db::Connection {
        self.0.as_mut().expect("held until it is finished")
    }

    fn finished(&mut self) {
        self.0 = None;
    }
}

impl<Db: Dialect> Drop for Unfinished<Db> {
    fn drop(&mut self) {
        if let Some(conn) = &mut self.0 {
            conn.close_on_drop();
        }
    }
}
