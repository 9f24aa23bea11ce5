//! The small world of one case: its own database, with stock in it and an observer beside it.
//!
//! Every case gets a fresh one. The observer is a pool of its own: what it sees is committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use highwater_fencing::sqlx::Fenced;
use highwater_fencing::{Domain, Fence, FenceKey, FencingToken, TableName};
use sqlx::pool::PoolOptions;
use sqlx::{Error, Pool};
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::backend::Backend;
use super::database::Database;
use super::servers::Servers;
use crate::databases::Kind;
use crate::wait::eventually;

/// The quantity of every sku at the start.
pub(super) const STOCK: i64 = 100;
/// How long a case waits for something that must happen.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

/// One case's own database.
#[derive(Debug)]
pub struct World<D: Database> {
    /// The pool that fenced transactions use.
    pub pool: Pool<D::Db>,
    /// A pool that only looks.
    pub observer: Pool<D::Db>,
    url: String,
    home: Home,
}

/// Where the database lies.
#[derive(Debug)]
enum Home {
    File(#[expect(dead_code, reason = "held for its Drop")] TempDir),
    Server {
        kind: Kind,
        admin: String,
        name: String,
    },
}

impl<D: Database> World<D> {
    /// A new database with the table of marks, and 100 apples, pears and plums.
    pub(super) async fn create(servers: &Arc<Servers>) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let text = |error: Error| error.to_string();
        let (url, home) = match D::SERVER {
            None => {
                let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
                let url = format!("sqlite://{}/stock.db?mode=rwc", folder.path().display());
                (url, Home::File(folder))
            }
            Some(kind) => {
                let server = servers.get(kind).await?;
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                let name = format!("highwater_{}_{number}", std::process::id());
                let admin = server.url().to_owned();
                let url = kind.create_database(&admin, &name).await.map_err(text)?;
                (url, Home::Server { kind, admin, name })
            }
        };
        let observer = connect::<D>(&url, 4).await.map_err(text)?;
        let world = Self {
            pool: connect::<D>(&url, 8).await.map_err(text)?,
            observer,
            url,
            home,
        };
        if D::SERVER.is_none() {
            world.run("PRAGMA journal_mode = WAL").await;
        }
        let migrated = D::Db::migrate(&world.pool, &TableName::DEFAULT).await;
        migrated.map_err(|error| format!("{error:?}"))?;
        world
            .run("CREATE TABLE stock (sku VARCHAR(60) NOT NULL PRIMARY KEY, quantity BIGINT NOT NULL)")
            .await;
        for sku in ["apple", "pear", "plum"] {
            let sql = format!("INSERT INTO stock VALUES ('{sku}', {STOCK})");
            world.run(&sql).await;
        }
        Ok(world)
    }

    /// Removes the database.
    pub(super) async fn remove(self) -> Result<(), String> {
        let close = async {
            self.pool.close().await;
            self.observer.close().await;
        };
        // A case that failed may still hold a connection; the database goes all the same.
        let _ = tokio::time::timeout(Duration::from_secs(2), close).await;
        match &self.home {
            Home::File(_) => Ok(()),
            Home::Server { kind, admin, name } => {
                let dropped = kind.drop_database(admin, name).await;
                dropped.map_err(|error| format!("{name}: {error}"))
            }
        }
    }

    /// The URL of the database.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Another pool for the same database.
    pub async fn another_pool(&self, connections: u32) -> Pool<D::Db> {
        connect::<D>(&self.url, connections).await.unwrap()
    }

