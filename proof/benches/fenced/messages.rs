//! What only tokio-postgres has: a transaction in one message, or in two.

use std::time::{Duration, Instant};

use highwater_fencing::tokio_postgres::{Query, TokioPostgresFence as _};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use super::{BLOCKS, Outcome, Row, STOCK, TRANSACTIONS, fence, median};

/// Against plain transactions in as many messages. The table is there already.
pub(super) async fn compare(url: &str) -> Outcome<[(&'static str, Row); 2]> {
    let (mut client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    let mut times = [const { Vec::new() }; 4];
    for block in 0..=BLOCKS {
        for (kind, times) in times.iter_mut().enumerate() {
            let started = Instant::now();
            for _ in 0..TRANSACTIONS {
                match kind {
                    0 => plain_in_one(&client).await?,
                    1 => fenced_in_one(&mut client).await?,
                    2 => plain_in_two(&client).await?,
                    _ => fenced_in_two(&mut client).await?,
                }
            }
            if block > 0 {
                times.push(started.elapsed() / TRANSACTIONS);
            }
        }
    }
    let [plain_one, fenced_one, plain_two, fenced_two] = times;
    Ok([
        (
            "tokio-postgres, in one message",
            row(plain_one, fenced_one)?,
        ),
        (
            "tokio-postgres, in two messages",
            row(plain_two, fenced_two)?,
        ),
    ])
}

fn row(plain: Vec<Duration>, fenced: Vec<Duration>) -> Outcome<Row> {
    Ok(Row {
        plain: median(plain).ok_or("nothing was measured")?,
        fenced: median(fenced).ok_or("nothing was measured")?,
        protected: None,
    })
}

async fn plain_in_one(client: &Client) -> Outcome<()> {
    let message =
        format!("BEGIN; UPDATE {STOCK} SET quantity = quantity - 1 WHERE sku = 'apple'; COMMIT");
    Ok(client.batch_execute(&message).await?)
}

async fn fenced_in_one(client: &mut Client) -> Outcome<()> {
    let update = format!("UPDATE {STOCK} SET quantity = quantity - 1 WHERE sku = 'apple'");
    fence()
        .pipeline(client, &[Query::new(&update, &[])])
        .await?;
    Ok(())
}

async fn plain_in_two(client: &Client) -> Outcome<()> {
    let message = format!("BEGIN; SELECT quantity FROM {STOCK} WHERE sku = 'apple'");
    let answers = client.simple_query(&message).await?;
    let left = answers.iter().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let left = left.ok_or("no stock")?.parse::<i64>()? - 1;
    let message = format!("UPDATE {STOCK} SET quantity = {left} WHERE sku = 'apple'; COMMIT");
    Ok(client.batch_execute(&message).await?)
}

async fn fenced_in_two(client: &mut Client) -> Outcome<()> {
    let select = format!("SELECT quantity FROM {STOCK} WHERE sku = 'apple'");
    let update = format!("UPDATE {STOCK} SET quantity = $1 WHERE sku = 'apple'");
    let fence = fence();
    let (tx, answer) = fence.begin_with(client, Query::new(&select, &[])).await?;
    let left = answer.rows.first().and_then(|row| row.get(0));
    let left = left.ok_or("no stock")?.parse::<i64>()? - 1;
    tx.commit_with(&[Query::new(&update, &[(&left, Type::INT8)])])
        .await?;
    Ok(())
}
