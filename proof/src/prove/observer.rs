//! The tables of the proof, seen from outside of every adapter: made, filled, read, dropped.

use std::time::Duration;

use highwater_fencing::migrate::{self, Dialect as Migrated};
use highwater_fencing::{TableName, TableNameError};
use sqlx::pool::PoolOptions;
use sqlx::{
    AssertSqlSafe, Connection as _, Error, MySqlConnection, MySqlPool, PgConnection, PgPool,
    SqliteConnection, SqlitePool,
};
use tokio::time::timeout;

use crate::adapter::Dialect;

use super::count::{Damage, Deduction, Order, count};
use super::round::Shelf;

pub(super) const STOCK: &str = "highwater_prove_stock";
pub(super) const ORDERS: &str = "highwater_prove_orders";
pub(super) const FENCE: &str = "highwater_prove_fence";
/// All tables of the proof, and the only ones that it touches.
pub(super) const TABLES: [&str; 3] = [STOCK, ORDERS, FENCE];

/// Connections that belong to no adapter.
pub(super) enum Observer {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

/// Runs the same on whichever database it is.
macro_rules! on {
    ($observer:expr, $pool:ident => $call:expr) => {
        match $observer {
            Observer::Postgres($pool) => $call,
            Observer::MySql($pool) => $call,
            Observer::Sqlite($pool) => $call,
        }
    };
}

impl Observer {
    pub(super) async fn connect(dialect: Dialect, url: &str) -> Result<Self, ObserverError> {
        // A pool goes on trying until it gives up without a reason; a single attempt has one.
        let attempt = async {
            match dialect {
                Dialect::Postgres => PgConnection::connect(url).await?.close().await,
                Dialect::MySql => MySqlConnection::connect(url).await?.close().await,
                Dialect::Sqlite => SqliteConnection::connect(url).await?.close().await,
            }
        };
        let attempt = timeout(CONNECT_TIME, attempt).await;
        let attempt = attempt.map_err(|_| ObserverError::Unreachable)?;
        attempt.map_err(ObserverError::Connect)?;
        let opened = match dialect {
            Dialect::Postgres => PoolOptions::new()
                .max_connections(1)
                .connect(url)
                .await
                .map(Self::Postgres),
            Dialect::MySql => PoolOptions::new()
                .max_connections(1)
                .connect(url)
                .await
                .map(Self::MySql),
            Dialect::Sqlite => PoolOptions::new()
                .max_connections(1)
                .connect(url)
                .await
                .map(Self::Sqlite),
        };
        opened.map_err(ObserverError::Connect)
    }

    pub(super) async fn version(&self) -> Result<Version, ObserverError> {
        let text = match self {
            Self::Postgres(_) => self.text("SHOW server_version").await?,
            Self::MySql(_) => self.text("SELECT CAST(VERSION() AS CHAR)").await?,
            Self::Sqlite(_) => self.text("SELECT sqlite_version()").await?,
        };
        Ok(Version::of(&text))
    }

    /// Makes the tables, with that many shelves.
    ///
    /// # Errors
    /// One of them is there already: nothing is touched then.
    pub(super) async fn create(&self, shelves: usize) -> Result<(), ObserverError> {
        for table in TABLES {
            if self.number(&self.finds(table)).await? != 0 {
                return Err(ObserverError::Exists {
                    table,
                    drop: DROP.join("; "),
                });
            }
        }
        if let Self::Sqlite(_) = self
            && self.number("SELECT count(*) FROM sqlite_schema").await? == 0
        {
            // A file of our own. Somebody's is left in the mode that it has.
            self.run("PRAGMA journal_mode = WAL").await?;
        }
        let mut created = Vec::new();
        let made = self.make(shelves, &mut created).await;
        if made.is_err() {
            // Only what this run has made: another one may be making the rest.
            for statement in created {
                let _ = self.run(statement).await;
            }
        }
        made
    }

