//! What stands around a PostgreSQL server in production: PgBouncer in transaction pooling, and a
//! streaming standby. Over every adapter of the build that speaks PostgreSQL.
//!
//! Needs a Docker engine with the images named by `HIGHWATER_TEST_POSTGRES_IMAGE` and
//! `HIGHWATER_TEST_PGBOUNCER_IMAGE`.

use std::sync::Arc;
use std::time::Duration;

use highwater_fencing::operate::{Marks, Selection};
use highwater_fencing::{
    Configured, Domain, Fence, FenceKey, FenceOptions, FencingToken, TableName,
};
use highwater_proof::adapter::{
    Adapter, BoxError, Dialect, DriverError, Source, Verdict, all, body,
};
use highwater_tests::databases::{Appliance, PASSWORD};
use highwater_tests::wait::eventually;
use sqlx::PgPool;

const PATIENCE: Duration = Duration::from_secs(60);
const CLIENTS: u64 = 8;
const ROUNDS: u64 = 12;

type Outcome<T> = Result<T, BoxError>;

/// A server with a superuser, on a disk of its own.
async fn postgres(arguments: &[&str], ports: &[u16]) -> Outcome<Appliance> {
    let environment = [("POSTGRES_PASSWORD", PASSWORD)];
    let image = "HIGHWATER_TEST_POSTGRES_IMAGE";
    Ok(Appliance::start(image, "postgres:17", &environment, arguments, ports).await?)
}

fn url(port: u16) -> String {
    format!("postgres://postgres:{PASSWORD}@127.0.0.1:{port}/postgres")
}

fn adapters() -> Vec<&'static dyn Adapter> {
    let mut adapters = all();
    adapters.retain(|adapter| adapter.dialect() == Dialect::Postgres);
    assert!(!adapters.is_empty());
    adapters
}

async fn open(adapter: &dyn Adapter, url: &str, connections: u32) -> Arc<dyn Source> {
    let opened = eventually("the server answers", PATIENCE, async || {
        adapter
            .open(url, connections)
            .await
            .ok()
            .map(Ok::<_, DriverError>)
    });
    opened.await.expect("it answered")
}

fn fence(key: &str, token: u64) -> Configured {
    let domain = Domain::named("around").expect("a name");
    let key = FenceKey::new(key).expect("a key");
    let fence = Fence::new(domain, key, FencingToken::new(token).expect("not zero"));
    FenceOptions::new().apply(fence)
}

