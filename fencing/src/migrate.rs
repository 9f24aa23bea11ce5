//! Creates the table of marks, or prints its SQL.
//!
//! The source of truth is the folder `migrations/` of the repository; it is compiled in. Nothing is
//! recorded about what was applied: the statements are repeatable, and whether the table is there
//! is the state. So there is no bookkeeping table to collide with that of sqlx, diesel or refinery,
//! and it makes no difference whether the table came from here, from `highwater migrate` or from
//! your own migrations.
//!
//! ```no_run
//! # async fn start(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! highwater_fencing::migrate::postgres::run(&pool).await?;
//! # Ok(())
//! # }
//! ```

mod files;

pub use files::{File, Format, Migration, next_number};

use crate::TableName;
use crate::protect::{in_schema, open_name};

/// A database whose SQL is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// PostgreSQL 13 and later.
    Postgres,
    /// MySQL 8 and MariaDB 10.6, and later.
    MySql,
    /// SQLite 3.37 and later.
    Sqlite,
}

impl Dialect {
    pub(crate) fn quote(self) -> char {
        match self {
            Self::MySql => '`',
            Self::Postgres | Self::Sqlite => '"',
        }
    }
}

/// The SQL that creates the table of marks, to be copied into your own migrations.
///
/// It can be run any number of times.
pub fn print(dialect: Dialect, table: &TableName) -> String {
    named(
        dialect,
        table,
        match dialect {
            Dialect::Postgres => {
                include_str!("../../migrations/postgres/0001_highwater_fence.up.sql")
            }
            Dialect::MySql => include_str!("../../migrations/mysql/0001_highwater_fence.up.sql"),
            Dialect::Sqlite => include_str!("../../migrations/sqlite/0001_highwater_fence.up.sql"),
        },
    )
}

/// The SQL that drops the table of marks.
///
/// It forgets every mark, and afterwards a stale holder is admitted: stop all fenced writers first.
pub fn print_down(dialect: Dialect, table: &TableName) -> String {
    named(
        dialect,
        table,
        match dialect {
            Dialect::Postgres => {
                include_str!("../../migrations/postgres/0001_highwater_fence.down.sql")
            }
            Dialect::MySql => include_str!("../../migrations/mysql/0001_highwater_fence.down.sql"),
            Dialect::Sqlite => {
                include_str!("../../migrations/sqlite/0001_highwater_fence.down.sql")
            }
        },
    )
}

/// The SQL that [`protect`](crate::protect) builds on, to be applied after [`print()`]'s; what it needs
/// is said in its first lines. It protects no table yet.
///
/// It can be run any number of times. What it creates, it creates in the schema of `table`, or where
/// the database creates things by default if the name has none; on PostgreSQL always there.
pub fn print_protect(dialect: Dialect, table: &TableName) -> String {
    beside(
        dialect,
        table,
        match dialect {
            Dialect::Postgres => {
                include_str!("../../migrations/postgres/0002_highwater_protect.up.sql")
            }
            Dialect::MySql => include_str!("../../migrations/mysql/0002_highwater_protect.up.sql"),
            Dialect::Sqlite => {
                include_str!("../../migrations/sqlite/0002_highwater_protect.up.sql")
            }
        },
    )
}

/// The SQL that takes away what [`print_protect`] gave. On PostgreSQL it also takes the protection
/// off every table; elsewhere do that first, or they refuse every write.
pub fn print_protect_down(dialect: Dialect, table: &TableName) -> String {
    beside(
        dialect,
        table,
        match dialect {
            Dialect::Postgres => {
                include_str!("../../migrations/postgres/0002_highwater_protect.down.sql")
            }
            Dialect::MySql => {
                include_str!("../../migrations/mysql/0002_highwater_protect.down.sql")
            }
            Dialect::Sqlite => {
                include_str!("../../migrations/sqlite/0002_highwater_protect.down.sql")
            }
        },
    )
}

/// Replaces the names of the things that stand beside the table of marks, and then its own.
fn beside(dialect: Dialect, table: &TableName, sql: &str) -> String {
    if *table == TableName::DEFAULT {
        return sql.to_owned();
    }
    let quote = dialect.quote();
    let name = |end: &str| in_schema(table, &format!("{}_{end}", table.name()), quote);
    let mut sql = sql
        .replace("highwater_fence_insert", &name("insert"))
        .replace("highwater_fence_update", &name("update"))
        .replace(
            "'highwater_fence'",
            &format!("'{}'", quoted_in_text(dialect, table)),
        );
    if let (Dialect::MySql, Some(schema)) = (dialect, table.schema()) {
        sql = sql.replace("DATABASE()", &format!("'{schema}'"));
    }
    if dialect == Dialect::Sqlite {
        // A statement inside a trigger, and a reference, name no schema.
        let open = format!("\"{}\"", open_name(table));
        sql = sql
            .replace(
                "EXISTS highwater_open",
                &format!("EXISTS {}", in_schema(table, &open_name(table), quote)),
            )
            .replace("highwater_open", &open)
            .replace("ON highwater_fence", &format!("ON \"{}\"", table.name()));
    }
    named(dialect, table, &sql)
}

