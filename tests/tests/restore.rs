//! A PostgreSQL database is dumped, goes on, and is restored: without the procedure of
//! docs/operations.md a stale holder is back in business, with it he is refused.

use std::time::Duration;

use highwater_fencing::operate::{Marks, Selection};
use highwater_fencing::sqlx::{FenceError, SqlxFence as _};
use highwater_fencing::{Domain, Fence, FenceKey, FencingToken, migrate};
use highwater_tests::databases::{Appliance, PASSWORD};
use highwater_tests::wait::eventually;
use sqlx::PgPool;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Who was in when the backup was made, the successor, and the one who slept in between.
const BEFORE: u64 = 7;
const STALE: u64 = 8;
const AFTER: u64 = 9;
/// What the lock service gives out next.
const NEXT: u64 = 10;

fn domain() -> Domain {
    Domain::named("locks").expect("a name")
}

/// Deducts what the token says, so that every write can be told.
async fn write(pool: &PgPool, key: &str, token: u64) -> Result<(), FenceError> {
    let token = FencingToken::new(token).expect("not zero");
    let fence = Fence::new(domain(), FenceKey::new(key).expect("a key"), token);
    fence
        .transaction(pool, async |tx| {
            sqlx::query("INSERT INTO writes VALUES ($1, $2)")
                .bind(key)
                .bind(i64::try_from(token.get()).expect("small"))
                .execute(&mut *tx)
                .await?;
            Ok::<_, FenceError>(())
        })
        .await
}

async fn open(url: &str) -> PgPool {
    let limit = Duration::from_secs(60);
    eventually("the server answers", limit, async || {
        PgPool::connect(url).await.ok()
    })
    .await
}

#[track_caller]
fn stale(outcome: Result<(), FenceError>) {
    assert!(
        matches!(outcome, Err(FenceError::Stale { .. })),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn a_restored_dump_admits_a_stale_holder_until_the_marks_are_raised() -> Outcome<()> {
    let environment = [("POSTGRES_PASSWORD", PASSWORD)];
    let server = Appliance::start(
        "HIGHWATER_TEST_POSTGRES_IMAGE",
        "postgres:17",
        &environment,
        &["-c", "fsync=off"],
        &[5432],
    )
    .await?;
    let port = server.port(5432).await?;
    let url = |name: &str| format!("postgres://postgres:{PASSWORD}@127.0.0.1:{port}/{name}");
    open(&url("postgres")).await.close().await;
    server.run(&in_path("createdb -U postgres shop")).await?;

    let shop = open(&url("shop")).await;
    migrate::postgres::run(&shop).await?;
    sqlx::raw_sql("CREATE TABLE writes (key text, token bigint)")
        .execute(&shop)
        .await?;
    write(&shop, "stock/apple", BEFORE).await?;
    server
        .run(&in_path("pg_dump -U postgres -Fc -f /tmp/backup shop"))
        .await?;
    write(&shop, "stock/apple", AFTER).await?;
    write(&shop, "stock/young", AFTER).await?;
    stale(write(&shop, "stock/apple", STALE).await);

    // Restored under other names, so that nobody from before finds the way.
    let restore = async |name: &str| {
        let script =
            format!("createdb -U postgres {name}; pg_restore -U postgres -d {name} /tmp/backup");
        server.run(&in_path(&script)).await?;
        Ok::<_, String>(open(&url(name)).await)
    };
    let careless = restore("careless").await?;
    write(&careless, "stock/apple", STALE).await?;
    write(&careless, "stock/young", STALE).await?;

    let careful = restore("careful").await?;
    let marks = Marks::new(careful.clone());
    let floor = FencingToken::new(NEXT).expect("not zero");
    let raised = marks.raise(&Selection::all(), domain(), floor).await?;
    assert_eq!(raised.changed.len(), 1);
    // The application knows which keys there are.
    let keys = ["stock/apple", "stock/young"].map(|key| FenceKey::new(key).expect("a key"));
    let raised = marks.raise_keys(&keys.into(), domain(), floor).await?;
    assert_eq!(raised.created.len(), 1);
    for key in ["stock/apple", "stock/young"] {
        for token in [BEFORE, STALE, AFTER] {
            stale(write(&careful, key, token).await);
        }
    }
    // Numbers of transactions from before the dump mean nothing here.
    let numbers = "SELECT count(*) FROM highwater_fence WHERE last_tx <> '0'";
    let numbers: i64 = sqlx::query_scalar(numbers).fetch_one(&careful).await?;
    assert_eq!(numbers, 0);
    write(&careful, "stock/apple", NEXT).await?;
    write(&careful, "stock/young", NEXT + 1).await?;
    let writes: i64 = sqlx::query_scalar("SELECT count(*) FROM writes")
        .fetch_one(&careful)
        .await?;
    assert_eq!(writes, 3);
    Ok(())
}

fn in_path(script: &str) -> String {
    format!("export PATH=$PATH:$(echo /usr/lib/postgresql/*/bin)\n{script}")
}
