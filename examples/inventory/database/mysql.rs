//! The shop on MySQL and MariaDB: its statements, and the lesson loaded for it.

use super::Sql;
pub(crate) use highwater_fencing::migrate::mysql as migrate;
pub(crate) use sqlx::MySql as Db;

pub(crate) const SQL: Sql = Sql {
    create: &[
        "CREATE TABLE highwater_example_inventory (\
         sku varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, \
         quantity bigint NOT NULL) ENGINE = InnoDB",
        "CREATE TABLE highwater_example_orders (\
         order_id varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, \
         sku varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, \
         quantity bigint NOT NULL, token varchar(20) NOT NULL) ENGINE = InnoDB",
    ],
    add_sku: "INSERT INTO highwater_example_inventory (sku, quantity) VALUES (?, ?)",
    find_order: "SELECT quantity FROM highwater_example_orders WHERE order_id = ?",
    read_stock: "SELECT quantity FROM highwater_example_inventory WHERE sku = ?",
    set_stock: "UPDATE highwater_example_inventory SET quantity = ? WHERE sku = ?",
    insert_order: "INSERT INTO highwater_example_orders (order_id, sku, quantity, token) \
                   VALUES (?, ?, ?, ?)",
    forget_marks: "DELETE FROM highwater_fence WHERE LOCATE(?, `key`) = 1",
};
#[path = "../sell.rs"]
pub(crate) mod sell;
#[path = "../shop.rs"]
pub(crate) mod shop;
