//! A fenced transaction against a plain one that does the same work, per database.
//!
//! SQLite needs nothing; a server is measured if HIGHWATER_TEST_POSTGRES_URL,
//! HIGHWATER_TEST_MYSQL_URL or HIGHWATER_TEST_MARIADB_URL names one. Besides the times of criterion
//! it prints the ratio from rounds in which both take turns, so that noise hits them alike.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use highwater_fencing::sqlx::{FenceError, SqlxFence as _};
use highwater_fencing::{Domain, Fence, FenceKey, FenceOptions, FencingToken, Mark, TableName};
use sqlx::AssertSqlSafe;
use tokio::runtime::Runtime;

const ROUNDS: usize = 400;

fn main() {
    let mut criterion = Criterion::default()
        .configure_from_args()
        .measurement_time(Duration::from_secs(3))
        .warm_up_time(Duration::from_millis(500))
        .sample_size(20);
    let runtime = Runtime::new().expect("a runtime starts");
    sqlite::bench(&runtime, &mut criterion);
    postgres::bench(&runtime, &mut criterion);
    mysql::bench(&runtime, &mut criterion);
    mariadb::bench(&runtime, &mut criterion);
    criterion.final_summary();
}

fn fence(keys: usize) -> Fence {
    let marks = (0..keys).map(|key| Mark {
        key: FenceKey::new(format!("key-{key}")).expect("a short key"),
        token: FencingToken::MIN,
    });
    Fence::from_marks(Domain::named("bench").expect("a short name"), marks).expect("distinct keys")
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

macro_rules! bench {
    ($name:ident, $url:expr, $pool:ty, $options:ty, $migrate:path) => {
        mod $name {
            use super::*;

            pub(super) fn bench(runtime: &Runtime, criterion: &mut Criterion) {
                let name = stringify!($name);
                let Some((url, _folder)) = $url else {
                    eprintln!("{name}: NOT MEASURED, its variable names no server");
                    return;
                };
                let table = format!("bench_{}", std::process::id());
                let update = format!("UPDATE {table} SET quantity = quantity + 1 WHERE sku = 1");
                let fences = TableName::new(format!("bench_fence_{}", std::process::id()))
                    .expect("an identifier");
                let pool: $pool = runtime.block_on(async {
                    let pool = <$options>::new().max_connections(1).connect(&url).await;
                    let pool = pool.expect("the server answers");
                    $migrate(&pool, &fences).await.expect("the table of marks is created");
                    let setup = format!(
                        "CREATE TABLE {table} (sku INT PRIMARY KEY, quantity BIGINT); \
                         INSERT INTO {table} VALUES (1, 0)"
                    );
                    let setup = sqlx::raw_sql(AssertSqlSafe(setup)).execute(&pool).await;
                    setup.expect("the table is created");
                    pool
                });
                let options = FenceOptions::new().table_name(fences.clone());
                let (one, eight) = (options.apply(fence(1)), options.apply(fence(8)));
                let plain = async || {
                    let mut tx = pool.begin().await?;
                    sqlx::query(AssertSqlSafe(update.clone())).execute(&mut *tx).await?;
                    tx.commit().await
                };
                let fenced = async |fence: &highwater_fencing::Configured| {
                    fence
                        .transaction(&pool, async |tx| {
                            let update = sqlx::query(AssertSqlSafe(update.clone()));
                            Ok::<_, FenceError>(update.execute(&mut *tx).await?)
                        })
                        .await
                };
                let mut group = criterion.benchmark_group(format!("transaction/{name}"));
                group.bench_function("plain", |bencher| {
                    bencher.iter(|| runtime.block_on(plain()).expect("it commits"))
                });
                group.bench_function("fenced", |bencher| {
                    bencher.iter(|| black_box(runtime.block_on(fenced(&one)).expect("it commits")))
                });
                group.bench_function("fenced, 8 keys", |bencher| {
                    bencher.iter(|| black_box(runtime.block_on(fenced(&eight)).expect("it commits")))
                });
                group.finish();

                let (mut without, mut with, mut with_eight) = (vec![], vec![], vec![]);
                for _ in 0..ROUNDS {
                    let start = Instant::now();
                    runtime.block_on(plain()).expect("it commits");
                    without.push(start.elapsed());
                    let start = Instant::now();
                    runtime.block_on(fenced(&one)).expect("it commits");
                    with.push(start.elapsed());
                    let start = Instant::now();
                    runtime.block_on(fenced(&eight)).expect("it commits");
                    with_eight.push(start.elapsed());
                }
                let (plain, one, eight) = (median(without), median(with), median(with_eight));
                println!(
                    "{name}: plain {plain:.0} us, fenced {one:.0} us ({:.2} x), 8 keys {eight:.0} us \
                     ({:.2} x)",
                    one / plain,
                    eight / plain,
                );
                runtime.block_on(async {
                    let drop = format!("DROP TABLE {table}; DROP TABLE {fences}");
                    sqlx::raw_sql(AssertSqlSafe(drop)).execute(&pool).await.ok();
                    pool.close().await;
                });
            }
        }
    };
}

/// The URL of a server, if the variable is set.
fn server(variable: &str) -> Option<(String, Option<tempfile::TempDir>)> {
    std::env::var(variable).ok().map(|url| (url, None))
}

/// A new database file.
fn file() -> Option<(String, Option<tempfile::TempDir>)> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bench.db");
    Some((
        format!("sqlite://{}?mode=rwc", file.display()),
        Some(folder),
    ))
}

bench!(
    sqlite,
    file(),
    sqlx::SqlitePool,
    sqlx::sqlite::SqlitePoolOptions,
    highwater_fencing::migrate::sqlite::run_for
);
bench!(
    postgres,
    server("HIGHWATER_TEST_POSTGRES_URL"),
    sqlx::PgPool,
    sqlx::postgres::PgPoolOptions,
    highwater_fencing::migrate::postgres::run_for
);
bench!(
    mysql,
    server("HIGHWATER_TEST_MYSQL_URL"),
    sqlx::MySqlPool,
    sqlx::mysql::MySqlPoolOptions,
    highwater_fencing::migrate::mysql::run_for
);
bench!(
    mariadb,
    server("HIGHWATER_TEST_MARIADB_URL"),
    sqlx::MySqlPool,
    sqlx::mysql::MySqlPoolOptions,
    highwater_fencing::migrate::mysql::run_for
);