    /// Runs SQL that must succeed.
    pub async fn run(&self, sql: &str) -> u64 {
        let done = D::Db::run(&self.pool, sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Reads a number that must be there, as another session sees it.
    pub async fn number(&self, sql: &str) -> i64 {
        let number = D::Db::number(&self.observer, sql).await;
        let number = number.unwrap_or_else(|error| panic!("{sql}: {error}"));
        number.unwrap_or_else(|| panic!("no row: {sql}"))
    }

    /// The committed quantity of a sku.
    pub async fn quantity(&self, sku: &str) -> i64 {
        let sql = format!("SELECT quantity FROM stock WHERE sku = '{sku}'");
        self.number(&sql).await
    }

    /// The committed mark of a key.
    pub async fn mark(&self, key: impl AsRef<[u8]>) -> Option<u64> {
        self.mark_in("highwater_fence", "token", key).await
    }

    /// A committed column of the mark of a key, in some table.
    pub async fn mark_in(&self, table: &str, column: &str, key: impl AsRef<[u8]>) -> Option<u64> {
        let key = D::Db::bytes(key.as_ref());
        // MySQL's column is unsigned; the suite reads it as what every database has.
        let cast = if D::Db::KEY.starts_with('`') {
            "SIGNED"
        } else {
            "BIGINT"
        };
        let sql = format!(
            "SELECT CAST({column} AS {cast}) FROM {table} WHERE {} = {key}",
            D::Db::KEY
        );
        let mark = D::Db::number(&self.observer, &sql).await.unwrap();
        mark.map(|mark| u64::try_from(mark).unwrap())
    }

    /// Asks the server about its sessions, and not too often.
    async fn sessions(&self, sql: &str) -> i64 {
        static ASKED: Mutex<()> = Mutex::const_new(());
        if D::STALE_FOR.is_zero() {
            return self.number(sql).await;
        }
        let _alone = ASKED.lock().await;
        tokio::time::sleep(D::STALE_FOR).await;
        self.number(sql).await
    }

    /// Waits until some session waits for a lock; where that cannot be asked, until it is likely.
    ///
    /// The cases hold either way: this only makes sure that the interleaving they name happens.
    pub async fn until_somebody_waits(&self) {
        self.until_waiting(1).await;
    }

    /// The same for a number of sessions.
    pub async fn until_waiting(&self, sessions: i64) {
        let Some(sql) = D::WAITING else {
            return tokio::time::sleep(Duration::from_millis(60)).await;
        };
        eventually("sessions wait for a lock", PATIENCE, async || {
            (self.sessions(sql).await >= sessions).then_some(())
        })
        .await;
    }

    /// Waits until no session is left inside a transaction.
    pub async fn until_nobody_is_in_a_transaction(&self) {
        let Some(sql) = D::IDLE_IN_TRANSACTION else {
            return;
        };
        eventually("no transaction is left open", PATIENCE, async || {
            (self.sessions(sql).await == 0).then_some(())
        })
        .await;
    }
}

async fn connect<D: Database>(url: &str, connections: u32) -> Result<Pool<D::Db>, Error> {
    let options = PoolOptions::<D::Db>::new();
    let options = options.max_connections(connections);
    options.acquire_timeout(PATIENCE).connect(url).await
}

/// The domain that the cases use.
pub(super) fn domain() -> Domain {
    Domain::named("conformance").unwrap()
}

/// The token of this number.
pub(super) fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

/// The fence of one key in the domain of the cases.
pub(super) fn fence(key: impl AsRef<[u8]>, number: u64) -> Fence {
    Fence::new(domain(), FenceKey::new(key).unwrap(), token(number))
}

/// Takes from the stock what is there behind the fence, the way an application does: it reads, and
/// then writes what it computed.
pub(super) async fn deduct<D: Database>(
    tx: &mut Fenced<'_, D::Db>,
    sku: &str,
    amount: i64,
) -> Result<i64, Error> {
    let read = format!("SELECT quantity FROM stock WHERE sku = '{sku}'");
    let left = D::Db::number_in(tx, &read).await?;
    let left = left.ok_or(Error::RowNotFound)? - amount;
    let write = format!("UPDATE stock SET quantity = {left} WHERE sku = '{sku}'");
    D::Db::run_in(tx, &write).await?;
    Ok(left)
}
