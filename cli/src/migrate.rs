//! `highwater migrate`: brings the fencing table into a database, or prints its SQL.
//!
//! The SQL is the fencing crate's; here is only which database is meant and how it is reached.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use highwater_fencing::TableName;
use highwater_fencing::migrate::{self, Migration, Outcome};
use sqlx::{MySql, Postgres, Sqlite};

use crate::database::{Dialect, UrlError, open};

/// Create the fencing table of a database.
///
/// Running it again is harmless, and it leaves your own migrations and their bookkeeping alone.
#[derive(Args)]
#[command(after_help = "\
Examples:
  DATABASE_URL=postgres://… highwater migrate
  highwater migrate --print --dialect postgres
  highwater migrate --print --dialect mysql --format diesel --into migrations
  highwater migrate --print --dialect sqlite --format refinery --into migrations --number 12")]
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
    /// The shape in which a migration tool wants it.
    #[arg(long, value_enum, requires = "print", default_value_t = Format::Plain)]
    format: Format,
    /// Write files into this folder instead of printing. What it has already stays as it is.
    #[arg(long, value_name = "DIR", requires = "print")]
    into: Option<PathBuf>,
    /// The number of the migration [default: one more than the highest in DIR, or 1].
    #[arg(long, value_name = "N", requires = "print")]
    number: Option<u64>,
    /// Also what tables that the database itself protects need; what that needs in turn is said in
    /// its first lines.
    #[arg(long, requires = "print")]
    with_protect: bool,
    /// Print the way back: it forgets every mark, and then a stale holder is admitted.
    #[arg(long, requires = "print", conflicts_with_all = ["into", "format"])]
    down: bool,
    /// The table, or schema.table, if not the default one.
    #[arg(long, value_name = "NAME", default_value_t)]
    table: TableName,
}

/// How a migration tool wants its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The statements alone; in a folder as NAME.up.sql and NAME.down.sql with a number before.
    Plain,
    /// NUMBER_NAME.up.sql and NUMBER_NAME.down.sql.
    Sqlx,
    /// A folder NUMBER_NAME with up.sql and down.sql, as diesel_migrations wants it.
    Diesel,
    /// VNUMBER__NAME.sql; refinery has no way down.
    Refinery,
}

impl Format {
    fn of_fencing(self) -> migrate::Format {
        match self {
            Self::Plain | Self::Sqlx => migrate::Format::Sqlx,
            Self::Diesel => migrate::Format::Diesel,
            Self::Refinery => migrate::Format::Refinery,
        }
    }
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
        let mut migrations = migrate::migrations(dialect.of_fencing(), &options.table);
        if !options.with_protect {
            migrations.truncate(1);
        }
        if options.down {
            migrations.reverse();
        }
        return print(&options, &migrations);
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

fn print(options: &Options, migrations: &[Migration]) -> Result<(), MigrateError> {
    let format = options.format.of_fencing();
    if let Some(folder) = &options.into {
        return write(folder, format, options.number, migrations);
    }
    for (migration, number) in migrations.iter().zip(options.number.unwrap_or(1)..) {
        if options.format == Format::Plain {
            let sql = if options.down {
                migration.down()
            } else {
                migration.up()
            };
            print!("{sql}");
            continue;
        }
        for file in migration.files(format, number) {
            print!("-- {}\n{}", file.path, file.content);
        }
    }
    Ok(())
}

/// Adds the migrations that the folder does not have yet.
fn write(
    folder: &Path,
    format: migrate::Format,
    number: Option<u64>,
    migrations: &[Migration],
) -> Result<(), MigrateError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| MigrateError::Folder { path, source }
    };
    fs::create_dir_all(folder).map_err(failed(folder))?;
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed(folder))? {
        let entry = entry.map_err(failed(folder))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    let mut next = number.unwrap_or_else(|| migrate::next_number(&names));
    for migration in migrations {
        if let Some(present) = names.iter().find(|name| migration.is_named(format, name)) {
            println!("{}: already there", folder.join(present).display());
            continue;
        }
        for file in migration.files(format, next) {
            let path = folder.join(file.path);
            let parent = path.parent().unwrap_or(folder);
            fs::create_dir_all(parent).map_err(failed(parent))?;
            let created = fs::File::create_new(&path).map_err(failed(&path))?;
            std::io::Write::write_all(&mut &created, file.content.as_bytes())
                .map_err(failed(&path))?;
            println!("{}", path.display());
        }
        next += 1;
    }
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

/// Why the table was not created. No variant shows the URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MigrateError {
    #[error("whose SQL? Give --dialect postgres, mysql or sqlite, or a --database-url")]
    NoDialect,
    #[error(transparent)]
    Url(#[from] UrlError),
    #[error("{} cannot be read or written", path.display())]
    Folder {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the migration failed")]
    Migration(#[from] migrate::Error),
    #[error("the system refuses what the command needs")]
    Runtime(#[source] std::io::Error),
}