/// The name as a value: that of a regclass on PostgreSQL, of a row of the catalogue elsewhere.
fn quoted_in_text(dialect: Dialect, table: &TableName) -> String {
    match dialect {
        Dialect::Postgres => table.quoted('"'),
        Dialect::MySql | Dialect::Sqlite => table.name().to_owned(),
    }
}

/// All migrations of a dialect, in the order in which they are applied: the table of marks, which
/// every program needs, and what [`protect`](crate::protect) builds on.
pub fn migrations(dialect: Dialect, table: &TableName) -> Vec<Migration> {
    let name = |what: &str| match (table.schema(), table.name()) {
        _ if *table == TableName::DEFAULT => what.to_owned(),
        (Some(schema), name) => format!("{what}_{schema}_{name}"),
        (None, name) => format!("{what}_{name}"),
    };
    vec![
        Migration::new(
            name("highwater_fence"),
            print(dialect, table),
            print_down(dialect, table),
        ),
        Migration::new(
            name("highwater_protect"),
            print_protect(dialect, table),
            print_protect_down(dialect, table),
        ),
    ]
}

fn named(dialect: Dialect, table: &TableName, sql: &str) -> String {
    if *table == TableName::DEFAULT {
        return sql.to_owned();
    }
    sql.replace(TableName::DEFAULT.name(), &table.quoted(dialect.quote()))
}

/// SQL that reads nothing, but fails if a column of the table of marks is missing.
#[cfg(any(
    feature = "__diesel",
    feature = "__sqlx",
    feature = "mysql-async",
    feature = "rusqlite",
    feature = "tokio-postgres"
))]
pub(crate) fn probe(quoted_table: &str, quoted_key: &str) -> String {
    format!("SELECT {quoted_key}, domain, token, step, updated_at FROM {quoted_table} WHERE 1 = 0")
}

/// What a migration found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The table was created.
    Created,
    /// The table was there, with the columns it needs.
    Present,
}

/// Why the table of marks could not be brought about; `D` is the driver's error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError<D> {
    /// There is a table of this name without the columns that are needed. It is something else, or
    /// it was made for another version: choose another name (see
    /// [`FenceOptions::table`](crate::FenceOptions::table)) or look at what it is.
    #[error(
        "table {table} exists, but it is not a table of marks with the columns that this version \
         of highwater needs"
    )]
    ForeignTable {
        /// The name.
        table: TableName,
        /// What the database said.
        source: D,
    },
    /// The driver or the database failed. Nothing was changed; the call can be repeated.
    #[error("the table of marks was not created")]
    Database(#[source] D),
}

/// Why the table of marks could not be brought about through sqlx.
#[cfg(feature = "__sqlx")]
pub type Error = MigrateError<::sqlx::Error>;

#[cfg(feature = "sqlx-mysql")]
pub use crate::sqlx::migrate::mysql;
#[cfg(feature = "sqlx-postgres")]
pub use crate::sqlx::migrate::postgres;
#[cfg(feature = "sqlx-sqlite")]
pub use crate::sqlx::migrate::sqlite;

/// Creates the table of marks through diesel.
#[cfg(feature = "__diesel")]
pub mod diesel {
    pub use crate::diesel::migrate::{run, run_for};
}

/// Creates the table of marks in PostgreSQL through tokio-postgres.
#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres {
    pub use crate::tokio_postgres::migrate::{run, run_for};
}

/// Creates the table of marks in SQLite through rusqlite.
#[cfg(feature = "rusqlite")]
pub mod rusqlite {
    pub use crate::rusqlite::migrate::{run, run_for};
}

/// Creates the table of marks in PostgreSQL, MySQL or MariaDB through diesel-async.
#[cfg(feature = "__diesel-async")]
pub mod diesel_async {
    pub use crate::diesel_async::migrate::{run, run_for};
}

/// Creates the table of marks through sea-orm.
#[cfg(feature = "__sea-orm")]
pub mod sea_orm {
    pub use crate::sea_orm::migrate::{run, run_for};
}

/// Creates the table of marks in MySQL or MariaDB through mysql_async.
#[cfg(feature = "mysql-async")]
pub mod mysql_async {
    pub use crate::mysql_async::migrate::{run, run_for};
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Dialect; 3] = [Dialect::Postgres, Dialect::MySql, Dialect::Sqlite];

    #[test]
    fn the_default_name_is_printed_as_it_stands_in_the_file() {
        for dialect in ALL {
            let sql = print(dialect, &TableName::DEFAULT);
            assert!(sql.contains("IF NOT EXISTS highwater_fence ("), "{sql}");
        }
    }

    #[test]
    fn another_name_replaces_it_everywhere() {
        let table = TableName::new("app.marks").unwrap();
        for dialect in ALL {
            for sql in [print(dialect, &table), print_down(dialect, &table)] {
                assert!(!sql.contains("highwater_fence"), "{sql}");
                assert!(sql.contains(&table.quoted(dialect.quote())), "{sql}");
            }
            for sql in [
                print_protect(dialect, &table),
                print_protect_down(dialect, &table),
            ] {
                assert!(!sql.contains("highwater_fence"), "{sql}");
            }
        }
    }
}
