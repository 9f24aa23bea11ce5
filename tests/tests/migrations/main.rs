//! The schema as files of the usual migration tools, and older and newer programs on one database.
//!
//! sqlx, diesel_migrations and refinery really run their files, beside the user's own, on every
//! database that the build has their drivers for.

#[cfg(feature = "__diesel-migrations")]
mod diesel;
#[cfg(feature = "refinery")]
mod refinery;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::{BoxFuture, FutureExt as _};
use highwater_fencing::migrate::{self, Format, MigrateError, Outcome};
use highwater_fencing::{Domain, Fence, FenceKey, FencingToken, TableName, sqlx::SqlxFence as _};
use highwater_tests::databases::{Kind, Server};
use libtest_mimic::{Arguments, Failed, Trial};
use sqlx::migrate::Migrator;
use sqlx::{MySqlPool, PgPool, SqlitePool};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

type Error = Box<dyn std::error::Error + Send + Sync>;
/// The name, the databases it is for, and what is done.
type Case = (&'static str, &'static [&'static str], Play);
type Play = fn(Arc<World>) -> BoxFuture<'static, Result<(), Error>>;

/// Cases for every database.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), DATABASES, (|world| $name(world).boxed()) as Play)),*]
    };
}

fn main() -> ExitCode {
    let cases = cases![
        sqlx_runs_the_files_up_and_down_beside_the_users_own,
        an_older_program_works_on_a_newer_table,
        a_newer_program_says_what_an_older_table_lacks,
        eight_programs_start_at_once,
    ];
    let mut cases = Vec::from(cases);
    #[cfg(feature = "__diesel-migrations")]
    cases.extend(diesel::CASES);
    #[cfg(feature = "refinery")]
    cases.extend(refinery::CASES);
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(4);
    let runtime = Arc::new(Runtime::new().expect("a runtime can be started"));
    let servers: BTreeMap<&str, OnceCell<Result<Server, String>>> = KINDS
        .iter()
        .map(|kind| (kind.name(), OnceCell::new()))
        .collect();
    let servers = Arc::new(servers);
    let mut trials = Vec::new();
    for (name, databases, case) in cases {
        let on_file = runtime.clone();
        if databases.contains(&"sqlite") {
            trials.push(Trial::test(format!("sqlite::{name}"), move || {
                on_file.block_on(async { run(case, World::on_file().await?).await })
            }));
        }
        for kind in KINDS {
            if !databases.contains(&kind.name()) {
                continue;
            }
            let (runtime, servers) = (runtime.clone(), servers.clone());
            let trial = Trial::test(format!("{}::{name}", kind.name()), move || {
                runtime.block_on(async {
                    let start = async || Server::obtain(kind).await.map_err(|e| e.to_string());
                    let server = servers[kind.name()].get_or_init(start).await;
                    let server = server.as_ref().map_err(String::as_str)?;
                    run(case, World::on_server(kind, server).await?).await
                })
            });
            trials.push(trial.with_ignored_flag(kind.skip_reason().is_some()));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    runtime.block_on(async move { drop(servers) });
    conclusion.exit_code()
}

const KINDS: [Kind; 3] = [Kind::Postgres, Kind::MySql, Kind::MariaDb];
const DATABASES: &[&str] = &["sqlite", "postgres", "mysql", "mariadb"];

async fn run(case: Play, world: World) -> Result<(), Failed> {
    case(Arc::new(world))
        .await
        .map_err(|error| format!("{error}: {error:?}").into())
}

/// A database of its own.
struct World {
    /// For programs that bring a driver of their own; a path with SQLite.
    #[cfg_attr(
        not(any(feature = "__diesel-migrations", feature = "refinery")),
        expect(dead_code, reason = "sqlx has the pool")
    )]
    address: String,
    pool: Pool,
    _folder: Option<TempDir>,
}

#[derive(Clone)]
enum Pool {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

/// The same words over each kind of pool.
macro_rules! on_each {
    ($pool:expr, $inner:ident => $work:expr) => {
        match $pool {
            Pool::Postgres($inner) => $work,
            Pool::MySql($inner) => $work,
            Pool::Sqlite($inner) => $work,
        }
    };
}

impl World {
    async fn on_file() -> Result<Self, Error> {
        let folder = tempfile::tempdir()?;
        let address = folder.path().join("d").display().to_string();
        let url = format!("sqlite://{address}?mode=rwc");
        Ok(Self {
            address,
            pool: Pool::Sqlite(SqlitePool::connect(&url).await?),
            _folder: Some(folder),
        })
    }

    async fn on_server(kind: Kind, server: &Server) -> Result<Self, Error> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Left to the end of the server.
        let name = format!("migrations_{}_{number}", std::process::id());
        let url = kind.create_database(server.url(), &name).await?;
        let pool = match kind {
            Kind::Postgres => Pool::Postgres(PgPool::connect(&url).await?),
            Kind::MySql | Kind::MariaDb => Pool::MySql(MySqlPool::connect(&url).await?),
        };
        Ok(Self {
            address: url,
            pool,
            _folder: None,
        })
    }

    fn dialect(&self) -> migrate::Dialect {
        match self.pool {
            Pool::Postgres(_) => migrate::Dialect::Postgres,
            Pool::MySql(_) => migrate::Dialect::MySql,
            Pool::Sqlite(_) => migrate::Dialect::Sqlite,
        }
    }

