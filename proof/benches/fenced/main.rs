//! Fenced over plain, per adapter, in one run: `cargo bench -p highwater-proof`.
//!
//! A transaction reads a row by its key and writes it. Plain and fenced ones of the same adapter,
//! and fenced ones on a table that the database protects, take turns in short blocks on one
//! connection, so that what else the machine does hits all; the figures are medians of the blocks,
//! and their ratios. SQLite runs on a file in the target folder, with `synchronous = FULL`; servers
//! run where `HIGHWATER_BENCH_POSTGRES_URL`, `HIGHWATER_BENCH_MYSQL_URL` or
//! `HIGHWATER_BENCH_MARIADB_URL` point to a database that may be filled with tables. For figures that
//! mean something their data must lie on a disk.
//!
//! `HIGHWATER_BENCH_DELAY_US` holds every answer of a server back for that long.
//! `HIGHWATER_BENCH_REPEAT` reads and writes that many times in each transaction, and with
//! `HIGHWATER_BENCH_RISING` every fence has a new token, as when each transaction has a lock of its own.
//! Words after `--` choose adapters.

mod delay;
#[cfg(feature = "tokio-postgres")]
mod messages;

use std::env;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use highwater_fencing::migrate::{self, Dialect as Sql};
use highwater_fencing::protect::{Protection, RowKey};
use highwater_fencing::{
    Configured, Domain, Fence, FenceKey, FenceOptions, FencingToken, TableName,
};
use highwater_proof::adapter::{Adapter, BoxError, Dialect, Source, Tx, all};

/// Blocks of each kind, and the transactions in one.
const BLOCKS: usize = 41;
const TRANSACTIONS: u32 = 10;

type Outcome<T> = Result<T, BoxError>;

fn main() -> Outcome<()> {
    let words: Vec<String> = env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let runtime = tokio::runtime::Runtime::new()?;
    println!(
        "| database | adapter | plain, µs | fenced, µs | ratio | protected, µs | over fenced |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (database, dialect) in DATABASES {
        let Some(url) = url(database)? else {
            println!(
                "| {database} | not run: HIGHWATER_BENCH_{}_URL is not set | | | | | |",
                database.to_uppercase()
            );
            continue;
        };
        let chosen = |adapter: &&dyn Adapter| {
            adapter.dialect() == dialect
                && (words.is_empty() || words.iter().any(|word| word == adapter.name()))
        };
        for adapter in all().into_iter().filter(chosen) {
            let row = runtime.block_on(compare(adapter, &url))?;
            row.print(database, adapter.name());
            #[cfg(feature = "tokio-postgres")]
            if adapter.name() == "tokio-postgres" {
                for (name, row) in runtime.block_on(messages::compare(&url))? {
                    row.print(database, name);
                }
            }
        }
    }
    Ok(())
}

const DATABASES: [(&str, Dialect); 4] = [
    ("sqlite", Dialect::Sqlite),
    ("postgres", Dialect::Postgres),
    ("mysql", Dialect::MySql),
    ("mariadb", Dialect::MySql),
];

/// Where the database is, if it is there.
fn url(database: &str) -> Outcome<Option<String>> {
    if database != "sqlite" {
        let url = env::var(format!("HIGHWATER_BENCH_{}_URL", database.to_uppercase())).ok();
        let Ok(delay) = env::var("HIGHWATER_BENCH_DELAY_US") else {
            return Ok(url);
        };
        let delay = Duration::from_micros(delay.parse()?);
        return Ok(url.map(|url| delay::proxy(&url, delay)).transpose()?);
    }
    let folder = env::current_exe()?;
    let folder = folder.parent().ok_or("no folder")?;
    let file = folder.join(format!("bench-{}.db", std::process::id()));
    Ok(Some(format!("sqlite://{}?mode=rwc", file.display())))
}

/// The medians of one adapter.
struct Row {
    plain: Duration,
    fenced: Duration,
    /// Fenced on a protected table, if that was measured.
    protected: Option<Duration>,
}

impl Row {
    fn print(&self, database: &str, name: &str) {
        let ratio = |of: Duration, over: Duration| of.as_secs_f64() / over.as_secs_f64();
        let (plain, fenced) = (self.plain.as_micros(), self.fenced.as_micros());
        let fence = ratio(self.fenced, self.plain);
        let protected = self.protected.map_or("- | -".to_owned(), |protected| {
            let guard = ratio(protected, self.fenced);
            format!("{} | {guard:.2}", protected.as_micros())
        });
        println!("| {database} | {name} | {plain} | {fenced} | {fence:.2} | {protected} |");
    }
}

/// What a transaction is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Fenced,
    Protected,
}

const KINDS: [Kind; 3] = [Kind::Plain, Kind::Fenced, Kind::Protected];

