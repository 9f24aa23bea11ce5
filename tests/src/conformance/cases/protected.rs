//! Tables that the database protects, under every adapter: its transactions write them, and nothing
//! else on its connections does.

use std::sync::Arc;

use highwater_fencing::protect::{Protection, RowKey};
use highwater_fencing::{TableName, migrate};
use highwater_proof::adapter::{Dialect, Tx};

use crate::conformance::world::{STOCK, World, deduct, fence, set};

const KEY: &str = "stock/apple";

/// Protects the stock, or says why that is impossible.
async fn protect(world: &World) -> Option<()> {
    let (dialect, key) = match world.database.dialect {
        Dialect::Postgres => (migrate::Dialect::Postgres, "'stock/' || {sku}"),
        Dialect::MySql => (migrate::Dialect::MySql, "CONCAT('stock/', {sku})"),
        Dialect::Sqlite => (migrate::Dialect::Sqlite, "'stock/' || {sku}"),
    };
    if dialect == migrate::Dialect::MySql {
        let counts = "SELECT COUNT(*) FROM performance_schema.setup_consumers \
                      WHERE name = 'events_transactions_current' AND enabled = 'YES'";
        if world.number(counts).await == 0 {
            world.not_applicable("the server does not count transactions");
            return None;
        }
    }
    let stock = TableName::new("stock").unwrap();
    let protection = Protection::new(stock, RowKey::sql(key).unwrap());
    for sql in [
        migrate::print_protect(dialect, &TableName::DEFAULT),
        protection.install(dialect),
    ] {
        world.observer.run(&sql).await.unwrap();
    }
    Some(())
}

async fn commit_ten(mut tx: Box<dyn Tx>) {
    deduct(&mut *tx, "apple", 10).await.unwrap();
    tx.commit().await.unwrap();
}

pub(super) async fn every_form_writes_a_protected_table(world: Arc<World>) {
    if protect(&world).await.is_none() {
        return;
    }
    let fence = fence(KEY, 5);
    world.sell(&fence, "apple", 10).await.unwrap();
    commit_ten(world.begin(&fence).await).await;
    let mut left = STOCK - 20;
    if world.abilities().lends {
        commit_ten(world.source.begin_on("", &fence).await.unwrap()).await;
        left -= 10;
    }
    if world.abilities().joins {
        commit_ten(world.source.admit("", &fence).await.unwrap()).await;
        left -= 10;
    }
    assert_eq!(world.quantity("apple").await, left);
}

pub(super) async fn a_protected_row_of_another_key_is_refused(world: Arc<World>) {
    if protect(&world).await.is_none() {
        return;
    }
    world.sell(&fence(KEY, 5), "pear", 10).await.unwrap_err();
    assert_eq!(world.quantity("pear").await, STOCK);
    assert_eq!(world.mark(KEY).await, None, "rolled back");
}

pub(super) async fn a_connection_that_was_fenced_before_is_refused_without_a_fence(
    world: Arc<World>,
) {
    if protect(&world).await.is_none() {
        return;
    }
    let source = world.another_source(1).await;
    for commits in [true, false] {
        let mut tx = source.begin(&fence(KEY, 5)).await.unwrap();
        deduct(&mut *tx, "apple", 10).await.unwrap();
        match commits {
            true => tx.commit().await.unwrap(),
            false => tx.rollback().await.unwrap(),
        }
        source.run(&set("apple", 1)).await.unwrap_err();
    }
    assert_eq!(world.quantity("apple").await, STOCK - 10);
}
