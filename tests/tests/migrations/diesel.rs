//! diesel_migrations, on the databases that the build has diesel's backend for.

use std::path::Path;
use std::sync::Arc;

use diesel::Connection;
use diesel::backend::Backend;
use diesel_migrations::{FileBasedMigrations, MigrationHarness};
use futures_util::future::FutureExt as _;
use highwater_fencing::migrate::{Dialect, Format};

use crate::{Case, Error, World, write_files};

pub(crate) const CASES: [Case; 1] = [("diesel_runs_the_files_up_and_down", DATABASES, |world| {
    diesel_runs_the_files_up_and_down(world).boxed()
})];

const DATABASES: &[&str] = &[
    #[cfg(feature = "diesel-sqlite")]
    "sqlite",
    #[cfg(feature = "diesel-postgres")]
    "postgres",
    #[cfg(feature = "diesel-mysql")]
    "mysql",
    #[cfg(feature = "diesel-mysql")]
    "mariadb",
];

async fn diesel_runs_the_files_up_and_down(world: Arc<World>) -> Result<(), Error> {
    let folder = tempfile::tempdir()?;
    own(folder.path(), "0001_stock", "stock")?;
    write_files(folder.path(), world.dialect(), Format::Diesel, 2);
    own(folder.path(), "0004_orders", "orders")?;
    for _ in 0..2 {
        assert_eq!(tool(&world, folder.path(), Step::Up).await?, 4);
        assert_eq!(tool(&world, folder.path(), Step::Up).await?, 0);
        world.is_migrated().await?;
        world.run("INSERT INTO stock VALUES ('apple')").await?;
        world.run("INSERT INTO orders VALUES ('apple')").await?;
        assert_eq!(tool(&world, folder.path(), Step::DownAndUp).await?, 1);
        assert_eq!(tool(&world, folder.path(), Step::Down).await?, 4);
        world.is_not_migrated().await;
        let gone = world.run("INSERT INTO stock VALUES ('apple')").await;
        assert!(gone.is_err());
    }
    Ok(())
}

/// A migration of the user.
fn own(folder: &Path, name: &str, table: &str) -> Result<(), Error> {
    let own = folder.join(name);
    std::fs::create_dir(&own)?;
    std::fs::write(
        own.join("up.sql"),
        format!("CREATE TABLE {table} (sku VARCHAR(60));"),
    )?;
    std::fs::write(own.join("down.sql"), format!("DROP TABLE {table};"))?;
    Ok(())
}

#[derive(Clone, Copy)]
enum Step {
    /// All that are pending.
    Up,
    /// The last one back, and again.
    DownAndUp,
    /// All back.
    Down,
}

/// What a program does that connects with diesel and runs its migrations; gives how many ran.
async fn tool(world: &World, folder: &Path, step: Step) -> Result<usize, Error> {
    let (dialect, address, folder) = (world.dialect(), world.address.clone(), folder.to_owned());
    let done = tokio::task::spawn_blocking(move || {
        let files = FileBasedMigrations::from_path(folder)?;
        match dialect {
            #[cfg(feature = "diesel-sqlite")]
            Dialect::Sqlite => migrate::<diesel::SqliteConnection, _>(&address, files, step),
            #[cfg(feature = "diesel-postgres")]
            Dialect::Postgres => migrate::<diesel::PgConnection, _>(&address, files, step),
            #[cfg(feature = "diesel-mysql")]
            Dialect::MySql => migrate::<diesel::MysqlConnection, _>(&address, files, step),
            #[allow(unreachable_patterns, reason = "a build need not have all")]
            _ => Err("no case for this database".into()),
        }
    });
    done.await?
}

fn migrate<C, D>(address: &str, files: FileBasedMigrations, step: Step) -> Result<usize, Error>
where
    C: Connection<Backend = D> + MigrationHarness<D>,
    D: Backend,
{
    let mut conn = C::establish(address)?;
    Ok(match step {
        Step::Up => conn.run_pending_migrations(files)?.len(),
        Step::DownAndUp => {
            conn.revert_last_migration(files.clone())?;
            conn.run_pending_migrations(files)?.len()
        }
        Step::Down => conn.revert_all_migrations(files)?.len(),
    })
}