/// Numbers from one to the number of rounds, several of them at once, through fewer connections of
/// the server than there are clients: each transaction gets whichever is free.
#[tokio::test]
async fn through_pgbouncer_in_transaction_pooling() -> Outcome<()> {
    if let Ok(reason) = std::env::var("HIGHWATER_TEST_SKIP_PGBOUNCER") {
        println!("PgBouncer is left out: {reason}");
        return Ok(());
    }
    let server = postgres(&["-c", "fsync=off"], &[5432]).await?;
    let address = server.address().await?;
    let environment = [
        ("PGBOUNCER_HOST", &*address),
        ("PGBOUNCER_PASSWORD", PASSWORD),
    ];
    let pooler = Appliance::start(
        "HIGHWATER_TEST_PGBOUNCER_IMAGE",
        "edoburu/pgbouncer:v1.24.1-p1",
        &environment,
        &["default_pool_size=3"],
        &[6432],
    );
    let pooler = pooler.await?;
    let pooled = url(pooler.port(6432).await?);
    let direct = url(server.port(5432).await?);
    for adapter in adapters() {
        let observer = open(adapter, &direct, 2).await;
        observer.migrate(&TableName::DEFAULT).await?;
        observer
            .run("DROP TABLE IF EXISTS stock; DROP TABLE IF EXISTS orders")
            .await?;
        observer
            .run("CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity BIGINT NOT NULL)")
            .await?;
        observer
            .run("CREATE TABLE orders (client BIGINT, number BIGINT, PRIMARY KEY (client, number))")
            .await?;
        observer
            .run("INSERT INTO stock VALUES ('apple', 1000)")
            .await?;
        let source = open(adapter, &pooled, 6).await;
        let key = format!("pgbouncer/{}", adapter.name());
        let mut clients = Vec::new();
        for client in 1..=CLIENTS {
            let (source, key) = (source.clone(), key.clone());
            clients.push(tokio::spawn(async move {
                let (mut done, mut stale) = (0, 0);
                for number in 1..=ROUNDS {
                    // The clients' tokens cross: in each round another one is the newest.
                    let token = number * CLIENTS + (client + number) % CLIENTS;
                    let deduct = body(move |tx| {
                        Box::pin(async move {
                            let left = tx.number("SELECT quantity FROM stock").await?;
                            let left = left.ok_or("no stock")? - 1;
                            tx.run(&format!("UPDATE stock SET quantity = {left}"))
                                .await?;
                            tx.run(&format!("INSERT INTO orders VALUES ({client}, {number})"))
                                .await?;
                            Ok(left)
                        })
                    });
                    match source.transaction(&fence(&key, token), deduct).await {
                        Ok(_) => done += 1,
                        Err(error) => match error.downcast_ref::<Verdict>() {
                            Some(Verdict::Stale { .. }) => stale += 1,
                            _ => return Err(format!("{error:?}")),
                        },
                    }
                }
                Ok((done, stale))
            }));
        }
        let (mut done, mut stale) = (0, 0);
        for client in clients {
            let (more, refused) = client.await??;
            done += more;
            stale += refused;
        }
        assert_eq!(done + stale, i64::try_from(CLIENTS * ROUNDS)?);
        let mut tx = observer.begin_unfenced().await?;
        let left = tx.number("SELECT quantity FROM stock").await?;
        let orders = tx.number("SELECT COUNT(*) FROM orders").await?;
        tx.rollback().await?;
        println!("{}: {done} done, {stale} stale", adapter.name());
        assert_eq!(
            (left, orders),
            (Some(1000 - done), Some(done)),
            "{}",
            adapter.name()
        );
        // What was left behind in a connection of the server would meet the next client.
        let idle = "SELECT COUNT(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
        eventually("nobody is left in a transaction", PATIENCE, async || {
            let mut tx = observer.begin_unfenced().await.ok()?;
            let count = tx.number(idle).await.ok()?;
            tx.rollback().await.ok()?;
            (count == Some(0)).then_some(())
        })
        .await;
        source.close().await;
        observer.close().await;
    }
    Ok(())
}

