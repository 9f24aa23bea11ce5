//! The small world of one case: its own database, with stock in it and an observer beside it.
//!
//! Every case gets a fresh one. Everything under test goes through the adapter's source; the
//! observer is a pool of sqlx's, and what it sees is committed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use highwater_fencing::{
    Configured, Domain, Fence, FenceKey, FenceOptions, FencingToken, TableName,
};
use highwater_proof::adapter::{
    Abilities, Adapter, Body, BoxError, Dialect, DriverError, Source, Statements, Tx, Verdict, body,
};
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::database::Database;
use super::observer::Observer;
use super::servers::Servers;
use crate::databases::Kind;
use crate::wait::eventually;

/// The quantity of every sku at the start.
pub(super) const STOCK: i64 = 100;
/// How long a case waits for something that must happen.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

/// One case's own database, and the adapter under test.
pub(super) struct World {
    /// The adapter under test.
    pub adapter: &'static dyn Adapter,
    /// What is known of the database.
    pub database: &'static Database,
    /// The connections that fenced transactions use.
    pub source: Arc<dyn Source>,
    /// A pool that only looks.
    pub observer: Observer,
    url: String,
    home: Home,
    not_applicable: OnceLock<&'static str>,
}

/// When the server made up its mind about its sessions, and when it was last asked.
struct Answer {
    made: Instant,
    read: Instant,
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

impl World {
    /// A new database with the table of marks, and 100 apples, pears and plums.
    pub(super) async fn create(
        adapter: &'static dyn Adapter,
        database: &'static Database,
        servers: &Servers,
    ) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (url, home) = match database.release() {
            None => {
                let folder = tempfile::tempdir().map_err(text)?;
                let url = format!("sqlite://{}/stock.db?mode=rwc", folder.path().display());
                (url, Home::File(folder))
            }
            Some(release) => {
                let server = servers.get(release).await?;
                let kind = release.kind();
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                let name = format!("highwater_{}_{number}", std::process::id());
                let admin = server.url().to_owned();
                let url = kind.create_database(&admin, &name).await.map_err(text)?;
                (url, Home::Server { kind, admin, name })
            }
        };
        let observer = Observer::connect(database.dialect, &url, 4).await;
        let observer = observer.map_err(text)?;
        if database.server.is_none() {
            let wal = observer.run("PRAGMA journal_mode = WAL").await;
            wal.map_err(text)?;
        }
        let migrated = observer.migrate(&TableName::DEFAULT).await;
        migrated.map_err(|error| format!("{error:?}"))?;
        let stock = format!(
            "CREATE TABLE stock (sku VARCHAR(60) NOT NULL PRIMARY KEY, quantity BIGINT NOT NULL); \
             INSERT INTO stock VALUES ('apple', {STOCK}), ('pear', {STOCK}), ('plum', {STOCK})"
        );
        observer.run(&stock).await.map_err(text)?;
        Ok(Self {
            adapter,
            database,
            source: adapter.open(&url, 8).await.map_err(text)?,
            observer,
            url,
            home,
            not_applicable: OnceLock::new(),
        })
    }