async fn compare(adapter: &'static dyn Adapter, url: &str) -> Outcome<Row> {
    let source = adapter.open(url, 1).await?;
    if adapter.dialect() == Dialect::Sqlite {
        source
            .run("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
            .await?;
    }
    for marks in [TableName::DEFAULT, guarded_marks()] {
        source.migrate(&marks).await?;
    }
    for table in [STOCK, PROTECTED] {
        source.run(&format!("DROP TABLE IF EXISTS {table}")).await?;
        source
            .run(&format!(
                "CREATE TABLE {table} (sku VARCHAR(60) NOT NULL PRIMARY KEY, \
                 quantity BIGINT NOT NULL)"
            ))
            .await?;
        source
            .run(&format!("INSERT INTO {table} VALUES ('apple', 1000000)"))
            .await?;
    }
    let kinds = match protect(adapter.dialect(), url).await {
        Ok(()) => &KINDS[..],
        Err(error) => {
            eprintln!("no protected table for {}: {error}", adapter.name());
            &KINDS[..2]
        }
    };
    let mut times = [const { Vec::new() }; KINDS.len()];
    for block in 0..=BLOCKS {
        for &kind in kinds {
            let started = Instant::now();
            for _ in 0..TRANSACTIONS {
                transaction(&*source, kind).await?;
            }
            // The first one only warms up.
            if block > 0 {
                times[kind as usize].push(started.elapsed() / TRANSACTIONS);
            }
        }
    }
    source.close().await;
    let [plain, fenced, protected] = times;
    Ok(Row {
        plain: median(plain).ok_or("nothing was measured")?,
        fenced: median(fenced).ok_or("nothing was measured")?,
        protected: median(protected),
    })
}

fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

const STOCK: &str = "bench_stock";
const PROTECTED: &str = "bench_protected";

/// The marks of the protected table: they have triggers, which the fenced transactions beside them
/// must not pay for.
fn guarded_marks() -> TableName {
    TableName::new("bench_marks").expect("a name")
}

/// Protects a table, over sqlx: the statements are long, and some drivers take one at a time.
async fn protect(dialect: Dialect, url: &str) -> Outcome<()> {
    let (sql, key) = match dialect {
        Dialect::Postgres => (Sql::Postgres, "'stock/' || {sku}"),
        Dialect::MySql => (Sql::MySql, "CONCAT('stock/', {sku})"),
        Dialect::Sqlite => (Sql::Sqlite, "'stock/' || {sku}"),
    };
    let is_sqlx = |adapter: &&dyn Adapter| adapter.name() == "sqlx" && adapter.dialect() == dialect;
    let sqlx = all().into_iter().find(is_sqlx);
    let sqlx = sqlx.ok_or("this build has no sqlx")?;
    let source = sqlx.open(url, 1).await?;
    let protection = Protection::new(TableName::new(PROTECTED)?, RowKey::sql(key)?);
    let protection = protection.marks(guarded_marks());
    source
        .run(&migrate::print_protect(sql, &guarded_marks()))
        .await?;
    source.run(&protection.install(sql)).await?;
    source.close().await;
    Ok(())
}

async fn transaction(source: &dyn Source, kind: Kind) -> Outcome<()> {
    let table = match kind {
        Kind::Plain | Kind::Fenced => STOCK,
        Kind::Protected => PROTECTED,
    };
    let mut tx: Box<dyn Tx> = match kind {
        Kind::Plain => source.begin_unfenced().await?,
        Kind::Fenced => source.begin(&fence()).await?,
        Kind::Protected => {
            let options = FenceOptions::new().table_name(guarded_marks());
            let fence = options.apply(fence().fence().clone());
            source.begin(&fence).await?
        }
    };
    for _ in 0..*REPEAT {
        let left = tx
            .number(&format!("SELECT quantity FROM {table} WHERE sku = 'apple'"))
            .await?;
        let left = left.ok_or("no stock")? - 1;
        tx.run(&format!(
            "UPDATE {table} SET quantity = {left} WHERE sku = 'apple'"
        ))
        .await?;
    }
    Ok(tx.commit().await?)
}

static REPEAT: LazyLock<u32> = LazyLock::new(|| {
    let repeat = env::var("HIGHWATER_BENCH_REPEAT").ok();
    repeat.and_then(|repeat| repeat.parse().ok()).unwrap_or(1)
});

/// The token of the next fence, if each has a new one: higher than those of earlier runs.
static RISING: LazyLock<Option<AtomicU64>> = LazyLock::new(|| {
    env::var_os("HIGHWATER_BENCH_RISING")?;
    let now = UNIX_EPOCH.elapsed().unwrap_or_default();
    Some(AtomicU64::new(now.as_micros().try_into().unwrap_or(1)))
});

fn fence() -> Configured {
    let domain = Domain::named("bench").expect("a name");
    let key = FenceKey::new("stock/apple").expect("a key");
    let token = match &*RISING {
        Some(next) => FencingToken::new(next.fetch_add(1, Ordering::Relaxed)),
        None => None,
    };
    FenceOptions::new().apply(Fence::new(domain, key, token.unwrap_or(FencingToken::MIN)))
}
