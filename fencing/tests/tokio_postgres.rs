//! What only the adapter of tokio-postgres has, on a real server: the forms that save round trips,
//! the driver's methods on the guard, and connections that are used again after a guard was
//! dropped. The URL comes from HIGHWATER_TEST_POSTGRES_URL; a missing one is a failure.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

use std::error::Error as _;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _, future};
use highwater_fencing::migrate::{self, MigrateError, Outcome};
use highwater_fencing::tokio_postgres::{
    FenceError, Fenced, Poisoned, Query, TokioPostgresFence as _,
};
use highwater_fencing::{
    Configured, Domain, Fence, FenceKey, FenceOptions, FencingToken, Isolation, Resolution, Step,
    TableName,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::types::{Kind, Timestamp, ToSql, Type};
use tokio_postgres::{Client, Config, NoTls};

fn config() -> Config {
    let url = std::env::var("HIGHWATER_TEST_POSTGRES_URL");
    let url = url.unwrap_or_else(|_| panic!("set HIGHWATER_TEST_POSTGRES_URL to a test server"));
    url.parse().unwrap()
}

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Tables of its own on the server.
struct Base {
    client: Client,
    /// Sees only what was committed.
    outside: Client,
    table: TableName,
    stock: String,
}

impl Base {
    async fn new() -> Self {
        Self::on(connect(&config()).await).await
    }

    async fn on(client: Client) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let suffix = format!(
            "{}_{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::SeqCst)
        );
        let outside = connect(&config()).await;
        let table = TableName::new(format!("tp_fence_{suffix}")).unwrap();
        migrate::tokio_postgres::run_for(&outside, &table)
            .await
            .unwrap();
        let base = Self {
            client,
            outside,
            table,
            stock: format!("tp_stock_{suffix}"),
        };
        let create = "CREATE TABLE stock (sku text PRIMARY KEY, quantity int NOT NULL CHECK \
                      (quantity >= 0)); INSERT INTO stock VALUES ('apple', 100)";
        base.outside.batch_execute(&base.sql(create)).await.unwrap();
        base
    }

    fn sql(&self, sql: &str) -> String {
        sql.replace("stock", &self.stock)
    }

    fn options(&self) -> FenceOptions {
        FenceOptions::new().table_name(self.table.clone())
    }

    fn fence(&self, token: u64) -> Configured {
        self.options().apply(offered(token))
    }

    async fn quantity(&self) -> i32 {
        let read = self.sql("SELECT quantity FROM stock WHERE sku = 'apple'");
        self.outside.query_one(&read, &[]).await.unwrap().get(0)
    }

    /// The connection is outside of a transaction, and nothing of ours is left in its session.
    async fn assert_clean(&self) {
        let left = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'hw%'";
        let left = self.client.query_typed(left, &[]).await.unwrap();
        assert_eq!(left[0].get::<_, i64>(0), 0);
        let before = self.quantity().await;
        let plain = self.sql("UPDATE stock SET quantity = quantity + 1");
        self.client.execute_typed(&plain, &[]).await.unwrap();
        assert_eq!(
            self.quantity().await,
            before + 1,
            "a plain write is not visible elsewhere"
        );
        let undo = self.sql("UPDATE stock SET quantity = quantity - 1");
        self.client.execute_typed(&undo, &[]).await.unwrap();
    }
}

fn offered(token: u64) -> Fence {
    let domain = Domain::named("test").unwrap();
    let token = FencingToken::new(token).unwrap();
    Fence::new(domain, FenceKey::new("stock/apple").unwrap(), token)
}

const DEDUCT: &str = "UPDATE stock SET quantity = quantity - $2 WHERE sku = $1";