    /// Removes the database.
    pub(super) async fn remove(self) -> Result<(), String> {
        let close = async {
            self.source.close().await;
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

    /// Says that the case asks for something that the adapter or the database does not have. It is
    /// then counted apart.
    pub(super) fn not_applicable(&self, reason: &'static str) {
        self.not_applicable.get_or_init(|| reason);
    }

    /// Why the case asked for nothing, if so.
    pub(super) fn why_not_applicable(&self) -> Option<&'static str> {
        self.not_applicable.get().copied()
    }

    /// What the adapter can do.
    pub(super) fn abilities(&self) -> Abilities {
        self.adapter.abilities()
    }

    /// Whether a write that follows a *raw* `COMMIT` or `ROLLBACK` is kept by autocommit.
    pub(super) fn keeps_late_writes(&self) -> bool {
        self.database.keeps_late_writes || self.is_unguarded_file()
    }

    /// SQLite without a commit hook: after a silent end nothing stops autocommit.
    pub(super) fn is_unguarded_file(&self) -> bool {
        self.database.dialect == Dialect::Sqlite && !self.abilities().vetoes
    }

    /// The URL of the database.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Other connections of the same adapter to the same database.
    pub(super) async fn another_source(&self, connections: u32) -> Arc<dyn Source> {
        self.source_at(&self.url, connections).await
    }

    /// Connections of the same adapter to the database of another URL.
    pub(super) async fn source_at(&self, url: &str, connections: u32) -> Arc<dyn Source> {
        self.adapter.open(url, connections).await.unwrap()
    }

    /// Runs SQL that must succeed, through the adapter's driver.
    pub(super) async fn run(&self, sql: &str) {
        let done = self.source.run(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Begins a fenced transaction that must be admitted.
    pub(super) async fn begin(&self, fence: &Configured) -> Box<dyn Tx> {
        let begun = self.source.begin(fence).await;
        begun.unwrap_or_else(|error| panic!("{fence:?}: {error:?}"))
    }

    /// Begins and commits: raises the marks of the fence.
    pub(super) async fn raise(&self, fence: &Configured) {
        self.begin(fence).await.commit().await.unwrap();
    }

    /// Begins a fenced transaction that must be refused.
    pub(super) async fn refusal(&self, fence: &Configured) -> Verdict {
        match self.source.begin(fence).await {
            Ok(_) => panic!("admitted: {fence:?}"),
            Err(verdict) => verdict,
        }
    }

    /// The closure form, for bodies whose errors are verdicts or the driver's.
    pub(super) async fn transaction(&self, fence: &Configured, body: Body) -> Result<i64, Verdict> {
        let done = self.source.transaction(fence, body).await;
        done.map_err(verdict)
    }

    /// Deducts from a sku behind the fence, with the closure form.
    pub(super) async fn sell(
        &self,
        fence: &Configured,
        sku: &'static str,
        amount: i64,
    ) -> Result<i64, Verdict> {
        self.transaction(fence, selling(sku, amount)).await
    }

    /// What each form that the adapter has says to this fence. What is admitted is rolled back.
    pub(super) async fn verdicts(&self, fence: &Configured) -> Vec<Result<(), Verdict>> {
        async fn end(begun: Result<Box<dyn Tx>, Verdict>) -> Result<(), Verdict> {
            begun?.rollback().await
        }
        let empty = body(|_tx| Box::pin(async { Ok(0) }));
        let mut verdicts = vec![
            end(self.source.begin(fence).await).await,
            self.transaction(fence, empty).await.map(drop),
        ];
        if self.abilities().lends {
            verdicts.push(end(self.source.begin_on("", fence).await).await);
        }
        if self.abilities().joins {
            verdicts.push(end(self.source.admit("", fence).await).await);
        }
        verdicts
    }

    /// Reads a number that must be there, as another session sees it.
    pub(super) async fn number(&self, sql: &str) -> i64 {
        let number = self.observer.number(sql).await;
        let number = number.unwrap_or_else(|error| panic!("{sql}: {error}"));
        number.unwrap_or_else(|| panic!("no row: {sql}"))
    }

    /// The committed quantity of a sku.
    pub(super) async fn quantity(&self, sku: &str) -> i64 {
        let sql = format!("SELECT quantity FROM stock WHERE sku = '{sku}'");
        self.number(&sql).await
    }

    /// The committed mark of a key.
    pub(super) async fn mark(&self, key: impl AsRef<[u8]>) -> Option<u64> {
        self.mark_in("highwater_fence", "token", key).await
    }

    /// A committed column of the mark of a key, in some table.
    pub(super) async fn mark_in(
        &self,
        table: &str,
        column: &str,
        key: impl AsRef<[u8]>,
    ) -> Option<u64> {
        let bytes = self.database.bytes(key.as_ref());
        // MySQL's column is unsigned; the suite reads it as what every database has.
        let cast = match self.database.dialect {
            Dialect::MySql => "SIGNED",
            Dialect::Postgres | Dialect::Sqlite => "BIGINT",
        };
        let key = self.database.key();
        let sql = format!("SELECT CAST({column} AS {cast}) FROM {table} WHERE {key} = {bytes}");
        let mark = self.observer.number(&sql).await.unwrap();
        mark.map(|mark| u64::try_from(mark).unwrap())
    }

    /// Asks the server about its sessions.
    ///
    /// MariaDB keeps its answer until nobody has asked for a while. So the cases ask one after
    /// another; who finds an answer that is younger than the question does not have to wait.
    async fn sessions(&self, sql: &str) -> i64 {
        static ANSWERS: Mutex<BTreeMap<&str, Answer>> = Mutex::const_new(BTreeMap::new());
        let stale_for = self.database.stale_for;
        if stale_for.is_zero() {
            return self.number(sql).await;
        }
        let asked = Instant::now();
        let mut answers = ANSWERS.lock().await;
        let answer = answers.entry(self.database.name);
        let answer = answer.or_insert(Answer {
            made: asked - stale_for,
            read: asked - stale_for,
        });
        if answer.made <= asked {
            tokio::time::sleep_until((answer.read + stale_for).into()).await;
            answer.made = Instant::now();
        }
        let number = self.number(sql).await;
        answer.read = Instant::now();
        number
    }

    /// Waits until some session waits for a lock; where that cannot be asked, until it is likely.
    ///
    /// The cases hold either way: this only makes sure that the interleaving they name happens.
    pub(super) async fn until_somebody_waits(&self) {
        self.until_waiting(1).await;
    }

    /// The same for a number of sessions.
    pub(super) async fn until_waiting(&self, sessions: i64) {
        let Some(sql) = self.database.waiting else {
            return tokio::time::sleep(Duration::from_millis(60)).await;
        };
        eventually("sessions wait for a lock", PATIENCE, async || {
            (self.sessions(sql).await >= sessions).then_some(())
        })
        .await;
    }

    /// Waits until no session is left inside a transaction.
    pub(super) async fn until_nobody_is_in_a_transaction(&self) {
        let Some(sql) = self.database.idle_in_transaction else {
            return;
        };
        eventually("no transaction is left open", PATIENCE, async || {
            (self.sessions(sql).await == 0).then_some(())
        })
        .await;
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("adapter", &self.adapter.name())
            .field("home", &self.home)
            .finish_non_exhaustive()
    }
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

/// The domain that the cases use.
pub(super) fn domain() -> Domain {
    Domain::named("conformance").unwrap()
}

/// The token of this number.
pub(super) fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

/// The fence of one key in the domain of the cases, without options.
pub(super) fn bare(key: impl AsRef<[u8]>, number: u64) -> Fence {
    Fence::new(domain(), FenceKey::new(key).unwrap(), token(number))
}

/// The same with the options that are the default.
pub(super) fn fence(key: impl AsRef<[u8]>, number: u64) -> Configured {
    FenceOptions::new().apply(bare(key, number))
}

/// The verdict in what the closure form returned; an error of the driver counts as one.
pub(super) fn verdict(error: BoxError) -> Verdict {
    let error = match error.downcast::<Verdict>() {
        Ok(verdict) => return *verdict,
        Err(error) => error,
    };
    match error.downcast::<DriverError>() {
        Ok(error) => Verdict::Database(*error),
        Err(error) => panic!("neither a verdict nor an error of the driver: {error:?}"),
    }
}

/// Takes from the stock what is there behind the fence, the way an application does: it reads, and
/// then writes what it computed.
pub(super) async fn deduct(
    tx: &mut dyn Statements,
    sku: &str,
    amount: i64,
) -> Result<i64, DriverError> {
    let read = format!("SELECT quantity FROM stock WHERE sku = '{sku}'");
    let left = tx.number(&read).await?;
    let left = left.ok_or(DriverError::text("no such sku"))? - amount;
    tx.run(&set(sku, left)).await?;
    Ok(left)
}

/// A body that deducts.
pub(super) fn selling(sku: &'static str, amount: i64) -> Body {
    body(move |tx| Box::pin(async move { Ok(deduct(tx, sku, amount).await?) }))
}

/// Sets the quantity of a sku.
pub(super) fn set(sku: &str, quantity: i64) -> String {
    format!("UPDATE stock SET quantity = {quantity} WHERE sku = '{sku}'")
}
