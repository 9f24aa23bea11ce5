//! Setting the shop up, and counting it afterwards. Loaded once per database, as `sell.rs` is.

use sqlx::Pool;

use super::{Db, SQL};
use crate::database::{ALL_ORDERS, ALL_STOCK, DROP};
use crate::orders::Stock;

pub(crate) async fn reset(pool: &Pool<Db>, stock: &Stock) -> Result<(), sqlx::Error> {
    for statement in DROP.iter().chain(SQL.create) {
        sqlx::raw_sql(*statement).execute(pool).await?;
    }
    let mut tx = pool.begin().await?;
    for (sku, quantity) in stock {
        sqlx::query(SQL.add_sku)
            .bind(sku)
            .bind(quantity)
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await
}

pub(crate) async fn stock(pool: &Pool<Db>) -> Result<Stock, sqlx::Error> {
    let rows: Vec<(String, i64)> = sqlx::query_as(ALL_STOCK).fetch_all(pool).await?;
    Ok(rows.into_iter().collect())
}

pub(crate) async fn orders(pool: &Pool<Db>) -> Result<Vec<(String, String, i64)>, sqlx::Error> {
    sqlx::query_as(ALL_ORDERS).fetch_all(pool).await
}

pub(crate) async fn clean_up(pool: &Pool<Db>, key_prefix: &str) -> Result<(), sqlx::Error> {
    sqlx::query(SQL.forget_marks)
        .bind(key_prefix.as_bytes())
        .execute(pool)
        .await?;
    for statement in DROP {
        sqlx::raw_sql(statement).execute(pool).await?;
    }
    Ok(())
}