#[tokio::test]
async fn a_pipelined_transaction_is_committed_and_raises_the_mark() {
    let mut base = Base::new().await;
    let (deduct, read) = (
        base.sql(DEDUCT),
        base.sql("SELECT quantity, NULL FROM stock"),
    );
    let fence = base.fence(7);
    let answers = fence
        .pipeline(
            &mut base.client,
            &[
                Query::new(&deduct, &[(&"apple", Type::TEXT), (&10_i32, Type::INT4)]),
                Query::new(&deduct, &[(&"pear", Type::TEXT), (&10_i32, Type::INT4)]),
                Query::new(&read, &[]),
            ],
        )
        .await
        .unwrap();
    let affected: Vec<_> = answers.iter().map(|answer| answer.rows_affected).collect();
    assert_eq!(affected, [1, 0, 1]);
    assert_eq!(answers[2].rows[0].get(0), Some("90"));
    assert_eq!(answers[2].rows[0].get(1), None);
    assert_eq!(base.quantity().await, 90);
    base.assert_clean().await;

    let stale = base.fence(6);
    let refused = stale
        .pipeline(
            &mut base.client,
            &[Query::new(
                &deduct,
                &[(&"apple", Type::TEXT), (&10_i32, Type::INT4)],
            )],
        )
        .await;
    assert!(
        matches!(refused, Err(FenceError::Stale { highest, .. }) if highest.get() == 7),
        "{refused:?}"
    );
    assert_eq!(base.quantity().await, 90);
    base.assert_clean().await;
}

