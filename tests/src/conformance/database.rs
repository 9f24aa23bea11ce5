//! The databases of the suite, and what is known to differ between them.
//!
//! A difference stands here as a named fact or statement, so that the cases themselves are the
//! same for all and each expectation that depends on the database says why.

use std::fmt::Write as _;
use std::time::Duration;

use highwater_fencing::migrate;
use highwater_proof::adapter::Dialect;

use crate::databases::{Kind, Release};

/// A database that the suite runs against.
#[derive(Debug)]
pub struct Database {
    /// Its name in the output.
    pub name: &'static str,
    /// The SQL that it speaks.
    pub dialect: Dialect,
    /// The server it needs; a file if none.
    pub server: Option<Kind>,
    /// Which release of it, where that is another one than the suite always runs on.
    pub further: Option<Release>,

    /// DDL ends the transaction it stands in.
    pub(super) ddl_commits: bool,
    /// What is written after the transaction was ended by raw SQL is kept (by the server's
    /// autocommit); elsewhere it is undone.
    pub(super) keeps_late_writes: bool,
    /// An error leaves the server's transaction aborted, so that not even a statement past the
    /// guard writes.
    pub(super) aborts_on_error: bool,
    /// A savepoint that was opened with raw SQL is noticed when the fence is taken in it.
    pub(super) notices_raw_savepoint: bool,

    /// How long nobody may have asked for the two below before the answer is a new one.
    pub(super) stale_for: Duration,
    /// Counts the sessions of this database that wait for a lock, where that can be asked.
    pub(super) waiting: Option<&'static str>,
    /// Counts the sessions of this database that are inside a transaction without doing anything,
    /// where that can be asked.
    pub(super) idle_in_transaction: Option<&'static str>,
    /// Gives the number of the session, where there is one.
    pub(super) session: Option<&'static str>,
}

impl Database {
    /// All of them.
    pub(super) const ALL: [&'static Self; 7] = [
        &SQLITE,
        &POSTGRES,
        &MYSQL,
        &MARIADB,
        &POSTGRES_17,
        &POSTGRES_18,
        &MARIADB_11_8,
    ];

    /// The release of the server, if it is one.
    pub(super) fn release(&self) -> Option<Release> {
        self.further.or(self.server.map(Release::from))
    }

    /// The column `key`, quoted.
    pub(super) fn key(&self) -> &'static str {
        match self.dialect {
            Dialect::Postgres => "key",
            Dialect::MySql => "`key`",
            Dialect::Sqlite => "\"key\"",
        }
    }

    /// The dialect of the migrations.
    pub(super) fn migrations(&self) -> migrate::Dialect {
        match self.dialect {
            Dialect::Postgres => migrate::Dialect::Postgres,
            Dialect::MySql => migrate::Dialect::MySql,
            Dialect::Sqlite => migrate::Dialect::Sqlite,
        }
    }

    /// Bytes as a literal.
    pub(super) fn bytes(&self, bytes: &[u8]) -> String {
        let hex = bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a string takes every write");
            text
        });
        match self.dialect {
            Dialect::Postgres => format!("'\\x{hex}'::bytea"),
            Dialect::MySql | Dialect::Sqlite => format!("x'{hex}'"),
        }
    }

    /// Ends the session with this number.
    pub(super) fn kill(&self, session: i64) -> String {
        match self.dialect {
            Dialect::Postgres => format!("SELECT pg_terminate_backend({session})"),
            Dialect::MySql => format!("KILL {session}"),
            Dialect::Sqlite => unreachable!("a file has no sessions"),
        }
    }
}

const MYSQL_SESSION: &str = "SELECT CAST(CONNECTION_ID() AS SIGNED)";

/// PostgreSQL.
pub(super) static POSTGRES: Database = ANY_POSTGRES;

const ANY_POSTGRES: Database = Database {
    name: "postgres",
    dialect: Dialect::Postgres,
    server: Some(Kind::Postgres),
    further: None,
    ddl_commits: false,
    keeps_late_writes: true,
    aborts_on_error: true,
    notices_raw_savepoint: true,
    stale_for: Duration::ZERO,
    waiting: Some(
        "SELECT COUNT(*) FROM pg_stat_activity \
         WHERE datname = current_database() AND wait_event_type = 'Lock'",
    ),
    idle_in_transaction: Some(
        "SELECT COUNT(*) FROM pg_stat_activity \
         WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
    ),
    session: Some("SELECT pg_backend_pid()::bigint"),
};

/// MySQL.
pub(super) static MYSQL: Database = Database {
    name: "mysql",
    dialect: Dialect::MySql,
    server: Some(Kind::MySql),
    further: None,
    ddl_commits: true,
    keeps_late_writes: false,
    aborts_on_error: false,
    notices_raw_savepoint: false,
    stale_for: Duration::ZERO,
    waiting: Some(
        "SELECT COUNT(*) FROM performance_schema.data_lock_waits w \
         JOIN performance_schema.threads t ON t.thread_id = w.requesting_thread_id \
         WHERE t.processlist_db = DATABASE()",
    ),
    idle_in_transaction: Some(
        "SELECT COUNT(*) FROM performance_schema.events_transactions_current e \
         JOIN performance_schema.threads t ON t.thread_id = e.thread_id \
         WHERE e.state = 'ACTIVE' AND t.processlist_command = 'Sleep' \
         AND t.processlist_db = DATABASE()",
    ),
    session: Some(MYSQL_SESSION),
};

/// MariaDB.
pub(super) static MARIADB: Database = ANY_MARIADB;

const ANY_MARIADB: Database = Database {
    name: "mariadb",
    dialect: Dialect::MySql,
    server: Some(Kind::MariaDb),
    further: None,
    ddl_commits: true,
    keeps_late_writes: false,
    aborts_on_error: false,
    notices_raw_savepoint: false,
    stale_for: Duration::from_millis(120),
    waiting: Some(
        "SELECT COUNT(*) FROM information_schema.innodb_trx t \
         JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
         WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()",
    ),
    idle_in_transaction: Some(
        "SELECT COUNT(*) FROM information_schema.innodb_trx t \
         JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
         WHERE p.command = 'Sleep' AND p.db = DATABASE()",
    ),
    session: Some(MYSQL_SESSION),
};

/// PostgreSQL 17.
pub(super) static POSTGRES_17: Database = Database {
    name: "postgres-17",
    further: Some(Release::POSTGRES_17),
    ..ANY_POSTGRES
};

/// PostgreSQL 18.
pub(super) static POSTGRES_18: Database = Database {
    name: "postgres-18",
    further: Some(Release::POSTGRES_18),
    ..ANY_POSTGRES
};

/// MariaDB 11.8, which refuses to lock a row that changed since the snapshot.
pub(super) static MARIADB_11_8: Database = Database {
    name: "mariadb-11.8",
    further: Some(Release::MARIADB_11_8),
    ..ANY_MARIADB
};

/// SQLite, as a file in WAL mode.
pub(super) static SQLITE: Database = Database {
    name: "sqlite",
    dialect: Dialect::Sqlite,
    server: None,
    further: None,
    ddl_commits: false,
    keeps_late_writes: false,
    aborts_on_error: false,
    notices_raw_savepoint: false,
    stale_for: Duration::ZERO,
    waiting: None,
    idle_in_transaction: None,
    session: None,
};