    async fn run(&self, sql: &str) -> Result<(), Error> {
        let sql = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()));
        Ok(on_each!(&self.pool, pool => sql.execute(pool).await.map(drop))?)
    }

    async fn migrate(&self) -> Result<Outcome, migrate::Error> {
        match &self.pool {
            Pool::Postgres(pool) => migrate::postgres::run(pool).await,
            Pool::MySql(pool) => migrate::mysql::run(pool).await,
            Pool::Sqlite(pool) => migrate::sqlite::run(pool).await,
        }
    }

    /// The table is there, and works.
    async fn is_migrated(&self) -> Result<(), Error> {
        self.write(7).await?;
        // The program's own call finds what the tool made.
        assert_eq!(self.migrate().await?, Outcome::Present);
        Ok(())
    }

    /// The table is not there.
    async fn is_not_migrated(&self) {
        let refused = self.write(7).await;
        assert!(
            matches!(
                refused,
                Err(highwater_fencing::FenceError::NotMigrated { .. })
            ),
            "{refused:?}"
        );
    }

    /// A fenced transaction of this version.
    async fn write(&self, token: u64) -> Result<(), highwater_fencing::sqlx::FenceError> {
        let token = FencingToken::new(token).expect("not zero");
        let key = FenceKey::new("k").expect("a key");
        let fence = Fence::new(Domain::named("d").expect("a name"), key, token);
        on_each!(&self.pool, pool => fence.begin(pool).await?.commit().await)
    }
}

/// Writes all migrations as files of a tool, with the numbers from `first` on.
fn write_files(folder: &Path, dialect: migrate::Dialect, format: Format, first: u64) {
    let migrations = migrate::migrations(dialect, &TableName::DEFAULT);
    for (migration, number) in migrations.iter().zip(first..) {
        for file in migration.files(format, number) {
            let path = folder.join(file.path);
            let parent = path.parent().expect("it lies in the folder");
            std::fs::create_dir_all(parent).expect("a folder");
            std::fs::write(path, file.content).expect("a file");
        }
    }
}

async fn sqlx_runs_the_files_up_and_down_beside_the_users_own(
    world: Arc<World>,
) -> Result<(), Error> {
    let folder = tempfile::tempdir()?;
    let own = |name: &str, sql: &str| std::fs::write(folder.path().join(name), sql);
    own("0001_stock.up.sql", "CREATE TABLE stock (sku VARCHAR(60))")?;
    own("0001_stock.down.sql", "DROP TABLE stock")?;
    write_files(folder.path(), world.dialect(), Format::Sqlx, 2);
    for _ in 0..2 {
        for _ in 0..2 {
            let migrator = Migrator::new(folder.path()).await?;
            on_each!(&world.pool, pool => migrator.run(pool).await)?;
        }
        world.is_migrated().await?;
        let migrator = Migrator::new(folder.path()).await?;
        on_each!(&world.pool, pool => migrator.undo(pool, 1).await)?;
        world.is_not_migrated().await;
        world.run("INSERT INTO stock VALUES ('apple')").await?;
    }
    Ok(())
}

async fn an_older_program_works_on_a_newer_table(world: Arc<World>) -> Result<(), Error> {
    world.migrate().await?;
    world
        .run("ALTER TABLE highwater_fence ADD COLUMN holder TEXT")
        .await?;
    world
        .run("ALTER TABLE highwater_fence ADD COLUMN visits INTEGER NOT NULL DEFAULT 0")
        .await?;
    assert_eq!(world.migrate().await?, Outcome::Present);
    for token in [7, 7, 8] {
        world.write(token).await?;
    }
    let stale = world.write(7).await;
    assert!(
        matches!(stale, Err(highwater_fencing::FenceError::Stale { .. })),
        "{stale:?}"
    );
    Ok(())
}

async fn a_newer_program_says_what_an_older_table_lacks(world: Arc<World>) -> Result<(), Error> {
    // As it might have looked before steps came into being.
    let table = match world.dialect() {
        migrate::Dialect::Postgres => {
            "CREATE TABLE highwater_fence (key bytea PRIMARY KEY, domain bytea NOT NULL, \
             token bigint NOT NULL, last_tx xid8 NOT NULL, updated_at timestamptz NOT NULL)"
        }
        migrate::Dialect::MySql => {
            "CREATE TABLE highwater_fence (`key` varbinary(255) PRIMARY KEY, \
             domain varbinary(32) NOT NULL, token bigint unsigned NOT NULL, \
             updated_at datetime(6) NOT NULL)"
        }
        migrate::Dialect::Sqlite => {
            "CREATE TABLE highwater_fence (key BLOB PRIMARY KEY, domain BLOB NOT NULL, \
             token INTEGER NOT NULL, updated_at TEXT NOT NULL)"
        }
    };
    world.run(table).await?;
    let refused = world.migrate().await;
    let Err(refused @ MigrateError::ForeignTable { .. }) = refused else {
        return Err(format!("{refused:?}").into());
    };
    let said = refused.to_string();
    assert!(said.contains("columns that this version"), "{said}");
    let cause = std::error::Error::source(&refused).ok_or("no cause")?;
    assert!(cause.to_string().contains("step"), "{cause}");
    // The old table stays as it is, and no write gets through unfenced.
    let fenced = world.write(7).await;
    assert!(
        matches!(fenced, Err(highwater_fencing::FenceError::Database(_))),
        "{fenced:?}"
    );
    world
        .run("SELECT token FROM highwater_fence WHERE 1 = 0")
        .await
}

async fn eight_programs_start_at_once(world: Arc<World>) -> Result<(), Error> {
    let mut programs = tokio::task::JoinSet::new();
    for token in 1..=8 {
        let world = world.clone();
        programs.spawn(async move {
            world.migrate().await?;
            match world.write(token).await {
                Ok(()) | Err(highwater_fencing::FenceError::Stale { .. }) => Ok::<_, Error>(()),
                Err(error) => Err(error.into()),
            }
        });
    }
    while let Some(program) = programs.join_next().await {
        program??;
    }
    assert_eq!(world.migrate().await?, Outcome::Present);
    Ok(())
}
