//! Fenced over plain, per adapter, in one run: `cargo bench -p highwater-proof`.
//!
//! A transaction reads a row by its key and writes it. Plain and fenced ones of the same adapter
//! take turns in short blocks on one connection, so that what else the machine does hits both; the
//! figures are medians of the blocks, and their ratio. SQLite runs on a file in the target folder,
//! with `synchronous = FULL`; servers run where `HIGHWATER_BENCH_POSTGRES_URL`,
//! `HIGHWATER_BENCH_MYSQL_URL` or `HIGHWATER_BENCH_MARIADB_URL` point to a database that may be
//! filled with tables. For figures that mean something their data must lie on a disk.
//!
//! `HIGHWATER_BENCH_DELAY_US` holds every answer of a server back for that long. Words after `--`
//! choose adapters.

use std::env;
use std::time::{Duration, Instant};

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
    println!("| database | adapter | plain, µs | fenced, µs | ratio |");
    println!("|---|---|---|---|---|");
    for (database, dialect) in DATABASES {
        let Some(url) = url(database)? else {
            println!(
                "| {database} | not run: HIGHWATER_BENCH_{}_URL is not set | | | |",
                database.to_uppercase()
            );
            continue;
        };
        let chosen = |adapter: &&dyn Adapter| {
            adapter.dialect() == dialect
                && (words.is_empty() || words.iter().any(|word| word == adapter.name()))
        };
        for adapter in all().into_iter().filter(chosen) {
            let [plain, fenced] = runtime.block_on(compare(adapter, &url))?;
            let ratio = fenced.as_secs_f64() / plain.as_secs_f64();
            println!(
                "| {database} | {} | {} | {} | {ratio:.2} |",
                adapter.name(),
                plain.as_micros(),
                fenced.as_micros()
            );
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
        return Ok(env::var(format!("HIGHWATER_BENCH_{}_URL", database.to_uppercase())).ok());
    }
    let folder = env::current_exe()?;
    let folder = folder.parent().ok_or("no folder")?;
    let file = folder.join(format!("bench-{}.db", std::process::id()));
    Ok(Some(format!("sqlite://{}?mode=rwc", file.display())))
}

/// The medians of plain and of fenced transactions.
async fn compare(adapter: &'static dyn Adapter, url: &str) -> Outcome<[Duration; 2]> {
    let source = adapter.open(url, 1).await?;
    source.migrate(&TableName::DEFAULT).await?;
    if adapter.dialect() == Dialect::Sqlite {
        source
            .run("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
            .await?;
    }
    source.run("DROP TABLE IF EXISTS bench_stock").await?;
    source.run("CREATE TABLE bench_stock (sku VARCHAR(60) NOT NULL PRIMARY KEY, quantity BIGINT NOT NULL)").await?;
    source
        .run("INSERT INTO bench_stock VALUES ('apple', 1000000)")
        .await?;
    let mut times = [Vec::new(), Vec::new()];
    for block in 0..=BLOCKS {
        for (fenced, times) in times.iter_mut().enumerate() {
            let started = Instant::now();
            for _ in 0..TRANSACTIONS {
                transaction(&*source, fenced == 1).await?;
            }
            // The first one only warms up.
            if block > 0 {
                times.push(started.elapsed() / TRANSACTIONS);
            }
        }
    }
    source.close().await;
    Ok(times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    }))
}

async fn transaction(source: &dyn Source, fenced: bool) -> Outcome<()> {
    let mut tx: Box<dyn Tx> = if fenced {
        source.begin(&fence()).await?
    } else {
        source.begin_unfenced().await?
    };
    let left = tx
        .number("SELECT quantity FROM bench_stock WHERE sku = 'apple'")
        .await?;
    let left = left.ok_or("no stock")? - 1;
    tx.run(&format!(
        "UPDATE bench_stock SET quantity = {left} WHERE sku = 'apple'"
    ))
    .await?;
    Ok(tx.commit().await?)
}

fn fence() -> Configured {
    let domain = Domain::named("bench").expect("a name");
    let key = FenceKey::new("stock/apple").expect("a key");
    FenceOptions::new().apply(Fence::new(domain, key, FencingToken::MIN))
}
