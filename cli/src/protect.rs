//! `highwater protect` and `unprotect`: tables that the database itself protects.
//!
//! The SQL is the fencing crate's; here is only which database is meant and how it is run.

use clap::Args;
use highwater_fencing::protect::{Protection, RowKey, remove};
use highwater_fencing::{TableName, migrate};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySql, Postgres, Sqlite};

use crate::database::{Dialect, UrlError, open};

/// Let a database refuse writes to a table that are not fenced.
///
/// From then on a row can only be written in a transaction in which a fence for its key was admitted,
/// whatever program writes it. Run it as the owner of the table. Running it again is harmless, and
/// changes the key if that is another one.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// SQL that gives the key of a row's fence, with columns in braces: "{sku}",
    /// "'stock/' || {sku}", "CONCAT('stock/', {sku})" on MySQL. It is code, and runs with your rights.
    #[arg(long, value_name = "SQL")]
    key: RowKey,
    /// The table of marks, if not the default one.
    #[arg(long, value_name = "NAME", default_value_t)]
    marks: TableName,
}

/// Take the protection off a table.
///
/// Programs that do not fence can write it again.
#[derive(Args)]
pub(crate) struct RemoveOptions {
    #[command(flatten)]
    target: Target,
}

#[derive(Args)]
struct Target {
    /// The database: postgres://…, mysql://…, mariadb://… or sqlite://…
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
    /// Print the SQL instead of running it, for your own migrations. No database is connected to.
    #[arg(long)]
    print: bool,
    /// Whose SQL to print. Known from the URL if there is one.
    #[arg(long, value_enum, requires = "print")]
    dialect: Option<Dialect>,
    /// The table, or schema.table.
    #[arg(long, value_name = "NAME")]
    table: TableName,
}

/// Protects the table, or prints how.
pub(crate) fn run(options: Options) -> Result<(), ProtectError> {
    let Options { target, key, marks } = options;
    let dialect = target.dialect()?;
    let protection = Protection::new(target.table.clone(), key).marks(marks.clone());
    let sql = migrate::print_protect(dialect.of_fencing(), &marks)
        + &protection.install(dialect.of_fencing());
    let done = target.apply(dialect, sql, "protected");
    done.map_err(|error| match error {
        ProtectError::Database(error) if is_missing(&error, &marks) => {
            ProtectError::NotMigrated { table: marks }
        }
        error => error,
    })
}

/// Whether the database says that there is no such table. Most say it with codes, but SQLite does not.
fn is_missing(error: &sqlx::Error, table: &TableName) -> bool {
    error.as_database_error().is_some_and(|error| {
        let message = error.message();
        let says = |text| message.contains(text);
        // Each names the table in its own way.
        let named = message
            .split(|byte: char| !byte.is_ascii_alphanumeric() && byte != '_')
            .any(|word| word == table.name());
        named && (says("does not exist") || says("doesn't exist") || says("no such table"))
    })
}

/// Takes the protection off, or prints how.
pub(crate) fn run_remove(options: RemoveOptions) -> Result<(), ProtectError> {
    let target = options.target;
    let dialect = target.dialect()?;
    let sql = remove(dialect.of_fencing(), &target.table);
    target.apply(dialect, sql, "no longer protected")
}

impl Target {
    fn dialect(&self) -> Result<Dialect, ProtectError> {
        match (self.dialect, &self.database_url) {
            (Some(dialect), _) => Ok(dialect),
            (None, Some(url)) => Ok(Dialect::of_url(url)?),
            (None, None) => Err(ProtectError::NoDialect),
        }
    }

    fn apply(&self, dialect: Dialect, sql: String, what: &str) -> Result<(), ProtectError> {
        if self.print {
            print!("{sql}");
            return Ok(());
        }
        let url = self.database_url.as_deref().unwrap_or_default();
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ProtectError::Runtime)?
            .block_on(execute(dialect, url, sql))?;
        println!("table {}: {what}", self.table);
        Ok(())
    }
}

/// Runs all of it in one transaction where the database can.
async fn execute(dialect: Dialect, url: &str, sql: String) -> Result<(), ProtectError> {
    let sql = sqlx::raw_sql(AssertSqlSafe(sql));
    match dialect {
        // One message is one transaction.
        Dialect::Postgres => {
            let mut conn = (open::<Postgres>(url).await?.acquire().await)?.detach();
            conn.execute(sql).await?;
            conn.close().await?;
        }
        Dialect::Mysql => {
            let mut conn = (open::<MySql>(url).await?.acquire().await)?.detach();
            conn.execute(sql).await?;
            conn.close().await?;
        }
        Dialect::Sqlite => {
            let pool = open::<Sqlite>(url).await?;
            let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
            tx.execute(sql).await?;
            tx.commit().await?;
        }
    }
    Ok(())
}

/// Why the table was not protected. No variant shows the URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtectError {
    #[error("whose SQL? Give --dialect postgres, mysql or sqlite, or a --database-url")]
    NoDialect,
    #[error(transparent)]
    Url(#[from] UrlError),
    #[error("table {table} does not exist: run `highwater migrate --database-url …`")]
    NotMigrated { table: TableName },
    #[error("the database refuses")]
    Database(#[from] sqlx::Error),
    #[error("the system refuses what the command needs")]
    Runtime(#[source] std::io::Error),
}
