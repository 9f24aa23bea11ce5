//! The write of one row on SQLite, where it is a transaction like every other.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

use highwater_fencing::sqlx::{FenceError, RowWrite, SqlxFence as _};
use highwater_fencing::{Domain, Fence, FenceKey, FencingToken, Step, TableName, Written, migrate};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;

async fn base(folder: &tempfile::TempDir) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("base.db"))
        .create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await.unwrap();
    migrate::sqlite::run(&pool).await.unwrap();
    sqlx::raw_sql(
        "CREATE TABLE stock (sku TEXT, shop TEXT, quantity INT, note TEXT, PRIMARY KEY (sku, shop)); \
         INSERT INTO stock VALUES ('a', 's', 100, NULL), ('a', 't', 50, NULL)",
    )
    .execute(&pool)
    .await
    .unwrap();
    pool
}

fn fence(token: u64) -> Fence {
    let domain = Domain::named("test").unwrap();
    let token = FencingToken::new(token).unwrap();
    Fence::new(domain, FenceKey::new("a").unwrap(), token)
}

fn stock() -> TableName {
    TableName::new("stock").unwrap()
}

async fn rows(pool: &SqlitePool) -> Vec<(String, String, i64)> {
    sqlx::query_as("SELECT sku, shop, quantity FROM stock ORDER BY sku, shop")
        .fetch_all(pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_row_is_named_by_its_whole_key() {
    let folder = tempfile::tempdir().unwrap();
    let pool = base(&folder).await;
    let write = RowWrite::update(stock(), "sku", "a")
        .key("shop", "s".to_owned())
        .subtract("quantity", 10_i64)
        .set("note", Some("picked"));
    assert_eq!(
        fence(5).write(&pool, &write).await.unwrap(),
        Written::Applied
    );
    let insert = RowWrite::insert(stock(), "sku", "b")
        .key("shop", "s")
        .subtract("quantity", 1);
    assert_eq!(
        fence(5).write(&pool, &insert).await.unwrap(),
        Written::Applied
    );
    let delete = RowWrite::delete(stock(), "sku", "a").key("shop", "t");
    assert_eq!(
        fence(5).write(&pool, &delete).await.unwrap(),
        Written::Applied
    );
    let expected = [("a", "s", 90), ("b", "s", -1)];
    let expected = expected.map(|(sku, shop, left)| (sku.to_owned(), shop.to_owned(), left));
    assert_eq!(rows(&pool).await, expected);
}

#[tokio::test]
async fn a_key_that_names_several_rows_writes_none() {
    let folder = tempfile::tempdir().unwrap();
    let pool = base(&folder).await;
    let before = rows(&pool).await;
    let write = RowWrite::update(stock(), "sku", "a").add("quantity", 1);
    let error = fence(5).write(&pool, &write).await.unwrap_err();
    assert!(error.to_string().contains("rolled back"), "{error}");
    assert_eq!(rows(&pool).await, before);
    let nothing = RowWrite::update(stock(), "sku", "a");
    assert!(fence(5).write(&pool, &nothing).await.is_err());
}

#[tokio::test]
async fn refusals_and_missing_rows_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let pool = base(&folder).await;
    let step = |number| fence(5).with_step(Step::new(number).unwrap());
    let write = |sku| {
        RowWrite::update(stock(), "sku", sku)
            .key("shop", "s")
            .add("quantity", 1)
    };
    assert_eq!(
        step(1).write(&pool, &write("nobody")).await.unwrap(),
        Written::NoRow
    );
    assert_eq!(
        step(1).write(&pool, &write("a")).await.unwrap(),
        Written::Applied
    );
    let again = step(1).write(&pool, &write("a")).await;
    assert!(
        matches!(again, Err(FenceError::AlreadyApplied { .. })),
        "{again:?}"
    );
    let stale = fence(4).write(&pool, &write("nobody")).await;
    assert!(matches!(stale, Err(FenceError::Stale { .. })), "{stale:?}");
}
