//! `highwater migrate`: brings the fencing table into a database, or prints its SQL.
//!
//! The SQL is the fencing crate's; here is only which database is meant and how it is reached.

use std::time::Duration;

use clap::{Args, ValueEnum};
use highwater_fencing::TableName;
use highwater_fencing::migrate::{self, Outcome};
use sqlx::pool::PoolOptions;
use sqlx::{Connection, Database, MySql, Pool, Postgres, Sqlite};
use tokio::time::timeout;

/// Create the fencing table of a database.
///
/// Running it again is harmless, and it leaves your own migrations and their bookkeeping alone.
#[derive(Args)]
pub(crate) struct Options {
    /// The database: postgres://…, mysql://…, mariadb://… or sqlite://… (with ?mode=rwc the file
    /// is created).
    ///
    /// A URL with a password should come from the environment instead: other users of the machine
    /// can read arguments.
    #[arg(
        long,
        value_name = "URL",
        env = "DATABASE_URL",
        hide_env_values = true,
        required_unless_present = "print"
    )]
    database_url: Option<String>,
    /// Print the SQL instead of running it, to copy it into your own migrations. No database is
    /// connected to.
    #[arg(long)]
    print: bool,
    /// Whose SQL to print. Known from the URL if there is one.
    #[arg(long, value_enum, requires = "print")]
    dialect: Option<Dialect>,
    /// The table, or schema.table, if not the default one.
    #[arg(long, value_name = "NAME", default_value_t)]
    table: TableName,
}

/// A database system, as far as its SQL differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Dialect {
    Postgres,
    /// MariaDB too.
    #[value(alias = "mariadb")]
    Mysql,
    Sqlite,
}

/// Runs or prints the migration.
pub(crate) fn run(options: Options) -> Result<(), MigrateError> {
    let url = options.database_url.as_deref();
    let dialect = match (options.dialect, url) {
        (Some(dialect), _) => dialect,
        (None, Some(url)) => Dialect::of_url(url)?,
        (None, None) => return Err(MigrateError::NoDialect),
    };
    if options.print {
        print!("{}", migrate::print(dialect.of_fencing(), &options.table));
        return Ok(());
    }
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(MigrateError::Runtime)?
        .block_on(apply(dialect, url.unwrap_or_default(), &options.table))?;
    let what = match outcome {
        Outcome::Created => "created",
        _ => "already there",
    };
    println!("table {}: {what}", options.table);
    Ok(())
}

async fn apply(dialect: Dialect, url: &str, table: &TableName) -> Result<Outcome, MigrateError> {
    Ok(match dialect {
        Dialect::Postgres => {
            migrate::postgres::run_for(&open::<Postgres>(url).await?, table).await?
        }
        Dialect::Mysql => migrate::mysql::run_for(&open::<MySql>(url).await?, table).await?,
        Dialect::Sqlite => migrate::sqlite::run_for(&open::<Sqlite>(url).await?, table).await?,
    })
}

/// One connection, in the pool that the migration wants.
async fn open<D: Database>(url: &str) -> Result<Pool<D>, MigrateError> {
    // A pool goes on trying until it gives up without a reason; a single attempt has one.
    let attempt = timeout(CONNECT_TIME, D::Connection::connect(url));
    let connection = attempt.await.map_err(|_| MigrateError::Unreachable)?;
    let _ = connection.map_err(MigrateError::Connect)?.close().await;
    PoolOptions::new()
        .max_connections(1)
        .acquire_timeout(CONNECT_TIME)
        .connect(url)
        .await
        .map_err(MigrateError::Connect)
}

impl Dialect {
    fn of_url(url: &str) -> Result<Self, MigrateError> {
        let (scheme, _) = url.split_once(':').ok_or(MigrateError::NoScheme)?;
        match scheme {
            "postgres" | "postgresql" => Ok(Self::Postgres),
            "mysql" | "mariadb" => Ok(Self::Mysql),
            "sqlite" => Ok(Self::Sqlite),
            _ => Err(MigrateError::Scheme),
        }
    }

    fn of_fencing(self) -> migrate::Dialect {
        match self {
            Self::Postgres => migrate::Dialect::Postgres,
            Self::Mysql => migrate::Dialect::MySql,
            Self::Sqlite => migrate::Dialect::Sqlite,
        }
    }
}

/// Why the table was not created. No variant shows the URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MigrateError {
    #[error("whose SQL? Give --dialect postgres, mysql or sqlite, or a --database-url")]
    NoDialect,
    #[error("the database URL has no scheme such as postgres:// in front")]
    NoScheme,
    #[error("the scheme of the database URL is none of postgres, mysql, mariadb and sqlite")]
    Scheme,
    #[error("the database does not answer within {} s", CONNECT_TIME.as_secs())]
    Unreachable,
    #[error("the database cannot be connected to")]
    Connect(#[source] sqlx::Error),
    #[error("the migration failed")]
    Migration(#[from] migrate::Error),
    #[error("the system refuses what the command needs")]
    Runtime(#[source] std::io::Error),
}

const CONNECT_TIME: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_of_a_url_tells_the_dialect() {
        let of = |url| Dialect::of_url(url).ok();
        assert_eq!(of("postgres://u@h/d"), Some(Dialect::Postgres));
        assert_eq!(of("postgresql://u@h/d"), Some(Dialect::Postgres));
        assert_eq!(of("mysql://u@h/d"), Some(Dialect::Mysql));
        assert_eq!(of("mariadb://u@h/d"), Some(Dialect::Mysql));
        assert_eq!(of("sqlite://file.db"), Some(Dialect::Sqlite));
        assert_eq!(of("oracle://u:secret@h/d"), None);
        assert_eq!(of("file.db"), None);
    }

    #[test]
    fn an_error_about_a_url_does_not_show_it() {
        let refused = Dialect::of_url("oracle://user:secret@host/d").expect_err("refused");
        assert!(!format!("{refused} {refused:?}").contains("secret"));
    }
}