    async fn make(
        &self,
        shelves: usize,
        created: &mut Vec<&'static str>,
    ) -> Result<(), ObserverError> {
        let (options, marks) = match self {
            // Planned without statistics, single rows are found by index: a scan of the whole table
            // would make all rounds collide on SERIALIZABLE.
            Self::Postgres(_) => (
                " WITH (autovacuum_enabled = off, fillfactor = 50)",
                Migrated::Postgres,
            ),
            Self::MySql(_) => (" ENGINE = InnoDB", Migrated::MySql),
            Self::Sqlite(_) => ("", Migrated::Sqlite),
        };
        let failed = |error| ObserverError::Create { source: error };
        self.try_run(&format!(
            "CREATE TABLE {STOCK} (sku bigint PRIMARY KEY, quantity bigint NOT NULL){options}"
        ))
        .await
        .map_err(failed)?;
        created.push(DROP[0]);
        self.try_run(&format!(
            "CREATE TABLE {ORDERS} (deduction bigint PRIMARY KEY, order_id bigint NOT NULL, \
             sku bigint NOT NULL, quantity bigint NOT NULL){options}"
        ))
        .await
        .map_err(failed)?;
        created.push(DROP[1]);
        self.try_run(&format!(
            "CREATE INDEX {ORDERS}_order ON {ORDERS} (order_id)"
        ))
        .await
        .map_err(failed)?;
        let table = TableName::new(FENCE)?;
        self.try_run(&migrate::print(marks, &table))
            .await
            .map_err(failed)?;
        created.push(DROP[2]);
        let numbers: Vec<_> = (0..shelves as i64).collect();
        for some in numbers.chunks(500) {
            let rows: Vec<_> = some
                .iter()
                .map(|shelf| format!("({shelf}, {})", Shelf::FULL))
                .collect();
            let rows = rows.join(", ");
            self.run(&format!(
                "INSERT INTO {STOCK} (sku, quantity) VALUES {rows}"
            ))
            .await?;
        }
        Ok(())
    }

    /// What is wrong on one shelf, whose orders are these.
    pub(super) async fn damage(
        &self,
        shelf: Shelf,
        orders: &[Order],
    ) -> Result<Damage, ObserverError> {
        let sku = shelf.0;
        let after = format!("SELECT quantity FROM {STOCK} WHERE sku = {sku}");
        let after = self.number(&after).await?;
        // In a range of the primary key would be less to scan; but this is what is asked.
        let recorded = format!("SELECT order_id, quantity FROM {ORDERS} WHERE sku = {sku}");
        let recorded: Vec<(i64, i64)> = on!(self, pool => {
            sqlx::query_as(AssertSqlSafe(recorded)).fetch_all(pool).await?
        });
        let recorded: Vec<_> = recorded
            .into_iter()
            .map(|(order, quantity)| Deduction { order, quantity })
            .collect();
        Ok(count(Shelf::FULL, after, orders, &recorded))
    }

    /// Ends a session of the same role, as a server does with one that is idle for too long.
    pub(super) async fn end_session(&self, session: i64) -> Result<(), Error> {
        match self {
            Self::Postgres(_) => {
                let end = format!("SELECT pg_terminate_backend({session}::int)");
                self.try_run(&end).await
            }
            Self::MySql(_) => self.try_run(&format!("KILL {session}")).await,
            // There is no server, so no holder has told a session.
            Self::Sqlite(_) => Ok(()),
        }
    }

    pub(super) async fn drop_tables(&self) -> Result<(), ObserverError> {
        for statement in DROP {
            self.run(statement).await?;
        }
        on!(self, pool => pool.close().await);
        Ok(())
    }

