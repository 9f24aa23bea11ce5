//! The lesson: sell one order under a lock so that a stale holder cannot corrupt the stock.
//!
//! Lift this file into your own service. `Db` and `SQL` come from the folder's `database.rs`,
//! which loads it once per database; in a service they are your driver and your statements.

use highwater_client::{AcquireOptions, Client, Ticket};
use highwater_fencing::sqlx::SqlxFence as _;
use highwater_lock::Key;
use sqlx::{Executor, Pool};

use super::{Db, SQL};
use crate::orders::Order;
use crate::payment::Payment;
use crate::sale::{Sale, SellError};

/// Sells one order: take the SKU's lock, look at the stock, charge the customer, write.
pub(crate) async fn sell(
    pool: &Pool<Db>,
    client: &Client,
    options: AcquireOptions,
    key: &Key,
    order: &Order,
    payment: &mut Payment,
) -> Result<Sale, SellError> {
    // The lock puts the workers in order: one per SKU at a time, the others wait for their turn.
    let ticket = client.acquire(key, options).await?;
    let sale = sell_fenced(pool, &ticket, order, payment).await;
    // If this process was paused past the lease, the ticket is no longer ours to release; the
    // server then says so, and frees nobody else's lock.
    let _ = ticket.release().await;
    sale
}

/// The fence makes the writes safe: the database refuses a holder that somebody has overtaken.
async fn sell_fenced(
    pool: &Pool<Db>,
    ticket: &Ticket,
    order: &Order,
    payment: &mut Payment,
) -> Result<Sale, SellError> {
    let fence = ticket.fence();

    // What a write relies on is read AFTER the fence was admitted, under the same token. From
    // here on, no older holder can write, and once a newer one has begun, we cannot.
    let stock = fence
        .transaction(pool, async |tx| {
            if is_recorded(&mut *tx, &order.id).await? {
                return Ok(None);
            }
            Ok::<_, SellError>(Some(stock_of(&mut *tx, &order.sku).await?))
        })
        .await?;
    let Some(stock) = stock else {
        return Ok(Sale::AlreadyRecorded);
    };

    // A slow call outside any transaction. The process may freeze here for longer than its lease,
    // and it cannot notice: it wakes up in the middle of this line.
    payment.charge(order, ticket.token()).await?;

    // Deduction and order row in ONE transaction, with the comparison of the token in front.
    fence
        .transaction(pool, async |tx| {
            set_stock(&mut *tx, &order.sku, stock - order.quantity).await?;
            record(&mut *tx, order, ticket).await?;
            Ok::<_, SellError>(Sale::Recorded {
                token: ticket.token(),
            })
        })
        .await
}

/// The control: the same steps, the same lock, no fence. This is what most programs do.
pub(crate) async fn sell_unfenced(
    pool: &Pool<Db>,
    client: &Client,
    options: AcquireOptions,
    key: &Key,
    order: &Order,
    payment: &mut Payment,
) -> Result<Sale, SellError> {
    let ticket = client.acquire(key, options).await?;

    let mut tx = pool.begin().await?;
    if is_recorded(&mut *tx, &order.id).await? {
        return Ok(Sale::AlreadyRecorded);
    }
    let stock = stock_of(&mut *tx, &order.sku).await?;
    tx.commit().await?;

    payment.charge(order, ticket.token()).await?;

    let mut tx = pool.begin().await?;
    set_stock(&mut *tx, &order.sku, stock - order.quantity).await?;
    record(&mut *tx, order, &ticket).await?;
    tx.commit().await?;

    let token = ticket.token();
    let _ = ticket.release().await;
    Ok(Sale::Recorded { token })
}

// The statements of the shop. They take any executor of the database: inside `transaction` that
// is the fenced transaction itself.

async fn is_recorded(db: impl Executor<'_, Database = Db>, id: &str) -> Result<bool, sqlx::Error> {
    let rows: Option<(i64,)> = sqlx::query_as(SQL.find_order)
        .bind(id)
        .fetch_optional(db)
        .await?;
    Ok(rows.is_some())
}

async fn stock_of(db: impl Executor<'_, Database = Db>, sku: &str) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(SQL.read_stock)
        .bind(sku)
        .fetch_one(db)
        .await
}

async fn set_stock(
    db: impl Executor<'_, Database = Db>,
    sku: &str,
    quantity: i64,
) -> Result<(), sqlx::Error> {
    sqlx::query(SQL.set_stock)
        .bind(quantity)
        .bind(sku)
        .execute(db)
        .await?;
    Ok(())
}

async fn record(
    db: impl Executor<'_, Database = Db>,
    order: &Order,
    ticket: &Ticket,
) -> Result<(), sqlx::Error> {
    sqlx::query(SQL.insert_order)
        .bind(&order.id)
        .bind(&order.sku)
        .bind(order.quantity)
        .bind(ticket.token().to_string())
        .execute(db)
        .await?;
    Ok(())
}
