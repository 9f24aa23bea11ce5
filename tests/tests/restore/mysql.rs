//! The dump program that the image has. One without (an image made of the server's package alone) is
//! dumped by statements like those that the program would send.

use std::sync::OnceLock;

use highwater_tests::databases::{Appliance, Kind, PASSWORD};
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, Row as _};

use crate::a_restored_backup_admits_a_stale_holder_until_the_marks_are_raised as check;
use crate::{Outcome, shop::Shop};

#[tokio::test]
async fn of_mysql() -> Outcome<()> {
    restored(Kind::MySql, "mysql:9").await
}

#[tokio::test]
async fn of_mariadb() -> Outcome<()> {
    restored(Kind::MariaDb, "mariadb:11").await
}

async fn restored(kind: Kind, default: &str) -> Outcome<()> {
    if let Some(reason) = kind.skip_reason() {
        println!("{} is left out: {reason}", kind.name());
        return Ok(());
    }
    let environment = [
        ("MYSQL_ROOT_PASSWORD", PASSWORD),
        ("MARIADB_ROOT_PASSWORD", PASSWORD),
    ];
    let image = kind.variable("IMAGE");
    let arguments = ["--innodb-flush-log-at-trx-commit=0"];
    let server = Appliance::start(&image, default, &environment, &arguments, &[3306]).await?;
    let port = server.port(3306).await?;
    let url = |name: &str| format!("mysql://root:{PASSWORD}@127.0.0.1:{port}/{name}");
    let any = Shop::open(&url("mysql")).await;
    for name in ["shop", "careless", "careful"] {
        any.run(&format!("CREATE DATABASE {name}")).await?;
    }
    let program = server.run(FIND).await?;
    println!("{}: {}", kind.name(), program.trim());
    let by_hand = OnceLock::new();
    let backup = async |shop| {
        if program.trim() == NONE {
            let dump = dump(&url("shop")).await?;
            by_hand.get_or_init(|| dump);
        } else {
            server.run(&with_client("dump shop >/tmp/backup")).await?;
        }
        Ok(shop)
    };
    let restore = async |name| {
        let shop = Shop::open(&url(name)).await;
        match by_hand.get() {
            Some(dump) => shop.run(dump).await?,
            None => {
                let read = with_client(&format!("client {name} </tmp/backup"));
                server.run(&read).await?;
            }
        }
        Ok(shop)
    };
    let shop = Shop::open(&url("shop")).await;
    check(shop, backup, restore).await.map(drop)
}

const FIND: &str = "command -v mariadb-dump || command -v mysqldump || echo none";
const NONE: &str = "none";

/// A script of the shell that has `dump` and `client`, with the password in the environment.
fn with_client(script: &str) -> String {
    format!(
        r#"export MYSQL_PWD={PASSWORD}
dump() {{
    "$(command -v mariadb-dump || command -v mysqldump)" \
        --user=root --single-transaction "$@"
}}
client() {{ "$(command -v mariadb || command -v mysql)" --user=root "$@"; }}
{script}"#
    )
}

/// Both tables as of one moment, as statements.
async fn dump(url: &str) -> Outcome<String> {
    let mut conn = MySqlConnection::connect(url).await?;
    let snapshot = "START TRANSACTION WITH CONSISTENT SNAPSHOT";
    sqlx::raw_sql(snapshot).execute(&mut conn).await?;
    let mut dump = String::new();
    for (table, rows) in [("highwater_fence", MARKS), ("writes", WRITES)] {
        let create = AssertSqlSafe(format!("SHOW CREATE TABLE {table}"));
        let create = sqlx::query(create).fetch_one(&mut conn).await?;
        dump += &format!("{};\n", create.get::<String, _>(1));
        let rows = sqlx::query_scalar::<_, String>(rows).fetch_all(&mut conn);
        for row in rows.await? {
            dump += &format!("INSERT INTO {table} VALUES ({row});\n");
        }
    }
    conn.close().await?;
    Ok(dump)
}

const MARKS: &str = "SELECT CAST(CONCAT_WS(', ', CONCAT('0x', HEX(`key`)), CONCAT('0x', HEX(domain)), \
                     token, step, QUOTE(updated_at)) AS CHAR) FROM highwater_fence";
const WRITES: &str = "SELECT CAST(CONCAT_WS(', ', QUOTE(name), token) AS CHAR) FROM writes";