#[tokio::test]
async fn a_pipelined_transaction_with_a_failing_statement_writes_nothing() {
    let mut base = Base::new().await;
    let (deduct, fence) = (base.sql(DEDUCT), base.fence(7));
    let one = |sku: &'static &str, number: &'static i32| {
        [(sku as _, Type::TEXT), (number as _, Type::INT4)]
    };
    let (good, bad) = (one(&"apple", &1), one(&"apple", &1_000));
    let refused = fence
        .pipeline(
            &mut base.client,
            &[
                Query::new(&deduct, &good),
                Query::new(&deduct, &bad),
                Query::new(&deduct, &good),
            ],
        )
        .await;
    let Err(FenceError::Database(error)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(error.code().unwrap().code(), "23514");
    assert_eq!(base.quantity().await, 100);
    base.assert_clean().await;
    // The mark went back too.
    base.fence(1)
        .begin(&mut base.client)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();

    // A table of the caller's that is missing is not the table of marks.
    let missing = [Query::new("SELECT * FROM no_such_table", &[])];
    let refused = fence.pipeline(&mut base.client, &missing).await;
    assert!(
        matches!(refused, Err(FenceError::Database(_))),
        "{refused:?}"
    );
    let refused = fence.begin_with(&mut base.client, missing[0]).await;
    assert!(
        matches!(refused, Err(FenceError::Database(_))),
        "{refused:?}"
    );
    drop(refused);
    let nowhere = FenceOptions::new().table("no_such_fence").unwrap();
    let nowhere = nowhere.apply(offered(7));
    let refused = nowhere.pipeline(&mut base.client, &missing).await;
    assert!(
        matches!(refused, Err(FenceError::NotMigrated { .. })),
        "{refused:?}"
    );
    // Nothing is sent if a parameter cannot be.
    let number = [(&1_i32 as _, Type::XML)];
    let refused = fence
        .pipeline(&mut base.client, &[Query::new("SELECT $1", &number)])
        .await;
    assert!(
        matches!(refused, Err(FenceError::Database(_))),
        "{refused:?}"
    );
    base.assert_clean().await;
}

#[tokio::test]
async fn a_transaction_that_a_query_ends_is_not_reported_as_committed() {
    let mut base = Base::new().await;
    let fence = base.fence(7);
    for several in [
        "SELECT 1; COMMIT",
        "SELECT 1; ROLLBACK",
        "SELECT 1; COMMIT; BEGIN",
        "SELECT 1; SELECT 2; SELECT 3; ROLLBACK; BEGIN",
    ] {
        let query = [Query::new(several, &[])];
        let refused = fence.pipeline(&mut base.client, &query).await;
        assert!(matches!(refused, Err(FenceError::Ended(_))), "{refused:?}");
        base.assert_clean().await;
        let tx = fence.begin(&mut base.client).await.unwrap();
        let refused = tx.commit_with(&query).await;
        assert!(matches!(refused, Err(FenceError::Ended(_))), "{refused:?}");
        base.assert_clean().await;
    }
}

#[tokio::test]
async fn each_pipelined_statement_sees_what_was_committed_before_the_fence_was_taken() {
    let base = Base::new().await;
    let mut other = connect(&config()).await;
    let holder_client = &mut connect(&config()).await;
    let holder = base.fence(7).begin(holder_client).await.unwrap();
    let write = base.sql("UPDATE stock SET quantity = 50");
    holder.execute(&write, &[]).await.unwrap();
    let (read, fence) = (base.sql("SELECT quantity FROM stock"), base.fence(8));
    let waiting = tokio::spawn(async move {
        let read = [Query::new(&read, &[])];
        let answers = fence.pipeline(&mut other, &read).await.unwrap();
        answers[0].rows[0].get(0).map(str::to_owned)
    });
    until_somebody_waits(&base).await;
    holder.commit().await.unwrap();
    assert_eq!(waiting.await.unwrap().as_deref(), Some("50"));
}

async fn until_somebody_waits(base: &Base) {
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query \
                 LIKE '%' || $1 || '%' AND pid <> pg_backend_pid()";
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let name: &str = base.table.name();
        let found = base.outside.query_one(waits, &[&name]).await.unwrap();
        if found.get::<_, i64>(0) > 0 {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "nobody waits");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn reading_with_the_fence_and_writing_with_the_commit_is_one_transaction() {
    let mut base = Base::new().await;
    let (read, write) = (
        base.sql("SELECT quantity FROM stock WHERE sku = $1"),
        base.sql("UPDATE stock SET quantity = $1"),
    );
    let fence = base.fence(7);
    let first = [(&"apple" as _, Type::TEXT)];
    let (tx, answer) = fence
        .begin_with(&mut base.client, Query::new(&read, &first))
        .await
        .unwrap();
    let left: i32 = answer.rows[0].get(0).unwrap().parse().unwrap();
    let written = tx
        .commit_with(&[Query::new(&write, &[(&(left - 30), Type::INT4)])])
        .await
        .unwrap();
    assert_eq!(written[0].rows_affected, 1);
    assert_eq!(base.quantity().await, 70);
    base.assert_clean().await;

    // The same in a joined transaction, and what fails there rolls back.
    let joined = base.client.transaction().await.unwrap();
    let tx = fence.admit(joined).await.unwrap();
    tx.commit_with(&[Query::new(&write, &[(&60_i32, Type::INT4)])])
        .await
        .unwrap();
    assert_eq!(base.quantity().await, 60);
    let joined = base.client.transaction().await.unwrap();
    let tx = fence.admit(joined).await.unwrap();
    let refused = tx
        .commit_with(&[Query::new(&write, &[(&-1_i32, Type::INT4)])])
        .await;
    assert!(
        matches!(refused, Err(FenceError::Database(_))),
        "{refused:?}"
    );
    assert_eq!(base.quantity().await, 60);
    base.assert_clean().await;
}

#[tokio::test]
async fn a_lost_connection_leaves_the_outcome_of_a_pipelined_transaction_unknown() {
    let base = Base::new().await;
    let holder_client = &mut connect(&config()).await;
    let holder = base.fence(7).begin(holder_client).await.unwrap();
    let mut other = connect(&config()).await;
    let pid = other
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .unwrap();
    let pid: i32 = pid.get(0);
    let (fence, read) = (base.fence(8), base.sql("SELECT quantity FROM stock"));
    let waiting = tokio::spawn(async move {
        let read = [Query::new(&read, &[])];
        let lost = fence.pipeline(&mut other, &read).await.unwrap_err();
        let again = fence.pipeline(&mut other, &read).await.unwrap_err();
        (lost, again)
    });
    until_somebody_waits(&base).await;
    let kill = "SELECT pg_terminate_backend($1)";
    base.outside.execute(kill, &[&pid]).await.unwrap();
    let (lost, again) = waiting.await.unwrap();
    assert!(matches!(lost, FenceError::Unknown(_)), "{lost:?}");
    // What was not even sent is no riddle.
    assert!(matches!(again, FenceError::Database(_)), "{again:?}");
    holder.rollback().await.unwrap();
}

#[tokio::test]
async fn a_literal_is_the_value_that_the_driver_would_have_sent() {
    let mut base = Base::new().await;
    let mood = format!("mood_{}", base.stock);
    let positive = format!("positive_{}", base.stock);
    let create = format!(
        "CREATE TYPE \"{mood}\" AS ENUM ('it''s', 'ok'); CREATE DOMAIN {positive} AS int CHECK \
         (VALUE > 0)"
    );
    base.outside.batch_execute(&create).await.unwrap();
    let of = format!("SELECT $1::\"{mood}\", $2::{positive}");
    let own = base.client.prepare(&of).await.unwrap();
    let (mood, positive) = (own.params()[0].clone(), own.params()[1].clone());
    assert!(matches!(mood.kind(), Kind::Enum(_)));

    /// The binary form of some value.
    #[derive(Debug)]
    struct Raw(&'static [u8]);
    impl ToSql for Raw {
        fn to_sql(
            &self,
            _: &Type,
            out: &mut bytes::BytesMut,
        ) -> Result<tokio_postgres::types::IsNull, Box<dyn std::error::Error + Sync + Send>>
        {
            out.extend_from_slice(self.0);
            Ok(tokio_postgres::types::IsNull::No)
        }
        fn accepts(_: &Type) -> bool {
            true
        }
        tokio_postgres::types::to_sql_checked!();
    }

    let long_ago = SystemTime::UNIX_EPOCH - Duration::from_micros(62_135_596_800_000_001);
    let now = SystemTime::UNIX_EPOCH + Duration::from_micros(1_790_000_000_123_457);
    let never: Timestamp<SystemTime> = Timestamp::NegInfinity;
    let awkward = "it's \\ \"ü\" $1 -- ;\n$$ /*";
    let (bytes, no_bytes): (&[u8], &[u8]) = (&[0, 39, 92, 255], &[]);
    let (numbers, no_numbers): (&[i32], &[i64]) = (&[1, -2, 3], &[]);
    let texts: &[Option<&str>] = &[Some(awkward), None];
    let values: Vec<(&(dyn ToSql + Sync), Type)> = vec![
        (&true, Type::BOOL),
        (&false, Type::BOOL),
        (&i16::MIN, Type::INT2),
        (&i32::MIN, Type::INT4),
        (&i64::MIN, Type::INT8),
        (&i64::MAX, Type::INT8),
        (&u32::MAX, Type::OID),
        (&f32::MIN_POSITIVE, Type::FLOAT4),
        (&0.1_f64, Type::FLOAT8),
        (&f64::MAX, Type::FLOAT8),
        (&f64::NAN, Type::FLOAT8),
        (&f64::NEG_INFINITY, Type::FLOAT8),
        (&-0.0_f64, Type::FLOAT8),
        (&awkward, Type::TEXT),
        (&"", Type::TEXT),
        (&awkward, Type::VARCHAR),
        (&awkward, Type::BPCHAR),
        (&"name", Type::NAME),
        (&None::<&str>, Type::TEXT),
        (&None::<i32>, Type::INT4),
        (&bytes, Type::BYTEA),
        (&no_bytes, Type::BYTEA),
        (&now, Type::TIMESTAMPTZ),
        (&now, Type::TIMESTAMP),
        (&long_ago, Type::TIMESTAMPTZ),
        (&Raw(b"\x7f\xff\xff\xff"), Type::DATE),
        (&Raw(b"\0\0\x26\x2d"), Type::DATE),
        (&Raw(b"\xff\xf0\0\0"), Type::DATE),
        (
            &Raw(b"\x12\x34\x56\x78\x9a\xbc\xde\xf0\0\0\0\0\0\0\0\x01"),
            Type::UUID,
        ),
        (&Raw(b"\x01{\"a\": \"it's\"}"), Type::JSONB),
        (&Raw(b"{\"a\": 1}"), Type::JSON),
        (&never, Type::TIMESTAMPTZ),
        (&numbers, Type::INT4_ARRAY),
        (&texts, Type::TEXT_ARRAY),
        (&no_numbers, Type::INT8_ARRAY),
        (&Raw(b"it's"), mood.clone()),
        (&Raw(b"\0\0\0\x07"), positive),
    ];
    let fence = base.fence(7);
    let sessions = [
        // Where a day can have 23 hours.
        "SET timezone = 'Europe/Berlin'",
        // Everything that changes how a text is read.
        "SET intervalstyle = 'sql_standard'; SET datestyle = 'SQL, DMY'; SET bytea_output = \
         'escape'; SET standard_conforming_strings = off; SET backslash_quote = off",
    ];
    for session in sessions {
        base.client.batch_execute(session).await.unwrap();
        for (value, ty) in &values {
            let sql = "SELECT $1::text, pg_typeof($1)::text";
            let sent = [(*value, ty.clone())];
            let by_driver = base.client.query_typed(sql, &sent).await.unwrap();
            let query = [Query::new(sql, &sent)];
            let by_us = fence.pipeline(&mut base.client, &query).await.unwrap();
            for column in 0..2 {
                let theirs: Option<&str> = by_driver[0].get(column);
                let ours = by_us[0].rows[0].get(column);
                assert_eq!(ours, theirs, "{value:?} of {ty} with {session}");
            }
        }
    }
    base.assert_clean().await;
}

#[tokio::test]
async fn a_value_that_is_too_long_is_refused_and_not_cut_off() {
    let mut base = Base::new().await;
    let code = format!("code_{}", base.stock);
    let create = format!("CREATE DOMAIN {code} AS varchar(3)");
    base.outside.batch_execute(&create).await.unwrap();
    let of = format!("SELECT $1::{code}, $2::{code}[]");
    let own = base.client.prepare(&of).await.unwrap();
    let (code, codes) = (own.params()[0].clone(), own.params()[1].clone());
    assert!(matches!(code.kind(), Kind::Domain(_)));

    /// A value of the domain.
    #[derive(Debug)]
    struct Code(&'static str);
    impl ToSql for Code {
        fn to_sql(
            &self,
            _: &Type,
            out: &mut bytes::BytesMut,
        ) -> Result<tokio_postgres::types::IsNull, Box<dyn std::error::Error + Sync + Send>>
        {
            self.0.to_sql(&Type::TEXT, out)
        }
        fn accepts(_: &Type) -> bool {
            true
        }
        tokio_postgres::types::to_sql_checked!();
    }

    let long_name = "x".repeat(64);
    let (short, none): (&[Option<Code>], &[Code]) = (&[Some(Code("abc")), None], &[]);
    let long: &[Code] = &[Code("abc"), Code("abcd")];
    let values: [(&(dyn ToSql + Sync), Type, bool); 8] = [
        (&Code("abc"), code.clone(), true),
        (&None::<Code>, code.clone(), true),
        (&Code("abcd"), code, false),
        (&short, codes.clone(), true),
        (&none, codes.clone(), true),
        (&long, codes, false),
        (&&long_name[1..], Type::NAME, true),
        (&long_name, Type::NAME, false),
    ];
    let fence = base.fence(7);
    for (value, ty, fits) in values {
        let sent = [(value, ty.clone())];
        let sql = "SELECT $1::text";
        let by_driver = base.client.query_typed(sql, &sent).await;
        assert_eq!(by_driver.is_ok(), fits, "{value:?} of {ty}: {by_driver:?}");
        let query = [Query::new(sql, &sent)];
        let by_us = fence.pipeline(&mut base.client, &query).await;
        assert_eq!(by_us.is_ok(), fits, "{value:?} of {ty}: {by_us:?}");
    }
    base.assert_clean().await;
}

#[tokio::test]
async fn dropped_in_any_state_it_leaves_the_connection_clean() {
    let mut base = Base::new().await;
    let fence = base.fence(7);
    let write = base.sql("UPDATE stock SET quantity = 1");
    let (read, bad) = (
        base.sql("SELECT quantity FROM stock"),
        base.sql("UPDATE stock SET quantity = -1"),
    );
    let begun = |tx: Fenced<'_>| drop(tx);
    begun(fence.begin(&mut base.client).await.unwrap());
    base.assert_clean().await;
    let joined = base.client.transaction().await.unwrap();
    begun(fence.admit(joined).await.unwrap());
    base.assert_clean().await;
    for polls in 1..4 {
        // In a row on one connection: what is dropped is still on its way when the next is sent.
        abandon_after(polls, fence.begin(&mut base.client)).await;
        abandon_after(
            polls,
            fence.begin_with(&mut base.client, Query::new(&read, &[])),
        )
        .await;
        abandon_after(
            polls,
            fence.begin_with(&mut base.client, Query::new(&bad, &[])),
        )
        .await;
        let bad = [Query::new(&bad, &[])];
        abandon_after(polls, fence.pipeline(&mut base.client, &bad)).await;
        let tx = fence.begin(&mut base.client).await.unwrap();
        abandon_after(polls, tx.commit_with(&bad)).await;
        let joined = base.client.transaction().await.unwrap();
        let tx = fence.admit(joined).await.unwrap();
        abandon_after(polls, tx.commit_with(&bad)).await;
        let tx = fence.begin(&mut base.client).await.unwrap();
        abandon_after(polls, tx.execute(&write, &[])).await;
        abandon_after(polls, tx.rollback()).await;
        let transaction = fence.transaction(&mut base.client, async |tx| {
            tx.execute(&write, &[]).await?;
            Err::<(), _>(FenceError::NoStep)
        });
        abandon_after(polls, transaction).await;
        base.assert_clean().await;
    }
    assert_eq!(base.quantity().await, 100);
}

#[tokio::test]
async fn a_pipelined_transaction_that_is_on_its_way_is_not_there_yet() {
    let mut base = Base::new().await;
    let step = Step::new(1).unwrap();
    let fence = base.options().apply(offered(7).with_step(step));
    let write = base.sql("UPDATE stock SET quantity = quantity - 1");
    let write = [Query::new(&write, &[])];
    // Nobody carries its messages to the server yet.
    let (mut client, connection) = config().connect(NoTls).await.unwrap();
    let dropped = fence.pipeline(&mut client, &write).now_or_never();
    assert!(dropped.is_none());
    let overtaken = fence.resolve(&mut base.client).await.unwrap();
    assert_eq!(overtaken, Resolution::NotApplied);
    // What is done again with the same step is done once.
    fence.pipeline(&mut base.client, &write).await.unwrap();
    tokio::spawn(connection);
    let behind = fence.resolve(&mut client).await.unwrap();
    assert_eq!(behind, Resolution::Applied);
    assert_eq!(base.quantity().await, 99);
}

/// Polls `future` at most `polls` times, with real waiting in between, and drops it.
async fn abandon_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return std::task::Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

#[tokio::test]
async fn a_transaction_that_is_open_already_is_refused_and_ended() {
    let mut base = Base::new().await;
    let write = base.sql("UPDATE stock SET quantity = 1");
    let fence = base.fence(7);
    let level = base.options().isolation(Isolation::Serializable);
    let fences = [base.fence(7), level.apply(offered(7))];
    // With a level, `BEGIN` fails in an open transaction; without and with one, in an aborted one.
    let opened = ["BEGIN", "BEGIN; SAVEPOINT s", "BEGIN; SELECT 1 / 0"];
    for (open, fence) in opened
        .iter()
        .flat_map(|open| fences.iter().map(move |fence| (open, fence)))
    {
        for pipelined in [false, true] {
            base.client.batch_execute(open).await.ok();
            base.client.batch_execute(&write).await.ok();
            let refused = if pipelined {
                let query = [Query::new(&write, &[])];
                fence.pipeline(&mut base.client, &query).await.map(drop)
            } else {
                fence.begin(&mut base.client).await.map(drop)
            };
            assert!(
                matches!(refused, Err(FenceError::InSavepoint)),
                "{refused:?}"
            );
            base.assert_clean().await;
            assert_eq!(base.quantity().await, 100);
        }
    }
    // In a nested transaction of the driver only that is ended.
    let mut outer = base.client.transaction().await.unwrap();
    outer.batch_execute(&write).await.unwrap();
    let nested = outer.transaction().await.unwrap();
    let refused = fence.admit(nested).await.map(drop);
    assert!(
        matches!(refused, Err(FenceError::InSavepoint)),
        "{refused:?}"
    );
    outer.commit().await.unwrap();
    assert_eq!(base.quantity().await, 1);
    base.fence(1)
        .begin(&mut base.client)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
}

#[tokio::test]
async fn the_first_error_poisons_and_the_driver_hands_it_out() {
    let mut base = Base::new().await;
    let (bad, read) = (
        base.sql("UPDATE stock SET quantity = -1"),
        base.sql("SELECT quantity FROM stock"),
    );
    let nothing = base.sql("SELECT 1 FROM stock WHERE sku = 'pear'");
    let fence = base.fence(7);
    let tx = fence.begin(&mut base.client).await.unwrap();
    // What the driver says about rows and values is no failure of the transaction.
    assert!(tx.query_one(&nothing, &[]).await.is_err());
    assert!(tx.execute(&read, &[&1_i32]).await.is_err());
    assert!(
        tx.query_typed("SELECT $1", &[(&"x", Type::INT4)])
            .await
            .is_err()
    );
    tx.query_one(&read, &[]).await.unwrap();
    let first = tx.execute(&bad, &[]).await.unwrap_err();
    let refused = tx.query_one(&read, &[]).await.unwrap_err();
    let poisoned = refused.source().unwrap().downcast_ref::<Poisoned>();
    let text = first.as_db_error().unwrap().to_string();
    assert_eq!(poisoned.unwrap().first(), text);
    let refused = tx.commit_with(&[Query::new(&read, &[])]).await;
    assert!(
        matches!(&refused, Err(FenceError::Poisoned { first }) if *first == text),
        "{refused:?}"
    );
    base.assert_clean().await;

    let tx = fence.begin(&mut base.client).await.unwrap();
    abandon_after(1, tx.execute(&read, &[])).await;
    assert!(tx.query_one(&read, &[]).await.is_err());
    let refused = tx.commit().await;
    assert!(
        matches!(refused, Err(FenceError::Poisoned { .. })),
        "{refused:?}"
    );
    base.assert_clean().await;
}

#[tokio::test]
async fn statements_that_are_polled_together_run_in_order() {
    let mut base = Base::new().await;
    let (deduct, read) = (base.sql(DEDUCT), base.sql("SELECT quantity FROM stock"));
    let fence = base.fence(7);
    let tx = fence.begin(&mut base.client).await.unwrap();
    let deduct = tx.prepare(&deduct).await.unwrap();
    let (first, second, rows) = future::join3(
        tx.execute(&deduct, &[&"apple", &1_i32]),
        tx.execute(&deduct, &[&"apple", &2_i32]),
        tx.query_typed(&read, &[]),
    )
    .await;
    assert_eq!((first.unwrap(), second.unwrap()), (1, 1));
    assert_eq!(rows.unwrap()[0].get::<_, i32>(0), 97);
    tx.commit().await.unwrap();
    assert_eq!(base.quantity().await, 97);
}

#[tokio::test]
async fn rows_can_be_streamed_and_copied() {
    let mut base = Base::new().await;
    let read = base.sql("SELECT sku FROM stock ORDER BY sku");
    let fence = base.fence(7);
    let copy = base.sql("COPY stock FROM STDIN");
    let tx = fence.begin(&mut base.client).await.unwrap();
    let sink = tx.copy_in::<_, bytes::Bytes>(&copy).await.unwrap();
    let mut sink = pin!(sink);
    let row = bytes::Bytes::from_static(b"pear\t5\n");
    sink.send(row).await.unwrap();
    assert_eq!(sink.as_mut().finish().await.unwrap(), 1);
    let none: [&str; 0] = [];
    let rows = tx.query_raw(&read, none).await.unwrap();
    let rows: Vec<_> = rows
        .map(|row| row.unwrap().get::<_, String>(0))
        .collect()
        .await;
    assert_eq!(rows, ["apple", "pear"]);
    tx.commit().await.unwrap();

    // A copy that was not finished does not get in, nor does anything else.
    let tx = fence.begin(&mut base.client).await.unwrap();
    let sink = tx.copy_in::<_, bytes::Bytes>(&copy).await.unwrap();
    drop(sink);
    let refused = tx.commit().await;
    assert!(
        matches!(refused, Err(FenceError::Database(_))),
        "{refused:?}"
    );

    // An error in between the rows poisons.
    let tx = fence.begin(&mut base.client).await.unwrap();
    let fails = "SELECT 1 / (3 - g) FROM generate_series(1, 3) g";
    let rows = tx.query_raw(fails, none).await.unwrap();
    let rows: Vec<_> = rows.collect().await;
    assert!(rows.last().unwrap().is_err());
    let refused = tx.commit().await;
    assert!(
        matches!(refused, Err(FenceError::Poisoned { .. })),
        "{refused:?}"
    );
    base.assert_clean().await;
}

#[tokio::test]
async fn a_pipelined_transaction_is_repeated_after_a_serialization_failure() {
    let base = Base::new().await;
    let options = base.options().isolation(Isolation::Serializable);
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let fence = options.apply(offered(7));
            let deduct = base.sql(DEDUCT);
            tokio::spawn(async move {
                let mut client = connect(&config()).await;
                let params = [(&"apple" as _, Type::TEXT), (&1_i32 as _, Type::INT4)];
                for _ in 0..5 {
                    let queries = [Query::new(&deduct, &params)];
                    fence.pipeline(&mut client, &queries).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(base.quantity().await, 80);
}

#[tokio::test]
async fn the_table_of_marks_is_created_once() {
    let client = connect(&config()).await;
    let name = |what: &str| TableName::new(format!("tp_{what}_{}", std::process::id())).unwrap();
    let table = name("once");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let table = table.clone();
        tasks.spawn(async move {
            let client = connect(&config()).await;
            migrate::tokio_postgres::run_for(&client, &table)
                .await
                .unwrap()
        });
    }
    let outcomes = tasks.join_all().await;
    assert!(outcomes.contains(&Outcome::Created), "{outcomes:?}");
    let again = migrate::tokio_postgres::run_for(&client, &table).await;
    assert_eq!(again.unwrap(), Outcome::Present);
    let foreign = name("foreign");
    let create = format!("CREATE TABLE {foreign} (sku text)");
    client.batch_execute(&create).await.unwrap();
    let refused = migrate::tokio_postgres::run_for(&client, &foreign).await;
    assert!(
        matches!(refused, Err(MigrateError::ForeignTable { .. })),
        "{refused:?}"
    );
}

/// Counts how often the client spoke and then had to wait for the server.
struct Counted {
    flights: Arc<AtomicUsize>,
    config: Config,
}

impl Counted {
    async fn start() -> Self {
        let target = config();
        let tokio_postgres::config::Host::Tcp(host) = &target.get_hosts()[0] else {
            panic!("the test server is not reached over TCP");
        };
        let server = (host.clone(), target.get_ports()[0]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let flights = Arc::new(AtomicUsize::new(0));
        let mut config = Config::new();
        config
            .host("127.0.0.1")
            .port(listener.local_addr().unwrap().port())
            .user(target.get_user().unwrap())
            .password(target.get_password().unwrap_or_default())
            .dbname(target.get_dbname().unwrap_or("postgres"));
        let counter = Arc::clone(&flights);
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = TcpStream::connect(server).await.unwrap();
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            let (mut from_client, mut from_server) = (vec![0; 65_536], vec![0; 65_536]);
            let mut server_spoke_last = true;
            loop {
                tokio::select! {
                    read = client.read(&mut from_client) => {
                        let Ok(read @ 1..) = read else { return };
                        if std::mem::take(&mut server_spoke_last) {
                            counter.fetch_add(1, Ordering::SeqCst);
                        }
                        server.write_all(&from_client[..read]).await.unwrap();
                    }
                    read = server.read(&mut from_server) => {
                        let Ok(read @ 1..) = read else { return };
                        server_spoke_last = true;
                        client.write_all(&from_server[..read]).await.unwrap();
                    }
                }
            }
        });
        Self { flights, config }
    }

    fn take(&self) -> usize {
        self.flights.swap(0, Ordering::SeqCst)
    }
}

#[tokio::test]
async fn the_number_of_round_trips_is_as_documented() {
    let counted = Counted::start().await;
    let mut base = Base::on(connect(&counted.config).await).await;
    let deduct = base.sql(DEDUCT);
    let fence = base.fence(7);
    let typed = [(&"apple" as _, Type::TEXT), (&1_i32 as _, Type::INT4)];
    let prepared = base.client.prepare(&deduct).await.unwrap();
    counted.take();

    let tx = base.client.transaction().await.unwrap();
    tx.execute(&prepared, &[&"apple", &1_i32]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(counted.take(), 3, "a plain transaction");

    let tx = fence.begin(&mut base.client).await.unwrap();
    tx.execute(&prepared, &[&"apple", &1_i32]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(counted.take(), 3, "begin, a prepared statement, commit");

    let done = fence.transaction(&mut base.client, async |tx| {
        tx.execute_typed(&deduct, &typed).await?;
        Ok::<_, FenceError>(())
    });
    done.await.unwrap();
    assert_eq!(counted.take(), 3, "transaction, a typed statement");

    let tx = base.client.transaction().await.unwrap();
    let tx = fence.admit(tx).await.unwrap();
    tx.execute(&prepared, &[&"apple", &1_i32]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(
        counted.take(),
        4,
        "the caller's begin, admit, a statement, commit"
    );

    let query = Query::new(&deduct, &typed);
    let (tx, _) = fence.begin_with(&mut base.client, query).await.unwrap();
    tx.commit_with(&[query]).await.unwrap();
    assert_eq!(counted.take(), 2, "begin_with, commit_with");

    fence
        .pipeline(&mut base.client, &[query, query, query])
        .await
        .unwrap();
    assert_eq!(counted.take(), 1, "pipeline");

    let stale = base.fence(6).begin(&mut base.client).await;
    assert!(matches!(stale, Err(FenceError::Stale { .. })), "{stale:?}");
    drop(stale);
    assert_eq!(counted.take(), 2, "a refusal, and its reason");
}
