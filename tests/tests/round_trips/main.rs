//! Counts the round trips of a transaction per adapter and form, with a proxy, and compares them
//! with the table in `docs/round-trips.md`: a table that is out of date fails, and the test prints
//! the lines that would be right.
//!
//! Counted are the flights of one transaction with one statement, when everything is warm. What a
//! pool sends to check its connection before or afterwards is included, since it is sent; the plain
//! transaction beside it shows how much that is.

mod writes;

use std::collections::BTreeMap;

use highwater_fencing::{
    Configured, Domain, Fence, FenceKey, FenceOptions, FencingToken, TableName,
};
use highwater_proof::adapter::{Adapter, BoxError, Dialect, Source, all, body};
use highwater_tests::databases::{Kind, Server};
use highwater_tests::wire::{Wire, in_the_clear};

/// Transactions that are counted together; what happens only sometimes shows as a fraction.
const TRANSACTIONS: usize = 8;
const TABLE: &str = include_str!("../../../docs/round-trips.md");

type Outcome<T> = Result<T, BoxError>;

#[tokio::test]
async fn on_postgres() -> Outcome<()> {
    compare(Kind::Postgres, Dialect::Postgres).await
}

#[tokio::test]
async fn on_mysql() -> Outcome<()> {
    if let Some(reason) = Kind::MySql.skip_reason() {
        println!("MySQL is left out: {reason}");
        return Ok(());
    }
    compare(Kind::MySql, Dialect::MySql).await
}

/// How long answers are held back, so that requests which are sent together arrive before the first answer.
const HOLD: std::time::Duration = std::time::Duration::from_millis(20);

/// Counts every adapter of the dialect in this build and compares its line.
async fn compare(kind: Kind, dialect: Dialect) -> Outcome<()> {
    let server = Server::obtain(kind).await?;
    let mut lines = Vec::new();
    for adapter in all()
        .into_iter()
        .filter(|adapter| adapter.dialect() == dialect)
    {
        let name = format!("round_trips_{}_{}", std::process::id(), lines.len());
        let url = kind.create_database(server.url(), &name).await?;
        let counted = count(adapter, &in_the_clear(adapter, &url)).await?;
        lines.push((format!("{} on {}", adapter.name(), kind.name()), counted));
        kind.drop_database(server.url(), &name).await?;
    }
    assert!(!lines.is_empty(), "no adapter for {}", kind.name());
    let name = format!("round_trips_{}_writes", std::process::id());
    let url = kind.create_database(server.url(), &name).await?;
    lines.extend(writes::count(kind, &url).await?);
    kind.drop_database(server.url(), &name).await?;

    let written = table();
    let mut wrong = Vec::new();
    for (key, counted) in lines {
        let line = format!("| {key} | {} |", counted.join(" | "));
        println!("{line}");
        if written.get(&key) != Some(&counted) {
            wrong.push(line);
        }
    }
    let right = wrong.join("\n");
    assert!(
        wrong.is_empty(),
        "docs/round-trips.md is out of date; right would be:\n{right}"
    );
    Ok(())
}

/// The lines of the table: the first cell, and the others.
fn table() -> BTreeMap<String, Vec<String>> {
    let lines = TABLE.lines().filter(|line| line.contains(" on "));
    lines
        .filter_map(|line| {
            let cells = line.strip_prefix("| ")?.strip_suffix(" |")?;
            let mut cells = cells.split(" | ").map(|cell| cell.trim().to_owned());
            Some((cells.next()?, cells.collect()))
        })
        .collect()
}

/// Plain, closure, guard, join, lend, a refusal, and `resolve`.
async fn count(adapter: &'static dyn Adapter, url: &str) -> Outcome<Vec<String>> {
    let wire = Wire::start(url, 0).await?;
    wire.hold(HOLD);
    let source = adapter.open(wire.url(), 1).await?;
    let source = &*source;
    source.migrate(&TableName::DEFAULT).await?;
    source
        .run("CREATE TABLE stock (sku VARCHAR(60) NOT NULL PRIMARY KEY, quantity BIGINT NOT NULL)")
        .await?;
    source
        .run("INSERT INTO stock VALUES ('apple', 1000)")
        .await?;
    let abilities = adapter.abilities();
    let mut cells = Vec::new();
    for way in [
        Way::Plain,
        Way::Closure,
        Way::Guard,
        Way::Join,
        Way::Lend,
        Way::Refused,
        Way::Resolve,
    ] {
        let exists = match way {
            Way::Join => abilities.joins,
            Way::Lend => abilities.lends,
            _ => true,
        };
        if !exists {
            cells.push("–".to_owned());
            continue;
        }
        cells.push(per_transaction(&wire, async || way.run(source).await).await?);
    }
    source.close().await;
    Ok(cells)
}

/// The flights of this, when it is warm. What a pool sends behind a transaction of ours may be counted
/// late: one too many at the start, one too few at the end. And on a busy machine two messages that leave
/// together may arrive apart by more than answers are held back, so the least of three times counts.
async fn per_transaction(
    wire: &Wire,
    mut run: impl AsyncFnMut() -> Outcome<()>,
) -> Outcome<String> {
    run().await?;
    run().await?;
    let mut least = usize::MAX;
    for _ in 0..3 {
        let before = wire.flights();
        for _ in 0..TRANSACTIONS {
            run().await?;
        }
        least = least.min(wire.flights() - before);
    }
    Ok(((least + TRANSACTIONS / 2) / TRANSACTIONS).to_string())
}

#[derive(Clone, Copy)]
enum Way {
    Plain,
    Closure,
    Guard,
    Join,
    Lend,
    Refused,
    Resolve,
}

const STATEMENT: &str = "UPDATE stock SET quantity = quantity - 1 WHERE sku = 'apple'";

impl Way {
    async fn run(self, source: &dyn Source) -> Outcome<()> {
        let mut tx = match self {
            Self::Plain => source.begin_unfenced().await?,
            Self::Guard => source.begin(&fence(7)).await?,
            Self::Join => source.admit("", &fence(7)).await?,
            Self::Lend => source.begin_on("", &fence(7)).await?,
            Self::Closure => {
                let deduct = body(|tx| {
                    Box::pin(async move {
                        tx.run(STATEMENT).await?;
                        Ok(0)
                    })
                });
                source.transaction(&fence(7), deduct).await?;
                return Ok(());
            }
            Self::Refused => {
                let refused = source.begin(&fence(6)).await;
                assert!(refused.is_err(), "a stale token was admitted");
                return Ok(());
            }
            Self::Resolve => {
                let fence =
                    FenceOptions::new().apply(fence(7).fence().clone().with_step(1.try_into()?));
                source.resolve(&fence).await?;
                return Ok(());
            }
        };
        tx.run(STATEMENT).await?;
        Ok(tx.commit().await?)
    }
}

fn fence(token: u64) -> Configured {
    let domain = Domain::named("round trips").expect("a name");
    let key = FenceKey::new("stock/apple").expect("a key");
    let fence = Fence::new(domain, key, FencingToken::new(token).expect("not zero"));
    FenceOptions::new().apply(fence)
}
