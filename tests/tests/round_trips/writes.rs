//! The write of one row, a form that two of the adapters have.

use highwater_fencing::migrate;
use highwater_fencing::sqlx::{FenceError, RowWrite, SqlxFence as _};
use highwater_fencing::{TableName, Written};
use highwater_tests::databases::Kind;
use highwater_tests::wire::Wire;
use sqlx::{MySqlPool, PgPool};

use crate::{Outcome, fence, per_transaction};

/// Lines of the table: the first cell, and how many flights the write takes of a row that is there, of
/// one that is not, and with a stale token.
pub(crate) async fn count(kind: Kind, url: &str) -> Outcome<Vec<(String, Vec<String>)>> {
    let mut lines = Vec::new();
    match kind {
        Kind::Postgres => {
            lines.push((
                "sqlx on postgres, write".to_owned(),
                sqlx_postgres(url).await?,
            ));
            #[cfg(feature = "tokio-postgres")]
            lines.push((
                "tokio-postgres on postgres, write".to_owned(),
                tokio_postgres(url).await?,
            ));
        }
        Kind::MySql | Kind::MariaDb => {
            lines.push((
                format!("sqlx on {}, write", kind.name()),
                sqlx_mysql(url).await?,
            ));
        }
    }
    Ok(lines)
}

/// Gives a function that counts the writes through a pool of sqlx.
macro_rules! through_sqlx {
    ($count:ident, $Pool:ident, $migrate:ident, $query:literal) => {
        async fn $count(url: &str) -> Outcome<Vec<String>> {
            let wire = Wire::start(&format!("{url}{}", $query), 0).await?;
            let pool = $Pool::connect_lazy(wire.url())?;
            migrate::$migrate::run(&pool).await?;
            for sql in SETUP {
                sqlx::raw_sql(sql).execute(&pool).await?;
            }
            let (fence, stale) = (fence(7), fence(6));
            let row =
                |sku: &'static str| RowWrite::update(stock(), "sku", sku).subtract("quantity", 1);
            let (apple, pear) = (row("apple"), row("pear"));
            let applied = per_transaction(&wire, async || {
                assert_eq!(fence.write(&pool, &apple).await?, Written::Applied);
                Ok(())
            });
            let applied = applied.await?;
            let missing = per_transaction(&wire, async || {
                assert_eq!(fence.write(&pool, &pear).await?, Written::NoRow);
                Ok(())
            });
            let missing = missing.await?;
            let refused = per_transaction(&wire, async || {
                let refused = stale.write(&pool, &apple).await;
                assert!(
                    matches!(refused, Err(FenceError::Stale { .. })),
                    "{refused:?}"
                );
                Ok(())
            });
            let refused = refused.await?;
            pool.close().await;
            Ok(vec![applied, missing, refused])
        }
    };
}

through_sqlx!(sqlx_postgres, PgPool, postgres, "");
through_sqlx!(sqlx_mysql, MySqlPool, mysql, "?ssl-mode=DISABLED");

#[cfg(feature = "tokio-postgres")]
async fn tokio_postgres(url: &str) -> Outcome<Vec<String>> {
    use highwater_fencing::tokio_postgres::{FenceError, RowWrite, TokioPostgresFence};
    use tokio_postgres::NoTls;
    use tokio_postgres::types::Type;

    let wire = Wire::start(url, 0).await?;
    let (mut client, connection) = tokio_postgres::connect(wire.url(), NoTls).await?;
    let connection = tokio::spawn(connection);
    migrate::tokio_postgres::run(&client).await?;
    for sql in SETUP {
        client.batch_execute(sql).await?;
    }
    let (fence, stale) = (fence(7), fence(6));
    let row = |sku| {
        RowWrite::update(stock(), "sku", sku, Type::TEXT).subtract("quantity", &1_i64, Type::INT8)
    };
    let (apple, pear) = (row(&"apple"), row(&"pear"));
    let applied = per_transaction(&wire, async || {
        assert_eq!(
            TokioPostgresFence::write(&fence, &mut client, &apple).await?,
            Written::Applied
        );
        Ok(())
    });
    let applied = applied.await?;
    let missing = per_transaction(&wire, async || {
        assert_eq!(
            TokioPostgresFence::write(&fence, &mut client, &pear).await?,
            Written::NoRow
        );
        Ok(())
    });
    let missing = missing.await?;
    let refused = per_transaction(&wire, async || {
        let refused = TokioPostgresFence::write(&stale, &mut client, &apple).await;
        assert!(
            matches!(refused, Err(FenceError::Stale { .. })),
            "{refused:?}"
        );
        Ok(())
    });
    let refused = refused.await?;
    drop(client);
    connection.await??;
    Ok(vec![applied, missing, refused])
}

fn stock() -> TableName {
    TableName::new("stock").expect("a name")
}

const SETUP: [&str; 3] = [
    "DROP TABLE IF EXISTS stock",
    "CREATE TABLE stock (sku VARCHAR(60) NOT NULL PRIMARY KEY, quantity BIGINT NOT NULL)",
    "INSERT INTO stock VALUES ('apple', 1000)",
];
