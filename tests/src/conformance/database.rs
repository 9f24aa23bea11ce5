//! The databases of the suite, and what is known to differ between them.
//!
//! A difference stands here as a named constant or statement, so that the cases themselves are the
//! same for all and each expectation that depends on the database says why.

use std::time::Duration;

use sqlx::{MySql, Postgres, Sqlite};

use super::backend::Backend;
use crate::databases::Kind;

/// A database that the suite runs against.
pub trait Database: Sized + Send + Sync + 'static {
    /// Its driver.
    type Db: Backend;
    /// Its name in the output.
    const NAME: &'static str;
    /// The server it needs; a file if none.
    const SERVER: Option<Kind>;

    /// DDL ends the transaction it stands in.
    const DDL_COMMITS: bool = false;
    /// A raw `COMMIT` inside a fenced transaction is refused already when it is sent.
    const REFUSES_RAW_COMMIT: bool = false;
    /// What is written after the transaction was ended by raw SQL is kept (by the server's
    /// autocommit); elsewhere it is undone.
    const KEEPS_LATE_WRITES: bool = false;
    /// An error leaves the server's transaction aborted, so that not even `connection()` writes.
    const ABORTS_ON_ERROR: bool = false;
    /// A savepoint that was opened with raw SQL is noticed when the fence is taken in it.
    const NOTICES_RAW_SAVEPOINT: bool = false;

    /// How long nobody may have asked for the two below before the answer is a new one.
    const STALE_FOR: Duration = Duration::ZERO;
    /// Counts the sessions of this database that wait for a lock, where that can be asked.
    const WAITING: Option<&'static str>;
    /// Counts the sessions of this database that are inside a transaction without doing anything,
    /// where that can be asked.
    const IDLE_IN_TRANSACTION: Option<&'static str>;
    /// Gives the number of the session, where there is one.
    const SESSION: Option<&'static str>;
    /// Ends the session with this number.
    fn kill(session: i64) -> String;
}

const MYSQL_SESSION: &str = "SELECT CAST(CONNECTION_ID() AS SIGNED)";

/// PostgreSQL.
#[derive(Debug)]
pub struct OnPostgres;

impl Database for OnPostgres {
    type Db = Postgres;
    const NAME: &'static str = "postgres";
    const SERVER: Option<Kind> = Some(Kind::Postgres);
    const KEEPS_LATE_WRITES: bool = true;
    const ABORTS_ON_ERROR: bool = true;
    const NOTICES_RAW_SAVEPOINT: bool = true;
    const WAITING: Option<&'static str> = Some(
        "SELECT COUNT(*) FROM pg_stat_activity \
         WHERE datname = current_database() AND wait_event_type = 'Lock'",
    );
    const IDLE_IN_TRANSACTION: Option<&'static str> = Some(
        "SELECT COUNT(*) FROM pg_stat_activity \
         WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
    );
    const SESSION: Option<&'static str> = Some("SELECT pg_backend_pid()::bigint");

    fn kill(session: i64) -> String {
        format!("SELECT pg_terminate_backend({session})")
    }
}

/// MySQL.
#[derive(Debug)]
pub struct OnMySql;

impl Database for OnMySql {
    type Db = MySql;
    const NAME: &'static str = "mysql";
    const SERVER: Option<Kind> = Some(Kind::MySql);
    const DDL_COMMITS: bool = true;
    const WAITING: Option<&'static str> = Some(
        "SELECT COUNT(*) FROM performance_schema.data_lock_waits w \
         JOIN performance_schema.threads t ON t.thread_id = w.requesting_thread_id \
         WHERE t.processlist_db = DATABASE()",
    );
    const IDLE_IN_TRANSACTION: Option<&'static str> = Some(
        "SELECT COUNT(*) FROM performance_schema.events_transactions_current e \
         JOIN performance_schema.threads t ON t.thread_id = e.thread_id \
         WHERE e.state = 'ACTIVE' AND t.processlist_command = 'Sleep' \
         AND t.processlist_db = DATABASE()",
    );
    const SESSION: Option<&'static str> = Some(MYSQL_SESSION);

    fn kill(session: i64) -> String {
        format!("KILL {session}")
    }
}

/// MariaDB.
#[derive(Debug)]
pub struct OnMariaDb;

impl Database for OnMariaDb {
    type Db = MySql;
    const NAME: &'static str = "mariadb";
    const SERVER: Option<Kind> = Some(Kind::MariaDb);
    const DDL_COMMITS: bool = true;
    const STALE_FOR: Duration = Duration::from_millis(120);
    const WAITING: Option<&'static str> = Some(
        "SELECT COUNT(*) FROM information_schema.innodb_trx t \
         JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
         WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()",
    );
    const IDLE_IN_TRANSACTION: Option<&'static str> = Some(
        "SELECT COUNT(*) FROM information_schema.innodb_trx t \
         JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
         WHERE p.command = 'Sleep' AND p.db = DATABASE()",
    );
    const SESSION: Option<&'static str> = Some(MYSQL_SESSION);

    fn kill(session: i64) -> String {
        format!("KILL {session}")
    }
}

/// SQLite, as a file in WAL mode.
#[derive(Debug)]
pub struct OnSqlite;

impl Database for OnSqlite {
    type Db = Sqlite;
    const NAME: &'static str = "sqlite";
    const SERVER: Option<Kind> = None;
    const REFUSES_RAW_COMMIT: bool = true;
    const WAITING: Option<&'static str> = None;
    const IDLE_IN_TRANSACTION: Option<&'static str> = None;
    const SESSION: Option<&'static str> = None;

    fn kill(_session: i64) -> String {
        String::new()
    }
}
