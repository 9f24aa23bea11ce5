//! Which table of marks a session finds: a temporary table, or a schema that is searched earlier, hides
//! the one of the others. A name with its schema is found by everybody, except on MySQL and MariaDB,
//! where a temporary table hides that, too.
//!
//! The URLs of the servers come from HIGHWATER_TEST_POSTGRES_URL, HIGHWATER_TEST_MYSQL_URL and
//! HIGHWATER_TEST_MARIADB_URL; a missing one is a failure.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

use highwater_fencing::migrate::{self, Dialect, print};
use highwater_fencing::sqlx::{FenceError, SqlxFence as _};
use highwater_fencing::{
    Configured, Domain, Fence, FenceKey, FenceOptions, FencingToken, TableName,
};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{AssertSqlSafe, raw_sql};

fn url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("set {variable} to the URL of a test server"))
}

fn table(name: &str) -> TableName {
    TableName::new(name).unwrap()
}

fn fence(table: TableName, token: u64) -> Configured {
    let domain = Domain::named("test").unwrap();
    let token = FencingToken::new(token).unwrap();
    let fence = Fence::new(domain, FenceKey::new("k").unwrap(), token);
    FenceOptions::new().table_name(table).apply(fence)
}

/// The SQL of a table of marks of the session alone.
fn temporary(dialect: Dialect, name: &str) -> String {
    let create = print(dialect, &table(name));
    create.replace("CREATE TABLE", "CREATE TEMPORARY TABLE")
}

/// Whether this transaction is admitted.
macro_rules! admits {
    ($pool:expr, $table:expr, $token:expr) => {
        match fence($table, $token).begin($pool).await {
            Ok(tx) => {
                tx.commit().await.unwrap();
                true
            }
            Err(FenceError::Stale { .. }) => false,
            Err(error) => panic!("{error:?}"),
        }
    };
}

#[tokio::test]
async fn on_postgres_a_name_without_its_schema_is_looked_up_in_the_session() {
    let url = url("HIGHWATER_TEST_POSTGRES_URL");
    let one = || PgPoolOptions::new().max_connections(1).connect(&url);
    let (others, session) = (one().await.unwrap(), one().await.unwrap());
    let name = format!("hidden_{}", std::process::id());
    let (bare, full) = (|| table(&name), || table(&format!("public.{name}")));
    migrate::postgres::run_for(&others, &full()).await.unwrap();
    assert!(admits!(&others, bare(), 9));
    assert!(!admits!(&session, bare(), 8));

    // A temporary table comes before every schema.
    let hide = temporary(Dialect::Postgres, &name);
    raw_sql(AssertSqlSafe(hide))
        .execute(&session)
        .await
        .unwrap();
    assert!(admits!(&session, bare(), 8));
    assert!(!admits!(&session, full(), 8));
    let show = format!("DROP TABLE pg_temp.{name}");
    raw_sql(AssertSqlSafe(show))
        .execute(&session)
        .await
        .unwrap();

    // A schema that is searched earlier hides it, too.
    let schema = format!("tenant_{}", std::process::id());
    let create = format!("CREATE SCHEMA {schema}");
    raw_sql(AssertSqlSafe(create))
        .execute(&others)
        .await
        .unwrap();
    let search = format!("SET search_path = {schema}, public");
    raw_sql(AssertSqlSafe(search))
        .execute(&session)
        .await
        .unwrap();
    assert!(!admits!(&session, bare(), 8));
    let own = table(&format!("{schema}.{name}"));
    migrate::postgres::run_for(&others, &own).await.unwrap();
    assert!(admits!(&session, bare(), 8));
    assert!(!admits!(&session, full(), 8));
    let clean = format!("DROP SCHEMA {schema} CASCADE; DROP TABLE public.{name}");
    raw_sql(AssertSqlSafe(clean))
        .execute(&session)
        .await
        .unwrap();
}

#[tokio::test]
async fn on_mysql_a_temporary_table_hides_the_schema_too() {
    for variable in ["HIGHWATER_TEST_MYSQL_URL", "HIGHWATER_TEST_MARIADB_URL"] {
        let url = url(variable);
        let one = || MySqlPoolOptions::new().max_connections(1).connect(&url);
        let (others, session) = (one().await.unwrap(), one().await.unwrap());
        let schema: String = sqlx::query_scalar("SELECT DATABASE()")
            .fetch_one(&others)
            .await
            .unwrap();
        let name = format!("hidden_{}", std::process::id());
        let (bare, full) = (|| table(&name), || table(&format!("{schema}.{name}")));
        migrate::mysql::run_for(&others, &bare()).await.unwrap();
        assert!(admits!(&others, bare(), 9));
        assert!(!admits!(&session, full(), 8));
        let hide = temporary(Dialect::MySql, &name);
        raw_sql(AssertSqlSafe(hide))
            .execute(&session)
            .await
            .unwrap();
        assert!(admits!(&session, bare(), 8), "{variable}");
        assert!(admits!(&session, full(), 8), "{variable}");
        let clean = format!("DROP TEMPORARY TABLE {name}; DROP TABLE {name}");
        raw_sql(AssertSqlSafe(clean))
            .execute(&session)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn on_sqlite_the_schema_tells_the_file_from_the_session() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}?mode=rwc", folder.path().join("d").display());
    let one = || SqlitePoolOptions::new().max_connections(1).connect(&url);
    let (others, session) = (one().await.unwrap(), one().await.unwrap());
    let (bare, full) = (|| TableName::DEFAULT, || table("main.highwater_fence"));
    migrate::sqlite::run(&others).await.unwrap();
    assert!(admits!(&others, bare(), 9));
    assert!(!admits!(&session, bare(), 8));
    let hide = temporary(Dialect::Sqlite, "highwater_fence");
    raw_sql(AssertSqlSafe(hide))
        .execute(&session)
        .await
        .unwrap();
    assert!(admits!(&session, bare(), 8));
    assert!(!admits!(&session, full(), 8));
}
