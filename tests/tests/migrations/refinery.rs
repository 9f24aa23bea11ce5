//! refinery, over the drivers that it shares with our adapters. It has no way down.

use std::path::Path;
use std::sync::Arc;

use futures_util::future::FutureExt as _;
use highwater_fencing::migrate::{Dialect, Format};
use refinery::{Report, Runner, load_sql_migrations};

use crate::{Case, DATABASES, Error, World, write_files};

pub(crate) const CASES: [Case; 2] = [
    (
        "refinery_runs_the_files_beside_the_users_own",
        DATABASES,
        |world| refinery_runs_the_files_beside_the_users_own(world).boxed(),
    ),
    ("refinery_finds_what_the_program_made", DATABASES, |world| {
        refinery_finds_what_the_program_made(world).boxed()
    }),
];

async fn refinery_runs_the_files_beside_the_users_own(world: Arc<World>) -> Result<(), Error> {
    let folder = tempfile::tempdir()?;
    own(folder.path(), "V1__stock.sql", "stock")?;
    write_files(folder.path(), world.dialect(), Format::Refinery, 2);
    assert_eq!(
        tool(&world, folder.path()).await?,
        ["V1__stock", "V2__highwater_fence", "V3__highwater_protect"]
    );
    world.is_migrated().await?;
    world.run("INSERT INTO stock VALUES ('apple')").await?;
    // At the next start, and with the next release of the program.
    assert_eq!(tool(&world, folder.path()).await?, [""; 0]);
    own(folder.path(), "V4__orders.sql", "orders")?;
    assert_eq!(tool(&world, folder.path()).await?, ["V4__orders"]);
    world.run("INSERT INTO orders VALUES ('apple')").await?;
    world.is_migrated().await
}

/// The files can be brought in later, too.
async fn refinery_finds_what_the_program_made(world: Arc<World>) -> Result<(), Error> {
    world.migrate().await?;
    world.write(7).await?;
    let folder = tempfile::tempdir()?;
    write_files(folder.path(), world.dialect(), Format::Refinery, 1);
    assert_eq!(
        tool(&world, folder.path()).await?,
        ["V1__highwater_fence", "V2__highwater_protect"]
    );
    world.is_migrated().await?;
    // The mark is still there.
    let stale = world.write(6).await;
    assert!(
        matches!(stale, Err(highwater_fencing::FenceError::Stale { .. })),
        "{stale:?}"
    );
    Ok(())
}

/// A migration of the user.
fn own(folder: &Path, name: &str, table: &str) -> Result<(), Error> {
    let sql = format!("CREATE TABLE {table} (sku VARCHAR(60));");
    Ok(std::fs::write(folder.join(name), sql)?)
}

/// What a program does that runs its migrations at its start; gives what ran.
async fn tool(world: &World, folder: &Path) -> Result<Vec<String>, Error> {
    let runner = Runner::new(&load_sql_migrations(folder)?);
    let report = match world.dialect() {
        Dialect::Postgres => {
            let tls = tokio_postgres::NoTls;
            let (mut client, connection) = tokio_postgres::connect(&world.address, tls).await?;
            let connection = tokio::spawn(connection);
            let report = runner.run_async(&mut client).await?;
            drop(client);
            connection.await??;
            report
        }
        Dialect::MySql => {
            let mut pool = mysql_async::Pool::from_url(&world.address)?;
            let report = runner.run_async(&mut pool).await?;
            pool.disconnect().await?;
            report
        }
        Dialect::Sqlite => {
            let address = world.address.clone();
            let run = move || -> Result<Report, Error> {
                let mut conn = rusqlite::Connection::open(address)?;
                Ok(runner.run(&mut conn)?)
            };
            tokio::task::spawn_blocking(run).await??
        }
    };
    let applied = report.applied_migrations().iter();
    Ok(applied.map(ToString::to_string).collect())
}
