//! The write of one row through tokio-postgres, on a real server. The URL comes from
//! HIGHWATER_TEST_POSTGRES_URL; a missing one is a failure.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

use std::time::Duration;

use highwater_fencing::tokio_postgres::{FenceError, RowWrite, TokioPostgresFence as _};
use highwater_fencing::{
    Configured, Domain, Fence, FenceKey, FenceOptions, FencingToken, Step, TableName, Written,
    migrate,
};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls};

async fn connect() -> Client {
    let url = std::env::var("HIGHWATER_TEST_POSTGRES_URL");
    let url = url.unwrap_or_else(|_| panic!("set HIGHWATER_TEST_POSTGRES_URL to a test server"));
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A row `a` of 100 pieces, in a table of its own.
struct Base {
    client: Client,
    outside: Client,
    marks: TableName,
    stock: TableName,
}

impl Base {
    async fn new(name: &str) -> Self {
        let table = |what: &str| {
            let name = format!("{what}_{name}_{}", std::process::id());
            TableName::new(name).unwrap()
        };
        let base = Self {
            client: connect().await,
            outside: connect().await,
            marks: table("marks"),
            stock: table("stock"),
        };
        migrate::tokio_postgres::run_for(&base.outside, &base.marks)
            .await
            .unwrap();
        let create = format!(
            "CREATE TABLE {0} (sku text PRIMARY KEY, quantity int NOT NULL, note text); \
             INSERT INTO {0} VALUES ('a', 100)",
            base.stock
        );
        base.outside.batch_execute(&create).await.unwrap();
        base
    }

    fn fence(&self, token: u64) -> Configured {
        let domain = Domain::named("test").unwrap();
        let token = FencingToken::new(token).unwrap();
        let fence = Fence::new(domain, FenceKey::new("a").unwrap(), token);
        FenceOptions::new()
            .table_name(self.marks.clone())
            .apply(fence)
    }

    fn take_ten(&self, sku: &'static &'static str) -> RowWrite<'static> {
        RowWrite::update(self.stock.clone(), "sku", sku, Type::TEXT).subtract(
            "quantity",
            &10_i32,
            Type::INT4,
        )
    }

    async fn rows(&self) -> Vec<(String, i32)> {
        let read = format!("SELECT sku, quantity FROM {} ORDER BY sku", self.stock);
        let rows = self.outside.query(&read, &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }
}

#[tokio::test]
async fn rows_are_changed_inserted_and_deleted() {
    let mut base = Base::new("changed").await;
    let (stock, fence) = (base.stock.clone(), base.fence(5));
    let update = base.take_ten(&"a").set("note", &"it's $1", Type::TEXT);
    let insert = RowWrite::insert(stock.clone(), "sku", &"b", Type::TEXT).add(
        "quantity",
        &7_i32,
        Type::INT4,
    );
    for write in [&update, &insert] {
        let written = fence.write(&mut base.client, write).await;
        assert_eq!(written.unwrap(), Written::Applied);
    }
    assert_eq!(
        base.rows().await,
        [("a".to_owned(), 90), ("b".to_owned(), 7)]
    );
    let twice = fence.write(&mut base.client, &insert).await.unwrap_err();
    assert!(matches!(twice, FenceError::Database(_)), "{twice:?}");
    let delete = RowWrite::delete(stock, "sku", &"b", Type::TEXT);
    for expected in [Written::Applied, Written::NoRow] {
        let written = fence.write(&mut base.client, &delete).await;
        assert_eq!(written.unwrap(), expected);
    }
}

#[tokio::test]
async fn refusals_and_missing_rows_are_told_apart() {
    let mut base = Base::new("refused").await;
    let step = |base: &Base| {
        let options = base.fence(5).options().clone();
        options.apply(
            base.fence(5)
                .fence()
                .clone()
                .with_step(Step::new(1).unwrap()),
        )
    };
    let (nobody, a) = (base.take_ten(&"nobody"), base.take_ten(&"a"));
    let fence = step(&base);
    for (write, expected) in [(&nobody, Written::NoRow), (&a, Written::Applied)] {
        let written = fence.write(&mut base.client, write).await;
        assert_eq!(written.unwrap(), expected);
    }
    let again = fence.write(&mut base.client, &a).await;
    assert!(
        matches!(again, Err(FenceError::AlreadyApplied { .. })),
        "{again:?}"
    );
    let stale = base.fence(4).write(&mut base.client, &nobody).await;
    assert!(matches!(stale, Err(FenceError::Stale { .. })), "{stale:?}");
    assert_eq!(base.rows().await, [("a".to_owned(), 90)]);
}

#[tokio::test]
async fn a_key_that_names_several_rows_writes_none() {
    let mut base = Base::new("several").await;
    let more = format!("INSERT INTO {} VALUES ('b', 100), ('c', 100)", base.stock);
    base.outside.batch_execute(&more).await.unwrap();
    let by_quantity = RowWrite::update(base.stock.clone(), "quantity", &100_i32, Type::INT4).set(
        "note",
        &"x",
        Type::TEXT,
    );
    let several = base.fence(5).write(&mut base.client, &by_quantity).await;
    assert!(
        matches!(several, Err(FenceError::Database(_))),
        "{several:?}"
    );
    let read = format!("SELECT COUNT(*) FROM {} WHERE note = 'x'", base.stock);
    let written: i64 = base.outside.query_one(&read, &[]).await.unwrap().get(0);
    assert_eq!(written, 0);
}

/// A row that an older holder inserts while this one waits is seen: the write is a statement of its
/// own, behind the fence.
#[tokio::test]
async fn a_row_that_came_while_the_write_waited_is_written() {
    let base = Base::new("waited").await;
    let mut ahead = connect().await;
    let fence = base.fence(5);
    let older = fence.begin(&mut ahead).await.unwrap();
    let insert = format!("INSERT INTO {} VALUES ('new', 50)", base.stock);
    older.execute(&insert, &[]).await.unwrap();
    let (mut client, newer, write) = (connect().await, base.fence(6), base.take_ten(&"new"));
    let newer = tokio::spawn(async move { newer.write(&mut client, &write).await });
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    let waiting = format!(
        "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%'",
        base.marks
    );
    while base
        .outside
        .query_one(&waiting, &[])
        .await
        .unwrap()
        .get::<_, i64>(0)
        == 0
    {
        assert!(tokio::time::Instant::now() < deadline, "nobody waits");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    older.commit().await.unwrap();
    assert_eq!(newer.await.unwrap().unwrap(), Written::Applied);
    let read = format!("SELECT quantity FROM {} WHERE sku = 'new'", base.stock);
    let left: i32 = base.outside.query_one(&read, &[]).await.unwrap().get(0);
    assert_eq!(left, 40);
}
