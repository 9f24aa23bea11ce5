//! The shop on SQLite: its statements, and the lesson loaded for it.

use super::Sql;
pub(crate) use highwater_fencing::migrate::sqlite as migrate;
pub(crate) use sqlx::Sqlite as Db;

pub(crate) const SQL: Sql = Sql {
    create: &[
        "CREATE TABLE highwater_example_inventory (\
         sku TEXT PRIMARY KEY, quantity INTEGER NOT NULL) STRICT",
        "CREATE TABLE highwater_example_orders (order_id TEXT PRIMARY KEY, sku TEXT NOT NULL, \
         quantity INTEGER NOT NULL, token TEXT NOT NULL) STRICT",
    ],
    add_sku: "INSERT INTO highwater_example_inventory (sku, quantity) VALUES (?1, ?2)",
    find_order: "SELECT quantity FROM highwater_example_orders WHERE order_id = ?1",
    read_stock: "SELECT quantity FROM highwater_example_inventory WHERE sku = ?1",
    set_stock: "UPDATE highwater_example_inventory SET quantity = ?1 WHERE sku = ?2",
    insert_order: "INSERT INTO highwater_example_orders (order_id, sku, quantity, token) \
                   VALUES (?1, ?2, ?3, ?4)",
    forget_marks: "DELETE FROM highwater_fence WHERE substr(key, 1, length(?1)) = ?1",
};
#[path = "../sell.rs"]
pub(crate) mod sell;
#[path = "../shop.rs"]
pub(crate) mod shop;
