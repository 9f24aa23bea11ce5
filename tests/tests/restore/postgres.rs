//! `pg_dump` and `pg_restore`.

use highwater_fencing::FencingToken;
use highwater_fencing::operate::Selection;
use highwater_tests::databases::{Appliance, PASSWORD};

use crate::a_restored_backup_admits_a_stale_holder_until_the_marks_are_raised as check;
use crate::shop::{Shop, domain};
use crate::{NEXT, Outcome};

#[tokio::test]
async fn with_pg_dump() -> Outcome<()> {
    let environment = [("POSTGRES_PASSWORD", PASSWORD)];
    let server = Appliance::start(
        "HIGHWATER_TEST_POSTGRES_IMAGE",
        "postgres:17",
        &environment,
        &["-c", "fsync=off"],
        &[5432],
    )
    .await?;
    let port = server.port(5432).await?;
    let url = |name: &str| format!("postgres://postgres:{PASSWORD}@127.0.0.1:{port}/{name}");
    Shop::open(&url("postgres")).await.close().await;
    server.run(&in_path("createdb -U postgres shop")).await?;
    let backup = async |shop| {
        let dump = in_path("pg_dump -U postgres -Fc -f /tmp/backup shop");
        server.run(&dump).await?;
        Ok(shop)
    };
    let restore = async |name| {
        let script =
            format!("createdb -U postgres {name}; pg_restore -U postgres -d {name} /tmp/backup");
        server.run(&in_path(&script)).await?;
        Ok(Shop::open(&url(name)).await)
    };
    let restored = check(Shop::open(&url("shop")).await, backup, restore).await?;
    // Numbers of transactions from before a dump mean nothing in another cluster.
    let numbers = "SELECT COUNT(*) FROM highwater_fence WHERE last_tx <> '0'";
    assert_eq!(restored.number(numbers).await?, 2);
    let floor = FencingToken::new(NEXT + 2).expect("not zero");
    let all = Selection::all();
    restored.marks().raise(&all, domain(), floor).await?;
    assert_eq!(restored.number(numbers).await?, 0);
    Ok(())
}

fn in_path(script: &str) -> String {
    format!("export PATH=$PATH:$(echo /usr/lib/postgresql/*/bin)\n{script}")
}
