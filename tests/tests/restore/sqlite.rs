//! Copies of a SQLite file, the restored ones at another path.

use std::path::Path;

use crate::a_restored_backup_admits_a_stale_holder_until_the_marks_are_raised as check;
use crate::{AFTER, APPLE, BEFORE, Outcome, STALE, shop::Shop, stale};

fn url(path: &Path) -> String {
    format!("sqlite://{}?mode=rwc", path.display())
}

#[tokio::test]
async fn with_vacuum_into() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    let shop = Shop::open(&url(&path("shop"))).await;
    shop.run("PRAGMA journal_mode = WAL").await?;
    let backup = async |shop: Shop| {
        vacuum_into(&shop, &path("backup")).await?;
        Ok(shop)
    };
    let restore = async |name| {
        std::fs::copy(path("backup"), path(name))?;
        Ok(Shop::open(&url(&path(name))).await)
    };
    check(shop, backup, restore).await.map(drop)
}

#[tokio::test]
async fn with_a_copy_of_a_closed_file() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    let shop = Shop::open(&url(&path("shop"))).await;
    shop.run("PRAGMA journal_mode = WAL").await?;
    let backup = async |shop: Shop| {
        // Whoever closes it last brings what is in the WAL into the file.
        shop.close().await;
        std::fs::copy(path("shop"), path("backup"))?;
        Ok(Shop::open(&url(&path("shop"))).await)
    };
    let restore = async |name| {
        std::fs::copy(path("backup"), path(name))?;
        Ok(Shop::open(&url(&path(name))).await)
    };
    check(shop, backup, restore).await.map(drop)
}

/// A database that is open can be copied with its WAL by luck only, and without it never: the copy is
/// a state from the past, marks included.
#[tokio::test]
async fn a_file_without_its_wal_is_older_than_it_looks() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    let shop = Shop::open(&url(&path("shop"))).await;
    shop.run("PRAGMA journal_mode = WAL").await?;
    shop.migrate().await?;
    shop.run("CREATE TABLE writes (name VARCHAR(60), token BIGINT)")
        .await?;
    shop.write(APPLE, BEFORE).await?;
    shop.run("PRAGMA wal_checkpoint(TRUNCATE)").await?;
    shop.write(APPLE, AFTER).await?;

    std::fs::copy(path("shop"), path("without"))?;
    vacuum_into(&shop, &path("whole")).await?;
    let without = Shop::open(&url(&path("without"))).await;
    without.write(APPLE, STALE).await?;
    let whole = Shop::open(&url(&path("whole"))).await;
    stale(whole.write(APPLE, STALE).await);
    Ok(())
}

async fn vacuum_into(shop: &Shop, copy: &Path) -> Outcome<()> {
    shop.run(&format!("VACUUM INTO '{}'", copy.display())).await
}