/// A standby refuses the fence, since it is a write, and says so; nothing is taken for a success.
/// After it was promoted it goes on where its marks are: what the primary admitted and the standby
/// did not receive is not known to it, until the marks are raised.
#[tokio::test]
async fn on_a_standby_and_after_its_promotion() -> Outcome<()> {
    let server = postgres(
        &["-c", "fsync=off", "-c", "wal_level=replica"],
        &[5432, 5433],
    )
    .await?;
    let primary = url(server.port(5432).await?);
    let standby = url(server.port(5433).await?);
    let adapters = adapters();
    let first = open(adapters[0], &primary, 1).await;
    first.migrate(&TableName::DEFAULT).await?;
    first
        .run("CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity BIGINT NOT NULL)")
        .await?;
    first.run("INSERT INTO stock VALUES ('apple', 100)").await?;
    server.run(STANDBY).await?;
    let write = || {
        body(|tx| {
            Box::pin(async move {
                tx.run("UPDATE stock SET quantity = quantity - 1").await?;
                Ok(0)
            })
        })
    };
    first.transaction(&fence("standby", 7), write()).await?;
    for adapter in &adapters {
        let source = open(*adapter, &standby, 1).await;
        let refused = source.transaction(&fence("standby", 8), write()).await;
        let refused = refused.err().ok_or("a standby wrote")?;
        let verdict = refused.downcast_ref::<Verdict>();
        let Some(Verdict::Database(error)) = verdict else {
            return Err(format!("{}: {refused:?}", adapter.name()).into());
        };
        assert!(
            error.to_string().contains("read-only"),
            "{}: {error}",
            adapter.name()
        );
        let refused = source.begin(&fence("standby", 8)).await;
        assert!(
            matches!(refused, Err(Verdict::Database(_))),
            "{}",
            adapter.name()
        );
        source.close().await;
    }
    // The primary stops sending, admits 9, and is lost.
    let caught_up = open(adapters[0], &standby, 1).await;
    let mark = "SELECT token FROM highwater_fence WHERE key = 'standby'";
    eventually("the standby has the mark", PATIENCE, async || {
        let mut tx = caught_up.begin_unfenced().await.ok()?;
        let token = tx.number(mark).await.ok()?;
        tx.rollback().await.ok()?;
        (token == Some(7)).then_some(())
    })
    .await;
    caught_up
        .run("ALTER SYSTEM SET primary_conninfo = ''")
        .await?;
    caught_up.run("SELECT pg_reload_conf()").await?;
    eventually("the standby hears nothing more", PATIENCE, async || {
        let mut tx = caught_up.begin_unfenced().await.ok()?;
        let receivers = tx
            .number("SELECT COUNT(*) FROM pg_stat_wal_receiver")
            .await
            .ok()?;
        tx.rollback().await.ok()?;
        (receivers == Some(0)).then_some(())
    })
    .await;
    first.transaction(&fence("standby", 9), write()).await?;
    first.transaction(&fence("young", 9), write()).await?;
    caught_up.run("SELECT pg_promote()").await?;
    for adapter in &adapters {
        let source = open(*adapter, &standby, 1).await;
        // This is the hole that asynchronous replication has, and why the marks have to be raised
        // before writers are let in.
        for key in ["standby", "young"] {
            let stale = source.transaction(&fence(key, 8), write()).await;
            stale.map_err(|error| {
                format!(
                    "{}: the promoted standby knew more: {error}",
                    adapter.name()
                )
            })?;
        }
        source.close().await;
    }
    first.close().await;
    raise_the_marks(&standby).await?;
    for adapter in &adapters {
        let source = open(*adapter, &standby, 1).await;
        for key in ["standby", "young", "younger"] {
            for token in [7, 8, 9] {
                let refused = source.transaction(&fence(key, token), write()).await;
                let refused = refused.err().ok_or("a stale holder wrote")?;
                assert!(
                    matches!(refused.downcast_ref(), Some(Verdict::Stale { .. })),
                    "{}: {refused:?}",
                    adapter.name()
                );
            }
            source.transaction(&fence(key, 10), write()).await?;
        }
        source.close().await;
    }
    Ok(())
}

/// What docs/operations.md says to do with the promoted server: the lock service has given out 9, so
/// the floor is 10. The server itself does not know that.
async fn raise_the_marks(standby: &str) -> Outcome<()> {
    let marks = Marks::new(PgPool::connect(standby).await?);
    let known = marks.floors().await?;
    let known: Vec<u64> = known.iter().map(|floor| floor.highest.get()).collect();
    assert_eq!(known, [8], "9 is lost");
    let domain = || Domain::named("around").expect("a name");
    let floor = FencingToken::new(10).expect("not zero");
    let raised = marks.raise(&Selection::all(), domain(), floor).await?;
    assert_eq!(raised.changed.len(), 2);
    // Of the keys that the application knows, one without a mark.
    let younger = [FenceKey::new("younger").expect("a key")];
    let raised = marks.raise_keys(&younger.into(), domain(), floor).await?;
    assert_eq!(raised.created.len(), 1);
    Ok(())
}

/// A second server in the same container, fed by the first.
const STANDBY: &str = r#"
export PATH=$PATH:$(echo /usr/lib/postgresql/*/bin)
as_postgres() { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }
echo 'local replication all trust' >> "${PGDATA:-/var/lib/postgresql/data}/pg_hba.conf"
as_postgres pg_ctl -D "${PGDATA:-/var/lib/postgresql/data}" reload >/dev/null
as_postgres pg_basebackup -U postgres -D /tmp/standby -R -X stream -c fast
as_postgres pg_ctl -D /tmp/standby -o "-p 5433 -c listen_addresses=*" -w -l /tmp/standby.log start >/dev/null
"#;