    /// Counts the tables of this name, where the proof would make one.
    fn finds(&self, table: &str) -> String {
        match self {
            Self::Postgres(_) => {
                format!(
                    "SELECT count(*) FROM pg_catalog.pg_class WHERE oid = to_regclass('{table}')"
                )
            }
            Self::MySql(_) => format!(
                "SELECT count(*) FROM information_schema.tables \
                 WHERE table_schema = DATABASE() AND table_name = '{table}'"
            ),
            Self::Sqlite(_) => {
                format!("SELECT count(*) FROM sqlite_schema WHERE name = '{table}'")
            }
        }
    }

    async fn run(&self, sql: &str) -> Result<(), ObserverError> {
        Ok(self.try_run(sql).await?)
    }

    async fn try_run(&self, sql: &str) -> Result<(), Error> {
        on!(self, pool => sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await.map(drop))
    }

    async fn number(&self, sql: &str) -> Result<i64, ObserverError> {
        Ok(on!(self, pool => sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await)?)
    }

    async fn text(&self, sql: &str) -> Result<String, ObserverError> {
        Ok(on!(self, pool => sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await)?)
    }
}

const DROP: [&str; 3] = [
    "DROP TABLE highwater_prove_stock",
    "DROP TABLE highwater_prove_orders",
    "DROP TABLE highwater_prove_fence",
];

/// Which server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) number: String,
    is_mariadb: bool,
}

impl Version {
    fn of(text: &str) -> Self {
        let end = text.find(['-', ' ']).unwrap_or(text.len());
        Self {
            number: text[..end].to_owned(),
            is_mariadb: text.contains("MariaDB"),
        }
    }

    pub(super) fn database(&self, dialect: Dialect) -> &'static str {
        match dialect {
            Dialect::Postgres => "PostgreSQL",
            Dialect::MySql if self.is_mariadb => "MariaDB",
            Dialect::MySql => "MySQL",
            Dialect::Sqlite => "SQLite",
        }
    }
}

/// What the database refuses the proof itself. No variant shows the URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObserverError {
    /// Nothing answers at the address of the URL.
    #[error("the database does not answer within {} s", CONNECT_TIME.as_secs())]
    Unreachable,
    /// The database refuses the connection.
    #[error("the database cannot be connected to")]
    Connect(#[source] Error),
    /// Another run is at work, or one was killed. Its tables are not touched.
    #[error(
        "table {table} is there already: another proof is running in this database, or one was \
         killed; in the latter case: {drop}"
    )]
    Exists {
        /// The first of the tables that exist.
        table: &'static str,
        /// The statements that remove them all.
        drop: String,
    },
    /// The tables could not be made.
    #[error(
        "the tables of the proof were not created; the role needs to create, index, write and drop \
         tables: on PostgreSQL CREATE on the schema, on MySQL and MariaDB CREATE, INDEX, DROP, \
         SELECT, INSERT, UPDATE and DELETE on {}",
        TABLES.join(", ")
    )]
    Create {
        /// What the database said.
        source: Error,
    },
    /// A defect of the proof.
    #[error(transparent)]
    Table(#[from] TableNameError),
    /// A statement of the proof failed.
    #[error("the tables of the proof could not be read or written")]
    Database(#[from] Error),
}

const CONNECT_TIME: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_its_number_and_its_maker() {
        let of = |text: &str| {
            let version = Version::of(text);
            let maker = version.database(Dialect::MySql);
            (version.number, maker)
        };
        assert_eq!(of("9.7.4"), ("9.7.4".to_owned(), "MySQL"));
        let debian = "10.11.14-MariaDB-0+deb12u2";
        assert_eq!(of(debian), ("10.11.14".to_owned(), "MariaDB"));
        let postgres = Version::of("15.18 (Debian 15.18-0+deb12u1)");
        assert_eq!(postgres.number, "15.18");
    }

    #[test]
    fn what_is_created_is_what_is_dropped() {
        for (table, statement) in TABLES.iter().zip(DROP) {
            assert_eq!(statement, format!("DROP TABLE {table}"));
        }
    }
}
