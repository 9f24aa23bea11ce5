//! The shop's tables in three databases: what differs is the statements and the driver.

mod mysql;
mod postgres;
mod sqlite;

use highwater_client::{AcquireOptions, Client};
use highwater_lock::Key;
use sqlx::Connection as _;

use crate::orders::{Order, Stock};
use crate::payment::Payment;
use crate::sale::{Sale, SellError};

/// The statements of one dialect.
pub(crate) struct Sql {
    create: &'static [&'static str],
    add_sku: &'static str,
    find_order: &'static str,
    read_stock: &'static str,
    set_stock: &'static str,
    insert_order: &'static str,
    forget_marks: &'static str,
}

/// The same for all three.
const DROP: [&str; 2] = [
    "DROP TABLE IF EXISTS highwater_example_orders",
    "DROP TABLE IF EXISTS highwater_example_inventory",
];
const ALL_STOCK: &str = "SELECT sku, quantity FROM highwater_example_inventory ORDER BY sku";
const ALL_ORDERS: &str = "SELECT order_id, sku, quantity FROM highwater_example_orders";

/// A connected shop in whichever database the URL names.
pub(crate) enum Shop {
    Postgres(sqlx::PgPool),
    MySql(sqlx::MySqlPool),
    Sqlite(sqlx::SqlitePool),
}

/// Runs the same call on whichever database it is.
macro_rules! on {
    ($shop:expr, $($path:ident)::+ ($pool:ident $(, $argument:expr)* )) => {
        match $shop {
            Shop::Postgres($pool) => postgres::$($path)::+($pool $(, $argument)*).await,
            Shop::MySql($pool) => mysql::$($path)::+($pool $(, $argument)*).await,
            Shop::Sqlite($pool) => sqlite::$($path)::+($pool $(, $argument)*).await,
        }
    };
}

/// The URL names no database that the example knows.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("a database URL begins with postgres://, mysql://, mariadb:// or sqlite:")]
    UnknownScheme,
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

impl Shop {
    /// Connects to the database that the URL's scheme names.
    pub(crate) async fn connect(url: &str) -> Result<Self, ConnectError> {
        match url.split(':').next().unwrap_or_default() {
            // A pool retries until its time is up, and forgets why; one connection says it at once.
            "postgres" | "postgresql" => {
                sqlx::PgConnection::connect(url).await?.close().await?;
                Ok(Self::Postgres(sqlx::PgPool::connect(url).await?))
            }
            "mysql" | "mariadb" => {
                sqlx::MySqlConnection::connect(url).await?.close().await?;
                Ok(Self::MySql(sqlx::MySqlPool::connect(url).await?))
            }
            "sqlite" => {
                let options = url.parse::<sqlx::sqlite::SqliteConnectOptions>()?;
                let options = options
                    .create_if_missing(true)
                    .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
                    .busy_timeout(std::time::Duration::from_secs(10));
                Ok(Self::Sqlite(sqlx::SqlitePool::connect_with(options).await?))
            }
            _ => Err(ConnectError::UnknownScheme),
        }
    }

    /// What the database is, for the headings.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "PostgreSQL",
            Self::MySql(_) => "MySQL/MariaDB",
            Self::Sqlite(_) => "SQLite",
        }
    }

    /// Applies Highwater's migration: the table of the marks. Harmless when it is there already.
    pub(crate) async fn migrate(&self) -> Result<(), highwater_fencing::migrate::Error> {
        on!(self, migrate::run(pool)).map(drop)
    }

    /// Drops and creates the shop's tables, and fills the shelves.
    pub(crate) async fn reset(&self, stock: &Stock) -> Result<(), sqlx::Error> {
        on!(self, shop::reset(pool, stock))
    }

    /// Sells one order, fenced or as the control.
    pub(crate) async fn sell(
        &self,
        fencing: bool,
        client: &Client,
        options: AcquireOptions,
        key: &Key,
        order: &Order,
        payment: &mut Payment,
    ) -> Result<Sale, SellError> {
        if fencing {
            on!(self, sell::sell(pool, client, options, key, order, payment))
        } else {
            on!(
                self,
                sell::sell_unfenced(pool, client, options, key, order, payment)
            )
        }
    }

    /// The stock as the database has it.
    pub(crate) async fn stock(&self) -> Result<Stock, sqlx::Error> {
        on!(self, shop::stock(pool))
    }

    /// The recorded orders: id, SKU, quantity.
    pub(crate) async fn orders(&self) -> Result<Vec<(String, String, i64)>, sqlx::Error> {
        on!(self, shop::orders(pool))
    }

    /// Takes away what the example left: its tables, and the marks of keys that no later run uses.
    pub(crate) async fn clean_up(&self, key_prefix: &str) -> Result<(), sqlx::Error> {
        on!(self, shop::clean_up(pool, key_prefix))
    }
}
